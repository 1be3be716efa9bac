"""Noise that is safe on real machines: whole numbers, exact distributions, the operating system's entropy.

Floating-point noise is no differentially private mechanism bit for bit: some outputs are possible under one data set
and impossible under its neighbour (the exhibits "last-bit" and "float32-normal" attack exactly this). Here every number
that depends on a record is a whole number of grid steps, from the clipped gradient to the noisy sum.

**Which path, and its proof.** Rounding is done per record, before summation, toward zero. A record's clipped gradient
becomes a vector of whole numbers whose norm is *checked in whole numbers* to be at most `clip` grid steps; a record
that is not finite becomes zero. Whole numbers add without error, so removing a record moves the sum by at most `clip`
in that norm, exactly: rounding adds nothing to the sensitivity. (Rounding a floating-point sum instead would add the
grid step times d in L1, or sqrt(d) in L2, and the error of the summation.) The noise is drawn from the exact discrete
distribution by integer arithmetic alone, and the noisy sum is divided last, which is post-processing. The price is one
gradient per record in memory: book-keeping, which never forms them, cannot be used.
"""

import math
import random
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from scipy.special import gammaln, logsumexp

from sottovoce.privacy.mechanisms import Adjacency, Epsilon, clips_moved
from sottovoce.privacy.release import Noise, Release

_LARGEST = 2**62  # of any sum of whole numbers, so that 64 bits hold it


@dataclass(frozen=True)
class GridRelease:
    """One release in whole numbers: `clip` and `scale` count grid steps, `step` is a power of two.

    Guarantee: the result is a function of S + Z, where one record moves the whole-number vector S by at most `clip`
    (L1 for Laplace, L2 for Gaussian noise) and Z has independent coordinates, discrete Laplace with P[z] proportional
    to exp(-|z| / scale), or discrete Gaussian with P[z] proportional to exp(-z^2 / (2 scale^2)).

    >>> grid = on_grid(Release(clip=1.0, noise=0.125), denominator=8)
    >>> grid.clip, grid.scale
    (65536, 65536)
    >>> made = grid.release(np.ones((8, 3)) / 8, random.Random(0))
    >>> bool(np.all(np.abs(made - 0.125) < 0.6))
    True
    """

    clip: int
    scale: int
    step: float
    denominator: int
    mechanism: Noise = "gaussian"

    def __post_init__(self) -> None:
        if self.clip < 1 or self.scale < 1 or self.denominator < 1:
            raise ValueError(f"clip {self.clip}, scale {self.scale}, denominator {self.denominator}: all must be >= 1")
        if math.frexp(self.step)[0] != 0.5:
            raise ValueError(f"the grid step is {self.step}: it must be a power of two, so that scaling is exact")

    def whole(self, gradients: np.ndarray) -> np.ndarray:
        """Each record's gradient, clipped and cut toward zero to whole numbers of steps: shape (records, d)."""
        gradients = np.asarray(gradients, np.float64)
        gradients = np.where(np.all(np.isfinite(gradients), axis=1, keepdims=True), gradients, 0.0)
        if gradients.shape[1] * self.clip**2 > _LARGEST or len(gradients) * self.clip > _LARGEST:
            raise ValueError(f"{gradients.shape} gradients of {self.clip} steps overflow 64 bits: use a coarser grid")
        largest = np.max(np.abs(gradients), axis=1, keepdims=True)
        unit = gradients / np.where(largest > 0, largest, 1.0)  # so that squares neither overflow nor vanish
        length = np.abs(unit).sum(1, keepdims=True) if self._l1 else np.linalg.norm(unit, axis=1, keepdims=True)
        kept = np.minimum(largest, self.clip * self.step / np.maximum(length, 1.0))
        steps = np.clip(np.trunc(unit * (kept / self.step)), -self.clip, self.clip).astype(np.int64)
        while np.any(over := ~self._within(steps)):  # floating-point norms may be off in the last digits
            steps[over] = np.trunc(steps[over] * (1 - 2.0**-20)).astype(np.int64)
        return steps

    @property
    def _l1(self) -> bool:
        return self.mechanism == "laplace"

    def _within(self, steps: np.ndarray) -> np.ndarray:
        return np.abs(steps).sum(1) <= self.clip if self._l1 else (steps**2).sum(1) <= self.clip**2

    def noise(self, size: int, source: random.Random | None = None) -> np.ndarray:
        """Exact noise in steps; `source` is for tests, the operating system's entropy by default."""
        source = source or secrets.SystemRandom()
        draw = discrete_laplace if self._l1 else discrete_gaussian
        return np.array([draw(self.scale, source) for _ in range(size)], dtype=object)

    def release(self, gradients: np.ndarray, source: random.Random | None = None) -> np.ndarray:
        """The noised mean of a batch's gradients, shape (records, d)."""
        total = self.whole(gradients).sum(axis=0).astype(object) + self.noise(gradients.shape[1], source)
        return (total.astype(np.float64) * self.step) / self.denominator


def on_grid(release: Release, denominator: int, t: int = 0, agent: int = 0, bits: int = 16) -> GridRelease:
    """A release at step t in whole numbers: a record's clip is at least 2**bits steps, and noise is rounded up.

    >>> on_grid(Release(clip=1.5, noise=0.01, mechanism="laplace"), denominator=100).mechanism
    'laplace'
    """
    if not release.private:
        raise ValueError(f"release {release.name!r} has no clip or no noise: there is nothing to make exact")
    step = 2.0 ** (math.frexp(release.clip)[1] - 1 - bits)
    scale = Fraction(float(release.scale(t, agent))) * denominator / Fraction(step)
    return GridRelease(int(release.clip / step), math.ceil(scale), step, int(denominator), release.mechanism)


def poisson_coins(n: int, rate: float) -> np.ndarray:
    """Which of n records take part, each with probability `rate` rounded down to a multiple of 2**-32: secret coins.

    >>> int(poisson_coins(1000, 1.0).sum())
    1000
    """
    coins = np.frombuffer(secrets.token_bytes(4 * n), np.uint32)
    return coins.astype(np.uint64) < np.uint64(int(Fraction(rate) * 2**32))


# Exact samplers (Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020).


def discrete_laplace(scale: int, source: random.Random) -> int:
    """A whole number z with probability proportional to exp(-|z| / scale).

    >>> [discrete_laplace(3, random.Random(seed)) for seed in range(5)]
    [-1, 0, 0, 8, 6]
    """
    while True:
        low = source.randrange(scale)
        if not _flip_exp(low, scale, source):
            continue
        high = 0
        while _flip_exp(1, 1, source):
            high += 1
        size, negative = low + scale * high, source.randrange(2)
        if size or not negative:  # zero has one sign only
            return -size if negative else size


def discrete_gaussian(scale: int, source: random.Random) -> int:
    """A whole number z with probability proportional to exp(-z**2 / (2 scale**2)).

    >>> [discrete_gaussian(3, random.Random(seed)) for seed in range(5)]
    [-3, 1, 0, 3, -1]
    """
    around = scale + 1
    while True:
        z = discrete_laplace(around, source)
        # accept with exp(-(|z| - scale^2 / around)^2 / (2 scale^2)), as a ratio of whole numbers
        if _flip_exp((abs(z) * around - scale**2) ** 2, 2 * scale**2 * around**2, source):
            return z


def _flip_exp(top: int, bottom: int, source: random.Random) -> bool:
    """True with probability exp(-top / bottom), exactly."""
    for _ in range(top // bottom):
        if not _flip_exp_below_one(1, 1, source):
            return False
    return _flip_exp_below_one(top % bottom, bottom, source)


def _flip_exp_below_one(top: int, bottom: int, source: random.Random) -> bool:
    """The alternating series of exp(-g), g <= 1, as a game: stop at the first k whose coin of probability g/k fails."""
    k = 1
    while source.randrange(bottom * k) < top:
        k += 1
    return k % 2 == 1


# The account.


def epsilon(
    releases: Iterable[tuple[GridRelease, int]], delta: float, adjacency: Adjacency, rate: float | None = None
) -> Epsilon:
    """Epsilon of whole-number releases, each so often; with `rate`, each from a fresh Poisson batch of its own.

    Laplace: the exact privacy loss distribution of the scalar discrete Laplace mechanism, which dominates the
    vector one (all pairs of shifts share their most powerful tests, thresholds, so shifts in several coordinates are no
    worse than their sum in one). Gaussian: concentrated DP, rho = sum (clip / scale)^2 / 2 in any dimension, and under
    Poisson sampling the Rényi bound of Zhu and Wang (ICML 2019) for general mechanisms. With a rate only zero-out
    is proved.

    >>> grid = GridRelease(clip=1, scale=1, step=1.0, denominator=1, mechanism="laplace")
    >>> round(epsilon([(grid, 20)], 1e-5, "zero-out"), 2)
    19.99
    """
    items = [(grid, count) for grid, count in releases if count]
    moved = int(clips_moved(adjacency))
    if rate is not None and adjacency != "zero-out":
        raise ValueError("sampled whole-number releases are accounted under zero-out only: use adjacency='zero-out'")
    if rate is not None and not 0 < rate <= 1:
        raise ValueError(f"sampling rate is {rate}: give a probability in (0, 1]")
    kinds = {grid.mechanism for grid, _ in items}
    if kinds == {"laplace"}:
        losses = [_laplace(grid, moved, rate).self_compose(count) for grid, count in items]
        value = reduce(lambda a, b: a.compose(b), losses).get_epsilon_for_delta(delta)
        return Epsilon(value, delta=delta, adjacency=adjacency, accountant="PLD, discrete Laplace")
    if kinds == {"gaussian"}:
        if not delta > 0:
            raise ValueError("delta is 0, where Gaussian releases have no finite epsilon: give delta > 0")
        value = _gaussian(items, moved, rate, delta)
        return Epsilon(value, delta=delta, adjacency=adjacency, accountant="zCDP, discrete Gaussian")
    if not kinds:
        return Epsilon(0.0, delta=delta, adjacency=adjacency, accountant="nothing released")
    raise ValueError("Laplace and Gaussian whole-number releases are not composed together: use one mechanism")


def _laplace(grid: GridRelease, moved: int, rate: float | None) -> Any:
    return privacy_loss_distribution.from_discrete_laplace_mechanism(
        1 / grid.scale, sensitivity=moved * grid.clip, sampling_prob=1.0 if rate is None else rate
    )


def _gaussian(items: list[tuple[GridRelease, int]], moved: int, rate: float | None, delta: float) -> float:
    rhos = [(count, (moved * grid.clip / grid.scale) ** 2 / 2) for grid, count in items]
    if rate is None or rate == 1:  # every real order is at hand
        orders = 1 + np.geomspace(1e-4, 1e6, 20_000)
        divergence = sum(count * rho for count, rho in rhos) * orders
    else:
        orders = np.arange(2.0, 513.0)
        divergence = np.sum([count * _sampled(orders, rho * orders, rate) for count, rho in rhos], axis=0)
    found = divergence + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(float(np.min(found)), 0.0)


def _sampled(orders: np.ndarray, plain: np.ndarray, rate: float) -> np.ndarray:
    """Rényi divergences under Poisson sampling from those without, at whole orders 2, 3, ..."""
    out = []
    for order in orders:
        j = np.arange(2, int(order) + 1)
        choose = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
        factor = np.where(j == 2, 0.0, math.log(3))
        terms = factor + choose + (order - j) * math.log1p(-rate) + j * math.log(rate) + (j - 1) * plain[j - 2]
        first = (order - 1) * math.log1p(-rate) + math.log(order * rate - rate + 1)
        out.append(float(logsumexp(np.append(terms, first))) / (order - 1))
    return np.array(out)
