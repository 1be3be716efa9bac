"""An agent whose releases are weighed while it makes them: how likely is each under D, how likely under D'?

Between releases everything is a function of public values, so the log-likelihood ratio of a whole transcript is the sum
over batches of that of their releases, at the points where they were made: nothing needs to be replayed afterwards, and
the ratio is exact. Messages of other agents depend on the record only through the transcript: their factors cancel.

Who takes part in a batch is hidden. The adversary is told everybody's coin but the record's own, over which
it averages; releases that share a batch share that coin. (A guarantee for Poisson batches holds against this adversary.
For batches of fixed size the others' coins depend on the record's: there the records besides it must contribute
nothing, as in the worst-case instance.)

Beside the likelihood, which trusts the stated noise, a second score only asks which hypothesis is nearer to what was
released: it is blind to the noise's scale, and merciless where noise is missing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import FixedSize, Poisson, Sampling, WithReplacement
from sottovoce.runtime.agent import Agent, Batch, Place, RecordFn
from sottovoce.trees import Private, Tree

_NOTHING = 1e-9  # squared distance, in units of the noise, that counts as none
_TAIL = 1e-9  # counts of a record that are rarer than this are not thought of


@dataclass(frozen=True)
class Watch:
    """What is asked of each release: where the record is, and what it is under the two hypotheses.

    `hypotheses` are two places that differ in that record alone. `each` asks for the ratio of every coordinate on its
    own: record k then is the canary of coordinate k, and the second hypothesis is its absence.
    """

    level: str
    row: int
    hypotheses: tuple[Place, Place]
    each: int = 0  # how many coordinates, each with its own canary; 0 for one record
    drawn: list["_Coin"] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a log-likelihood."""
        return (self.each,) if self.each else ()


@dataclass(frozen=True)
class _Coin:
    """How often the record is in a batch: counts, and their log-probabilities."""

    counts: jax.Array
    weights: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Tally:
    """Both scores of closed batches, and (score, hypothesis, count) of batches that may be used again."""

    scores: jax.Array
    open: dict[int, jax.Array]


class Observer(Agent):
    """An agent that releases as every agent does, bit for bit, and keeps the tally."""

    def __init__(
        self,
        place: Place,
        index: jax.Array,
        t: jax.Array,
        key: jax.Array,
        loops: tuple[int, ...],
        watch: Watch,
        tally: Tally | None = None,
    ) -> None:
        super().__init__(place, index, t, key, loops)
        self._watch = watch
        self._tally = tally or Tally(jnp.zeros((2, *watch.shape)), {})

    def settled(self) -> jax.Array:
        """Of all that was released: the log-likelihood ratio, D over D', and by how much D is nearer than D'."""
        self._close(keep=())
        return self._tally.scores

    def sample(self, sampling: Sampling, name: str = "batch") -> Batch:
        """Draw as always, and note how likely the record was to be in it."""
        batch = super().sample(sampling, name)
        coin = self._coin(batch)
        self._watch.drawn.append(coin)
        number = len(self._watch.drawn) - 1
        start = jnp.zeros((2, 2, coin.counts.shape[0], *self._watch.shape))
        self._tally = replace(self._tally, open={**self._tally.open, number: start})
        return replace(batch, number=number)

    def tell(self, release: Release, value: Private) -> Tree:
        """Private state is beyond this adversary."""
        raise ValueError(
            f"message {release.name!r} carries private state, which an audit of releases does not follow: "
            "audit the sound design, or see the exhibits for the printed ones"
        )

    def loop(self, times: int, body: Callable[[Tree, Any], Tree], carry: Tree, name: str = "loop") -> Tree:
        """Batches drawn inside a turn are closed at its end; those from outside stay open."""
        outside = tuple(self._tally.open)

        def watched(both: tuple[Tree, Tally], agent: "Observer") -> tuple[Tree, Tally]:
            carry, agent._tally = both
            carry = body(carry, agent)
            agent._close(keep=outside)
            return carry, agent._tally

        carry, self._tally = super().loop(times, watched, (carry, self._tally), name)  # type: ignore[arg-type]
        return carry

    def _inside(self, times: int, key: jax.Array) -> "Observer":
        return Observer(self.place, self.index, self.t, key, (*self.loops, times), self._watch, self._tally)

    def _noisy_mean(self, release: Release, fns: Mapping[str, RecordFn], at: Tree, batch: Batch) -> Tree:
        """Release as always, then weigh what came out."""
        noisy = super()._noisy_mean(release, fns, at, batch)
        weighed = self._weigh(release, fns, at, batch, noisy)
        opened = self._tally.open
        self._tally = replace(self._tally, open={**opened, batch.number: opened[batch.number] + weighed})
        return noisy

    def _close(self, keep: tuple[int, ...]) -> None:
        scores = self._tally.scores
        for number, (likely, far) in self._tally.open.items():
            if number not in keep:
                weights = self._watch.drawn[number].weights.reshape(-1, *[1] * len(self._watch.shape))
                under = jax.nn.logsumexp(likely + weights, axis=1)
                nearest = jnp.min(jnp.where(jnp.isfinite(weights), far, jnp.inf), axis=1)
                scores = scores + jnp.stack([under[0] - under[1], nearest[1] - nearest[0]])
        self._tally = Tally(scores, {number: self._tally.open[number] for number in keep})

    def _coin(self, batch: Batch) -> _Coin:
        """Random draws are averaged over; where the schedule is public, the record is there or not."""
        sampling, n = batch.sampling, self.place.sizes[self._watch.level]
        if isinstance(sampling, WithReplacement):
            most = int(max(stats.binom.isf(_TAIL, sampling.batch, 1 / size) for size in n))
            table = np.stack([stats.binom.logpmf(np.arange(most + 1), sampling.batch, 1 / size) for size in n])
        elif isinstance(sampling, (Poisson, FixedSize)):
            rate = np.array([_rate(sampling, int(size)) for size in n])
            with np.errstate(divide="ignore"):
                table = np.log(np.stack([1 - rate, rate], axis=1))
        elif self._watch.each:
            return _Coin(jnp.ones(1), jnp.zeros(1))
        else:
            rows, weights = batch.rows[self._watch.level]
            present = jnp.sum(jnp.where(rows == self._watch.row, weights, 0.0))
            return _Coin(present[None], jnp.zeros(1))
        return _Coin(jnp.arange(table.shape[1], dtype=jnp.float32), jnp.asarray(table, jnp.float32)[self.index])

    def _weigh(self, release: Release, fns: Mapping[str, RecordFn], at: Tree, batch: Batch, noisy: Tree) -> jax.Array:
        """By hypothesis and count: the log-likelihood relative to the record's absence, and the log-distance."""
        watch, coin = self._watch, self._watch.drawn[batch.number]
        alone = [self._at(place)._mean(release, fns, at, self._only_record(batch)) for place in watch.hypotheses]
        if watch.each:
            alone[1] = jax.tree.map(jnp.zeros_like, alone[1])
        rest = noisy if watch.each else jax.tree.map(jnp.subtract, noisy, self._rest(release, fns, at, batch))
        scale = jnp.asarray(release.scale(self.t, self.index), jnp.float32)

        def one(share: Tree, count: jax.Array) -> jax.Array:
            pairs = list(zip(jax.tree.leaves(rest), jax.tree.leaves(share), strict=True))
            gains = [_gain(release, value, count * mine, scale) for value, mine in pairs]
            gaps = [((value - count * mine) / scale) ** 2 for value, mine in pairs]
            gain, gap = ([leaf if watch.each else jnp.sum(leaf) for leaf in leaves] for leaves in (gains, gaps))
            return jnp.stack([sum(gain[1:], gain[0]), jnp.log(sum(gap[1:], gap[0]) + _NOTHING)])

        tables = [jax.vmap(lambda count, share=share: one(share, count))(coin.counts) for share in alone]
        return jnp.moveaxis(jnp.stack(tables), 2, 0)  # (hypothesis, count, score) to (score, hypothesis, count)

    def _rest(self, release: Release, fns: Mapping[str, RecordFn], at: Tree, batch: Batch) -> Tree:
        """The mean without the record."""
        rows, weights = batch.rows[self._watch.level]
        without = jnp.where(rows == self._watch.row, 0.0, weights)
        return self._mean(release, fns, at, replace(batch, rows={**batch.rows, self._watch.level: (rows, without)}))

    def _only_record(self, batch: Batch) -> Batch:
        """The record alone; or all canaries, which do not meet."""
        level = self._watch.level
        rows = jnp.arange(self._watch.each) if self._watch.each else jnp.full(1, self._watch.row)
        nobody = (jnp.zeros(1, jnp.int32), jnp.zeros(1))
        return replace(batch, rows={**dict.fromkeys(batch.rows, nobody), level: (rows, jnp.ones(rows.shape))})

    def _at(self, place: Place) -> Agent:
        return Agent(place, self.index, self.t, self._key, self.loops)


def _rate(sampling: Poisson | FixedSize, n: int) -> float:
    return sampling.event(n).rate if isinstance(sampling, Poisson) else sampling.batch / n  # type: ignore[union-attr]


def _gain(release: Release, value: jax.Array, shift: jax.Array, scale: jax.Array) -> jax.Array:
    """Log-density of noise `value - shift` minus that of `value`, in each coordinate."""
    if release.mechanism == "gaussian":
        return shift * (value - shift / 2) / scale**2
    return (jnp.abs(value) - jnp.abs(value - shift)) / scale
