"""Compute LDP-DSBO's corollaries: noise for a given budget, costs, rates of its parts, and its Table 1.

Chen and Wang, "Locally differentially private decentralized stochastic bilevel optimization with guaranteed convergence
accuracy", ICML 2024: Corollaries 4.3 and 4.7, Lemmas B.1, D.10 and D.11, Proposition G.1, Table 1 with (192) to (194).
Everything is as printed unless a docstring says otherwise; what the published epsilon leaves out is said in
`sottovoce.privacy.published.ldp_dsbo`.

>>> v, s = nonconvex_exponents(kappa=0.015)
>>> round(published.ldp_dsbo(math.inf, v, s, sigma=1.0, wbar=0.6))     # line 1747 says 66.67, which is 1 / kappa
16447
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from sottovoce.naming import unknown
from sottovoce.papers.ldp_dsbo.theory import Convexity, rate
from sottovoce.privacy import published


class Exponents(NamedTuple):
    """Hold the exponents of step sizes (v) and noise (s), each for x, y and z."""

    v: tuple[float, float, float]
    s: tuple[float, float, float]


def nonconvex_exponents(kappa: float) -> Exponents:
    """Return the exponents of Corollary 4.7 (G.2 and H.2), for kappa between 0 and 2/5.

    They give an error O(T^-(2/5 - kappa)) and a published budget of order 1 / kappa. H.2 states that budget, for
    kappa = 0.015, as 66.67 = 1 / kappa. The factor before it is not 1: the example of this module has the number that
    Theorem 4.5 gives.

    >>> nonconvex_exponents(0.25).v
    (0.85, 0.6625, 0.4)
    """
    if not 0 < kappa < 0.4:
        raise ValueError(f"kappa is {kappa}: give a number between 0 and 2/5")
    v = 0.6 + kappa, 0.6 + kappa / 4, 0.4
    return Exponents(v, (v[0] - kappa / 4, v[1] - kappa / 4, v[2] - kappa / 8))


def sensitivity_182(v: float, wbar: float, t: int) -> float:
    """Return (182) to (184): the sensitivity C / (t+1)^(1+v) of message t, for step sizes that decay like t^-v.

    C has no gradient and no step size in it. The lemma that the proof cites bounds a sequence with
    D' <= (1 - w) D + b / (t+1)^(1+v) by a multiple of b, and b = 2 c lambda_0 was left out. So the bound fails where
    gradients are large.

    >>> round(sensitivity_182(0.66, 0.6, t=9), 4)
    0.2915
    """
    return published.ldp_dsbo_constant(v, wbar) / (t + 1) ** (1 + v)


def budget_187(v: Sequence[float], s: Sequence[float], sigma: Sequence[float], wbar: float) -> float:
    """Return (187), the bound on Theorem 4.5's epsilon for any T: the sum of sqrt(2) C / (sigma (v - s)) over x, y, z.

    >>> round(budget_187((.66, .64, .43), (.65, .63, .42), (1.0, 1.0, 1.0), wbar=.6), 1)
    5100.0
    """
    return sum(
        math.sqrt(2) * published.ldp_dsbo_constant(v_, wbar) / (sigma_ * (v_ - s_))
        for v_, s_, sigma_ in zip(v, s, sigma, strict=True)
    )


def noise_for_budget(epsilon: float, v: Sequence[float], s: Sequence[float], wbar: float) -> tuple[float, float, float]:
    """Return Corollary 4.7's sigma of x, y and z for a published budget epsilon: 3 sqrt(2) C / ((v - s) epsilon).

    Each variable gets a third of the budget. The convergence rate then is O(T^-(1 - v_x) / epsilon^2).

    >>> sigma = noise_for_budget(1.0, (.66, .64, .43), (.65, .63, .42), wbar=.6)
    >>> round(budget_187((.66, .64, .43), (.65, .63, .42), sigma, wbar=.6), 10)
    1.0
    """
    if not epsilon > 0 or not all(s_ < v_ for v_, s_ in zip(v, s)):
        raise ValueError(f"epsilon {epsilon}, v {v}, s {s}: give a positive epsilon, and noise exponents below v")
    x, y, z = (
        3 * math.sqrt(2) * published.ldp_dsbo_constant(v_, wbar) / ((v_ - s_) * epsilon)
        for v_, s_ in zip(v, s, strict=True)
    )
    return x, y, z


@dataclass(frozen=True)
class Complexity:
    """State Corollary 4.3: iterations of order delta^-`exponent`, each costing `per_step`, for an error delta."""

    exponent: float
    per_step: int

    def cost(self, delta: float) -> float:
        """Return the total for an error delta, up to a constant."""
        return float(self.per_step * delta**-self.exponent)


def complexity(v: Sequence[float], s: Sequence[float], case: Convexity, p: int, q: int) -> Complexity:
    """Return Corollary 4.3's complexity, max(p, q) delta^(-1 / rate), for p parameters in x and q in y.

    >>> complexity((.66, .64, .43), (.65, .63, .42), "strongly convex", p=3, q=5)
    Complexity(exponent=2.5, per_step=5)
    """
    return Complexity(round(1 / rate(v, s, case), 10), max(p, q))


def hyper_smoothness(L_f0: float, L_f1: float, L_g1: float, L_g2: float, mu_g: float, printed: bool = False) -> float:
    """Return Lemma B.1's L_F, the Lipschitz constant of the hypergradient.

    Line 476 prints L_g2 L_f0^2 / mu_g in its second term (`printed`). Twice the upper loss has twice the hypergradient,
    so L_F must be proportional to f; the square is a slip for L_g2 L_f0 / mu_g.

    >>> hyper_smoothness(2.0, 1.0, 1.0, 1.0, 1.0), hyper_smoothness(2.0, 1.0, 1.0, 1.0, 1.0, printed=True)
    (12.0, 14.0)
    """
    bent = L_g2 * (L_f0**2 if printed else L_f0)
    first, second = (2 * L_f1 * L_g1 + bent) / mu_g, (2 * L_g1 * L_f0 * L_g2 + L_g1**2 * L_f1) / mu_g**2
    return L_f1 + first + second + L_g2 * L_g1**2 * L_f0 / mu_g**3


def part_rates(v: Sequence[float], s: Sequence[float]) -> dict[str, float]:
    """Return the exponents with which errors fall: Lemma D.10's beta_0 ("sum") and Lemma D.11's, one per part.

    "x", "y" and "z" are the agents' disagreement, "y lag" and "z lag" the averages' distance from what they track.

    >>> {name: round(power, 2) for name, power in part_rates((.66, .64, .43), (.65, .63, .42)).items()}
    {'sum': 0.19, 'x': 1.3, 'y': 1.26, 'z': 0.84, 'y lag': 0.62, 'z lag': 0.4}
    """
    (_, vy, vz), (sx, sy, sz) = v, s
    return {
        "sum": min(2 * sx - vz - vy, 2 * sy - vz - vy, 2 * sz - vy, 2 - 2 * vy),
        "x": 2 * sx,
        "y": 2 * sy,
        "z": 2 * sz,
        "y lag": min(2 * sy - vy, 2 - 2 * vy),
        "z lag": min(2 * sx - 2 * vz, 2 * sy - 2 * vz, 2 * sz - vz),
    }


class SingleLevel(NamedTuple):
    """State Proposition G.1: an excess loss after a number of steps, up to constants."""

    loss: float
    steps: float


def single_level(epsilon: float, n: int, d: int, radius: float) -> SingleLevel:
    """Return Proposition G.1 for the lower level alone: loss M (sqrt(d) / (epsilon n) + 1 / sqrt(n)) and its T.

    T = (epsilon n)^4 / (M^4 d^2) makes (189), T^-1/4, the first term. (189) hides a constant that contains the noise,
    and by Corollary 4.7 the square of the noise is of order 1 / epsilon^2; the proof treats it as fixed.

    >>> single_level(epsilon=1.0, n=10_000, d=4, radius=1.0)
    SingleLevel(loss=0.0102, steps=625000000000000.0)
    """
    loss = radius * (math.sqrt(d) / (epsilon * n) + 1 / math.sqrt(n))
    return SingleLevel(loss, (epsilon * n) ** 4 / (radius**4 * d**2))


def budget_194(T: int, s: float) -> float:
    """Return (194)'s bound ((T+1)^s - 1) / s on the sum of (t+1)^-(1-s): the budget of a method with constant steps.

    >>> round(budget_194(99, 0.5), 6)
    18.0
    """
    return ((T + 1) ** s - 1) / s


def budget_192(T: int, K: int, v: float, s: float, decays: Literal["both", "inner"]) -> float:
    """Return H.1's sums after (192), up to a constant: the budget of MA-DSBO's y after T steps of K inner turns.

    Its noise decays as (k+1)^-s with the inner turn, and also as (t+1)^-s with the step ("both", design 1) or not
    ("inner", design 2); step sizes decay as (t+1)^-v. H.1 concludes that both tend to infinity with T. They do because
    it lets K grow as log(T), and then like K^(1+s) only. For a fixed K, such as the 10 of its experiments, both have a
    limit. In code: ``MaDsbo(within=Decay(1.0, s))``.

    >>> [round(budget_192(T, 10, 0.87, 0.81, "inner"), 1) for T in (100, 10_000, 1_000_000)]
    [34.3, 35.2, 35.2]
    """
    t, k = np.arange(2.0, T + 2), np.arange(2.0, K + 2)
    outer = 1 + v - s if decays == "both" else 1 + v
    return float(np.sum(t**-outer) * np.sum(k**s))


def cost_in_table_1(algorithm: str, delta: float, p: int, q: int) -> float:
    """Return the computational complexity that Table 1 prints, up to a constant, for an error delta.

    x has p parameters and y has q. BSA has one place, the others are decentralised. The four whose cost contains p q or
    q^2 compute whole Jacobians or Hessians.

    >>> round(cost_in_table_1("LDP-DSBO", 0.1, p=200, q=200)), round(cost_in_table_1("GBDSBO", 0.1, p=200, q=200))
    (79621, 13210340)
    """
    log, larger = math.log(1 / delta), max(p, q)
    costs = {
        "BSA": delta**-3 + (q * q * log + p * q) * delta**-2,
        "SPDB": larger * log * delta**-2,
        "VRDSBO": (p * q + q * q) * delta**-1.5,
        "DSBO-JHIP": p * q * log * delta**-3,
        "GBDSBO": (q * q * log + p * q) * delta**-2,
        "MA-DSBO": larger * log * delta**-2,
        "LDP-DSBO": larger * delta**-2.6,
    }
    if algorithm not in costs:
        raise ValueError(unknown("algorithm of Table 1", algorithm, costs))
    return float(costs[algorithm])


class TableRow(NamedTuple):
    """State a row of Table 1: delta^-`iterations` iterations, budget delta^-`printed`, or delta^-`derived` by (193)."""

    algorithm: str
    iterations: float
    printed: float
    derived: float


def table_1(s: float, kappa: float = 0.015) -> list[TableRow]:
    """Return Table 1's exponents of iterations and budget, for noise (t+1)^-s on the rivals.

    (193) gives a budget of order T^s with T = delta^-iterations. The table prints it as if s were 1, which (193)
    excludes: the rivals' budgets are overstated, for example delta^-2 where delta^-1.2 follows at s = 0.6.

    >>> table_1(s=0.6)[1]
    TableRow(algorithm='SPDB', iterations=2.0, printed=2.0, derived=1.2)
    """
    if not 0 < s < 1:
        raise ValueError(f"s is {s}: (193) is for noise exponents between 0 and 1")
    rivals = {"BSA": 3.0, "SPDB": 2.0, "VRDSBO": 1.5, "DSBO-JHIP": 3.0, "GBDSBO": 2.0, "MA-DSBO": 2.0}
    v, noise = nonconvex_exponents(kappa)
    ours = TableRow("LDP-DSBO", 1 / rate(v, noise, "nonconvex"), 0.0, 0.0)
    return [*(TableRow(name, power, power, power * s) for name, power in rivals.items()), ours]
