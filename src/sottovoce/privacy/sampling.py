"""Which records enter a step: drawn in the compiled run and charged by the accountant from one frozen value.

This is a closed list on purpose: a free callback could sample in a way that no accountant covers. Row numbers are
local to an agent (0 to n-1); `n` is the agent's size, which is public.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from sottovoce.privacy import accountant

# A Poisson batch is held in an array of fixed capacity. The chance that one batch does not fit is below this, and the
# accountant adds what remains, times the number of batches, to delta.
OVERFLOW = 1e-18

Rows = tuple[jax.Array, jax.Array]  # row numbers, and 1 for a record of the batch or 0 for padding


class Sampling:
    """How a batch is drawn. `amplifies` says whether the draw hides who took part."""

    amplifies: ClassVar[bool] = False

    def check(self, n: int, steps: int) -> None:
        """Raise ValueError, with the remedy, if this cannot be drawn from n records in each of so many steps."""

    def capacity(self, n: int) -> int:
        """How many rows the batch's array has room for."""
        raise NotImplementedError

    def denominator(self, n: Any, t: Any) -> Any:
        """What the sum over the batch is divided by: fixed in advance, never the drawn size."""
        raise NotImplementedError

    def draw(self, key: jax.Array, sizes: np.ndarray, agent: jax.Array, t: jax.Array) -> Rows:
        """The rows of agent's batch at step t; `sizes` holds every agent's n."""
        raise NotImplementedError

    def event(self, n: int) -> accountant.Amplification:
        """What the accountant is told."""
        return accountant.NoAmplification()

    def overflow(self, n: int) -> float:
        """The chance that one batch did not fit its array."""
        return 0.0


@dataclass(frozen=True)
class Full(Sampling):
    """Every record at every step.

    >>> Full().capacity(50), Full().denominator(50, t=0)
    (50, 50)
    """

    def capacity(self, n: int) -> int:
        """All of them."""
        return n

    def denominator(self, n: Any, t: Any) -> Any:
        """The agent's size."""
        return n

    def draw(self, key: jax.Array, sizes: np.ndarray, agent: jax.Array, t: jax.Array) -> Rows:
        """All rows."""
        rows = jnp.arange(int(sizes.max()))
        return rows, _mask(rows < _of(sizes, agent))


@dataclass(frozen=True)
class _Batched(Sampling):
    batch: int

    def __post_init__(self) -> None:
        if self.batch != int(self.batch) or self.batch < 1:
            raise ValueError(f"a batch of {self.batch}: it must be a whole number of at least 1")

    def check(self, n: int, steps: int) -> None:
        """The batch must come out of the data."""
        if self.batch > n:
            raise ValueError(
                f"a batch of {self.batch} from a party that has {n}: lower the batch to at most {n}, "
                f"or leave that party out"
            )

    def capacity(self, n: int) -> int:
        """The batch."""
        return self.batch

    def denominator(self, n: Any, t: Any) -> Any:
        """The (expected) batch."""
        return self.batch


@dataclass(frozen=True)
class Poisson(_Batched):
    """Each record on its own with probability ``batch / n``, anew each step; the sum is divided by `batch`.

    The rate is rounded down to a multiple of 2**-32, and that is the rate charged. With `cut`, a party that has fewer
    than `batch` records takes all of them and divides by their number.

    >>> Poisson(50).event(1000).rate
    0.049999999813735485
    >>> Poisson(50, cut=True).event(30).rate, Poisson(50, cut=True).denominator(30, t=0)
    (1.0, 30)
    """

    cut: bool = False
    amplifies: ClassVar[bool] = True

    def check(self, n: int, steps: int) -> None:
        """A batch that is cut always comes out of the data."""
        if not self.cut:
            super().check(n, steps)

    def denominator(self, n: Any, t: Any) -> Any:
        """The expected batch."""
        return _least(self.batch, n) if self.cut else self.batch

    def _threshold(self, n: Any) -> Any:
        return np.minimum((self.batch * 2**32) // np.asarray(n, dtype=object), 2**32).astype(np.uint64)

    def capacity(self, n: int) -> int:
        """The expected batch and as much above it as `OVERFLOW` asks for."""
        rate = float(self._threshold(n)) / 2**32
        low, high = int(n * rate), n
        while low < high:  # by bisection on the tail: binom.isf rounds one minus so small a chance to 1 and answers n
            middle = (low + high) // 2
            low, high = (low, middle) if stats.binom.sf(middle, n, rate) <= OVERFLOW else (middle + 1, high)
        return high

    def draw(self, key: jax.Array, sizes: np.ndarray, agent: jax.Array, t: jax.Array) -> Rows:
        """Integer coins, one a record: exact, unlike a comparison of floats."""
        room = max(self.capacity(int(n)) for n in np.unique(sizes))
        n_max = int(sizes.max())
        last = (self._threshold(sizes) - 1).astype(np.uint32)  # a coin is taken if it is at most this
        coins = jax.random.bits(key, (n_max,), jnp.uint32)
        taken = (coins <= _of(last, agent)) & (jnp.arange(n_max) < _of(sizes, agent))
        if room == n_max:  # nothing to gain from gathering the taken rows
            return jnp.arange(n_max), _mask(taken)
        (rows,) = jnp.nonzero(taken, size=room, fill_value=n_max)
        return rows, _mask(rows < n_max)

    def event(self, n: int) -> accountant.Amplification:
        """Poisson at the rounded rate."""
        return accountant.PoissonAmplification(float(self._threshold(n)) / 2**32)

    def overflow(self, n: int) -> float:
        """The tail of the binomial beyond the capacity."""
        return float(stats.binom.sf(self.capacity(n), n, float(self._threshold(n)) / 2**32))


@dataclass(frozen=True)
class FixedSize(_Batched):
    """Exactly `batch` records, without replacement, anew each step.

    >>> FixedSize(20).event(1000)
    SubsetAmplification(size=1000, batch=20)
    """

    amplifies: ClassVar[bool] = True

    def draw(self, key: jax.Array, sizes: np.ndarray, agent: jax.Array, t: jax.Array) -> Rows:
        """The first rows of a random order: sorting by 64 random bits, so that ties are out of the question."""
        rows = jnp.arange(int(sizes.max()), dtype=jnp.int32)
        coins = jax.random.bits(key, (2, rows.size), jnp.uint32)
        absent = (rows >= _of(sizes, agent)).astype(jnp.uint32)
        *_, order = jax.lax.sort((absent, coins[0], coins[1], rows), num_keys=3)
        return order[: self.batch], jnp.ones(self.batch)

    def event(self, n: int) -> accountant.Amplification:
        """Without replacement."""
        return accountant.SubsetAmplification(n, self.batch)


@dataclass(frozen=True)
class WithReplacement(_Batched):
    """`batch` independent draws of one record, anew each step: a record may come up several times.

    >>> WithReplacement(20).event(1000)
    RedrawAmplification(size=1000, batch=20)
    """

    amplifies: ClassVar[bool] = True

    def draw(self, key: jax.Array, sizes: np.ndarray, agent: jax.Array, t: jax.Array) -> Rows:
        """Uniform row numbers."""
        return jax.random.randint(key, (self.batch,), 0, _of(sizes, agent)), jnp.ones(self.batch)

    def event(self, n: int) -> accountant.Amplification:
        """With replacement."""
        return accountant.RedrawAmplification(n, self.batch)


@dataclass(frozen=True)
class OnePass(_Batched):
    """Records in stored order, `batch` a step, each in one step only: a record pays for one step, not for all.

    >>> OnePass(10).steps_possible(95)
    9
    """

    def steps_possible(self, n: int) -> int:
        """How many steps n records last."""
        return n // self.batch

    def check(self, n: int, steps: int) -> None:
        """The pass must not run out of records."""
        super().check(n, steps)
        if steps > self.steps_possible(n):
            raise ValueError(
                f"one pass over {n} records in batches of {self.batch} lasts {self.steps_possible(n)} steps, "
                f"not {steps}: lower the steps or the batch"
            )

    def draw(self, key: jax.Array, sizes: np.ndarray, agent: jax.Array, t: jax.Array) -> Rows:
        """The next `batch` rows."""
        return t * self.batch + jnp.arange(self.batch), jnp.ones(self.batch)


@dataclass(frozen=True)
class Stream(Sampling):
    """All records that have arrived: ``arrivals * (t+1)`` of them at step t, and their running average.

    A record takes part from its arrival on, in ever larger averages; the first one pays most and is charged.

    >>> Stream().denominator(100, t=np.arange(3)).tolist()
    [1, 2, 3]
    """

    arrivals: int = 1

    def capacity(self, n: int) -> int:
        """At the end all of them."""
        return n

    def denominator(self, n: Any, t: Any) -> Any:
        """How many have arrived."""
        return _least(self.arrivals * (t + 1), n)

    def draw(self, key: jax.Array, sizes: np.ndarray, agent: jax.Array, t: jax.Array) -> Rows:
        """The rows up to now."""
        rows = jnp.arange(int(sizes.max()))
        return rows, _mask(rows < self.denominator(_of(sizes, agent), t))


def _of(per_agent: np.ndarray, agent: jax.Array) -> jax.Array:
    return jnp.asarray(per_agent)[agent]


def _mask(present: jax.Array) -> jax.Array:
    return present.astype(jnp.float32)


def _least(a: Any, b: Any) -> Any:
    """The smaller one: exact in NumPy for the accountant, in JAX for a traced run."""
    if any(isinstance(value, jax.Array) for value in (a, b)):
        return jnp.minimum(a, b)
    return np.minimum(a, b).tolist() if np.ndim(a) == np.ndim(b) == 0 else np.minimum(a, b)
