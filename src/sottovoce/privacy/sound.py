"""Compute privacy bounds that are proved, for both designs of each method.

The bounds rest on two lemmas.

*Public state*: a message is a function of earlier messages, plus a data term whose sensitivity is at most Delta_t for
all values of those messages, plus fresh noise. It costs Delta_t over the noise, and costs compose. For example, a sound
design sends a public state plus a clipped and noised gradient.

*Private linear state*: the un-noised state is kept. If the data term is evaluated at public points, the sensitivity is
carried on, Delta_t = |a_t| Delta_{t-1} + sens(A_t). If it is evaluated at the private state itself, the drift
Lip(A_t) Delta must be added, and no clipping removes it. For example, a printed design keeps its own state and sends
noisy copies of it.

Every function takes `adjacency` and returns an `Epsilon`, a float that states its adjacency, delta and accountant.
The default adjacency is zero-out for Poisson and with-replacement sampling, replace-one otherwise. All bounds are for
the ideal mechanism (real numbers), need fixed denominators and fresh secret coins, and shrink as the noise grows.
"""

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np

from sottovoce.privacy.accountant import (
    Adjacency,
    Amplification,
    Epsilon,
    Mechanism,
    NoAmplification,
    PoissonAmplification,
    RedrawAmplification,
    SubsetAmplification,
    check_adjacency,
    epsilon,
)
from sottovoce.privacy.gdp import gdp_delta, gdp_epsilon
from sottovoce.privacy.mechanisms import clips_moved
from sottovoce.privacy.published import NoiseScheme, OneOrThree, scheme_scale, triple
from sottovoce.privacy.sensitivities import storm_sensitivity, tracking_box, tracking_compact, tracking_tight

__all__ = [
    "dp_bilevel",
    "gdp_delta",
    "gdp_epsilon",
    "gradient_release",
    "gradient_tracking_printed",
    "label_fresh",
    "label_randomized_response",
    "ldp_dsbo",
    "ldp_dsbo_printed",
    "storm_printed",
    "storm_released",
    "storm_sensitivity",
]


def ldp_dsbo(
    T: int,
    v: OneOrThree,
    s: OneOrThree,
    sigma: OneOrThree,
    lam0: OneOrThree,
    clip: OneOrThree,
    noise: Literal["laplace", "gaussian"] = "laplace",
    delta: float = 0.0,
    *,
    adjacency: Adjacency = "replace-one",
) -> Epsilon:
    """Bound LDP-DSBO with noisy own state: gradients at the own broadcasts, records clipped, means over t+1 records.

    Guarantee for the record that arrives first, the worst one: every message of one agent over T rounds. `clip` is an
    L1 bound for Laplace noise of scale sigma / (sqrt(2) (t+1)^s), an L2 bound for Gaussian noise of std
    sigma / (t+1)^s; step sizes are lam0 / (t+1)^v. Laplace at delta = 0 is the pure sum; Gaussian needs delta > 0.

    >>> settings = dict(v=(.66, .64, .43), s=(.65, .63, .42), sigma=1.0, lam0=(.05, .05, .02), clip=1.0)
    >>> round(ldp_dsbo(20, **settings), 8)
    1.49699492
    """
    if noise not in ("laplace", "gaussian"):
        raise ValueError(f"noise is {noise!r}: choose 'laplace' or 'gaussian'")
    t = np.arange(T, dtype=float)
    inverse = []
    for v_, s_, sigma_, lam0_, clip_ in zip(*_triples(v=v, s=s, sigma=sigma, lam0=lam0, clip=clip)):
        contribution = clip_ * lam0_ / (t + 1) ** v_ / (t + 1)
        inverse.append(contribution * (t + 2) ** s_ / sigma_)  # the message of round t carries noise number t + 1
    ratios = np.concatenate(inverse)
    if noise == "gaussian":
        return epsilon([(Mechanism(gaussian=float(ratios @ ratios)), 1)], delta, adjacency)
    releases = [(Mechanism(laplace=(math.sqrt(2) * float(ratio),)), 1) for ratio in ratios]
    return epsilon(releases, delta, adjacency)


def ldp_dsbo_printed(
    T: int,
    v: OneOrThree,
    s: OneOrThree,
    sigma: OneOrThree,
    lam0: OneOrThree,
    w: float,
    c_h: float,
    c_l: float,
    c_z: float,
    L_h1: float,
    L_l1: float,
    L_l2: float,
    H1: float,
    *,
    adjacency: Adjacency = "replace-one",
) -> Epsilon:
    """Bound LDP-DSBO as printed (own state kept un-noised), by the recursions (171), (176), (178) run numerically.

    Holds at delta = 0 for the messages of rounds 1..T, if all constants are true in L1: per-record gradients of h and l
    (in x and in y) at most c_h and c_l, their Lipschitz constants L_h1 and L_l1 (the latter also bounds the mixed
    Hessian of l), L_l2 that of the Hessians of l, H1 a bound on its Hessian in y, w the own weight |w_ii|, and |z|_1
    kept below c_z by a coordinate-wise clamp. Clipping cannot supply the Lipschitz constants. It is infinite if some
    message has no noise.

    >>> constants = dict(w=.6, c_h=1.0, c_l=1.0, c_z=1.0, L_h1=0.0, L_l1=0.0, L_l2=0.0, H1=0.0)
    >>> settings = dict(v=(.66, .64, .43), s=(.65, .63, .42), sigma=1.0, lam0=(.05, .05, .02))
    >>> round(ldp_dsbo_printed(20, **settings, **constants), 7)
    2.7346715
    """
    change = clips_moved(adjacency)
    _require_not_negative(c_h=c_h, c_l=c_l, c_z=c_z, L_h1=L_h1, L_l1=L_l1, L_l2=L_l2, H1=H1)
    (vx, vy, vz), ss, sigmas, (lx, ly, lz) = _triples(v=v, s=s, sigma=sigma, lam0=lam0)
    if not min(sigmas) > 0:
        return Epsilon(math.inf, delta=0.0, adjacency=adjacency, accountant="pure sum")
    lx, ly, lz = abs(lx), abs(ly), abs(lz)  # steps uphill move a difference as far as steps downhill
    keep, drift = abs(1 - w), L_h1 + c_z * L_l2
    x = y = z = total = 0.0
    for t in range(T):
        step_x, step_y, step_z = lx / (t + 1) ** vx, ly / (t + 1) ** vy, lz / (t + 1) ** vz
        others = t / (t + 1)  # the share of records that are the same in both data sets
        x, y, z = (
            keep * x + step_x * (others * drift * (x + y) + L_l1 * z + change * (c_h + c_z * L_l1) / (t + 1)),
            keep * y + step_y * (others * L_l1 * (x + y) + change * c_l / (t + 1)),
            (keep + H1 * step_z) * z + step_z * (others * drift * (x + y) + change * (c_h + c_z * L_l1) / (t + 1)),
        )
        total += sum(d * math.sqrt(2) * (t + 2) ** s_ / sigma_ for d, s_, sigma_ in zip((x, y, z), ss, sigmas))
    return Epsilon(total, delta=0.0, adjacency=adjacency, accountant="pure sum")


def label_fresh(
    c: float,
    uses: int,
    Q: int,
    multiclass: bool = False,
    delta: float = 0.0,
    *,
    adjacency: Adjacency = "replace-one",
) -> Epsilon:
    """Bound labels with fresh Laplace noise of scale c at each use, and Q zeroth-order copies of each use.

    The neighbour has one label changed; a removed label counts as changed to a public default, so the bound is the same
    under zero-out. Two classes: the label moves by 1. More: the one-hot vector moves by 1 in two coordinates, each with
    its own noise. Batches are known to everybody, so sampling amplifies nothing.

    >>> float(label_fresh(1.0, uses=20, Q=1))
    40.0
    """
    releases = uses * (Q + 1) * (2 if multiclass else 1)
    half = Mechanism(laplace=(0.5 / c,))  # the accountant doubles a contribution that is replaced
    return _as(epsilon([(half, releases)], delta, "replace-one"), adjacency)


def label_randomized_response(
    epsilon: float, classes: int, releases: int = 1, *, adjacency: Adjacency = "replace-one"
) -> Epsilon:
    """Bound labels drawn by k-ary randomised response: `epsilon` per time that a label is drawn.

    A label that is drawn once and remembered has releases = 1, however often it is used in training, in zeroth-order
    copies or at the upper level. The likelihood ratio of any two labels is exactly e^epsilon, for every number of
    classes.

    >>> float(label_randomized_response(1.0, classes=10, releases=5))
    5.0
    """
    if classes < 2:
        raise ValueError(f"classes is {classes}: a label needs at least 2 possible values")
    if not epsilon >= 0:
        raise ValueError(f"epsilon of one release is {epsilon}: give a number >= 0")
    return Epsilon(epsilon * releases, delta=0.0, adjacency=adjacency, accountant="pure sum")


def gradient_tracking_printed(
    K: int,
    c: float,
    a: float,
    b: float,
    gamma: float,
    L1: float,
    zeta: NoiseScheme,
    eta: NoiseScheme,
    form: Literal["box", "compact", "tight"] = "box",
    *,
    adjacency: Adjacency = "replace-one",
) -> Epsilon:
    """Bound DP gradient tracking as printed (private states, Laplace messages), with the drift of the gradients.

    Holds at delta = 0 for all messages k = 0..K, if c bounds the L1 change of the batch gradient at a fixed point when
    one record changes in the sense of `adjacency` (2 C1/m for per-record L1 clip C1 under replace-one) and the batch
    gradient is L1-Lipschitz from L1 to L1. box and tight: the algorithm of (4) and (6), tight by impulse responses;
    compact: the one of (7) and (8). It is infinite if some message has no noise.

    >>> round(gradient_tracking_printed(10, .1, .5, .5, .1, 0.0, ("S1", 0), ("S1", 0)), 8)
    2.32037109
    """
    recursions = {"box": tracking_box, "compact": tracking_compact, "tight": tracking_tight}
    if form not in recursions:
        raise ValueError(f"form is {form!r}: choose one of {', '.join(recursions)}")
    _require_not_negative(c=c, L1=L1)
    x, y = recursions[form](K, c, a, b, gamma, L1)
    noise_x, noise_y = scheme_scale(zeta, K), scheme_scale(eta, K)
    total = math.inf
    if np.all(noise_x > 0) and np.all(noise_y > 0):  # a message without noise is no term of the sum: 0 / 0 is no cost
        total = float(np.sum(x / noise_x) + np.sum(y / noise_y))
    return Epsilon(total, delta=0.0, adjacency=check_adjacency(adjacency), accountant="pure sum")


def gradient_release(
    K: int,
    m: int,
    D: int,
    C2: float,
    sigma: float,
    delta: float,
    sampling: Literal["poisson", "without_replacement", "none"] = "poisson",
    *,
    adjacency: Adjacency | None = None,
) -> Epsilon:
    """Bound K+1 clipped noisy gradients, each from a fresh batch of m out of D records; the rest is post-processing.

    Each release is (1/m) sum clip(g, C2) + N(0, sigma^2 I) with m fixed (the expected size for Poisson). "none" claims
    no amplification.

    >>> round(gradient_release(500, 100, 1000, 1.0, 0.1, 1e-5, "without_replacement"), 4)
    1.9159
    """
    drawn, default = _sampling(sampling, D, m)
    mechanism = Mechanism(gaussian=(C2 / (m * sigma)) ** 2, amplification=drawn)
    return epsilon([(mechanism, K + 1)], delta, adjacency or default)


def storm_printed(
    T: int,
    beta_x: float,
    beta_y: float,
    C: float,
    batch: int,
    b0: int,
    sigma_x: float,
    sigma_y: float,
    participation: Iterable[int] | None,
    gamma: float,
    *,
    adjacency: Adjacency = "replace-one",
) -> Epsilon:
    """Bound DPMixSGD as printed plus clipping: both noised STORM estimators of one agent at every step; gamma is delta.

    The guarantee is for a record with this participation, in a schedule that does not depend on data: take the largest
    bound over all records. Gradients are evaluated at public points, so nothing drifts.

    >>> round(storm_printed(100, .1, .1, 1.0, 20, 10_000, 1.0, 1.0, {1}, 1e-5), 8)
    2.52046836
    """
    steps = None if participation is None else list(participation)
    inverse = 0.0
    for beta, sigma in [(beta_x, sigma_x), (beta_y, sigma_y)]:
        ratios = storm_sensitivity(T, beta, C, batch, b0, steps, adjacency="zero-out") / sigma
        inverse += float(ratios @ ratios)
    return epsilon([(Mechanism(gaussian=inverse), 1)], gamma, adjacency)


def storm_released(
    T: int,
    beta_x: float,
    beta_y: float,
    C: float,
    batch: int,
    b0: int,
    n: int,
    sigma_x: float,
    sigma_y: float,
    gamma: float,
    *,
    adjacency: Adjacency = "zero-out",
) -> Epsilon:
    """Bound DPMixSGD built on released estimators with Poisson batches; gamma is delta.

    The first batch has expected size min(b0, n), later ones `batch`; x and y share a batch and are one mechanism. What
    one record adds later, grad_t - (1-beta) grad_{t-1}, is clipped to (2-beta) C.

    >>> round(storm_released(1000, .1, .1, 1.0, 20, 2000, 2000, .2, .2, 1e-5), 3)
    0.927
    """
    first = min(b0, n)
    start = sum((C / (first * sigma)) ** 2 for sigma in (sigma_x, sigma_y))
    later = sum(((2 - beta) * C / (batch * sigma)) ** 2 for beta, sigma in [(beta_x, sigma_x), (beta_y, sigma_y)])
    mechanisms = [
        (Mechanism(start, amplification=PoissonAmplification(first / n)), 1),
        (Mechanism(later, amplification=PoissonAmplification(batch / n)), T - 1),
    ]
    return epsilon(mechanisms, gamma, adjacency)


def dp_bilevel(
    T: int,
    n: int,
    C_out: float,
    sigma_out: float,
    inner: Iterable[tuple[float, float, int]],
    delta: float,
    sampling: Literal["full", "poisson", "with_replacement"] = "full",
    batch: int | None = None,
    *,
    adjacency: Adjacency | None = None,
) -> Epsilon:
    """Bound DP bilevel with clipping: T outer steps, each with one outer release and each inner loop once.

    `inner` has one (C_in, sigma_in, steps) per inner loop.

    Releases are means over n records ("full") or sums over a fresh batch per release divided by `batch`.

    >>> round(dp_bilevel(50, 5000, 2.0, .02, [(1.0, .05, 30)] * 2, 1e-5), 8)
    2.08927027
    """
    if (batch is None) != (sampling == "full"):
        raise ValueError(f"sampling is {sampling!r} and batch is {batch}: give a batch for all but full sampling")
    drawn, default = _sampling(sampling, n, n if batch is None else batch)
    releases = [(C_out, sigma_out, 1), *inner]
    mechanisms = [
        (Mechanism(gaussian=(clip / ((batch or n) * sigma)) ** 2, amplification=drawn), T * steps)
        for clip, sigma, steps in releases
    ]
    return epsilon(mechanisms, delta, adjacency or default)


def _sampling(name: str, size: int, batch: int) -> tuple[Amplification, Adjacency]:
    """Return the amplification of a sampling, and the adjacency in which its bound is usually stated."""
    if name in ("none", "full"):
        return NoAmplification(), "replace-one"
    if name == "poisson":
        return PoissonAmplification(batch / size), "zero-out"
    if name == "without_replacement":
        return SubsetAmplification(size, batch), "replace-one"
    if name == "with_replacement":
        return RedrawAmplification(size, batch), "zero-out"
    raise ValueError(f"sampling is {name!r}: see the function's signature for its choices")


def _as(bound: Epsilon, adjacency: Adjacency) -> Epsilon:
    """Restate a replace-one bound for an adjacency that it implies."""
    return Epsilon(
        bound, delta=bound.delta, adjacency=adjacency, accountant=bound.accountant, considered=bound.considered
    )


def _require_not_negative(**constants: float) -> None:
    for name, value in constants.items():
        if not value >= 0:
            raise ValueError(f"{name} is {value}: give a number >= 0, because it bounds a size")


def _triples(**settings: OneOrThree) -> list[tuple[float, float, float]]:
    return [triple(name, value) for name, value in settings.items()]
