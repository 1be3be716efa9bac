"""Write files that survive a kill at any moment, and lock files that several processes write.

For example, a run that is killed while it writes `result.json` leaves the old `result.json` behind, or the new one,
never half of one.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

PRIVATE = 0o600  # readable and writable by the owner only
_PATIENCE = 60.0  # seconds to wait for another process that holds a lock


def write_atomically(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write `data` to `path` so that a reader, or a kill, meets either the old file or the new one, never a part.

    The data goes to a temporary file beside `path`, is synced to the disk and renamed into place. The temporary name
    has the process's number and a random token: two writers of one path never share it, and the last one wins. It is
    removed when the write fails; a kill may leave it behind. A `private` file is readable by its owner only, from its
    first byte on.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "new" / "result.json"  # folders are made
    ...     write_atomically(path, b"{}")
    ...     path.read_text(), [found.name for found in path.parent.iterdir()]
    ('{}', ['result.json'])
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(8)}.part")
    try:
        mode = PRIVATE if private else 0o666  # less what the umask takes away
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:  # Ctrl-C too
        aside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself must reach the disk
    finally:
        os.close(folder)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file's lock, so that one process at a time reads it and writes it.

    The lock is a file beside it, `<name>.lock`, which stays. Locks end with the process that holds them. Where no lock
    file can be made, because the folder may only be read or does not exist, nobody can write either, and nothing is
    locked.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, locked(Path(folder) / "ledger.jsonl"):
    ...     [found.name for found in Path(folder).iterdir()]
    ['ledger.jsonl.lock']
    """
    lock = FileLock(path.with_name(path.name + ".lock"), timeout=_PATIENCE, mode=PRIVATE)
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        yield
        return
    try:
        lock.acquire()
    except Timeout:
        raise TimeoutError(
            f"{path} is locked by another process for more than {_PATIENCE:g} seconds: wait for it to end, or end it"
        ) from None
    try:
        yield
    finally:
        lock.release()
