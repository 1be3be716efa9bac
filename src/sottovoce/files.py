"""Write files that survive a kill at any moment.

For example, a run that is killed while it writes `result.json` leaves the old `result.json` behind, or the new one,
never half of one.
"""

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader, or a kill, meets either the old file or the new one, never a part.

    The data goes to a temporary file beside `path`, is synced to the disk and renamed into place. The temporary name
    has the process's number and a random token: two writers of one path never share it, and the last one wins. It is
    removed when the write fails; a kill may leave it behind.

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
        with aside.open("xb") as file:
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
