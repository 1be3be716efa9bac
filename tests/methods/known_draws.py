"""Coins and noise that a simulated curator and the parties of a sum both know: for tests alone."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.clipping import bookkeeping
from sottovoce.privacy import discrete, gate
from sottovoce.privacy.noise import Gaussian
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Poisson, mask


def know(monkeypatch: pytest.MonkeyPatch, sizes: Sequence[int]) -> None:
    """Draw by a pattern over each party's rows, and add noise by a pattern over numbers, in both places.

    Each party of a sum adds the same share. Noise that a simulation adds is that of all shares together.
    """
    own = np.concatenate([np.arange(n) for n in sizes])  # each row's number at its party

    def is_in(rows: Any, t: Any) -> Any:
        return (rows * 7 + t * 3) % 5 < 2

    def draw(self: Poisson, key: Any, counts: np.ndarray, agent: Any, t: Any) -> Any:
        assert counts.tolist() == [len(own)]
        return jnp.arange(len(own)), mask(is_in(jnp.asarray(own), t))

    def part(self: Poisson, n: int, whole: int, t: int, source: Any) -> tuple[np.ndarray, int]:
        assert whole == len(own)
        return np.flatnonzero(is_in(np.arange(n), t)), n

    def pattern(size: int) -> np.ndarray:
        return np.cos(1.0 + np.arange(size))

    def noised(mean: Any, release: Release, key: Any, t: Any, agent: Any, given: Any, *_: Any) -> Any:
        flat, back = jax.flatten_util.ravel_pytree(mean)
        return back(flat + given * pattern(flat.size))

    def exact(self: Gaussian, scale: int, size: int, source: Any) -> np.ndarray:
        return np.round(scale / math.sqrt(len(sizes)) * pattern(size)).astype(np.int64)

    honest = discrete.on_grid
    monkeypatch.setattr(bookkeeping, "SAFETY", 0.0)  # in floating point records are clipped a little shorter
    monkeypatch.setattr(discrete, "on_grid", lambda *given: honest(*given, bits=25))  # rounding is below 1e-6
    monkeypatch.setattr(Poisson, "draw", draw)
    monkeypatch.setattr(Poisson, "part", part)
    monkeypatch.setattr(gate, "noised", noised)
    monkeypatch.setattr(Gaussian, "exact", exact)
