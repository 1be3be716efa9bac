"""Compute with pytrees: trees of arrays that are handled as one vector.

Example: ``descend({"w": w, "b": b}, 0.1, slope)`` takes one gradient step on both leaves.
"""

from typing import Any

import jax
import jax.numpy as jnp

Tree = Any  # any pytree of arrays


def descend(at: Tree, rate: Any, direction: Tree) -> Tree:
    """Take one step against a direction: ``at - rate * direction``.

    >>> descend({"w": 1.0}, 0.5, {"w": 4.0})
    {'w': -1.0}
    """
    return jax.tree.map(lambda a, d: a - rate * d, at, direction)


def add(*values: Tree) -> Tree:
    """Return the sum of trees of one structure.

    >>> add((1.0, 2.0), (3.0, 4.0))
    (4.0, 6.0)
    """
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *values)


def zeros_like(tree: Tree) -> Tree:
    """Return a tree of zeros with the same shapes.

    >>> zeros_like({"w": jnp.ones(2)})
    {'w': Array([0., 0.], dtype=float32)}
    """
    return jax.tree.map(jnp.zeros_like, tree)


def inner(a: Tree, b: Tree) -> jax.Array:
    """Return the inner product of two trees.

    >>> float(inner((1.0, 2.0), (3.0, 4.0)))
    11.0
    """
    return sum(
        (jnp.sum(jnp.asarray(u) * v) for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)),
        start=jnp.zeros(()),
    )


def norm(tree: Tree) -> jax.Array:
    """Return the Euclidean norm of all leaves together.

    >>> float(norm((3.0, jnp.asarray([0.0, 4.0]))))
    5.0
    """
    return jnp.sqrt(inner(tree, tree))
