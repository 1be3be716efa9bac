"""Checkpoints that survive a kill at any moment: written aside, synced, and renamed into place."""

import io
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.files import write_atomically

_META = "__meta__"


def save(path: Path, tree: Any, meta: dict[str, Any]) -> None:
    """A pytree of arrays and JSON-able facts about it, in one file."""
    arrays = {f"leaf{number}": np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(tree))}
    arrays[_META] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write_atomically(path, buffer.getvalue())


def load(path: Path, like: Any) -> tuple[Any, dict[str, Any]]:
    """The tree and the facts; `like` gives the structure and shapes it must have."""
    with np.load(path) as file:
        meta = json.loads(file[_META].tobytes())
        leaves = [file[f"leaf{number}"] for number in range(len(file.files) - 1)]
    expected = jax.tree.leaves(like)
    if [np.shape(leaf) for leaf in leaves] != [np.shape(leaf) for leaf in expected]:
        raise ValueError(f"{path} holds arrays of other shapes than this run: it belongs to another model")
    return jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(leaf) for leaf in leaves]), meta


def read_meta(path: Path) -> dict[str, Any]:
    """The facts alone."""
    with np.load(path) as file:
        return json.loads(file[_META].tobytes())
