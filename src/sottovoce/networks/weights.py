"""Compute the weight matrices of a graph: how much weight each agent gives to what it hears.

Entry [i, j] is always the weight that agent i gives to what it hears from agent j. An edge (j, i) of a directed graph
says that j sends to i, so it becomes entry [i, j].
"""

from collections.abc import Iterable
from typing import Any

import lazy_loader
import numpy as np
import scipy.sparse as sp

nx: Any = lazy_loader.load("networkx")  # slow to load, and many runs need no graph

Csr = Any  # scipy.sparse.csr_array: scipy ships no types


def adjacency(graph: Any, size: int | None = None) -> Csr:
    """Return the raw weights of a graph as a sparse matrix: entry [i, j] is for what i hears from j.

    `graph` is a numpy or scipy matrix, a networkx graph (attribute `weight`, 1 when absent), or a list of edges
    `(sender, hearer)` or `(sender, hearer, weight)`. Plain lists are edges, never matrices. Weights must be finite, and
    those between agents not negative. `size` is the number of agents where the edges alone do not determine it.

    >>> adjacency([(0, 1), (1, 2, 0.5)]).toarray().tolist()
    [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.5, 0.0]]
    """
    if sp.issparse(graph) or isinstance(graph, np.ndarray):
        matrix = sp.csr_array(graph, dtype=np.float64)
    elif not isinstance(graph, list | tuple) and isinstance(graph, nx.Graph):
        agents = range(graph.number_of_nodes())
        if set(graph.nodes) != set(agents):
            raise ValueError(
                f"agents must be numbered 0 to {len(agents) - 1}, the graph has nodes such as "
                f"{next(v for v in graph.nodes if v not in agents)!r}: use networkx.convert_node_labels_to_integers"
            )
        # networkx stores an edge (j, i) at [j, i]; what i hears stands in row i.
        matrix = sp.csr_array(nx.to_scipy_sparse_array(graph, nodelist=agents, dtype=np.float64).T)
    else:
        matrix = _from_edges(graph, size)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise ValueError(f"a weight matrix must be square and not empty, this one has shape {matrix.shape}")
    if not np.isfinite(matrix.data).all():
        raise ValueError("a weight is not finite: replace NaN and infinity by numbers, or drop the edge")
    between = without_diagonal(matrix)
    if between.nnz and between.data.min() < 0:
        raise ValueError(f"weights between agents must not be negative, the smallest is {between.data.min():g}")
    return _tidy(matrix)


def metropolis(graph: Any) -> Csr:
    """Return Metropolis weights of an undirected graph: 1 / (1 + larger degree) per edge, the rest on the diagonal.

    Guarantee: symmetric, nonnegative, rows and columns sum to one, every own weight positive; so on a connected graph
    repeated averaging converges to the average.

    >>> metropolis([(0, 1), (1, 0), (1, 2), (2, 1)]).toarray().round(2).tolist()
    [[0.67, 0.33, 0.0], [0.33, 0.33, 0.33], [0.0, 0.33, 0.67]]
    """
    links = _undirected(graph).tocoo()
    degree = np.bincount(links.row, minlength=links.shape[0])
    weights = 1.0 / (1.0 + np.maximum(degree[links.row], degree[links.col]))
    return _with_own_weight(sp.csr_array((weights, (links.row, links.col)), shape=links.shape))


def zero_row_sum(graph: Any, weight: float) -> Csr:
    """Return the W of papers that average with I + W: `weight` on every edge, minus the row's sum on the diagonal.

    >>> zero_row_sum([(0, 1), (1, 0)], 0.3).toarray().tolist()
    [[-0.3, 0.3], [0.3, -0.3]]
    """
    if not (np.isfinite(weight) and weight > 0):
        raise ValueError(f"weight must be a positive number, got {weight}; use weight=None for Metropolis weights")
    links = _undirected(graph) * float(weight)
    return _tidy(links - sp.diags_array(links.sum(axis=1), format="csr"))


def row_stochastic(graph: Any) -> Csr:
    """Let each agent weigh itself and everyone it hears equally: rows sum to one.

    >>> row_stochastic([(0, 1), (0, 2), (1, 2)]).toarray().round(2).tolist()
    [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.33, 0.33, 0.33]]
    """
    links = _links(graph)
    links = links + sp.eye_array(links.shape[0], format="csr")
    return _tidy(sp.diags_array(1.0 / links.sum(axis=1)) @ links)


def without_diagonal(matrix: Csr) -> Csr:
    """Return the weights between different agents.

    >>> without_diagonal(sp.csr_array(np.array([[0.5, 0.5], [0.2, 0.8]]))).toarray().tolist()
    [[0.0, 0.5], [0.2, 0.0]]
    """
    return _tidy(matrix - sp.diags_array(matrix.diagonal(), format="csr"))


def _links(graph: Any) -> Csr:
    """Return ones where i hears j and i is not j."""
    matrix = without_diagonal(adjacency(graph))
    return sp.csr_array((np.ones_like(matrix.data), matrix.indices, matrix.indptr), shape=matrix.shape)


def _undirected(graph: Any) -> Csr:
    links = _links(graph)
    if (links != links.T).nnz:
        raise ValueError("the graph must be undirected: add the missing return edges, or use networks.directed")
    return links


def _with_own_weight(links: Csr) -> Csr:
    return _tidy(links + sp.diags_array(1.0 - links.sum(axis=1), format="csr"))


def _from_edges(edges: Iterable[Any], size: int | None) -> Csr:
    rows, columns, weights = [], [], []
    for edge in edges:
        if len(edge) not in (2, 3) or not all(isinstance(v, int | np.integer) and v >= 0 for v in edge[:2]):
            raise ValueError(
                f"an edge is (sender, hearer) or (sender, hearer, weight) with agents numbered from 0, got {edge!r}; "
                "pass a matrix as a numpy array"
            )
        columns.append(edge[0])
        rows.append(edge[1])
        weights.append(edge[2] if len(edge) == 3 else 1.0)
    needed = max(rows + columns, default=0) + 1
    if size is not None and size < needed:
        raise ValueError(f"an edge names agent {needed - 1}, but there are only {size} agents, numbered from 0")
    size = size or needed
    return sp.csr_array((np.asarray(weights, np.float64), (rows, columns)), shape=(size, size))


def _tidy(matrix: Csr) -> Csr:
    matrix = sp.csr_array(matrix)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    matrix.sort_indices()
    return matrix
