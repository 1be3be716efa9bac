"""Project x and y onto the sets that they are confined to.

Any function from a tree to a tree of the same shapes can serve as a projection.

>>> box(-1.0, 1.0)(jnp.asarray([-3.0, 0.5])).tolist()
[-1.0, 0.5]
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp

from sottovoce.trees import Tree, norm

Projection = Callable[[Tree], Tree]


def box(low: float, high: float) -> Projection:
    """Keep every coordinate between `low` and `high`.

    >>> box(0.0, 1.0)(jnp.asarray([-1.0, 0.5, 3.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    if not low < high:
        raise ValueError(f"box({low}, {high}) is empty: low must lie below high")
    return Box(low, high)


@final
@dataclass(frozen=True)
class Box:
    """Cut every coordinate by itself: no difference of two trees grows, in any norm of coordinates.

    >>> Box(0.0, 1.0)(jnp.asarray([2.0])).tolist()
    [1.0]
    """

    low: float
    high: float

    def __call__(self, tree: Tree) -> Tree:
        """Return the tree with every coordinate cut."""
        return jax.tree.map(lambda leaf: jnp.clip(leaf, self.low, self.high), tree)


def ball(radius: float, centre: Any = None) -> Projection:
    """Keep all leaves together within `radius` of `centre` (the origin if not given).

    >>> ball(5.0)(jnp.asarray([6.0, 8.0])).tolist()
    [3.0, 4.0]
    """
    if not radius > 0:
        raise ValueError(f"ball of radius {radius}: the radius must be positive")

    def project(tree: Any) -> Any:
        middle = jax.tree.map(jnp.zeros_like, tree) if centre is None else centre
        away = jax.tree.map(jnp.subtract, tree, middle)
        shrink = jnp.minimum(1.0, radius / jnp.maximum(norm(away), jnp.finfo(jnp.float32).tiny))
        return jax.tree.map(lambda c, a: c + shrink * a, middle, away)

    return project


def simplex(total: float = 1.0) -> Projection:
    """Keep each leaf, as a vector, non-negative with sum `total` (Euclidean projection by sorting).

    >>> simplex()(jnp.asarray([0.5, 0.5, 2.0])).tolist()
    [0.0, 0.0, 1.0]
    """
    if not total > 0:
        raise ValueError(f"simplex of total {total}: the total must be positive")

    def project(leaf: jax.Array) -> jax.Array:
        flat = leaf.reshape(-1)
        descending = jnp.sort(flat)[::-1]
        excess = (jnp.cumsum(descending) - total) / jnp.arange(1, flat.size + 1)
        kept = jnp.sum(descending > excess)
        return jnp.maximum(flat - excess[kept - 1], 0.0).reshape(leaf.shape)

    return lambda tree: jax.tree.map(project, tree)
