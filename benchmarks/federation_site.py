"""What runs at each site in the benchmark of a federation: exchanges on a ring, bare and by our driver in turn."""

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.collab.api import decorators as collab
from nvflare.collab.api.context import Context

from sottovoce.deploy.flare import FlareTransport
from sottovoce.deploy.outbox import Outbox
from sottovoce.deploy.pipe import Pipe
from sottovoce.deploy.policy import Policy
from sottovoce.deploy.tunnel import Identity
from sottovoce.runtime.frames import Message, MessageId
from sottovoce.runtime.transport import Expected, Patience


class Exchanges:
    """Sends an array to both neighbours and waits for theirs, again and again; `ways` are the turns."""

    def __init__(self, ways: list[str], floats: int, rounds: int, sites: list[str], run: str) -> None:
        self._ways, self._floats, self._rounds, self._names, self._run = ways, floats, rounds, sites, run
        self._state: dict[str, Any] = {"state": "running"}
        self._came: dict[tuple[str, int, str], bytes] = {}
        self._changed = threading.Condition()
        self._transport: FlareTransport | None = None
        self._pipe: Pipe | None = None

    @collab.init
    def begin(self, context: Context) -> None:
        self._home, self._me = Path(context.workspace.get_root_dir()), self._names.index(context.app.name)
        self._sites = {proxy.name: proxy for proxy in context.clients}
        threading.Thread(target=self._live, daemon=True).start()

    @collab.publish
    def ask(self, data: bytes, context: Context) -> bytes:
        return b"" if self._pipe is None else self._pipe.ask({"caller": context.caller}, data, 120.0)

    @collab.publish
    def take(self, run: str, round: int, data: bytes, context: Context) -> bool:
        with self._changed:
            self._came[run, round, context.caller] = data
            self._changed.notify_all()
        return True

    @collab.publish
    def where(self) -> dict[str, Any]:
        return self._state

    def _live(self) -> None:
        try:
            values = np.random.default_rng(self._me).normal(size=self._floats).astype(np.float32)
            near = [(self._me + step) % len(self._names) for step in (-1, 1)]
            turns = []
            for turn, way in enumerate(self._ways):
                exchange = (self._bare if way == "bare" else self._ours)(near, f"{self._run}-{turn}")
                exchange(0, values)
                began = time.time()
                for round in range(1, self._rounds + 1):
                    exchange(round, values)
                turns.append((began, time.time()))
                if way == "ours" and self._transport is not None:
                    self._transport.close()  # it still answers who is a little behind
            self._state = {"state": "done", "turns": turns}
        except BaseException as failure:
            self._state = {"state": "failed", "why": repr(failure)}

    def _bare(self, near: list[int], run: str) -> Any:
        def tell(name: str, round: int, data: bytes) -> None:
            for _ in range(100):  # others may not be set up yet
                try:
                    return self._sites[name](timeout=60.0).take(run, round, data)
                except Exception:
                    time.sleep(0.2)

        def exchange(round: int, values: np.ndarray) -> None:
            data = values.tobytes()
            sending = [threading.Thread(target=tell, args=(self._names[peer], round, data)) for peer in near]
            for thread in sending:
                thread.start()
            with self._changed:
                for peer in near:
                    key = (run, round, self._names[peer])
                    self._changed.wait_for(lambda key=key: key in self._came, 120.0)
                    np.frombuffer(self._came.pop(key), np.float32)
            for thread in sending:
                thread.join()

        return exchange

    def _ours(self, near: list[int], run: str) -> Any:
        identity = Identity.of(self._home, Policy.load(self._home / "policy.toml").peers)

        def out(said: dict[str, Any], data: bytes) -> bytes:
            return bytes(self._sites[said["name"]](timeout=said["seconds"]).ask(data))

        def call(name: str, data: bytes, seconds: float) -> bytes:
            return party.ask({"name": name, "seconds": seconds}, data, seconds + 5.0)

        one, other = socket.socketpair()  # as between FLARE's process and the party's, here in one
        flare = Pipe(one, out)
        party = Pipe(other, lambda said, data: transport.answer(said["caller"], data))
        outbox = Outbox(self._home / "runs" / run / "outbox")
        transport = FlareTransport(self._me, self._names, run, outbox, identity, call, Patience(120.0))
        self._transport = transport
        transport.expected = Expected(4 * self._floats + 1000, 1)
        transport.charged = True  # these messages hold no record
        for pipe in (flare, party):
            pipe.start()
        self._pipe = flare
        transport.expect(near)

        def exchange(round: int, values: np.ndarray) -> None:
            mine = Message(MessageId(run, round, self._me, "mix"), (values,), "release")
            for peer in near:
                transport.send(peer, mine)
            for peer in near:
                transport.receive(self._me, MessageId(run, round, peer, "mix"), (values,))
            if round % 10 == 0:
                transport.stored = round
                transport.tidy(round)

        return exchange


class Watch:
    """Waits for all sites, and keeps what they measured."""

    @collab.main
    def watch(self, context: Context) -> str:
        while not context.is_aborted():
            said = [proxy(timeout=30.0).where() for proxy in context.clients]
            if all(one["state"] != "running" for one in said):
                Path(context.workspace.get_root_dir(), "times.json").write_text(json.dumps(said))
                return "done"
            time.sleep(1.0)
        return "aborted"
