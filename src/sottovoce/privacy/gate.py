"""Define the gate: the one place where raw records are read.

`clipped_mean` bounds what one record can do; `noised` hides the rest. A release is the two in a row, and everything
done with its result afterwards is post-processing. Example: with clip 1 and a batch divided by 50, removing a record
moves the mean by at most 0.02, whatever the record is.

`sottovoce.privacy.exact_gate` is the same gate in whole numbers, as deployed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr

from sottovoce.clipping.bookkeeping import clipped_sum
from sottovoce.data.sealed import Sealed
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Rows
from sottovoce.schedules import RAISED
from sottovoce.shown import Shown
from sottovoce.together import largest
from sottovoce.trees import Tree

Keys = Callable[[Any], jax.Array]  # from a step to the key of a release at that step


@dataclass(frozen=True, eq=False)
class RecordFunction:
    """Hold a scalar function of one record of a level, with all that it closes over made explicit.

    `jaxpr` takes `consts` closed-over values, then the leaves of the point, then the leaves of one record.
    """

    level: str
    jaxpr: Jaxpr
    consts: int

    def __call__(self, closed_over: Sequence[Any], at: Tree, record: Tree) -> jax.Array:
        """Return the function's value."""
        leaves = (*jax.tree.leaves(at), *jax.tree.leaves(record))
        return jax.core.eval_jaxpr(self.jaxpr, (), *closed_over, *leaves)[0]


@dataclass(frozen=True, repr=False)
class Reading(Shown):
    """Say what a release reads of one record set: a function of one record, a batch's rows, what to divide by.

    `usual` is how many rows nearly every batch needs (`sampling.usual_rows`): others are computed where there are any.
    """

    source: Sealed
    function: RecordFunction
    closed_over: Sequence[Any]
    rows: Rows
    denominator: Any
    usual: int | None = None
    whole: bool = False  # the rows are all of the agent's, in order


def clipped_mean(reading: Reading, at: Tree, release: Release, chunk: int) -> Tree:
    """Return the sum of the batch's clipped gradients over a denominator fixed in advance.

    Guarantee: removing a record moves the result by at most ``release.clip / denominator`` in ``release.norm``, for
    every `at` and every other record. A record that is not finite contributes exactly zero. Memory grows with `chunk`,
    not with the batch.
    """
    loss = reading.source.lift(lambda at, record: reading.function(reading.closed_over, at, record))
    rows, weights = reading.rows

    def partial(rows: jax.Array, weights: jax.Array, whole: bool = False) -> Tree:
        return clipped_sum(loss, at, reading.source.unseal(rows, whole), weights, release.clip, norm=release.norm)

    width = min(chunk, reading.usual or chunk, rows.shape[0])
    total = partial(rows[:width], weights[:width], reading.whole and width == rows.shape[0])
    if width < rows.shape[0]:
        # Rows beyond the usual ones are few and rare, so their pieces are small; a large batch goes on chunk by chunk.
        piece = max(8, width // 64 * 8) if reading.usual == width else width
        count = -(-(rows.shape[0] - width) // piece)
        room = width + count * piece - rows.shape[0]
        rows = jnp.pad(rows[width:], (0, room)).reshape(count, piece)
        weights = jnp.pad(weights[width:], (0, room)).reshape(count, piece)
        filled = jnp.where(jnp.any(weights != 0, axis=1), jnp.arange(1, count + 1), 0)

        def accumulate(number: jax.Array, total: Tree) -> Tree:
            return jax.tree.map(jnp.add, total, partial(rows[number], weights[number]))

        # Pieces without a record would add exactly 0: a Poisson batch hardly ever needs the end of its array. The first
        # piece stands before the loop, so that releases that share a batch also share the look-up of its records.
        total = jax.lax.fori_loop(0, largest(jnp.max(filled)), accumulate, total)
    return jax.tree.map(lambda leaf: leaf / reading.denominator, total)


def added(means: Sequence[Tree]) -> Tree:
    """Return the sum of the levels' means.

    >>> added([{"w": 1.0}, {"w": 2.0}])
    {'w': 3.0}
    """
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *means)


def noised(
    mean: Tree, release: Release, key: jax.Array, t: Any, agent: Any, given: Any = None, keys: Keys | None = None
) -> Tree:
    """Return `mean` with the release's noise of step t: independent in each coordinate of each leaf.

    `given` is the scale at this step and agent where the program has it as an input (`schedules.as_drawn`); `keys` are
    those of the same release at other steps, for a law that reaches earlier draws.

    The scale is computed in float32 and raised by `RAISED`, so that it is not below the one that is charged
    (`sottovoce.schedules.charged`). Floating-point noise: the guarantee is that of the ideal mechanism, which reports
    state.
    """
    scale = release.scale(t, agent) if given is None else given
    if isinstance(scale, float) and scale == 0.0:
        return mean
    scale = jax.lax.optimization_barrier(jnp.asarray(scale, jnp.float32)) * (1 + RAISED)  # as it is charged
    leaves, structure = jax.tree.flatten(mean)
    law = release.law

    def drawn(stream: int, shape: tuple[int, ...]) -> jax.Array:
        if keys is None:
            return law.draw(key, shape, stream)
        return law.now(lambda s: law.draw(keys(s), shape, stream), t)

    noisy = [
        leaf + (scale * drawn(stream, jnp.shape(leaf))).astype(jnp.result_type(leaf))
        for stream, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, noisy)
