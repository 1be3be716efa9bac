"""Start the processes of jobs by our start module, which FLARE would start by its own: `resources.json` names these."""

from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.job_launcher_spec import JobHandleSpec, JobProcessArgs, JobReturnCode
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher

ENGINE = "sottovoce.deploy.engine"
MOST = 3  # jobs at a site: one that runs, and those that are about to end


class SiteLauncher(ClientProcessJobLauncher):
    """Start the process of a job at a site, as long as there are few: the server says how many jobs there are."""

    def __init__(self) -> None:
        super().__init__()
        self._started: list[JobHandleSpec] = []

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: Any) -> JobHandleSpec:
        """Start the process of a job; RuntimeError if too many run."""
        self._started = [one for one in self._started if one.poll() == JobReturnCode.UNKNOWN]
        if len(self._started) >= MOST:
            raise RuntimeError(f"{MOST} jobs run already: a further one is refused")
        self._started.append(super().launch_job(job_meta, fl_ctx))
        return self._started[-1]

    def get_command(self, job_meta: dict[str, Any], fl_ctx: Any) -> str:
        """Return the command."""
        _by_engine(fl_ctx, "site-job")
        return str(super().get_command(job_meta, fl_ctx))


class ServerLauncher(ServerProcessJobLauncher):
    """Start the process of a job at the server."""

    def get_command(self, job_meta: dict[str, Any], fl_ctx: Any) -> str:
        """Return the command."""
        _by_engine(fl_ctx, "server-job")
        return str(super().get_command(job_meta, fl_ctx))


def _by_engine(fl_ctx: Any, role: str) -> None:
    """Name our start module in place of FLARE's; `-P`: a file in the working folder is no module."""
    arguments = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)
    arguments[JobProcessArgs.EXE_MODULE] = ("-P -m", f"{ENGINE} {role}")
