"""Gaussian releases on batches of a fixed size: the theorem, its profile on a grid, and what it composes to."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from tests.marks import few
from tests.privacy import fixed_batch_oracle as oracle

from sottovoce.privacy import pld
from sottovoce.privacy.accountant import Mechanism, PoissonAmplification, SubsetAmplification, epsilon
from sottovoce.privacy.fixed_batches import Subset
from sottovoce.privacy.gdp import gdp_epsilon


def fixed(batch: int, places: int, noise: float) -> Mechanism:
    return Mechanism(gaussian=1 / noise**2, amplification=SubsetAmplification(places, batch))


# What `python -m tests.privacy.fixed_batch_oracle` prints: the real pair is at least this, the profile this.
GOLDEN = [
    (100, 1000, 10.0, 500, 1e-05, 0.85420, 0.90103),
    (55, 12_000, 1.65, 2000, 1e-05, 1.31656, 1.36367),
    (64, 3000, 2.0, 1000, 1e-05, 2.61913, 2.79901),
    (256, 3000, 4.0, 300, 1e-05, 1.75680, 1.90335),
    (1, 2, 1.0, 1, 1e-05, 4.20785, 4.20798),
    (1, 1000, 1.0, 1, 1e-07, 1.94561, 1.94573),
    (999, 1000, 2.0, 1, 1e-05, 1.99283, 1.99289),
    (999, 1000, 6.0, 20, 1e-09, 4.47070, 4.47115),
    (500, 1000, 3.0, 10, 0.001, 1.82415, 1.87732),
    (10, 100_000, 0.8, 200, 1e-09, 6.15460, 6.15729),
    (50, 1000, 8.0, 10_000, 1e-06, 3.00838, 3.24806),
]


@pytest.mark.parametrize(("batch", "places", "noise", "steps", "delta", "lower", "upper"), GOLDEN)
def test_golden_values(batch, places, noise, steps, delta, lower, upper):
    stated = epsilon([(fixed(batch, places, noise), steps)], delta, "zero-out")
    assert stated.accountant == "PLD"
    assert lower <= stated
    assert upper * (1 - 2e-3) <= stated <= upper * (1 + 1e-3)


@pytest.mark.parametrize(
    ("batch", "places", "noise", "steps", "real", "most"),
    [
        (100, 1000, 10.0, 500, 0.8558, 0.91),
        (55, 12_000, 1.65, 2000, 1.3149, 1.37),
        (64, 3000, 2.0, 1000, 0.0, 2.82),
        (256, 3000, 4.0, 300, 0.0, 1.92),
    ],
)
def test_half_of_what_a_replaced_record_costs(batch, places, noise, steps, real, most):
    items = [(fixed(batch, places, noise), steps)]
    zero_out, replace_one = epsilon(items, 1e-5, "zero-out"), epsilon(items, 1e-5, "replace-one")
    poisson = Mechanism(gaussian=1 / noise**2, amplification=PoissonAmplification(batch / places))
    assert max(real, epsilon([(poisson, steps)], 1e-5, "zero-out")) <= zero_out <= most
    assert zero_out < 0.66 * replace_one


@pytest.mark.slow
@pytest.mark.parametrize("case", [oracle.CASES[0], oracle.CASES[4], oracle.CASES[8]])
def test_golden_values_are_those_of_the_oracle(case):
    pytest.importorskip("mpmath")
    found = next(line for line in GOLDEN if line[:5] == case)
    assert (oracle.lower(case), oracle.upper(case)) == pytest.approx(found[5:], abs=2e-5)


def test_the_ends_are_those_of_all_records():
    """A batch of all is one Gaussian; a batch of all but one is nearly that, and never cheaper than what is true."""
    assert epsilon([(fixed(9, 9, 2.0), 4)], 1e-5, "zero-out") == pytest.approx(gdp_epsilon(1.0, 1e-5))
    nearly = epsilon([(fixed(10**6 - 1, 10**6, 2.0), 4)], 1e-5, "zero-out")
    assert nearly == pytest.approx(gdp_epsilon(1.0, 1e-5), rel=1e-3)
    assert pld.epsilon([(Subset(0.5, 1.0), 4)], 1e-5) == pytest.approx(gdp_epsilon(1.0, 1e-5), rel=1e-3)


def test_several_gaussian_releases_of_one_batch_are_one_and_others_keep_their_bound():
    together = Mechanism(gaussian=0.04 + 0.05, amplification=SubsetAmplification(100, 10))
    assert epsilon([(together, 9)], 1e-5, "zero-out") == epsilon([(fixed(10, 100, 0.09**-0.5), 9)], 1e-5, "zero-out")
    for other in (
        Mechanism(laplace=(0.1,), amplification=SubsetAmplification(100, 10)),
        Mechanism(gaussian=0.09, pure=0.1, amplification=SubsetAmplification(100, 10)),
    ):
        assert set(epsilon([(other, 9)], 1e-5, "zero-out").considered) >= {"PLD", "PLD, draws known"}
    assert set(epsilon([(together, 9)], 1e-5, "replace-one").considered) == {"PLD"}


# The theorem, by integrals.


def exact(mu, q, a):
    """H_a in both directions, at forty digits."""
    pytest.importorskip("mpmath")
    return tuple(float(curve(a)) for curve in oracle.profile(mu, q))


@pytest.mark.parametrize("q", few([0.05, 0.5, 0.95], [0.5]))
def test_no_record_and_no_others_exceed_the_profile(q):
    rng = np.random.default_rng(3)
    x = np.linspace(-7.5, 7.5, 301)
    plane = np.stack(np.meshgrid(x, x, indexing="ij"))

    def density(mean):
        return np.exp(-0.5 * np.sum((plane - np.reshape(mean, (2, 1, 1))) ** 2, axis=0)) / (2 * math.pi)

    for mu, a in itertools.product((0.3, 1.2), (1.0, 1.03, 1.6)):
        bounds = exact(mu, q, a)
        for trial in range(8):
            size, angle = mu * math.sqrt(rng.random()), rng.uniform(0, 2 * math.pi)
            u = (size * math.cos(angle), size * math.sin(angle)) if trial > 1 else ((-mu, mu)[trial], 0.0)
            v = (mu * rng.choice([1.0, 1.0, 0.6]) if trial > 1 else mu, 0.0)
            with_it, without = ((1 - q) * density(u) + q * density(mean) for mean in (v, (0.0, 0.0)))
            for bound, (p, other) in zip(bounds, [(with_it, without), (without, with_it)]):
                found = float(np.maximum(p - a * other, 0.0).sum()) * (x[1] - x[0]) ** 2
                assert found <= bound + 2e-4 * q * mu
                if (u[0] < 0) == (p is with_it) and trial < 2:
                    assert found >= bound - 2e-4 * q * mu  # attained


@pytest.mark.parametrize("q", [0.1, 0.7])
def test_a_second_release_that_depends_on_the_first_is_covered(q):
    """The second means are any function of the first output: random signs, and the sign that looks worst."""
    rng = np.random.default_rng(5)
    first, second = 0.6, 0.8
    x = np.linspace(-7.5, 7.5, 251)
    step = x[1] - x[0]
    for a in (1.0, 1.1, 1.5):
        bounds = exact(math.hypot(first, second), q, a)
        for sign in (-1.0, 1.0):
            begun = {mean: norm.pdf(x - mean) for mean in (sign * first, first, 0.0)}
            ways = [rng.choice([-1.0, 0.0, 1.0], (2, len(x))) for _ in range(4)]
            ways += [np.stack([sign * np.ones_like(x), np.ones_like(x)]), np.stack([np.sign(x), -np.sign(x)])]
            for u, v in second * np.array(ways):
                other = begun[sign * first][:, None] * norm.pdf(x[None, :] - u[:, None])
                with_it = (1 - q) * other + q * begun[first][:, None] * norm.pdf(x[None, :] - v[:, None])
                without = (1 - q) * other + q * begun[0.0][:, None] * norm.pdf(x)[None, :]
                for bound, (p, r) in zip(bounds, [(with_it, without), (without, with_it)]):
                    assert float(np.maximum(p - a * r, 0.0).sum()) * step**2 <= bound + 1e-4


# The profile on a grid.


def curves(piece, h, tail=1e-13):
    """What the composed engine holds of one piece, in both directions, as exact functions of a."""
    mpmath = pytest.importorskip("mpmath")

    def curve(losses):
        context = mpmath.mp.clone()
        context.dps = 40
        points = [(context.exp(context.mpf(h) * (losses.first + i)), context.mpf(m)) for i, m in enumerate(losses.mass)]
        return lambda a: context.fsum(m * (1 - a / e) for e, m in points if e > a) + context.mpf(losses.infinite)

    return [(losses, curve(losses)) for losses in pld._losses(piece, h, tail)]


@settings(max_examples=12, deadline=None)
@given(
    log_mu=st.floats(-7, 1.6),
    odds=st.floats(-12, 12),
    exponent=st.integers(-14, 1),
    places=st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
@example(log_mu=1.6, odds=-12.0, exponent=-4, places=[0.0, 0.5, 0.9, 1.0])
@example(log_mu=-7.0, odds=12.0, exponent=-14, places=[0.0, 0.5, 0.9, 1.0])
@example(log_mu=0.0, odds=0.0, exponent=-9, places=[0.0, 0.5, 0.9, 1.0])
def test_the_profile_on_a_grid_is_one_and_never_below_the_exact_one(log_mu, odds, exponent, places):
    """Convex, decreasing, 1 at 0 and at least (1 - a)_+, whatever the grid; at its points, little above the truth."""
    mu, q, h = math.exp(log_mu), 1 / (1 + math.exp(-odds)), 2.0**exponent
    h = max(h, mu * (mu + 9) / 500)  # few points, because each is evaluated at forty digits
    for (losses, curve), true in zip(curves(Subset(mu, q), h), oracle.profile(mu, q)):
        grid = losses.at(h)
        assert np.all(losses.mass >= 0)  # so the curve is convex and decreasing
        assert 1 <= float(curve(0)) <= 1 + 1e-11
        assert math.fsum(losses.mass * np.exp(-grid)) <= 1 + 1e-13  # so it is at least (1 - a)_+
        for share in places:
            index = round(share * (len(grid) - 1))
            between = grid[index] + 0.3 * h
            assert curve(math.exp(between)) >= true(math.exp(between))
            assert true(math.exp(grid[index])) <= curve(math.exp(grid[index]))
            assert curve(math.exp(grid[index])) <= true(math.exp(grid[index])) + 1e-12


@pytest.mark.parametrize("mu", few([1e-9, 30.0, 60.0, 2000.0], [1e-9, 2000.0]))
@pytest.mark.parametrize("q", [1e-9, 0.3, 1 - 1e-9])
def test_extreme_settings_have_a_bound(mu, q):
    """Hardly any noise, or hardly anything else: no overflow, no warning, and never less than the likelier half."""
    found = pld.epsilon([(Subset(mu, q), 3)], 1e-10 if q < 1e-6 else 1e-6)
    assert 0 <= found <= gdp_epsilon(mu * math.sqrt(3), 1e-13) * 1.02 + 1e-3
    if mu >= 30:
        assert found >= mu * mu / 2


# Two faults, put back.


def test_the_pair_of_one_direction_alone_does_not_dominate():
    """For a < 1 the others that contribute the same are worse: the mirror of the other bound is above this pair."""
    mu, q, a = 1.0, 0.3, 0.8
    x = np.linspace(-12, 12, 200_001)
    with_it, without = ((1 - q) * norm.pdf(x + mu) + q * norm.pdf(x - mean) for mean in (mu, 0.0))
    alone = float(np.maximum(with_it - a * without, 0.0).sum()) * (x[1] - x[0])
    assert exact(mu, q, a)[0] > alone + 0.01


def test_dots_that_are_connected_downwards_are_found(monkeypatch):
    """Masses that are moved to the smaller end of their bin are below the truth."""

    def down(ends, upper, lower):
        return np.append(upper, 0.0)

    monkeypatch.setattr(pld, "_split", down)
    (_, curve), *_ = curves(Subset(1.0, 0.3), 2.0**-6)
    assert curve(math.exp(0.5)) < exact(1.0, 0.3, math.exp(0.5))[0]
