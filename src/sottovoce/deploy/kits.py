"""Make start-up kits: certificates and settings for the server, each site and the administrator.

FLARE makes them; then their settings are narrowed. Sites and server allow four classes and no code (`job.ALLOWED`), and
let no administrator run shell commands, which FLARE's defaults would allow. Example: `kits/north` has the folders
`network`, which is all that FLARE's process sees, and `identity`, with the key of the TLS from site to site, which
another authority has signed; its table, policy and ledger lie beside them.
"""

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nvflare.lighter.prov_utils import prepare_builders
from nvflare.lighter.provision import prepare_project
from nvflare.lighter.provisioner import Provisioner
from nvflare.lighter.utils import Identity as Named
from nvflare.lighter.utils import generate_cert, generate_keys, serialize_cert, serialize_pri_key

from sottovoce.deploy.engine import COMM, NETWORK, RELAY
from sottovoce.deploy.job import ALLOWED
from sottovoce.deploy.tunnel import IDENTITY, fingerprint

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
_LARGEST = (1 << 28) + (1 << 20)  # bytes of one call: the largest message, and what TLS adds
_TRIED_AGAIN = 10.0  # seconds after which a job that a site missed is started again: FLARE waits up to 600
_RIGHTS = {  # rights of administrators, at sites and at the server: to run jobs and to see their state, nothing else
    "submit_job": "any", "clone_job": "none", "manage_job": "any", "download_job": "none", "view": "any",
    "operate": "any", "shell_commands": "none", "byoc": "none",
    "app_command": "any",  # it is in no category: our own questions to the relay, how far a run is and to stop it
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
        for name, kit in [(SERVER, host), *((f"{site}/{NETWORK}", site) for site in sites), ("admin", ADMIN)]:
            (out / name).parent.mkdir(mode=0o700, exist_ok=True)
            shutil.move(str(folder / kit), out / name)
    (out / SERVER / "readme.txt").write_text(_START)  # FLARE's own readme describes another way to start
    _narrow_server(out / SERVER)
    for site in sites:
        (out / site / NETWORK / "readme.txt").unlink()
        (out / site / "readme.txt").write_text(_PREPARE + _START)
        (out / site / RELAY).write_text(json.dumps({"host": host, "port": port}))
        _narrow_site(out / site / NETWORK)
    _identify(sites, out)
    for path in (out / SERVER, out / "admin", *(out / site for site in sites)):
        _keep_private(path)
    return out


def _identify(sites: Sequence[str], out: Path) -> None:
    """Give each site a certificate for the TLS from site to site; nobody keeps the key of the authority."""
    root, (authority, public) = Named("sottovoce sites", _ORG), generate_keys()
    signed = serialize_cert(generate_cert(root, root, authority, public, ca=True))
    for site in sites:
        key, own = generate_keys()
        folder = out / site / IDENTITY
        folder.mkdir()
        (folder / "site.key").write_bytes(serialize_pri_key(key))
        (folder / "site.crt").write_bytes(serialize_cert(generate_cert(Named(site, _ORG), root, authority, own)))
        (folder / "authority.crt").write_bytes(signed)


def _keep_private(kit: Path) -> None:
    """Make a kit its owner's alone."""
    for path in (kit, *kit.rglob("*")):
        os.chmod(path, 0o700 if path.is_dir() else 0o600)


def fingerprints(kits: Path, sites: Sequence[str]) -> dict[str, str]:
    """Return the fingerprints of sites' certificates."""
    return {site: fingerprint(kits / site / IDENTITY / "site.crt") for site in sites}


def _narrow_site(network: Path) -> None:
    local = network / "local"
    settings = json.loads((local / "resources.json.default").read_text())
    settings |= {"allow_log_streaming": False}
    settings["components"] = [one for one in settings["components"] if one["id"] != "site_log_streamer"]
    _narrow(local, settings, "SiteLauncher")


def _narrow_server(kit: Path) -> None:
    settings = json.loads((kit / "local" / "resources.json.default").read_text())
    (scheduler,) = (one for one in settings["components"] if one["id"] == "job_scheduler")
    scheduler["args"]["max_schedule_interval"] = _TRIED_AGAIN
    stores = {"/tmp/nvflare/jobs-storage": kit / "jobs", "/tmp/nvflare/snapshot-storage": kit / "snapshots"}
    text = json.dumps(settings)
    for default, own in stores.items():  # beside the kit, not where every user of the machine could write
        if default not in text:
            raise ValueError(f"FLARE no longer stores at {default}: sottovoce[deploy] needs nvflare 2.9")
        text = text.replace(default, str(own.resolve()))
    _narrow(kit / "local", json.loads(text), "ServerLauncher")


def _narrow(local: Path, settings: dict[str, Any], launcher: str) -> None:
    """Allow four classes and no code, start jobs by our start module, and log warnings of FLARE only.

    FLARE logs a line per call, which would fill a disk and cost time. Processes of jobs connect over loopback, by TLS.
    """
    settings |= {"class_allow_list": list(ALLOWED), "class_list_enforcement_mode": "enforce"}
    (launched,) = (one for one in settings["components"] if one["id"] == "process_launcher")
    launched["path"] = f"sottovoce.deploy.launchers.{launcher}"
    rights = {
        "format_version": "1.0",
        "permissions": dict.fromkeys(("project_admin", "lead", "org_admin"), _RIGHTS),
    }
    log = json.loads((local / "log_config.json.default").read_text())
    log["loggers"]["nvflare.collab"] = log["loggers"]["nvflare.fuel"] = {"level": "WARNING"}
    log["filters"]["few"] = {"()": "sottovoce.deploy.logs.Few"}
    log["handlers"]["consoleHandler"]["filters"] = [
        "few"
    ]  # its file grows for ever; the others are kept short by FLARE
    inside = {"host": "localhost", "connection_security": "mtls"}
    comm = {
        "allow_adhoc_conns": False,
        "streaming_max_blob_size": _LARGEST,
        "internal": {"scheme": "tcp", "resources": inside},
    }
    made = {"resources.json": settings, "authorization.json": rights, "log_config.json": log, COMM: comm}
    for name, document in made.items():
        (local / name).write_text(json.dumps(document, indent=1))
