"""What somebody finds who attacks the processes that speak to FLARE's network from beside it, or from inside."""

import io
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import zipfile
from types import SimpleNamespace

import pytest
from nvflare.apis.job_launcher_spec import JobReturnCode
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.fuel.f3.drivers.aio_http_driver import AioHttpDriver
from nvflare.fuel.f3.drivers.connector_info import ConnectorInfo, Mode
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.tcp_driver import TcpStreamServer
from nvflare.private.admin_defs import Message as Order
from nvflare.private.defs import TrainingTopic

from sottovoce.deploy import confine, connections, incoming, own_process
from sottovoce.deploy.engine import NETWORK, address
from sottovoce.deploy.launchers import MOST, SiteLauncher

JOB = "12345678-1234-1234-1234-123456789abc"


@pytest.fixture
def listener(kits):
    """The listener that FLARE opens at north for its jobs; it says one word to whoever has shaken hands."""
    connections.mend()
    startup = kits / "north" / NETWORK / "startup"
    files = {
        DriverParams.CA_CERT.value: startup / "rootCA.pem",
        DriverParams.SERVER_CERT.value: startup / "client.crt",
        DriverParams.SERVER_KEY.value: startup / "client.key",
    }
    params = {DriverParams.SCHEME.value: "stcp", DriverParams.HOST.value: "127.0.0.1", DriverParams.PORT.value: 0}
    server = TcpStreamServer(None, SimpleNamespace(params=params | {key: str(path) for key, path in files.items()}))
    server.RequestHandlerClass = lambda request, address, server: request.sendall(b"hello")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server, startup
    server.shutdown()
    server.server_close()


def greeted(listener):
    """Connect as the process of a job does; return the word."""
    server, startup = listener
    context = ssl.create_default_context(cafile=startup / "rootCA.pem")
    context.check_hostname = False
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    with socket.create_connection(server.server_address, 5.0) as plain, context.wrap_socket(plain) as line:
        return line.recv(10)


def test_callers_who_say_nothing_hold_nobody_up(listener):
    """A user of the machine without a kit opens 200 connections to the port for jobs, and says nothing, or nonsense."""
    silent = [socket.create_connection(listener[0].server_address, 5.0) for _ in range(200)]
    for one in silent[::2]:
        one.sendall(b"nonsense")
    assert greeted(listener) == b"hello"
    gone = 0
    for one in silent:
        one.settimeout(0.01)
        try:
            gone += one.recv(100) == b""
        except ConnectionError:
            gone += 1
        except TimeoutError:
            pass
        one.close()
    assert gone >= 200 - connections._AT_ONCE - 1
    assert greeted(listener) == b"hello"


def test_a_connection_that_is_opened_while_flare_stops_is_closed():
    """Else an administrator whose server was started again waits for its own end, for ever."""
    connections.mend()
    for stopped in (True, False):
        made, ended = AioHttpDriver(), threading.Event()
        connector = ConnectorInfo("x", made, {}, Mode.ACTIVE, 0, 0, False, threading.Event())
        if stopped:
            connector.stopped.set()
        made.register_conn_monitor(SimpleNamespace(state_change=lambda one: None))
        made.add_connection(SimpleNamespace(name="late", connector=connector, close=ended.set))
        assert ended.is_set() == stopped


def test_a_module_in_flares_folder_is_not_loaded_before_the_next_process_is_confined(tmp_path, monkeypatch):
    """An empty entry of PYTHONPATH is the working folder, -P or not; FLARE's working folder may be an attacker's."""
    kit, library = tmp_path / "kit", tmp_path / "library"
    (kit / NETWORK).mkdir(parents=True)
    library.mkdir()
    monkeypatch.chdir(library)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", ".", "../library", str(library)]))
    own_process.settle_path()
    assert os.environ["PYTHONPATH"] == os.pathsep.join([str(library)] * 3)
    for name in ("planted", "argparse"):
        (kit / NETWORK / f"{name}.py").write_text("print('the attacker is here')")
    code = "import argparse, importlib.util; print(importlib.util.find_spec('planted'))"
    ran = subprocess.run([sys.executable, "-P", "-c", code], cwd=kit / NETWORK, capture_output=True, text=True)
    assert ran.stdout == "None\n"


def test_whoever_writes_in_flares_folder_does_not_choose_the_port_of_the_next_process(homes, monkeypatch):
    kit = homes(_text()) / "north"
    facts = kit / NETWORK / "startup" / "fed_client.json"
    facts.write_text(facts.read_text().replace("localhost:8002", "localhost:5432"))
    assert "5432" in facts.read_text()
    assert address(kit) == ("localhost", 8002)
    started = []
    monkeypatch.setattr(own_process.subprocess, "Popen", lambda words, **how: started.append(how))
    own_process.start_flare(kit, None)
    assert started[0]["env"]["SOTTOVOCE_PORT"] == "8002"


def _text():
    from tests.deploy import cases

    return cases.text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_second_name_of_somebody_elses_file_is_not_given_to_flares_account(tmp_path, monkeypatch):
    """On a system that allows such names: root would give the file away when the site is started again."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / NETWORK / "inner").mkdir(parents=True)
    (tmp_path / "line").touch()
    (tmp_path / "ledger.jsonl").write_text("ours")
    (tmp_path / NETWORK / "inner" / "own").touch()
    os.link(tmp_path / "ledger.jsonl", tmp_path / NETWORK / "inner" / "linked")
    (tmp_path / NETWORK / "symbolic").symlink_to(tmp_path / "ledger.jsonl")
    own_process._hand_over(tmp_path, "nobody")
    assert (tmp_path / "ledger.jsonl").stat().st_uid == 0
    assert (tmp_path / NETWORK / "inner" / "own").stat().st_uid == (tmp_path / "line").stat().st_uid != 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit is Linux's")
def test_flares_processes_get_no_more_memory_than_they_need():
    code = "from sottovoce.deploy import confine; confine.limit_memory(1.0); bytearray(1 << 29); bytearray(1 << 31)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "MemoryError" in ran.stderr


def archive(*files):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as out:
        for name, data in files:
            out.writestr(name, data)
    return made.getvalue()


@pytest.mark.parametrize(
    ("body", "taken"),
    [
        (archive(("config/run.toml", b"x")), True),
        (archive(("config/run.toml", bytes(5 << 20))), False),
        (archive(*((f"{number}", b"") for number in range(101))), False),
        (b"no archive", False),
        (None, False),
    ],
)
def test_a_job_that_unpacks_to_much_is_refused(body, taken):
    """The relay sends an archive of 5 KB, which fills the site's disk."""
    done = []
    processor = SimpleNamespace(process=lambda req, ctx: done.append(req))
    order = Order(TrainingTopic.DEPLOY, body)
    order.set_header("job_id", JOB)
    incoming._WithJob(processor).process(order, None)
    assert bool(done) == taken


def test_a_server_starts_few_jobs_at_a_site(monkeypatch):
    running = SimpleNamespace(poll=lambda: JobReturnCode.UNKNOWN)
    ended = SimpleNamespace(poll=lambda: JobReturnCode.SUCCESS)
    made = iter([ended, *[running] * MOST, running])
    monkeypatch.setattr(ClientProcessJobLauncher, "launch_job", lambda self, meta, context: next(made))
    launcher = SiteLauncher()
    for _ in range(MOST + 1):
        launcher.launch_job({}, None)
    with pytest.raises(RuntimeError, match="3 jobs run already"):
        launcher.launch_job({}, None)


def test_flares_log_does_not_fill_the_disk(kits):
    for kit in (kits / "north" / NETWORK, kits / "server"):
        log = json.loads((kit / "local" / "log_config.json").read_text())
        assert log["filters"]["few"] == {"()": "sottovoce.deploy.logs.Few"}
        forever = [name for name, one in log["handlers"].items() if "maxBytes" not in one]
        assert forever == ["consoleHandler"]
        assert log["handlers"]["consoleHandler"]["filters"] == ["few"]


def test_a_system_without_landlock_is_told_so(monkeypatch):
    """macOS, and Linux before 5.13: nothing is confined, and the site's owner and its statement say it."""
    monkeypatch.setattr(confine.sys, "platform", "darwin")
    assert confine.landlock() == 0
    confine.confine([])  # nothing happens
    said = confine.in_words()
    assert "not confined" in said
    assert "--account" in said
