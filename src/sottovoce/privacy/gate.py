"""The gate: the one place where raw records are read.

`clipped_mean` bounds what one record can do; `noised` hides the rest. A release is the two in a row, and everything
done with its result afterwards is post-processing.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sottovoce.clipping import clipped_sum
from sottovoce.privacy.release import Release
from sottovoce.trees import Tree


def clipped_mean(
    fn: Callable[[Tree, Any], jax.Array],
    at: Tree,
    gather: Callable[[jax.Array], Tree],
    rows: jax.Array,
    weights: jax.Array,
    denominator: Any,
    release: Release,
    chunk: int,
) -> Tree:
    """The sum of the batch's clipped gradients over a denominator fixed in advance.

    Guarantee: removing a record moves the result by at most ``release.clip / denominator`` in ``release.norm``, for
    every `at` and every other record. A record that is not finite contributes exactly zero. Memory grows with `chunk`,
    not with the batch.
    """

    def partial(rows: jax.Array, weights: jax.Array) -> Tree:
        return clipped_sum(fn, at, gather(rows), weights, release.clip, norm=release.norm)

    if rows.shape[0] <= chunk:
        total = partial(rows, weights)
    else:
        pieces = -(-rows.shape[0] // chunk)
        room = pieces * chunk - rows.shape[0]
        rows = jnp.pad(rows, (0, room)).reshape(pieces, chunk)
        weights = jnp.pad(weights, (0, room)).reshape(pieces, chunk)

        def accumulate(total: Tree, piece: tuple[jax.Array, jax.Array]) -> tuple[Tree, None]:
            return jax.tree.map(jnp.add, total, partial(*piece)), None

        total, _ = jax.lax.scan(accumulate, jax.tree.map(jnp.zeros_like, at), (rows, weights))
    return jax.tree.map(lambda leaf: leaf / denominator, total)


def noised(mean: Tree, release: Release, key: jax.Array, t: Any, agent: Any) -> Tree:
    """`mean` with the release's noise of step t: independent in each coordinate of each leaf.

    Floating-point noise: the guarantee is that of the ideal mechanism, which reports state.
    """
    scale = release.scale(t, agent)
    if isinstance(scale, float) and scale == 0.0:
        return mean
    draw = jax.random.normal if release.mechanism == "gaussian" else jax.random.laplace
    leaves, structure = jax.tree.flatten(mean)
    noisy = [
        leaf + scale * draw(jax.random.fold_in(key, number), jnp.shape(leaf), jnp.result_type(leaf))
        for number, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, noisy)
