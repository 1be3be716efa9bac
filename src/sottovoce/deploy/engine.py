"""Start FLARE's programs: cut to what a run uses, confined, and of a version that was looked at.

`python -m sottovoce.deploy.engine site ...` takes the place of `nvflare.private.fed.app.client.client_train`, and so on
for the server and for the processes of jobs, which `launchers` starts in the same way.
"""

import argparse
import json
import logging
import os
import runpy
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from sottovoce.deploy.confine import confine, end_with_parent, limit_memory

TESTED = (
    "2.9.0",
)  # FLARE's versions whose channels, topics and commands were looked at: tests/deploy/test_incoming.py
NETWORK = "network"  # the folder of a site's kit that is FLARE's
COMM = "comm_config.json"
RELAY = (
    "relay.json"  # in a site's kit: where the server is. FLARE's process cannot write there, and opens no other port
)
_PROGRAMS = {
    "site": "nvflare.private.fed.app.client.client_train",
    "site-job": "nvflare.private.fed.app.client.worker_process",
    "server": "nvflare.private.fed.app.server.server_train",
    "server-job": "nvflare.private.fed.app.server.runner_process",
}
_KITS = ("site", "server")  # the programs that a kit is started with; they start the others
PARENT = "SOTTOVOCE_PARENT"  # the process that started one of these, which ends with it
PORT = "SOTTOVOCE_PORT"  # the server's port, for FLARE's process of a site
_MEMORY = 4.0  # gigabytes of each of FLARE's processes at a site: others fill it with streams that they do not end
_STACK = 1 << 21  # bytes of a thread: FLARE has up to 500, and the memory counts them
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")


def main() -> None:
    """Confine this process, cut FLARE, and run one of its programs."""
    role, parent = sys.argv.pop(1), os.environ.get(PARENT)
    os.umask(0o077)
    if role in _KITS:
        _prepare(role)
    if parent:
        end_with_parent(int(parent), at_once=role in _KITS)
    os.environ[PARENT] = str(os.getpid())  # for the processes of jobs
    threading.stack_size(_STACK)
    if role.startswith("site"):
        limit_memory(_MEMORY)
    require_tested()
    from sottovoce.deploy import connections, incoming  # FLARE starts threads

    incoming.watch()
    incoming.cut_commands()
    connections.mend()
    runpy.run_module(_PROGRAMS[role], run_name="__main__", alter_sys=True)


def options(kit: Path, *more: str) -> list[str]:
    """Return the options with which FLARE's program of a kit is started."""
    facts = "fed_server.json" if (kit / "startup" / "fed_server.json").exists() else "fed_client.json"
    return ["-m", str(kit), "-s", facts, "--set", "secure_train=true", "config_folder=config", "org=sottovoce", *more]


def network(kit: Path) -> Path:
    """Return the folder of a kit that FLARE works in: a site's kit has more than that."""
    return kit / NETWORK if (kit / NETWORK).is_dir() else kit


def address(kit: Path, roles: Sequence[str] = ("server", "client")) -> tuple[str, int]:
    """Return the server's name and port, as a kit of one of some roles has them (the third role is "admin")."""
    for role in roles:
        with suppress(FileNotFoundError):
            facts = json.loads((kit / (RELAY if role == "client" else f"startup/fed_{role}.json")).read_text())
            if role == "server":
                host, _, port = facts["servers"][0]["service"]["target"].rpartition(":")
                return host, int(port)
            where = facts["admin"] if role == "admin" else facts
            return str(where["host"]), int(where["port"])
    wanted = " or ".join({"server": "the server", "client": "a site", "admin": "the administrator"}[r] for r in roles)
    raise ValueError(f"{kit} is no kit of {wanted}: `sottovoce deploy provision` makes them")


def log_ours() -> None:
    """Log what sottovoce says, and warnings of others, to the standard error: console.log of the kit."""
    logging.basicConfig(format="%(asctime)s - %(name)s - %(levelname)s - %(message)s")
    logging.getLogger("sottovoce").setLevel(logging.INFO)


def require_tested() -> None:
    """Refuse a version of FLARE that nobody has looked at: a new one may answer to more."""
    import nvflare

    if nvflare.__version__ not in TESTED:
        raise ValueError(
            f"nvflare {nvflare.__version__} was not tested with this version of sottovoce, and may answer strangers: "
            f"pip install 'nvflare=={TESTED[-1]}'"
        )


def _prepare(role: str) -> None:
    """Confine the process to its kit; a site's may connect to the server, and to a port of its own for jobs.

    What is in the kit may be an attacker's, of before a restart: it is written to after the process is confined only.
    """
    known = argparse.ArgumentParser()
    known.add_argument("-m", type=Path)
    kit: Path = known.parse_known_args()[0].m
    port = _free_port()
    if role == "server":
        confine([kit])
    else:
        proxies = (os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES)
        through = [urlsplit(proxy).port or 80 for proxy in proxies if proxy]
        confine([kit], [int(os.environ[PORT]), port, *through, 53], [port])
    os.environ["TMPDIR"] = str(kit / "tmp")
    for name in ("tmp", "transfer"):
        (kit / name).mkdir(mode=0o700, exist_ok=True)
    path = kit / "local" / COMM
    settings = json.loads(path.read_text())
    settings["internal"]["resources"]["port"] = port
    path.write_text(json.dumps(settings, indent=1))


def _free_port() -> int:
    """Return a port of this machine that nobody uses now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


if __name__ == "__main__":
    main()
