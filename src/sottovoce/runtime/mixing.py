"""Compute weighted sums over neighbours, at a cost that grows with the edges.

Small sums are one product with the dense matrix. Then the compiler computes each message once, noise included: in a
look-up of neighbours it would compute it again for each receiver. The other forms add in the order of the senders'
numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from sottovoce.networks import Network
from sottovoce.trees import Tree

_DENSE = 2**18  # up to this many multiplications, a dense product is quicker than looking neighbours up
_UNROLL = 8  # neighbours added one by one in straight code; beyond that, in a loop


@dataclass(frozen=True)
class Neighbours:
    """List whom each agent hears, padded to the largest degree (weight 0), senders in ascending order."""

    senders: np.ndarray
    weights: np.ndarray


def neighbours(network: Network, over: str, others_only: bool = False) -> Neighbours:
    """Return the rows of a network's matrix as padded lists.

    >>> from sottovoce.networks import ring
    >>> neighbours(ring(4, weight=0.25), "mix").senders[0].tolist()
    [0, 1, 3]
    """
    matrix = network.matrix(over).tocsr().sorted_indices()
    if others_only:
        matrix = matrix.copy()
        matrix.setdiag(0.0)
    matrix.eliminate_zeros()
    counts = np.diff(matrix.indptr)
    slot = np.arange(len(matrix.indices)) - np.repeat(matrix.indptr[:-1], counts)
    row = np.repeat(np.arange(network.size), counts)
    senders = np.zeros((network.size, max(int(counts.max(initial=0)), 1)), np.int32)
    weights = np.zeros(senders.shape, np.float32)
    senders[row, slot], weights[row, slot] = matrix.indices, matrix.data
    return Neighbours(senders, weights)


def _padded(lists: Neighbours, heard: jax.Array, hearers: jax.Array) -> jax.Array:
    senders, weights = jnp.asarray(lists.senders)[hearers], jnp.asarray(lists.weights)[hearers]
    expand = (slice(None),) + (None,) * (heard.ndim - 1)

    def add(k: int, total: jax.Array) -> jax.Array:
        return total + weights[:, k][expand] * heard[senders[:, k]]

    total = jnp.zeros((hearers.shape[0], *heard.shape[1:]), heard.dtype)
    degree = senders.shape[1]
    if degree > _UNROLL:
        return jax.lax.fori_loop(0, degree, add, total)
    for k in range(degree):
        total = add(k, total)
    return total


def _small(lists: Neighbours, numbers: int) -> bool:
    """Say whether the messages of all agents, so many numbers, are summed by one product."""
    # without edges, a number that is not finite would spread over zeros
    return len(lists.senders) * numbers <= _DENSE and lists.senders.shape[1] > 1


def _matrix(lists: Neighbours) -> np.ndarray:
    matrix = np.zeros((len(lists.senders), len(lists.senders)), np.float32)
    np.add.at(matrix, (np.arange(len(matrix))[:, None], lists.senders), lists.weights)
    return matrix


def as_matrix(network: Network, over: str, others_only: bool, sizes: Sequence[int]) -> np.ndarray | None:
    """Return the weights as a matrix if `vectorised` sums leaves of these sizes by one product each; else None.

    >>> from sottovoce.networks import isolated, ring
    >>> as_matrix(ring(4), "mix", False, [10]).shape, as_matrix(isolated(4), "mix", False, [10])
    ((4, 4), None)
    """
    lists = neighbours(network, over, others_only)
    return _matrix(lists) if all(_small(lists, network.size * size) for size in sizes) else None


def by_matrix(tree: Tree, agent: jax.Array, matrix: jax.Array) -> Tree:
    """Return weighted sums by a matrix that is an input of the program; otherwise as `vectorised`."""

    @custom_vmap
    def mix(leaf: jax.Array, agent: jax.Array, matrix: jax.Array) -> jax.Array:
        return leaf  # traced, never run: an agent is one row of the vectorised whole

    @mix.def_vmap
    def over_agents(
        size: int, batched: list[bool], leaf: jax.Array, agent: jax.Array, matrix: jax.Array
    ) -> tuple[jax.Array, bool]:
        heard = leaf if batched[0] else jnp.broadcast_to(leaf, (size, *leaf.shape))
        return _dense(matrix, heard, agent), True

    return jax.tree.map(lambda leaf: mix(jnp.asarray(leaf), agent, matrix), tree)


def _dense(matrix: np.ndarray | jax.Array, heard: jax.Array, hearers: jax.Array) -> jax.Array:
    rows = jnp.asarray(matrix)[hearers].astype(heard.dtype)
    return jnp.tensordot(rows, heard, 1, precision=jax.lax.Precision.HIGHEST)


def _by_edge(network: Network, over: str, others_only: bool, heard: jax.Array, hearers: jax.Array) -> jax.Array:
    """Sum edge by edge, for graphs with a few very busy agents (a star), where padded lists would be wasteful."""
    matrix = network.matrix(over).tocoo()
    kept = (matrix.row != matrix.col) | (not others_only)
    hearer, sender, weight = matrix.row[kept], matrix.col[kept], matrix.data[kept]
    order = np.lexsort((sender, hearer))
    weights = jnp.asarray(weight[order], jnp.float32)[(slice(None),) + (None,) * (heard.ndim - 1)]
    sums = jax.ops.segment_sum(
        weights * heard[sender[order]], hearer[order], num_segments=network.size, indices_are_sorted=True
    )
    return sums[hearers]


def vectorised(network: Network, over: str, others_only: bool) -> Callable[..., Tree]:
    """Return `mix(tree, agent)` for code that is `vmap`ped over all agents: the batch axis is the network."""
    lists = neighbours(network, over, others_only)
    wasteful = lists.senders.size > 4 * network.matrix(over).nnz + 64
    apply = partial(_by_edge, network, over, others_only) if wasteful else partial(_padded, lists)

    def summed(leaf: jax.Array, agent: jax.Array) -> jax.Array:
        return _dense(_matrix(lists), leaf, agent) if _small(lists, leaf.size) else apply(leaf, agent)

    def alone(leaf: jax.Array, agent: jax.Array) -> jax.Array:
        return summed(leaf[None], agent[None])[0]  # what is vectorised around it are other runs, which it does not hear

    @custom_vmap
    def mix(leaf: jax.Array, agent: jax.Array) -> jax.Array:
        return leaf  # traced, never run: an agent is one row of the vectorised whole

    @mix.def_vmap
    def over_agents(size: int, batched: list[bool], leaf: jax.Array, agent: jax.Array) -> tuple[jax.Array, bool]:
        # if not batched, everyone sends the same
        return summed(leaf if batched[0] else jnp.broadcast_to(leaf, (size, *leaf.shape)), agent), True

    one = mix if network.size > 1 else alone
    return lambda tree, agent: jax.tree.map(lambda leaf: one(jnp.asarray(leaf), agent), tree)
