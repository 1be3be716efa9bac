"""Decide one thing for all agents that are vectorised together, so that a rare case costs nothing when it is absent.

Example: a Poisson batch of 64 nearly always fits 80 places, but it needs up to 146. A `lax.cond` whose answer differs
between vectorised agents computes both sides for all of them. One answer for all of them is a real branch.
"""

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap


@custom_vmap
def largest(number: jax.Array) -> jax.Array:
    """Return the largest of the numbers of all agents that are vectorised together; of one agent, its number.

    Its use must not change any agent's result, only how it is computed.

    >>> jax.vmap(largest)(jnp.asarray([3, 5, 4])).tolist()
    [5, 5, 5]
    """
    return number


@largest.def_vmap
def _over_agents(size: int, batched: list[bool], numbers: jax.Array) -> tuple[jax.Array, bool]:
    return largest(jnp.max(numbers, axis=0) if batched[0] else numbers), False
