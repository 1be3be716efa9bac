"""Choose which records enter a step: a run draws them, and the accountant charges them, from one frozen value.

This is a closed list on purpose: a free callback could sample in a way that no accountant covers. Row numbers are
local to an agent (0 to n-1); `n` is the agent's size, which is public. Example: ``Poisson(64)`` with 20 000 records
takes each with probability 64/20 000; a draw costs the batch (about 150 places), not the 20 000 records.

**The law that is drawn is the law that is charged.** Random bits are 32-bit words, taken as uniform and independent.

- *Distinct rows, and numbers below a bound*: `sottovoce.privacy.drawn_rows` has the proofs that they are uniform.
- *A binomial number* is read off a table (`sottovoce.privacy.binomial`). Its entries are right up to a proved error;
  error and tail are in `Sampling.overflow`.
- *Coins* decide where a batch's array has room for all records: a coin is a word, and rates are multiples of 2**-32.
- *A Poisson batch* is a binomial number of distinct rows, every set of that size equally likely. That is the law of
  independent coins: a given set of k rows has probability P[K = k] / C(n, k) = q^k (1-q)^(n-k).

For small n, tests compare what is drawn with the charged law, stated as exact fractions (`tests/privacy/laws.py`).
"""

import bisect
import operator
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.closed import Closed
from sottovoce.privacy import accountant, exact_rows, threefry
from sottovoce.privacy.binomial import RATE_BITS, TABLE_BITS, TABLE_WORDS, binomial
from sottovoce.privacy.drawn_rows import Rows, binomial_rows, distinct_rows, mask, of_agent, uniform_below

_TAIL = 1e-9  # counts of a record that are rarer than this are left out of `coin`
LARGEST = 2**31 - 1  # a run counts records and steps in words of 32 bits


class Sampling(Closed, ABC):
    """Say how a batch is drawn. `amplifies` says whether the draw hides who took part.

    Every number of a sampling is a whole number of at least 1, or it is refused.

    >>> Stream(arrivals=1.9)
    Traceback (most recent call last):
    ValueError: Stream(arrivals=1.9): arrivals must be a whole number of at least 1
    """

    kind: ClassVar[str]  # its name in run files and in identities
    amplifies: ClassVar[bool]
    adjacency: ClassVar[accountant.Adjacency] = "replace-one"  # in which its bounds are usually stated
    repeats: ClassVar[bool] = False  # a record may come up several times in one batch
    once: ClassVar[bool] = False  # a record takes part in one step at most, and pays for the most costly one
    adds_up: ClassVar[bool] = False  # parties that each draw of their own rows, by one rate, draw of all rows

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
    def exact(self, n: int, t: int, source: random.Random) -> np.ndarray:
        """Return the rows of a batch at step t, as `draw` does, by exact coins.

        Guarantee: the law is exactly the one that `event` charges.
        """

    def part(self, n: int, whole: int, t: int, source: random.Random) -> tuple[np.ndarray, int]:
        """Return a party's own rows of a batch from all parties' rows, and how many rows it is padded to.

        The party has n of the `whole` rows. Guarantee: parts that parties draw apart from each other make a batch of
        the law of ``exact(whole, t, source)``.
        """
        raise ValueError(
            f"{self} takes a number of rows that parties cannot share out among them without telling who has how many "
            "of them: with sums of all parties, use sv.Full() or sv.Poisson(...)"
        )

    @abstractmethod
    def event(self, n: int) -> accountant.Amplification:
        """Return how the draw amplifies privacy, for the accountant."""

    def coin(self, n: int) -> np.ndarray | None:
        """Return the chances that a given record is drawn 0, 1, 2 and so on times; None if the schedule is public."""
        return None

    def usual(self, sizes: np.ndarray) -> int:
        """Return how many rows are enough for the batches of all agents, in at least 31 of 32 steps.

        >>> Poisson(64).usual(np.array([20_000])), Poisson(64).capacity(20_000)
        (80, 146)
        """
        return max(self.capacity(n) for n in set(sizes.tolist()))

    def in_order(self, sizes: np.ndarray) -> bool:
        """Say whether `draw` always returns the rows 0, 1, 2 and so on, and only their weights tell who is in.

        >>> Poisson(10).in_order(np.array([20, 20])), Poisson(10).in_order(np.array([20, 2000]))
        (True, False)
        """
        return False

    @abstractmethod
    def overflow(self, n: int) -> float:
        """Bound the total variation between one batch as `draw` returns it and as `event` charges it.

        The account pays this, times the number of batches, out of delta: two runs that differ by at most this in total
        variation can be coupled to be equal, except with that probability.
        """


@final
@dataclass(frozen=True)
class Full(Sampling):
    """Take every record at every step.

    >>> Full().capacity(50), Full().denominator(50, t=0)
    (50, 50)
    """

    kind: ClassVar[str] = "full"
    amplifies: ClassVar[bool] = False
    adds_up: ClassVar[bool] = True

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
        return _first(int(sizes.max()), of_agent(sizes, agent))

    def exact(self, n: int, t: int, source: random.Random) -> np.ndarray:
        """Return all rows."""
        return np.arange(int(self.denominator(n, t)))

    def part(self, n: int, whole: int, t: int, source: random.Random) -> tuple[np.ndarray, int]:
        """Return all rows of the party."""
        return np.arange(n), n

    def in_order(self, sizes: np.ndarray) -> bool:
        """Return True."""
        return True

    def event(self, n: int) -> accountant.Amplification:
        """Return no amplification: nothing is hidden."""
        return accountant.NoAmplification()

    def overflow(self, n: int) -> float:
        """Return 0: nothing is random."""
        return 0.0


@final
@dataclass(frozen=True)
class Poisson(Sampling):
    """Draw each record on its own with probability ``batch / n``, anew each step; divide the sum by `batch`.

    The rate is rounded down to a multiple of 2**-32, and that is the rate charged. With `cut`, a party that has fewer
    than `batch` records takes all of them and divides by their number.

    >>> Poisson(50).event(1000).rate
    0.049999999813735485
    >>> Poisson(50, cut=True).event(30).rate, Poisson(50, cut=True).denominator(30, t=0)
    (1.0, 30)
    """

    kind: ClassVar[str] = "poisson"
    batch: int
    cut: bool = False
    amplifies: ClassVar[bool] = True
    adds_up: ClassVar[bool] = True
    adjacency: ClassVar[accountant.Adjacency] = "zero-out"

    def check(self, n: int, steps: int) -> None:
        """Refuse a batch that is larger than the data, unless it is cut."""
        if not self.cut:
            _check_batch(self.batch, n)

    def capacity(self, n: int) -> int:
        """Return the expected batch and as much above it as `sottovoce.privacy.binomial.OVERFLOW` asks for."""
        return binomial(n, self._threshold(n)).highest

    def denominator(self, n: Any, t: Any) -> Any:
        """Return the expected batch."""
        return _least(min(self.batch, LARGEST), n) if self.cut else self.batch

    def _threshold(self, n: int) -> int:
        """Return the rate in units of 2**-32."""
        return min((self.batch << RATE_BITS) // n, 1 << RATE_BITS)

    def draw(self, key: jax.Array, sizes: np.ndarray, agent: jax.Array, t: jax.Array) -> Rows:
        """Return a binomial number of distinct rows; where the array has room for all rows, one coin per row."""
        counts = [binomial(n, self._threshold(n)) for n in sizes.tolist()]
        last = np.array([self._threshold(n) - 1 for n in sizes.tolist()], np.uint32)
        room, own = max(count.highest for count in counts), of_agent(sizes, agent)
        fresh = threefry.words(key, (room + TABLE_WORDS,))
        places = jnp.arange(room)
        tossed = mask((fresh[:room] <= of_agent(last, agent)) & (places < own))  # a record is taken if its coin is low
        if sizes.max() <= room:
            return places, tossed
        rows, weights = binomial_rows(key, fresh, own, counts, agent, self.usual(sizes))
        if sizes.min() > room:
            return rows, weights
        return jnp.where(own <= room, places, rows), jnp.where(own <= room, tossed, weights)

    def exact(self, n: int, t: int, source: random.Random) -> np.ndarray:
        """Return a binomial number of distinct rows.

        The time does not depend on the size of the batch, unless it is larger than `capacity`: as many rows as that are
        drawn, and the first ones are taken.
        """
        return self.part(n, n, t, source)[0]

    def part(self, n: int, whole: int, t: int, source: random.Random) -> tuple[np.ndarray, int]:
        """Return a binomial number of distinct own rows, at the rate of a batch from the `whole` rows.

        Each row of the whole then has a coin of its own with one rate, whoever holds it: that is the law of `exact`.

        >>> rows, room = Poisson(50).part(100, 1000, 0, random.Random(0))
        >>> len(rows), room == binomial(100, 50 * 2**32 // 1000).highest
        (4, True)
        """
        rate = self._threshold(whole)
        size, room = exact_rows.successes(n, rate, source), binomial(n, rate).highest
        return exact_rows.distinct(n, max(size, room), source)[:size], room

    def coin(self, n: int) -> np.ndarray:
        """Return the chances of 0 and 1."""
        rate = self._threshold(n) / 2**RATE_BITS
        return np.array([1 - rate, rate])

    def usual(self, sizes: np.ndarray) -> int:
        """Return a quantile of the binomial number, in whole vectors of a processor."""
        room, most = 0, 0
        for n in set(sizes.tolist()):
            table = binomial(n, self._threshold(n))
            rare = (1 << TABLE_BITS) - (1 << TABLE_BITS) // (32 * len(sizes))
            beyond = len(table.thresholds) - bisect.bisect_left(table.thresholds, rare)
            room, most = max(room, table.highest), max(most, table.highest - beyond)
        return min(room, -(-most // 8) * 8)

    def in_order(self, sizes: np.ndarray) -> bool:
        """Say whether every row has a coin of its own: then the array has room for all."""
        return int(sizes.max()) <= max(self.capacity(n) for n in set(sizes.tolist()))

    def event(self, n: int) -> accountant.Amplification:
        """Return the amplification of a Poisson batch at the rounded rate."""
        return accountant.PoissonAmplification(self._threshold(n) / 2**RATE_BITS)

    def overflow(self, n: int) -> float:
        """Return the tail of the binomial beyond the capacity and the error of the table; 0 where all rows fit.

        Where the capacity is n, coins are tossed, which is exact.
        """
        table = binomial(n, self._threshold(n))
        return 0.0 if table.highest == n else table.error


@dataclass(frozen=True)
class _OfOneSize(Sampling):
    """Define what samplings share whose batches always have `batch` rows; all of them are drawn exactly."""

    batch: int

    @final
    def capacity(self, n: int) -> int:
        """Return the batch."""
        return self.batch

    @final
    def denominator(self, n: Any, t: Any) -> Any:
        """Return the batch."""
        return self.batch

    @final
    def overflow(self, n: int) -> float:
        """Return 0: the draw is exact."""
        return 0.0


@final
@dataclass(frozen=True)
class FixedSize(_OfOneSize):
    """Draw exactly `batch` records, without replacement, anew each step.

    Under zero-out, Gaussian releases cost a little more than on Poisson batches if the batch is not a small share of
    the records: `sottovoce.privacy.fixed_batches` has the proof. Other accounts, replace-one too, are looser.

    >>> FixedSize(20).event(1000)
    SubsetAmplification(size=1000, batch=20)
    """

    kind: ClassVar[str] = "fixed-size"
    amplifies: ClassVar[bool] = True

    def check(self, n: int, steps: int) -> None:
        """Refuse a batch that is larger than the data."""
        _check_batch(self.batch, n)

    def draw(self, key: jax.Array, sizes: np.ndarray, agent: jax.Array, t: jax.Array) -> Rows:
        """Return distinct rows, every set equally likely."""
        return distinct_rows(
            key, threefry.words(key, (self.batch,)), of_agent(sizes, agent), jnp.int32(self.batch), usual=self.batch
        )

    def exact(self, n: int, t: int, source: random.Random) -> np.ndarray:
        """Return distinct rows."""
        return exact_rows.distinct(n, self.batch, source)

    def coin(self, n: int) -> np.ndarray:
        """Return the chances of 0 and 1."""
        return np.array([1 - self.batch / n, self.batch / n])

    def event(self, n: int) -> accountant.Amplification:
        """Return the amplification of a batch without replacement."""
        return accountant.SubsetAmplification(n, self.batch)


@final
@dataclass(frozen=True)
class WithReplacement(_OfOneSize):
    """Draw one record `batch` times independently, anew each step: a record may come up several times.

    >>> WithReplacement(20).event(1000)
    RedrawAmplification(size=1000, batch=20)
    """

    kind: ClassVar[str] = "with-replacement"
    amplifies: ClassVar[bool] = True
    adjacency: ClassVar[accountant.Adjacency] = "zero-out"
    repeats: ClassVar[bool] = True

    def check(self, n: int, steps: int) -> None:
        """Refuse a batch that is larger than the data."""
        _check_batch(self.batch, n)

    def draw(self, key: jax.Array, sizes: np.ndarray, agent: jax.Array, t: jax.Array) -> Rows:
        """Return uniform row numbers."""
        bounds = jnp.full(self.batch, of_agent(sizes, agent), jnp.uint32)
        return uniform_below(key, threefry.words(key, (self.batch,)), bounds), jnp.ones(self.batch)

    def exact(self, n: int, t: int, source: random.Random) -> np.ndarray:
        """Return independent rows."""
        return exact_rows.below(n, self.batch, source)

    def coin(self, n: int) -> np.ndarray:
        """Return the binomial chances, up to a count that is hardly ever passed."""
        if n == 1:
            return np.arange(self.batch + 1) == self.batch
        chances = [(1 - 1 / n) ** self.batch]
        while 1 - sum(chances) > _TAIL and len(chances) <= self.batch:
            chances.append(chances[-1] * (self.batch + 1 - len(chances)) / len(chances) / (n - 1))
        return np.array(chances)

    def event(self, n: int) -> accountant.Amplification:
        """Return the amplification of a batch with replacement."""
        return accountant.RedrawAmplification(n, self.batch)


@final
@dataclass(frozen=True)
class OnePass(_OfOneSize):
    """Take records in stored order, `batch` per step: each record is in one step only, and pays only for that step.

    >>> OnePass(10).steps_possible(95)
    9
    """

    kind: ClassVar[str] = "one-pass"
    amplifies: ClassVar[bool] = False
    once: ClassVar[bool] = True

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

    def draw(self, key: jax.Array, sizes: np.ndarray, agent: jax.Array, t: jax.Array) -> Rows:
        """Return the next `batch` rows."""
        return t * self.batch + jnp.arange(self.batch), jnp.ones(self.batch)

    def exact(self, n: int, t: int, source: random.Random) -> np.ndarray:
        """Return the next `batch` rows."""
        return np.arange(t * self.batch, (t + 1) * self.batch)

    def event(self, n: int) -> accountant.Amplification:
        """Return no amplification: nothing is hidden."""
        return accountant.NoAmplification()


@final
@dataclass(frozen=True)
class Stream(Sampling):
    """Take all records that have arrived, ``arrivals * (t+1)`` of them at step t, and average them.

    A record takes part from its arrival on, in ever larger averages; the first one pays most and is charged.

    >>> Stream().denominator(100, t=np.arange(3)).tolist()
    [1, 2, 3]
    """

    kind: ClassVar[str] = "stream"
    arrivals: int = 1
    amplifies: ClassVar[bool] = False

    def check(self, n: int, steps: int) -> None:
        """Accept any data."""

    def capacity(self, n: int) -> int:
        """Return n: at the end all have arrived."""
        return n

    def denominator(self, n: Any, t: Any) -> Any:
        """Return how many have arrived."""
        arrivals = min(self.arrivals, LARGEST)
        before = (n - 1) // arrivals  # steps before all are there
        arrived = arrivals * (_least(t, before - 1) + 1)  # below n, so it never wraps
        return _where(t < before, arrived, n)

    def draw(self, key: jax.Array, sizes: np.ndarray, agent: jax.Array, t: jax.Array) -> Rows:
        """Return the rows up to now."""
        return _first(int(sizes.max()), self.denominator(of_agent(sizes, agent), t))

    def exact(self, n: int, t: int, source: random.Random) -> np.ndarray:
        """Return the rows up to now."""
        return np.arange(int(self.denominator(n, t)))

    def in_order(self, sizes: np.ndarray) -> bool:
        """Return True."""
        return True

    def event(self, n: int) -> accountant.Amplification:
        """Return no amplification: nothing is hidden."""
        return accountant.NoAmplification()

    def overflow(self, n: int) -> float:
        """Return 0: nothing is random."""
        return 0.0


KINDS = (Full, Poisson, FixedSize, WithReplacement, OnePass, Stream)  # those that an accountant covers


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


def check_words(sampling: Sampling, n: int, steps: int) -> None:
    """Refuse sizes and steps that a run cannot count in 32 bits.

    >>> check_words(Full(), n=2**31, steps=1)
    Traceback (most recent call last):
    ...
    ValueError: Full() of 2147483648 records over 1 steps: a run counts both in 32 bits, up to 2147483647
    """
    if max(n, steps) > LARGEST:
        raise ValueError(f"{sampling} of {n} records over {steps} steps: a run counts both in 32 bits, up to {LARGEST}")


def _first(room: int, present: jax.Array) -> Rows:
    rows = jnp.arange(room)
    return rows, mask(rows < present)


def _least(a: Any, b: Any) -> Any:
    """Return the smaller one: exact in NumPy for the accountant, in JAX for a traced run."""
    if any(isinstance(value, jax.Array) for value in (a, b)):
        return jnp.minimum(a, b)
    return np.minimum(a, b).tolist() if np.ndim(a) == np.ndim(b) == 0 else np.minimum(a, b)


def _where(condition: Any, one: Any, other: Any) -> Any:
    """Return `one` where the condition holds, else the other: a Python number where all are."""
    if isinstance(condition, jax.Array):
        return jnp.where(condition, one, other)
    return np.where(condition, one, other) if np.ndim(condition) else (one if condition else other)
