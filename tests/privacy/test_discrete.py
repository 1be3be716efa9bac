"""Whole-number noise: the distribution it says, the sensitivity it says, the account it says."""

import math
import random
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as library
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import stats

from sottovoce.privacy import accountant, discrete, exact_gate, exact_noise, exact_rows
from sottovoce.privacy.accountant import Mechanism, NoAmplification
from sottovoce.privacy.discrete import GridRelease, on_grid
from sottovoce.privacy.gdp import gdp_delta
from sottovoce.privacy.noise import LAWS
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import FixedSize, Full, OnePass, Poisson, Stream, WithReplacement


def masses(kind: str, scale: float, reach: int) -> np.ndarray:
    z = np.arange(-reach, reach + 1)
    weights = np.exp(-np.abs(z) / scale) if kind == "laplace" else np.exp(-(z**2) / (2 * scale**2))
    return weights / weights.sum()


def fits(drawn: np.ndarray, wanted: np.ndarray) -> float:
    reach = len(wanted) // 2
    counts = np.bincount(np.clip(drawn + reach, 0, 2 * reach), minlength=2 * reach + 1)
    expected = len(drawn) * wanted
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    return stats.chisquare(observed, np.append(expected[common], expected[~common].sum() + 1e-9)).pvalue


# The oracle: the samplers of Canonne, Kamath and Steinke ("The discrete Gaussian for differential privacy", NeurIPS
# 2020), number by number, by whole-number arithmetic alone.


def oracle_laplace(scale: int, source: random.Random) -> int:
    while True:
        low = source.randrange(scale)
        if not flip_exp(low, scale, source):
            continue
        high = 0
        while flip_exp(1, 1, source):
            high += 1
        size, negative = low + scale * high, source.randrange(2)
        if size or not negative:  # zero has one sign only
            return -size if negative else size


def oracle_gaussian(scale: int, source: random.Random) -> int:
    around = scale + 1
    while True:
        z = oracle_laplace(around, source)
        if flip_exp((abs(z) * around - scale**2) ** 2, 2 * scale**2 * around**2, source):
            return z


def flip_exp(top: int, bottom: int, source: random.Random) -> bool:
    """True with probability exp(-top / bottom): the alternating series as a game."""

    def below_one(top: int, bottom: int) -> bool:
        k = 1
        while source.randrange(bottom * k) < top:
            k += 1
        return k % 2 == 1

    return all(below_one(1, 1) for _ in range(top // bottom)) and below_one(top % bottom, bottom)


ORACLES = {"laplace": oracle_laplace, "gaussian": oracle_gaussian}
KINDS = pytest.mark.parametrize("kind", LAWS)


@KINDS
@pytest.mark.parametrize("scale", [1, 3, 40])
def test_samplers_have_the_stated_distribution_and_no_other(kind, scale):
    drawn = LAWS[kind].exact(scale, 200_000, random.Random(0))
    assert drawn.dtype == np.int64
    assert fits(drawn, masses(kind, scale, 40 * scale)) > 1e-3
    for wrong in (0.93, 1.07):
        assert fits(drawn, masses(kind, scale * wrong, 40 * scale)) < 1e-9
    oracle = np.array([ORACLES[kind](scale, random.Random(seed)) for seed in range(5000)])
    assert fits(oracle, masses(kind, scale, 40 * scale)) > 1e-3
    assert stats.ks_2samp(drawn, oracle).pvalue > 1e-3


@KINDS
@pytest.mark.parametrize("scale", [2**16 + 1, 2**30 - 1, 2**40 + 12345, exact_noise.LARGEST_SCALE])
def test_large_scales_look_like_their_continuous_limits(kind, scale):
    drawn = LAWS[kind].exact(scale, 50_000, random.Random(1))
    law = {"gaussian": "norm", "laplace": "laplace"}[kind]
    assert stats.kstest(drawn / scale, law).pvalue > 1e-3
    assert stats.kstest(drawn / scale * 1.1, law).pvalue < 1e-6
    digits = drawn & 15  # the last digits are random, too
    assert stats.chisquare(np.bincount(digits, minlength=16)).pvalue > 1e-3


@KINDS
@pytest.mark.parametrize(("cells", "keeping"), [(31, 2), (2, 32), (1, 1)])
def test_what_is_left_open_is_decided_by_the_same_law(kind, cells, keeping, monkeypatch):
    """With one or two first digits almost every choice is open: the exact part alone makes the law."""
    monkeypatch.setattr(exact_noise, "_SLACK", 0.2)
    monkeypatch.setattr(exact_noise, "_CELL_BITS", cells)
    honest = exact_noise._cells
    monkeypatch.setattr(exact_noise, "_cells", lambda k, s, digits, r: honest(k, s, digits >> (31 - cells), r))
    drawn = LAWS[kind].exact(20, 4000, random.Random(2))
    assert fits(drawn, masses(kind, 20, 800)) > 1e-3


@KINDS
@pytest.mark.parametrize("scale", [1, 5, 17, 1000, 2**40 + 7])
def test_bounds_hold_as_fractions(kind, scale):
    """Cells' cuts against sums of exponentials to 80 digits; every bound tight to a unit."""
    with localcontext() as context:
        context.prec = 80
        width = exact_noise._width(scale)
        assert width == 1 or scale / 16 < width <= scale / 8

        def weight(cell):
            top, bottom = (cell * width, scale) if kind == "laplace" else ((cell * width) ** 2, 2 * scale**2)
            return Fraction((-Decimal(top) / Decimal(bottom)).exp())

        weights = [weight(0)]
        while weights[-1] > Fraction(1, 10**70):
            weights.append(weight(len(weights)))
    total, part = sum(weights), Fraction(0)
    exact_noise._cuts.cache_clear()
    for (lower, upper), added in zip(
        exact_noise._cuts(LAWS[kind], scale, 64), weights
    ):  # in the usual context of 28 digits
        part += added
        assert lower <= part / total * 2**64 < upper + 1
        assert upper - lower <= 1


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**14), st.integers(1, 10**12), st.integers(1, 200))
def test_exponentials_lie_between_their_bounds(top, bottom, bits):
    top %= 1000 * bottom
    loss = Fraction(top, bottom)
    lower, upper = exact_noise._exp_bounds(loss, bits)
    assert 0 <= upper - lower <= 2
    with localcontext() as context:
        context.prec = 150
        exact = Fraction((-Decimal(top) / Decimal(bottom)).exp()) * 2**bits
        assert lower <= exact * (1 + Fraction(1, 10**100))
        assert upper >= exact * (1 - Fraction(1, 10**100))


@KINDS
def test_what_floating_point_decides_is_right(kind, monkeypatch):
    """Every decision of a block, again by fractions."""
    scale, source = 2**20 + 3, random.Random(3)
    cells, places = np.arange(2000) % 50, np.array([source.randrange(exact_noise._width(scale)) for _ in range(2000)])
    words = source.randbytes(8000)
    monkeypatch.setattr(source, "randbytes", lambda count: words[:count])
    asked = []
    monkeypatch.setattr(exact_noise, "_open_flip", lambda *given: asked.append(given) or True)
    kept = exact_noise._keep(LAWS[kind], scale, cells, places, source)
    for cell, place, digits, one in zip(cells, places, np.frombuffer(words, np.uint32), kept):
        lower, upper = exact_noise._exp_bounds(exact_noise._loss(LAWS[kind], scale, int(cell), int(place)), 32)
        assert (int(digits) < upper) if one else (int(digits) >= lower)
    assert len(asked) <= 2


def test_scales_that_floats_do_not_hold_are_refused():
    for scale in (0, 2**46 + 1):
        with pytest.raises(ValueError, match="coarser grid"):
            LAWS["gaussian"].exact(scale, 1, random.Random(0))


GRADIENTS = npst.arrays(
    np.float64,
    st.tuples(st.integers(1, 4), st.integers(1, 6)),
    elements=st.one_of(st.floats(-10, 10), st.sampled_from([1e308, -1e300, 1e-300, math.nan, math.inf, -math.inf])),
)


@settings(max_examples=200, deadline=None)
@given(GRADIENTS, st.floats(1e-3, 100.0), st.sampled_from(["gaussian", "laplace"]))
def test_no_record_ever_exceeds_the_clip_in_whole_numbers(gradients, clip, mechanism):
    """In Python's integers, so that the check itself does not round."""
    grid = on_grid(Release(clip, 1.0, mechanism), denominator=2)
    assert 2**16 <= grid.clip <= 2**17
    assert grid.clip * grid.step <= clip
    for record in gradients:
        steps = grid.whole(record).tolist()
        if mechanism == "laplace":
            assert sum(abs(k) for k in steps) <= grid.clip
        else:
            assert sum(k * k for k in steps) <= grid.clip**2
        if not np.isfinite(record).all():
            assert not any(steps)


def test_what_is_within_the_clip_is_kept_but_for_a_grid_step():
    gradients = np.random.default_rng(0).normal(size=(50, 4)) * 0.2
    for mechanism in ("gaussian", "laplace"):
        grid = on_grid(Release(4.0, 1.0, mechanism), denominator=50)
        for gradient in gradients:
            kept = grid.whole(gradient) * grid.step
            assert np.abs(kept - gradient).max() <= grid.step * (1 + 1e-6)
            assert np.all(np.abs(kept) <= np.abs(gradient))


def test_a_release_is_the_mean_with_the_noise_that_is_asked_for():
    release = Release(1.0, 0.05)
    grid = on_grid(release, denominator=20)
    made = grid.noised(20 * grid.whole(np.full(3000, 0.01)), random.Random(0))
    assert stats.kstest((made - 0.01) / 0.05, "norm").pvalue > 1e-3
    assert np.all((made * 20 / grid.step) == np.round(made * 20 / grid.step))


def test_many_records_are_rounded_as_each_would_be_alone():
    rng = np.random.default_rng(4)
    for dtype in (np.float32, np.float64):
        records = (rng.normal(size=(30, 7)) * np.exp(rng.normal(size=(30, 1)) * 8)).astype(dtype)
        records[3, 2], records[5, 0], records[8] = np.nan, -np.inf, 0.0
        for mechanism in ("gaussian", "laplace"):
            grid = on_grid(Release(0.3, 1.0, mechanism), denominator=4)
            together = grid.whole(records)
            assert together.dtype == np.int64
            np.testing.assert_array_equal(together, [grid.whole(record) for record in records])
            assert not together[[3, 5, 8]].any()
            assert np.abs(together[[0, 1, 2]]).max() > 0.1 * grid.clip


def test_a_norm_that_is_off_is_found_by_the_check(monkeypatch):
    for law in LAWS.values():
        monkeypatch.setattr(type(law), "lengths", lambda self, rows: np.full(len(rows), 0.7))
    for mechanism in ("gaussian", "laplace"):
        grid = GridRelease(1000, 10, 1.0, 1, mechanism)
        steps = grid.whole(np.random.default_rng(5).normal(size=(4, 50)).astype(np.float32) * 1e3).tolist()
        sizes = [sum(abs(k) ** (1 if mechanism == "laplace" else 2) for k in row) for row in steps]
        assert all(0 < size <= 1000 ** (1 if mechanism == "laplace" else 2) for size in sizes)


def test_the_operating_system_is_asked_for_entropy(monkeypatch):
    asked = []

    class Watched(random.SystemRandom):
        def randbytes(self, n):
            asked.append(n)
            return super().randbytes(n)

        def getrandbits(self, k):
            asked.append(k)
            return super().getrandbits(k)

    monkeypatch.setattr(discrete.secrets, "SystemRandom", Watched)
    GridRelease(4, 4, 1.0, 1).noised(np.ones(2, int))
    assert asked
    for sampling in (Poisson(3), FixedSize(3), WithReplacement(3)):
        asked.clear()
        exact_gate.draw(sampling, 10, 0)
        assert asked


def test_a_binomial_number_is_exact_and_no_other():
    source, n, rate = random.Random(6), 12, 0.3
    drawn = [exact_rows.successes(n, int(rate * 2**32), source) for _ in range(5000)]
    counts = np.bincount(drawn, minlength=n + 1)

    def fit(rate):
        expected = 5000 * stats.binom.pmf(np.arange(n + 1), n, rate)
        return stats.chisquare(np.append(counts[:8], counts[8:].sum()), np.append(expected[:8], expected[8:].sum()))

    assert fit(rate).pvalue > 1e-3
    assert fit(0.33).pvalue < 1e-9


@pytest.mark.parametrize(("n", "count"), [(5, 2), (5, 3), (4, 4), (30, 1)])
def test_sequences_of_distinct_numbers_are_equally_likely(n, count):
    source = random.Random(7)
    seen = [tuple(exact_rows.distinct(n, count, source).tolist()) for _ in range(4000)]
    assert all(len(set(one)) == count for one in seen)
    counts = np.unique(np.array(seen), axis=0, return_counts=True)[1]
    assert len(counts) == math.perm(n, count)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_a_deployed_draw_costs_the_batch(monkeypatch):
    class Counting(random.Random):
        bytes = 0

        def randbytes(self, n):
            self.bytes += n
            return super().randbytes(n)

    for sampling in (Poisson(64), FixedSize(64), WithReplacement(64)):
        source = Counting(0)
        assert len(sampling.exact(10**9, 0, source)) > 20
        assert source.bytes < 8 * 200
    asked = set()
    for seed in range(20):  # of a Poisson batch, the bytes do not tell the size
        source = Counting(seed)
        Poisson(64).exact(10**9, 0, source)
        asked.add(source.bytes)
    assert len(asked) == 1


@pytest.mark.parametrize("sampling", [Full(), Poisson(3), FixedSize(3), WithReplacement(3), OnePass(3), Stream(2)])
def test_batches_are_those_that_are_charged(sampling):
    """How often each of ten records is drawn at the third step, in many batches."""
    batches = 2000 if sampling.amplifies else 2
    counts = sum(np.bincount(sampling.exact(10, 2, random.SystemRandom()), minlength=10) for _ in range(batches))
    if sampling.amplifies:
        assert np.abs(counts - 600).max() < 6 * math.sqrt(2000 * 0.3)
        sizes = {len(sampling.exact(10, 2, random.SystemRandom())) for _ in range(50)}
        assert (len(sizes) > 1) == isinstance(sampling, Poisson)
    else:
        there = {Full: range(10), OnePass: range(6, 9), Stream: range(6)}[type(sampling)]
        assert np.flatnonzero(counts).tolist() == list(there)


# The charge: that of an ideal release which dominates.


def exact_delta(p: np.ndarray, q: np.ndarray, eps: float) -> float:
    return max(float(np.maximum(p - math.exp(eps) * q, 0).sum()), float(np.maximum(q - math.exp(eps) * p, 0).sum()))


def ideal_delta(kind: str, inverse: float, eps: float) -> float:
    return gdp_delta(inverse, eps) if kind == "gaussian" else max(0.0, -math.expm1((eps - inverse) / 2))


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@pytest.mark.parametrize(("clip", "scale"), [(1, 4), (4, 6), (13, 20), (7, 5), (300, 300)])
def test_the_ideal_release_that_is_charged_dominates_at_every_epsilon(kind, clip, scale):
    grid = GridRelease(clip, scale, 1.0, 1, kind)
    here = masses(kind, scale, 45 * scale + clip)
    there = np.roll(here, clip)
    for eps in np.linspace(0, 1.1 * grid.inverse_multiplier, 40):
        assert exact_delta(there, here, eps) <= ideal_delta(kind, grid.inverse_multiplier, eps) + 1e-12
    if kind == "laplace" and (clip, scale) == (4, 6):  # the uncorrected rule would be false
        assert (
            max(exact_delta(there, here, e) - ideal_delta(kind, clip / scale, e) for e in np.linspace(0, 0.7, 99)) > 0
        )


def test_in_two_dimensions_too():
    """Discrete Gaussian, shift (3, 4), against the ideal one at distance 5; Laplace, against 7 in one coordinate."""
    for kind, scale, size in (("gaussian", 6, 5), ("laplace", 4, 7)):
        one = masses(kind, scale, 30 * scale)
        here, there = np.outer(one, one).ravel(), np.outer(np.roll(one, 3), np.roll(one, 4)).ravel()
        charged = GridRelease(size, scale, 1.0, 1, kind).inverse_multiplier
        for eps in np.linspace(0, 2, 21):
            assert exact_delta(there, here, eps) <= ideal_delta(kind, charged, eps) + 1e-12


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@pytest.mark.parametrize(("rate", "count"), [(None, 10), (0.1, 50)])
def test_the_account_is_that_of_the_actual_discrete_distribution_and_a_little(kind, rate, count):
    """The oracle: dp-accounting's privacy loss distribution of the discrete noise itself, Poisson-sampled, composed."""
    grid = GridRelease(64, 100, 1.0, 1, kind)
    inverse, delta = grid.inverse_multiplier, 1e-5
    amplification = NoAmplification() if rate is None else accountant.PoissonAmplification(rate)
    ours = Mechanism(
        gaussian=inverse**2 if kind == "gaussian" else 0.0,
        laplace=(inverse,) if kind == "laplace" else (),
        amplification=amplification,
    )
    make, size = {
        "gaussian": (library.from_discrete_gaussian_mechanism, 100),
        "laplace": (library.from_discrete_laplace_mechanism, 1 / 100),
    }[kind]

    def actual(pessimistic: bool) -> float:
        grids = {"value_discretization_interval": 1e-3, "pessimistic_estimate": pessimistic}
        loss = make(size, sensitivity=64, sampling_prob=rate or 1.0, **grids)
        return loss.self_compose(count).get_epsilon_for_delta(delta)

    charged = float(accountant.epsilon([(ours, count)], delta, "zero-out"))
    assert actual(pessimistic=False) <= charged <= actual(pessimistic=True) * 1.005


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_releases_that_share_a_poisson_batch_are_one_mechanism(kind):
    """Two releases of one batch against their exact joint distribution: a record is in both or in neither."""
    clip, scale, rate, delta = 16, 25, 0.3, 1e-3
    inverse = GridRelease(clip, scale, 1.0, 1, kind).inverse_multiplier
    one = masses(kind, scale, 20 * scale)
    moved = np.roll(one, clip)
    here = np.outer(one, one).ravel()
    mixed = (1 - rate) * here + rate * np.outer(moved, moved).ravel()
    terms = {"gaussian": 2 * inverse**2} if kind == "gaussian" else {"laplace": (inverse, inverse)}
    joint = Mechanism(**terms, amplification=accountant.PoissonAmplification(rate))
    charged = float(accountant.epsilon([(joint, 1)], delta, "zero-out"))
    assert exact_delta(mixed, here, charged) <= delta
    assert exact_delta(mixed, here, 0.97 * charged) > delta


def test_twenty_coarse_laplace_releases():
    """At epsilon 1 each the truth is 19.99, not the 19.11 of ideal noise of the same scale."""
    coarse = GridRelease(1, 1, 1.0, 1, "laplace")
    actual = library.from_discrete_laplace_mechanism(1.0).self_compose(20).get_epsilon_for_delta(1e-5)
    assert actual == pytest.approx(19.9947, abs=1e-3)
    assert accountant.epsilon([(Mechanism(laplace=(coarse.inverse_multiplier,)), 20)], 1e-5, "zero-out") >= actual
    assert accountant.epsilon([(Mechanism(laplace=(1.0,)), 20)], 1e-5, "zero-out") == pytest.approx(19.1055, abs=1e-2)


@example(1.0, 7.9999, 1, "laplace", 0)  # where rounding up alone is not enough
@example(1.0, 7.9999, 1, "gaussian", 0)
@settings(max_examples=200, deadline=None)
@given(
    st.floats(1e-3, 1e3), st.floats(1e-6, 1e3), st.integers(1, 10**6), st.sampled_from(["gaussian", "laplace"]),
    st.integers(0, 20),
)  # fmt: skip
def test_on_the_grid_a_release_is_charged_at_most_what_is_stated(clip, noise, denominator, mechanism, bits):
    grid = on_grid(Release(clip, noise, mechanism), denominator, bits=bits)
    assert grid.inverse_multiplier <= clip / denominator / noise
    asked = noise * denominator / grid.step
    assert grid.scale <= asked + 1.25 + min(9 / asked, 3) + 1e-9 * asked  # and no more noise than it takes


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="power of two"):
        GridRelease(1, 1, 0.3, 1)
    with pytest.raises(ValueError, match="no clip or no noise"):
        on_grid(Release.open(), 10)
    with pytest.raises(ValueError, match="overflow"):
        GridRelease(2**40, 1, 1.0, 1).whole(np.ones(3))
    assert GridRelease(1, 3, 1.0, 1).inverse_multiplier == math.inf  # too coarse for the proof


def test_parts_that_parties_draw_are_one_batch_of_all_rows():
    """Each of ten rows has a coin of its own at the common rate, whoever holds it: the law of one batch."""
    source, sampling, sizes, draws = random.Random(8), Poisson(4), (3, 5, 2), 1500
    firsts, taken = np.cumsum((0, *sizes)), np.zeros((draws, 10), int)
    for batch in taken:
        for n, first in zip(sizes, firsts):
            rows, room = sampling.part(n, 10, 0, source)
            assert len(rows) <= room <= n
            batch[first + rows] += 1
    assert taken.max() == 1
    expected = draws * stats.binom.pmf(np.arange(11), 10, 0.4)
    counts = np.bincount(taken.sum(axis=1), minlength=11)
    fit = stats.chisquare(np.append(counts[:8], counts[8:].sum()), np.append(expected[:8], expected[8:].sum()))
    assert fit.pvalue > 1e-4
    assert np.max(np.abs(taken.mean(axis=0) - 0.4)) < 4.5 * np.sqrt(0.24 / draws)  # not 4/3, 4/5 and 4/2
    for other in (FixedSize(4), WithReplacement(4)):
        with pytest.raises(ValueError, match="cannot share out"):
            other.part(3, 10, 0, source)
