"""Confine a process before it speaks to a network: Landlock takes from it, for good, what it does not need.

A hole in FLARE is then no hole in the site: whoever takes over the process that speaks to the network finds FLARE's own
folder and the programs of the machine, and nothing else of the site. Landlock is part of Linux, needs no rights, and
holds for root and for all processes that a confined one starts. Example: `confine([kit / "network"], [8002])`.
"""

import ctypes
import os
import resource
import signal
import struct
import sys
import sysconfig
import threading
import time
from collections.abc import Iterable
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the system calls, on every processor
_LOOK = 1.0  # seconds after which a process looks whether the one that started it is still there
_NO_NEW_PRIVILEGES, _DEATH_SIGNAL, _DUMPABLE = 38, 1, 4
_EXECUTE, _READ, _LIST = 1 << 0, 1 << 2, 1 << 3
_OF_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # what makes sense for a file that is no folder
_FILES = {1: 13, 2: 14, 3: 15, 4: 15}  # how many rights on files each version of Landlock knows; 16 from version 5 on
_BIND, _CONNECT = 1 << 0, 1 << 1
_SIGNALS, _ABSTRACT = 1 << 1, 1 << 0
# What programs read: libraries, names of hosts, certificates of authorities, time zones. No list of passwords.
_SYSTEM = (
    "/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc/hosts", "/etc/host.conf", "/etc/resolv.conf",
    "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/services", "/etc/protocols", "/etc/ld.so.cache", "/etc/localtime",
    "/etc/passwd", "/etc/group", "/etc/ssl", "/etc/pki", "/etc/mime.types", "/run/systemd/resolve", "/proc/cpuinfo",
    "/proc/meminfo", "/proc/stat", "/proc/sys", "/sys",
    "/dev/urandom", "/dev/random",
)  # fmt: skip


def landlock() -> int:
    """Return the version of Landlock that this system has; 0 if it has none."""
    if sys.platform != "linux":
        return 0
    return max(0, _syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def in_words() -> str:
    """Say what holds for FLARE's process on this system."""
    version = landlock()
    if not version:
        return (
            "FLARE's process is not confined, because this system has no Landlock: whoever takes it over can open what "
            "its account can open, the table and the keys too. Give it an account of its own (--account), or use Linux"
        )
    ports = "" if version >= 4 else "; it can connect to any port"
    signals = "" if version >= 6 else "; it can end other processes of its account"
    return (
        f"FLARE's process is confined (Landlock {version}): of this site it can open its folder network{ports}{signals}"
    )


def confine(own: Iterable[Path], ports: Iterable[int] = (), listens: Iterable[int] = ()) -> None:
    """Leave this process, and all that it starts, its own folders, the programs of the machine, and some TCP ports.

    OSError if the system has Landlock and refuses; nothing happens where it has none.
    """
    version = landlock()
    if not version:
        return
    own, connects, binds = list(own), list(ports), list(listens)
    every = (1 << _FILES.get(version, 16)) - 1
    net = _BIND | _CONNECT if version >= 4 and connects else 0
    attributes = struct.pack("QQQ", every, net, _SIGNALS | _ABSTRACT)[
        : 24 if version >= 6 else 16 if version >= 4 else 8
    ]
    rules = _checked(_syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)))
    try:
        for path in own:
            _allow(rules, path, every)
        for path in _programs():
            if any(folder.resolve().is_relative_to(path.resolve()) for folder in own):
                raise PermissionError(f"{path} holds programs and the kit: move the kit to another folder")
            _allow(rules, path, _EXECUTE | _READ | _LIST)
        _allow(rules, _package().parent, _LIST)  # Python looks for packages by listing folders
        _allow(rules, Path("/dev/null"), every)
        for right, allowed in ((_CONNECT, connects), (_BIND, binds)):
            for port in allowed if net else ():
                _checked(_syscall(_ADD, rules, 2, struct.pack("QQ", right, port), 0))
        _prctl(_NO_NEW_PRIVILEGES, 1)
        _checked(_syscall(_RESTRICT, rules, 0))
    finally:
        os.close(rules)


def reaches(path: Path) -> bool:
    """Say whether a confined process could read a file, because it lies among the programs of the machine."""
    return any(path.resolve().is_relative_to(programs.resolve()) for programs in _programs())


def limit_memory(gigabytes: float) -> None:
    """Give this process no more memory than that: what is asked beyond is refused to it, and the machine goes on.

    Counted are its own data and the stacks of its threads, not the code of libraries, of which JAX maps much.
    """
    most = int(gigabytes * (1 << 30))
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def hide() -> None:
    """Forbid other processes of this account to look into this one's memory, where the system can."""
    if sys.platform == "linux":
        _prctl(_DUMPABLE, 0)


def end_with_parent(parent: int, at_once: bool = True) -> None:
    """End this process when the one that started it is gone: it would keep the run's folder from the next.

    What is stored stays, as after every kill. `at_once` is for what a main thread started: the system looks at threads.
    It comes after `confine`, which holds for threads that are started later.
    """
    if at_once and sys.platform == "linux":
        _prctl(_DEATH_SIGNAL, signal.SIGKILL)

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os._exit(1)

    threading.Thread(target=look, daemon=True, name="looks after the parent").start()


def _programs() -> list[Path]:
    """Return where Python, its packages and ours are, and what the system's libraries read."""
    python = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()}
    found = [_package(), *map(Path, python), *map(Path, _SYSTEM)]
    return [path for path in found if path.exists()]


def _package() -> Path:
    import sottovoce

    return Path(sottovoce.__file__).parent


def _allow(rules: int, path: Path, rights: int) -> None:
    """Allow something under a folder, or with a file."""
    if not path.exists():
        return
    beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        given = rights if path.is_dir() else rights & _OF_FILES
        _checked(_syscall(_ADD, rules, 1, struct.pack("=Qi", given, beneath), 0))
    finally:
        os.close(beneath)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"this process cannot be confined: {os.strerror(ctypes.get_errno())}")
    return result


def _syscall(number: int, *args: object) -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(number, *args))


def _prctl(what: int, value: int) -> None:
    _checked(int(ctypes.CDLL(None, use_errno=True).prctl(what, value, 0, 0, 0)))
