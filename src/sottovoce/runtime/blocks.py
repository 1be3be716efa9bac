"""Bound how many agents are worked on side by side, so that their records fit the cache.

Example: with 1 000 agents and batches of 1 MB, four agents at a time are vectorised, and `lax.map` runs over the fours.
"""

from collections.abc import Callable

import jax
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
            outs = jax.vmap(one)(own) if block >= size else jax.lax.map(one, own, batch_size=block)
            return outs, [True] * len(outs)

        return jax.tree.unflatten(jax.tree.structure(out), apply(*closed.consts, *flat))

    return call
