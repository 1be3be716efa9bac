"""Keep where a run is: its state, its step and its history, so that a stopped run goes on to the same bytes.

Example: after step 30 the loop holds one `RunState`; step 40 makes a new one. An interrupt finds either the old or the
new one, never half of each.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.sparse as sp

from sottovoce.files import read_facts, reserved, sweep, write_facts
from sottovoce.runtime import checkpoint, generations
from sottovoce.runtime.peers import Peers
from sottovoce.runtime.place import Place

_BEFORE, _SHOWN = 40, 120  # letters before the first that differs, and in all
VERSION = 1  # of run.json
_RUN, _KIND = "run.json", "the name of a run"
_NONE = "not stated"  # what an identity does not say is no value that it could say
_UNKNOWN = "without it this run cannot be recognised; restore it from a copy, or choose another folder"
_WORDS = {"method", "network"}  # of an identity: they tell people what differs, and the program is what is compared
_HIDDEN = ("step", "seconds", "consensus", "bytes up", "bytes down")  # not shown in the progress bar


class AnotherRun(ValueError):
    """Say that a folder's checkpoint is one of another run, which this one does not continue."""


@dataclass(frozen=True)
class RunState:
    """Hold the leaves of the state after `step` steps, and what was measured on the way."""

    leaves: list[Any]
    step: int = 0
    seconds: float = 0.0
    history: Mapping[str, tuple[np.ndarray, ...]] = field(default_factory=dict)

    def moved(self, leaves: list[Any], count: int, seconds: float) -> "RunState":
        """Return the state `count` steps on."""
        return replace(self, leaves=leaves, step=self.step + count, seconds=self.seconds + seconds)

    def noted(self, figures: Mapping[str, Any]) -> "RunState":
        """Return the same with one more line in the history."""
        line = {"step": self.step, "seconds": self.seconds, **figures}
        history = {name: (*self.history.get(name, ()), np.asarray(value)) for name, value in line.items()}
        return replace(self, history={**self.history, **history})

    def latest(self) -> dict[str, float]:
        """Return the newest scalar figures, for the progress bar."""
        newest = {name: values[-1] for name, values in self.history.items() if name not in _HIDDEN}
        return {name: float(value) for name, value in newest.items() if np.ndim(value) == 0}

    def stacked(self) -> dict[str, np.ndarray]:
        """Return the history as arrays."""
        return {name: np.stack(values) for name, values in self.history.items()}

    def save(self, folder: Path, identity: Mapping[str, Any], place: Place, company: Peers) -> None:
        """Write this process's checkpoint; `identity` is what must agree for the run to be continued."""
        history = {name: values.tolist() for name, values in self.stacked().items()}
        facts = {"identity": dict(identity), "step": self.step, "seconds": self.seconds, "history": history}
        if place.holds is not None:
            facts["agents"] = [place.holds.start, place.holds.stop]
        file = generations.path(folder, self.step, company.rank, company.count)
        checkpoint.save(file, place.stored(self.leaves), facts)

    @classmethod
    def restore(cls, folder: Path, step: int, identity: Mapping[str, Any], place: Place, company: Peers) -> "RunState":
        """Read a step of this very run, whatever number of processes stored it."""
        paths = generations.files(folder, step, company)
        for path in paths:
            stored = checkpoint.read_meta(path).get("identity", {})
            differing = [key for key in {**identity, **stored} if stored.get(key, _NONE) != identity.get(key, _NONE)]
            if set(differing) - _WORDS:
                said = "; ".join(
                    f"{key} was {_apart(stored.get(key, _NONE), identity.get(key, _NONE))}" for key in differing
                )
                raise AnotherRun(f"{path} belongs to another run: {said}. Run into another folder, or undo the change.")
        leaves = place.restored(generations.rows(paths, place.shapes, place.holds))
        facts = checkpoint.read_meta(paths[0])
        history = {name: tuple(np.asarray(v) for v in values) for name, values in facts["history"].items()}
        return cls(leaves, facts["step"], facts["seconds"], history)


def _apart(old: Any, new: Any) -> str:
    """Show two values from where they begin to differ: a method's text is long.

    >>> _apart("DpSgd(rate=0.5, steps=Constant(3))", "DpSgd(rate=0.25, steps=Constant(3))")
    'DpSgd(rate=0.5, steps=Constant(3)) and is DpSgd(rate=0.25, steps=Constant(3))'
    """
    texts = str(old), str(new)
    alike = next((at for at, pair in enumerate(zip(*texts)) if pair[0] != pair[1]), min(map(len, texts)))
    begin = max(0, alike - _BEFORE)
    return " and is ".join(f"{'...' * (begin > 0)}{text[begin : begin + _SHOWN]}" for text in texts)


def keep_for_one_run(out: str | Path | None) -> AbstractContextManager[None]:
    """Keep a folder for one run at a time: two runs would mix their models, statements and checkpoints.

    >>> with keep_for_one_run(None):    # without a folder there is nothing to keep
    ...     pass
    """
    path = Path(out) if out is not None else None
    if path is None or (path.exists() and not path.is_dir()):  # a file is refused when the folder is opened
        return nullcontext()
    return reserved(path / _RUN)


@dataclass(frozen=True)
class RunFolder:
    """Name a run's folder: its path, the random name by which ledgers know the run, and its secret.

    What resuming compares of the records is an HMAC keyed by the secret, so that nothing in the folder or in a ledger
    confirms a guessed record to somebody who does not have the secret.
    """

    path: Path | None
    name: str
    secret: bytes

    @classmethod
    def open(cls, out: str | Path | None, resume: bool) -> "RunFolder":
        """Make the folder, or find it again; refuse to run over an earlier run.

        >>> RunFolder.open(None, resume=False).path is None
        True
        """
        fresh = cls(None, secrets.token_hex(8), secrets.token_bytes(32))
        if out is None:
            return fresh
        path = Path(out)
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file: give a folder for the run")
        begun = (
            generations.any_in(path)
            or (path / "result.json").exists()
            or any(
                ledger.stat().st_size
                for ledger in path.glob("ledger*.jsonl")  # killed before its first checkpoint
            )
        )
        if begun and not resume:
            raise ValueError(f"{path} holds a run already: choose another folder, or go on with resume=True (--resume)")
        known = path / _RUN
        if resume and known.exists():
            sweep(path)  # a kill may have left parts of files that are complete, and are not written again
            stored = read_facts(known, _KIND, VERSION, _UNKNOWN)
            return cls(path, stored["name"], bytes.fromhex(stored["secret"]))
        if begun:
            raise ValueError(f"{known} is missing, so this run cannot be recognised: choose another folder")
        write_facts(known, _KIND, VERSION, {"name": fresh.name, "secret": fresh.secret.hex()}, private=True)
        return cls(path, fresh.name, fresh.secret)

    @classmethod
    def shared(cls, out: str | Path | None, resume: bool, company: Peers) -> "RunFolder":
        """Open the folder in the leader, and let all processes know the run by its name and secret."""

        def opened() -> list[str]:
            made = cls.open(out, resume)
            return [made.name, made.secret.hex()]

        name, secret = company.lead(opened)
        path = None if out is None else Path(out)
        if path is not None:
            path.mkdir(parents=True, exist_ok=True)  # on another machine it may not be there
        return cls(path, name, bytes.fromhex(secret))

    def seal(self, tree: Any) -> str:
        """Return a keyed digest of private arrays."""
        return hmac.new(self.secret, digest(tree).encode(), hashlib.sha256).hexdigest()


def digest(tree: Any) -> str:
    """Return a digest of a pytree's arrays, sparse ones included.

    >>> digest({"a": np.zeros(2)}) == digest({"a": np.ones(2)})
    False
    """
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(tree, is_leaf=sp.issparse):
        for part in (leaf.data, leaf.indices, leaf.indptr) if sp.issparse(leaf) else (leaf,):
            held = np.asarray(part)
            sha.update(f"{held.dtype}{held.shape}".encode())
            sha.update(np.ascontiguousarray(held).tobytes())
    return sha.hexdigest()
