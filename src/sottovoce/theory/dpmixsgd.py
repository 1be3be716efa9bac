"""What the paper on DPMixSGD prints, and what is proved for its printed design.

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

from sottovoce.privacy import published, sound
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import FixedSize, Full, OnePass, Poisson, Sampling


@dataclass(frozen=True)
class TheoremOne:
    """The parameters of Theorem 1 (its second part, in which T does not depend on the accuracy)."""

    steps: int
    beta_x: float
    beta_y: float
    rate_x: float
    rate_y: float
    first_batch: int


def theorem_1(kappa: float, L: float, spectral: float, agents: int, T0: int) -> TheoremOne:
    """Return the parameters that Theorem 1 sets for condition number kappa, smoothness L and budget T0.

    `spectral` is the lambda of Assumption 4, the norm of W - 11'/n. The theorem prints its step sizes and first batch
    with an accuracy epsilon, and beta_x as epsilon min(1, m epsilon) / 20 in its first part, m^(1/3) / (20 T0^(2/3)) in
    its second. The epsilon used here is the one for which the two agree: epsilon = (m T0)^(-1/3), where m epsilon <= 1.
    T0 must be at least 10 m^2.

    >>> chosen = theorem_1(kappa=1.0, L=1.0, spectral=0.5, agents=2, T0=1000)
    >>> chosen.steps, round(chosen.beta_x, 6), round(chosen.rate_x, 8)
    (120000000, 0.00063, 2.65e-06)
    """
    if agents < 1 or not 10 * agents**2 <= T0:
        raise ValueError(f"T0 is {T0} for {agents} agents: Theorem 1 asks for at least 10 m^2 = {10 * agents**2}")
    if not 0 <= spectral < 1 or not kappa >= 1 or not L > 0:
        raise ValueError(f"lambda {spectral}, kappa {kappa}, L {L}: give lambda in [0, 1), kappa >= 1, L > 0")
    gap, beta = (1 - spectral) ** 2, agents ** (1 / 3) / (20 * T0 ** (2 / 3))
    accuracy = (agents * T0) ** (-1 / 3)
    return TheoremOne(
        steps=math.ceil(30_000 * kappa**3 * T0 / gap),
        beta_x=beta,
        beta_y=beta / (25 * kappa**2),
        rate_x=gap * beta / (750 * kappa**3 * L * accuracy),
        rate_y=gap * beta / (75 * kappa * L * accuracy),
        first_batch=math.ceil(20 * kappa * accuracy / beta),
    )


def relative_noise(releases: Sequence[Release], steps: int, agent: int) -> list[float]:
    """Return the lowest noise of each estimator over its clip.

    >>> relative_noise([Release(clip=2.0, noise=0.5)], steps=3, agent=0)
    [0.25]
    """
    t = np.arange(steps)
    return [float(np.min(release.scale(t, agent))) / release.clip for release in releases]


def printed_epsilon(releases: Sequence[Release], steps: int, agents: int, delta: float) -> float | None:
    """Return Theorem 2's epsilon, with its unspecified constant set to 1 and the clip for its Lipschitz constant.

    None where a release has no noise or no clip, or delta is 0. What this number leaves out is said in
    `sottovoce.privacy.published.dpmixsgd`.

    >>> round(printed_epsilon([Release(1.0, 10.0)] * 2, steps=9, agents=5, delta=1e-5), 8)
    5.97411658
    """
    lowest = relative_noise(releases, steps, 0)
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
