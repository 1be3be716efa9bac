"""Write the job that travels: two configuration files that name installed classes, and the text of a run file. No code.

FLARE's own recipe for such jobs ships source files. Here a job names four classes that each site has installed and
allows (`ALLOWED`); a site refuses every other class, and jobs that bring code.
"""

import json
from pathlib import Path

CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
RELAY, SITE = "sottovoce.deploy.site.Relay", "sottovoce.deploy.site.Site"
ALLOWED = (CONTROLLER, EXECUTOR, RELAY, SITE)
RUN_FILE = "run.toml"
_START = 120.0  # seconds for all sites' processes to come up


def write(folder: Path, text: str, run: str, sites: list[str]) -> Path:
    """Write a job for these sites into a folder, and return the folder.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     made = write(Path(folder), "title = 'mine'", "r1", ["north", "south"])
    ...     sorted(path.name for path in made.rglob("*.*"))
    ['config_fed_client.json', 'config_fed_server.json', 'meta.json', 'run.toml']
    """
    threads = {"max_call_threads": max(100, 4 * len(sites))}
    server = {
        "format_version": 2,
        "workflows": [
            {"id": "controller", "path": CONTROLLER,
             "args": {"server_obj_id": "relay", "sync_task_timeout": _START, **threads}}
        ],
        "components": [{"id": "relay", "path": RELAY, "args": {"run": run, "sites": sites}}],
    }  # fmt: skip
    client = {
        "format_version": 2,
        "executors": [{"tasks": ["*"], "executor": {"path": EXECUTOR, "args": {"client_obj_id": "site", **threads}}}],
        "components": [{"id": "site", "path": SITE, "args": {"run": run}}],
    }
    meta = {
        "name": run,
        "resource_spec": {},
        "min_clients": len(sites),
        "mandatory_clients": sites,
        "deploy_map": {"app": ["server", *sites]},
    }
    config = folder / "app" / "config"
    config.mkdir(parents=True, exist_ok=True)
    (folder / "meta.json").write_text(json.dumps(meta, indent=1))
    (config / "config_fed_server.json").write_text(json.dumps(server, indent=1))
    (config / "config_fed_client.json").write_text(json.dumps(client, indent=1))
    (config / RUN_FILE).write_text(text)
    return folder
