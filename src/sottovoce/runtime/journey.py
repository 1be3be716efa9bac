"""Where a run is: its state, its step and its history, kept so that a killed run goes on to the same bytes."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.sparse as sp

from sottovoce.runtime import checkpoint

CHECKPOINT = "checkpoint.npz"


@dataclass
class Journey:
    """The state after `step` steps, and what was measured on the way.

    `identity` is what must agree for a run to be continued.
    """

    state: Any = None
    step: int = 0
    seconds: float = 0.0
    identity: dict[str, Any] = field(default_factory=dict)
    history: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def move(self, state: Any, count: int, seconds: float) -> None:
        """So many steps on."""
        self.state, self.step, self.seconds = state, self.step + count, self.seconds + seconds

    def note(self, figures: Mapping[str, Any]) -> None:
        """Add a line to the history."""
        for name, value in {"step": self.step, "seconds": self.seconds, **figures}.items():
            self.history.setdefault(name, []).append(np.asarray(value))

    def latest(self) -> dict[str, float]:
        """The newest scalar figures, for the progress bar."""
        hidden = ("step", "seconds", "consensus", "bytes up", "bytes down")
        return {name: float(v[-1]) for name, v in self.history.items() if name not in hidden and np.ndim(v[-1]) == 0}

    def stacked(self) -> dict[str, np.ndarray]:
        """The history as arrays."""
        return {name: np.stack(values) for name, values in self.history.items()}

    def save(self, folder: Path) -> None:
        """Write the checkpoint."""
        history = {name: values.tolist() for name, values in self.stacked().items()}
        facts = {"identity": self.identity, "step": self.step, "seconds": self.seconds, "history": history}
        checkpoint.save(folder / CHECKPOINT, self.state, facts)

    def restore(self, folder: Path, like: Any) -> None:
        """Go on from the checkpoint of this very run; `like` gives the structure of its state."""
        path = folder / CHECKPOINT
        stored = checkpoint.read_meta(path)["identity"]
        differing = [key for key in self.identity if stored.get(key) != self.identity[key]]
        if differing:
            told = "; ".join(
                f"{key} was {stored.get(key)!s:.120} and is {self.identity[key]!s:.120}" for key in differing
            )
            raise ValueError(f"{path} belongs to another run: {told}. Run into another folder, or undo the change.")
        self.state, facts = checkpoint.load(path, like=like)
        self.step, self.seconds = facts["step"], facts["seconds"]
        self.history = {name: [np.asarray(v) for v in values] for name, values in facts["history"].items()}


def digest(tree: Any) -> str:
    """A short digest of a pytree's arrays, sparse ones included.

    >>> digest({"a": np.zeros(2)}) == digest({"a": np.ones(2)})
    False
    """
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(tree, is_leaf=sp.issparse):
        for part in (leaf.data, leaf.indices, leaf.indptr) if sp.issparse(leaf) else (leaf,):
            sha.update(np.ascontiguousarray(part).tobytes())
    return sha.hexdigest()[:16]
