"""Which records enter a step: drawn in the compiled run and charged by the accountant from one frozen value.

This is a closed list on purpose: a free callback could sample in a way that no accountant covers. Row numbers are
local to an agent (0 to n-1); `n` is the agent's size, which is public. Example: ``Poisson(64)`` with 20 000 records
takes each with probability 64/20 000; a draw costs the batch (about 150 places), not the 20 000 records.

**The law that is drawn is the law that is charged.** Random bits are 32-bit words, taken as uniform and independent.

- *A uniform number below m* (`_below`) is the upper half of the 64-bit product ``word * m``. Words whose lower half is
  below ``2**32 mod m`` are drawn again, so every value keeps exactly ``floor(2**32 / m)`` words: no bias at all.
- *A uniform set of k rows out of n* (`_distinct`) is Floyd's algorithm: for i = 0 to k-1, with J = n-k+i, draw t
  uniform in {0, ..., J} and take t, or J if t was taken before. After turn i every set of i+1 rows below J+1 is equally
  likely (Bentley and Floyd, CACM 1987). It is done here without turns. The rows taken before turn i are t_0, ...,
  t_(i-1) (each was taken then or before) and J_l for the repeated turns l < i. So turn i is a repetition if t_i is an
  earlier t_l, or if t_i = J_l for an l < i that is a repetition: a chain of such links is followed to its end.
- *A binomial number* (`_Binomial`) is found by comparing 96 random bits with a table of the distribution function. Its
  entries are right up to a proved error; error and tail are in `Sampling.overflow`.
- *Coins* decide where a batch's array has room for all records: a coin is a word, and rates are multiples of 2**-32.
- *A Poisson batch* is a binomial number of distinct rows, every set of that size equally likely. That is the law of
  independent coins: a given set of k rows has probability P[K = k] / C(n, k) = q^k (1-q)^(n-k).

`Sampling.law` states each law as exact fractions for small n, and tests compare it with what is drawn.
"""

import bisect
import itertools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.privacy import accountant, threefry
from sottovoce.together import largest

# A Poisson batch is held in an array of fixed capacity. The chance that one batch does not fit is below this, and the
# accountant adds what remains, times the number of batches, to delta.
OVERFLOW = 1e-18

Rows = tuple[jax.Array, jax.Array]  # row numbers, and 1 for a record of the batch or 0 for padding
Multiplicities = tuple[int, ...]  # how often each of the n records is in a batch
Law = list[tuple[tuple[Multiplicities, ...], Fraction]]  # the batches of all steps, and the probability of just these

_RATE_BITS = 32  # a Poisson rate is a multiple of 2**-32
_TABLE_WORDS = 3  # random words that are compared with a table: 96 bits
_TABLE_BITS = 32 * _TABLE_WORDS
_PAIRS = 512  # up to this many rows, all pairs are compared to find repetitions; beyond it they are sorted


class Sampling(ABC):
    """How a batch is drawn. `amplifies` says whether the draw hides who took part.

    Every number of a sampling is a whole number of at least 1, or it is refused.

    >>> Stream(arrivals=1.9)
    Traceback (most recent call last):
    ValueError: Stream(arrivals=1.9): arrivals must be a whole number of at least 1
    """

    amplifies: ClassVar[bool]

    @final
    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, field.name, _checked(type(self).__name__, field, getattr(self, field.name)))

    @abstractmethod
    def check(self, n: int, steps: int) -> None:
        """Raise ValueError, with the remedy, if this cannot be drawn from n records in each of `steps` steps."""

    @abstractmethod
    def capacity(self, n: int) -> int:
        """Return how many rows the batch's array has room for."""

    @abstractmethod
    def denominator(self, n: Any, t: Any) -> Any:
        """Return what the sum over the batch is divided by: fixed in advance, never the drawn size."""

    @abstractmethod
    def draw(self, key: jax.Array, sizes: np.ndarray, agent: jax.Array, t: jax.Array) -> Rows:
        """Return the rows of agent's batch at step t; `sizes` holds every agent's n. Padding names row 0, weight 0."""

    @abstractmethod
    def event(self, n: int) -> accountant.Amplification:
        """Return what the accountant is told."""

    @abstractmethod
    def overflow(self, n: int) -> float:
        """Bound the total variation between one batch as `draw` returns it and as `event` charges it.

        The account pays this, times the number of batches, out of delta: two runs that differ by at most this in
        total variation can be coupled to be equal but for that probability.
        """

    @abstractmethod
    def law(self, n: int, steps: int) -> Law:
        """Return every possible sequence of batches of `steps` steps, and its exact probability, for small n.

        >>> FixedSize(1).law(2, steps=1)
        [(((1, 0),), Fraction(1, 2)), (((0, 1),), Fraction(1, 2))]
        """


@final
@dataclass(frozen=True)
class Full(Sampling):
    """Every record at every step.

    >>> Full().capacity(50), Full().denominator(50, t=0)
    (50, 50)
    """

    amplifies: ClassVar[bool] = False

    def check(self, n: int, steps: int) -> None:
        """Accept any data."""

    def capacity(self, n: int) -> int:
        """Return n."""
        return n

    def denominator(self, n: Any, t: Any) -> Any:
        """Return the agent's size."""
        return n

    def draw(self, key: jax.Array, sizes: np.ndarray, agent: jax.Array, t: jax.Array) -> Rows:
        """Return all rows."""
        return _first(int(sizes.max()), _of(sizes, agent))

    def event(self, n: int) -> accountant.Amplification:
        """Return that nothing is hidden."""
        return accountant.NoAmplification()

    def overflow(self, n: int) -> float:
        """Return 0: nothing is random."""
        return 0.0

    def law(self, n: int, steps: int) -> Law:
        """Return the one sequence of batches."""
        return [(((1,) * n,) * steps, Fraction(1))]


@final
@dataclass(frozen=True)
class Poisson(Sampling):
    """Each record on its own with probability ``batch / n``, anew each step; the sum is divided by `batch`.

    The rate is rounded down to a multiple of 2**-32, and that is the rate charged. With `cut`, a party that has fewer
    than `batch` records takes all of them and divides by their number.

    >>> Poisson(50).event(1000).rate
    0.049999999813735485
    >>> Poisson(50, cut=True).event(30).rate, Poisson(50, cut=True).denominator(30, t=0)
    (1.0, 30)
    """

    batch: int
    cut: bool = False
    amplifies: ClassVar[bool] = True

    def check(self, n: int, steps: int) -> None:
        """Refuse a batch that is larger than the data, unless it is cut."""
        if not self.cut:
            _check_batch(self.batch, n)

    def capacity(self, n: int) -> int:
        """Return the expected batch and as much above it as `OVERFLOW` asks for."""
        return _binomial(n, self._threshold(n)).highest

    def denominator(self, n: Any, t: Any) -> Any:
        """Return the expected batch."""
        return _least(self.batch, n) if self.cut else self.batch

    def _threshold(self, n: int) -> int:
        """Return the rate in units of 2**-32."""
        return min((self.batch << _RATE_BITS) // n, 1 << _RATE_BITS)

    def draw(self, key: jax.Array, sizes: np.ndarray, agent: jax.Array, t: jax.Array) -> Rows:
        """Return a binomial number of distinct rows; where the array has room for all rows, one coin per row."""
        counts = [_binomial(n, self._threshold(n)) for n in sizes.tolist()]
        last = np.array([self._threshold(n) - 1 for n in sizes.tolist()], np.uint32)
        room, own = max(count.highest for count in counts), _of(sizes, agent)
        fresh = threefry.words(key, (room + _TABLE_WORDS,))
        places = jnp.arange(room)
        tossed = _mask((fresh[:room] <= _of(last, agent)) & (places < own))  # a record is taken if its coin is low
        if sizes.max() <= room:
            return places, tossed
        rows, weights = _taken(key, fresh, own, counts, agent, usual_rows(self, sizes))
        if sizes.min() > room:
            return rows, weights
        return jnp.where(own <= room, places, rows), jnp.where(own <= room, tossed, weights)

    def event(self, n: int) -> accountant.Amplification:
        """Return Poisson at the rounded rate."""
        return accountant.PoissonAmplification(self._threshold(n) / 2**_RATE_BITS)

    def overflow(self, n: int) -> float:
        """Return the tail of the binomial beyond the capacity and the error of the table; 0 where all rows fit.

        Where the capacity is n, coins are tossed, which is exact.
        """
        table = _binomial(n, self._threshold(n))
        return 0.0 if table.highest == n else table.error

    def law(self, n: int, steps: int) -> Law:
        """Return independent coins."""
        rate = Fraction(self._threshold(n), 2**_RATE_BITS)
        subsets = itertools.product((0, 1), repeat=n)
        return _independent(((batch, rate ** sum(batch) * (1 - rate) ** (n - sum(batch))) for batch in subsets), steps)


@final
@dataclass(frozen=True)
class FixedSize(Sampling):
    """Exactly `batch` records, without replacement, anew each step.

    >>> FixedSize(20).event(1000)
    SubsetAmplification(size=1000, batch=20)
    """

    batch: int
    amplifies: ClassVar[bool] = True

    def check(self, n: int, steps: int) -> None:
        """Refuse a batch that is larger than the data."""
        _check_batch(self.batch, n)

    def capacity(self, n: int) -> int:
        """Return the batch."""
        return self.batch

    def denominator(self, n: Any, t: Any) -> Any:
        """Return the batch."""
        return self.batch

    def draw(self, key: jax.Array, sizes: np.ndarray, agent: jax.Array, t: jax.Array) -> Rows:
        """Return distinct rows, every set equally likely."""
        return _distinct(
            key, threefry.words(key, (self.batch,)), _of(sizes, agent), jnp.int32(self.batch), usual=self.batch
        )

    def event(self, n: int) -> accountant.Amplification:
        """Return that it is without replacement."""
        return accountant.SubsetAmplification(n, self.batch)

    def overflow(self, n: int) -> float:
        """Return 0: the draw is exact."""
        return 0.0

    def law(self, n: int, steps: int) -> Law:
        """Return all sets of that size, equally likely."""
        chance = Fraction(1, math.comb(n, self.batch))
        subsets = itertools.combinations(range(n), self.batch)
        return _independent(((_multiplicities(rows, n), chance) for rows in subsets), steps)


@final
@dataclass(frozen=True)
class WithReplacement(Sampling):
    """`batch` independent draws of one record, anew each step: a record may come up several times.

    >>> WithReplacement(20).event(1000)
    RedrawAmplification(size=1000, batch=20)
    """

    batch: int
    amplifies: ClassVar[bool] = True

    def check(self, n: int, steps: int) -> None:
        """Refuse a batch that is larger than the data."""
        _check_batch(self.batch, n)

    def capacity(self, n: int) -> int:
        """Return the batch."""
        return self.batch

    def denominator(self, n: Any, t: Any) -> Any:
        """Return the batch."""
        return self.batch

    def draw(self, key: jax.Array, sizes: np.ndarray, agent: jax.Array, t: jax.Array) -> Rows:
        """Return uniform row numbers."""
        bounds = jnp.full(self.batch, _of(sizes, agent), jnp.uint32)
        return _below(key, threefry.words(key, (self.batch,)), bounds), jnp.ones(self.batch)

    def event(self, n: int) -> accountant.Amplification:
        """Return that it is with replacement."""
        return accountant.RedrawAmplification(n, self.batch)

    def overflow(self, n: int) -> float:
        """Return 0: the draw is exact."""
        return 0.0

    def law(self, n: int, steps: int) -> Law:
        """Return multinomial multiplicities."""
        drawn = itertools.combinations_with_replacement(range(n), self.batch)
        ways = math.factorial(self.batch)
        batches = (_multiplicities(rows, n) for rows in drawn)
        return _independent(
            ((batch, Fraction(ways // math.prod(map(math.factorial, batch)), n**self.batch)) for batch in batches),
            steps,
        )


@final
@dataclass(frozen=True)
class OnePass(Sampling):
    """Records in stored order, `batch` per step, each in one step only: a record pays for one step, not for all.

    >>> OnePass(10).steps_possible(95)
    9
    """

    batch: int
    amplifies: ClassVar[bool] = False

    def steps_possible(self, n: int) -> int:
        """Return how many steps n records last."""
        return n // self.batch

    def check(self, n: int, steps: int) -> None:
        """Refuse a pass that runs out of records."""
        _check_batch(self.batch, n)
        if steps > self.steps_possible(n):
            raise ValueError(
                f"one pass over {n} records in batches of {self.batch} lasts {self.steps_possible(n)} steps, "
                f"not {steps}: lower the steps or the batch"
            )

    def capacity(self, n: int) -> int:
        """Return the batch."""
        return self.batch

    def denominator(self, n: Any, t: Any) -> Any:
        """Return the batch."""
        return self.batch

    def draw(self, key: jax.Array, sizes: np.ndarray, agent: jax.Array, t: jax.Array) -> Rows:
        """Return the next `batch` rows."""
        return t * self.batch + jnp.arange(self.batch), jnp.ones(self.batch)

    def event(self, n: int) -> accountant.Amplification:
        """Return that nothing is hidden."""
        return accountant.NoAmplification()

    def overflow(self, n: int) -> float:
        """Return 0: nothing is random."""
        return 0.0

    def law(self, n: int, steps: int) -> Law:
        """Return the one sequence of batches."""
        turns = [range(t * self.batch, (t + 1) * self.batch) for t in range(steps)]
        return [(tuple(_multiplicities(rows, n) for rows in turns), Fraction(1))]


@final
@dataclass(frozen=True)
class Stream(Sampling):
    """All records that have arrived: ``arrivals * (t+1)`` of them at step t, and their running average.

    A record takes part from its arrival on, in ever larger averages; the first one pays most and is charged.

    >>> Stream().denominator(100, t=np.arange(3)).tolist()
    [1, 2, 3]
    """

    arrivals: int = 1
    amplifies: ClassVar[bool] = False

    def check(self, n: int, steps: int) -> None:
        """Accept any data."""

    def capacity(self, n: int) -> int:
        """Return n: at the end all have arrived."""
        return n

    def denominator(self, n: Any, t: Any) -> Any:
        """Return how many have arrived."""
        return _least(self.arrivals * (t + 1), n)

    def draw(self, key: jax.Array, sizes: np.ndarray, agent: jax.Array, t: jax.Array) -> Rows:
        """Return the rows up to now."""
        return _first(int(sizes.max()), self.denominator(_of(sizes, agent), t))

    def event(self, n: int) -> accountant.Amplification:
        """Return that nothing is hidden."""
        return accountant.NoAmplification()

    def overflow(self, n: int) -> float:
        """Return 0: nothing is random."""
        return 0.0

    def law(self, n: int, steps: int) -> Law:
        """Return the one sequence of batches."""
        arrived = [range(self.denominator(n, t)) for t in range(steps)]
        return [(tuple(_multiplicities(rows, n) for rows in arrived), Fraction(1))]


# Laws and checks.


def _checked(kind: str, field: Any, value: Any) -> Any:
    """Return a sampling's number as a Python int, or refuse it: what is charged must be what is drawn."""
    if field.type in (bool, "bool"):
        if not isinstance(value, bool):
            raise ValueError(f"{kind}({field.name}={value!r}): {field.name} must be True or False")
        return value
    wrong = ValueError(f"{kind}({field.name}={value!r}): {field.name} must be a whole number of at least 1")
    try:
        number = operator.index(value)
    except TypeError:
        raise wrong from None
    if isinstance(value, (bool, np.bool_)) or number < 1:
        raise wrong
    return number


def _check_batch(batch: int, n: int) -> None:
    if batch > n:
        raise ValueError(
            f"a batch of {batch} from a party that has {n}: lower the batch to at most {n}, or leave that party out"
        )


def _multiplicities(rows: Iterable[int], n: int) -> Multiplicities:
    return tuple(np.bincount(np.fromiter(rows, int), minlength=n).tolist())


def _independent(batches: Iterable[tuple[Multiplicities, Fraction]], steps: int) -> Law:
    """Return the law of `steps` batches that are drawn independently of each other."""
    possible = [(batch, chance) for batch, chance in batches if chance]
    return [
        (tuple(batch for batch, _ in run), math.prod((chance for _, chance in run), start=Fraction(1)))
        for run in itertools.product(possible, repeat=steps)
    ]


def usual_rows(sampling: Sampling, sizes: np.ndarray) -> int:
    """Return how many rows the batches of all agents need, but in one step of 32 or fewer.

    >>> usual_rows(Poisson(64), np.array([20_000])), Poisson(64).capacity(20_000)
    (80, 146)
    """
    if not isinstance(sampling, Poisson):
        return max(sampling.capacity(n) for n in set(sizes.tolist()))
    room, most = 0, 0
    for n in set(sizes.tolist()):
        table = _binomial(n, sampling._threshold(n))
        rare = (1 << _TABLE_BITS) - (1 << _TABLE_BITS) // (32 * len(sizes))
        beyond = len(table.thresholds) - bisect.bisect_left(table.thresholds, rare)
        room, most = max(room, table.highest), max(most, table.highest - beyond)
    return min(room, -(-most // 8) * 8)  # whole vectors of a processor


def all_in_order(sampling: Sampling, sizes: np.ndarray) -> bool:
    """Say whether `draw` always returns the rows 0, 1, 2 and so on, and only their weights tell who is in.

    >>> all_in_order(Poisson(10), np.array([20, 20])), all_in_order(Poisson(10), np.array([20, 2000]))
    (True, False)
    """
    room = max(sampling.capacity(n) for n in set(sizes.tolist()))
    return isinstance(sampling, Full | Stream) or (isinstance(sampling, Poisson) and int(sizes.max()) <= room)


# The table of a binomial number.


@dataclass(frozen=True)
class _Binomial:
    """The distribution function of a number K of successes, for comparison with 96 random bits.

    With U uniform among the 96-bit numbers, `highest` minus the number of `thresholds` that are above U is K, but for
    `error` in total variation.
    """

    highest: int
    thresholds: tuple[int, ...]
    error: float


@lru_cache(maxsize=4096)
def _binomial(n: int, successes: int) -> _Binomial:
    """Return the table of n coins of probability successes / 2**32.

    Proof of `error`. By `_weights`, a value of the distribution function is wrong by at most ``missing / total``. It is
    cut to 96 bits. Two numbers whose distribution functions differ by at most x at each of w places differ by at most
    w x in total variation. What lies beyond `highest` is put onto `highest` and is part of the error, too.

    >>> _binomial(10, 2**32).highest, _binomial(10**6, 64 * 2**32 // 10**6).highest
    (10, 146)
    """
    if successes == 1 << _RATE_BITS:
        return _Binomial(n, (), 0.0)
    lowest, weights, missing = _weights(n, successes, _TABLE_BITS + 96)
    total, tail, highest = sum(weights), 0, lowest + len(weights) - 1
    while Fraction(tail + weights[highest - lowest] + missing, total) <= OVERFLOW:
        tail += weights[highest - lowest]
        highest -= 1
    sums = itertools.accumulate(weights[: highest - lowest])
    thresholds = [(part << _TABLE_BITS) // total for part in sums]
    known = tuple(threshold for threshold in thresholds if threshold > 0)  # the others are never above U
    error = Fraction(tail + missing, total) + len(weights) * (Fraction(missing, total) + Fraction(1, 2**_TABLE_BITS))
    return _Binomial(highest, known, float(error))


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
    failures = (1 << _RATE_BITS) - successes
    mode = ((n + 1) * successes) >> _RATE_BITS
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


# What is drawn, inside a compiled program.


def _taken(
    key: jax.Array, words: jax.Array, n: jax.Array, counts: list[_Binomial], agent: jax.Array, usual: int
) -> Rows:
    """Return a binomial number of distinct rows; the last words give the number."""
    size = _drawn_count(words[-_TABLE_WORDS:], counts, agent)
    return _distinct(key, words[:-_TABLE_WORDS], n, size, usual)


def _drawn_count(words: jax.Array, counts: list[_Binomial], agent: jax.Array) -> jax.Array:
    """Return the agent's binomial number from 96 random bits."""
    kinds = {count: index for index, count in enumerate(dict.fromkeys(counts))}
    width = max(len(count.thresholds) for count in kinds)
    table = np.zeros((len(kinds), _TABLE_WORDS, width), np.uint32)  # zeros are never above U
    for count, index in kinds.items():
        for word in range(_TABLE_WORDS):
            shift = 32 * (_TABLE_WORDS - 1 - word)
            entries = [(threshold >> shift) & 0xFFFFFFFF for threshold in count.thresholds]
            table[index, word, : len(entries)] = entries
    own = _of(table, _of(np.array([kinds[count] for count in counts]), agent))
    above, equal = jnp.zeros(width, bool), jnp.ones(width, bool)
    for word in range(_TABLE_WORDS):  # from the first digits to the last
        above |= equal & (own[word] > words[word])
        equal &= own[word] == words[word]
    return _of(np.array([count.highest for count in counts], np.int32), agent) - jnp.sum(above, dtype=jnp.int32)


def _below(key: jax.Array, words: jax.Array, bounds: jax.Array) -> jax.Array:
    """Return exactly uniform numbers, each below its bound (uint32), from fresh `words` and more of them by `key`.

    `words` may be the first ones of `key` itself: further words come from keys made with larger numbers.
    """

    # 2**32 mod bound is smaller than the bound: only where the lower half is below the bound must it be computed.
    def open_ones(state: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(state[2] < bounds)

    def again(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        turn, upper, lower = state
        fresh = threefry.words(threefry.fold(key, turn), bounds.shape)
        refused = lower < (-bounds) % bounds
        settled = jnp.where(lower < bounds, jnp.uint32(0xFFFFFFFF), lower)
        upper = jnp.where(refused, _upper_half(fresh, bounds), upper)
        return turn + 1, upper, jnp.where(refused, fresh * bounds, settled)

    first = jnp.uint32(2**31)  # far above the numbers of words, so that no key equals one of them
    state = (first, _upper_half(words, bounds), words * bounds)
    return jax.lax.while_loop(open_ones, again, state)[1].astype(jnp.int32)


def _upper_half(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the upper 32 bits of the 64-bit product, from products of 16-bit halves."""
    a_low, a_high, b_low, b_high = a & 0xFFFF, a >> 16, b & 0xFFFF, b >> 16
    first = a_high * b_low + (a_low * b_low >> 16)
    second = a_low * b_high + (first & 0xFFFF)
    return a_high * b_high + (first >> 16) + (second >> 16)


def _distinct(key: jax.Array, words: jax.Array, n: jax.Array, size: jax.Array, usual: int) -> Rows:
    """Return `size` distinct rows out of n, every set equally likely, padded to the number of words (Floyd).

    Repetitions beyond the `usual` rows are looked for only where an agent has so many: comparing all pairs of 146 rows
    costs three times as much as of 80.
    """
    turns = jnp.arange(words.size, dtype=jnp.int32)
    lasts = n - size + turns  # J in the proof
    drawn = _below(key, words, (lasts + 1).astype(jnp.uint32))
    links = drawn - (n - size)
    links = jnp.where((links >= 0) & (links < turns) & (turns < size), links, turns)

    def follow(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        repeated, links = state
        further = links[links]  # twice as far with each turn; a link to itself is the end
        return repeated | repeated[links], jnp.where(further == links, turns, further)

    def seen(rows: int) -> jax.Array:
        return jnp.pad(_seen_before(drawn[:rows]), (0, words.size - rows))

    if usual < words.size:
        first = jax.lax.cond(largest(size) > usual, lambda: seen(words.size), lambda: seen(usual))
    else:
        first = seen(words.size)
    repeated, _ = jax.lax.while_loop(lambda state: jnp.any(state[1] != turns), follow, (first, links))
    present = turns < size
    return jnp.where(present, jnp.where(repeated, lasts, drawn), 0), _mask(present)


def _seen_before(values: jax.Array) -> jax.Array:
    """Return whether each value is equal to an earlier one."""
    turns = jnp.arange(values.shape[0], dtype=jnp.int32)
    if values.shape[0] <= _PAIRS:
        return jnp.any((values[:, None] == values) & (turns[:, None] < turns), axis=0)
    ordered, places = jax.lax.sort((values, turns), num_keys=1, is_stable=True)
    same = jnp.concatenate([jnp.zeros(1, bool), ordered[1:] == ordered[:-1]])
    return jnp.zeros(values.shape, bool).at[places].set(same, unique_indices=True)


def _first(room: int, present: jax.Array) -> Rows:
    rows = jnp.arange(room)
    return rows, _mask(rows < present)


def _of(per_agent: np.ndarray, agent: jax.Array) -> jax.Array:
    return jnp.asarray(per_agent)[agent]


def _mask(present: jax.Array) -> jax.Array:
    return present.astype(jnp.float32)


def _least(a: Any, b: Any) -> Any:
    """Return the smaller one: exact in NumPy for the accountant, in JAX for a traced run."""
    if any(isinstance(value, jax.Array) for value in (a, b)):
        return jnp.minimum(a, b)
    return np.minimum(a, b).tolist() if np.ndim(a) == np.ndim(b) == 0 else np.minimum(a, b)
