"""Batches are drawn as they are charged."""

import math
from collections import Counter
from fractions import Fraction
from functools import partial
from itertools import pairwise
from random import SystemRandom

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from tests.marks import few
from tests.privacy.keeping import Keeping
from tests.privacy.laws import law

import sottovoce as sv
from sottovoce.privacy import binomial, drawn_rows, threefry
from sottovoce.privacy.binomial import OVERFLOW
from sottovoce.privacy.sampling import FixedSize, Full, OnePass, Poisson, Sampling, Stream, WithReplacement

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


@pytest.mark.parametrize("agent", [1, *(pytest.param(other, marks=pytest.mark.slow) for other in (0, 2))])
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
        assert sampling.overflow(n) == pytest.approx(stats.binom.sf(room, n, rate), abs=1e-24)
        assert sampling.overflow(n) >= stats.binom.sf(room, n, rate)


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


def test_fresh_coins_for_each_step_and_agent():
    """The same batch twice would make amplification void."""
    problem = sv.Minimize(lambda x, r: x @ r, jnp.zeros(60))
    records = np.eye(60, dtype=np.float32)
    method = Keeping(sv.Release(1.0, 1e-9), Poisson(15))
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


# The law: stated as fractions, and drawn.

SAMPLINGS = [Full(), Poisson(2), Poisson(9, cut=True), FixedSize(2), WithReplacement(2), OnePass(2), Stream(2)]


def simulated_batches(sampling: Sampling, n: int, steps: int, runs: int, others: int) -> Counter:
    """What one of two agents draws; the other one's size decides how much is padded and which way is taken."""
    sizes = np.array([n, others])

    @jax.jit
    @jax.vmap
    def run(key):
        keys = jax.random.split(key, steps)
        return [sampling.draw(keys[t], sizes, jnp.int32(0), jnp.int32(t)) for t in range(steps)]

    drawn = [np.asarray(batch, int) for step in run(jax.random.split(jax.random.key(1), runs)) for batch in step]
    tables = []
    for rows, weights in zip(drawn[::2], drawn[1::2]):
        table = np.zeros((runs, max(n, others)), int)
        np.add.at(table, (np.arange(runs)[:, None], rows), weights)
        assert table[:, n:].sum() == 0
        tables.append(table[:, :n])
    return Counter(tuple(tuple(batch) for batch in one) for one in np.stack(tables, 1).tolist())


def deployed_batches(sampling: Sampling, n: int, steps: int, runs: int) -> Counter:
    return Counter(
        tuple(tuple(np.bincount(sampling.exact(n, t, SystemRandom()), minlength=n).tolist()) for t in range(steps))
        for _ in range(runs)
    )


def fit(seen: Counter, stated) -> float:
    """How likely counts as far from the law are, if it is the law; 0 if something impossible was seen."""
    chances = {batches: float(chance) for batches, chance in stated}
    if not set(seen) <= set(chances):
        return 0.0
    runs = sum(seen.values())
    rare = [batches for batches, chance in chances.items() if chance * runs < 5]
    observed = [seen[batches] for batches in chances if batches not in set(rare)]
    expected = [chance * runs for chance in chances.values() if chance * runs >= 5]
    if rare:
        observed.append(sum(seen[batches] for batches in rare))
        expected.append(runs * sum(chances[batches] for batches in rare))
    return stats.chisquare(observed, np.array(expected) * (runs / sum(expected))).pvalue if len(observed) > 1 else 1.0


@pytest.mark.parametrize("n", [4, 5, 6])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_laws_are_laws(sampling, n):
    steps = 2
    stated = law(sampling, n, steps)
    assert sum(chance for _, chance in stated) == 1
    assert len({batches for batches, _ in stated}) == len(stated)
    assert all(isinstance(chance, Fraction) and chance > 0 for _, chance in stated)
    assert all(len(batches) == steps and all(len(batch) == n for batch in batches) for batches, _ in stated)
    mean = sum(chance * sum(batches[-1]) for batches, chance in stated)
    charged = n * Fraction(sampling.event(n).rate) if isinstance(sampling, Poisson) else None
    assert mean == (sampling.denominator(n, steps - 1) if charged is None else charged)


@pytest.mark.parametrize("others", [pytest.param(5, marks=pytest.mark.slow), 300])  # alone; beside a large agent
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_the_law_is_what_is_drawn(sampling, others):
    n, steps, runs = 5, 2 if sampling.amplifies else 3, 6000
    if isinstance(sampling, OnePass):
        steps = 2
    seen = simulated_batches(sampling, n, steps, runs, others)
    assert fit(seen, law(sampling, n, steps)) > 1e-4


@pytest.mark.parametrize("rooms", few([(5, 5), (5, 1), (9, 9), (9, 3), (600, 600), (600, 2)], [(9, 3)]))
def test_a_binomial_number_of_distinct_rows_has_the_law_of_coins(rooms):
    """What is drawn where the array has no room for all rows, on few enough rows to count, vectorised or one by one."""
    table, (room, usual) = binomial.binomial(5, Poisson(2)._threshold(5)), rooms

    def draw(key):
        words = threefry.words(key, (room + 3,))
        return drawn_rows.binomial_rows(key, words, jnp.int32(5), [table, table], jnp.int32(1), usual)

    keys = jax.random.split(jax.random.key(4), 10_000)
    rows, weights = (np.asarray(one, int) for one in jax.jit(jax.vmap(draw))(keys))
    for together, alone in zip((rows, weights), jax.jit(partial(jax.lax.map, draw))(keys[:300])):
        assert np.array_equal(alone, together[:300])  # whether a rare case is computed changes nobody's batch
    taken = np.zeros((len(rows), 5), int)
    np.add.at(taken, (np.arange(len(rows))[:, None], rows), weights)
    seen = Counter((tuple(one),) for one in taken.tolist())
    assert fit(seen, law(Poisson(2), 5, 1)) > 1e-4
    assert fit(seen, law(Poisson(3), 5, 1)) < 1e-9
    assert fit(seen, law(FixedSize(2), 5, 1)) == 0.0


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_the_law_is_what_is_drawn_when_deployed(sampling):
    seen = deployed_batches(sampling, 5, 1, 4000 if sampling.amplifies else 3)
    assert fit(seen, law(sampling, 5, 1)) > 1e-4


def test_a_wrong_law_is_told_apart():
    wrong = {Poisson(2): FixedSize(2), FixedSize(2): WithReplacement(2), WithReplacement(2): FixedSize(2)}
    for right, other in wrong.items():
        for seen in (simulated_batches(right, 5, 1, 6000, 400), deployed_batches(right, 5, 1, 4000)):
            assert fit(seen, law(right, 5, 1)) > 1e-4
            assert fit(seen, law(other, 5, 1)) < 1e-9
    assert fit(simulated_batches(Poisson(2), 5, 1, 6000, 400), law(Poisson(3), 5, 1)) < 1e-9
    twice = simulated_batches(Poisson(2), 5, 2, 6000, 400)
    same = Counter((first, first) for first, _ in twice.elements())  # no fresh coins for step 2
    assert fit(same, law(Poisson(2), 5, 2)) < 1e-9


@pytest.mark.parametrize(
    ("room", "size", "n"),
    [(4, 3, 4), (3, 2, 5), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(3, 3, 3), (600, 3, 4)])],
)
def test_sets_of_distinct_rows_are_equally_likely(room, size, n):
    """Also when all rows are taken, and when repetitions are found by sorting."""

    @jax.jit
    @jax.vmap
    def draw(key):
        return drawn_rows.distinct_rows(key, threefry.words(key, (room,)), jnp.int32(n), jnp.int32(size), room)

    rows, weights = map(np.asarray, draw(jax.random.split(jax.random.key(2), 6000)))
    assert np.all(weights.sum(axis=1) == size)
    taken = Counter(tuple(sorted(one)) for one in rows[:, :size].tolist())
    assert all(len(set(one)) == size and max(one) < n for one in taken)
    assert len(taken) == math.comb(n, size)
    if len(taken) > 1:
        assert stats.chisquare(list(taken.values())).pvalue > 1e-4


def test_large_batches_are_distinct_and_uniform():
    n, batch = 3000, 1000
    draw = jax.jit(jax.vmap(lambda key: FixedSize(batch).draw(key, np.array([n]), jnp.int32(0), jnp.int32(0))[0]))
    rows = np.asarray(draw(jax.random.split(jax.random.key(3), 200)))
    assert all(len(set(one)) == batch for one in rows.tolist())
    counts = np.bincount(rows.ravel(), minlength=n)
    spread = np.sum((counts - 200 / 3) ** 2) / (200 * 1 / 3 * 2 / 3)
    assert abs(spread - n) < 6 * math.sqrt(2 * n)


def test_numbers_below_a_bound_have_no_bias(monkeypatch):
    """All 32-bit words that matter, for a bound that divides 2**32 badly: each value keeps as many words as any."""
    bound = 3 * 2**30  # a third of the words is refused
    words = jnp.asarray(np.random.default_rng(0).integers(0, 2**32, 30_000, dtype=np.uint32))
    drawn = np.asarray(
        drawn_rows.uniform_below(jax.random.key(0), words, jnp.full(words.size, bound, jnp.uint32)), np.uint32
    )
    assert drawn.max() < bound
    assert stats.kstest(drawn / bound, "uniform").pvalue > 1e-4
    counts = np.bincount(drawn % 3, minlength=3)  # without refusal one of the three is twice as likely
    assert stats.chisquare(counts).pvalue > 1e-4
    biased = (np.asarray(words, np.uint64) * bound >> np.uint64(32)) % 3
    assert stats.chisquare(np.bincount(biased.astype(int), minlength=3)).pvalue < 1e-9


def test_the_table_of_a_binomial_number_is_right_up_to_its_error():
    for n, successes in [(7, 2**30), (20, 2**31 + 5), (50, 7), (30, 2**32 - 9)]:
        table, rate = binomial.binomial(n, successes), Fraction(successes, 2**32)
        cuts = [0, *table.thresholds, 2**96]
        lowest = table.highest - len(table.thresholds)
        drawn = {lowest + i: Fraction(b - a, 2**96) for i, (a, b) in enumerate(pairwise(cuts))}
        exact = {k: math.comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(n + 1)}
        distance = sum(abs(drawn.get(k, 0) - exact[k]) for k in exact) / 2
        assert distance <= table.error <= 1e-18
        assert all(chance >= 0 for chance in drawn.values())


def test_words_are_those_of_the_key():
    key = jax.random.key(5, impl="threefry2x32")
    assert np.array_equal(threefry.words(key, (3, 11)), jax.random.bits(key, (3, 11), jnp.uint32))
    assert threefry.fold(key, np.uint32(2**31 + 7)) == jax.random.fold_in(key, 2**31 + 7)
    with pytest.raises(TypeError, match="threefry2x32 alone"):
        threefry.words(jax.random.key(5, impl="rbg"), (3,))


def test_usual_rows_are_few_and_nearly_always_enough():
    for n, batch, agents in ((20_000, 64, 1), (6000, 50, 10), (500, 20, 1000)):
        usual = Poisson(batch).usual(np.full(agents, n))
        assert agents * stats.binom.sf(usual, n, batch / n) <= 1 / 32
        assert agents * stats.binom.sf(usual - 9, n, batch / n) > 1 / 32  # rounded up to a multiple of 8


@pytest.mark.parametrize("wrong", [1.9, 2.0, 0, -1, True, np.True_, "3", None, float("nan")])
def test_a_number_that_is_not_whole_is_refused(wrong):
    for make in (Poisson, FixedSize, WithReplacement, OnePass, Stream):
        with pytest.raises(ValueError, match="whole number of at least 1"):
            make(wrong)
    with pytest.raises(ValueError, match="True or False"):
        Poisson(2, cut=wrong) if not isinstance(wrong, bool) else Poisson(2, cut=1)
    assert FixedSize(np.int64(3)) == FixedSize(3)


def test_nothing_as_long_as_the_data_is_made_in_a_step():
    n = 1_000_003
    for drawn in (Poisson(64), FixedSize(64), WithReplacement(64), OnePass(64)):
        traced = jax.make_jaxpr(lambda key, s=drawn: s.draw(key, np.array([n]), jnp.int32(0), jnp.int32(0)))(
            jax.random.key(0)
        )
        assert largest(traced.jaxpr) < n / 10  # pairs of rows of a batch are compared, in one fused program


def largest(jaxpr) -> int:
    """The length of the longest array anywhere in a program."""
    sizes = [max((v.aval.size for v in [*e.invars, *e.outvars] if hasattr(v.aval, "shape")), default=0)
             for e in jaxpr.eqns]  # fmt: skip
    inner = [largest(sub) for e in jaxpr.eqns for sub in jax.extend.core.jaxprs_in_params(e.params)]
    return max([*sizes, *inner], default=0)
