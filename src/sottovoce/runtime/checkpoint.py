"""Write checkpoints that survive a kill at any moment: written aside, synced, and renamed into place.

A file has a kind ("checkpoint" or "model") and a version. Whatever is wrong with a file is said in one sentence with
its name. A checkpoint holds private state, so only its owner may read it; a model is made to be handed out.
"""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce import archives
from sottovoce.files import write_atomically

VERSION = 1  # of a file; it changes when what is in the file does
_META = "__meta__"


def save(path: Path, tree: Any, meta: dict[str, Any], kind: str = "checkpoint") -> None:
    """Write a pytree of arrays, and JSON-able facts about it, to one file."""
    arrays = {f"leaf{number}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(tree))}
    facts = {"kind": kind, "version": VERSION, "facts": meta}
    arrays[_META] = np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)
    write_atomically(path, archives.packed(arrays), private=kind == "checkpoint")


def load(path: Path, like: Any, kind: str = "checkpoint") -> tuple[Any, dict[str, Any]]:
    """Return the tree and the facts; `like` gives the structure, shapes and types it must have."""
    meta, leaves = read(path, kind)
    return unflatten(leaves, like, path), meta


def unflatten(leaves: list[np.ndarray], like: Any, path: Path) -> Any:
    """Return the arrays of a file as a tree like this one; other shapes or types are an error that names the file.

    >>> unflatten([np.zeros(2)], {"x": np.ones(2)}, Path("a.npz"))["x"].tolist()
    [0.0, 0.0]
    """
    expected = jax.tree.leaves(like)
    if [(np.shape(leaf), leaf.dtype) for leaf in leaves] != [(np.shape(leaf), leaf.dtype) for leaf in expected]:
        raise ValueError(
            f"{path} holds arrays of other shapes or types than this run: it belongs to another model; give this one's"
        )
    return jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(leaf) for leaf in leaves])


def read_meta(path: Path, kind: str = "checkpoint") -> dict[str, Any]:
    """Return the facts alone."""
    return read(path, kind)[0]


def read(path: Path, kind: str) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Return the facts and the arrays; ValueError says in one sentence what is wrong with the file."""
    remedy = "restore it from a copy, or run again into another folder"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): {remedy}") from error
    try:
        arrays = archives.unpacked(data, f"{_META}|leaf[0-9]+")
        stored = json.loads(arrays[_META].tobytes())
        leaves = [arrays[f"leaf{number}"] for number in range(len(arrays) - 1)]
        found, version, facts = stored["kind"], stored["version"], stored["facts"]
        if not isinstance(facts, dict):
            raise TypeError("its facts are no dict")
    except Exception as error:  # a damaged file may fail anywhere in the readers of zip, NumPy and JSON
        raise ValueError(
            f"{path} is damaged, or is no {kind} of sottovoce ({type(error).__name__}: {error!s:.100}): {remedy}"
        ) from error
    if found != kind:
        raise ValueError(f"{path} is a {found}, not a {kind}: give the file that {kind}s are stored in")
    if version != VERSION:
        raise ValueError(
            f"{path} has version {version!r}, and this program reads version {VERSION}: use the version of sottovoce "
            "that wrote it, or run again"
        )
    return facts, leaves
