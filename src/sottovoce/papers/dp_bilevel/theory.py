"""Compute the rates of DP bilevel optimisation, and the parameters that its theory assigns.

Kornowski, "Differentially private bilevel optimization", 2024: Theorems 3.1, 4.1 and 5.1, Lemma A.1, Theorems A.2 and
B.1. All rates are up to constants and logarithms, as printed: they tell how an error scales and which term rules, not
its size. Two slips in the powers of ell, which is 1 in most uses: Theorem 5.1 prints ell^(1/4) in its first constant
where 3.1 and 4.1 have ell^(3/4) (its proof only adds a term to theirs, so 3/4 is used throughout); and inserting the
penalty ell kappa^3 / alpha into Lemma 3.4 gives ell^(5/2) in (15), not ell^(3/2), so the second constant should have
ell^(5/6) where ell^(1/2) is printed and used here.

Two questions, two functions (`sottovoce.papers.dp_bilevel.plan` answers a third: what is best within a budget). Example
for 10 outer and 10 inner coordinates and 1000 records at epsilon 1:

>>> facts = Facts(dx=10, dy=10, kappa=2.0)
>>> round(rate(facts, n=1000, epsilon=1.0).total, 2)         # how large an error does Theorem 3.1 predict?
0.66
>>> assignment(facts, n=1000, epsilon=1.0).inner_steps       # what does the paper assign?
1000000
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sottovoce.papers.bound import ErrorBound
from sottovoce.privacy import published
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling, WithReplacement
from sottovoce.schedules import Decay

CONSTANT = 3600.0  # Theorem 3.1's absolute constant, from the paper's own lemmas: 2 * 18 * (sensitivity 10 ell kappa)^2


@dataclass(frozen=True)
class Conditioning:
    """Hold constants: `ell` bounds all gradients and Lipschitz constants, `kappa` is ell over g's convexity."""

    ell: float
    kappa: float


@dataclass(frozen=True)
class Facts:
    """State what the theory knows of a problem; all of it public.

    Args:
        dx, dy: numbers of coordinates of x and y.
        ell: bounds the gradients, Lipschitz and Hessian-Lipschitz constants of both levels, for every record.
        kappa: ell over the lower level's strong convexity.
        drop: how far F(x0) lies above the infimum of F.

    >>> Facts(dx=20, dy=100).mu
    1.0
    """

    dx: int
    dy: int
    ell: float = 1.0
    kappa: float = 1.0
    drop: float = 1.0

    def __post_init__(self) -> None:
        if min(self.dx, self.dy) < 1 or not min(self.ell, self.drop) > 0 or not self.kappa >= 1:
            raise ValueError(f"{self}: dimensions count from 1, ell and drop are positive, kappa is at least 1")

    @property
    def mu(self) -> float:
        """Return the strong convexity of the lower level."""
        return self.ell / self.kappa


def rate(
    facts: Facts, n: int, epsilon: float, batch: int | None = None, population: bool = False, gap: bool = False
) -> ErrorBound:
    """Return the predicted size of the projected hypergradient at the output.

    Theorem 3.1; with `batch` (of the step of x) Theorem 4.1; with `population`, for the distribution that the records
    come from, Theorem 5.1. `gap` replaces the inner term by that of ``DpBilevel(solve="gap")``, whose inner noise is
    not multiplied by the penalty: exponent 1/2 in place of 1/3. That one is argued along the paper's lines (its
    beta = ell kappa^2 sqrt(dy T) / (epsilon n) has no penalty in it), not proved.

    >>> print(rate(Facts(dx=100, dy=10_000), n=1_000_000, epsilon=1.0))
    0.0496 (outer noise 0.00316, inner noise 0.0464), up to constants and logarithms
    >>> print(rate(Facts(dx=100, dy=10_000), n=1_000_000, epsilon=1.0, gap=True))
    0.0132 (outer noise 0.00316, inner noise 0.01), up to constants and logarithms
    """
    if n < 1 or not epsilon > 0 or (batch is not None and not 1 <= batch <= n):
        raise ValueError(f"n = {n}, epsilon = {epsilon}, batch = {batch}: give n >= 1, epsilon > 0, a batch up to n")
    ell, kappa, drop = facts.ell, facts.kappa, facts.drop
    outer, inner = math.sqrt(facts.dx) / (epsilon * n), math.sqrt(facts.dy) / (epsilon * n)
    terms = {"outer noise": drop**0.25 * ell**0.75 * kappa**1.25 * outer**0.5}
    if gap:
        terms["inner noise"] = drop**0.25 * ell**0.75 * kappa**1.75 * inner**0.5
    else:
        terms["inner noise"] = drop ** (1 / 6) * ell**0.5 * kappa ** (11 / 6) * inner ** (1 / 3)
    if batch is not None:
        terms["batch"] = ell * kappa / batch
    if population:
        terms["sampling of records"] = ell * kappa * math.sqrt(facts.dx / n)
    return ErrorBound(terms, "constants and logarithms")


@dataclass(frozen=True)
class Assignment:
    """Hold the paper's parameters for an accuracy alpha (constants taken as 1)."""

    alpha: float
    steps: int
    penalty: float
    step_x: float
    inner_steps: int
    radii: tuple[float, ...]

    @property
    def releases(self) -> int:
        """Return how many releases there are in all, inner and outer."""
        return self.steps * (2 * len(self.radii) * self.inner_steps + 1)


def assignment(facts: Facts, n: int, epsilon: float, first_radius: float = 1.0) -> Assignment:
    """Return Theorem 3.1's penalty, steps and step size, and Theorem B.1's rounds: n^2 steps each, in shrinking balls.

    >>> paper = assignment(Facts(dx=10, dy=10), n=1000, epsilon=1.0)
    >>> paper.inner_steps, len(paper.radii)
    (1000000, 2)
    """
    alpha = rate(facts, n, epsilon).total
    steps = math.ceil(facts.drop * facts.ell * facts.kappa**3 / alpha**2)
    share = epsilon / math.sqrt(18 * steps)
    reach = facts.kappa / (share * n)  # L / (mu epsilon' n)
    rounds = _rounds(reach)
    return Assignment(
        alpha=alpha,
        steps=steps,
        penalty=facts.ell * facts.kappa**3 / alpha,
        step_x=1 / (facts.ell * facts.kappa**3),
        inner_steps=n**2,
        radii=shrinking_radii(first_radius, rounds, reach, facts.dy),
    )


def shrinking_radii(first: float, rounds: int, reach: float, dy: int) -> tuple[float, ...]:
    """Return the radii of DP-Loc-(S)GD's balls: R' = sqrt(R reach) + reach sqrt(dy), with reach = L / (mu epsilon' n).

    >>> [round(radius, 3) for radius in shrinking_radii(1.0, 3, reach=0.01, dy=4)]
    [1.0, 0.12, 0.055]
    """
    radii = [first]
    while len(radii) < rounds:
        radii.append(math.sqrt(radii[-1] * reach) + reach * math.sqrt(dy))
    return tuple(radii)


def _rounds(reach: float) -> int:
    """Return Theorem B.1's M = log2 log(1 / reach), at least 1."""
    return max(1, math.ceil(math.log2(max(2.0, math.log(max(math.e, 1 / reach))))))


@dataclass(frozen=True)
class InnerNumbers:
    """Set one inner solve of the printed algorithm: steps per round, step sizes, a radius per round, clip and noise."""

    steps: int
    rate: Decay
    radii: tuple[float, ...]
    release: Release


@dataclass(frozen=True)
class PaperNumbers:
    """Hold all numbers of the printed algorithm.

    The penalised problem is f / penalty + g, so its noise is over penalty.
    """

    steps: int
    penalty: float
    step_x: float
    release_x: Release
    y: InnerNumbers
    penalised: InnerNumbers


def paper_numbers(
    facts: Facts,
    n: int,
    epsilon: float,
    delta: float,
    steps: int | None = None,
    inner_steps: int | None = None,
    first_radius: float = 1.0,
) -> PaperNumbers:
    """Return the numbers of Algorithms 1 to 4 for a target (epsilon, delta) on n records.

    - Theorem 3.1: penalty, step size, T (`steps`), and the noise of x, sigma^2 = C ell^2 kappa^2 T log(T/delta) /
      (epsilon n)^2 with C = 3600 from the paper's own lemmas (sensitivity 10 ell kappa / n, so a clip of 5 ell kappa).
    - Algorithm 1, line 3: each inner solve has the budget epsilon' = epsilon / sqrt(18 T), delta' = delta / (3 T).
    - Theorem B.1 for a problem that is mu-strongly convex and L-Lipschitz: step sizes 1 / (mu (t+1)), n^2 steps
      per round (`inner_steps`), noise sigma_GD = L / epsilon', shrinking radii. With another number of steps its
      composition argument gives sigma_GD = L sqrt(steps) / (n epsilon').
    - Lemma A.1: L = ell, mu = ell / kappa for g; L = 2 penalty ell, mu = penalty ell / (2 kappa) for f + penalty g.

    The factors that the paper hides in O and O~ are 1, except for C.

    >>> numbers = paper_numbers(Facts(dx=10, dy=10), n=1000, epsilon=1.0, delta=1e-5, steps=18)
    >>> round(numbers.y.release.scale(0), 6), numbers.y.steps, numbers.penalised.release.clip
    (18.0, 1000000, 2.0)
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}: give a number between 0 and 1")
    paper = assignment(facts, n, epsilon, first_radius)
    T, T_inner = steps or paper.steps, inner_steps or paper.inner_steps
    ell, kappa, share = facts.ell, facts.kappa, epsilon / math.sqrt(18 * T)

    def inner(L: float, mu: float) -> InnerNumbers:
        reach = L / (mu * share * n)
        radii = shrinking_radii(first_radius, _rounds(reach), reach, facts.dy)
        return InnerNumbers(T_inner, Decay(1 / mu, 1.0), radii, Release(L, L * math.sqrt(T_inner) / (n * share)))

    sigma = published.dp_bilevel(1.0, ell, kappa, T, n, delta, CONSTANT) / epsilon  # linear in 1 / sigma
    lower, penalised = inner(ell, facts.mu), inner(2 * ell, facts.mu / 2)
    return PaperNumbers(T, paper.penalty, paper.step_x, Release(5 * ell * kappa, sigma), lower, penalised)


def printed_epsilon(
    conditioning: Conditioning | None,
    release_x: Release | None,
    sampling_x: Sampling,
    sizes: Mapping[str, Sequence[int]],
    steps: int,
    delta: float,
) -> float | None:
    """Return Theorem 3.1's epsilon with the constant of its own lemmas, for the smallest data set.

    It is for noise on x, declared constants, one set of records for both levels, delta > 0, and full batches or batches
    with replacement (Theorem 4.1); None otherwise. The theorem has one sigma: noise that differs counts as the smallest
    of all agents and steps. What it leaves out is said in `caveats`.

    >>> sizes = {"records": [10_000]}
    >>> round(printed_epsilon(Conditioning(1.0, 10.0), Release(1.0, 60.0), Full(), sizes, 100, 1e-5), 8)
    0.04014735
    """
    if conditioning is None or release_x is None or len(sizes) > 1 or not delta > 0:
        return None
    (numbers,) = sizes.values()
    n, times = min(numbers), np.arange(steps)
    sigma = min(float(np.min(release_x.scale(times, agent))) for agent in range(len(numbers)))
    if not isinstance(sampling_x, (Full, WithReplacement)) or not sigma > 0:
        return None
    return published.dp_bilevel(sigma, conditioning.ell, conditioning.kappa, steps, n, delta, CONSTANT)


def caveats(has_release_x: bool, has_published: bool) -> list[str]:
    """List what the account relies on, and what the paper's epsilon does not cover.

    >>> caveats(has_release_x=False, has_published=False)
    ['x costs nothing: its direction is computed from released values alone, and never from records']
    """
    notes = []
    if not has_release_x:
        notes.append("x costs nothing: its direction is computed from released values alone, and never from records")
    if has_published:
        notes.append(
            "the published epsilon (Theorem 3.1) is for the noise of x alone, drops a logarithm in composition and "
            "bounds the sensitivity at exact inner minimisers"
        )
    return notes
