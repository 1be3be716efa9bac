"""Read archives of arrays (npz) that somebody else may have made: what they say is compared with what they hold.

A small file can ask for much memory: entries that are compressed, that share their bytes, or whose heads announce more
numbers than follow. `np.load` believes them. Here an archive is stored without compression, its entries are no larger
together than the file, and an array has as many bytes as its head says. No array of Python objects is read.
"""

import io
import re
import zipfile
from collections.abc import Mapping

import numpy as np

_MOST = 10_000  # entries
_LONGEST_HEAD = 10_000  # letters


def packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return an archive of named arrays.

    >>> found = unpacked(packed({"leaf0": np.arange(3), "leaf1": np.ones((2, 0), np.float32)}), "leaf[0-9]+")
    >>> found["leaf0"].tolist(), found["leaf1"].shape
    ([0, 1, 2], (2, 0))
    """
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def unpacked(data: bytes, names: str, most: int | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of an archive whose names fit a pattern; ValueError if it is not what `packed` writes.

    With `most`, entries may be compressed, and have so many bytes in all: for public data sets, which others pack.

    >>> unpacked(packed({"other": np.ones(2)}), "leaf[0-9]+")
    Traceback (most recent call last):
    ...
    ValueError: an entry is called 'other.npy'
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            _check(entries, len(data) if most is None else most, most is not None, re.compile(f"(?:{names})[.]npy"))
            return {entry.filename.removesuffix(".npy"): _array(archive.read(entry)) for entry in entries}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise ValueError(f"it is no archive of arrays ({error!s:.100})") from None


def _check(entries: list[zipfile.ZipInfo], most: int, compressed: bool, names: re.Pattern[str]) -> None:
    if len(entries) > _MOST:
        raise ValueError(f"it has {len(entries)} entries, and at most {_MOST} are read")
    for entry in entries:
        if not names.fullmatch(entry.filename):
            raise ValueError(f"an entry is called {entry.filename!r:.60}")
        if not compressed and (entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size):
            raise ValueError("an entry is compressed: sottovoce stores numbers as they are")
    if len({entry.filename for entry in entries}) < len(entries):
        raise ValueError("two entries have one name")
    if (whole := sum(entry.file_size for entry in entries)) > most:
        raise ValueError(f"its entries have {whole} bytes, and there may be {most}")


def _array(data: bytes) -> np.ndarray:
    """Return the array of an entry: its head says exactly as many bytes as follow."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"an array has format {version}")
    shape, by_columns, kind = readers[version](file, max_header_size=_LONGEST_HEAD)
    if kind.hasobject or not all(type(axis) is int and axis >= 0 for axis in shape):
        raise ValueError("an array holds objects, or has an axis of no length")
    count = 1
    for axis in shape:
        count *= axis
    if len(data) - file.tell() != count * kind.itemsize:
        raise ValueError(f"an array has {len(data) - file.tell()} bytes, and its head says {count * kind.itemsize}")
    if not count * kind.itemsize:
        return np.zeros(shape, kind)
    return np.frombuffer(data, kind, offset=file.tell()).reshape(shape, order="F" if by_columns else "C").copy()
