"""Weighted sums over neighbours are products with the network's matrix, in every form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.runtime import mixing
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import lay_out
from sottovoce.runtime.threads import ThreadPlace

NETWORKS = {
    "ring": sv.networks.ring(6),
    "star": sv.networks.star(40),  # one busy agent: added edge by edge
    "complete": sv.networks.complete(12),  # more neighbours than are added in straight code
}


def dense(network, others_only):
    matrix = network.matrices["mix"].toarray()
    return matrix - np.diag(np.diag(matrix)) if others_only else matrix


def mixed(network, value, others_only=False):
    mix = mixing.vectorised(network, "mix", others_only)
    return jax.vmap(mix)(value, jnp.arange(network.size))


@pytest.mark.parametrize("others_only", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_mixing_is_a_product_with_the_matrix(name, others_only):
    network, rng = NETWORKS[name], np.random.default_rng(0)
    value = {"a": rng.normal(size=(network.size, 3)).astype(np.float32), "b": rng.normal(size=network.size)}
    found, matrix = mixed(network, jax.tree.map(jnp.asarray, value), others_only), dense(network, others_only)
    for leaf, was in zip(jax.tree.leaves(found), jax.tree.leaves(value), strict=True):
        np.testing.assert_allclose(leaf, matrix @ was, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_lists_hold_each_neighbour_once_and_pad_with_weight_zero(name):
    network = NETWORKS[name]
    lists = mixing.neighbours(network, "mix")
    for senders, weights in zip(lists.senders, lists.weights):
        heard = senders[weights != 0]
        assert len(set(heard.tolist())) == len(heard)
        assert heard.tolist() == sorted(heard.tolist())  # every place adds in the same order
        assert weights.sum() == pytest.approx(1.0)
    own = mixing.neighbours(network, "mix", others_only=True)
    for agent, (senders, weights) in enumerate(zip(own.senders, own.weights)):
        assert agent not in senders[weights != 0]


def test_the_star_is_added_edge_by_edge():
    """It is the one of these networks where padded lists would be mostly padding."""
    assert mixing.neighbours(NETWORKS["star"], "mix").senders.size > 40 * 30


def test_what_everybody_says_alike_is_mixed_too():
    network = NETWORKS["ring"]
    mix = mixing.vectorised(network, "mix", True)
    same = jax.vmap(lambda agent: mix(jnp.ones(2), agent))(jnp.arange(6))
    np.testing.assert_allclose(same, np.repeat(dense(network, True).sum(1)[:, None], 2, axis=1), atol=1e-6)


def test_a_method_hears_what_the_matrix_says():
    """A step without a gradient is x' = W x, in the array and between threads."""
    problem = sv.Minimize(lambda x, r: 0.0 * x @ r, jnp.zeros(1))
    method = sv.methods.DpSgd(0.1, sv.Release.open(), sv.Full())
    parts, network = [np.ones((1, 1), np.float32)] * 6, NETWORKS["ring"]
    trace = account_of(method, parts, 1, network, problem=problem).trace
    place = ThreadPlace.simulated(trace, problem, lay_out(parts), root_key(0), 8)
    state = place.begin()
    start = np.arange(6.0, dtype=np.float32)[:, None]
    after, _ = place.advance([jnp.asarray(start), *state[1:]], 0, 1)
    np.testing.assert_allclose(after[0], dense(network, False) @ start, atol=1e-6)
