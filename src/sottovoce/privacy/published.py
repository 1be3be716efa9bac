"""Compute the five papers' privacy bounds as printed.

None of them is sound for its whole algorithm. They are here to reproduce the papers, and to be shown beside the bounds
that hold, which are in `sottovoce.privacy.sound`. For example, BAMBI-DP prints epsilon 1 for a whole run at Laplace
scale 1, and `sound.label_fresh` gives 40 for 20 uses of a label with one perturbed copy. Each function says what its
number does not cover.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

OneOrThree = float | Sequence[float]  # one value for x, y and z together, or one value per variable
NoiseScheme = tuple[Literal["S1", "S2"], float] | Callable[[np.ndarray], Any]


def triple(name: str, value: OneOrThree) -> tuple[float, float, float]:
    """Return a setting's values for x, y and z, repeating a single one.

    >>> triple("clip", 1.0)
    (1.0, 1.0, 1.0)
    """
    values = tuple(float(v) for v in value) if isinstance(value, Sequence) else (float(value),) * 3
    if len(values) != 3:
        raise ValueError(f"{name} has {len(values)} values: give one number, or three for x, y and z")
    return values


def ldp_dsbo(T: float, v: OneOrThree, s: OneOrThree, sigma: OneOrThree, wbar: float) -> float:
    """Compute LDP-DSBO, Theorem 4.5: sum over x, y, z and t = 1..T of sqrt(2) C_v / (sigma_v (t+1)^(1 + v_v - s_v)).

    Step sizes decay like t^-v, noise like t^-s; wbar is the smallest |w_ii| (the text prints min w_ii, which is
    negative; its proof uses the absolute value). T may be infinite. Not covered: the size of gradients and step
    sizes (they do not appear at all), the z channel, where no finite epsilon exists.

    >>> round(ldp_dsbo(20, v=(.66, .64, .43), s=(.65, .63, .42), sigma=1.0, wbar=.6), 8)
    132.57462913
    """
    if not 0 < wbar < 1:
        raise ValueError(f"wbar is {wbar}: give min |w_ii|, in (0, 1)")
    total = 0.0
    for v_, s_, sigma_ in zip(triple("v", v), triple("s", s), triple("sigma", sigma)):
        total += math.sqrt(2) * ldp_dsbo_constant(v_, wbar) / sigma_ * _power_sum(T, 1 + v_ - s_)
    return total


def ldp_dsbo_constant(v: float, wbar: float) -> float:
    """Return Theorem 4.5's C_epsilon of one variable, whose step sizes decay like t^-v.

    >>> round(ldp_dsbo_constant(0.66, 0.6), 4)
    13.326
    """
    rate = 1 + v
    return 4 / wbar * (4 * rate / (math.e * math.log(4 / (2 - 2 * wbar)))) ** rate


def _power_sum(T: float, power: float) -> float:
    """Return the sum of (t+1)^-power over t = 1..T."""
    if math.isinf(T):
        from scipy.special import zeta as hurwitz_zeta

        return float(hurwitz_zeta(power, 2)) if power > 1 else math.inf
    return float(np.sum(np.arange(2, int(T) + 2, dtype=float) ** -power))


def bambi_dp(c: float) -> float:
    """Compute BAMBI-DP, Theorem 2: 1/c for the whole run, with Laplace scale c.

    Not covered: any release after the first, the zeroth-order copies, and more than two classes, where the label can
    be read off with certainty.

    >>> bambi_dp(2.0)
    0.5
    """
    if not c > 0:
        raise ValueError(f"Laplace scale c is {c}: give a number > 0")
    return 1 / c


def scheme_scale(scheme: NoiseScheme, K: int) -> np.ndarray:
    """Return Laplace scales for k = 0..K: ("S1", p) is (k+1)^p, ("S2", p) is p^K at every k; or any function of k.

    >>> scheme_scale(("S1", 1.0), 2).tolist(), scheme_scale(("S2", 0.5), 2).tolist()
    ([1.0, 2.0, 3.0], [0.25, 0.25, 0.25])
    """
    if callable(scheme):
        return np.broadcast_to(np.asarray(scheme(np.arange(K + 1)), dtype=float), K + 1)
    kind, p = scheme
    if kind == "S1":
        return np.arange(1, K + 2, dtype=float) ** p
    if kind == "S2":
        return np.full(K + 1, float(p) ** K)
    raise ValueError(f"noise scheme is {kind!r}: choose 'S1', (k+1)^p, or 'S2', p^K")


def gradient_tracking(
    K: int, C: float, m: int, a: float, b: float, gamma: float, zeta: NoiseScheme, eta: NoiseScheme
) -> float:
    """Compute DP gradient tracking, Lemmas 4 and 5, for a = alpha sum_j R_ij and b = beta sum_j C_ij.

    Not covered: C is an L2 bound used as an L1 bound (a factor up to sqrt(d)); all m gradients drift once the states
    differ, which grows without bound for negative curvature; and the bound is for the form (4), (6), not (7), (8).

    >>> round(gradient_tracking(10, 1.0, 10, .5, .5, .1, ("S1", 0), ("S1", 0)), 8)
    4.40107422
    """
    scale_x, scale_y = scheme_scale(zeta, K), scheme_scale(eta, K)
    if not (np.all(scale_x > 0) and np.all(scale_y > 0)):
        return math.inf  # a message without noise
    x, y, total = 0.0, C / m, 0.0
    for k in range(K + 1):
        total += x / scale_x[k] + y / scale_y[k]
        x, y = abs(1 - a) * x + gamma * y, abs(1 - b) * y + 2 * C / m
    return float(total)


def dpmixsgd(sigma: float, T: int, m: int, Lg: float, gamma: float, c: float = 1.0) -> float:
    """Compute DPMixSGD, Theorem 2 solved for theta; gamma is its delta, c its unspecified constant.

    Not covered: what a neighbour sees (it is proved for the network's average, a factor sqrt(m)), both variables
    together, the batch size. The paper's own chain gives c = 4 sqrt(2).

    >>> round(dpmixsgd(10.0, 10, 5, 1.0, 1e-5), 8)
    5.97411658
    """
    return dpmixsgd_sigma(1.0, T, m, Lg, gamma, c) / sigma


def dpmixsgd_sigma(theta: float, T: int, m: int, Lg: float, gamma: float, c: float = 1.0) -> float:
    """Compute DPMixSGD, Theorem 2: the noise printed for privacy (theta, gamma); see `dpmixsgd` for what it omits.

    >>> round(dpmixsgd(dpmixsgd_sigma(2.0, 10, 5, 1.0, 1e-5), 10, 5, 1.0, 1e-5), 12)
    2.0
    """
    spread = 8 * T * (T + 1) * (2 * T + 1) / 3 + 4 * T
    return c * Lg * math.sqrt(spread * math.log(1 / gamma)) / (2 * theta * math.sqrt(m))


def dp_bilevel(sigma: float, ell: float, kappa: float, T: int, n: int, delta: float, Cabs: float) -> float:
    """Compute DP bilevel, Theorem 3.1 solved for epsilon; Cabs is its absolute constant (3600 from its own lemmas).

    Not covered: the composition step loses a logarithm, sampling with replacement is misquoted, and the sensitivity
    is proved at exact minimisers only.

    >>> round(dp_bilevel(1.0, 1.0, 10.0, 100, 10_000, 1e-5, 1.0), 8)
    0.04014735
    """
    return math.sqrt(Cabs * T * math.log(T / delta)) * ell * kappa / (sigma * n)
