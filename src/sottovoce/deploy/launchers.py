"""Start the processes of jobs by our start module, which FLARE would start by its own: `resources.json` names these."""

from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.job_launcher_spec import JobProcessArgs
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher

ENGINE = "sottovoce.deploy.engine"


class SiteLauncher(ClientProcessJobLauncher):
    """Start the process of a job at a site."""

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
