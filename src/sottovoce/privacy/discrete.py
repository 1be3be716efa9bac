"""Noise that is safe on real machines: whole numbers, exact distributions, the operating system's entropy.

Floating-point noise is no differentially private mechanism bit for bit: some outputs are possible under one data set
and impossible under its neighbour (the exhibits "last-bit" and "runtime" attack exactly this). Here every number that
depends on a record is a whole number of grid steps, from the clipped gradient to the noisy sum.

**Sensitivity.** Rounding is done per record, before summation, toward zero. Each record's gradient is computed on its
own by one program, so it depends on no other record; it becomes a vector of whole numbers whose norm is *checked in
whole numbers* to be at most `clip` grid steps; a record that is not finite becomes zero. Whole numbers add without
error, so removing a record moves the sum by at most `clip` in that norm, exactly: rounding adds nothing to the
sensitivity. (Rounding a floating-point sum instead would add the grid step times d in L1, or sqrt(d) in L2, and the
error of the summation.) The noise is drawn by integer arithmetic alone, and the noisy sum is divided last, which is
post-processing. The price is one gradient per record: book-keeping, which never forms them, cannot be used.

**Charge.** Discrete noise has a charge of its own, `GridRelease.inverse_multiplier`: that of an ideal release which is
at least as revealing. Whatever holds for the ideal one (Poisson batches, several releases on one batch, composition
with anything else) then holds for the discrete one, which can be computed from the other's output without the data.
`on_grid` rounds the noise up until the charge is at most that of the stated release.

- Gaussian of whole scale s, any dimension: sigma^2 = s^2 - r^2 with r = 3. Take x = v + N(0, s^2 - r^2), and draw a
  whole number k from the discrete Gaussian of scale r around x: P[k] is the integral over x of
  phi(x - v) exp(-(k-x)^2 / 2r^2) / R(x), where R(x) = sum_j exp(-(j-x)^2 / 2r^2), by Poisson summation
  r sqrt(2 pi) (1 + 2 sum_i exp(-2 pi^2 r^2 i^2) cos(2 pi i x)), is constant up to factors 1 +- 2.1 exp(-18 pi^2), or
  1 +- 1e-76. Were it constant, P[k] would be proportional to exp(-(k-v)^2 / 2s^2): the discrete Gaussian around v. So
  probabilities differ by factors within 1 +- 1e-75 a coordinate, and by 1e-63 in a run of 10^12 draws: far below what
  the accountant charges for its own rounding.
- Laplace of whole scale s: 1/z = clip/s + 2 ln cosh(1/2s). In one coordinate, with a = e^(-1/s), the hockey-stick
  divergence at epsilon = (clip - 2j)/s is 1 - a^j, the value of the ideal one; between these points it is linear in
  E = e^epsilon where the ideal one is 1 - e^(-clip/2s) sqrt(E). For w = e^(1/s) the chord of the square root over
  [1, w^2] is (w + E)/(w + 1) >= sqrt(E) / cosh(1/2s), as w + E >= 2 sqrt(wE): so ideal noise with a shift larger by
  2s ln cosh(1/2s) dominates. Several coordinates are no worse than the sum of their shifts in one: threshold tests,
  randomised at one point, are most powerful for all shifts at once, so trade-off functions of shifts chain exactly.
"""

import math
import random
import secrets
from dataclasses import dataclass
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.privacy.release import NoiseKind, Release
from sottovoce.privacy.sampling import FixedSize, Poisson, Sampling, WithReplacement

_LARGEST = 2**62  # of any sum of whole numbers, so that 64 bits hold it
_BLUR = 3  # r above
_SLACK = 1 + Fraction(1, 2**40)  # a schedule's last digits may differ between a number and an array


@dataclass(frozen=True)
class GridRelease:
    """One release in whole numbers: `clip` and `scale` count grid steps, `step` is a power of two.

    Guarantee: the result is a function of S + Z, where one record moves the whole-number vector S by at most `clip`
    (L1 for Laplace, L2 for Gaussian noise) and Z has independent coordinates, discrete Laplace with P[z] proportional
    to exp(-|z| / scale), or discrete Gaussian with P[z] proportional to exp(-z^2 / (2 scale^2)).

    `denominator` is what a sum is divided by. Where two sets of records have two, it is a multiple of both, and S
    counts steps of the common grid.

    >>> grid = on_grid(Release(clip=1.0, noise=0.125), denominator=8)
    >>> grid.clip, grid.scale
    (65536, 65537)
    >>> grid.inverse_multiplier <= 1.0 / 8 / 0.125
    True
    >>> total = sum(grid.whole(gradient) for gradient in np.ones((8, 3)) / 8)
    >>> bool(np.all(np.abs(grid.noised(total, random.Random(0)) - 0.125) < 0.6))
    True
    """

    clip: int
    scale: int
    step: float
    denominator: int
    mechanism: NoiseKind = "gaussian"

    def __post_init__(self) -> None:
        if self.clip < 1 or self.scale < 1 or self.denominator < 1:
            raise ValueError(f"clip {self.clip}, scale {self.scale}, denominator {self.denominator}: all must be >= 1")
        if math.frexp(self.step)[0] != 0.5:
            raise ValueError(f"the grid step is {self.step}: it must be a power of two, so that scaling is exact")

    @property
    def inverse_multiplier(self) -> float:
        """1/z of an ideal release that is at least as revealing (zero-out, one set of records): what it is charged."""
        if self._l1:
            return self.clip / self.scale + 2 * math.log(math.cosh(0.5 / self.scale))
        return self.clip / math.sqrt(self.scale**2 - _BLUR**2) if self.scale > _BLUR else math.inf

    def whole(self, gradient: np.ndarray) -> np.ndarray:
        """One record's gradient, clipped and cut toward zero to whole numbers of steps."""
        gradient = np.asarray(gradient, np.float64)
        if gradient.size * self.clip**2 > _LARGEST:
            raise ValueError(f"{gradient.size} numbers of {self.clip} steps overflow 64 bits: use a coarser grid")
        largest = np.max(np.abs(gradient), initial=0.0)
        if largest == 0 or not np.all(np.isfinite(gradient)):
            return np.zeros(gradient.shape, np.int64)
        unit = gradient / largest  # so that squares neither overflow nor vanish
        length = np.abs(unit).sum() if self._l1 else np.sqrt(np.sum(unit * unit))
        kept = min(largest, self.clip * self.step / length)
        steps = np.clip(np.trunc(unit * (kept / self.step)), -self.clip, self.clip).astype(np.int64)
        while not self._within(steps):  # floating-point norms may be off in the last digits
            steps = np.trunc(steps * (1 - 2.0**-20)).astype(np.int64)
        return steps

    @property
    def _l1(self) -> bool:
        return self.mechanism == "laplace"

    def _within(self, steps: np.ndarray) -> bool:
        return bool(np.abs(steps).sum() <= self.clip if self._l1 else (steps**2).sum() <= self.clip**2)

    def noise(self, size: int, source: random.Random | None = None) -> np.ndarray:
        """Exact noise in steps; `source` is for tests, the operating system's entropy by default."""
        source = source or secrets.SystemRandom()
        draw = discrete_laplace if self._l1 else discrete_gaussian
        return np.array([draw(self.scale, source) for _ in range(size)], dtype=object)

    def noised(self, total: np.ndarray, source: random.Random | None = None) -> np.ndarray:
        """The mean to hand out, from a whole-number sum of steps."""
        noisy = np.asarray(total).astype(object) + self.noise(np.size(total), source)
        return noisy.astype(np.float64) * self.step / self.denominator

    def __str__(self) -> str:
        norm = "l1" if self._l1 else "l2"
        return (
            f"discrete {self.mechanism} noise of scale {self.scale} on whole-number sums of records clipped to "
            f"{self.clip} ({norm}), in steps of {self.step:g} / {self.denominator}"
        )


def on_grid(release: Release, denominator: int, t: int = 0, agent: int = 0, bits: int = 16) -> GridRelease:
    """A release at step t in whole numbers: a record's clip is at least 2**bits steps, and noise is rounded up.

    Guarantee: it is charged at most what the stated release is, so the stated account covers it.

    >>> on_grid(Release(clip=1.5, noise=0.01, mechanism="laplace"), denominator=100).mechanism
    'laplace'
    """
    if not release.private:
        raise ValueError(f"release {release.name!r} has no clip or no noise: there is nothing to make exact")
    step = 2.0 ** (math.frexp(release.clip)[1] - 1 - bits)
    clip = int(release.clip / step)
    ideal = Fraction(float(release.scale(t, agent))) * _SLACK * denominator / Fraction(step)
    if release.mechanism == "laplace":  # clip/s + 1/(4 s^2) <= clip/ideal
        scale = math.ceil(ideal + Fraction(1, 4 * clip))
    else:
        scale = math.isqrt(math.ceil(ideal**2 + _BLUR**2) - 1) + 1
    return GridRelease(clip, scale, step, int(denominator), release.mechanism)


def draw(sampling: Sampling, n: int, t: int) -> np.ndarray:
    """The rows of a batch out of n records, by the operating system's coins where the sampling has any.

    >>> draw(Poisson(10), n=10, t=0).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    source = secrets.SystemRandom()
    if isinstance(sampling, Poisson):
        return np.flatnonzero(poisson_coins(n, sampling.event(n).rate))  # type: ignore[union-attr]
    if isinstance(sampling, FixedSize):
        return np.array(source.sample(range(n), sampling.batch))
    if isinstance(sampling, WithReplacement):
        return np.array([source.randrange(n) for _ in range(sampling.batch)])
    if sampling.amplifies:
        raise TypeError(f"{type(sampling).__name__} has no exact coins: use Poisson, FixedSize or WithReplacement")
    rows, present = sampling.draw(jax.random.key(0), np.array([n]), jnp.int32(0), jnp.int32(t))  # uses no coin
    return np.asarray(rows)[np.asarray(present) > 0]


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
