"""Start and stop FLARE's processes, and talk to the server as the administrator.

Example: ``with Federation(kits, ["north", "south"]) as running`` is a whole federation on this machine; leaving
the block ends every process that it started, whatever happened inside.
"""

import io
import logging
import os
import pwd
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from nvflare.fuel.flare_api.api_spec import InvalidJobDefinition
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from sottovoce.deploy import connections, incoming
from sottovoce.deploy.engine import PARENT, address, options, require_tested
from sottovoce.deploy.kits import ADMIN, SERVER
from sottovoce.deploy.progress import understood
from sottovoce.deploy.site import STATUS, STOP

DONE = "FINISHED:COMPLETED"
_MODULES = ("sottovoce.deploy.engine", "sottovoce.deploy.own_process")  # what the server, and a site, is started by
_TOLD = 3.0  # seconds: a program that watches a job asks at least once in this time
_OPENING = 60.0  # seconds to log in: FLARE never returns if it gives up while the server is about to answer
_log = logging.getLogger(__name__)
_STARTING = 300.0  # seconds for a server of ours to open its port
_ENDING = 5.0  # seconds in which a process may end by itself, before it is killed

RUNS, WAITS = "runs", "waits to start"  # what a job that is not over does
_WORDS = {  # FLARE's words, and plain ones for them
    "SUBMITTED": WAITS,
    "FINISHED:COMPLETED": "done",
    "FINISHED:ABORTED": "stopped",
    "FINISHED:ABANDONED": "ended with the server",
    "FINISHED:EXECUTION_EXCEPTION": "ended by a site that refused, failed or was lost",
    "FINISHED:ABNORMAL": "ended by a site that was lost",
    "FINISHED:CAN_NOT_SCHEDULE": "not started: a site was not there",
    "FINISHED:FAILED_TO_RUN": "not started: a site refused, or was not there",
}


def unreached(host: str, port: int) -> str:
    """Return why nobody answers at a port; nothing if somebody does."""
    try:
        with socket.create_connection((host, port), 3.0):
            return ""
    except OSError as error:
        return f"{host}:{port} does not answer ({error.strerror or error}): is the server started, and its port open?"


def require_idle(kit: Path, server: bool = False) -> None:
    """Refuse to start what runs already: two processes with one name would take each other's messages."""
    here = str(kit.resolve())
    for one in psutil.process_iter(["cmdline"]):
        words = one.info["cmdline"] or []
        if here in words and any(word in _MODULES for word in words):
            raise ValueError(f"{kit} runs already, as process {one.pid}: end it first (kill {one.pid})")
    if server:  # FLARE would share the port, and every second site would reach the other server
        port = address(kit)[1]
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("", port))
            except OSError as error:
                raise ValueError(
                    f"the server cannot open port {port} ({error.strerror}): end the program that uses it, or make "
                    "kits with another --port"
                ) from None


def require_account(account: str) -> None:
    """Refuse an account that FLARE's process cannot be given."""
    if os.geteuid() != 0:
        raise ValueError("--account is for root alone: only root can start a process of another account")
    try:
        pwd.getpwnam(account)
    except KeyError:
        raise ValueError(f"there is no account {account!r}: make one (useradd --system {account})") from None


def start(kit: Path, server: bool = False, account: str | None = None) -> "subprocess.Popen[bytes]":
    """Start the server's or a site's process from its kit; what it prints goes to `console.log` in the kit.

    `account` is for FLARE's process at a site.
    """
    require_tested()
    kit = kit.resolve()
    words = ["sottovoce.deploy.own_process", str(kit), *([account] if account else [])]
    if server:
        words = ["sottovoce.deploy.engine", "server", *options(kit)]
    own = {name: value for name, value in os.environ.items() if name != PARENT} | {"MALLOC_ARENA_MAX": "4"}
    with os.fdopen(os.open(kit / "console.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-u", "-m", *words],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=own,
        )  # fmt: skip


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and all that it started."""
    try:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []
    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.terminate()
    _, left = psutil.wait_procs(family, timeout=_ENDING)
    for one in left:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


class Federation:
    """Run the server and the sites as processes of this machine."""

    def __init__(self, kits: Path, sites: Sequence[str]) -> None:
        self.kits, self.sites = kits, list(sites)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Federation":
        for name in (SERVER, *self.sites):
            require_idle(self.kits / name, server=name == SERVER)
        try:
            self.revive()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in [*self.sites, SERVER]:
            if name in self.processes:
                end(self.processes[name])

    def revive(self) -> list[str]:
        """Start whatever does not run; return the names. A server that was started answers then.

        On a busy machine it takes a minute to load FLARE: whoever asks it meanwhile would lose patience.
        """
        gone = [
            name
            for name in [SERVER, *self.sites]
            if name not in self.processes or self.processes[name].poll() is not None
        ]
        for name in gone:
            self.processes[name] = start(self.kits / name, server=name == SERVER)
        if SERVER in gone:
            where, deadline = address(self.kits / SERVER), time.monotonic() + _STARTING
            while unreached(*where) and self.processes[SERVER].poll() is None and time.monotonic() < deadline:
                time.sleep(0.2)
        return gone


class Administrator:
    """Hold a session with the server, opened again if it is lost; call `meanwhile` before each new attempt.

    A program that keeps the server running passes `Federation.revive`: a server that dies while it is asked is started
    again.
    """

    def __init__(self, kit: Path, patience: float = 60.0, meanwhile: Callable[[], object] = list) -> None:
        self.kit, self.patience, self.meanwhile = kit, patience, meanwhile
        self._session: Session | None = None

    def _do(self, what: Callable[[Session], Any]) -> Any:
        """Do something in a session; try again until it works or the patience is over."""
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return self._do_once(what)
            except InvalidJobDefinition as error:
                raise ValueError(f"FLARE refuses the job: {error}") from error
            except Exception as error:  # FLARE raises many kinds
                _log.info("the server did not answer (%s: %s)", type(error).__name__, error)
                self.close()
                if time.monotonic() > deadline:
                    raise ConnectionError(
                        f"the server did not answer within {self.patience:g} seconds ({type(error).__name__}: "
                        f"{error}): is it running, and is its port open?"
                    ) from error
                self.meanwhile()
                time.sleep(1.0)

    def close(self) -> None:
        """End the session."""
        if self._session is not None:
            with suppress(Exception):
                self._session.close()
            self._session = None

    def connected(self) -> list[str]:
        """Return the names of the sites that are connected and answer: FLARE lists a dead one for ten minutes."""
        listed = {client.name for client in self._do(lambda session: session.get_connected_client_list())}
        return sorted(listed - self._with_status("no_reply"))

    def submit(self, job: Path) -> str:
        """Hand a job in; return its id."""
        return str(self._do(lambda session: session.submit_job(str(job.resolve()))))

    def status(self, job: str) -> str:
        """Return the status of a job in FLARE's words, such as RUNNING or FINISHED:COMPLETED."""
        return str(self._do(lambda session: session.get_job_meta(job))["status"])

    def where(self, job: str) -> dict[str, Any]:
        """Return how far each site is; nothing if the job does not run."""
        try:
            told = self._do_once(lambda session: session.do_app_command(job, STATUS, {})).get("sites", {})
            return {str(name): understood(said) for name, said in told.items()}
        except Exception:
            return {}

    def abort(self, job: str) -> None:
        """Stop a job; the sites keep what they have stored."""
        with suppress(Exception):  # it may have ended meanwhile, or be one that a restarted server does not run
            self._do_once(lambda session: session.abort_job(job))

    def stop(self, job: str) -> None:
        """Stop a job for good: a program that watches it hears of it, and does not submit it again."""
        with suppress(Exception):
            self._do_once(lambda session: session.do_app_command(job, STOP, {}))
            time.sleep(_TOLD)
        self.abort(job)

    def server_since(self) -> float:
        """Return when the server was started."""
        return float(self._do(lambda session: session.get_system_info()).server_info.start_time)

    def without_jobs(self) -> set[str]:
        """Return the sites that are connected and run nothing, as after a restart of their process."""
        return self._with_status("no_jobs")

    def _with_status(self, status: str) -> set[str]:
        """Return the sites of which FLARE says this when it asks them what they run."""
        try:
            found = self._do_once(lambda session: session.get_client_job_status()) or []
            return {str(one.get("client_name")) for one in found if one.get("status") == status}
        except Exception:
            return set()

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs that the server knows, the newest last; `status` is in plain words.

        FLARE lists a job as running if the server died during it, although it does not run.
        """
        found = self._do(lambda session: session.list_jobs(detailed=True))
        since = self.server_since()
        for job in found:
            lost = not str(job["status"]).startswith("FINISHED") and _submitted(job) < since
            job["status"] = "ended with the server" if lost else _WORDS.get(str(job["status"]), RUNS)
        return sorted(found, key=_submitted)

    def running(self) -> list[dict[str, Any]]:
        """Return the jobs that are not over."""
        return [job for job in self.jobs() if job["status"] in (RUNS, WAITS)]

    def _do_once(self, what: Callable[[Session], Any]) -> Any:
        if self._session is None:
            if why := unreached(*address(self.kit, ["admin"])):
                raise ConnectionError(why)
            incoming.watch()
            connections.mend()
            with redirect_stdout(io.StringIO()):  # FLARE prints that it connects
                self._session = new_secure_session(
                    ADMIN, str(self.kit), timeout=_OPENING, command_timeout=incoming.PATIENCE
                )
        return what(self._session)


def _submitted(job: dict[str, Any]) -> float:
    """Return when a job was submitted, in seconds since 1970."""
    return float(job.get("submit_time") or 0.0)
