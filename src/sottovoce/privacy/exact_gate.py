"""Define the gate as deployed: whole-number sums, exact noise, the operating system's coins.

Example: with a grid step of 2^-16 a record's clipped gradient (0.25, -0.5) becomes the whole numbers (16384, -32768);
sums of whole numbers have no rounding error, and the noise that is added to them is a whole number too. The proofs are
in `sottovoce.privacy.discrete`.
"""

import math
import random
import secrets
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, cast

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from sottovoce.data.sealed import Sealed
from sottovoce.privacy import discrete
from sottovoce.privacy.gate import Reading, RecordFunction
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Rows, Sampling
from sottovoce.tracing import compiled
from sottovoce.trees import Tree

Noised = Callable[[discrete.GridRelease, np.ndarray], np.ndarray]
_BYTES = 2**26  # of gradients that are held at once
_CACHED = 2**17  # numbers that are rounded at once

PRINTED = (
    "message {!r} carries private state, which is on no grid: discrete noise is for sound designs, whose every message "
    "is a release. Use design='sound', or simulate."
)


def draw(sampling: Sampling, n: int, t: int) -> Rows:
    """Draw a batch by secret coins, padded to its capacity, so that a round's time does not tell its size.

    A batch that is larger is not cut. Where the size is no secret, because nothing is drawn at random, it is padded to
    a power of two, so that few programs are compiled.

    >>> from sottovoce.privacy.sampling import Full, Poisson
    >>> draw(Full(), n=3, t=0)[0].tolist(), len(draw(Poisson(5), n=1000, t=0)[0])
    ([0, 1, 2], 35)
    """
    rows = sampling.exact(n, t, secrets.SystemRandom())
    usual = sampling.capacity(n) if sampling.amplifies else min(sampling.capacity(n), _power(len(rows)))
    return _padded(rows, usual)


def draw_part(sampling: Sampling, n: int, whole: int, t: int, source: random.Random) -> Rows:
    """Draw a party's own rows of a batch from all parties' rows (`Sampling.part`), padded like those of `draw`.

    >>> from sottovoce.privacy.sampling import Full, Poisson
    >>> draw_part(Full(), 2, 5, 0, random.Random(0))[0].tolist()
    [0, 1]
    """
    return _padded(*sampling.part(n, whole, t, source))


def _padded(rows: np.ndarray, usual: int) -> Rows:
    room = max(usual, len(rows))
    padded, present = np.pad(rows, (0, room - len(rows))), (np.arange(room) < len(rows)).astype(np.float32)
    return cast(Rows, (padded, present))  # read by NumPy, so they stay off the device


def release(
    readings: Sequence[Reading], at: Tree, release: Release, t: int, agent: int, chunk: int,
    noised: Noised = discrete.GridRelease.noised,
) -> Tree:  # fmt: skip
    """Return the noisy mean: the levels' whole-number sums on their common grid, noised, then divided.

    `noised` makes the noisy mean of the sum of these records: by itself, or together with others who hold records too
    (`sottovoce.runtime.sums`). The denominators are then those of all.

    Guarantee: the result is a function of S + Z as `GridRelease` states it, so the account of the stated release
    covers it bit for bit, provided that a compiled program gives the same bits for the same input.
    """
    leaves, structure = jax.tree.flatten(at)
    ends = np.cumsum([leaf.size for leaf in leaves])
    common = math.lcm(*(int(reading.denominator) for reading in readings))
    grid = discrete.on_grid(release, common, t, agent)
    if grid.clip * sum(len(reading.rows[0]) for reading in readings) * common > discrete.LARGEST:
        raise ValueError(f"sums of {grid.clip} steps over {common} overflow 64 bits: use equal denominators")
    total = np.zeros(ends[-1], np.int64)
    for reading in readings:
        total += whole_sum(grid, reading, at, chunk) * (common // int(reading.denominator))
    pieces = np.split(noised(grid, total), ends[:-1])
    return jax.tree.unflatten(
        structure, [piece.reshape(leaf.shape).astype(leaf.dtype) for piece, leaf in zip(pieces, leaves)]
    )


def whole_sum(grid: discrete.GridRelease, reading: Reading, at: Tree, chunk: int) -> np.ndarray:
    """Return the sum of the batch's gradients in whole numbers of grid steps (int64).

    Each record's gradient is computed by itself, by one program that sees no other record (`lax.map`, one record per
    turn), so it is a function of that record alone. Padding is computed and rounded like a record, then left out of the
    sum: the time depends on the padded size. Memory is bounded by `chunk` records and by `_BYTES`.
    """
    slopes, width = _slopes(reading.function), sum(leaf.size for leaf in jax.tree.leaves(at))
    rows, present = (np.asarray(part) for part in reading.rows)
    pieces = -(-len(rows) // max(1, min(chunk, _BYTES // (4 * width))))
    size = -(-len(rows) // pieces)
    rows = np.pad(rows, (0, pieces * size - len(rows)))
    counted = np.pad(present > 0, (0, pieces * size - len(present))).astype(np.int64)
    total, some = np.zeros(width, np.int64), max(1, _CACHED // width)
    for start in range(0, len(rows), size):
        gradients = np.asarray(slopes(reading.source, reading.closed_over, at, rows[start : start + size]))
        for first in range(0, size, some):  # a few records at a time stay in the cache
            steps = grid.whole(gradients[first : first + some])
            steps *= counted[start + first : start + first + len(steps), None]
            total += steps.sum(axis=0)
    return total


@lru_cache(maxsize=64)
def _slopes(function: RecordFunction) -> Callable[..., jax.Array]:
    """Compile the gradients of some rows, one record per turn."""

    def slopes(source: Sealed, closed_over: Sequence[Any], at: Tree, rows: jax.Array) -> jax.Array:
        loss = source.lift(lambda at, record: function(closed_over, at, record))
        return jax.lax.map(lambda record: ravel_pytree(jax.grad(loss)(at, record))[0], source.unseal(rows))

    return compiled(slopes)


def _power(count: int) -> int:
    """Return the next power of two, so that few sizes are compiled."""
    return 1 << max(count - 1, 0).bit_length()
