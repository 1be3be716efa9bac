"""Define the `Network` value, which says who talks to whom, and its builders.

>>> ring(5).degree.tolist()
[2, 2, 2, 2, 2]
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import lazy_loader
import numpy as np
import scipy.sparse as sp

from sottovoce.closed import Closed
from sottovoce.naming import unknown
from sottovoce.networks import checks, weights
from sottovoce.networks.checks import Condition
from sottovoce.networks.weights import Csr

nx: Any = lazy_loader.load("networkx")  # slow to load, and many runs need no graph
_ATTEMPTS = 100  # random graphs that are drawn before we stop looking for a connected one


@dataclass(frozen=True, eq=False)
class Network(Closed):
    """Connect the agents 0 to size - 1, and say how much weight each gives to what it hears from the others.

    `matrices` holds either `mix` (averaging: row i has agent i's weights, its own on the diagonal) or `pull` and `push`
    (directed: raw nonnegative weights, zero diagonal). Entry [i, j] is the weight of what i hears from j. Methods ask
    `matrix(over)`, which derives `pull` and `push` from `mix` where needed.

    Guarantee, checked here: the rows and columns of `mix` sum to one, the agents are connected, and repeated averaging
    converges; `pull` and the reversed `push` have spanning trees with a common root. The exception is `isolated`, where
    nobody hears anybody. Networks are equal when their matrices are.

    >>> network = ring(10, weight=0.3)
    >>> network.size, network.degree.tolist()[:3], len(network.edges)
    (10, [2, 2, 2], 20)
    >>> network == ring(10, weight=0.3), network == ring(10)
    (True, False)
    """

    name: str
    size: int
    matrices: Mapping[str, Csr]
    alone: bool = False  # nobody hears anybody, on purpose: set by `isolated` only

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"a network's name is {self.name!r}: give a text, which reports show")
        object.__setattr__(self, "matrices", dict(self.matrices))
        if set(self.matrices) not in ({"mix"}, {"pull", "push"}):
            raise ValueError(f"a network has a matrix `mix`, or `pull` and `push`; got {sorted(self.matrices)}")
        for key, matrix in self.matrices.items():
            if matrix.shape != (self.size, self.size):
                raise ValueError(f"`{key}` has shape {matrix.shape}, but the network has {self.size} agents")
        if self.alone:
            if len(self.edges):
                raise ValueError(f"{self.name}: {len(self.edges)} links in a network that is declared to have none")
        elif "mix" in self.matrices:
            _require_averaging(self.name, self.mix)
        else:
            _require_rooted(self.name, self.pull, self.push)

    def matrix(self, over: str) -> Csr:
        """Return the weights that a method asks for: `mix`, `pull` or `push`.

        An undirected network also serves methods that want `pull` and `push`: both are its averaging matrix without
        the diagonal. A directed network has no `mix`.

        >>> ring(4, weight=0.3).matrix("pull").toarray()[0].round(1).tolist()
        [0.0, 0.3, 0.0, 0.3]
        """
        if over in self.matrices:
            return self.matrices[over]
        if over in ("pull", "push"):
            return self._between
        if over != "mix":
            raise ValueError(unknown("matrix of a network", over, ("mix", "pull", "push")))
        raise ValueError(
            f"the network {self.name!r} has no `mix`: it is directed and has `pull` and `push`; for averaging use an "
            "undirected builder, for example networks.ring"
        )

    @cached_property
    def _between(self) -> Csr:
        return weights.without_diagonal(self.matrices["mix"])

    @property
    def mix(self) -> Csr:
        """Return the averaging matrix, own weights on the diagonal."""
        return self.matrix("mix")

    @property
    def pull(self) -> Csr:
        """Return the weights of the states that an agent hears, without its own."""
        return self.matrix("pull")

    @property
    def push(self) -> Csr:
        """Return the weights of the gradient trackers that an agent hears, without its own."""
        return self.matrix("push")

    @property
    def degree(self) -> np.ndarray:
        """Return the number of others that each agent hears."""
        return np.bincount(self.edges[:, 1], minlength=self.size)

    @property
    def edges(self) -> np.ndarray:
        """Return all pairs (sender, hearer), one per row, sorted by hearer."""
        hears = weights.without_diagonal(sum(abs(matrix) for matrix in self.matrices.values())).tocoo()
        return np.stack([hears.col, hears.row], axis=1)

    @property
    def graph(self) -> Any:
        """Return the network as a networkx graph: edges lead from sender to hearer and carry the weights by name."""
        graph = nx.DiGraph(name=self.name)
        graph.add_nodes_from(range(self.size))
        graph.add_edges_from(self.edges.tolist())
        for key, matrix in self.matrices.items():
            entries = weights.without_diagonal(matrix).tocoo()
            for i, j, weight in zip(entries.row.tolist(), entries.col.tolist(), entries.data.tolist()):
                graph.edges[j, i][key] = weight
        return graph

    def check(self) -> list[Condition]:
        """Check which conditions this network meets, in words.

        >>> [f.name for f in ring(10, weight=0.3).check() if not f.holds]
        ['stricter reading: eigenvalues of -W below 1']
        """
        if "mix" in self.matrices:
            return checks.averaging(self.mix)
        return checks.rooted(self.pull, self.push)

    def _content(self) -> bytes:
        digest = hashlib.sha256(str(self.size).encode())
        for key in sorted(self.matrices):
            entries = self.matrices[key].tocoo()
            digest.update(key.encode())
            digest.update(np.asarray(entries.row, np.int64).tobytes())
            digest.update(np.asarray(entries.col, np.int64).tobytes())
            digest.update(np.asarray(entries.data, np.float64).tobytes())
        return digest.digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Network) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash(self._content())

    def __repr__(self) -> str:
        return f"Network({self.name!r}, size={self.size}, {len(self.edges)} edges, {' and '.join(self.matrices)})"


def ring(n: int, weight: float | None = None) -> Network:
    """Build a ring: each agent hears the one before and the one after it.

    `weight=None` takes Metropolis weights; a number is the weight of every edge, the remainder stays with the agent.

    >>> ring(4, weight=0.3).mix.toarray()[0].round(1).tolist()
    [0.4, 0.3, 0.0, 0.3]
    """
    n = _count(n)
    return _undirected(f"ring of {n}", nx.cycle_graph(n) if n > 2 else nx.path_graph(n), weight)


def complete(n: int) -> Network:
    """Build a complete graph: everyone hears everyone, with the weight 1/n.

    >>> complete(3).mix.toarray()[0].round(2).tolist()
    [0.33, 0.33, 0.33]
    """
    return Network(f"complete graph of {n}", n, {"mix": sp.csr_array(np.full((_count(n), n), 1.0 / n))})


def star(n: int) -> Network:
    """Build a star: agent 0 is in the middle, all others hear only it; Metropolis weights.

    >>> star(4).degree.tolist()
    [3, 1, 1, 1]
    """
    return _undirected(f"star of {n}", nx.star_graph(_count(n) - 1), None)


def exponential(n: int) -> Network:
    """Build an exponential graph: agent i tells i + 1, i + 2, i + 4, ... (modulo n). Few edges, fast averaging.

    Directed, yet rows and columns sum to one, so it averages: every weight is 1 / (1 + number of heard).

    >>> sorted(exponential(8).edges[exponential(8).edges[:, 0] == 0][:, 1].tolist())
    [1, 2, 4]
    """
    hops = 2 ** np.arange((_count(n) - 1).bit_length())
    sender, hop = np.repeat(np.arange(n), hops.size), np.tile(hops, n)
    links = sp.csr_array((np.ones(sender.size), ((sender + hop) % n, sender)), shape=(n, n))
    return Network(f"exponential graph of {n}", n, {"mix": weights.row_stochastic(links)})


def single() -> Network:
    """Build the network of one curator, who hears only itself.

    >>> single().mix.toarray().tolist()
    [[1.0]]
    """
    return Network("one curator", 1, {"mix": sp.csr_array(np.ones((1, 1)))})


def isolated(n: int) -> Network:
    """Build no network at all: n agents that each work alone, run side by side in one program.

    It is for the comparison "each party alone": nothing is averaged, and no message is sent.

    >>> isolated(2).mix.toarray().tolist(), isolated(2).pull.toarray().tolist()
    ([[1.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]])
    """
    only_themselves = sp.csr_array(sp.eye_array(_count(n), format="csr"))
    return Network(f"{n} agents alone", n, {"mix": only_themselves}, alone=True)


def regular(n: int, degree: int, seed: int = 0, weight: float | None = None) -> Network:
    """Draw a random connected graph in which every agent has `degree` neighbours.

    >>> set(regular(10, 3).degree.tolist())
    {3}
    """
    if not 0 <= degree < _count(n) or n * degree % 2:
        raise ValueError(
            f"no graph of {n} agents gives each {degree} neighbours: the degree must be below the number of agents, "
            "and their product even"
        )
    if degree == 2 and n > 2:
        # A connected graph of degree 2 is one cycle: draw its order, because a free draw is rarely connected.
        order = np.random.default_rng(seed).permutation(n)
        cycle = nx.relabel_nodes(nx.cycle_graph(n), dict(enumerate(order.tolist())))
        return _undirected(f"2-regular graph of {n}", cycle, weight)
    remedy = f"a degree of {degree} rarely connects {n} agents: use a higher degree, or a ring"
    graph = _connected_draw(lambda rng: nx.random_regular_graph(degree, n, seed=rng), seed, remedy)
    return _undirected(f"{degree}-regular graph of {n}", graph, weight)


def erdos_renyi(n: int, p: float, seed: int = 0, weight: float | None = None) -> Network:
    """Draw a graph in which each pair of agents is linked with probability p; drawn again until it is connected.

    >>> erdos_renyi(10, 0.5, seed=1).check()[3].detail
    'all 10 agents reach each other'
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p must be a probability between 0 and 1, got {p}")
    threshold = math.log(_count(n)) / n
    remedy = f"p = {p:g} against the connectivity threshold ln n / n = {threshold:.3g} for n = {n}: use a larger p"
    graph = _connected_draw(lambda rng: nx.fast_gnp_random_graph(n, p, seed=rng), seed, remedy)
    return _undirected(f"Erdos-Renyi graph of {n}, p = {p:g}", graph, weight)


def directed(pull: Any, push: Any) -> Network:
    """Build a directed network: `pull` weighs the states heard, `push` the gradient trackers heard; they may differ.

    Each is a numpy or scipy matrix, a networkx graph, or a list of edges `(sender, hearer[, weight])`. They need no
    common edges and no stochastic rows or columns, only spanning trees of `pull` and of the reversed `push` with a
    common root. Own weights cancel in x_i + sum_j w_ij (x_j - x_i) and are dropped.

    >>> network = directed(pull=[(0, 1), (1, 2), (2, 0)], push=[(0, 1), (1, 2), (2, 0), (1, 0)])
    >>> network.check()[2].detail
    'common roots: 0, 1, 2'
    """
    size = max(weights.adjacency(pull).shape[0], weights.adjacency(push).shape[0])
    first, second = weights.adjacency(pull, size), weights.adjacency(push, size)
    if first.shape != second.shape:
        raise ValueError(f"pull has {first.shape[0]} agents, push has {second.shape[0]}: give both the same agents")
    matrices = {"pull": weights.without_diagonal(first), "push": weights.without_diagonal(second)}
    return Network(f"directed graph of {first.shape[0]}", first.shape[0], matrices)


def from_matrix(matrix: Any, convention: Literal["doubly", "zero-row-sum"] = "doubly") -> Network:
    """Build an averaging network from a given weight matrix.

    `doubly`: nonnegative, rows and columns sum to one. `zero-row-sum`: the W of papers that average with I + W; its
    rows and columns sum to zero.

    >>> from_matrix(np.array([[-0.3, 0.3], [0.3, -0.3]]), "zero-row-sum").mix.toarray().tolist()
    [[0.7, 0.3], [0.3, 0.7]]
    """
    if convention not in ("doubly", "zero-row-sum"):
        raise ValueError(f'convention must be "doubly" or "zero-row-sum", got {convention!r}')
    given = weights.adjacency(matrix if sp.issparse(matrix) else np.asarray(matrix))
    size = given.shape[0]
    if convention == "zero-row-sum":
        given = sp.csr_array(given + sp.eye_array(size, format="csr"))
    elif given.diagonal().min() < 0:
        raise ValueError('an own weight is negative: a doubly stochastic matrix has none; is it "zero-row-sum"?')
    return Network(f"given matrix of {size}", size, {"mix": given})


def _undirected(name: str, graph: Any, weight: float | None) -> Network:
    size = graph.number_of_nodes()
    if weight is None:
        return Network(name, size, {"mix": weights.metropolis(graph)})
    mix = weights.zero_row_sum(graph, weight) + sp.eye_array(size, format="csr")
    return Network(f"{name}, weight {weight:g}", size, {"mix": sp.csr_array(mix)})


def _count(n: int) -> int:
    if not isinstance(n, int | np.integer) or n < 1:
        raise ValueError(f"the number of agents must be a whole number from 1 on, got {n!r}")
    return int(n)


def _connected_draw(draw: Callable[[np.random.Generator], Any], seed: int, remedy: str) -> Any:
    for attempt in range(_ATTEMPTS):
        graph = draw(np.random.default_rng((seed, attempt)))
        if nx.is_connected(graph):
            return graph
    raise ValueError(f"no connected graph in {_ATTEMPTS} draws: {remedy}")


def _require_averaging(name: str, mix: Csr) -> None:
    for axis, what in ((1, "row"), (0, "column")):
        off = checks.sums_off_one(mix, axis)
        if off > checks.TOLERANCE:
            raise ValueError(
                f"{name}: a {what} of the averaging matrix is off its sum by {off:.3g}: make rows and columns sum to "
                "one (zero for convention zero-row-sum), or use networks.directed for weights that do not average"
            )
    _require_connected(name, mix)
    # Connected, nonnegative and one own weight positive: the matrix is primitive, so only agreement has modulus 1.
    if (mix.data >= 0).all() and mix.diagonal().max() > 0:
        return
    spectrum = checks.disagreement(mix)
    if spectrum.radius >= 1.0 - 1e-9:
        largest = 2.0 / (1.0 - spectrum.low)  # the factor on W that would put the lowest eigenvalue at -1
        raise ValueError(
            f"{name}: averaging is unstable, an eigenvalue is {spectrum.low:.4g}, outside (-1, 1): multiply the "
            f"weights between agents by less than {largest:.4g}, or take Metropolis weights (weight=None)"
        )


def _require_rooted(name: str, pull: Csr, push: Csr) -> None:
    for key, matrix in (("pull", pull), ("push", push)):
        if matrix.diagonal().any() or (matrix.nnz and matrix.data.min() < 0):
            raise ValueError(f"{name}: `{key}` must have a zero diagonal and no negative weight")
    _require_connected(name, pull + push)
    failed = [f for f in checks.rooted(pull, push)[:3] if not f.holds]
    if failed:
        raise ValueError(
            f"{name}: {'; '.join(f'{f.name}: {f.detail}' for f in failed)}. Some agent must reach all others along "
            "pull and be reached by all others along push: add edges until one does"
        )


def _require_connected(name: str, matrix: Csr) -> None:
    if len(checks.component_sizes(matrix)) > 1:
        raise ValueError(
            f"{name} is disconnected: {checks.describe_components(matrix)}. Add edges between the groups, or run each "
            "group as a network of its own"
        )
