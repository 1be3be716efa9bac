"""Run a site: `python -m sottovoce.deploy.own_process KIT [ACCOUNT]`. The process that is the site's own.

It starts FLARE's process, confined to the folder `network`, and listens on the Unix socket `line` in the kit. A process
of FLARE that runs a job connects there, and gets a process of its own for the party (`sottovoce.deploy.party_process`),
which alone opens the table, the keys, the policy and the ledger. FLARE's processes hold the kit of their network.
"""

import logging
import os
import pwd
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from sottovoce.deploy.confine import hide, in_words
from sottovoce.deploy.engine import NETWORK, PARENT, PORT, address, log_ours, options

LINE = "line"  # the socket in a site's kit
_MOST = 3  # parties at a time, as many as jobs (launchers.MOST): one that runs, and those that are about to end
_LOOK = 0.5  # seconds after which the processes are looked at
# What FLARE's process gets of our environment: passwords of other programs may be there.
_SHOWN = ("PATH", "HOME", "LANG", "LC_", "TZ", "PYTHON", "NVFLARE_", "GRPC_", "SSL_CERT_", "MALLOC_")
_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "no_proxy")
_log = logging.getLogger("sottovoce.deploy.own_process")


def main() -> None:
    """Run the site of a kit until FLARE's process ends."""
    os.umask(0o077)
    hide()
    log_ours()
    kit, account = Path(sys.argv[1]).resolve(), sys.argv[2] if len(sys.argv) > 2 else None
    parties = list[subprocess.Popen[bytes]]()
    settle_path()
    os.chdir(kit)
    _log.info("%s", in_words())
    with listening() as line:
        flare = start_flare(kit, account)
        while flare.poll() is None:
            with suppress(TimeoutError):
                caller, _ = line.accept()
                with caller:
                    if len(parties) < _MOST:
                        parties.append(start_party(kit, caller))
                    else:
                        _log.warning("%d parties run already: a further one is refused", len(parties))
                        time.sleep(_LOOK)
            parties = [party for party in parties if party.poll() is None]
    sys.exit(flare.returncode)


def settle_path() -> None:
    """Make the folders of PYTHONPATH absolute, and leave out empty names.

    An empty or relative one is looked up in the working folder. That of FLARE's process can be written by whoever took
    it over: a module there would be loaded before the next process is confined. `-P` does not help against that.
    """
    folders = [os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)


def listening() -> socket.socket:
    """Return the socket that FLARE's processes connect to; its folder, the working folder, is its owner's alone."""
    Path(LINE).unlink(missing_ok=True)
    line = socket.socket(socket.AF_UNIX)
    line.bind(LINE)  # a short name: the path of a socket may have about a hundred letters
    os.chmod(LINE, 0o600)
    line.listen(8)
    line.settimeout(_LOOK)
    return line


def start_flare(kit: Path, account: str | None) -> "subprocess.Popen[bytes]":
    """Start FLARE's process, under an account of its own if one is given: then its folder belongs to that account."""
    network, own = kit / NETWORK, dict[str, Any]()
    if account is not None:
        own = {"user": account, "group": pwd.getpwnam(account).pw_gid, "extra_groups": []}
        _hand_over(kit, account)
    shown = {name: value for name, value in os.environ.items() if name.startswith(_SHOWN) or name.lower() in _PROXIES}
    words = [sys.executable, "-P", "-u", "-m", "sottovoce.deploy.engine", "site"]
    try:
        return subprocess.Popen(
            [*words, *options(network, f"uid={kit.name}")],
            stdin=subprocess.DEVNULL, cwd=network,
            env={**shown, PARENT: str(os.getpid()), PORT: str(address(kit, ["client"])[1])}, **own,
        )  # fmt: skip
    except PermissionError:
        sys.exit(f"{account} may not run {sys.executable}, or enter {network}: put both where it may")


def _hand_over(kit: Path, account: str) -> None:
    """Give FLARE's folder, and the right to connect to the line, to an account; it sees no other name in the kit."""
    uid = pwd.getpwnam(account).pw_uid
    for _, folders, files, at in os.fwalk(kit / NETWORK):
        for name in (".", *folders, *files):
            found = os.stat(name, dir_fd=at, follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode) or found.st_nlink == 1:  # a second name may be that of somebody else's file
                os.chown(name, uid, -1, dir_fd=at, follow_symlinks=False)
    os.chown(LINE, uid, -1, follow_symlinks=False)
    os.chmod(kit, 0o711)


def start_party(kit: Path, caller: socket.socket) -> "subprocess.Popen[bytes]":
    """Start the process of a party, which speaks with one process of FLARE over its standard input."""
    return subprocess.Popen(
        [sys.executable, "-P", "-u", "-m", "sottovoce.deploy.party_process", str(kit), str(os.getpid())],
        stdin=caller.fileno(),
    )


if __name__ == "__main__":
    main()
