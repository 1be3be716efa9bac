"""The laws of all samplings as exact fractions, for small n: what draws are compared with."""

import itertools
import math
from collections.abc import Iterable
from fractions import Fraction

import numpy as np

from sottovoce.privacy.sampling import FixedSize, Full, OnePass, Poisson, Sampling, Stream, WithReplacement

Multiplicities = tuple[int, ...]  # how often each of the n records is in a batch
Law = list[tuple[tuple[Multiplicities, ...], Fraction]]  # the batches of all steps, and the probability of just these


def law(sampling: Sampling, n: int, steps: int) -> Law:
    """Return every possible sequence of batches of `steps` steps, and its exact probability.

    >>> law(FixedSize(1), 2, steps=1)
    [(((1, 0),), Fraction(1, 2)), (((0, 1),), Fraction(1, 2))]
    """
    match sampling:
        case Full():
            return _certain([range(n)] * steps, n)
        case OnePass(batch):
            return _certain([range(t * batch, (t + 1) * batch) for t in range(steps)], n)
        case Stream(arrivals):
            return _certain([range(min(arrivals * (t + 1), n)) for t in range(steps)], n)
        case Poisson():
            rate = Fraction(sampling.event(n).rate)  # the charged rate, a multiple of 2**-32: exact as a float
            subsets = itertools.product((0, 1), repeat=n)
            coins = ((batch, rate ** sum(batch) * (1 - rate) ** (n - sum(batch))) for batch in subsets)
            return _independent(coins, steps)
        case FixedSize(batch):
            chance = Fraction(1, math.comb(n, batch))
            subsets = itertools.combinations(range(n), batch)
            return _independent(((_multiplicities(rows, n), chance) for rows in subsets), steps)
        case WithReplacement(batch):
            drawn = itertools.combinations_with_replacement(range(n), batch)
            batches = (_multiplicities(rows, n) for rows in drawn)
            return _independent(((batch_, _multinomial(batch_, n)) for batch_ in batches), steps)
    raise TypeError(f"the law of {sampling} is not stated here")


def _certain(batches: Iterable[Iterable[int]], n: int) -> Law:
    return [(tuple(_multiplicities(rows, n) for rows in batches), Fraction(1))]


def _multiplicities(rows: Iterable[int], n: int) -> Multiplicities:
    return tuple(np.bincount(np.fromiter(rows, int), minlength=n).tolist())


def _multinomial(batch: Multiplicities, n: int) -> Fraction:
    ways = math.factorial(sum(batch)) // math.prod(map(math.factorial, batch))
    return Fraction(ways, n ** sum(batch))


def _independent(batches: Iterable[tuple[Multiplicities, Fraction]], steps: int) -> Law:
    """Return the law of `steps` batches that are drawn independently of each other."""
    possible = [(batch, chance) for batch, chance in batches if chance]
    return [
        (tuple(batch for batch, _ in run), math.prod((chance for _, chance in run), start=Fraction(1)))
        for run in itertools.product(possible, repeat=steps)
    ]
