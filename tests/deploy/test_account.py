"""A federation whose FLARE processes have an account of their own, which opens nothing of the site. Needs root."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from sottovoce.deploy import federation as processes
from sottovoce.deploy.federation import Administrator, Federation
from sottovoce.deploy.kits import provision
from sottovoce.deploy.order import Order
from sottovoce.deploy.poc import agree, free_port, submitted
from tests.deploy import cases

ACCOUNT = "nobody"
SITES = cases.SITES[:3]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root"),
]


@pytest.fixture
def folder():
    """A folder that the account may enter; pytest's own is root's alone."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


def opened_as_the_account(path: Path) -> bool:
    """Say whether a process of the account reads a file."""
    code = f"open({str(path)!r}, 'rb').read(1)"
    return subprocess.run([sys.executable, "-c", code], user=ACCOUNT, capture_output=True).returncode == 0


def test_a_run_with_flares_processes_under_an_account_of_their_own(folder, monkeypatch):
    own, start, seen = pwd.getpwnam(ACCOUNT).pw_uid, processes.start, {}

    def started(kit, server=False):
        return start(kit, server, None if server else ACCOUNT)

    monkeypatch.setattr(processes, "start", started)
    text = cases.text("DpSgd", "exact", steps=8, every=8).replace("agents = 5", "agents = 3")
    text = text.replace(str(cases.SITES).replace("'", '"'), str(SITES).replace("'", '"'))
    kits = provision(SITES, "localhost", free_port(), folder / "kits")
    (folder / "kits").chmod(0o711)
    order = Order(text, "account")
    agree(order, kits)
    if not opened_as_the_account(Path(os.__file__)):
        pytest.skip(f"{ACCOUNT} may not run this Python")

    def look(line):
        for one in psutil.process_iter(["cmdline", "uids"]):
            words = " ".join(one.info["cmdline"] or [])
            if str(kits) in words and "engine server" not in words:
                seen.setdefault(words.split("sottovoce.deploy.")[-1].split(" ")[0], set()).add(one.info["uids"].real)

    with Federation(kits, SITES) as running:
        admin = Administrator(kits / "admin")
        try:
            submitted(order, admin, folder / "job", look, running.revive)
        except ValueError as error:
            raise AssertionError((kits / "north" / "console.log").read_text()[-2000:]) from error
        finally:
            admin.close()
        for site in SITES:
            held = [path for path in (kits / site).rglob("*") if path.is_file() and "network" not in path.parts]
            assert {"policy.toml", "site.key", "ledger.jsonl"} <= {path.name for path in held}
            assert [path for path in held if opened_as_the_account(path)] == []
            assert opened_as_the_account(kits / site / "network" / "startup" / "fed_client.json")
    assert seen["engine"] == {own}, seen
    assert seen["own_process"] == seen["party_process"] == {0}, seen
    assert (kits / "north" / "runs" / "account" / "report.html").exists()
