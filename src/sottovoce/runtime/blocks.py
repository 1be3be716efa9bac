"""Bound how many agents are worked on side by side, so that their records fit the cache.

Example: with 1 000 agents and batches of 1 MB, four agents at a time are vectorised, and a loop runs over the fours.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from sottovoce.trees import Tree

CACHE = 4 * 2**20  # bytes of records that are worked on side by side


def in_blocks(function: Callable[..., Tree], block: int) -> Callable[..., Tree]:
    """Return a function of which at most `block` run side by side when it is vectorised.

    >>> jax.vmap(in_blocks(lambda x: x * 2, block=2))(jax.numpy.arange(5)).tolist()
    [0, 2, 4, 6, 8]
    """

    def call(*arguments: Tree) -> Tree:
        flat, structure = jax.tree.flatten(arguments)
        # What the function closes over may be vectorised too: make it an argument.
        closed, out = jax.make_jaxpr(lambda *flat: function(*jax.tree.unflatten(structure, flat)), return_shape=True)(
            *flat
        )
        consts = len(closed.consts)

        @custom_vmap
        def apply(*values: jax.Array) -> list[jax.Array]:
            return jax.core.eval_jaxpr(closed.jaxpr, values[:consts], *values[consts:])

        @apply.def_vmap
        def over_agents(size: int, batched: list[bool], *values: jax.Array) -> tuple[list[jax.Array], list[bool]]:
            whole = [value for value, many in zip(values, batched) if not many]

            def one(own: list[jax.Array]) -> list[jax.Array]:
                mine, shared = iter(own), iter(whole)
                merged = [next(mine) if many else next(shared) for many in batched]
                return jax.core.eval_jaxpr(closed.jaxpr, merged[:consts], *merged[consts:])

            own = [value for value, many in zip(values, batched) if many]
            outs = jax.vmap(one)(own) if block >= size else _by_blocks(jax.vmap(one), own, size, block)
            return outs, [True] * len(outs)

        return jax.tree.unflatten(jax.tree.structure(out), apply(*closed.consts, *flat))

    return call


def _by_blocks(
    function: Callable[..., list[jax.Array]], given: list[jax.Array], size: int, block: int
) -> list[jax.Array]:
    """Return the stacked results of a vectorised function, block after block.

    The last block reaches back to be as long as the others, so that there is one program and no array is cut in two.
    """
    shapes = jax.eval_shape(function, [value[:block] for value in given])
    outs = [jnp.zeros((size, *shape.shape[1:]), shape.dtype) for shape in shapes]

    def turn(number: jax.Array, outs: list[jax.Array]) -> list[jax.Array]:
        start = jnp.minimum(number * block, size - block)
        found = function([jax.lax.dynamic_slice_in_dim(value, start, block) for value in given])
        return [jax.lax.dynamic_update_slice_in_dim(out, new, start, 0) for out, new in zip(outs, found)]

    return jax.lax.fori_loop(0, -(-size // block), turn, outs)
