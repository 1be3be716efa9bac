import matplotlib
import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce import networks
from sottovoce.networks import checks, weights

matplotlib.use("Agg")


def find(network, name):
    return next(f for f in network.check() if f.name.startswith(name))


def test_the_ring_of_ten():
    """Golden: w = .3 has eigenvalues 1 - .6 (1 - cos(2 pi k / 10)), lowest -.2; -W reaches 1.2."""
    spectrum = checks.disagreement(networks.ring(10, weight=0.3).mix)
    assert spectrum.low == pytest.approx(-0.2, abs=1e-12)
    assert spectrum.high == pytest.approx(0.4 + 0.6 * np.cos(np.pi / 5), abs=1e-12)
    findings = networks.ring(10, weight=0.3).check()
    assert [f.name for f in findings if not f.holds] == ["stricter reading: eigenvalues of -W below 1"]
    assert "largest is 1.2;" in findings[-1].detail
    assert find(networks.ring(10, weight=0.2), "stricter").holds


@pytest.mark.parametrize(
    "network", [networks.ring(7), networks.star(6), networks.exponential(12), networks.complete(5)]
)
def test_spectrum_equals_a_dense_solve(network):
    dense = network.mix.toarray()
    # Deflation turns the simple 1 into 0; complete graphs have zeros anyway.
    radius = np.abs(np.linalg.eigvals(dense - 1.0 / network.size)).max()
    assert checks.disagreement(network.mix).radius == pytest.approx(radius, abs=1e-7)


LARGE = [nx.random_regular_graph(4, 600, seed=1), nx.path_graph(600), nx.star_graph(500)]


@pytest.mark.slow
@pytest.mark.parametrize("graph", LARGE)
def test_large_networks_equal_a_dense_solve(graph):
    mix = weights.metropolis(graph)
    values = np.linalg.eigvalsh(mix.toarray())
    spectrum = checks.disagreement(mix)
    assert spectrum.low == pytest.approx(values[0], abs=1e-5)
    assert 1 - spectrum.high == pytest.approx(1 - values[-2], rel=1e-3)


def test_large_one_way_networks_equal_a_dense_solve():
    # A permuted exponential graph is neither symmetric nor circulant.
    order = np.random.default_rng(0).permutation(450)
    mix = sp.csr_array(networks.exponential(450).mix.toarray()[np.ix_(order, order)])
    expected = checks.disagreement(networks.exponential(450).mix)
    assert checks.disagreement(mix).radius == pytest.approx(expected.radius, rel=1e-6)


def test_ten_thousand_agents():
    findings = networks.ring(10_000).check()
    gap = (2 / 3) * (1 - np.cos(2 * np.pi / 10_000))
    assert float(findings[5].detail.split(":")[0]) == pytest.approx(gap, rel=1e-4)


def test_findings_can_fail():
    loose = sp.csr_array(np.array([[0.5, 0.25, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]))
    failed = {f.name for f in checks.averaging(loose) if not f.holds}
    assert {"symmetric", "row sums", "column sums", "connected"} <= failed
    split = sp.csr_array(np.eye(4))
    assert not checks.averaging(split)[4].holds


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 8), p=st.floats(0, 0.6), seed=st.integers(0, 10**6))
def test_roots_are_who_reaches_everyone(n, p, seed):
    """Oracle: networkx descendants."""
    graph = nx.gnp_random_graph(n, p, seed=seed, directed=True)
    expected = [v for v in range(n) if len(nx.descendants(graph, v)) == n - 1]
    assert checks.roots(weights.adjacency(graph)).tolist() == expected


def test_directed_findings_name_roots_and_balance():
    network = networks.directed([(0, 1), (1, 0), (1, 2)], [(2, 1), (1, 0), (0, 1)])
    tree, back, common, balanced = network.check()
    assert (tree.detail, back.detail, common.detail) == ("roots: 0, 1", "roots: 0, 1", "common roots: 0, 1")
    assert not balanced.holds
    cycle = [(0, 1), (1, 2), (2, 0)]
    assert all(f.holds for f in networks.directed(cycle, cycle).check())


def test_drawings():
    import matplotlib.pyplot as plt

    for network in (networks.single(), networks.ring(12), networks.directed([(0, 1), (1, 0)], [(0, 1), (1, 0)])):
        assert networks.draw(network).get_title() == network.name
    arrows = networks.draw(networks.directed([(0, 1), (1, 2)], [(2, 1), (1, 0), (2, 0)]))
    assert sum(getattr(text, "arrow_patch", None) is not None for text in arrows.texts) == 5
    _, ax = plt.subplots()
    assert networks.draw(networks.ring(1000), ax=ax) is ax
    assert any("200 of 1000 agents" in text.get_text() for text in ax.texts)
    plt.close("all")
