"""Compute the lemmas behind DP bilevel's Theorem 3.1, with their constants, and what they ask for.

Kornowski, "Differentially private bilevel optimization", 2024: the gradient mapping (Section 2), Lemmas 3.3 to 3.5,
A.1, A.4 and A.5, Proposition 3.6, Remark 4.2, and the preconditions of Theorems 3.1 and A.2.
`theory.py` has the rates. Where the paper writes O(.), the constant of its own proof is used; where a
proof needs more than is printed, the docstring says so.

>>> ridge = Smoothness(L0_f=1.0, L1_f=1.0, L0_g=2.0, L1_g=2.0, L2_g=0.0, mu=0.5)
>>> ridge.ell, ridge.kappa
(2.0, 4.0)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from sottovoce.networks import Condition
from sottovoce.papers.dp_bilevel.theory import Facts, rate


def gradient_mapping(x: Any, gradient: Any, step: float, project: Callable[[Any], Any] = lambda x: x) -> Any:
    """Return the projected gradient (x - project(x - step gradient)) / step, the measure of Theorems 3.1 to 5.1.

    x and gradient are arrays or trees of arrays. Without constraints it is the gradient itself (Remark 3.2). A change
    of the gradient by v changes it by at most |v| (Lemma 2.4).

    >>> import numpy as np
    >>> from sottovoce.problems.sets import box
    >>> gradient_mapping(np.array([0.9, 0.0]), np.array([-1.0, 2.0]), 0.5, box(-1, 1)).round(6).tolist()
    [-0.2..., 2.0]
    """
    moved = project(jax.tree.map(lambda at, v: at - step * v, x, gradient))
    return jax.tree.map(lambda at, to: (at - to) / step, x, moved)


@dataclass(frozen=True)
class Smoothness:
    """Hold the constants of Assumptions 2.5 and 2.6: `L0`, `L1`, `L2` bound first, second and third derivatives.

    `f` is the upper level, `g` the lower one, `mu` the strong convexity of g in y.
    """

    L0_f: float
    L1_f: float
    L0_g: float
    L1_g: float
    L2_g: float
    mu: float

    def __post_init__(self) -> None:
        if not min(self.L0_f, self.L1_f, self.L2_g) >= 0 or not min(self.L0_g, self.L1_g, self.mu) > 0:
            raise ValueError(f"{self}: constants are not negative, and those of g's gradient, L1_g and mu are positive")

    @property
    def ell(self) -> float:
        """Return the largest of the Lipschitz constants."""
        return max(self.L0_f, self.L1_f, self.L0_g, self.L1_g, self.L2_g)

    @property
    def kappa(self) -> float:
        """Return ell over the strong convexity."""
        return self.ell / self.mu


def penalty_conditions(given: Smoothness, penalty: float) -> tuple[Condition, ...]:
    """Check what Lemmas 3.3, 3.4 and A.1 ask of the penalty lambda.

    Lemmas 3.4 and A.1 print 2 L1_g / mu where the strong convexity of f + lambda g, and Lemma 3.3, need 2 L1_f / mu.
    The printed one is not enough: f = -5 y^2 and g = y^2 / 2 pass it with lambda = 10, and f + 10 g is zero.

    >>> [c.name for c in penalty_conditions(Smoothness(1.0, 10.0, 1.0, 1.0, 0.0, 1.0), 10.0) if not c.holds]
    ['lambda >= 2 L1_f / mu (Lemma 3.3)']
    """
    asked = {
        "lambda >= 2 L1_f / mu (Lemma 3.3)": 2 * given.L1_f / given.mu,
        "lambda >= 2 L1_g / mu (Lemmas 3.4, A.1, as printed)": 2 * given.L1_g / given.mu,
        "lambda >= L0_f / L0_g (Lemmas 3.4, A.1)": given.L0_f / given.L0_g,
        "lambda >= L1_f / L1_g (Lemma 3.4)": given.L1_f / given.L1_g,
    }
    return tuple(Condition(name, penalty >= low, f"{penalty:.4g} against {low:.4g}") for name, low in asked.items())


def theorem_conditions(
    given: Smoothness, drop: float, alpha: float, n: int, share: float, radius: float, dy: int
) -> tuple[Condition, ...]:
    """Check the preconditions of Theorem 3.1 on the accuracy alpha, and of Theorem A.2 on the number of records.

    `share` is the epsilon' of one inner solve, `radius` the R_0 that the start is from the solution. Theorem A.2 prints
    n >= L R_0^(2 / log dy) / (mu epsilon'); for dy = 1 its exponent is infinite, so that only R_0 <= 1 can pass. L / mu
    is 4 times larger for the penalised problem (Lemma A.1), which is the one checked.

    >>> ridge = Smoothness(1.0, 1.0, 2.0, 2.0, 0.0, 0.5)
    >>> [c.holds for c in theorem_conditions(ridge, drop=10.0, alpha=1.0, n=1000, share=0.1, radius=1.0, dy=5)]
    [True, True, True, True, True]
    """
    smooth = given.ell * given.kappa**3
    limits = {
        "alpha <= ell kappa^2 / 2": smooth / (2 * given.kappa),
        "alpha <= ell kappa^3 L0_g / L0_f": smooth * given.L0_g / given.L0_f if given.L0_f else math.inf,
        "alpha <= ell kappa^3 L1_g / L1_f": smooth * given.L1_g / given.L1_f if given.L1_f else math.inf,
        "alpha <= kappa^2 drop": smooth * drop / (given.ell * given.kappa),
    }
    power = 2 / math.log(dy) if dy > 1 else math.inf
    least = 4 * given.L0_g * radius**power / (given.mu * share)
    return (
        *(Condition(name, alpha <= most, f"{alpha:.4g} against {most:.4g}") for name, most in limits.items()),
        Condition("n >= L R_0^(2 / log dy) / (mu epsilon')", n >= least, f"{n} against {least:.4g}"),
    )


@dataclass(frozen=True)
class PenaltyGap:
    """Bound how far the penalised problem is from the bilevel one (Lemmas 3.3, A.4 and A.5).

    `solution` bounds |y_lambda - y*|, `value` the gap F - L*_lambda >= 0, `lipschitz` is that of y_lambda(x). These
    have the proofs' constants. `gradient` and `smoothness` are ell kappa^3 / lambda and ell kappa^3, up to constants.
    """

    solution: float
    value: float
    lipschitz: float
    gradient: float
    smoothness: float


def lemma_3_3(given: Smoothness, penalty: float) -> PenaltyGap:
    """Return the distances between the penalised and the bilevel problem, for a penalty that Lemma 3.3 allows.

    The value's bound is L0_f |y_lambda - y*| (line 293 prints O(ell kappa / lambda)).

    >>> lemma_3_3(Smoothness(1.0, 1.0, 2.0, 2.0, 0.0, 0.5), penalty=100.0).solution
    0.02
    """
    failed = [c for c in penalty_conditions(given, penalty)[:1] if not c.holds]
    if failed:
        raise ValueError(f"penalty {penalty} is too small: {failed[0]}")
    solution, smooth = given.L0_f / (penalty * given.mu), given.ell * given.kappa**3
    return PenaltyGap(solution, given.L0_f * solution, 4 * given.L1_g / given.mu, smooth / penalty, smooth)


def inner_distance(given: Smoothness, n: int, epsilon: float, steps: int, dy: int) -> float:
    """Return Corollary A.3's distance of both inner solutions, L0_g sqrt(dy T) / (epsilon mu n), constants taken as 1.

    >>> inner_distance(Smoothness(1.0, 1.0, 1.0, 1.0, 0.0, 1.0), n=1000, epsilon=1.0, steps=4, dy=25)
    0.01
    """
    return given.L0_g * math.sqrt(dy * steps) / (epsilon * given.mu * n)


def lemma_3_4(given: Smoothness, penalty: float, distance_y: float, distance_penalised: float) -> float:
    """Return beta: how wrong the hypergradient is when the two inner solutions are off by these distances.

    beta = L1_f d_lambda + lambda L1_g (d_lambda + d_y). With Corollary A.3's distances (`inner_distance`) this is the
    lemma's O~(lambda ell kappa sqrt(dy T) / (epsilon n)).

    >>> lemma_3_4(Smoothness(1.0, 1.0, 2.0, 2.0, 0.0, 0.5), penalty=10.0, distance_y=0.25, distance_penalised=0.5)
    15.5
    """
    return given.L1_f * distance_penalised + penalty * given.L1_g * (distance_penalised + distance_y)


def lemma_3_5(given: Smoothness, printed: bool = False) -> float:
    """Return a bound on one record's term of the hypergradient at exact inner solutions: L0_f (1 + L1_g / mu).

    The proof (line 707) bounds the partial gradient of f by a chain rule, in (5), and gets 5 L1_g L0_f / mu
    (`printed`), at most 5 ell kappa. L0_f alone bounds that gradient, so the printed bound holds and is larger, because
    L1_g >= mu.

    >>> lemma_3_5(Smoothness(1.0, 1.0, 2.0, 2.0, 0.0, 0.5)), lemma_3_5(Smoothness(1.0, 1.0, 2.0, 2.0, 0.0, 0.5), True)
    (5.0, 20.0)
    """
    ratio = given.L1_g / given.mu
    return given.L0_f * (5 * ratio if printed else 1 + ratio)


@dataclass(frozen=True)
class OuterLoop:
    """State what Proposition 3.6 promises: |gradient mapping| <= alpha at the output.

    The output is reached after `steps` steps of size `step`.
    """

    alpha: float
    steps: int
    step: float


def proposition_3_6(L: float, drop: float, beta: float, sigma: float, d: int, gamma: float) -> OuterLoop:
    """Return the accuracy and number of steps of noisy projected descent on an L-smooth function in d dimensions.

    `beta` bounds the gradients' bias, `sigma` is their noise, `drop` is h(x0) minus its infimum, `gamma` the chance of
    failure. The step size is 1 / (2 L). The proof's constants are C = 8 (Lemma A.6) and T = 64 L drop / (3 alpha^2). It
    takes |nu|^2 <= d sigma^2 log(T / gamma) for the noise (line 727), which is false for small d: in one dimension the
    square exceeds log(T / gamma) with a chance of about sqrt(gamma / T). The bound used here, |nu| <= sigma (sqrt(d) +
    sqrt(2 log(T / gamma))), holds. alpha and T depend on each other; the smallest T that satisfies both is returned.

    >>> proposition_3_6(L=1.0, drop=1.0, beta=0.01, sigma=0.0, d=10, gamma=0.01)
    OuterLoop(alpha=0.08, steps=3334, step=0.5)
    """
    if not min(L, drop) > 0 or min(beta, sigma) < 0 or not beta + sigma > 0 or not 0 < gamma < 1:
        raise ValueError(
            f"L {L}, drop {drop}, beta {beta}, sigma {sigma}, gamma {gamma}: give L and drop > 0, beta and sigma not "
            "both 0 (without an error alpha can be chosen freely: T = 64 L drop / (3 alpha^2)), gamma in (0, 1)"
        )

    def alpha(steps: int) -> float:
        return 8 * max(beta, sigma * gaussian_norm(d, steps, gamma))

    low, high = 0, 1
    while 64 * L * drop / (3 * alpha(high) ** 2) > high:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if 64 * L * drop / (3 * alpha(middle) ** 2) > middle else (low, middle)
    return OuterLoop(alpha(high), high, 1 / (2 * L))


def gaussian_norm(d: int, draws: int, gamma: float) -> float:
    """Return a number that the norms of `draws` standard normal vectors all stay below, except with chance gamma.

    >>> round(gaussian_norm(1, draws=1, gamma=0.05), 3)
    3.448
    """
    return math.sqrt(d) + math.sqrt(2 * math.log(draws / gamma))


@dataclass(frozen=True)
class OuterBatch:
    """Give a batch for x that keeps the full-batch rate: as Remark 4.2 prints it, and as a mean's deviation asks."""

    printed: float
    needed: float


def remark_4_2(facts: Facts, n: int, epsilon: float) -> OuterBatch:
    """Return b_out = max((epsilon n / sqrt(dx))^(1/2), (epsilon n / sqrt(dy))^(1/3)), constants taken as 1.

    It rests on Lemma A.8 (line 827), where the mean of b vectors of length at most M is said to deviate by O~(M / b). A
    mean deviates by M / sqrt(b). `needed` is the batch at which ell kappa / sqrt(b) is Theorem 3.1's alpha. It grows
    like n^(2/3), not like the n^(1/3) that 1 / b would need.

    >>> batch = remark_4_2(Facts(dx=10, dy=10), n=10_000, epsilon=1.0)
    >>> round(batch.printed), round(batch.needed)
    (56, 135)
    """
    printed = max((epsilon * n / math.sqrt(facts.dx)) ** 0.5, (epsilon * n / math.sqrt(facts.dy)) ** (1 / 3))
    return OuterBatch(printed, (facts.ell * facts.kappa / rate(facts, n, epsilon).total) ** 2)
