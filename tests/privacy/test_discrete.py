"""Whole-number noise: the distribution it says, the sensitivity it says, the account it says."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy import stats

from sottovoce.privacy import discrete
from sottovoce.privacy.discrete import GridRelease, discrete_gaussian, discrete_laplace, on_grid
from sottovoce.privacy.gdp import gdp_epsilon
from sottovoce.privacy.release import Release


def masses(kind: str, scale: float, reach: int) -> np.ndarray:
    z = np.arange(-reach, reach + 1)
    weights = np.exp(-np.abs(z) / scale) if kind == "laplace" else np.exp(-(z**2) / (2 * scale**2))
    return weights / weights.sum()


@pytest.mark.parametrize(("kind", "draw"), [("laplace", discrete_laplace), ("gaussian", discrete_gaussian)])
@pytest.mark.parametrize("scale", [1, 3])
def test_samplers_have_the_stated_distribution_and_no_other(kind, draw, scale):
    source, reach = random.Random(0), 40 * scale
    drawn = np.array([draw(scale, source) for _ in range(20_000)])
    counts = np.bincount(np.clip(drawn + reach, 0, 2 * reach), minlength=2 * reach + 1)

    def fits(wanted: np.ndarray) -> float:
        expected = 20_000 * wanted
        common = expected >= 5
        observed = np.append(counts[common], counts[~common].sum())
        return stats.chisquare(observed, np.append(expected[common], expected[~common].sum() + 1e-9)).pvalue

    assert fits(masses(kind, scale, reach)) > 1e-3
    for wrong in (2 / 3, 3 / 2):
        assert fits(masses(kind, scale * wrong, reach)) < 1e-9


def test_large_scales_look_like_their_continuous_limits():
    source = random.Random(1)
    gaussian = np.array([discrete_gaussian(10_000, source) for _ in range(4000)]) / 10_000
    laplace = np.array([discrete_laplace(10_000, source) for _ in range(4000)]) / 10_000
    assert stats.kstest(gaussian, "norm").pvalue > 1e-3
    assert stats.kstest(laplace, "laplace").pvalue > 1e-3


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
    for record, steps in zip(gradients, grid.whole(gradients).tolist()):
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
        assert np.abs(grid.whole(gradients) * grid.step - gradients).max() <= grid.step * (1 + 1e-6)
        assert np.all(np.abs(grid.whole(gradients) * grid.step) <= np.abs(gradients))


def test_a_release_is_the_mean_with_the_noise_that_is_asked_for():
    release = Release(1.0, 0.05)
    grid = on_grid(release, denominator=20)
    made = grid.release(np.full((20, 3000), 0.01), random.Random(0))
    assert stats.kstest((made - 0.01) / 0.05, "norm").pvalue > 1e-3
    assert np.all((made * 20 / grid.step) == np.round(made * 20 / grid.step))


def test_the_operating_system_is_asked_for_entropy(monkeypatch):
    asked = []

    class Watched(random.SystemRandom):
        def randrange(self, *args):
            asked.append(args)
            return super().randrange(*args)

    monkeypatch.setattr(discrete.secrets, "SystemRandom", Watched)
    GridRelease(4, 4, 1.0, 1).release(np.ones((1, 2)))
    assert asked


def test_poisson_coins():
    taken = np.mean([discrete.poisson_coins(1000, 0.3).mean() for _ in range(50)])
    assert taken == pytest.approx(0.3, abs=5 * math.sqrt(0.3 * 0.7 / 50_000))
    assert not discrete.poisson_coins(1000, 0.0).any()


# The account.


def exact_delta(p: np.ndarray, q: np.ndarray, eps: float) -> float:
    return max(float(np.maximum(p - math.exp(eps) * q, 0).sum()), float(np.maximum(q - math.exp(eps) * p, 0).sum()))


def test_golden_values_of_discrete_laplace():
    """Twenty releases at epsilon 1 each: 19.99 on the coarsest grid, 19.11 on a fine one, which is the ideal's."""
    coarse = GridRelease(1, 1, 1.0, 1, "laplace")
    fine = GridRelease(1000, 1000, 1.0, 1, "laplace")
    assert discrete.epsilon([(coarse, 20)], 1e-5, "zero-out") == pytest.approx(19.9947, abs=1e-3)
    assert discrete.epsilon([(fine, 20)], 1e-5, "zero-out") == pytest.approx(19.1055, abs=1e-3)
    assert discrete.epsilon([(coarse, 3)], 0.0, "replace-one") == pytest.approx(6.0, rel=1e-3)


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
@pytest.mark.parametrize("rate", [None, 0.2])
def test_the_account_bounds_the_exact_divergence_of_one_release(kind, rate):
    scale, clip, delta = 6, 4, 1e-3
    grid = GridRelease(clip, scale, 1.0, 1, kind)
    bound = float(discrete.epsilon([(grid, 1)], delta, "zero-out", rate))
    here = masses(kind, scale, 400)
    there = np.roll(here, clip)
    mixed = there if rate is None else (1 - rate) * here + rate * there
    assert exact_delta(mixed, here, bound) <= delta
    if kind == "laplace":  # exact, so a little less is too little
        assert exact_delta(mixed, here, bound - 0.02) > delta


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_sampled_divergences_are_above_the_exact_ones(rate):
    here, there = masses("gaussian", 5, 300), np.roll(masses("gaussian", 5, 300), 5)
    mixed = (1 - rate) * here + rate * there
    orders = np.arange(2.0, 20.0)
    bound = discrete._sampled(orders, 0.5 * orders, rate)
    keep = (here > 1e-250) & (mixed > 1e-250)
    for order, limit in zip(orders, bound):
        for p, q in ((mixed[keep], here[keep]), (here[keep], mixed[keep])):
            divergence = math.log(np.sum(np.exp(order * np.log(p) + (1 - order) * np.log(q)))) / (order - 1)
            assert divergence <= limit * (1 + 1e-9)


def test_vectors_are_no_worse_than_their_sum_in_one_coordinate():
    """Discrete Laplace, shift (1, 1) in two coordinates against 2 in one: at every epsilon."""
    one = masses("laplace", 2.0, 60)
    flat, shifted = np.outer(one, one).ravel(), np.outer(np.roll(one, 1), np.roll(one, 1)).ravel()
    for eps in np.linspace(0, 1.2, 13):
        assert exact_delta(shifted, flat, eps) <= exact_delta(np.roll(one, 2), one, eps) + 1e-12


def test_gaussian_account_is_above_the_ideal_and_near_it():
    grid = GridRelease(1000, 5000, 1.0, 1)
    bound = discrete.epsilon([(grid, 25)], 1e-5, "zero-out")
    assert gdp_epsilon(1.0, 1e-5) < bound < 1.2 * gdp_epsilon(1.0, 1e-5)
    assert discrete.epsilon([(grid, 25)], 1e-5, "replace-one") > bound
    assert discrete.epsilon([(grid, 25)], 1e-5, "zero-out", rate=0.1) < bound


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="power of two"):
        GridRelease(1, 1, 0.3, 1)
    with pytest.raises(ValueError, match="no clip or no noise"):
        on_grid(Release.open(), 10)
    with pytest.raises(ValueError, match="delta is 0"):
        discrete.epsilon([(GridRelease(1, 1, 1.0, 1), 1)], 0.0, "zero-out")
    with pytest.raises(ValueError, match="zero-out only"):
        discrete.epsilon([(GridRelease(1, 1, 1.0, 1), 1)], 1e-5, "replace-one", rate=0.1)
    with pytest.raises(ValueError, match="overflow"):
        GridRelease(2**40, 1, 1.0, 1).whole(np.ones((1, 3)))
