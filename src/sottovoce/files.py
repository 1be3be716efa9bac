"""Write files that survive a kill at any moment, and lock files that several processes write.

For example, a run that is killed while it writes `result.json` leaves the old `result.json` behind, or the new one,
never half of one. A write that fails, because the disk is full for example, says which file and what to do.
"""

import errno
import hashlib
import json
import math
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

PRIVATE = 0o600  # readable and writable by the owner only
_PATIENCE = 60.0  # seconds to wait for another process that holds a lock
_ABANDONED = 60.0  # seconds after which a temporary file of a process that is gone is removed
_SWEPT: set[Path] = set()  # paths that this process has written: a folder is listed once for each
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


def to_json(value: Any) -> str:
    """Write a value as strict JSON, for people and other programs: an infinite number becomes a word, a path its text.

    >>> to_json({"epsilon": float("inf"), "parties": ("north", "south")})
    '{\\n "epsilon": "infinite",\\n "parties": [\\n  "north",\\n  "south"\\n ]\\n}'
    """
    return json.dumps(_plain(value), indent=1, allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "infinite" if value > 0 else "undefined"
    return str(value) if isinstance(value, Path) else value


def write_atomically(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write `data` to `path` so that a reader, or a kill, meets either the old file or the new one, never a part.

    The data goes to a temporary file beside `path`, is synced to the disk and renamed into place. The temporary name
    has the process's number and a random token: two writers of one path never share it, and the last one wins. It is
    removed when the write fails; what a kill leaves behind is removed by the next process that writes the same path. A
    `private` file is readable by its owner only, from its first byte on.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "new" / "result.json"  # folders are made
    ...     write_atomically(path, b"{}")
    ...     path.read_text(), [found.name for found in path.parent.iterdir()]
    ('{}', ['result.json'])
    """
    with _failures_named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path not in _SWEPT:
            sweep(path.parent, path.name)
            _SWEPT.add(path)
        aside = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(8)}.part")
        try:
            mode = PRIVATE if private else 0o666  # less what the umask takes away
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            try:
                _put(descriptor, data)
            finally:
                os.close(descriptor)
            os.replace(aside, path)
        except BaseException:  # Ctrl-C too
            aside.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename itself must reach the disk
        finally:
            os.close(folder)


def traces(*paths: Path) -> tuple[tuple[int, int, int] | None, ...]:
    """Return what changes when one of some files is written, replaced or removed; None for one that is not there.

    >>> traces(Path("no such file"))
    (None,)
    """

    def trace(path: Path) -> tuple[int, int, int] | None:
        try:
            known = path.stat()
        except OSError:
            return None
        return known.st_ino, known.st_size, known.st_mtime_ns

    return tuple(map(trace, paths))


class Here:
    """Remember the process in which something was made that must not be used in a copy of it, made by a fork.

    >>> Here().require("a ledger in memory", "give it a file")
    """

    def __init__(self) -> None:
        self._process = os.getpid()

    def require(self, what: str, remedy: str) -> None:
        """Refuse to go on in another process: its charges would be known to nobody else."""
        if os.getpid() != self._process:
            raise RuntimeError(f"{what} was copied into another process by a fork, and the two do not add up: {remedy}")


def append(path: Path, data: bytes, at: int) -> None:
    """Cut a private file to `at` bytes, add `data`, and sync it to the disk.

    A failure or a kill may leave a part of `data` behind the first `at` bytes, never less than those.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "ledger.jsonl"
    ...     append(path, b"one,", at=0)
    ...     append(path, b"two", at=4)
    ...     path.read_bytes()
    b'one,two'
    """
    with _failures_named(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, PRIVATE)
        try:
            os.ftruncate(descriptor, at)
            os.lseek(descriptor, at, os.SEEK_SET)
            _put(descriptor, data)
        finally:
            os.close(descriptor)


def write_facts(path: Path, kind: str, version: int, facts: Mapping[str, Any], *, private: bool = False) -> None:
    """Write JSON with its kind, its version and a checksum, by which `read_facts` notices every change.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "run.json"
    ...     write_facts(path, "a run", 1, {"name": "north"})
    ...     read_facts(path, "a run", 1, remedy="run again")["name"]
    'north'
    """
    read = json.loads(json.dumps(facts))  # as it will be read: tuples become lists
    stored = {"kind": kind, "version": version, **read}
    text = json.dumps({**stored, "check": _check(stored)}, indent=1)
    write_atomically(path, text.encode(), private=private)


def read_facts(path: Path, kind: str, version: int, remedy: str) -> dict[str, Any]:
    """Return what `write_facts` wrote; ValueError says in one sentence what is wrong with the file, and the remedy."""
    try:
        stored = json.loads(path.read_bytes())
        found, check = stored["version"], stored.pop("check")
        if stored["kind"] != kind:
            raise ValueError(f"it is {stored['kind']}")
        if found == version and check != _check(stored):
            raise ValueError("it was changed")
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): {remedy}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        said = f"{type(error).__name__}: {error!s:.100}"
        raise ValueError(f"{path} is damaged, or is not {kind} ({said}): {remedy}") from error
    if found != version:
        raise ValueError(
            f"{path} has version {found!r}, and this program reads version {version}: use the version of sottovoce "
            f"that wrote it, or {remedy}"
        )
    return dict(stored)


@contextmanager
def locked(path: Path, *, writing: bool = False) -> Iterator[None]:
    """Hold a file's lock, so that one process at a time reads it and writes it.

    The lock is a file beside it, `<name>.lock`, which stays. Locks end with the process that holds them. `writing`
    makes the folder first. To read where no lock file can be made, because the folder may only be read or does not
    exist, nothing is locked: nobody can write there either.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, locked(Path(folder) / "ledger.jsonl"):
    ...     [found.name for found in Path(folder).iterdir()]
    ['ledger.jsonl.lock']
    """
    if writing:
        with _failures_named(path):
            path.parent.mkdir(parents=True, exist_ok=True)
    elif not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        yield
        return
    with _held(path, _PATIENCE, f"is locked by another process for more than {_PATIENCE:g} seconds"):
        yield


@contextmanager
def reserved(path: Path) -> Iterator[None]:
    """Hold a file's lock for a long time; refuse at once if another process holds it.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, reserved(Path(folder) / "run.json"):
    ...     with reserved(Path(folder) / "run.json"):
    ...         pass
    Traceback (most recent call last):
    ...
    TimeoutError: ...run.json is in use by another process: wait for it to end, or end it
    """
    with _failures_named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with _held(path, 0.0, "is in use by another process"):
        yield


@contextmanager
def _held(path: Path, patience: float, taken: str) -> Iterator[None]:
    lock = FileLock(path.with_name(path.name + ".lock"), timeout=patience, mode=PRIVATE)
    with _failures_named(path):
        try:
            lock.acquire()
        except Timeout:
            raise TimeoutError(f"{path} {taken}: wait for it to end, or end it") from None
    try:
        yield
    finally:
        lock.release()


def _put(descriptor: int, data: bytes) -> None:
    """Write all of `data`, and wait until it is on the disk. Every byte that the package stores goes through here."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
    os.fsync(descriptor)


@contextmanager
def _failures_named(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into one sentence with the file and the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # a sentence already
            raise
        remedy = "check the path and the disk"
        if error.errno in _FULL:
            remedy = "free some space on its disk"
        elif error.errno in _REFUSED:
            remedy = "choose a place where you may write"
        elif error.errno in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
            remedy = "choose another name"
        named = type(error)(
            f"{path} cannot be written ({error.strerror}): {remedy}. What it held before is still there"
        )
        named.errno = error.errno
        raise named from error


def sweep(folder: Path, name: str | None = None) -> None:
    """Remove temporary files whose writer was killed: its process is gone, and a minute has passed.

    Those of the file `name` in a folder, or of all its files.

    >>> sweep(Path("."), "result.json")
    """
    pattern = re.compile((".+" if name is None else re.escape(name)) + r"\.(\d+)\.[0-9a-f]{16}\.part")
    for entry in os.listdir(folder):
        found = pattern.fullmatch(entry)
        if found is None or _is_running(int(found[1])):
            continue
        left = folder / entry
        try:
            if time.time() - left.stat().st_mtime > _ABANDONED:  # its writer may run on another machine
                left.unlink()
        except FileNotFoundError:  # another writer was faster
            pass


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _check(facts: Mapping[str, Any]) -> str:
    """Return a checksum of the content: spaces and the order of keys do not matter."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
