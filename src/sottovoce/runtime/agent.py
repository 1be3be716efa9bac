"""The handle through which a method acts as one agent: sample, release, mix, loop, and randomness by name."""

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Required, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.networks import Network
from sottovoce.privacy import gate
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Rows, Sampling
from sottovoce.trees import Private, Tree, combine, reveal

RecordFn = Callable[[Tree, Any], jax.Array]
SINGLE = "records"  # the name of the one record set of a problem without levels


class Read(NamedTuple):
    """What a release or a mean reads of one record set: a function of a record, rows, and what to divide by."""

    level: str
    fn: RecordFn
    rows: Rows
    denominator: jax.Array


@dataclass(frozen=True)
class Place:
    """Where agents run: what an agent knows of the others, its records, and how its messages travel."""

    network: Network
    sizes: Mapping[str, np.ndarray]  # everyone's number of records (or units) by level: public
    steps: int
    chunk: int

    def gather(self, level: str, rows: jax.Array) -> Tree:
        """The agent's own records at local rows."""
        raise NotImplementedError

    def lift(self, level: str, fn: RecordFn) -> RecordFn:
        """A function of a record as a function of what `gather` gives (a record, or a unit)."""
        raise NotImplementedError

    def mix(self, over: str, value: Tree, index: jax.Array, others_only: bool) -> Tree:
        """Tell the neighbours `value`, hear the weighted sum of theirs."""
        raise NotImplementedError

    def loop(self, times: int, body: Callable[[Tree, jax.Array], Tree], carry: Tree) -> Tree:
        """`body(carry, k)` for k from 0 to times - 1."""
        raise NotImplementedError

    def read(self, level: str, fn: Callable[[Tree, Rows], Tree], at: Tree, rows: Rows) -> Tree:
        """`fn(at, rows)`, which reads these rows of the agent's records."""
        return fn(at, rows)

    # Simulated unless a place says otherwise: coins and noise are functions of a key.

    def draw(self, sampling: Sampling, level: str, key: jax.Array, index: jax.Array, t: jax.Array) -> Rows:
        """The rows of a batch."""
        return sampling.draw(key, self.sizes[level], index, t)

    def mean(self, release: Release, reads: Sequence[Read], at: Tree) -> Tree:
        """The levels' clipped means, added up."""

        def one(read: Read) -> Tree:
            def mean(at: Tree, rows: Rows) -> Tree:
                source = self.lift(read.level, read.fn), at, lambda rows: self.gather(read.level, rows)
                return gate.clipped_mean(*source, *rows, read.denominator, release, self.chunk)

            return self.read(read.level, mean, at, read.rows)

        return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *[one(read) for read in reads])

    def noised(self, value: Tree, release: Release, key: jax.Array, index: jax.Array, t: jax.Array) -> Tree:
        """`value` with the release's noise."""
        return gate.noised(value, release, key, t, index)

    def noisy_mean(
        self, release: Release, reads: Sequence[Read], at: Tree, key: jax.Array, index: jax.Array, t: jax.Array
    ) -> Tree:
        """The two in a row: what is released."""
        return self.noised(self.mean(release, reads, at), release, key, index, t)


@dataclass(frozen=True)
class Batch:
    """Rows drawn for one or more releases; releases from one batch are charged as one mechanism."""

    rows: Mapping[str, Rows]
    sampling: Sampling
    number: int
    loops: tuple[int, ...]


class Asked(TypedDict, total=False):
    """Where and over what to take a gradient: `upper` and `lower` as `records`, `public` reads no record."""

    at: Required[Tree]
    batch: Required[Batch]
    upper: RecordFn | None
    lower: RecordFn | None
    public: Callable[[Tree], Any] | None


class Agent:
    """One agent at one step. All randomness is a function of (seed, agent, step, loop index, name, purpose)."""

    def __init__(
        self, place: Place, index: jax.Array, t: jax.Array, key: jax.Array, loops: tuple[int, ...] = ()
    ) -> None:
        self.place, self.index, self.t, self.loops = place, index, t, loops
        self._key = key
        self._uses: Counter[str] = Counter()
        self._looping = False

    # What is public about the run.

    @property
    def steps(self) -> int:
        """How many steps the run has in all."""
        return self.place.steps

    def size(self, level: str = SINGLE) -> jax.Array:
        """How many records (or units) this agent has."""
        return jnp.asarray(self.place.sizes[level])[self.index]

    def heard(self, over: str = "mix") -> jax.Array:
        """The sum of the weights this agent gives (its row), itself left out."""
        return self._weight(over, axis=1)

    def sent(self, over: str = "mix") -> jax.Array:
        """The sum of the weights others give to it (its column), itself left out."""
        return self._weight(over, axis=0)

    # Reading records: through the gate.

    def sample(self, sampling: Sampling, name: str = "batch") -> Batch:
        """Draw a batch; with two levels, one from each, by the same rule."""
        key = self._named(name, "sample")
        rows = {
            level: self.place.draw(sampling, level, jax.random.fold_in(key, number), self.index, self.t)
            for number, level in enumerate(sorted(self.place.sizes))
        }
        return Batch(rows, sampling, number=0, loops=self.loops)

    def release(self, release: Release, records: RecordFn | None = None, **asked: Unpack[Asked]) -> Tree:
        """The gradient at `at`, clipped per record, averaged over the batch and noised: public from then on.

        Give `records(at, record)` for a problem with one record set, or `upper` and/or `lower` for a bilevel one. With
        two sets each level's records are clipped on their own; with one set for both, a record's two terms are added
        and clipped together. The gradient of `public(at)`, which reads no record, is added without clip or noise.
        """
        at = jax.tree.leaves(asked["at"], is_leaf=lambda leaf: isinstance(leaf, Private))
        if any(isinstance(leaf, Private) for leaf in at):
            raise TypeError(
                f"release {release.name!r} at a private point: its noise does not cover how the point was computed. "
                "Release at public points, or use agent.mean and agent.tell in a printed design."
            )
        return self._gradient(self._noisy_mean, release, records, **asked)

    def mean(self, release: Release, records: RecordFn | None = None, **asked: Unpack[Asked]) -> Private:
        """As `release`, without noise: private, and allowed at private points. For printed designs."""
        return Private(self._gradient(self._mean, release, records, **asked))

    def tell(self, release: Release, value: Private) -> Tree:
        """A private value with the release's noise added: the message of a printed design."""
        key = self._named(release.name or "release", "message")
        return self.place.noised(reveal(value), release, key, self.index, self.t)

    # Talking to neighbours.

    def mix(self, value: Tree, *, own: Tree | None = None, over: str = "mix") -> Tree:
        """Tell the neighbours `value` and hear the weighted sum of theirs, with one's own weight on `own`.

        `own` (by default `value`) stays with the agent, so it may be private; the result then is private too.
        """
        if isinstance(value, Private):
            raise TypeError("a private value may not leave the agent: agent.tell adds the noise it needs")
        if own is None:
            return self.place.mix(over, value, self.index, others_only=False)
        others = self.place.mix(over, value, self.index, others_only=True)
        weight = jnp.asarray(self.place.network.matrix(over).diagonal(), jnp.float32)[self.index]
        return combine(lambda o, mine: o + weight * mine, others, own)

    def loop(self, times: int, body: Callable[[Tree, "Agent"], Tree], carry: Tree, name: str = "loop") -> Tree:
        """`body(carry, agent)` so many times; batches, noise and messages inside are new each time."""
        if times < 1:
            raise ValueError(f"loop {name!r} runs {times} times: it must run at least once")
        key = self._named(name, "loop")

        def turn(carry: Tree, k: jax.Array) -> Tree:
            return body(carry, self._inside(times, jax.random.fold_in(key, k)))

        self._looping = True
        try:
            return self.place.loop(times, turn, carry)
        finally:
            self._looping = False

    def key(self, name: str) -> jax.Array:
        """A key for the method's own random choices."""
        return self._named(name, "own")

    # Within.

    def _inside(self, times: int, key: jax.Array) -> "Agent":
        return Agent(self.place, self.index, self.t, key, (*self.loops, times))

    def _named(self, name: str, purpose: str) -> jax.Array:
        """A key of its own for each use of a name: no key is used twice."""
        self._require_free()
        label = f"{purpose}/{name}"
        self._uses[label] += 1
        return jax.random.fold_in(self._key, zlib.crc32(f"{label}/{self._uses[label]}".encode()))

    def _require_free(self) -> None:
        """In a loop the outer handle would be counted once, and draw the same noise in every turn."""
        if self._looping:
            raise ValueError("a loop is running: use the agent that it hands to its body, not the one outside")

    def _weight(self, over: str, axis: int) -> jax.Array:
        matrix = self.place.network.matrix(over)
        sums = np.asarray(matrix.sum(axis=axis)).reshape(-1) - matrix.diagonal()
        return jnp.asarray(sums, jnp.float32)[self.index]

    def _gradient(
        self,
        read: Callable[[Release, Mapping[str, RecordFn], Tree, Batch], Tree],
        release: Release,
        records: RecordFn | None,
        *,
        at: Tree,
        batch: Batch,
        upper: RecordFn | None = None,
        lower: RecordFn | None = None,
        public: Callable[[Tree], Any] | None = None,
    ) -> Tree:
        """What `release` and `mean` share: functions by level, a point that may be private, the public term."""
        at = reveal(at)
        value = read(release, by_level(records, upper, lower), at, batch)
        if public is None:
            return value
        slope = jax.grad(lambda where: jnp.asarray(public(where), jnp.float32))(at)
        return jax.tree.map(jnp.add, value, slope)

    def _noisy_mean(self, release: Release, fns: Mapping[str, RecordFn], at: Tree, batch: Batch) -> Tree:
        key = self._named(release.name or "release", "noise")
        return self.place.noisy_mean(release, self._reads(fns, batch), at, key, self.index, self.t)

    def _mean(self, release: Release, fns: Mapping[str, RecordFn], at: Tree, batch: Batch) -> Tree:
        return self.place.mean(release, self._reads(fns, batch), at)

    def _reads(self, fns: Mapping[str, RecordFn], batch: Batch) -> list[Read]:
        self._require_free()
        if SINGLE in self.place.sizes:
            fns = {SINGLE: _sum_of(list(fns.values()))}
        return [
            Read(level, fn, batch.rows[level], batch.sampling.denominator(self.size(level), self.t))
            for level, fn in fns.items()
        ]


def root_key(seed: int) -> jax.Array:
    """The key of a simulated run. Threefry only: its vectorised draws equal single ones."""
    return jax.random.key(seed, impl="threefry2x32")


def run_key(root: jax.Array, agent: jax.Array) -> jax.Array:
    """The key of an agent's run."""
    return jax.random.fold_in(root, agent)


def step_key(run: jax.Array, phase: str, t: jax.Array) -> jax.Array:
    """The key of one step ("init" or "step")."""
    return jax.random.fold_in(jax.random.fold_in(run, zlib.crc32(phase.encode())), t)


def by_level(records: RecordFn | None, upper: RecordFn | None, lower: RecordFn | None) -> dict[str, RecordFn]:
    """The functions to release by the record set they read, checked."""
    given = {level: fn for level, fn in ((SINGLE, records), ("upper", upper), ("lower", lower)) if fn is not None}
    if not given or (records is not None and len(given) > 1):
        raise TypeError("give either `records`, or `upper` and/or `lower`: the function(s) of one record to release")
    return given


def _sum_of(fns: list[RecordFn]) -> RecordFn:
    if len(fns) == 1:
        return fns[0]
    return lambda at, record: sum((fn(at, record) for fn in fns[1:]), fns[0](at, record))
