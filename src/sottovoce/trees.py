"""Arithmetic on pytrees that remembers what is private.

A sound design only ever computes with public values, so for it these functions are plain tree arithmetic. A printed
design keeps un-noised state: it arrives wrapped in `Private`, and whatever is computed from it stays wrapped until an
agent tells it to its neighbours with noise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

Tree = Any  # any pytree of arrays


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Private:
    """A value computed from raw records without noise: it may not leave the agent as it is."""

    value: Tree


def reveal(value: Tree) -> Tree:
    """What is inside, private or not: for use within an agent's own arithmetic.

    >>> reveal(Private(3.0)), reveal(4.0)
    (3.0, 4.0)
    """
    return value.value if isinstance(value, Private) else value


def combine(fn: Callable[..., Any], *values: Tree) -> Tree:
    """`fn` leaf by leaf over trees of one structure; private as soon as one of them is.

    >>> combine(lambda a, b: a - 2 * b, {"w": 5.0}, {"w": 1.0})
    {'w': 3.0}
    >>> combine(lambda a, b: a + b, Private(1.0), 2.0)
    Private(value=3.0)
    """
    result = jax.tree.map(fn, *(reveal(v) for v in values))
    return Private(result) if any(isinstance(v, Private) for v in values) else result


def descend(at: Tree, rate: Any, direction: Tree) -> Tree:
    """One step against a direction: ``at - rate * direction``.

    >>> descend({"w": 1.0}, 0.5, {"w": 4.0})
    {'w': -1.0}
    """
    return combine(lambda a, d: a - rate * d, at, direction)


def add(*values: Tree) -> Tree:
    """The sum of trees of one structure.

    >>> add((1.0, 2.0), (3.0, 4.0))
    (4.0, 6.0)
    """
    return combine(lambda *leaves: sum(leaves[1:], leaves[0]), *values)


def zeros_like(tree: Tree) -> Tree:
    """A tree of zeros with the same shapes.

    >>> zeros_like({"w": jnp.ones(2)})
    {'w': Array([0., 0.], dtype=float32)}
    """
    return jax.tree.map(jnp.zeros_like, tree)


def inner(a: Tree, b: Tree) -> jax.Array:
    """The inner product of two trees.

    >>> float(inner((1.0, 2.0), (3.0, 4.0)))
    11.0
    """
    return sum(
        (jnp.sum(jnp.asarray(u) * v) for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)),
        start=jnp.zeros(()),
    )


def norm(tree: Tree) -> jax.Array:
    """The Euclidean norm of all leaves together.

    >>> float(norm((3.0, jnp.asarray([0.0, 4.0]))))
    5.0
    """
    return jnp.sqrt(inner(tree, tree))
