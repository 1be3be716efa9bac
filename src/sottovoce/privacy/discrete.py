"""Draw noise that is safe on real machines: whole numbers, exact distributions, the operating system's entropy.

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
  probabilities differ by factors within 1 +- 1e-75 per coordinate, and by 1e-63 in a run of 10^12 draws: far below
  what the accountant charges for its own rounding.
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

import numpy as np

from sottovoce.privacy import exact_noise
from sottovoce.privacy.binomial import binomial_cuts
from sottovoce.privacy.release import NoiseKind, Release
from sottovoce.privacy.sampling import (
    FixedSize,
    Full,
    OnePass,
    Poisson,
    Sampling,
    Stream,
    WithReplacement,
)

_LARGEST_CLIP = 2**26  # its square is below 2**53: see `GridRelease.whole`
LARGEST = 2**62  # of any sum of whole numbers, so that 64 bits hold it, with noise
_BLUR = 3  # the r of the module's docstring
_SLACK = 1 + Fraction(1, 2**40)  # a schedule's last digits may differ between a number and an array


@dataclass(frozen=True)
class GridRelease:
    """Describe one release in whole numbers: `clip` and `scale` count grid steps, `step` is a power of two.

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
        """Return 1/z of an ideal release that reveals at least as much (zero-out, one record set): what is charged."""
        if self._l1:
            return self.clip / self.scale + 2 * math.log(math.cosh(0.5 / self.scale))
        return self.clip / math.sqrt(self.scale**2 - _BLUR**2) if self.scale > _BLUR else math.inf

    def whole(self, gradients: np.ndarray) -> np.ndarray:
        """Return gradients, one record per row, clipped and cut toward zero to whole numbers of steps (int64).

        A row of the result is a function of that row alone, and its norm is checked to be at most `clip`, exactly.

        Proof of the check. It adds squares (or sizes) of whole numbers in float64. Numbers below 2**53 add without
        error; a partial sum that reaches 2**53 never falls below it again, because what is added is not negative and
        rounding is monotone. As ``clip**2 < 2**53``, the computed sum is at most the bound if and only if the true one
        is, whatever the order of summation.

        >>> GridRelease(5, 5, 1.0, 1).whole(np.array([[3.9, -4.0], [300.0, 0.2]])).tolist()
        [[3, -3], [4, 0]]
        """
        if self.clip > _LARGEST_CLIP:
            raise ValueError(f"squares of {self.clip} steps overflow 53 bits: use a coarser grid")
        rows = np.atleast_2d(gradients)
        units = rows.astype(np.float64)
        largest = np.ones((len(rows), 1))
        with np.errstate(all="ignore"):
            if rows.dtype == np.float64:  # their squares may overflow or vanish; squares of smaller floats do not
                largest = np.max(np.abs(units), axis=1, keepdims=True, initial=0.0)
                units /= largest
            length = self._length(units)[:, None]
            finite = np.isfinite(length) & np.isfinite(largest)
            # cut a little short, because floating-point norms may be off in the last digits
            kept = np.minimum(largest, self.clip * self.step * (1 - 2.0**-30) / length) / self.step
        if not finite.all():
            units[~finite[:, 0]] = 0.0
        steps = np.trunc(np.multiply(units, np.where(finite, kept, 0.0), out=units), out=units)
        while np.any(over := self._exceeds(steps)):  # only if a norm was off by more
            steps[over] = np.trunc(steps[over] * (1 - 2.0**-20))
        return steps.astype(np.int64).reshape(np.shape(gradients))

    @property
    def _l1(self) -> bool:
        return self.mechanism == "laplace"

    def _length(self, rows: np.ndarray) -> np.ndarray:
        return np.abs(rows).sum(axis=1) if self._l1 else np.sqrt(_squares(rows))

    def _exceeds(self, steps: np.ndarray) -> np.ndarray:
        if self._l1:
            return np.abs(steps).sum(axis=1) > self.clip
        return _squares(steps) > self.clip**2

    def noise(self, size: int, source: random.Random | None = None) -> np.ndarray:
        """Return exact noise in steps (int64); `source` is for tests, the operating system's entropy by default."""
        return exact_noise.draw(self.mechanism, self.scale, size, source or secrets.SystemRandom())

    def noised(self, total: np.ndarray, source: random.Random | None = None) -> np.ndarray:
        """Return the mean to hand out, from a whole-number sum of steps."""
        if np.max(np.abs(total), initial=0) > LARGEST:
            raise ValueError("a whole-number sum overflows 64 bits: use a coarser grid or fewer records")
        noisy = np.asarray(total, np.int64) + self.noise(np.size(total), source).reshape(np.shape(total))
        return noisy.astype(np.float64) * self.step / self.denominator

    def __str__(self) -> str:
        norm = "l1" if self._l1 else "l2"
        return (
            f"discrete {self.mechanism} noise of scale {self.scale} on whole-number sums of records clipped to "
            f"{self.clip} ({norm}), in steps of {self.step:g} / {self.denominator}"
        )


def _squares(rows: np.ndarray) -> np.ndarray:
    """Return each row's sum of squares; not by a linear algebra library, whose threads would wait for each other."""
    return np.einsum("ij,ij->i", rows, rows)


def on_grid(release: Release, denominator: int, t: int = 0, agent: int = 0, bits: int = 16) -> GridRelease:
    """Return a release at step t in whole numbers: the clip is at least 2**bits steps, and noise is rounded up.

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


def draw(sampling: Sampling, n: int, t: int, source: random.Random | None = None) -> np.ndarray:
    """Return the rows of a batch out of n records, by the operating system's coins where the sampling has any.

    Guarantee: the law is exactly the one that `Sampling.event` charges. The time does not depend on the size of a
    Poisson batch, unless it is larger than `Sampling.capacity`: as many rows as that are drawn, and the first ones are
    taken.

    >>> sorted(draw(Poisson(10), n=10, t=0).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    source = source or secrets.SystemRandom()
    if isinstance(sampling, Poisson):
        size = _binomial_number(n, int(Fraction(sampling.event(n).rate) * 2**32), source)  # type: ignore[union-attr]
        return distinct(n, max(size, sampling.capacity(n)), source)[:size]
    if isinstance(sampling, FixedSize):
        return distinct(n, sampling.batch, source)
    if isinstance(sampling, WithReplacement):
        return below(n, sampling.batch, source)
    if isinstance(sampling, (Full, Stream)):
        return np.arange(int(sampling.denominator(n, t)))
    if isinstance(sampling, OnePass):
        return np.arange(t * sampling.batch, (t + 1) * sampling.batch)
    raise TypeError(f"{type(sampling).__name__} has no exact draw")


def below(n: int, count: int, source: random.Random) -> np.ndarray:
    """Return exactly uniform numbers below n: words of 64 bits beyond the last multiple of n are drawn again.

    >>> below(6, 8, random.Random(0)).tolist()
    [1, 4, 1, 2, 2, 2, 3, 1]
    """
    found = np.zeros(0, np.int64)
    while found.size < count:
        words = np.frombuffer(source.randbytes(8 * (count - found.size)), np.uint64)
        fair = words[words <= np.uint64(2**64 - 1 - 2**64 % n)]
        found = np.append(found, (fair % np.uint64(n)).astype(np.int64))
    return found


def distinct(n: int, count: int, source: random.Random) -> np.ndarray:
    """Return distinct numbers below n, every sequence of that length equally likely.

    Few of many: the first different ones of a sequence of independent uniform numbers. Many: the order of n random
    words, all drawn again if two are equal; given that none are, every order is equally likely.

    >>> distinct(1_000_000, 3, random.Random(0)).tolist(), sorted(distinct(4, 4, random.Random(0)).tolist())
    ([165645, 707500, 516437], [0, 1, 2, 3])
    """
    if 2 * count > n:
        while True:
            words = np.frombuffer(source.randbytes(8 * n), np.uint64)
            order = np.argsort(words)
            if np.all(words[order[1:]] != words[order[:-1]]):
                return order[:count]
    drawn = below(n, count + count**2 // n + 8, source)
    while True:
        _, places = np.unique(drawn, return_index=True)
        if places.size >= count:
            return drawn[np.sort(places)[:count]]
        drawn = np.append(drawn, below(n, count, source))


def _binomial_number(n: int, successes: int, source: random.Random) -> int:
    """Return the number of successes of n coins of probability successes / 2**32, exactly."""
    if successes == 2**32:
        return n
    lowest = 0

    def cuts(bits: int) -> list[tuple[int, int]]:
        nonlocal lowest
        lowest, bounds = binomial_cuts(n, successes, bits)
        return bounds

    found = exact_noise.cell(cuts, source)
    return lowest + found
