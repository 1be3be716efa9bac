"""Tabulate how many records a Poisson batch has: its distribution function, with a proved error.

Example: 20 000 coins of probability 64/20 000 give 64 heads on average, and more than 146 with probability below 1e-18.
"""

import itertools
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

# A Poisson batch is held in an array of fixed capacity. The chance that one batch does not fit is below this, and the
# accountant adds what remains, times the number of batches, to delta.
OVERFLOW = 1e-18
RATE_BITS = 32  # a Poisson rate is a multiple of 2**-32
TABLE_WORDS = 3  # random words that are compared with a table: 96 bits
TABLE_BITS = 32 * TABLE_WORDS


@dataclass(frozen=True)
class Binomial:
    """Tabulate the distribution function of a number K of successes, for comparison with 96 random bits.

    With U uniform among the 96-bit numbers, `highest` minus the number of `thresholds` that are above U is K, up to
    `error` in total variation.
    """

    highest: int
    thresholds: tuple[int, ...]
    error: float


@lru_cache(maxsize=4096)
def binomial(n: int, successes: int) -> Binomial:
    """Return the table of n coins of probability successes / 2**32.

    Proof of `error`. By `_weights`, a value of the distribution function is wrong by at most ``missing / total``. It is
    cut to 96 bits. Two numbers whose distribution functions differ by at most x at each of w places differ by at most
    w x in total variation. What lies beyond `highest` is put onto `highest` and is part of the error, too.

    >>> binomial(10, 2**32).highest, binomial(10**6, 64 * 2**32 // 10**6).highest
    (10, 146)
    """
    if successes == 1 << RATE_BITS:
        return Binomial(n, (), 0.0)
    lowest, weights, missing = _weights(n, successes, TABLE_BITS + 96)
    total, tail, highest = sum(weights), 0, lowest + len(weights) - 1
    while Fraction(tail + weights[highest - lowest] + missing, total) <= OVERFLOW:
        tail += weights[highest - lowest]
        highest -= 1
    sums = itertools.accumulate(weights[: highest - lowest])
    thresholds = [(part << TABLE_BITS) // total for part in sums]
    known = tuple(threshold for threshold in thresholds if threshold > 0)  # the others are never above U
    error = Fraction(tail + missing, total) + len(weights) * (Fraction(missing, total) + Fraction(1, 2**TABLE_BITS))
    return Binomial(highest, known, float(error))


@lru_cache(maxsize=256)
def binomial_cuts(n: int, successes: int, bits: int) -> tuple[int, list[tuple[int, int]]]:
    """Return a number k and bounds (lower, upper) of the first `bits` digits of P[K <= k], P[K <= k+1], ...

    K counts the successes of n coins of probability successes / 2**32, which must be below 1.

    >>> binomial_cuts(2, 2**31, 8)    # two fair coins: 64/256, 192/256, and 1
    (0, [(63, 64), (191, 192), (255, 256)])
    """
    lowest, weights, missing = _weights(n, successes, bits + 96)
    total, parts = sum(weights), list(itertools.accumulate(weights))
    first, parts = (lowest - 1, [0, *parts]) if lowest else (lowest, parts)
    return first, [((part << bits) // (total + missing), ((part + missing) << bits) // total) for part in parts]


def _weights(n: int, successes: int, precision: int) -> tuple[int, list[int], int]:
    """Return a number k, weights in proportion to P[K = k], P[K = k+1], ..., and how many units of them are missing.

    Proof. Let v_k = P[K = k] / P[K = mode], where mode = floor((n+1) q). Ratios of neighbours are known exactly. Away
    from the mode they are at most 1. A weight is v_k 2**precision, computed from its neighbour and cut to a whole
    number: at distance j from the mode it is too small by less than j units. Weights are computed until they vanish,
    which leaves out at most n of them, each of less than `reach` units, where `reach` is the largest distance. So less
    than ``missing = (n + number of weights) * reach`` units are missing altogether. A part of the true sum lies between
    the computed part and that plus `missing`, and so does the whole sum.
    """
    failures = (1 << RATE_BITS) - successes
    mode = ((n + 1) * successes) >> RATE_BITS
    above, below = [1 << precision], list[int]()
    while above[-1] and mode + len(above) <= n:
        k = mode + len(above)
        above.append(above[-1] * (n - k + 1) * successes // (k * failures))
    weight = above[0]
    while weight and mode - len(below) > 0:
        k = mode - len(below)
        weight = weight * k * failures // ((n - k + 1) * successes)
        below.append(weight)
    weights = [*reversed(below), *above]
    return mode - len(below), weights, (n + len(weights)) * max(len(above), len(below))
