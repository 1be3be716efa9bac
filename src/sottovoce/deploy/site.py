"""Run inside FLARE: `Site`, in the job's process at each site, and `Relay`, at the server.

Both are named by a job's configuration, and built by FLARE. A site has its party in another process, which FLARE's
cannot look into (`sottovoce.deploy.own_process`): it hands calls of other sites over as opaque bytes, and back. The
relay hands calls over, asks everybody how far they are, and ends the job when all are done or one has failed. It
computes nothing, and sees no message.
"""

import json
import logging
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from nvflare.collab.api import decorators as collab
from nvflare.collab.api.constants import FL_CONTEXT_PROP
from nvflare.collab.api.context import Context

from sottovoce.deploy.job import RUN_FILE
from sottovoce.deploy.own_process import LINE
from sottovoce.deploy.pipe import Pipe
from sottovoce.deploy.presence import Presence
from sottovoce.deploy.progress import understood

STATUS = "sottovoce"  # the topic under which an administrator asks how far a run is
STOP = "sottovoce-stop"  # the topic under which it says that it will abort the run
_LOST = 5.0  # seconds for a site to say how far it is
_HELD = 120.0  # seconds for a party to answer a call: it may hold a question for a while
_log = logging.getLogger(__name__)


class Site:
    """Hand calls to one party, and its own calls to the others."""

    def __init__(self, run: str) -> None:
        self._run, self._ended = run, False
        self._pipe: Pipe | None = None

    @collab.init
    def begin(self, context: Context) -> None:
        """Start the party; FLARE calls this when all sites are there."""
        job = context.app.get_prop(FL_CONTEXT_PROP).get_job_id()
        text = (Path(context.workspace.get_app_config_dir(job)) / RUN_FILE).read_bytes()
        self._server = context.server
        self._sites = {proxy.name: proxy for proxy in context.clients}
        line = socket.socket(socket.AF_UNIX)
        line.connect(os.path.relpath(Path(context.workspace.get_root_dir()).parent / LINE))
        self._pipe = Pipe(line, self._respond)
        self._pipe.start()
        self._pipe.ask({"what": "begin", "run": self._run}, text)
        threading.Thread(target=self._end_with_party, daemon=True, name="looks after the party").start()

    @collab.publish
    def ask(self, data: bytes, context: Context) -> bytes:
        """Answer another site: opaque bytes in, opaque bytes out; none if the party is not ready, or refuses."""
        if self._pipe is None or not isinstance(data, bytes):
            return b""
        try:
            return self._pipe.ask({"what": "ask", "caller": context.caller}, data, _HELD)
        except ConnectionError:
            return b""

    @collab.publish
    def where(self) -> dict[str, Any]:
        """Say how far the party is; nothing that depends on a record."""
        if self._pipe is None:
            return {"state": "starting"}
        return dict(json.loads(self._pipe.ask({"what": "where"}, seconds=_LOST)))

    @collab.final
    def end(self) -> None:
        """Stop the party where it is; what it has stored stays."""
        self._ended = True
        if self._pipe is not None:
            try:
                self._pipe.ask({"what": "end"})
            except ConnectionError:
                _log.info("the party has ended already")
            self._pipe.close()

    def _respond(self, said: dict[str, Any], data: bytes) -> bytes:
        """Do what the party asks for: call another site, or ask the relay who is away."""
        if said["what"] == "call":
            answer = self._sites[said["name"]](timeout=said["seconds"]).ask(data)
            return answer if isinstance(answer, bytes) else b""
        away = self._server(timeout=_LOST).away(said["name"], said["round"], said["silent"])
        return b"1" if away else b"0"

    def _end_with_party(self) -> None:
        """End this process if the party's was killed: FLARE sees that the site is lost, and the run may be resumed."""
        assert self._pipe is not None
        self._pipe.ended.wait()
        if not self._ended:
            _log.warning("the party's process is gone: this one ends too")
            os._exit(1)


class Relay:
    """Watch the sites from the server."""

    def __init__(self, run: str, sites: list[str]) -> None:
        self._run, self._names = run, sites
        self._known: dict[str, dict[str, Any]] = {name: {"state": "starting"} for name in sites}
        self._presence, self._stopped = Presence(self._round_of), False

    @collab.publish
    def away(self, name: str, round: int, silent: bool, context: Context) -> bool:
        """Say whether all go on without a site in a round."""
        return self._presence.away(name, round, silent, context.caller)

    def _stop(self, topic: str, data: object, fl_ctx: object) -> dict[str, Any]:
        """Tell all watching programs that an administrator stops the run, so that nobody submits it again."""
        self._stopped = True
        return {}

    def _sites(self) -> dict[str, dict[str, Any]]:
        stopped = {"state": "stopped", "why": "an administrator stopped it"}
        return dict.fromkeys(self._names, stopped) if self._stopped else self._known

    def _round_of(self, name: str) -> int | None:
        said = self._known.get(name, {})
        return None if said.get("state") == "not reached" else said.get("round", 0)

    @collab.main
    def watch(self, context: Context) -> str:
        """Ask all sites how far they are until all are done; a site that failed ends the job, which may be resumed."""
        engine = context.app.get_prop(FL_CONTEXT_PROP).get_engine()
        engine.register_app_command(STATUS, lambda topic, data, fl_ctx: {"run": self._run, "sites": self._sites()})
        engine.register_app_command(STOP, self._stop)
        while not context.is_aborted():
            for proxy in context.clients:
                try:
                    self._known[proxy.name] = {**understood(proxy(timeout=_LOST).where()), "seen": time.time()}
                except Exception:  # it may be cut off for a while; the others say whom they wait for
                    self._known[proxy.name] = {**self._known[proxy.name], "state": "not reached"}
            ended = [said["why"] for said in self._known.values() if said["state"] in ("failed", "paused")]
            if ended:
                time.sleep(2.0)  # so that an administrator who watches sees why
                raise RuntimeError(f"stopped: {'; '.join(ended)}")
            if all(said["state"] == "done" for said in self._known.values()):
                return "done"
            time.sleep(0.5)
        return "aborted"
