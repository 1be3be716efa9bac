"""Let a column of numbers have a curve: beside the value, its rank among all values, and hats on the rank.

Example: risk falls with sleep until eight hours, and rises after. One weight for the number of hours cannot say so. A
weight for each of five hats can: a hat is 1 at one rank (say, of the median) and falls to 0 at its neighbours.

The rank of a value is the share of values below it. Ranks are a statistic of private rows, so they are bought: noisy
counts of a binary tree over the declared range, whose levels halve it 10 times. What is kept are knots: the bins at
which ranks 0, 1/32, ..., 1 are reached.
"""

from collections.abc import Sequence

import numpy as np

LEVELS = 10  # of the tree: each is one question, because a row is in one bin of each level
BINS = 2**LEVELS
STEPS = 32  # of the ranks that are kept
HATS = 5
WIDTH = 2 + HATS  # the value, its rank, and the hats
_LOW = 0.5  # the height of a hat beside a value and a rank of size 1
_LENGTH = 1.5  # of the longest row: 1 for the value, 1 for the rank, a quarter for hats, squared
EVEN = tuple(range(0, BINS + 1, BINS // STEPS))  # as if all values were equally frequent


def bins(unit: np.ndarray) -> np.ndarray:
    """Return the bin of each position in [0, 1].

    >>> bins(np.array([0.0, 0.5, 1.0])).tolist()
    [0, 512, 1023]
    """
    return np.clip((np.asarray(unit) * BINS).astype(int), 0, BINS - 1)


def tree(inner: np.ndarray) -> np.ndarray:
    """Return the counts of all levels, of which the first has two bins and the last has 1024.

    >>> tree(np.array([0, 1023, 1023]))[:6].tolist(), len(tree(np.array([0])))
    ([1, 2, 1, 0, 0, 2], 2046)
    """
    counts = np.bincount(inner, minlength=BINS)
    return np.concatenate([counts.reshape(2**level, -1).sum(axis=1) for level in range(1, LEVELS + 1)])


def knots(noisy: np.ndarray, deviation: float) -> tuple[int, ...]:
    """Return the bins at which ranks are reached, from noisy counts of a tree whose noise has this deviation.

    From the top of the tree down, a bin's count is split between its halves as their noisy counts say, evened out so
    that they add up. A bin in which too little is left to be heard is split in two equal halves.

    >>> counts = tree(np.repeat([100, 900], 500))
    >>> found = knots(counts, 0.0)
    >>> found[0], found[15], found[17], found[-1]
    (100, 101, 901, 901)
    """
    total = np.maximum(noisy[:2], 0.0)
    start = 2
    for level in range(2, LEVELS + 1):
        pairs = noisy[start : start + 2**level].reshape(-1, 2)
        start += 2**level
        left = np.clip(pairs[:, 0] + (total - pairs.sum(axis=1)) / 2, 0.0, total)
        left = np.where(total < 2 * deviation, total / 2, left)
        total = np.stack([left, total - left], axis=1).reshape(-1)
    if total.sum() <= 0:
        return EVEN
    below = np.concatenate([[0.0], np.cumsum(total)]) / total.sum()
    wanted = np.arange(1, STEPS + 1) / STEPS
    reached = np.minimum(np.searchsorted(below, wanted - 1e-9), BINS)
    return int(np.searchsorted(below, 1e-9) - 1), *map(int, reached)


def ranks(unit: np.ndarray, held: Sequence[int]) -> np.ndarray:
    """Return the share of values below each position, by the knots; of the values in its own bin, half are below.

    >>> ranks(np.array([0.0, 0.5, 1.0]), EVEN).round(3).tolist()
    [0.0, 0.5, 1.0]
    >>> two_values = (100, *[101] * 16, *[901] * 16)
    >>> ranks(np.array([100, 500, 900]) / BINS, two_values).round(2).tolist()
    [0.27, 0.52, 0.77]
    """
    edges, first = np.unique(np.asarray(held), return_index=True)
    last = np.append(first[1:], len(held)) - 1
    frequent = last > first  # many values in the bin before this edge: ranks jump there
    where = np.concatenate([edges[frequent] - 1, edges])
    what = np.concatenate([first[frequent], last]) / STEPS
    order = np.lexsort((what, where))
    below = np.interp(np.arange(BINS + 1), where[order], what[order])
    return ((below[:-1] + below[1:]) / 2)[bins(unit)]


def basis(signed: np.ndarray, held: Sequence[int]) -> np.ndarray:
    """Return the columns of a curve for values in [-1, 1]; each row's norm is at most 1.

    >>> basis(np.array([-1.0]), EVEN).round(2).tolist()
    [[-0.67, -0.67, 0.33, 0.0, 0.0, 0.0, 0.0]]
    """
    rank = ranks((signed + 1) / 2, held)
    hats = np.maximum(0.0, 1 - np.abs((HATS - 1) * rank[:, None] - np.arange(HATS)))
    return np.column_stack([signed, 2 * rank - 1, _LOW * hats]) / _LENGTH
