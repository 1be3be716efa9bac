"""Check the conditions that a weight matrix must meet, and report each one in words.

>>> print(averaging(sp.csr_array(np.array([[0.6, 0.4], [0.4, 0.6]])))[1])
ok   row sums: furthest from 1 by 0

All checks work on sparse matrices and scale to tens of thousands of agents: eigenvalues come from a Fourier transform
when every agent sees the same pattern (ring, complete, exponential), from a dense solve when the network is small, and
from Lanczos iterations otherwise.
"""

from dataclasses import dataclass
from typing import Any

import lazy_loader
import numpy as np
import scipy.sparse as sp

from sottovoce.networks.weights import Csr

spla: Any = lazy_loader.load("scipy.sparse.linalg", suppress_warning=True)  # only large networks need it

TOLERANCE = 1e-8
_LANCZOS_ERROR = 1e-6
_DENSE = 400  # up to this many agents a dense eigenvalue solve takes milliseconds


@dataclass(frozen=True)
class Condition:
    """State one checked condition: its name, whether it holds, and the figures behind it."""

    name: str
    holds: bool
    detail: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.holds else 'FAIL'} {self.name}: {self.detail}"


@dataclass(frozen=True)
class Spectrum:
    """Summarise the eigenvalues of a mixing matrix, without the eigenvalue 1 that belongs to agreement.

    `low` and `high` are the smallest and largest real parts, `radius` the largest modulus: the factor by which
    disagreement shrinks per step. For a single agent all are 0, because there is no disagreement.
    """

    low: float
    high: float
    radius: float


def averaging(mix: Csr) -> list[Condition]:
    """Check an averaging matrix (I + W in the notation of papers with zero row sums).

    >>> ring = sp.csr_array(np.array([[0.4, 0.3, 0.3], [0.3, 0.4, 0.3], [0.3, 0.3, 0.4]]))
    >>> all(f.holds for f in averaging(ring))
    True
    """
    asymmetry = _largest(mix - mix.T)
    rows, columns = sums_off_one(mix, axis=1), sums_off_one(mix, axis=0)
    components = component_sizes(mix)
    spectrum = disagreement(mix)
    strict = 1.0 - spectrum.low
    return [
        Condition("symmetric", asymmetry <= TOLERANCE, f"largest |w_ij - w_ji| is {asymmetry:.2g}"),
        Condition("row sums", rows <= TOLERANCE, f"furthest from 1 by {rows:.2g}"),
        Condition("column sums", columns <= TOLERANCE, f"furthest from 1 by {columns:.2g}"),
        Condition("connected", len(components) == 1, _describe_components(components)),
        Condition(
            "eigenvalues of I + W",
            spectrum.radius < 1.0,
            f"apart from the simple 1 between {spectrum.low:.8g} and {spectrum.high:.8g}, must be inside (-1, 1)",
        ),
        Condition(
            "spectral gap",
            spectrum.radius < 1.0,
            f"{1.0 - spectrum.radius:.8g}: disagreement shrinks by {spectrum.radius:.8g} per step",
        ),
        Condition(
            "stricter reading: eigenvalues of -W below 1",
            strict < 1.0,
            f"largest is {strict:.8g}; averaging converges without this condition",
        ),
    ]


def rooted(pull: Csr, push: Csr) -> list[Condition]:
    """Check a directed pair: spanning trees of pull and of the reversed push, with a common root.

    This is Assumption 1 of gradient tracking over directed graphs: R and C^T each contain a spanning tree, and some
    agent is a root of both.

    >>> pull = sp.csr_array(np.array([[0.0, 0.0], [1.0, 0.0]]))
    >>> [f.holds for f in rooted(pull, pull.T)]
    [True, True, True, False]
    """
    sources, sinks = roots(pull), roots(push.T)
    common = np.intersect1d(sources, sinks)
    imbalance = _largest(push.sum(axis=0) - push.sum(axis=1))
    return [
        Condition("spanning tree of pull", sources.size > 0, _describe_agents("roots", sources)),
        Condition("spanning tree of push transposed", sinks.size > 0, _describe_agents("roots", sinks)),
        Condition("common root", common.size > 0, _describe_agents("common roots", common)),
        Condition(
            "push is balanced",
            imbalance <= TOLERANCE,
            f"what an agent sends and receives differs by up to {imbalance:.4g}; "
            "methods that normalise push by rows are biased unless it is balanced",
        ),
    ]


def disagreement(mix: Csr) -> Spectrum:
    """Return the eigenvalues of `mix` except the simple 1 of the constant vector; rows and columns must sum to one.

    >>> disagreement(sp.csr_array(np.array([[0.75, 0.25], [0.25, 0.75]])))
    Spectrum(low=0.5, high=0.5, radius=0.5)
    """
    size = mix.shape[0]
    if size == 1:
        return Spectrum(0.0, 0.0, 0.0)
    symmetric = _largest(mix - mix.T) <= TOLERANCE
    if _is_circulant(mix):
        values = np.fft.fft(mix[[0], :].toarray()[0])[1:]
    elif size <= _DENSE:
        dense = mix.toarray()
        values = np.linalg.eigvalsh(dense) if symmetric else np.linalg.eigvals(dense)
        values = np.delete(values, np.argmin(np.abs(values - 1.0)))
    else:
        values = _extreme_symmetric(mix) if symmetric else _extreme_general(mix)
    return Spectrum(float(values.real.min()), float(values.real.max()), float(np.abs(values).max()))


def component_sizes(matrix: Csr) -> list[int]:
    """Return the sizes of the connected groups of agents, directions ignored, largest first.

    >>> component_sizes(sp.csr_array(np.array([[1, 1, 0], [1, 1, 0], [0, 0, 1]])))
    [2, 1]
    """
    if matrix.shape[0] == 1:
        return [1]  # without SciPy's graphs, which take 0.2 s to load
    _, label = sp.csgraph.connected_components(matrix, directed=False)
    return sorted(np.bincount(label).tolist(), reverse=True)


def roots(matrix: Csr) -> np.ndarray:
    """Return the agents whose messages reach everyone, directly or through others; may be empty.

    Entry [i, j] says that i hears j.

    >>> roots(sp.csr_array(np.array([[0, 1, 0], [1, 0, 0], [1, 0, 0]]))).tolist()
    [0, 1]
    """
    count, label = sp.csgraph.connected_components(matrix, directed=True, connection="strong")
    entries = matrix.tocoo()
    crossing = label[entries.row] != label[entries.col]
    # A group that hears no other group is a source; one source alone reaches everyone.
    sources = np.setdiff1d(np.arange(count), label[entries.row[crossing]])
    return np.flatnonzero(label == sources[0]) if sources.size == 1 else np.empty(0, dtype=int)


def sums_off_one(matrix: Csr, axis: int) -> float:
    """Return the largest distance from one of the sums along `axis`.

    >>> sums_off_one(sp.csr_array(np.array([[0.5, 0.25], [0.5, 0.5]])), axis=1)
    0.25
    """
    return _largest(matrix.sum(axis=axis) - 1.0)


def describe_components(matrix: Csr) -> str:
    """Describe the groups of a disconnected network in words.

    >>> describe_components(sp.csr_array(np.eye(2)))
    '2 separate groups of 1, 1 agents'
    """
    return _describe_components(component_sizes(matrix))


def _extreme_symmetric(mix: Csr) -> np.ndarray:
    size = mix.shape[0]
    start = np.random.default_rng(0).normal(size=size)  # fixed, so that the same network gives the same figures
    # Moving the agreement direction from 1 to -1 leaves the second largest eigenvalue on top.
    deflated = spla.LinearOperator((size, size), matvec=lambda v: mix @ v - 2.0 * v.mean(), dtype=np.float64)
    settings = {"k": 1, "v0": start, "tol": _LANCZOS_ERROR, "ncv": 40, "maxiter": 100, "return_eigenvectors": False}
    try:
        low = spla.eigsh(mix, which="SA", **settings)
        high = spla.eigsh(deflated, which="LA", **settings)
    except spla.ArpackNoConvergence:
        return _next_to_both_ends(mix, start)
    # A gap near the error of the iteration means a long thin network, whose factorisation is cheap and exact.
    return np.concatenate([low, high]) if 1.0 - high[0] > 1e3 * _LANCZOS_ERROR else _next_to_both_ends(mix, start)


def _next_to_both_ends(mix: Csr, start: np.ndarray) -> np.ndarray:
    """Find eigenvalues by shift and invert, below the smallest (Gershgorin's bound) and just above the largest, 1."""
    reach = np.abs(mix).sum(axis=1) - np.abs(mix.diagonal())
    below = float((mix.diagonal() - reach).min()) - 1e-6
    columns = sp.csc_array(mix)
    low = spla.eigsh(columns, k=1, sigma=below, v0=start, return_eigenvectors=False)
    high = spla.eigsh(columns, k=2, sigma=1.0 + 1e-6, v0=start, return_eigenvectors=False)
    return np.array([low[0], high.min()])


def _extreme_general(mix: Csr) -> np.ndarray:
    size = mix.shape[0]
    start = np.random.default_rng(0).normal(size=size)
    removed = spla.LinearOperator((size, size), matvec=lambda v: mix @ v - v.mean(), dtype=np.float64)
    ends = [spla.eigs(removed, k=1, which=end, v0=start, return_eigenvectors=False) for end in ("LM", "SR", "LR")]
    return np.concatenate(ends)


def _is_circulant(matrix: Csr) -> bool:
    """Tell whether each row is the one above moved by one; then the first row's Fourier transform is the spectrum."""
    size = matrix.shape[0]
    each = np.diff(matrix.indptr)
    if each[0] == 0 or (each != each[0]).any():
        return False
    shifts = (matrix.indices.reshape(size, -1) - np.arange(size)[:, None]) % size
    order = np.argsort(shifts, axis=1)
    shifts = np.take_along_axis(shifts, order, axis=1)
    data = np.take_along_axis(matrix.data.reshape(size, -1), order, axis=1)
    return bool((shifts == shifts[0]).all() and np.allclose(data, data[0], rtol=0, atol=1e-14))


def _largest(matrix: Any) -> float:
    values = matrix.data if sp.issparse(matrix) else np.asarray(matrix)
    return float(np.abs(values).max(initial=0.0))


def _describe_components(sizes: list[int]) -> str:
    if len(sizes) == 1:
        return f"all {sizes[0]} agents reach each other"
    shown = ", ".join(map(str, sizes[:8])) + (", ..." if len(sizes) > 8 else "")
    return f"{len(sizes)} separate groups of {shown} agents"


def _describe_agents(what: str, agents: np.ndarray) -> str:
    if agents.size == 0:
        return f"no {what}"
    shown = ", ".join(map(str, agents[:8].tolist())) + (", ..." if agents.size > 8 else "")
    return f"{what}: {shown}"
