"""The gate as deployed: whole-number sums, exact noise, the operating system's coins.

Example: with a grid step of 2^-16 a record's clipped gradient (0.25, -0.5) becomes the whole numbers (16384, -32768);
sums of whole numbers have no rounding error, and the noise that is added to them is a whole number too. The proofs are
in `sottovoce.privacy.discrete`.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from sottovoce.data.sealed import Sealed
from sottovoce.privacy import discrete
from sottovoce.privacy.gate import Reading, RecordFunction
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Rows, Sampling
from sottovoce.trees import Tree

PRINTED = (
    "message {!r} carries private state, which is on no grid: discrete noise is for sound designs, whose every message "
    "is a release. Use design='sound', or simulate."
)


def draw(sampling: Sampling, n: int, t: int) -> Rows:
    """Draw a batch by secret coins, padded to its usual size; one that is larger is not cut.

    >>> from sottovoce.privacy.sampling import Full
    >>> draw(Full(), n=3, t=0)[0].tolist()
    [0, 1, 2]
    """
    rows = discrete.draw(sampling, n, t)
    room = max(sampling.capacity(n), len(rows))
    return jnp.asarray(np.pad(rows, (0, room - len(rows)))), jnp.asarray(np.arange(room) < len(rows), jnp.float32)


def release(readings: Sequence[Reading], at: Tree, release: Release, t: int, agent: int, chunk: int) -> Tree:
    """Return the noisy mean: the levels' whole-number sums on their common grid, noised, then divided.

    Guarantee: the result is a function of S + Z as `GridRelease` states it, so the account of the stated release
    covers it bit for bit, provided that a compiled program gives the same bits for the same input.
    """
    flat, unflatten = ravel_pytree(at)
    common = math.lcm(*(int(reading.denominator) for reading in readings))
    grid = discrete.on_grid(release, common, t, agent)
    total = np.zeros(flat.shape, object)
    for reading in readings:
        total += whole_sum(grid, reading, at, chunk).astype(object) * (common // int(reading.denominator))
    return unflatten(jnp.asarray(grid.noised(total), flat.dtype))


def whole_sum(grid: discrete.GridRelease, reading: Reading, at: Tree, chunk: int) -> np.ndarray:
    """Return the sum of the batch's gradients in whole numbers of grid steps.

    Each record's gradient is computed by itself, by one program that sees no other record (`lax.map`, one record per
    turn), so it is a function of that record alone.
    """
    slopes = _slopes(reading.function)
    rows = np.asarray(reading.rows[0])[np.asarray(reading.rows[1]) > 0]
    total = np.zeros(ravel_pytree(at)[0].shape, np.int64)
    for start in range(0, len(rows), chunk):
        taken = rows[start : start + chunk]
        padded = jnp.asarray(np.pad(taken, (0, min(chunk, _power(len(rows))) - len(taken))))
        for gradient in np.asarray(slopes(reading.source, reading.closed_over, at, padded))[: len(taken)]:
            total += grid.whole(gradient)
    return total


@lru_cache(maxsize=64)
def _slopes(function: RecordFunction) -> Callable[..., jax.Array]:
    """Compile the gradients of some rows, one record per turn."""

    def slopes(source: Sealed, closed_over: Sequence[Any], at: Tree, rows: jax.Array) -> jax.Array:
        loss = source.lift(lambda at, record: function(closed_over, at, record))
        return jax.lax.map(lambda record: ravel_pytree(jax.grad(loss)(at, record))[0], source.unseal(rows))

    return jax.jit(slopes)


def _power(count: int) -> int:
    """Return the next power of two, so that few sizes are compiled."""
    return 1 << max(count - 1, 0).bit_length()
