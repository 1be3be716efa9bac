"""What goes over the wire, and what happens when it is cut. Needs Linux and root: raw sockets, network namespaces."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from sottovoce.deploy import federation as processes
from sottovoce.deploy.federation import Administrator, Federation
from sottovoce.deploy.kits import provision
from sottovoce.deploy.party import Order
from sottovoce.deploy.poc import agree, free_port, submitted
from sottovoce.runtime.frames import Message, MessageId
from sottovoce.runtime.socket_transport import SocketTransport
from tests.deploy import cases

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs raw sockets and namespaces"),
]


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


def test_a_capture_of_a_run_shows_no_message_no_parameter_and_no_label(tmp_path):
    """The same search finds a message that goes over plain sockets, so it would find one here."""
    text = cases.text("DpSgd", "exact", steps=8, every=8)  # one checkpoint at the end: nothing is removed before
    kits = provision(cases.SITES, "localhost", free_port(), tmp_path / "kits")
    order = Order(text, "capture")
    agree(order, kits)
    plain = np.random.default_rng(5).normal(size=500).astype(np.float32)
    wire = Capture()
    wire.start()
    one, other = SocketTransport.local(2, "r")
    one.send(1, Message(MessageId("r", 0, 0, "mix 1"), (plain,), "release"))
    with Federation(kits, cases.SITES) as running:
        admin = Administrator(kits / "admin")
        submitted(order, admin, tmp_path / "job", lambda line: None, running.revive)
        admin.close()
    one.leave(0), other.leave(1)
    data = wire.end()
    frames = [path.read_bytes() for path in kits.glob("*/runs/*/outbox/said/*/*")]
    assert len(frames) >= 5 * 2 * 8 - 10
    assert len(data) > sum(map(len, frames))
    needles = {plain.tobytes()[at : at + 32] for at in range(0, 1900, 100)}
    assert all(needle in data for needle in needles)  # the search works
    for frame in frames:
        for at in range(0, len(frame) - 32, 97):
            piece = frame[at : at + 32]
            if len(set(piece)) > 8:  # zeros say nothing
                assert piece not in data
    from sottovoce.experiments import build
    from sottovoce.experiments.runfile import RunFile

    parts = build.records(next(iter(RunFile.parse(text).cases.values())).data)[0]
    for part in parts:
        labels, features = part.gather()["label"], part.gather()["features"]
        assert np.ascontiguousarray(labels[:40]).tobytes() not in data
        assert np.ascontiguousarray(features[0]).tobytes()[:128] not in data
    print(f"{len(data)} bytes in {len(wire.packets)} packets, {len(frames)} messages of {len(frames[0])} bytes")


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def cable():
    """A network namespace at the end of a cable that can be pulled out."""
    name, host, guest = "svsite", "svhost0", "svguest0"
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    ip("netns", "add", name)
    ip("link", "add", host, "type", "veth", "peer", "name", guest)
    ip("link", "set", guest, "netns", name)
    ip("addr", "add", "10.77.0.1/24", "dev", host)
    ip("link", "set", host, "up")
    for words in (
        ["addr", "add", "10.77.0.2/24", "dev", guest],
        ["link", "set", guest, "up"],
        ["link", "set", "lo", "up"],
    ):
        ip("netns", "exec", name, "ip", *words)
    yield name, host
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    subprocess.run(["ip", "link", "del", host], capture_output=True)


@pytest.mark.parametrize("absent", ["pause", "go on"])
def test_a_site_that_is_cut_off_for_a_minute_does_no_harm(cable, absent, tmp_path, monkeypatch):
    name, host = cable
    start = processes.start

    def started(kit, server=False):
        if kit.name != "north":
            return start(kit, server)
        popen = subprocess.Popen
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", lambda words, **how: popen(["ip", "netns", "exec", name, *words], **how))
            return start(kit, server)

    monkeypatch.setattr(processes, "start", started)
    text = cases.text(
        "DpSgd", "simulated", steps=400, every=20, deadline=20 if absent == "go on" else 300, absent=absent
    )
    kits = provision(cases.SITES, "10.77.0.1", free_port(), tmp_path / "kits")
    order, lines = Order(text, "cut"), []
    agree(order, kits)

    def cutting():
        while not any("north" in line and "/400" in line and "north 0/" not in line for line in lines):
            time.sleep(0.2)
        ip("link", "set", host, "down")
        time.sleep(60.0)
        ip("link", "set", host, "up")
        lines.append("the link is up")

    threading.Thread(target=cutting, daemon=True).start()
    with Federation(kits, cases.SITES) as running:
        admin = Administrator(kits / "admin")
        submitted(order, admin, tmp_path / "job", lines.append, running.revive)
        admin.close()
    assert "the link is up" in lines
    print(f"{absent}: {sum('submitted' in line for line in lines)} submissions")
    report = (kits / "south" / "runs" / "cut" / "report.html").read_text()
    if absent == "pause":
        assert cases.furthest(cases.states(kits), cases.one_machine(text)) < 1e-5
    else:
        assert "went on without north in round" in report
    shutil.rmtree(kits)
