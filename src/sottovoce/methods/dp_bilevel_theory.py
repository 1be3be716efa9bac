"""The rates of DP bilevel optimisation (Theorems 3.1, 4.1 and 5.1), and the parameters that its theory assigns.

All rates are up to constants and logarithms, as printed: they tell how an error scales and which term rules, not its
size. Two slips in the powers of ell, which is 1 in most uses: Theorem 5.1 prints ell^(1/4) in its first constant where
3.1 and 4.1 have ell^(3/4) (its proof only adds a term to theirs, so 3/4 is used throughout); and inserting the penalty
ell kappa^3 / alpha into Lemma 3.4 gives ell^(5/2) in (15), not ell^(3/2), so the second constant should have
ell^(5/6) where ell^(1/2) is printed and used here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """What the theory knows of a problem; all of it public.

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
        """The strong convexity of the lower level."""
        return self.ell / self.kappa


@dataclass(frozen=True)
class Rate:
    """A bound on the projected hypergradient, term by term."""

    terms: Mapping[str, float]

    @property
    def total(self) -> float:
        """Their sum."""
        return sum(self.terms.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {value:.3g}" for name, value in self.terms.items())
        return f"{self.total:.3g} ({parts}), up to constants and logarithms"


def rate(
    facts: Facts, n: int, epsilon: float, batch: int | None = None, population: bool = False, gap: bool = False
) -> Rate:
    """The predicted size of the projected hypergradient at the output.

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
    return Rate(terms)


@dataclass(frozen=True)
class Assignment:
    """The paper's parameters for an accuracy alpha (constants taken as 1)."""

    alpha: float
    steps: int
    penalty: float
    step_x: float
    inner_steps: int
    radii: tuple[float, ...]

    @property
    def releases(self) -> int:
        """Inner and outer releases in all."""
        return self.steps * (2 * len(self.radii) * self.inner_steps + 1)


def assignment(facts: Facts, n: int, epsilon: float, first_radius: float = 1.0) -> Assignment:
    """Theorem 3.1's penalty, steps and step size, and Theorem B.1's rounds: n^2 steps each, in shrinking balls.

    >>> paper = assignment(Facts(dx=10, dy=10), n=1000, epsilon=1.0)
    >>> paper.inner_steps, len(paper.radii)
    (1000000, 2)
    """
    alpha = rate(facts, n, epsilon).total
    steps = math.ceil(facts.drop * facts.ell * facts.kappa**3 / alpha**2)
    share = epsilon / math.sqrt(18 * steps)
    reach = facts.kappa / (share * n)  # L / (mu epsilon' n)
    rounds = max(1, math.ceil(math.log2(max(2.0, math.log(max(math.e, 1 / reach))))))
    return Assignment(
        alpha=alpha,
        steps=steps,
        penalty=facts.ell * facts.kappa**3 / alpha,
        step_x=1 / (facts.ell * facts.kappa**3),
        inner_steps=n**2,
        radii=shrinking_radii(first_radius, rounds, reach, facts.dy),
    )


def shrinking_radii(first: float, rounds: int, reach: float, dy: int) -> tuple[float, ...]:
    """Balls of DP-Loc-(S)GD: R' = sqrt(R reach) + reach sqrt(dy), with reach = L / (mu epsilon' n).

    >>> [round(radius, 3) for radius in shrinking_radii(1.0, 3, reach=0.01, dy=4)]
    [1.0, 0.12, 0.055]
    """
    radii = [first]
    while len(radii) < rounds:
        radii.append(math.sqrt(radii[-1] * reach) + reach * math.sqrt(dy))
    return tuple(radii)
