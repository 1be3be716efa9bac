"""Compute Lemmas 1 to 3 of the paper on DP gradient tracking: how errors feed each other from step to step.

Chen, Wang and Zhang, "Differentially private gradient-tracking-based distributed stochastic optimization over directed
graphs". V_k holds three errors of step k: disagreement |W_1 x|^2, tracking error |W_2 y|^2, and the objective's gap at
the weighted average of the agents. Lemma 2 says E V_{k+1} <= A E V_k + u_k; `lemma_2` is A, `disturbance` is u_k,
`error_curve` iterates them.

>>> from sottovoce.networks import directed
>>> cycle = [(0, 1), (1, 2), (2, 0)]
>>> graph, problem = directed(cycle, cycle), Problem(L=1.0, mu=1.0)
>>> curve = error_curve(graph, problem, Rates(alpha=1e-3, beta=2e-3, gamma=1e-4), start=[0, 0, 1], K=10_000)
>>> bool(curve[-1, 2] < 0.5)      # the gap was 1 at the start
True
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.networks import Network
from sottovoce.papers.gradient_tracking.theory import Rates


@dataclass(frozen=True)
class Spread:
    """Say how a graph forgets disagreement at a given step size (Lemma 1).

    `weights` is the vector v with sum n that the graph keeps, `rate` the r for which disagreement has spectral radius
    1 - step * r, `radius` that of its Laplacian, `norm` the largest factor on it in a step.
    """

    weights: np.ndarray
    rate: float
    radius: float
    norm: float


def laplacians(network: Network) -> tuple[np.ndarray, np.ndarray]:
    """Return the in-Laplacian of pull (rows sum to 0) and the out-Laplacian of push (columns sum to 0).

    >>> from sottovoce.networks import directed
    >>> first, second = laplacians(directed(pull=[(0, 1)], push=[(1, 0)]))
    >>> first.tolist(), second.tolist()
    ([[0.0, 0.0], [-1.0, 1.0]], [[0.0, -1.0], [0.0, 1.0]])
    """
    pull, push = network.pull.toarray(), network.push.toarray()
    return np.diag(pull.sum(axis=1)) - pull, np.diag(push.sum(axis=0)) - push


def spreads(network: Network, alpha: float, beta: float) -> tuple[Spread, Spread]:
    """Return Lemma 1's constants for pull at step `alpha` and push at step `beta`.

    >>> from sottovoce.networks import directed
    >>> pull, push = spreads(directed(pull=[(0, 1), (1, 2)], push=[(1, 0), (2, 1)]), 0.5, 0.5)
    >>> pull.weights.tolist(), push.weights.tolist()    # only the common root counts in the end
    ([3.0, 0.0, 0.0], [3.0, 0.0, 0.0])
    """
    first, second = laplacians(network)
    ones, kept, gathered = np.ones(network.size), _kernel(first.T), _kernel(second)
    return Spread(kept, *_forgets(first, alpha, ones, kept)), Spread(gathered, *_forgets(second, beta, gathered, ones))


def _kernel(matrix: np.ndarray) -> np.ndarray:
    """Return the vector that a Laplacian maps to 0, with sum n."""
    vector = np.linalg.svd(matrix)[2][-1]
    vector = vector / vector.sum() * len(matrix)
    return np.where(np.abs(vector) < 1e-12, 0.0, vector)


def _forgets(laplacian: np.ndarray, step: float, agreed: np.ndarray, measure: np.ndarray) -> tuple[float, float, float]:
    """Return rate, radius and norm: agreement is a multiple of `agreed`, disagreement is what `measure` ignores."""
    n = len(laplacian)
    rest = np.eye(n) - step * laplacian - np.outer(agreed, measure) / n
    apart = np.linalg.svd(measure[None, :])[2][1:].T  # a basis of the disagreements
    norm = float(np.linalg.norm(rest @ apart, 2)) if n > 1 else 0.0
    return (1.0 - spectral_radius(rest)) / step, spectral_radius(laplacian), norm


def lemma_2(network: Network, alpha: float, beta: float, gamma: float, L: float, mu: float) -> np.ndarray:
    """Return the matrix A of Lemma 2: how disagreement, tracking error and objective gap feed each other in a step.

    Constants named rho are spectral radii, as printed (a projection's is 1). Entry (1, 3) carries gamma^2, as the
    paper's derivation does; the lemma itself prints gamma.

    >>> from sottovoce.networks import directed
    >>> cycle = [(0, 1), (1, 2), (2, 0)]
    >>> A = lemma_2(directed(cycle, cycle), alpha=0.1, beta=0.1, gamma=1e-4, L=1.0, mu=1.0)
    >>> bool(spectral_radius(A) < 1)
    True
    """
    pull, push = spreads(network, alpha, beta)
    n = network.size
    a, b = pull.rate * alpha, push.rate * beta
    v1, v2 = float(pull.weights @ pull.weights), float(push.weights @ push.weights)
    consensus, tracking = (1 + a) / a, (1 + b) / b
    return np.array(
        [
            [
                1 - a + 4 * consensus * gamma**2 * v2 * L**2 / n,
                2 * consensus * gamma**2,
                8 * consensus * gamma**2 * v2 * L,
            ],
            [
                tracking * L**2 * (3 * alpha**2 * pull.radius**2 + 6 * v2 * gamma**2 * L**2 / n),
                1 - b + 3 * tracking * gamma**2 * L**2,
                12 * tracking * v2 * gamma**2 * L**3,
            ],
            [
                3 * gamma**2 * L**3 / (2 * n) + gamma * L**2 / n,
                v1 * gamma / n**2 + 3 * v1 * gamma**2 * L / (2 * n**2),
                1 - mu * gamma + 3 * mu * gamma**2 * L,
            ],
        ]
    )


def spectral_radius(matrix: np.ndarray) -> float:
    """Return the largest modulus of an eigenvalue.

    >>> spectral_radius(np.diag([0.5, -0.9]))
    0.9
    """
    return float(np.abs(np.linalg.eigvals(matrix)).max())


@dataclass(frozen=True)
class Problem:
    """State what Lemma 2 knows of a problem, its batches and its noise.

    `L` is the smoothness, `mu` the Polyak-Lojasiewicz constant, `d` the number of coordinates, `noise_x` and `noise_y`
    the Laplace scales of the messages, `variance` the sigma_g^2 of one record's gradient, `batch` the sampling number
    m.
    """

    L: float
    mu: float
    d: int = 1
    noise_x: float = 0.0
    noise_y: float = 0.0
    variance: float = 0.0
    batch: int = 1


def disturbance(
    network: Network, problem: Problem, alpha: float, beta: float, gamma: float, printed: bool = False
) -> np.ndarray:
    """Return the vector u_k of Lemma 2 (line 174): what noise and batches add to the three errors in a step.

    `printed` is the paper's. It has four slips, which are mended otherwise. (15) and (31) give the stacked noise of n
    agents the size 2 d sigma^2 of one agent, and bound L zeta by the spectral radius of L; its size is 2 d sigma^2
    times the sum of the squared entries of L. In (28) the gradients' variance loses its factor, (39) loses d L^2 in
    front of the noise of x, and writes n for |v_2|^2, which is at least n. One thing is left as it is: gradients' noise
    counts as independent of the trackers, which contain it.

    >>> from sottovoce.networks import directed
    >>> cycle = [(0, 1), (1, 2), (2, 0)]
    >>> graph, noisy = directed(cycle, cycle), Problem(L=1.0, mu=1.0, noise_x=1.0)
    >>> [round(float(disturbance(graph, noisy, 0.1, 0.1, 0.1, printed=p)[0]), 4) for p in (True, False)]
    [0.06, 0.12]
    """
    pull, push = spreads(network, alpha, beta)
    first, second = laplacians(network)
    n, a, b, L = network.size, pull.rate * alpha, push.rate * beta, problem.L
    x, y, gradient = problem.noise_x**2, problem.noise_y**2, problem.variance / problem.batch
    v2, tracking = float(push.weights @ push.weights), (1 + b) / b
    descent = (gamma + gamma**2 * L) * gradient / 2
    if printed:
        heard = 2 * pull.radius**2 * alpha**2 * x
        kept = 2 * n * gradient + 3 * n * tracking * gamma**2 * L**2 * gradient
        trackers = kept + 2 * problem.d * push.radius**2 * beta**2 * y + tracking * heard
        return np.array([problem.d * heard + gradient, trackers, descent])
    heard = 2 * problem.d * float(np.sum(first**2)) * alpha**2 * x
    kept = 2 * n * gradient + 3 * v2 * tracking * gamma**2 * L**2 * gradient
    trackers = kept + 2 * problem.d * float(np.sum(second**2)) * beta**2 * y + tracking * L**2 * heard
    return np.array([heard + 2 * (1 + a) / a * gamma**2 * v2 * gradient, trackers, descent])


def error_curve(
    network: Network, problem: Problem, steps: Rates, start: Sequence[float], K: int, printed: bool = False
) -> np.ndarray:
    """Return bound (9) for k = 0 to K: a row per step with disagreement, tracking error and gap, from those at `start`.

    Lemma 2 holds where `spreads` has norm and spectral radius equal (normal matrices), and where v_1'v_2 = n, which
    (45) and (47) use without saying so. A cycle and every weight-balanced graph with a normal matrix are such cases.

    >>> from sottovoce.networks import directed
    >>> cycle = [(0, 1), (1, 2), (2, 0)]
    >>> steps = lemma_3(directed(cycle, cycle), L=1.0, mu=1.0)
    >>> error_curve(directed(cycle, cycle), Problem(L=1.0, mu=1.0), steps, [1.0, 1.0, 1.0], K=2).shape
    (3, 3)
    """
    sizes = float(steps.alpha), float(steps.beta), float(steps.gamma)  # type: ignore[arg-type]
    A, u = lemma_2(network, *sizes, problem.L, problem.mu), disturbance(network, problem, *sizes, printed)
    rows = [np.asarray(start, float)]
    while len(rows) <= K:
        rows.append(A @ rows[-1] + u)
    return np.stack(rows)


def lemma_3(network: Network, L: float, mu: float, most: int = 2**60) -> Rates:
    """Return Lemma 3's step sizes K_1^-0.8, K_1^-0.7 and 1 / K_1, for the smallest K_1 with a spectral radius below 1.

    3 gamma L < 1 and nonnegative I - alpha L_1, I - beta L_2 are asked for too, as Lemmas 1 and 2 do. K_1 is
    1 / gamma. It is found by doubling and bisection. Appendix D prints that the radius is at most
    1 - max(r_1, r_2, mu) / K_1; the smallest of the three is meant.

    >>> from sottovoce.networks import directed
    >>> cycle = [(0, 1), (1, 2), (2, 0)]
    >>> round(1 / lemma_3(directed(cycle, cycle), L=1.0, mu=1.0).gamma)
    563
    """
    largest = [float(laplacian.diagonal().max()) for laplacian in laplacians(network)]

    def sizes(K: int) -> tuple[float, float, float]:
        return K**-0.8, K**-0.7, 1 / K

    def fails(K: int) -> bool:
        alpha, beta, gamma = sizes(K)
        if max(alpha * largest[0], beta * largest[1]) > 1 or not 3 * gamma * L < 1:
            return True
        return not spectral_radius(lemma_2(network, alpha, beta, gamma, L, mu)) < 1

    low, high = 0, 1
    while fails(high):
        if high > most:
            raise ValueError(f"no K_1 up to {most} has a spectral radius below 1: give a larger mu or smaller L")
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fails(middle) else (low, middle)
    return Rates(*sizes(high))
