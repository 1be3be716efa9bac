"""What goes over the wire, and what happens when it is cut. Needs Linux and root: raw sockets, network namespaces."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest

from sottovoce.deploy import federation as processes
from sottovoce.deploy.federation import Administrator, Federation
from sottovoce.deploy.kits import provision
from sottovoce.deploy.order import Order
from sottovoce.deploy.poc import agree, free_port, submitted
from tests.deploy import cases

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs raw sockets and namespaces"),
]


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_a_capture_of_a_run_shows_no_message_no_parameter_no_id_and_no_label(kind, cable, tmp_path):
    """A whole federation in a network namespace of its own. The same search finds what goes over plain sockets."""
    words = [sys.executable, "-m", "tests.deploy.capture", kind, str(tmp_path)]
    ran = subprocess.run(["ip", "netns", "exec", cable[0], *words], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    seen = json.loads(ran.stdout.splitlines()[-1])
    print(seen)
    assert seen["control found"] == seen["control"] > 10
    assert seen["needles"] > 500
    assert seen["found"] == []
    assert seen["bytes"] > seen["bytes of messages"] > 0


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def cable():
    """A network namespace at the end of a cable that can be pulled out."""
    name, host, guest = "svsite", "svhost0", "svguest0"
    for left in (["netns", "del", name], ["link", "del", host]):  # of a test that was killed
        subprocess.run(["ip", *left], capture_output=True)
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
