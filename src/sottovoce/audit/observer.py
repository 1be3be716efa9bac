"""Weigh an agent's releases while they are made: how likely is each under D, and how likely under D'?

Between releases everything is a function of public values, so the log-likelihood ratio of a whole transcript is the sum
over batches of that of their releases, at the points where they were made: nothing needs to be replayed afterwards, and
the ratio is exact. Messages of other agents depend on the record only through the transcript: their factors cancel.

Who takes part in a batch is hidden. The adversary is told everybody's coin but the record's own, over which it
averages; releases that share a batch share that coin. (A guarantee for Poisson batches holds against this adversary.
For batches of fixed size the others' coins depend on the record's: there the records besides it must contribute
nothing. This is not the worst case: the account covers others that contribute the opposite, so the audit finds less.)

Beside the likelihood, which trusts the stated noise, a second score only asks which hypothesis is nearer to what was
released: it does not use the noise's scale, and it finds missing noise at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from sottovoce.data.sealed import Sealed
from sottovoce.methods import equations
from sottovoce.privacy.release import Release
from sottovoce.runtime import answers
from sottovoce.runtime.answers import BatchRows
from sottovoce.runtime.array import ArrayAnswers
from sottovoce.runtime.interpreter import play, walk
from sottovoce.runtime.lone_agent import LoneAnswers
from sottovoce.trees import Tree

_NOTHING = 1e-9  # squared distance, in units of the noise, that counts as none


@dataclass(frozen=True)
class Watch:
    """Say what to compute about each release: where the record is, and what it is under the two hypotheses.

    `hypotheses` are the agent's records under D and under D', which differ in that record alone. `each` asks for the
    ratio of every coordinate on its own: record k then is the canary of coordinate k, and the second hypothesis is its
    absence.
    """

    level: str
    row: int
    hypotheses: tuple[Mapping[str, Sealed], Mapping[str, Sealed]]
    each: int = 0  # how many coordinates, each with its own canary; 0 for one record
    drawn: list["_Coin"] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of a log-likelihood."""
        return (self.each,) if self.each else ()


@dataclass(frozen=True)
class _Coin:
    """Hold how often the record may be in a batch: counts, and their log-probabilities."""

    counts: jax.Array
    weights: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Tally:
    """Hold both scores of closed batches, and the scores of open ones by hypothesis and count.

    A batch is open as long as it may be used again.
    """

    scores: jax.Array
    open: dict[int, jax.Array]


class Observer:
    """Answer exactly as the agent's own answers do, bit for bit, and keep the tally."""

    def __init__(self, base: ArrayAnswers | LoneAnswers, watch: Watch, tally: Tally | None = None) -> None:
        self.base, self.watch = base, watch
        self.tally = tally or Tally(jnp.zeros((2, *watch.shape)), {})

    def settled(self) -> jax.Array:
        """Return, of all that was released: the log-likelihood ratio, D over D', and by how much D is nearer."""
        self._close(keep=())
        return self.tally.scores

    def __call__(self, equation: JaxprEqn, values: list[Any]) -> list[Any]:
        """Return an equation's results, and weigh them if they are released."""
        if equation.primitive is equations.tell_p:
            raise ValueError(
                f"message {equation.params['release'].name!r} carries private state, which an audit of releases does "
                "not follow: audit the sound design, or see the exhibits for the printed ones"
            )
        if equation.primitive is equations.loop_p:
            return self._loop(equation, values)
        results = list(self.base(equation, values))
        if equation.primitive is equations.sample_p:
            return [self._opened(results[0])]
        if equation.primitive is equations.release_p:
            batch, noted = values[0], self.tally.open
            weighed = noted[batch.number] + self._weigh(equation, values, results)
            self.tally = replace(self.tally, open={**noted, batch.number: weighed})
        return results

    def _opened(self, batch: BatchRows) -> BatchRows:
        """Note how likely the record was to be in a batch."""
        coin = self._coin(batch)
        self.watch.drawn.append(coin)
        number = len(self.watch.drawn) - 1
        start = jnp.zeros((2, 2, coin.counts.shape[0], *self.watch.shape))
        self.tally = replace(self.tally, open={**self.tally.open, number: start})
        return replace(batch, number=number)

    def _loop(self, equation: JaxprEqn, values: list[Any]) -> list[Any]:
        """Close the batches drawn inside a turn at its end; those from outside stay open."""
        outside = tuple(self.tally.open)
        body, consts = equation.params["body"], equation.params["consts"]

        def turn(k: Any, both: tuple[list[Any], Tally]) -> tuple[list[Any], Tally]:
            carry, tally = both
            inside = Observer(self.base.inside(equation, k), self.watch, tally)
            carry = play(walk(body, (), [*values[:consts], *carry], compiled=self.base.compiled), inside)
            inside._close(keep=outside)
            return carry, inside.tally

        carry, self.tally = self.base.repeat(equation.params["times"], turn, (list(values[consts:]), self.tally))
        return carry

    def _close(self, keep: tuple[int, ...]) -> None:
        scores = self.tally.scores
        for number, (likely, far) in self.tally.open.items():
            if number not in keep:
                weights = self.watch.drawn[number].weights.reshape(-1, *[1] * len(self.watch.shape))
                under = jax.nn.logsumexp(likely + weights, axis=1)
                nearest = jnp.min(jnp.where(jnp.isfinite(weights), far, jnp.inf), axis=1)
                scores = scores + jnp.stack([under[0] - under[1], nearest[1] - nearest[0]])
        self.tally = Tally(scores, {number: self.tally.open[number] for number in keep})

    def _coin(self, batch: BatchRows) -> _Coin:
        """Return the record's coin: random draws are averaged over; in a public schedule it is there or not."""
        sizes = self.base.moment.known.population.counts[self.watch.level]
        coins = [coin for n in sizes.tolist() if (coin := batch.sampling.coin(n)) is not None]
        if not coins and self.watch.each:
            return _Coin(jnp.ones(1), jnp.zeros(1))
        if not coins:
            rows, weights = batch.rows[self.watch.level]
            present = jnp.sum(jnp.where(rows == self.watch.row, weights, 0.0))
            return _Coin(present[None], jnp.zeros(1))
        most = max(map(len, coins))
        with np.errstate(divide="ignore"):
            table = np.log(np.stack([np.pad(coin, (0, most - len(coin))) for coin in coins]))
        own = jnp.asarray(table, jnp.float32)[self.base.moment.index]
        return _Coin(jnp.arange(table.shape[1], dtype=jnp.float32), own)

    def _weigh(self, equation: JaxprEqn, values: list[Any], noisy: list[Any]) -> jax.Array:
        """Return by hypothesis and count: the log-likelihood relative to the record's absence, and the log-distance."""
        watch, moment, batch = self.watch, self.base.moment, values[0]
        release: Release = equation.params["release"]
        coin = watch.drawn[batch.number]

        def mean(records: Mapping[str, Sealed], rows: BatchRows) -> list[Any]:
            return jax.tree.leaves(answers.mean(replace(moment, records=records), equation, [rows, *values[1:]]))

        alone = [mean(records, self._only_record(batch)) for records in watch.hypotheses]
        if watch.each:
            alone[1] = [jnp.zeros_like(leaf) for leaf in alone[1]]
            rest = noisy
        else:
            others = mean(moment.records, self._others(batch))
            rest = [value - other for value, other in zip(noisy, others)]
        scale = jnp.asarray(release.scale(moment.t, moment.index), jnp.float32)

        def one(share: Tree, count: jax.Array) -> jax.Array:
            pairs = list(zip(rest, share, strict=True))
            gains = [release.law.gain(value, count * mine, scale) for value, mine in pairs]
            gaps = [((value - count * mine) / scale) ** 2 for value, mine in pairs]
            gain, gap = ([leaf if watch.each else jnp.sum(leaf) for leaf in leaves] for leaves in (gains, gaps))
            return jnp.stack([sum(gain[1:], gain[0]), jnp.log(sum(gap[1:], gap[0]) + _NOTHING)])

        tables = [jax.vmap(lambda count, share=share: one(share, count))(coin.counts) for share in alone]
        return jnp.moveaxis(jnp.stack(tables), 2, 0)  # (hypothesis, count, score) to (score, hypothesis, count)

    def _others(self, batch: BatchRows) -> BatchRows:
        """Return the batch without the record."""
        rows, weights = batch.rows[self.watch.level]
        without = jnp.where(rows == self.watch.row, 0.0, weights)
        return replace(batch, rows={**batch.rows, self.watch.level: (rows, without)})

    def _only_record(self, batch: BatchRows) -> BatchRows:
        """Return the record alone; or all canaries, which do not meet."""
        rows = jnp.arange(self.watch.each) if self.watch.each else jnp.full(1, self.watch.row)
        nobody = (jnp.zeros(1, jnp.int32), jnp.zeros(1))
        alone = {**dict.fromkeys(batch.rows, nobody), self.watch.level: (rows, jnp.ones(rows.shape))}
        return replace(batch, rows=alone)
