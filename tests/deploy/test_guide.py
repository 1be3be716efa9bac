"""The guide of docs/deploy.md, command by command: the trial on one machine, and the rehearsal with kits of its own."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from sottovoce.deploy.federation import end
from sottovoce.deploy.poc import free_port

pytestmark = pytest.mark.slow
SITES = ["north", "south", "east", "west", "mid"]
GUIDE = Path(__file__).parents[2] / "docs" / "deploy.md"
PATHS = os.pathsep.join(str(Path(folder).resolve()) for folder in sys.path if folder)


def block(kind, word):
    """Return the first block of the guide of this kind that has a word."""
    return next(text for text in re.findall(rf"```{kind}\n(.*?)```", GUIDE.read_text(), re.DOTALL) if word in text)


def sottovoce(folder, *words):
    """Run a command that the guide has, and return what it prints."""
    given = " ".join(["sottovoce", *words])
    assert given.split(" --port")[0].replace("localhost", "relay.example.org") in GUIDE.read_text(), given
    ran = subprocess.run([sys.executable, "-m", *given.split()], cwd=folder, env={**os.environ, "PYTHONPATH": PATHS},
                         capture_output=True, text=True, timeout=400)  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return ran.stdout + ran.stderr


def await_port(port):
    """Wait until the server's port is open; `submit` itself waits for the sites."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("localhost", port), timeout=5):
            return
        time.sleep(0.5)
    raise TimeoutError(port)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with what the guide says to save."""
    made = tmp_path_factory.mktemp("guide")
    (made / "make_patients.py").write_text(block("python", "patients.csv"))
    subprocess.run([sys.executable, "make_patients.py"], cwd=made, check=True)
    (made / "mine.toml").write_text(block("toml", 'title = "Five hospitals"'))
    return made


def test_the_trial_on_one_machine_and_the_rehearsal(folder):
    sottovoce(folder, "check", "mine.toml")
    sottovoce(folder, "deploy", "poc", "mine.toml", "--out", "trial")
    assert len(list(folder.glob("trial/kits/*/runs/*/report.html"))) == len(SITES)

    run_file = folder / "mine.toml"
    run_file.write_text(re.sub(r"(?m)^party = .*\n", "", run_file.read_text()))
    port = free_port()
    sottovoce(folder, "deploy", "provision", "mine.toml", "--host", "localhost", "--port", str(port))
    for site in SITES:
        shutil.copy(folder / "trial" / "kits" / site / "table.csv", folder / "kits" / site / "patients.csv")
    with ExitStack() as running:
        for name in ("server", *SITES):
            words = [sys.executable, "-m", "sottovoce", "deploy", "site", f"kits/{name}"]
            log = running.enter_context(open(folder / f"{name}.log", "wb"))
            one = subprocess.Popen(words, cwd=folder, env={**os.environ, "PYTHONPATH": PATHS}, stdout=log, stderr=log)
            running.callback(end, one)
        await_port(port)
        sottovoce(folder, "deploy", "submit", "mine.toml", "--admin", "kits/admin")
        said = sottovoce(folder, "deploy", "status", "--admin", "kits/admin")
    assert all(site in said for site in SITES)
    assert len(list(folder.glob("kits/*/runs/*/report.html"))) == len(SITES)
    assert re.search(r"\b[0-9a-f]{64}\b", sottovoce(folder, "deploy", "fingerprint", "kits/south"))
