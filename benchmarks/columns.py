"""Two parties with columns, each in a process of its own: the private join of their rows, then a run of BAMBI.

``python -m benchmarks.columns`` joins two lists of 100 000 ids, of which 60 000 are common, goes on with 300 steps on
the common rows, and compares with one place. ``python -m benchmarks.columns 10000`` takes lists of 10 000. Both
processes share this machine's cores, and messages go by TCP on loopback. It needs the extra [deploy].
"""

import json
import subprocess
import sys
import time
from typing import Any

import numpy as np

import sottovoce as sv
from sottovoce.privacy.labels import Memoised
from sottovoce.problems.tasks.vertical import hyper_parameters
from sottovoce.runtime.join import join_rows
from sottovoce.runtime.lone_party import LoneParty
from sottovoce.runtime.socket_transport import SocketTransport, listen
from sottovoce.runtime.transport import Message, Patience

STEPS, WIDTH = 300, 20
METHOD = sv.methods.Bambi(inner_steps=1, batch=256, rate_x=0.05, rate_y=0.5, labels=Memoised(1.0))
PROBLEM = hyper_parameters([WIDTH, WIDTH])


class Counting(SocketTransport):
    """Sockets that count the bytes of what they send."""

    bytes = 0

    def _put(self, hearer: int, message: Message) -> None:
        self.bytes += len(message.to_bytes())
        super()._put(hearer, message)


def ids(me: int, count: int) -> np.ndarray:
    """Party 0 has 0 to n - 1, party 1 the last 60 % of these and as many others; both in an order of their own."""
    return np.random.default_rng(me).permutation(count) + me * (count - count * 6 // 10)


def features(rows: np.ndarray, me: int) -> np.ndarray:
    """Columns that depend on the id, so that rows joined wrongly are noticed."""
    angles = rows[:, None] * (1 + np.arange(WIDTH)[None] + WIDTH * me)
    return np.sin(angles).astype(np.float32)


def label(rows: np.ndarray) -> np.ndarray:
    return (features(rows, 0)[:, 0] + features(rows, 1)[:, 0] > 0).astype(int)


def party(me: int, count: int) -> dict[str, Any]:
    """Join and run as one party; return what was seen."""
    listener = listen()
    print(json.dumps(listener.getsockname()), flush=True)
    addresses = [tuple(address) for address in json.loads(sys.stdin.readline())]
    transport = Counting(me, addresses, "bench", Patience(600.0), listener=listener)
    own = ids(me, count)
    began, cpu = time.perf_counter(), time.process_time()
    rows = join_rows(own, b"a key for benchmarks only, no secret", transport, me=me, active=0, parties=2, run="bench")
    seen: dict[str, Any] = {"join seconds": time.perf_counter() - began, "join bytes": transport.bytes}
    seen["join CPU seconds"] = time.process_time() - cpu
    seen["common"], seen["order"] = len(rows.rows), rows.order
    seen["right"] = sorted(own[rows.rows]) == sorted(set(ids(0, count)) & set(ids(1, count)))
    labels = sv.Labels(label(own[rows.rows]), 2, seed=0) if me == 0 else None
    lone = LoneParty.of(
        me, rows.columns(features(own, me)), problem=PROBLEM, method=METHOD, classes=2, active=0, steps=STEPS,
        labels=labels, order=rows.order, run="bench",
    )  # fmt: skip
    state, _ = lone.begin(transport)
    state, _ = lone.advance(transport, state, 0, 10)  # compiles
    transport.bytes, began = 0, time.perf_counter()
    state, _ = lone.advance(transport, state, 10, STEPS - 10)
    y = lone.state(state).y
    seen["steps per second"] = (STEPS - 10) / (time.perf_counter() - began)
    seen["bytes per step"] = transport.bytes / (STEPS - 10)
    seen["weights"], seen["rows"] = np.asarray(y["weights"]).ravel().tolist(), own[rows.rows].tolist()
    transport.leave(me)
    return seen


def processes(count: int) -> list[dict[str, Any]]:
    """Run both parties, each in a process."""
    command, pipe = [sys.executable, "-m", "benchmarks.columns", str(count)], subprocess.PIPE
    each = [subprocess.Popen([*command, str(me)], stdin=pipe, stdout=pipe, text=True) for me in range(2)]
    try:
        addresses = json.dumps([json.loads(one.stdout.readline()) for one in each])  # type: ignore[union-attr]
        for one in each:
            one.stdin.write(addresses + "\n")  # type: ignore[union-attr]
            one.stdin.flush()  # type: ignore[union-attr]
        return [json.loads(one.communicate(timeout=900)[0]) for one in each]
    finally:
        for one in each:
            one.kill()


def main(count: int = 100_000) -> None:
    """Print a table of what was seen."""
    bank, shop = processes(count)
    rows = np.array(bank["rows"])
    table = sv.Table(sv.Columns([features(rows, me) for me in (0, 1)]), sv.Labels(label(rows), 2, seed=0), active=0)
    began = time.perf_counter()
    whole = sv.run(PROBLEM, table, METHOD, steps=STEPS)
    took = time.perf_counter() - began
    off = max(np.abs(np.ravel(whole.y[m]["weights"]) - one["weights"]).max() for m, one in enumerate((bank, shop)))
    print(f"| two processes, {count} ids each | label holder | other party |\n|---|---|---|")
    for name in (
        "common",
        "right",
        "join seconds",
        "join CPU seconds",
        "join bytes",
        "steps per second",
        "bytes per step",
    ):
        print("|", name, "|", " | ".join(f"{one[name]:.6g}" for one in (bank, shop)), "|")
    print(f"\nThe same order: {bank['order'] == shop['order']}. In one place, compiling included: {STEPS / took:.0f} "
          f"steps/s. Largest difference of a weight to one place: {off:.2g}.")  # fmt: skip


if __name__ == "__main__":
    sizes = [int(word) for word in sys.argv[1:]]
    if len(sizes) == 2:
        print(json.dumps(party(sizes[1], sizes[0])), flush=True)
    else:
        main(*sizes)
