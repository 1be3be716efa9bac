"""What the paper on DP gradient tracking plans, assumes and proves, as functions that say what holds for given numbers.

Chen, Wang and Zhang, "Differentially private gradient-tracking-based distributed stochastic optimization over directed
graphs". `Rates`, `S1` and `S2` are step-size plans. `convergence` is Theorems 1 and 2 (with Assumptions 1, 5 and 6),
`privacy` is Theorems 3 and 4, `lemma_2` is the matrix whose spectral radius decides about scheme S2. These are the
paper's own theory, for its printed algorithm in the compact form, taken at its word; `privacy` therefore says when the
*published* budget stays finite, not that it is sound. `printed_epsilon` is the published bound for a given
configuration, `proved_epsilon` the one that is proved.

>>> S2(K=2000).batch       # the sampling number of the paper's experiment
55
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sottovoce.networks import Condition, Network
from sottovoce.networks.checks import rooted
from sottovoce.privacy import published, sound
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import FixedSize, Full, Poisson, Sampling
from sottovoce.schedules import Constant, Decay, Schedule, schedule

# Step sizes, batch and noise: the paper's schemes, or plain numbers.


@dataclass(frozen=True)
class Rates:
    """Plain step sizes: `alpha` toward the heard states, `beta` toward the heard trackers, `gamma` downhill.

    >>> Rates(0.1, 0.1, 0.05).gamma
    0.05
    """

    alpha: float | Schedule
    beta: float | Schedule
    gamma: float | Schedule


@dataclass(frozen=True)
class S1:
    """Scheme S1: step sizes fall and the batch grows polynomially with the last iteration K (iterations are 0 to K).

    alpha = a1 / K^p_alpha, beta = a2 / K^p_beta, gamma = a3 / K^p_gamma, m = floor(a4 K^p_m) + 1. The defaults are the
    paper's experiment.

    >>> scheme = S1(K=2000)
    >>> round(scheme.alpha, 3), round(scheme.beta, 3), round(scheme.gamma, 3), scheme.batch
    (0.04, 0.005, 0.05, 57)
    """

    K: int
    a1: float = 80.0
    a2: float = 0.75
    a3: float = 100.0
    a4: float = 3e-5
    p_alpha: float = 1.0
    p_beta: float = 0.66
    p_gamma: float = 1.0
    p_m: float = 1.9

    def __post_init__(self) -> None:
        _require_positive(self, "K", "a1", "a2", "a3", "a4", "p_alpha", "p_beta", "p_gamma")

    @property
    def alpha(self) -> float:
        """The step toward the heard states."""
        return self.a1 / self.K**self.p_alpha

    @property
    def beta(self) -> float:
        """The step toward the heard trackers."""
        return self.a2 / self.K**self.p_beta

    @property
    def gamma(self) -> float:
        """The step downhill."""
        return self.a3 / self.K**self.p_gamma

    @property
    def batch(self) -> int:
        """The sampling number m."""
        return math.floor(self.a4 * self.K**self.p_m) + 1

    def noise(self, p: float) -> Schedule:
        """Return the scheme's noise (k+1)^p on message k."""
        return Decay(1.0, -p)


@dataclass(frozen=True)
class S2:
    """Scheme S2: constant step sizes, and a batch m = floor(p_m^K) + 1 that grows exponentially with K.

    The defaults are the paper's experiment.

    >>> S2(K=2000).batch, round(S2(K=2000).noise(0.9996)(0), 3)
    (55, 0.449)
    """

    K: int
    alpha: float = 0.1
    beta: float = 0.01
    gamma: float = 0.1
    p_m: float = 1.002

    def __post_init__(self) -> None:
        _require_positive(self, "K", "alpha", "beta", "gamma", "p_m")

    @property
    def batch(self) -> int:
        """The sampling number m."""
        return math.floor(self.p_m**self.K) + 1

    def noise(self, p: float) -> Schedule:
        """Return the scheme's noise p^K on every message."""
        return Constant(float(p) ** self.K)


PaperScheme = S1 | S2


def step_sizes(plan: Rates | PaperScheme) -> tuple[Schedule, Schedule, Schedule]:
    """Return alpha, beta and gamma as schedules.

    >>> step_sizes(S2(K=100))[0]
    Constant(value=0.1)
    """
    return schedule(plan.alpha), schedule(plan.beta), schedule(plan.gamma)


def check_steps(plan: Rates | PaperScheme, steps: int) -> None:
    """Refuse a run that is longer than the scheme is made for; plain rates are for any number of steps.

    >>> check_steps(S2(K=100), steps=101)
    """
    if not isinstance(plan, Rates) and steps > plan.K + 1:
        raise ValueError(
            f"the scheme is made for iterations 0 to {plan.K}, the run has {steps} steps: "
            f"set K={steps - 1}, or run at most {plan.K + 1} steps"
        )


def _require_positive(scheme: Any, *names: str) -> None:
    for name in names:
        if not getattr(scheme, name) > 0:
            raise ValueError(f"{name} of scheme {type(scheme).__name__} is {getattr(scheme, name)}: it must be > 0")


# Convergence, and when the published budget stays finite.


@dataclass(frozen=True)
class Verdict:
    """Whether a theorem applies, and what it then promises.

    `rate` is the exponent e of an error O(K^-e) for S1, the base r of O(r^K) for S2; None for statements without one.
    `complexity` is the exponent c of the O(phi^-c) sampled gradients per agent for error phi (S2: times ln 1/phi),
    counted as steps times batch. An S1 rate that is not positive promises nothing.
    """

    findings: tuple[Condition, ...]
    rate: float | None = None
    complexity: float | None = None

    @property
    def holds(self) -> bool:
        """Whether all conditions do."""
        return all(finding.holds for finding in self.findings)

    @property
    def failing(self) -> tuple[str, ...]:
        """The names of the conditions that fail."""
        return tuple(finding.name for finding in self.findings if not finding.holds)


@dataclass(frozen=True)
class Spread:
    """How a graph forgets disagreement at a given step size (Lemma 1).

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


def convergence(scheme: PaperScheme, network: Network, *, L: float, mu: float, p_zeta: float, p_eta: float) -> Verdict:
    """Check Theorem 1 (S1) or 2 (S2): which conditions hold, the promised rate, the sampled gradients it takes.

    L is the smoothness of the agents' objectives, mu the Polyak-Lojasiewicz constant of their average; messages of x
    carry noise (k+1)^p_zeta (S1) or p_zeta^K (S2), those of y likewise with p_eta. Two findings are not in the paper.
    Its proof takes a spectral radius for a Euclidean norm, which needs a normal matrix. And in (57) it has the start
    forgotten like exp(-K^(1 - p)) with p the largest of the three exponents: at p = 1, the paper's own choice, the
    steps add up to a constant, and so does what is left of the start.

    >>> from sottovoce.networks import directed
    >>> cycle = [(0, 1), (1, 2), (2, 0)]
    >>> verdict = convergence(S1(K=2000), directed(cycle, cycle), L=1.0, mu=1.0, p_zeta=0.1, p_eta=0.1)
    >>> round(verdict.rate, 2), verdict.failing
    (0.12, ('max(p_alpha, p_beta, p_gamma) < 1, tacit in (57)',))
    """
    alpha, beta, gamma = scheme.alpha, scheme.beta, scheme.gamma
    findings = [*rooted(network.pull, network.push)[:3], *_lemma_1(network, alpha, beta)]
    findings.append(_below("3 gamma L < 1", 3 * gamma * L, 1.0))
    if isinstance(scheme, S1):
        conditions = {
            "2 p_alpha - 2 p_zeta - p_beta > 0": 2 * scheme.p_alpha - 2 * p_zeta - scheme.p_beta,
            "p_beta - p_eta > 0": scheme.p_beta - p_eta,
            "2 p_gamma - p_alpha > 0": 2 * scheme.p_gamma - scheme.p_alpha,
            "2 p_gamma - p_beta > 0": 2 * scheme.p_gamma - scheme.p_beta,
        }
        theta = min(
            scheme.p_m,
            2 * scheme.p_alpha - 2 * p_zeta - scheme.p_beta,
            2 * scheme.p_beta - 2 * p_eta,
            2 * scheme.p_gamma - scheme.p_beta,
        )
        rate = theta - max(scheme.p_alpha, scheme.p_beta, scheme.p_gamma)
        conditions["theta > max(p_alpha, p_beta, p_gamma)"] = rate
        conditions["max(p_alpha, p_beta, p_gamma) < 1, tacit in (57)"] = 1 - (theta - rate)
        findings += [_above(name, value, 0.0) for name, value in conditions.items()]
        return Verdict(tuple(findings), rate, (1 + scheme.p_m) / rate if rate > 0 else math.inf)
    radius = spectral_radius(lemma_2(network, alpha, beta, gamma, L, mu))
    findings += [
        *(Condition(f"0 < {name} < 1", 0 < p < 1, f"is {p:g}") for name, p in (("p_zeta", p_zeta), ("p_eta", p_eta))),
        _above("p_m > 1", scheme.p_m, 1.0),
        _below("spectral radius of Lemma 2's matrix < 1", radius, 1.0),
    ]
    base = max(radius, 1 / scheme.p_m, p_zeta**2, p_eta**2)
    return Verdict(tuple(findings), base, math.log(scheme.p_m) / -math.log(base) if base < 1 else math.inf)


def privacy(
    scheme: PaperScheme, network: Network, *, p_zeta: float, p_eta: float, records: int | None = None
) -> Verdict:
    """Check Theorem 3 (S1) or 4 (S2): when the *published* budget stays finite as K grows, for every agent.

    The theorems ask 0 < a_1 sum_j R_ij < 1 with S1's constant a_1 itself (not alpha), and a positive row sum of the
    agent concerned: a root that hears nobody is not covered. `records` is the number of records of the
    smallest agent: a batch that grows with K fits only up to some K.

    >>> from sottovoce.networks import directed
    >>> cycle = [(0, 1), (1, 2), (2, 0)]
    >>> privacy(S1(K=2000), directed(cycle, cycle), p_zeta=0.1, p_eta=0.1, records=12_000).failing
    ('0 < a_1 sum_j R_ij < 1 for every agent',)
    """
    rows, columns = (np.asarray(matrix.sum(axis=1)).reshape(-1) for matrix in (network.pull, network.push))
    names = ("a_1", "a_2") if isinstance(scheme, S1) else ("alpha", "beta")
    steps = (scheme.a1, scheme.a2) if isinstance(scheme, S1) else (scheme.alpha, scheme.beta)
    findings = [
        *rooted(network.pull, network.push)[:3],
        _inside(f"0 < {names[0]} sum_j R_ij < 1 for every agent", steps[0] * rows),
        _inside(f"0 < {names[1]} sum_j C_ij < 1 for every agent", steps[1] * columns),
    ]
    if isinstance(scheme, S1):
        drift = min(0.0, scheme.p_gamma - scheme.p_alpha - scheme.p_beta)
        conditions = {
            "p_m - p_beta - max(0, 1 - p_eta) > 0": scheme.p_m - scheme.p_beta - max(0.0, 1 - p_eta),
            "p_m + min(0, p_gamma - p_alpha - p_beta) - max(0, 1 - p_zeta) > 0": (
                scheme.p_m + drift - max(0.0, 1 - p_zeta)
            ),
        }
        findings += [_above(name, value, 0.0) for name, value in conditions.items()]
    else:
        findings.append(_below("1 / p_m < min(p_zeta, p_eta)", 1 / scheme.p_m, min(p_zeta, p_eta)))
    if records is not None:
        detail = f"m is {scheme.batch} of {records} at K = {scheme.K}; it fits up to K = {_last(scheme, records)}"
        findings.append(Condition("m different records exist", scheme.batch <= records, detail))
    return Verdict(tuple(findings))


def _last(scheme: PaperScheme, records: int) -> int:
    """Return the largest K at which the batch still fits."""
    if isinstance(scheme, S1):
        return math.ceil((records / scheme.a4) ** (1 / scheme.p_m)) - 1 if scheme.p_m > 0 else scheme.K
    return math.ceil(math.log(records) / math.log(scheme.p_m)) - 1 if scheme.p_m > 1 else scheme.K


def _lemma_1(network: Network, alpha: float, beta: float) -> list[Condition]:
    findings = []
    for name, step, laplacian in zip(("alpha L1", "beta L2"), (alpha, beta), laplacians(network)):
        largest = float(step * laplacian.diagonal().max())
        findings.append(
            Condition(f"I - {name} is nonnegative", largest <= 1, f"largest row or column sum {largest:.4g}")
        )
    for what, step, spread in zip(("pull", "push"), (alpha, beta), spreads(network, alpha, beta)):
        findings.append(
            Condition(
                f"{what}: disagreement shrinks in the Euclidean norm as its spectral radius says",
                spread.norm <= 1 - step * spread.rate + 1e-9,
                f"norm {spread.norm:.6g}, spectral radius {1 - step * spread.rate:.6g}",
            )
        )
    return findings


def _below(name: str, value: float, bound: float) -> Condition:
    return Condition(name, value < bound, f"{value:.6g} against {bound:.6g}")


def _above(name: str, value: float, bound: float) -> Condition:
    return Condition(name, value > bound + 1e-12, f"{value:.6g} against {bound:.6g}")


def _inside(name: str, values: np.ndarray) -> Condition:
    outside = np.flatnonzero((values <= 0) | (values >= 1)).tolist()
    detail = f"outside for agents {outside}: {[round(float(values[i]), 4) for i in outside]}" if outside else "holds"
    return Condition(name, not outside, detail)


# Privacy of the printed messages, for a given configuration.


@dataclass(frozen=True)
class PrintedTracking:
    """The printed algorithm's settings: step sizes, noise of both messages, batches, and which form is run.

    `state` has the noise of the states' messages. `gradient` has the clip of the gradients and the noise of the
    trackers' messages. `lipschitz` is a constant by which the clipped batch gradient, public terms included, is
    Lipschitz from L1 to L1; None if no such constant is known.

    >>> laplace = Release(1.0, 1.0, "laplace")
    >>> PrintedTracking(Rates(0.1, 0.1, 0.1), laplace, laplace, Full(), "box").is_bounded
    True
    """

    rates: Rates | S1 | S2
    state: Release
    gradient: Release
    sampling: Sampling
    form: Literal["box", "compact"]
    lipschitz: float | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether the bounds apply: Laplace noise, fixed step sizes, and a record counts once in a batch."""
        fixed = all(isinstance(rate, Constant) for rate in step_sizes(self.rates))
        once = isinstance(self.sampling, (Full, Poisson, FixedSize))
        laplace = all(release.private and release.mechanism == "laplace" for release in (self.state, self.gradient))
        return fixed and once and laplace

    def constants(self, network: Network, size: int, agent: int) -> tuple[int, dict[str, Any]]:
        """Return the batch of one agent, and what else the recursions take."""
        alpha, beta, gamma = (float(rate(0, agent)) for rate in step_sizes(self.rates))
        return int(self.sampling.denominator(size, 0)), {
            "a": alpha * float(network.pull[[agent], :].sum()),
            "b": beta * float(network.push[[agent], :].sum()),
            "gamma": gamma,
            "zeta": _NoiseOf(self.state.scale, agent),
            "eta": _NoiseOf(self.gradient.scale, agent),
        }


@dataclass(frozen=True)
class _NoiseOf:
    """One agent's noise as a function of the step."""

    scale: Schedule
    agent: int

    def __call__(self, t: np.ndarray) -> Any:
        return self.scale(t, self.agent)


def printed_epsilon(
    given: PrintedTracking, network: Network, sizes: Mapping[str, Sequence[int]], steps: int
) -> float | None:
    """Return Lemmas 4 and 5 for the worst agent, with C = 2 clip; None where they do not apply.

    The paper proves them for the box form and prints them for both.

    >>> from sottovoce.networks import directed
    >>> cycle, laplace = [(0, 1), (1, 2), (2, 0)], Release(0.5, 1.0, "laplace")
    >>> given = PrintedTracking(Rates(0.5, 0.5, 0.1), laplace, laplace, FixedSize(10), "box")
    >>> round(printed_epsilon(given, directed(cycle, cycle), {"records": [50] * 3}, steps=11), 8)
    4.40107422
    """
    if not given.is_bounded:
        return None
    (numbers,) = sizes.values()
    found = (given.constants(network, numbers[agent], agent) for agent in range(network.size))
    return max(
        published.gradient_tracking(K=steps - 1, C=2 * given.gradient.clip, m=m, **weights) for m, weights in found
    )


def proved_epsilon(
    given: PrintedTracking, network: Network, sizes: Mapping[str, Sequence[int]], steps: int, agent: int
) -> float | None:
    """Return the bound of `sottovoce.privacy.sound.gradient_tracking_printed` for one agent's messages.

    It needs `lipschitz`: clipping alone proves no epsilon, because gradients at private states drift apart.

    >>> from sottovoce.networks import directed
    >>> cycle, laplace = [(0, 1), (1, 2), (2, 0)], Release(0.5, 1.0, "laplace")
    >>> given = PrintedTracking(Rates(0.5, 0.5, 0.1), laplace, laplace, FixedSize(10), "box", lipschitz=0.0)
    >>> round(proved_epsilon(given, directed(cycle, cycle), {"records": [50] * 3}, steps=11, agent=0), 2)
    2.16
    """
    if given.lipschitz is None or not given.is_bounded:
        return None
    (numbers,) = sizes.values()
    m, weights = given.constants(network, numbers[agent], agent)
    form: Literal["tight", "compact"] = "tight" if given.form == "box" else "compact"
    return float(
        sound.gradient_tracking_printed(
            K=steps - 1, c=2 * given.gradient.clip / m, L1=given.lipschitz, form=form, **weights
        )
    )


def caveats(lipschitz: float | None, form: str, network: Network) -> list[str]:
    """List what the printed design leaves open.

    >>> from sottovoce.networks import directed
    >>> cycle = [(0, 1), (1, 2), (2, 0)]
    >>> caveats(0.5, "box", directed(cycle, cycle))[1]
    'epsilon assumes clipped gradients that are 0.5-Lipschitz from L1 to L1'
    """
    notes = ["the final states are un-noised and may not be published: only messages are covered"]
    if lipschitz is None:
        notes.append("gradients at private states drift apart: without lipschitz= no epsilon is proved")
    else:
        notes.append(f"epsilon assumes clipped gradients that are {lipschitz:g}-Lipschitz from L1 to L1")
    imbalance = np.abs(np.asarray(network.push.sum(axis=0) - network.push.sum(axis=1))).max()
    if form == "box" and imbalance > 1e-8:
        notes.append("the push graph is not balanced: the box form, (4) and (6), converges to a biased point")
    return notes
