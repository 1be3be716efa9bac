"""Compute what the paper on DPMixSGD prints, and what is proved for its printed design.

Quan, Wang, Zhai, Fang and Liu, "Enhancing privacy in decentralized min-max optimization: a differentially private
approach": Theorem 1 (convergence), Theorem 2 (privacy). A run has ``T = steps + 1`` iterations: iteration 0, from a
first batch of its own, and one for every step.

A *participation* is the set of iterations whose batches contain one given record. Example: six records, batches of two
in one pass. Iteration 0 draws records 0 and 1, and so does iteration 1, because the pass of the later batches starts
anew; iteration 2 draws records 2 and 3, iteration 3 records 4 and 5.

>>> participations(OnePass(2), OnePass(2), n=6, total=4)
[[0, 1], [2], [3]]
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.networks import Condition
from sottovoce.papers.bound import ErrorBound
from sottovoce.privacy import published, sound
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import FixedSize, Full, OnePass, Poisson, Sampling


@dataclass(frozen=True)
class TheoremOne:
    """Hold the parameters that Theorem 1 sets; `accuracy` is its epsilon."""

    steps: int
    beta_x: float
    beta_y: float
    rate_x: float
    rate_y: float
    first_batch: int
    accuracy: float


def theorem_1(
    kappa: float, L: float, spectral: float, agents: int, T0: float | None = None, accuracy: float | None = None
) -> TheoremOne:
    """Return the parameters that Theorem 1 sets for condition number kappa and smoothness L.

    Give one of two. With `accuracy` (its epsilon) it is the first part: beta_x = epsilon min(1, m epsilon) / 20 and T =
    1500 kappa^3 / ((1-lambda)^2 epsilon beta_x). With `T0`, at least 10 m^2, it is the second part: beta_x = m^(1/3) /
    (20 T0^(2/3)) and T = 30000 kappa^3 T0 / (1-lambda)^2. The second part prints step sizes and first batch with an
    epsilon that it does not define. The one used here makes both parts agree: epsilon = (m T0)^(-1/3), where m epsilon
    <= 1. `spectral` is the lambda of Assumption 4, the norm of W - 11'/n.

    >>> chosen = theorem_1(kappa=1.0, L=1.0, spectral=0.5, agents=2, T0=1000)
    >>> chosen.steps, round(chosen.beta_x, 6), round(chosen.rate_x, 8)
    (120000000, 0.00063, 2.65e-06)
    >>> theorem_1(kappa=1.0, L=1.0, spectral=0.5, agents=20, accuracy=0.1).steps
    12000000
    """
    if not 0 <= spectral < 1 or not kappa >= 1 or not L > 0 or agents < 1:
        raise ValueError(f"lambda {spectral}, kappa {kappa}, L {L}: give lambda in [0, 1), kappa >= 1, L > 0")
    if (T0 is None) == (accuracy is None):
        raise ValueError("Theorem 1 has two parts: give either T0 or accuracy")
    gap = (1 - spectral) ** 2
    if T0 is not None:
        if not 10 * agents**2 <= T0:
            raise ValueError(f"T0 is {T0} for {agents} agents: Theorem 1 asks for at least 10 m^2 = {10 * agents**2}")
        beta, epsilon = agents ** (1 / 3) / (20 * T0 ** (2 / 3)), (agents * T0) ** (-1 / 3)
        steps = 30_000 * kappa**3 * T0 / gap
    else:
        epsilon = float(accuracy or 0.0)
        if not 0 < epsilon < 1:
            raise ValueError(f"accuracy is {accuracy}: give a number between 0 and 1")
        beta = epsilon * min(1.0, agents * epsilon) / 20
        steps = 1500 * kappa**3 / (gap * epsilon * beta)
    return TheoremOne(
        steps=math.ceil(steps - 1e-6),
        beta_x=beta,
        beta_y=beta / (25 * kappa**2),
        rate_x=gap * beta / (750 * kappa**3 * L * epsilon),
        rate_y=gap * beta / (75 * kappa * L * epsilon),
        first_batch=math.ceil(20 * kappa * epsilon / beta - 1e-6),
        accuracy=epsilon,
    )


def theorem_1_conditions(
    chosen: TheoremOne, kappa: float, L: float, spectral: float, agents: int
) -> tuple[Condition, ...]:
    """Check what the proof of Theorem 1 asks of step sizes: Lemmas 6 and 13, (90) and (91).

    >>> chosen = theorem_1(kappa=2.0, L=1.0, spectral=0.5, agents=4, accuracy=0.1)
    >>> [condition.holds for condition in theorem_1_conditions(chosen, 2.0, 1.0, 0.5, 4)]
    [True, True, True, True]
    """
    x, y, m = chosen.rate_x, chosen.rate_y, agents
    limit = (1 - spectral) ** 2 / (500 * L)
    common = 4 * L**2 * (21 * kappa**2 + 12 / (m * chosen.beta_x) + 240 * kappa**2 / (m * chosen.beta_y)) / m
    drift = common * 576 * m * spectral**4 * L**2 * (x**2 + y**2) / (1 - spectral**2) ** 4
    momentum = 24 * L**2 * x**2 / (m * chosen.beta_x) + 2 * 480 * kappa**2 * L**2 * x**2 / (m * chosen.beta_y)
    left = 1 - 2 * kappa * L * x - 40 * kappa**4 * x**2 / y**2 - momentum - drift * x**2
    asked = [  # name, smaller, larger
        ("Lemma 6: rate_y <= 1 / (5 L)", y, 1 / (5 * L)),
        ("Lemma 13: both rates <= (1 - lambda)^2 / (500 L)", max(x, y), limit),
        ("(90)", drift * y**2, kappa * L * y / 2),
        ("(91): at least 2/5 is left", 0.4, left),
    ]
    return tuple(Condition(name, low <= high, f"{low:.4g} against {high:.4g}") for name, low, high in asked)


@dataclass(frozen=True)
class Start:
    """State what Theorem 1's constants know of a problem and its starting point.

    `drop` is Phi(x0) minus its infimum, `lag` the delta_0 = |y*(x0) - y0|^2, `gradient_x` and `gradient_y` the agents'
    average of the squared gradients at the start, `variance` the sigma^2 of one record's gradient.
    """

    drop: float
    lag: float
    gradient_x: float
    gradient_y: float
    variance: float


def theorem_1_bound(
    chosen: TheoremOne,
    start: Start,
    kappa: float,
    L: float,
    agents: int,
    noise: tuple[float, float] = (0.0, 0.0),
    dims: tuple[int, int] = (1, 1),
    T0: float | None = None,
) -> ErrorBound:
    """Return the bound on the average of |grad Phi|^2: (105), or (110) for a given `T0`.

    `noise` has the standard deviations sigma_x and sigma_y, `dims` the numbers of coordinates of x and y. (105) prints
    the gradient in x twice; the second is the one in y, as in (110). (110) prints 2 m^(2/3) / T0^(2/3) in front of the
    noise, where (111) and the substitution of epsilon = (m T0)^(-1/3) into (105) have m^(1/3), and 3 kappa^2 where
    (105) has 6 kappa^2. Both are used here as printed.

    >>> chosen, start = theorem_1(1.0, 1.0, 0.5, agents=10, accuracy=0.1), Start(1.0, 0.0, 1.0, 1.0, 1.0)
    >>> print(theorem_1_bound(chosen, start, 1.0, 1.0, agents=10))
    0.05 (start 0.01, batches 0.02, first gradients 0.02, noise 0)
    >>> print(theorem_1_bound(chosen, start, 1.0, 1.0, agents=10, noise=(0.1, 0.1), dims=(20, 1)))
    0.858 (start 0.01, batches 0.02, first gradients 0.02, noise 0.808)
    """
    m, epsilon = agents, chosen.accuracy
    x, y = (deviation**2 * d for deviation, d in zip(noise, dims))
    if T0 is None:
        shrink, gradients, amplified = epsilon**2, epsilon**2, (2 * m**2 * epsilon**2 + 6 * kappa**2) / m
    else:
        shrink, gradients = (m * T0) ** (-2 / 3), 1 / T0
        amplified = 2 * (m / T0) ** (2 / 3) + 3 * kappa**2 / m
    return ErrorBound(
        {
            "start": (L * start.drop + 2 * L**2 * start.lag) * shrink,
            "batches": 2 * start.variance * shrink,
            "first gradients": (start.gradient_x + start.gradient_y) * gradients,
            "noise": amplified * (x + y) + 16 * x / m + 320 * kappa**2 * y / m,
        }
    )


def theta_19(accuracy: float, agents: int, Lg: float, dims: int, delta: float) -> float:
    """Return (19): the smallest privacy budget theta at which noise does not spoil the accuracy, constant 1.

    >>> round(theta_19(0.1, agents=100, Lg=1.0, dims=10, delta=1e-5), 1)
    10729.8
    """
    return Lg * math.sqrt(dims * math.log(1 / delta) / agents) / accuracy**4


def noise_error_20(theta: float, accuracy: float, agents: int, Lg: float, dims: int, delta: float) -> float:
    """Return the left side of (20), the error that the noise of Theorem 2 causes; (20) asks that it be O(epsilon^2).

    It replaces T^3 in (18) by epsilon^-6. That is Theorem 1's T only where m epsilon >= 1. For fewer agents T is of
    order 1 / (m epsilon^3), so the error is larger by a factor (m epsilon)^-3, and (19) does not suffice;
    `theta_needed` takes T as it is.

    >>> theta = theta_19(0.1, agents=100, Lg=1.0, dims=10, delta=1e-5)
    >>> round(noise_error_20(theta, 0.1, agents=100, Lg=1.0, dims=10, delta=1e-5), 10)
    0.01
    """
    return Lg**2 * dims * math.log(1 / delta) / (theta**2 * agents * accuracy**6)


def theta_needed(
    accuracy: float, agents: int, Lg: float, dims: tuple[int, int], delta: float, kappa: float, spectral: float
) -> float:
    """Return the theta at which the noise of Theorem 2, in bound (105), is epsilon^2, constants included.

    The noise is that of (18) for Theorem 1's own T, with the constant in front of (18) set to 1.

    >>> f"{theta_needed(0.1, 100, 1.0, (10, 10), 1e-5, kappa=1.0, spectral=0.5):.2g}"
    '1.4e+12'
    """
    chosen = theorem_1(kappa, 1.0, spectral, agents, accuracy=accuracy)
    unit = published.dpmixsgd_sigma(1.0, chosen.steps, agents, Lg, delta)
    nothing = Start(0.0, 0.0, 0.0, 0.0, 0.0)
    error = theorem_1_bound(chosen, nothing, kappa, 1.0, agents, (unit, unit), dims).total
    return math.sqrt(error) / accuracy


def estimator_size(L: float, beta: float, printed: bool = False) -> float:
    """Return a bound G on the STORM estimator of gradients of length at most L: (2 - beta) L / beta.

    After Lemma 1 the text (line 339) solves G <= L + (1 - beta) G, so G <= L / beta (`printed`). It leaves out the
    gradient at the point before, which (9) subtracts: G <= L + (1 - beta) (G + L).

    >>> estimator_size(1.0, 0.5), estimator_size(1.0, 0.5, printed=True)
    (3.0, 2.0)
    """
    return L / beta if printed else (2 - beta) * L / beta


def lemma_1_noise(G: float, T: int, agents: int, theta: float, delta: float) -> float:
    """Return Lemma 1's sigma for one variable, G sqrt(T log(1/gamma) / m) / theta, its constant c set to 1.

    It grows like T^(1/2), where Theorem 2's (18), which is said to follow from it, grows like T^(3/2).

    >>> round(lemma_1_noise(1.0, T=100, agents=4, theta=1.0, delta=1e-5), 4)
    16.9654
    """
    return G * math.sqrt(T * math.log(1 / delta) / agents) / theta


def relative_noise(releases: Sequence[Release], steps: int, agent: int) -> list[float]:
    """Return the lowest noise of each estimator over its clip.

    >>> relative_noise([Release(clip=2.0, noise=0.5)], steps=3, agent=0)
    [0.25]
    """
    t = np.arange(steps)
    return [float(np.min(release.scale(t, agent))) / release.clip for release in releases]


def printed_epsilon(releases: Sequence[Release], steps: int, agents: int, delta: float) -> float | None:
    """Return Theorem 2's epsilon, with its unspecified constant set to 1 and the clip for its Lipschitz constant.

    None where a release has no noise or no clip, or delta is 0. The theorem has one sigma: noise that differs counts as
    the smallest of all agents and steps. What this number leaves out is said in `sottovoce.privacy.published.dpmixsgd`.

    >>> round(printed_epsilon([Release(1.0, 10.0)] * 2, steps=9, agents=5, delta=1e-5), 8)
    5.97411658
    """
    lowest = [noise for agent in range(agents) for noise in relative_noise(releases, steps, agent)]
    if not all(release.private for release in releases) or delta <= 0 or not min(lowest) > 0:
        return None
    ratio = max(1 / noise for noise in lowest)
    return published.dpmixsgd(1.0, steps + 1, agents, ratio, delta)


def proved_epsilon(
    releases: Sequence[Release],
    betas: tuple[float, float],
    first: Sampling,
    later: Sampling,
    n: int,
    steps: int,
    delta: float,
    agent: int,
) -> float | None:
    """Return the epsilon that `sottovoce.privacy.sound.storm_printed` proves, for the worst record of one agent.

    The bound is for Gaussian noise, a clip on every gradient, and a record that is at most once in a batch. None where
    one of these fails.

    >>> message = Release(1.0, 1.0)
    >>> round(proved_epsilon([message] * 2, (.1, .1), Full(), Full(), n=100, steps=1, delta=1e-5, agent=0), 4)
    0.1254
    """
    gaussian = all(release.mechanism == "gaussian" and release.private for release in releases)
    if (
        not gaussian
        or delta <= 0
        or not all(isinstance(s, (Full, Poisson, FixedSize, OnePass)) for s in (first, later))
    ):
        return None
    total, (sigma_x, sigma_y) = steps + 1, relative_noise(releases, steps, agent)
    if not min(sigma_x, sigma_y) > 0:
        return None  # some step has no noise
    batch, b0 = int(later.denominator(n, 0)), int(first.denominator(n, 0))
    return max(
        sound.storm_printed(total, *betas, 1.0, batch, b0, sigma_x, sigma_y, iterations, delta)
        for iterations in participations(first, later, n, total)
    )


def caveats(first: Sampling | None, sizes: Sequence[int]) -> list[str]:
    """List where the first batch is cut, and what the published figure leaves out.

    >>> caveats(Poisson(100, cut=True), [50, 200])[1]
    'the first batch of 100 is cut to the records there are, for 1 agents'
    """
    notes = [
        "the published figure is for the network's average and one variable: a neighbour sees each agent, and both"
    ]
    wanted = getattr(first, "batch", 0)
    short = [i for i, n in enumerate(sizes) if n < wanted]
    if short:
        notes.append(f"the first batch of {wanted} is cut to the records there are, for {len(short)} agents")
    return notes


def participations(first: Sampling, later: Sampling, n: int, total: int) -> list[Iterable[int] | None]:
    """Return every set of iterations that some record takes part in; ``[None]`` (any set) if the draw is random.

    Iteration 0 draws from `first`, iteration k from `later` at its step k - 1.

    >>> participations(Full(), OnePass(3), n=6, total=3)
    [[0, 1], [0, 2]]
    """
    if not (_is_planned(first, n) and _is_planned(later, n)):
        return [None]
    table = np.stack([_batch(first, n, 0), *(_batch(later, n, t) for t in range(total - 1))], axis=1)
    sets = {tuple(np.flatnonzero(row).tolist()) for row in np.unique(table, axis=0)}
    return [list(iterations) for iterations in sorted(sets)]


def _is_planned(sampling: Sampling, n: int) -> bool:
    """Tell whether it is known in advance who takes part."""
    return isinstance(sampling, (Full, OnePass)) or (isinstance(sampling, Poisson) and sampling.batch >= n)


def _batch(sampling: Sampling, n: int, t: int) -> np.ndarray:
    """Return which rows are in the planned batch of step t."""
    return np.arange(n) // sampling.batch == t if isinstance(sampling, OnePass) else np.ones(n, bool)
