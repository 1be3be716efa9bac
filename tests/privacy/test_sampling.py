"""Batches are drawn as they are charged."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sottovoce as sv
from sottovoce.privacy.sampling import OVERFLOW, FixedSize, Full, OnePass, Poisson, Stream, WithReplacement

SIZES = np.array([40, 100, 71])


def draw_many(sampling, agent: int, draws: int = 2000, t: int = 0):
    keys = jax.random.split(jax.random.key(0), draws)
    rows, weights = jax.vmap(lambda k: sampling.draw(k, SIZES, jnp.int32(agent), jnp.int32(t)))(keys)
    return np.asarray(rows), np.asarray(weights)


def counts(rows: np.ndarray, weights: np.ndarray, n: int) -> np.ndarray:
    """How often each record came up in each draw."""
    table = np.zeros((len(rows), int(SIZES.max()) + 1))
    np.add.at(table, (np.arange(len(rows))[:, None], rows), weights)
    assert table[:, n:].sum() == 0, "a row that the agent does not have"
    return table[:, :n]


@pytest.mark.parametrize("agent", [0, 1, 2])
def test_poisson_takes_each_record_on_its_own(agent):
    n, batch = int(SIZES[agent]), 20
    taken = counts(*draw_many(Poisson(batch), agent), n)
    assert set(np.unique(taken)) <= {0.0, 1.0}
    rate = Poisson(batch).event(n).rate
    assert rate == pytest.approx(batch / n, rel=1e-8)
    assert rate <= batch / n
    per_record = taken.sum(axis=0)
    assert stats.chisquare(per_record).pvalue > 1e-4
    totals = taken.sum(axis=1)  # binomial, unlike a fixed-size batch, whose variance is zero
    assert np.mean(totals) == pytest.approx(batch, abs=5 * np.sqrt(batch / len(totals)))
    assert np.var(totals) == pytest.approx(n * rate * (1 - rate), rel=0.15)


def test_a_poisson_batch_is_never_cut_silently():
    for n, batch in [(100, 20), (6000, 500), (60_000, 50), (20, 20), (5, 1)]:
        sampling = Poisson(batch)
        room = sampling.capacity(n)
        rate = sampling.event(n).rate
        assert stats.binom.sf(room, n, rate) <= OVERFLOW
        assert room == n or stats.binom.sf(room - 1, n, rate) > OVERFLOW
        assert sampling.overflow(n) == pytest.approx(stats.binom.sf(room, n, rate))


def test_fixed_size_without_replacement():
    taken = counts(*draw_many(FixedSize(7), agent=2), 71)
    assert np.all(taken.sum(axis=1) == 7)
    assert taken.max() == 1.0
    assert stats.chisquare(taken.sum(axis=0)).pvalue > 1e-4


def test_with_replacement():
    taken = counts(*draw_many(WithReplacement(30), agent=0), 40)
    assert np.all(taken.sum(axis=1) == 30)
    assert taken.max() > 1.0
    assert stats.chisquare(taken.sum(axis=0)).pvalue > 1e-4


def test_one_pass_uses_each_record_once():
    seen = np.concatenate(
        [np.asarray(OnePass(10).draw(jax.random.key(0), SIZES, jnp.int32(0), jnp.int32(t))[0]) for t in range(4)]
    )
    assert sorted(seen.tolist()) == list(range(40))


def test_full_and_stream():
    _, weights = Full().draw(jax.random.key(0), SIZES, jnp.int32(2), jnp.int32(0))
    assert float(weights.sum()) == 71
    for t, arrived in [(0, 2), (3, 8), (100, 40)]:
        _, weights = Stream(arrivals=2).draw(jax.random.key(0), SIZES, jnp.int32(0), jnp.int32(t))
        assert float(weights.sum()) == arrived == int(Stream(2).denominator(40, t))


class Kept(NamedTuple):
    x: Any
    gradient: Any


@dataclass(frozen=True)
class _Keeping(sv.methods.Method):
    """Releases a gradient at x0 in each step, and keeps it."""

    gradient: sv.Release
    sampling: Any

    def init(self, problem, agent):
        return Kept(problem.x0, problem.x0)

    def step(self, problem, state, agent):
        batch = agent.sample(self.sampling)
        return Kept(state.x, agent.release(self.gradient, problem.loss, at=state.x, batch=batch))


def test_fresh_coins_for_each_step_and_agent():
    """The same batch twice would make amplification void."""
    problem = sv.Minimize(lambda x, r: x @ r, jnp.zeros(60))
    records = np.eye(60, dtype=np.float32)
    method = _Keeping(sv.Release(1.0, 1e-9), Poisson(15))
    network = sv.networks.ring(2)
    batches = []
    for steps in (1, 2):
        kept = sv.run(problem, [records, records], method, network=network, steps=steps, seed=5).agents.gradient
        batches += list(np.asarray(kept) > 1e-3)
    overlaps = [np.mean(a == b) for i, a in enumerate(batches) for b in batches[i + 1 :]]
    assert max(overlaps) < 0.95


def test_a_batch_larger_than_the_data_is_refused():
    method = sv.methods.DpSgd(rate=1.0, gradient=sv.Release(1.0, 1.0), sampling=Poisson(50))
    with pytest.raises(ValueError, match=r"a batch of 50 from a party that has 30.*\(parties 1\)"):
        sv.account(method, sv.Population([100, 30]), steps=5, network=sv.networks.ring(2))
