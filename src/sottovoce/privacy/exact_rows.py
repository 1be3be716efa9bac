"""Draw the rows of a batch exactly, by coins of the operating system; `sottovoce.privacy.sampling` says which law.

Example: ``distinct(1_000_000, 3, source)`` returns three different numbers, every sequence equally likely.
"""

import random

import numpy as np

from sottovoce.privacy import exact_noise
from sottovoce.privacy.binomial import binomial_cuts


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


def successes(n: int, rate: int, source: random.Random) -> int:
    """Return the number of successes of n coins of probability rate / 2**32, exactly.

    >>> successes(10, 2**32, random.Random(0))
    10
    """
    if rate == 2**32:
        return n
    lowest = 0

    def cuts(bits: int) -> list[tuple[int, int]]:
        nonlocal lowest
        lowest, bounds = binomial_cuts(n, rate, bits)
        return bounds

    found = exact_noise.cell(cuts, source)
    return lowest + found
