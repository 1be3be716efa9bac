"""Read and write the two files of a label store: the store itself, and its head.

The head (`.head`) is a small file beside the store. It holds the hash of what was written last, so that an older copy
of the store is refused. It also holds a salted hash of the labels, by which a second store of the same labels is
recognised, and the place of the store: a copy is refused as long as the store it was copied from is there. A store may
be moved. `sottovoce.privacy.label_store` says what a store is for.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce import archives
from sottovoce.files import locked, read_facts, write_atomically, write_facts
from sottovoce.privacy.ledger_line import digest

VERSION = 3  # of a store's file and of its head
_KIND = "the head of a label store"
_RESTORE = "restore both files from the newest copy, without them nobody knows what was spent"


def head_of(path: Path) -> Path:
    """Return the path of a store's head.

    >>> head_of(Path("labels.npz")).name
    'labels.npz.head'
    """
    return path.with_name(path.name + ".head")


def mark(salt: str, label: np.ndarray, rows: str) -> str:
    """Return a salted hash of the labels, by which a second store of the same labels is recognised."""
    return sha256(salt.encode() + rows.encode() + label.astype(np.int64).tobytes()).hexdigest()


def read_head(path: Path) -> dict[str, Any] | None:
    """Return what a head says; None if it does not exist."""
    return read_facts(path, _KIND, VERSION, _RESTORE) if path.exists() else None


def read(path: Path) -> tuple[dict[str, Any] | None, bytes | None]:
    """Return the head and the content of a store, None where a file does not exist; refuse copies and changed files."""
    head = read_head(head_of(path))
    try:
        data = path.read_bytes() if path.exists() else None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): give the path of a label store") from error
    if head is None and data is None:
        return None, None
    if head is None:
        raise ValueError(f"{head_of(path)} is missing, so {path} may be an old copy: {_RESTORE}")
    found = None if data is None else digest(data)
    if found not in (head["store"], head["next"] or head["store"]):
        raise ValueError(f"{path} is not what was written last: it was changed, or is an old copy: {_RESTORE}")
    _refuse_copy(path, head)
    return head, data


def write(path: Path, data: bytes, seen: str | None, known: Mapping[str, Any]) -> str:
    """Replace a store whose digest is `seen` (None: there is none), and return the new digest.

    `known` is what the head holds beside digests and place. A store that has another digest was written to by another
    process: it is refused, and nothing is written.
    """
    with locked(path, writing=True):
        require_same(path, seen)
        after = digest(data)
        _write_head(path, seen, after, known)  # a kill in between leaves either the old store or the new
        write_atomically(path, data, private=True)
        _write_head(path, after, None, known)
    return after


def require_same(path: Path, seen: str | None) -> None:
    """Refuse a store whose digest is no longer `seen` (None: there is none): somebody else wrote it, or removed it."""
    if seen != (digest(path.read_bytes()) if path.exists() else None):
        raise ValueError(
            f"{path} was written to by another process meanwhile, or removed, so what was drawn and what is left of "
            "the budget have changed: create the Labels again"
        )


def packed(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the content of a store: facts as JSON, and arrays.

    >>> facts, arrays = unpacked(Path("labels.npz"), packed(dict(rows="", seed=0, memos=[], costs=[], runs=[]), {}))
    >>> facts["version"], arrays
    (3, {})
    """
    return archives.packed({"facts": np.asarray(json.dumps({"version": VERSION, **facts})), **arrays})


def unpacked(path: Path, data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return facts and arrays; ValueError names the file (`path`) if they are not those of a store."""
    try:
        arrays = archives.unpacked(data, "[a-z]+[0-9]*")
        facts = json.loads(str(arrays.pop("facts")))
        if facts["version"] != VERSION:
            raise ValueError(f"version {facts['version']!r}, and this program reads version {VERSION}")
        return {name: facts[name] for name in ("version", "rows", "seed", "memos", "costs", "runs")}, arrays
    except Exception as error:  # a damaged file may fail anywhere in the readers of zip, NumPy and JSON
        raise ValueError(f"{path} is no label store ({type(error).__name__}: {error!s:.100}): {_RESTORE}") from error


def _write_head(path: Path, now: str | None, coming: str | None, known: Mapping[str, Any]) -> None:
    facts = {"store": now, "next": coming, **known, "home": str(path.resolve())}
    write_facts(head_of(path), _KIND, VERSION, facts, private=True)


def _refuse_copy(path: Path, head: Mapping[str, Any]) -> None:
    """Refuse a store that was copied from another place, where it still is."""
    home = Path(head["home"])
    try:
        # A file with two names is a copy as soon as one of them is written: what is compared is the folder.
        if (
            home == path.resolve()
            or not home.exists()
            or (home.name == path.name and home.parent.samefile(path.parent))
        ):
            return
        original = read_head(head_of(home))
    except (ValueError, OSError):
        return  # another thing has taken its place, or it cannot be seen from here
    if original is not None and original["salt"] == head["salt"]:
        raise ValueError(
            f"{path} is a copy of {home}, which is still there: give path={str(home)!r}, because two stores do not "
            "know what each other spends; to move a store, delete the old one"
        )
