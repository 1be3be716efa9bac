import pickle

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce import networks
from sottovoce.networks import weights

BUILDERS = {
    "ring": lambda n: networks.ring(n),
    "ring .3": lambda n: networks.ring(n, weight=0.3),
    "complete": networks.complete,
    "star": networks.star,
    "exponential": networks.exponential,
    "regular": lambda n: networks.regular(n, 2 if n > 2 else n - 1, seed=3),
    "erdos_renyi": lambda n: networks.erdos_renyi(n, 0.8, seed=n),
}


@pytest.mark.parametrize("name", BUILDERS)
@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 40))
def test_every_builder_averages(name, n):
    """Rows and columns sum to one, and averaging shrinks disagreement to the average of the start."""
    network = BUILDERS[name](n)
    dense = network.mix.toarray()
    assert network.size == n
    assert dense.shape == (n, n)
    np.testing.assert_allclose(dense.sum(axis=0), 1, atol=1e-12)
    np.testing.assert_allclose(dense.sum(axis=1), 1, atol=1e-12)
    values = np.linalg.eigvals(dense - np.ones((n, n)) / n)
    assert np.abs(values).max() < 1
    assert (network.degree == (dense - np.diag(np.diag(dense)) != 0).sum(axis=1)).all()


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 20), p=st.floats(0.0, 1.0), seed=st.integers(0, 10**6))
def test_metropolis_is_doubly_stochastic_on_any_graph(n, p, seed):
    graph = nx.gnp_random_graph(n, p, seed=seed)
    matrix = weights.metropolis(graph).toarray()
    np.testing.assert_allclose(matrix, matrix.T)
    np.testing.assert_allclose(matrix.sum(axis=0), 1, atol=1e-12)
    assert matrix.min() >= 0
    assert np.diag(matrix).min() > 0
    assert ((matrix - np.diag(np.diag(matrix)) > 0) == (nx.to_numpy_array(graph) > 0)).all()


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 15), p=st.floats(0.0, 1.0), seed=st.integers(0, 10**6))
def test_row_stochastic_weights_follow_the_direction(n, p, seed):
    graph = nx.gnp_random_graph(n, p, seed=seed, directed=True)
    hears = nx.to_numpy_array(graph, nodelist=range(n)).T
    rows = weights.row_stochastic(graph).toarray()
    np.testing.assert_allclose(rows.sum(axis=1), 1)
    assert (((rows > 0) & ~np.eye(n, dtype=bool)) == (hears > 0)).all()


def test_small_networks():
    assert networks.ring(2, weight=0.3).mix.toarray() == pytest.approx(np.array([[0.7, 0.3], [0.3, 0.7]]))
    for build in BUILDERS.values():
        assert build(1).mix.toarray().tolist() == [[1.0]]
    assert networks.single() == networks.ring(1)
    assert len(networks.ring(2).edges) == 2


def test_regular_and_random_graphs_are_seeded():
    assert networks.regular(12, 3, seed=1) == networks.regular(12, 3, seed=1)
    assert networks.regular(12, 3, seed=1) != networks.regular(12, 3, seed=2)
    assert networks.erdos_renyi(12, 0.4, seed=1) == networks.erdos_renyi(12, 0.4, seed=1)
    assert networks.erdos_renyi(12, 0.4, seed=1) != networks.erdos_renyi(12, 0.4, seed=2)
    assert set(networks.regular(200, 2, seed=5).degree.tolist()) == {2}


def test_erdos_renyi_names_the_threshold():
    with pytest.raises(ValueError, match=r"p = 0\.001 .* ln n / n = 0\.0922"):
        networks.erdos_renyi(40, 0.001)


def test_an_unstable_weight_is_refused_with_a_remedy():
    # The ring's lowest eigenvalue is 1 - 4 w for an even number of agents: w = 1/2 is the border.
    networks.ring(10, weight=0.49)
    with pytest.raises(ValueError, match=r"unstable.* eigenvalue is -1\.4.*less than 0\.8333.*weight=None"):
        networks.ring(10, weight=0.6)
    with pytest.raises(ValueError, match="unstable"):
        networks.ring(10, weight=0.5)
    with pytest.raises(ValueError, match="unstable"):
        networks.from_matrix(np.array([[0.0, 1.0], [1.0, 0.0]]))
    with pytest.raises(ValueError, match="positive"):
        networks.ring(10, weight=-0.1)


def test_disconnected_is_refused_with_the_groups():
    matrix = sp.block_diag([networks.ring(4).mix, networks.ring(3).mix])
    with pytest.raises(ValueError, match="disconnected: 2 separate groups of 4, 3 agents"):
        networks.from_matrix(matrix)


def test_from_matrix_conventions():
    ring = networks.ring(6, weight=0.3)
    assert networks.from_matrix(ring.mix.toarray()) == ring
    given_w = ring.mix.toarray() - np.eye(6)
    assert networks.from_matrix(given_w, "zero-row-sum").mix.toarray() == pytest.approx(ring.mix.toarray())
    with pytest.raises(ValueError, match="row of the averaging matrix is off"):
        networks.from_matrix(ring.mix.toarray() * 0.9)
    with pytest.raises(ValueError, match=r'own weight is negative.*"zero-row-sum"'):
        networks.from_matrix(given_w)
    with pytest.raises(ValueError, match="column of the averaging matrix"):
        networks.from_matrix(np.array([[0.5, 0.5, 0], [0.5, 0.25, 0.25], [0.5, 0, 0.5]]))
    with pytest.raises(ValueError, match="negative"):
        networks.from_matrix(np.array([[1.5, -0.5], [-0.5, 1.5]]))
    with pytest.raises(ValueError, match="finite"):
        networks.from_matrix(np.array([[np.nan, 1.0], [1.0, 0.0]]))
    with pytest.raises(ValueError, match="square"):
        networks.from_matrix(np.ones((2, 3)))
    with pytest.raises(ValueError, match="convention"):
        networks.from_matrix(np.eye(1), "rows")  # type: ignore[arg-type]


def test_directed_takes_matrices_graphs_and_edges():
    matrix = np.array([[0.0, 0.0, 2.0], [1.0, 0.0, 0.0], [0.0, 0.5, 0.0]])
    edges = [(2, 0, 2.0), (0, 1), (1, 2, 0.5)]
    graph = nx.DiGraph()
    graph.add_nodes_from(range(3))
    graph.add_weighted_edges_from([(2, 0, 2.0), (0, 1, 1.0), (1, 2, 0.5)])
    expected = networks.directed(matrix, matrix)
    assert networks.directed(sp.coo_array(matrix), edges) == expected
    assert networks.directed(graph, graph) == expected
    assert networks.directed(matrix + np.diag([0.3, 0.0, 0.1]), matrix) == expected
    assert networks.directed(edges, [*edges, (0, 2)]).push.toarray()[2, 0] == 1.0
    assert expected.pull.toarray().tolist() == matrix.tolist()
    assert expected.edges.tolist() == [[2, 0], [0, 1], [1, 2]]


def test_directed_needs_a_common_root():
    # 0 tells 1 tells 2: agent 0 is the only root of pull; push must lead back to it.
    down, up = [(0, 1), (1, 2)], [(2, 1), (1, 0)]
    assert networks.directed(down, up).check()[2].holds
    with pytest.raises(ValueError, match="common root: no common roots"):
        networks.directed(down, down)
    with pytest.raises(ValueError, match="spanning tree of pull: no roots"):
        networks.directed([(0, 2), (1, 2)], up)
    with pytest.raises(ValueError, match="2 separate groups of 2, 2 agents"):
        networks.directed([(0, 1), (2, 3)], [(1, 0), (3, 2)])
    with pytest.raises(ValueError, match="negative"):
        networks.directed([(0, 1, -1.0)], [(1, 0)])
    with pytest.raises(ValueError, match="pull has 2 agents, push has 3"):
        networks.directed(np.ones((2, 2)), np.ones((3, 3)))
    with pytest.raises(ValueError, match="only 2 agents"):
        weights.adjacency([(0, 5)], size=2)
    with pytest.raises(ValueError, match="numpy array"):
        networks.directed([[0.0, 1.0], [1.0, 0.0]], up)
    with pytest.raises(ValueError, match="numbered 0 to 1"):
        networks.directed(nx.DiGraph([("a", "b")]), up)


def test_a_network_says_which_matrix_it_lacks():
    with pytest.raises(ValueError, match=r"has no `mix`.*undirected builder, for example networks.ring"):
        _ = networks.directed([(0, 1)], [(1, 0)]).mix
    with pytest.raises(ValueError, match="no matrix of a network 'pul'; did you mean 'pull'"):
        networks.ring(4).matrix("pul")


@pytest.mark.parametrize("network", [networks.ring(5, weight=0.2), networks.exponential(6), networks.single()])
def test_an_averaging_network_serves_pull_and_push_without_its_diagonal(network):
    expected = network.mix.toarray() - np.diag(network.mix.diagonal())
    for over in ("pull", "push"):
        assert network.matrix(over).toarray() == pytest.approx(expected)
    assert set(network.matrices) == {"mix"}


def test_a_network_is_a_value():
    network = networks.ring(5, weight=0.2)
    assert pickle.loads(pickle.dumps(network)) == network
    assert len({network, networks.ring(5, weight=0.2), networks.ring(5)}) == 2
    assert network.graph.edges[0, 1]["mix"] == pytest.approx(0.2)
    assert nx.is_strongly_connected(network.graph)
    assert "ring of 5" in repr(network)


@pytest.mark.parametrize("n", [0, -1, 2.5, "3"])
def test_bad_sizes_are_refused(n):
    for build in (networks.ring, networks.complete, networks.star, networks.exponential):
        with pytest.raises(ValueError, match="number of agents"):
            build(n)


def test_impossible_regular_graphs_are_refused():
    for n, degree in [(5, 3), (4, 4), (4, -1)]:
        with pytest.raises(ValueError, match="no graph of"):
            networks.regular(n, degree)
    with pytest.raises(ValueError, match="rarely connects"):
        networks.regular(6, 1)
