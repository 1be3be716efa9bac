"""What starts, watches and stops a federation, beside what FLARE does: fakes stand for its sessions."""

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import closing
from types import SimpleNamespace

import psutil
import pytest
from typer.testing import CliRunner

from sottovoce.deploy import commands, federation, poc
from sottovoce.deploy.engine import address
from sottovoce.deploy.federation import Administrator, require_idle
from sottovoce.deploy.order import Order
from sottovoce.deploy.poc import submitted
from sottovoce.experiments.runfile import RunFile
from tests.deploy import cases


def test_a_kit_that_runs_already_is_not_started_again(kits):
    """Two processes of one name would take each other's messages."""
    require_idle(kits / "north")
    script = "import time; time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", script, "sottovoce.deploy.own_process", str(kits / "north")])
    try:
        with pytest.raises(ValueError, match=f"north runs already, as process {other.pid}"):
            require_idle(kits / "north")
        require_idle(kits / "south")
    finally:
        other.kill()
        other.wait()


def test_the_process_of_a_job_ends_with_its_site(tmp_path):
    """Also if the site was killed while that process was starting: FLARE watches what is its parent by then."""
    (tmp_path / "job.py").write_text(
        "import os, time\nfrom sottovoce.deploy.confine import end_with_parent\n"
        "end_with_parent(int(os.environ['PARENT']), at_once=False)\nprint('on', flush=True)\ntime.sleep(90)"
    )
    script = (
        "import os, subprocess, sys; "
        f"subprocess.run([sys.executable, {str(tmp_path / 'job.py')!r}], env=dict(os.environ, PARENT=str(os.getpid())))"
    )
    site = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    orphan = subprocess.Popen([sys.executable, str(tmp_path / "job.py")], env={**os.environ, "PARENT": str(site.pid)})
    try:
        assert site.stdout.readline() == b"on\n"
        (child,) = psutil.Process(site.pid).children()
        assert orphan.wait(30) == 1
        time.sleep(3.0)
        assert child.is_running()  # as long as its site is there
        site.kill()
        child.wait(30)
    finally:
        for process in (site, orphan):
            process.kill()
            process.wait()
        site.stdout.close()


def test_a_port_in_use_is_named(kits, monkeypatch):
    """FLARE would share it, and every second site would reach the other server."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(federation, "address", lambda kit: ("localhost", port))
        with pytest.raises(ValueError, match=f"cannot open port {port}"):
            require_idle(kits / "server", server=True)
    require_idle(kits / "server", server=True)


def test_each_kit_knows_the_server_and_others_are_no_kits(kits, tmp_path):
    assert address(kits / "north") == address(kits / "server") == address(kits / "admin", ["admin"])
    for wrong, roles in ((tmp_path, ["client"]), (kits / "north", ["admin"]), (kits / "admin", ["server", "client"])):
        with pytest.raises(ValueError, match="is no kit of"):
            address(wrong, roles)


@pytest.mark.parametrize("name", ["server", "admin", "Admin", "NORTH"])
def test_a_site_takes_no_name_of_another_kit(name):
    with pytest.raises(ValueError, match="none the name server or admin"):
        RunFile.parse(cases.text().replace('"mid"', f'"{name}"'))


def test_a_trial_uses_whole_kits_only(tmp_path, monkeypatch):
    """An interrupt while they are made leaves none; kits of other sites are refused before a process is started."""
    runfile, made = RunFile.parse(cases.text()), tmp_path / "kits"

    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(poc, "agree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        poc.poc(runfile, tmp_path)
    assert not made.exists()
    (made / "north").mkdir(parents=True)
    with pytest.raises(ValueError, match="has no kit of south, east, west, mid: give another --out"):
        poc.poc(runfile, tmp_path)


class Session:
    """A server that was started at second 100."""

    def __init__(self, *jobs, failures=0):
        self.known, self.failures = jobs, failures

    def list_jobs(self, detailed):
        if self.failures:
            self.failures -= 1
            raise ConnectionError("broken by the test")
        return [{"name": name, "status": status, "submit_time": when} for name, status, when in self.known]

    def get_connected_client_list(self):
        return [SimpleNamespace(name=name) for name in ("south", "north", "east")]

    def get_client_job_status(self):
        said = {"south": "no_reply", "north": "no_jobs", "east": "has_jobs"}
        return [{"client_name": name, "status": status} for name, status in said.items()]

    def get_system_info(self):
        return SimpleNamespace(server_info=SimpleNamespace(start_time=100.0))

    def close(self):
        pass


def with_session(monkeypatch, tmp_path, session, dead=(), **how):
    answers = iter(dead)
    monkeypatch.setattr(federation, "new_secure_session", lambda *given, **options: session)
    monkeypatch.setattr(federation, "address", lambda kit, roles: ("localhost", 8002))
    monkeypatch.setattr(federation, "unreached", lambda host, port: next(answers, ""))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    return Administrator(tmp_path, **how)


def test_a_job_that_died_with_its_server_is_not_said_to_run(monkeypatch, tmp_path):
    """FLARE says so: then no further run could be submitted."""
    known = [("new", "RUNNING", 120.0), ("old", "RUNNING", 50.0), ("done", "FINISHED:COMPLETED", 20.0)]
    admin = with_session(monkeypatch, tmp_path, Session(*known))
    assert [(job["name"], job["status"]) for job in admin.jobs()] == [
        ("done", "done"), ("old", "ended with the server"), ("new", "runs"),
    ]  # fmt: skip
    assert [job["name"] for job in admin.running()] == ["new"]


def test_a_site_that_does_not_answer_is_not_said_to_be_connected(monkeypatch, tmp_path):
    """FLARE lists a dead one for ten minutes; a job that is submitted meanwhile is not started, nor soon afterwards."""
    admin = with_session(monkeypatch, tmp_path, Session(("r", "SUBMITTED", 120.0)))
    assert admin.connected() == ["east", "north"]
    assert admin.without_jobs() == {"north"}
    assert [job["status"] for job in admin.running()] == ["waits to start"]


def test_a_job_that_a_site_missed_is_started_again_soon(kits):
    settings = json.loads((kits / "server" / "local" / "resources.json").read_text())
    (scheduler,) = (one for one in settings["components"] if one["id"] == "job_scheduler")
    assert scheduler["args"]["max_schedule_interval"] == 10.0


def test_a_server_that_dies_while_it_is_asked_is_started_again(monkeypatch, tmp_path):
    revived = []
    admin = with_session(monkeypatch, tmp_path, Session(failures=2), meanwhile=lambda: revived.append(1))
    assert admin.jobs() == []
    assert len(revived) == 2


def test_a_server_that_is_not_there_is_not_waited_for(monkeypatch, tmp_path):
    """FLARE would try for a minute, in which nobody starts it again."""
    revived, dead = [], ["nobody answers", "nobody answers"]
    admin = with_session(monkeypatch, tmp_path, Session(), dead, meanwhile=lambda: revived.append(1))
    assert admin.jobs() == []
    assert len(revived) == 2


class Watched:
    """A federation whose jobs end at once, each in its own way."""

    def __init__(self, *ends):
        self.ends, self.submissions = ends, 0

    def connected(self):
        return cases.SITES

    def server_since(self):
        return 0.0

    def submit(self, folder):
        self.submissions += 1
        return str(self.submissions - 1)

    def status(self, number):
        return self.ends[int(number)][0]

    def where(self, number):
        return self.ends[int(number)][1]

    def without_jobs(self):
        return set()


def test_a_stop_is_not_undone_by_whoever_watches_but_a_lost_process_is_replaced(tmp_path):
    order, lost = Order(cases.text(), "r"), ("FINISHED:ABORTED", {"north": {"state": "not reached"}})
    goes_on = Watched(lost, ("FINISHED:COMPLETED", {}))
    submitted(order, goes_on, tmp_path, lambda line: None)
    assert goes_on.submissions == 2
    stopped = Watched(("FINISHED:ABORTED", {"north": {"state": "stopped", "why": "an administrator stopped it"}}))
    with pytest.raises(ValueError, match="r ended: an administrator stopped it"):
        submitted(order, stopped, tmp_path, lambda line: None)
    assert stopped.submissions == 1


def test_status_says_who_is_where_and_for_whom_a_round_or_a_job_waits(monkeypatch):
    waits = {"state": "running", "round": 7, "steps": 20, "waits for": "south", "since": time.time() - 12}
    jobs = [
        {"name": "old", "job_id": "1", "status": "done"},
        {"name": "now", "job_id": "2", "status": "runs"},
        {"name": "next", "job_id": "3", "status": "waits to start", "mandatory_clients": ["north", "south"]},
    ]
    session = SimpleNamespace(
        connected=lambda: ["north"],
        jobs=lambda: jobs,
        where=lambda number: {"2": {"north": waits, "south": {"state": "not reached"}}}[number],
        close=lambda: None,
    )
    monkeypatch.setattr(commands, "_needed", lambda: None)
    monkeypatch.setattr(commands, "_session", lambda admin: closing(session))
    said = CliRunner().invoke(commands.app, ["status", "--admin", "kit"]).stdout.splitlines()
    assert said == [
        "connected: north",
        "old: done",
        "now: runs",
        "  north: 7/20 (waits for south) for 12 s",
        "  south: not reached",
        "next: waits to start: south is not connected",
    ]
    refused = CliRunner().invoke(
        commands.app, ["provision", "a.toml", "--host", "b", "--port", "99999"], env={"COLUMNS": "200"}
    )
    assert "equal to 65535" in refused.output
