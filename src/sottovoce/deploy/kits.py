"""Make start-up kits: certificates and settings for the server, each site and the administrator.

FLARE makes them; then each site's settings are narrowed. A site allows four classes and no code (`job.ALLOWED`), sends
no log to the server, and lets no administrator run shell commands on it, which FLARE's defaults would allow.
"""

import json
import logging
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvflare.lighter.prov_utils import prepare_builders
from nvflare.lighter.provision import prepare_project
from nvflare.lighter.provisioner import Provisioner

from sottovoce.deploy.job import ALLOWED
from sottovoce.deploy.tunnel import fingerprint

ADMIN = "admin@sottovoce.org"
SERVER = "server"  # the name of the server's folder
_ORG = "sottovoce"
_BUILDERS = [
    {"path": "nvflare.lighter.impl.workspace.WorkspaceBuilder", "args": {"template_file": ["master_template.yml"]}},
    {"path": "nvflare.lighter.impl.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
    {"path": "nvflare.lighter.impl.cert.CertBuilder", "args": {}},
    {"path": "nvflare.lighter.impl.signature.SignatureBuilder", "args": {}},
]
_PREPARE = """Read policy.toml and edit it. Put the table where file in its table [data] says.
This folder has a private key: nobody else may get it.
"""
_START = "To start: sottovoce deploy site FOLDER, where FOLDER is this one. Ctrl-C ends it.\n"
_TRIED_AGAIN = 10.0  # seconds after which a job that a site missed is started again: FLARE waits up to 600
_RIGHTS = {  # rights of administrators at a site: to run jobs and to see their state, nothing else
    "submit_job": "any", "clone_job": "none", "manage_job": "any", "download_job": "none", "view": "any",
    "operate": "any", "shell_commands": "none", "byoc": "none",
}  # fmt: skip


class _Quiet:
    """Send what the provisioner reports to the log."""

    debug = info = staticmethod(logging.getLogger(__name__).debug)
    warning = error = staticmethod(logging.getLogger(__name__).warning)


def provision(sites: Sequence[str], host: str, port: int, out: Path) -> Path:
    """Make all kits under `out`: one folder per site, one called server, one for the administrator.

    The person who does this holds everybody's keys for a moment: hand the kits over safely, and remove your copies.
    """
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: give a new folder; kits are made once")
    participants: list[dict[str, Any]] = [
        {"name": host, "type": "server", "org": _ORG, "fed_learn_port": port, "admin_port": port},
        *({"name": site, "type": "client", "org": _ORG} for site in sites),
        {"name": ADMIN, "type": "admin", "org": _ORG, "role": "project_admin"},
    ]
    described = {
        "api_version": 3, "name": "sottovoce", "description": "", "participants": participants, "builders": _BUILDERS,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as aside:
        made = Provisioner(aside, prepare_builders(described)).provision(prepare_project(described), logger=_Quiet())
        if made.get("build_error"):
            raise RuntimeError("FLARE could not make the kits: see the log")
        folder = Path(made["current_prod_dir"])
        out.mkdir(parents=True, exist_ok=True)
        for name, kit in [(SERVER, host), *((site, site) for site in sites), ("admin", ADMIN)]:
            shutil.move(str(folder / kit), out / name)
    (out / SERVER / "readme.txt").write_text(_START)  # FLARE's own readme describes another way to start
    _narrow_server(out / SERVER)
    for site in sites:
        (out / site / "readme.txt").write_text(_PREPARE + _START)
        _narrow_site(out / site)
    return out


def fingerprints(kits: Path, sites: Sequence[str]) -> dict[str, str]:
    """Return the fingerprints of sites' certificates."""
    return {site: fingerprint(kits / site / "startup" / "client.crt") for site in sites}


def _narrow_site(kit: Path) -> None:
    local = kit / "local"
    settings = json.loads((local / "resources.json.default").read_text())
    settings |= {
        "class_allow_list": list(ALLOWED),
        "class_list_enforcement_mode": "enforce",
        "allow_log_streaming": False,
    }
    settings["components"] = [one for one in settings["components"] if one["id"] != "site_log_streamer"]
    (local / "resources.json").write_text(json.dumps(settings, indent=1))
    rights = {
        "format_version": "1.0",
        "permissions": dict.fromkeys(("project_admin", "lead", "org_admin"), _RIGHTS),
    }
    (local / "authorization.json").write_text(json.dumps(rights, indent=1))
    _quiet(local)


def _narrow_server(kit: Path) -> None:
    local = kit / "local"
    settings = json.loads((local / "resources.json.default").read_text())
    settings |= {"class_allow_list": list(ALLOWED), "class_list_enforcement_mode": "enforce"}
    (scheduler,) = (one for one in settings["components"] if one["id"] == "job_scheduler")
    scheduler["args"]["max_schedule_interval"] = _TRIED_AGAIN
    stores = {"/tmp/nvflare/jobs-storage": kit / "jobs", "/tmp/nvflare/snapshot-storage": kit / "snapshots"}
    text = json.dumps(settings, indent=1)
    for default, own in stores.items():  # beside the kit, not where every user of the machine could write
        if default not in text:
            raise ValueError(f"FLARE no longer stores at {default}: sottovoce[deploy] needs nvflare 2.9")
        text = text.replace(default, str(own.resolve()))
    (local / "resources.json").write_text(text)
    _quiet(local)


def _quiet(local: Path) -> None:
    """Log warnings of FLARE only: it has a line per call, which would fill a disk and cost time."""
    settings = json.loads((local / "log_config.json.default").read_text())
    settings["loggers"]["nvflare.collab"] = settings["loggers"]["nvflare.fuel"] = {"level": "WARNING"}
    (local / "log_config.json").write_text(json.dumps(settings, indent=1))
