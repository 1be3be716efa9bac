"""Start and stop FLARE's processes, and talk to the server as the administrator.

Example: ``with Federation.local(kits, ["north", "south"]) as running`` is a whole federation on this machine; leaving
the block ends every process that it started, whatever happened inside.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from sottovoce.deploy.kits import ADMIN, SERVER
from sottovoce.deploy.site import STATUS

DONE = "FINISHED:COMPLETED"


def start(kit: Path, server: bool = False) -> "subprocess.Popen[bytes]":
    """Start the server's or a site's process from its kit; what it prints goes to `console.log` in the kit."""
    facts = json.loads((kit / "startup" / f"fed_{'server' if server else 'client'}.json").read_text())
    what = "server.server_train" if server else "client.client_train"
    options = ["secure_train=true", "config_folder=config", "org=sottovoce"]
    if not server:
        options.append(f"uid={kit.name}")
    assert facts["format_version"] == 2
    (kit / "transfer").mkdir(exist_ok=True)
    with (kit / "console.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{what}", "-m", str(kit.resolve()),
             "-s", f"fed_{'server' if server else 'client'}.json", "--set", *options],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "MALLOC_ARENA_MAX": "4"},
        )  # fmt: skip


def end(process: "subprocess.Popen[bytes]", seconds: float = 5.0) -> None:
    """End a process and all that it started."""
    try:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []
    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.terminate()
    _, left = psutil.wait_procs(family, timeout=seconds)
    for one in left:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


class Federation:
    """The server and the sites, as processes of this machine."""

    def __init__(self, kits: Path, sites: Sequence[str]) -> None:
        self.kits, self.sites = kits, list(sites)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Federation":
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
        """Start whatever does not run; return the names."""
        gone = [
            name
            for name in [SERVER, *self.sites]
            if name not in self.processes or self.processes[name].poll() is not None
        ]
        for name in gone:
            self.processes[name] = start(self.kits / name, server=name == SERVER)
        return gone


class Administrator:
    """A session with the server, opened again where it was lost."""

    def __init__(self, kit: Path, patience: float = 60.0) -> None:
        self.kit, self.patience = kit, patience
        self._session: Session | None = None

    def _do(self, what: Callable[[Session], Any]) -> Any:
        """Do something in a session; try again until it works or the patience is over."""
        deadline = time.monotonic() + self.patience
        while True:
            try:
                if self._session is None:
                    self._session = new_secure_session(ADMIN, str(self.kit), timeout=10.0)
                return what(self._session)
            except Exception as error:  # FLARE raises many kinds
                self.close()
                if time.monotonic() > deadline:
                    raise ConnectionError(
                        f"the server did not answer within {self.patience:g} seconds ({type(error).__name__}: "
                        f"{error}): is it running, and is its port open?"
                    ) from error
                time.sleep(1.0)

    def close(self) -> None:
        """End the session."""
        if self._session is not None:
            with suppress(Exception):
                self._session.close()
            self._session = None

    def connected(self) -> list[str]:
        """Return the names of the sites that are connected."""
        return sorted(client.name for client in self._do(lambda session: session.get_connected_client_list()))

    def submit(self, job: Path) -> str:
        """Hand a job in; return its id."""
        return str(self._do(lambda session: session.submit_job(str(job.resolve()))))

    def status(self, job: str) -> str:
        """Return the status of a job in FLARE's words, such as RUNNING or FINISHED:COMPLETED."""
        return str(self._do(lambda session: session.get_job_meta(job))["status"])

    def where(self, job: str) -> dict[str, Any]:
        """Return how far each site is; nothing if the job does not run."""
        try:
            return dict(self._do_once(lambda session: session.do_app_command(job, STATUS, {})).get("sites", {}))
        except Exception:
            return {}

    def abort(self, job: str) -> None:
        """Stop a job; the sites keep what they have stored."""
        with suppress(Exception):  # it may have ended meanwhile, or be one that a restarted server does not run
            self._do_once(lambda session: session.abort_job(job))

    def server_since(self) -> float:
        """Return when the server was started."""
        return float(self._do(lambda session: session.get_system_info()).server_info.start_time)

    def without_jobs(self) -> set[str]:
        """Return the sites that are connected and run nothing, as after a restart of their process."""
        try:
            found = self._do_once(lambda session: session.get_client_job_status()) or []
            return {str(one.get("client_name")) for one in found if one.get("status") == "no_jobs"}
        except Exception:
            return set()

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs that the server knows, the newest last."""
        found = self._do(lambda session: session.list_jobs(detailed=True))
        return sorted(found, key=lambda job: str(job.get("submit_time", "")))

    def _do_once(self, what: Callable[[Session], Any]) -> Any:
        if self._session is None:
            self._session = new_secure_session(ADMIN, str(self.kit), timeout=10.0)
        return what(self._session)
