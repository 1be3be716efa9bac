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

The proofs of the charges stand with the laws (`sottovoce.privacy.noise`).
"""

import math
import random
import secrets
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from sottovoce.privacy.noise import Noise, law_of
from sottovoce.privacy.release import Release

_LARGEST_CLIP = 2**26  # its square is below 2**53: see `GridRelease.whole`
LARGEST = 2**62  # of any sum of whole numbers, so that 64 bits hold it, with noise
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
    mechanism: str = "gaussian"

    def __post_init__(self) -> None:
        if self.clip < 1 or self.scale < 1 or self.denominator < 1:
            raise ValueError(f"clip {self.clip}, scale {self.scale}, denominator {self.denominator}: all must be >= 1")
        if math.frexp(self.step)[0] != 0.5:
            raise ValueError(f"the grid step is {self.step}: it must be a power of two, so that scaling is exact")

    @property
    def inverse_multiplier(self) -> float:
        """Return 1/z of an ideal release that reveals at least as much (zero-out, one record set): what is charged."""
        return self.law.multiplier(self.clip, self.scale)

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
            length = self.law.lengths(units)[:, None]
            finite = np.isfinite(length) & np.isfinite(largest)
            # cut a little short, because floating-point norms may be off in the last digits
            kept = np.minimum(largest, self.clip * self.step * (1 - 2.0**-30) / length) / self.step
        if not finite.all():
            units[~finite[:, 0]] = 0.0
        steps = np.trunc(np.multiply(units, np.where(finite, kept, 0.0), out=units), out=units)
        while np.any(over := self.law.exceeds(steps, self.clip)):  # only if a norm was off by more
            steps[over] = np.trunc(steps[over] * (1 - 2.0**-20))
        return steps.astype(np.int64).reshape(np.shape(gradients))

    @property
    def law(self) -> Noise:
        """Return the law of the noise."""
        return law_of(self.mechanism)

    def noise(self, size: int, source: random.Random | None = None) -> np.ndarray:
        """Return exact noise in steps (int64); `source` is for tests, the operating system's entropy by default."""
        return self.law.exact(self.scale, size, source or secrets.SystemRandom())

    def noised(self, total: np.ndarray, source: random.Random | None = None) -> np.ndarray:
        """Return the mean to hand out, from a whole-number sum of steps."""
        if np.max(np.abs(total), initial=0) > LARGEST:
            raise ValueError("a whole-number sum overflows 64 bits: use a coarser grid or fewer records")
        return self.mean(np.asarray(total, np.int64) + self.noise(np.size(total), source).reshape(np.shape(total)))

    def mean(self, noisy: np.ndarray) -> np.ndarray:
        """Return the mean to hand out, from a whole-number sum with its noise in it."""
        return noisy.astype(np.float64) * self.step / self.denominator

    def __str__(self) -> str:
        return (
            f"discrete {self.mechanism} noise of scale {self.scale} on whole-number sums of records clipped to "
            f"{self.clip} ({self.law.norm}), in steps of {self.step:g} / {self.denominator}"
        )


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
    return GridRelease(clip, release.law.whole_scale(ideal, clip), step, int(denominator), release.mechanism)
