"""Draw exact discrete noise, many numbers at once, from the operating system's entropy.

The law is exactly P[z] proportional to exp(-E(|z|)), with an energy E that is a polynomial of degree at most two, such
as z^2 / (2 scale^2) (Gaussian) or z / scale (Laplace). Example: 200 000 Gaussian numbers of scale 65 536 take less than
a tenth of a second.

**A proposal** is a cell c = 0, 1, 2, ... with probability proportional to exp(-E(c w)), a place j uniform in
{0, ..., w-1} and a sign. Here w is a power of two, at most scale/8 (or 1). The magnitude is z = c w + j, kept with
probability exp(E(c w) - E(z)); zero with a minus is refused. So z and -z are kept with probability proportional to
exp(-E(c w)) exp(E(c w) - E(z)) = exp(-E(z)), and zero likewise: exactly the law, and most proposals are kept.

**Why floating point does no harm.** Both random choices compare a uniform real number U with a real number. Only the
first digits of U are drawn: U lies in [a, a+1) / 2^b. If the number is known to lie outside this interval, the
comparison is decided, whatever the further digits are; that is all that floating point is used for, with a bound on its
error. Otherwise more digits of U are drawn and the number is computed by whole numbers (`_cuts`) or by decimal
arithmetic (`_exp_bounds`) to more digits, until it is decided. Fewer than one draw in a million gets there.

- *Cells* are compared with whole-number bounds of their distribution function, see `_cuts`.
- *Keeping* compares U with exp(-x), where x = E(c w + j) - E(c w), such as j / scale. Whole numbers become floats and
  are divided and multiplied (`Law.climb`): at most five roundings, each by a factor within 1 +- 2^-53. So x is wrong by
  less than x 2^-50 and exp(-x) by less than x exp(-x) 2^-50 < 2^-51. NumPy states that its exp is right to 4 units of
  the last place, 2^-50. An error of 2^-40 is allowed for.
"""

import random
from collections.abc import Callable, Hashable, Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Protocol

import numpy as np

LARGEST_SCALE = 2**46  # so that all whole numbers of a proposal are exact as floats
_BLOCK = 2**16  # proposals at once: they stay in the cache
_CELL_BITS = 31  # the first digits of U for cells; the 32nd bit of the word is the sign
_KEEP_BITS = 32
_MORE_BITS = 64  # further digits of U, wherever the first ones leave a choice open
_SLACK = 2.0**-40


class Law(Hashable, Protocol):
    """Describe what a sampler asks of a law: its energy, exactly and in floating point (`sottovoce.privacy.noise`)."""

    def energy(self, size: int, scale: int) -> Fraction:
        """Return E(size)."""

    def climb(self, places: np.ndarray, starts: np.ndarray, scale: int) -> np.ndarray:
        """Return E(start + place) - E(start) in floating point, with at most five roundings."""


def draw(law: Law, scale: int, size: int, source: random.Random) -> np.ndarray:
    """Return independent whole numbers (int64) with probabilities proportional to exp(-E(|z|)), exactly.

    >>> from sottovoce.privacy.noise import LAWS
    >>> draw(LAWS["laplace"], 3, 8, random.Random(0)).tolist()
    [-5, 1, 4, 6, -1, 0, 0, 10]
    """
    if not 1 <= scale <= LARGEST_SCALE:
        raise ValueError(f"noise of scale {scale} grid steps: it must be between 1 and 2^46; use a coarser grid")
    found, parts = 0, []
    while found < size:
        parts.append(_kept(law, scale, min(_BLOCK, int((size - found) * 1.1) + 16), source))
        found += len(parts[-1])
    return np.concatenate(parts)[:size] if parts else np.zeros(0, np.int64)


def _kept(law: Law, scale: int, proposals: int, source: random.Random) -> np.ndarray:
    """Return those of some proposals that are kept, in their order."""
    width = _width(scale)
    words = np.frombuffer(source.randbytes(4 * proposals), np.uint32)
    cells = _cells(law, scale, words >> np.uint32(1), source)
    places = _places(width, proposals, source)
    kept = _keep(law, scale, cells, places, source) if width > 1 else np.ones(proposals, bool)
    sizes, negative = cells * width + places, (words & np.uint32(1)).astype(bool)
    signed = np.where(negative, -sizes, sizes)
    return signed[kept & ~(negative & (sizes == 0))]


def _places(width: int, count: int, source: random.Random) -> np.ndarray:
    """Return uniform numbers below a power of two: the last digits of words."""
    if width <= 2**32:
        return (np.frombuffer(source.randbytes(4 * count), np.uint32) & np.uint32(width - 1)).astype(np.int64)
    return np.frombuffer(source.randbytes(8 * count), np.int64) & np.int64(width - 1)


def _cells(law: Law, scale: int, digits: np.ndarray, source: random.Random) -> np.ndarray:
    lower, upper = _fast_cuts(law, scale, _CELL_BITS)
    cells = np.searchsorted(upper, digits, side="left")  # cuts that are certainly at or below U
    for index in np.flatnonzero(lower[cells] <= digits):  # U may be on either side of the next cut
        cells[index] = cell(lambda bits: _cuts(law, scale, bits), source, int(digits[index]), _CELL_BITS)
    return cells.astype(np.int64)


def cell(
    cuts: Callable[[int], Sequence[tuple[int, int]]], source: random.Random, digits: int = 0, bits: int = 0
) -> int:
    """Return how many cuts are at or below a uniform U whose first `bits` binary digits are given, exactly.

    ``cuts(b)`` returns bounds (lower, upper) of each cut's first b digits, in rising order. More digits of U are drawn
    until there is no doubt; a U beyond the last cut that is known asks for more of them, too.

    >>> cell(lambda bits: [(2**bits // 3, 2**bits // 3), (2**bits, 2**bits)], random.Random(1))    # one cut at 1/3
    1
    """
    while True:
        digits, bits = (digits << _MORE_BITS) | source.getrandbits(_MORE_BITS), bits + _MORE_BITS
        known = cuts(bits)
        below = sum(upper < digits for _, upper in known)
        if below < len(known) and digits < known[below][0]:
            return below


def _keep(law: Law, scale: int, cells: np.ndarray, places: np.ndarray, source: random.Random) -> np.ndarray:
    digits = np.frombuffer(source.randbytes(4 * cells.size), np.uint32).astype(np.float64)
    chance = np.exp(-law.climb(places, _width(scale) * cells, scale)) * 2.0**_KEEP_BITS
    kept = digits + 1 <= chance - _SLACK * 2.0**_KEEP_BITS
    for index in np.flatnonzero(~kept & (digits < chance + _SLACK * 2.0**_KEEP_BITS)):
        exact = _loss(law, scale, int(cells[index]), int(places[index]))
        kept[index] = _open_flip(exact, int(digits[index]), _KEEP_BITS, source)
    return kept


def _open_flip(loss: Fraction, digits: int, bits: int, source: random.Random) -> bool:
    """Return whether U = [digits, digits+1) / 2^bits is below exp(-loss): draw more digits until there is no doubt."""
    while True:
        lower, upper = _exp_bounds(loss, bits)
        if digits + 1 <= lower:
            return True
        if digits >= upper:
            return False
        digits, bits = (digits << _MORE_BITS) | source.getrandbits(_MORE_BITS), bits + _MORE_BITS


def _width(scale: int) -> int:
    return 1 << max(scale.bit_length() - 4, 0)


def _loss(law: Law, scale: int, cell: int, place: int) -> Fraction:
    """Return E(c w + j) - E(c w)."""
    start = cell * _width(scale)
    return law.energy(start + place, scale) - law.energy(start, scale)


@lru_cache(maxsize=256)
def _fast_cuts(law: Law, scale: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the cuts as arrays, up to the first that cannot be told from 1: only open draws lie beyond it."""
    cuts = _cuts(law, scale, bits)
    last = next(place for place, (_, upper) in enumerate(cuts) if upper >= 2**bits - 1)
    lower, upper = np.array(cuts[: last + 1], np.int64).T
    return np.ascontiguousarray(lower), np.ascontiguousarray(upper)


@lru_cache(maxsize=256)
def _cuts(law: Law, scale: int, bits: int) -> list[tuple[int, int]]:
    """Return bounds (lower, upper) of floor(2^bits P[cell <= c]) for c = 0, 1, ...

    Proof. Weights W_c = exp(-E(c w)) are computed in units of 2^-F. W_(c+1) is W_c times a ratio, and each ratio is the
    one before times exp(-b), where b = E(2w) - 2 E(w) >= 0, because E has degree two at most. All factors are at most 1
    and cut to whole numbers, so each computed number is too small by an error of at most its factors' errors, added,
    and 1. The weights are computed until one vanishes. What follows is at most a geometric series with the last ratio,
    because ratios do not grow. `missing` is the sum of all errors and of that series. So a partial sum of the true
    weights lies between the computed one and that plus `missing`, and so does the whole sum.
    """
    precision, width = bits + 80, _width(scale)
    ratio, ratio_error = _exp_bounds(_loss(law, scale, 0, width), precision)[0], 2
    bend = law.energy(2 * width, scale) - 2 * law.energy(width, scale)
    change, change_error = _exp_bounds(bend, precision)[0], 2 if bend else 0
    weights, error, missing = [1 << precision], 0, 0
    while weights[-1]:
        weights.append(weights[-1] * ratio >> precision)
        error += ratio_error + 1
        missing += error
        ratio, ratio_error = ratio * change >> precision, ratio_error + change_error + 1
    missing += ((error + 1) << precision) // ((1 << precision) - ratio - ratio_error) + 1
    total = sum(weights)
    return [
        ((part << bits) // (total + missing), min(((part + missing) << bits) // total, (1 << bits) - 1))
        for part in accumulate(weights)
    ]


def _exp_bounds(loss: Fraction, bits: int) -> tuple[int, int]:
    """Return whole numbers around exp(-loss) 2^bits, at most 2 apart where loss is at least 0.

    Python's decimal module rounds quotients and exponentials correctly. With d digits the rounded loss is wrong by at
    most loss 10^(1-d), and the exponential of it by at most 10^(1-d) of itself; twice their sum is allowed for.

    >>> _exp_bounds(Fraction(1), 10)    # 1024 / e = 376.7
    (376, 377)
    """
    if loss == 0:
        return 1 << bits, 1 << bits
    if loss > bits:  # it is below 2^-bits
        return 0, 1
    digits = int(bits * 0.302) + len(str(int(loss))) + 12
    context = Context(prec=digits, Emin=MIN_EMIN, Emax=MAX_EMAX)
    # every operation by this context: even a minus sign rounds, to the digits of the current one
    value = Fraction(context.exp(context.divide(Decimal(-loss.numerator), Decimal(loss.denominator))))
    doubt = 2 * (loss + 1) / Fraction(10) ** (digits - 1)
    scaled = value * 2**bits
    return int(scaled * (1 - doubt)), -int(-scaled * (1 + doubt) // 1)
