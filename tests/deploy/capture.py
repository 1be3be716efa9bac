"""Run a federation and write down all bytes on the loopback device: ``python -m tests.deploy.capture rows FOLDER``.

It is meant for a network namespace of its own. What was looked for, and found, is printed as JSON.
"""

import json
import socket
import sys
import threading
from pathlib import Path

import numpy as np

from sottovoce.data.join import tokens
from sottovoce.deploy.federation import Administrator, Federation
from sottovoce.deploy.kits import provision
from sottovoce.deploy.order import Order
from sottovoce.deploy.poc import agree, free_port, submitted
from sottovoce.experiments import build
from sottovoce.experiments.runfile import RunFile
from sottovoce.runtime.frames import Message, MessageId
from sottovoce.runtime.socket_transport import SocketTransport
from tests.deploy import cases, column_cases

PIECE = 32  # bytes of a message that are looked for
TWO = {"north": ["a", "c"], "south": ["b", "colour", "d", "e"]}


class Capture(threading.Thread):
    """All bytes that go over the loopback device."""

    def __init__(self):
        super().__init__(daemon=True)
        self.line = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
        self.line.setsockopt(socket.SOL_SOCKET, 33, 1 << 28)  # SO_RCVBUFFORCE
        self.line.bind(("lo", 0))
        self.line.settimeout(0.5)
        self.packets, self.over = [], threading.Event()

    def run(self):
        while not self.over.is_set():
            try:
                self.packets.append(self.line.recv(1 << 17))
            except TimeoutError:
                continue

    def end(self):
        self.over.set()
        self.join()
        self.line.close()
        return b"".join(self.packets)


def pieces(data: bytes) -> list[bytes]:
    """Some pieces of bytes, but for those that say nothing, such as zeros."""
    found = [data[at : at + PIECE] for at in range(0, max(len(data) - PIECE, 1), 97)]
    return [piece for piece in found if len(piece) == PIECE and len(set(piece)) > 8]


def shown(needles: list[bytes], data: bytes) -> list[bytes]:
    """Return those needles that are in the data; all but a few are ruled out by their first 8 bytes, at once."""
    heads = np.unique(np.array([int.from_bytes(needle[:8], sys.byteorder) for needle in needles], np.uint64))
    hits = set[int]()
    for shift in range(8):
        words = np.frombuffer(data, np.uint64, (len(data) - shift) // 8, shift)
        hits.update(words[np.isin(words, heads)].tolist())
    likely = [one for one in needles if len(one) < 8 or int.from_bytes(one[:8], sys.byteorder) in hits]
    return [needle for needle in likely if needle in data]


def rows_needles(text: str) -> dict[str, list[bytes]]:
    """Labels and features of all sites."""
    parts = build.records(next(iter(RunFile.parse(text).cases.values())).data)[0]
    held = [part.gather() for part in parts]
    return {
        "labels": [np.ascontiguousarray(one["label"][:40]).tobytes() for one in held],
        "features": [np.ascontiguousarray(one["features"][0]).tobytes()[:128] for one in held],
    }


def columns_needles(kits: Path) -> dict[str, list[bytes]]:
    """Ids, keyed ids, and labels as texts, numbers and one-hot vectors."""
    key = (kits / "north" / "join.key").read_text().strip().encode()
    lines = list(column_cases.people())
    ids = [line["who"] for line in lines]
    keyed = [one.tobytes() for one in tokens(ids, key)]
    answers = [line["y"] for line in column_cases.in_order(lines, kits)]
    coded = np.array([("no", "yes").index(one) for one in answers])
    forms = [coded.astype(kind)[:40].tobytes() for kind in (np.int32, np.int64, np.uint8, np.float32)]
    texts = ["\r\n".join(answers[:30]).encode(), ",".join(answers[:30]).encode(), json.dumps(answers[:30]).encode()]
    return {
        "ids": [one.encode() for one in ids],
        "keyed ids": [*keyed, *(one.hex().encode() for one in keyed)],
        "labels": [*forms, *texts, np.eye(2, dtype=np.float32)[coded][:20].tobytes()],
    }


def main(kind: str, folder: Path) -> None:
    sites = cases.SITES if kind == "rows" else list(TWO)
    text = cases.text("DpSgd", "exact", steps=8, every=8)  # one checkpoint at the end: nothing is removed before
    text = text if kind == "rows" else column_cases.text("exact", steps=3, every=3, holders=TWO)
    kits = provision(sites, "localhost", free_port(), folder / "kits")
    order = Order(text, "capture")
    agree(order, kits)
    if kind == "columns":
        column_cases.spread(kits, TWO)
    needles = rows_needles(text) if kind == "rows" else columns_needles(kits)
    plain = np.random.default_rng(5).normal(size=500).astype(np.float32)
    control = [*pieces(plain.tobytes()), *(found[0] for found in needles.values())]
    wire = Capture()
    wire.start()
    one, other = SocketTransport.local(2, "r")
    sent = [plain, *(np.frombuffer(found[0], np.uint8) for found in needles.values())]
    one.send(1, Message(MessageId("r", 0, 0, "mix 1"), sent, "release"))
    for mine in (one, other):
        mine.leave(0 if mine is one else 1)
    plainly = wire.end()
    wire = Capture()
    wire.start()
    with Federation(kits, sites) as running:
        admin = Administrator(kits / "admin")
        submitted(order, admin, folder / "job", lambda line: print(line, file=sys.stderr), running.revive)
        admin.close()
    data = wire.end()
    frames = [path.read_bytes() for path in kits.glob("*/runs/*/outbox/said/*/*")]
    needles["messages"] = [piece for frame in frames for piece in pieces(frame)]
    seen = {
        "bytes": len(data),
        "packets": len(wire.packets),
        "messages": len(frames),
        "bytes of messages": sum(map(len, frames)),
        "needles": sum(map(len, needles.values())),
        "found": [name for name, some in needles.items() for _ in shown(some, data)],
        "control": len(control),
        "control found": len(shown(control, plainly)),
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
