"""Compute the step-size plans of the paper on DP gradient tracking, and the privacy of its printed messages.

Chen, Wang and Zhang, "Differentially private gradient-tracking-based distributed stochastic optimization over directed
graphs". `Rates`, `S1` and `S2` are step-size plans. `printed_epsilon` is the published bound for a given configuration,
`proved_epsilon` the one that is proved. The convergence theory is in `convergence.py` (Theorems 1 to 4) and `lemmas.py`
(Lemmas 1 to 3).

>>> S2(K=2000).batch       # the sampling number of the paper's experiment
55
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sottovoce.networks import Network
from sottovoce.privacy import published, sound
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import FixedSize, Full, Poisson, Sampling
from sottovoce.schedules import Constant, Decay, Schedule, schedule

# Step sizes, batch and noise: the paper's schemes, or plain numbers.


@dataclass(frozen=True)
class Rates:
    """Set plain step sizes: `alpha` toward the heard states, `beta` toward the heard trackers, `gamma` downhill.

    >>> Rates(0.1, 0.1, 0.05).gamma
    0.05
    """

    alpha: float | Schedule
    beta: float | Schedule
    gamma: float | Schedule


@dataclass(frozen=True)
class S1:
    """Follow scheme S1: step sizes fall and the batch grows polynomially with the last iteration K.

    Iterations are numbered 0 to K. alpha = a1 / K^p_alpha, beta = a2 / K^p_beta, gamma = a3 / K^p_gamma,
    m = floor(a4 K^p_m) + 1. The defaults are the paper's experiment.

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
        """Return the step toward the heard states."""
        return self.a1 / self.K**self.p_alpha

    @property
    def beta(self) -> float:
        """Return the step toward the heard trackers."""
        return self.a2 / self.K**self.p_beta

    @property
    def gamma(self) -> float:
        """Return the step downhill."""
        return self.a3 / self.K**self.p_gamma

    @property
    def batch(self) -> int:
        """Return the sampling number m."""
        return math.floor(self.a4 * self.K**self.p_m) + 1

    def noise(self, p: float) -> Schedule:
        """Return the scheme's noise (k+1)^p on message k."""
        return Decay(1.0, -p)


@dataclass(frozen=True)
class S2:
    """Follow scheme S2: constant step sizes, and a batch m = floor(p_m^K) + 1 that grows exponentially with K.

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
        """Return the sampling number m."""
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


# Privacy of the printed messages, for a given configuration.


@dataclass(frozen=True)
class PrintedTracking:
    """Hold the printed algorithm's settings: step sizes, noise of both messages, batches, and which form is run.

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
        """Say whether the bounds apply: Laplace noise, fixed step sizes, and a record counts once in a batch."""
        fixed = all(type(rate) is Constant for rate in step_sizes(self.rates))  # a kind of one may change
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
    """Give one agent's noise as a function of the step."""

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

    It needs `lipschitz`: clipping alone proves no epsilon, because gradients at private states drift apart. It is
    infinite where one of the agent's messages has no noise.

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
