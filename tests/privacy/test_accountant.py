"""The accountant against closed forms, slow integrals and dp-accounting, and at the edges where formulas fail."""

import itertools
import math
import pickle

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import binom, laplace, norm
from tests.marks import few

from sottovoce.privacy import accountant, pld, rdp, sampling
from sottovoce.privacy.accountant import (
    Epsilon,
    Mechanism,
    NoAmplification,
    PoissonAmplification,
    RedrawAmplification,
    SubsetAmplification,
    epsilon,
)
from sottovoce.privacy.gdp import gdp_delta, gdp_epsilon


def oracle_delta(mu, eps):
    """The Gaussian curve at sixty digits."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(60):
        mu, eps = mpmath.mpf(mu), mpmath.mpf(eps)
        return mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-mu / 2 - eps / mu)


class TestGaussianCurve:
    @pytest.mark.parametrize("mu", [1e-6, 1e-3, 0.3, 1.0, 5.0, 40.0])
    @pytest.mark.parametrize("relative", [0.0, 0.01, 0.5, 2.0, 6.0])
    def test_delta_against_sixty_digits(self, mu, relative):
        eps = relative * (mu + mu * mu / 2)
        assert gdp_delta(mu, eps) == pytest.approx(float(oracle_delta(mu, eps)), rel=1e-9, abs=1e-300)

    @pytest.mark.parametrize("mu", [1e-5, 0.01, 0.3, 1.0, 7.0, 60.0])
    @pytest.mark.parametrize("delta", [1e-12, 1e-5, 1e-2])
    def test_epsilon_against_sixty_digits(self, mu, delta):
        eps = gdp_epsilon(mu, delta)
        if eps == 0:
            assert oracle_delta(mu, 0) <= delta
        else:
            step = 1e-9 * max(1.0, eps)
            assert oracle_delta(mu, eps + step) <= delta <= oracle_delta(mu, max(0.0, eps - step))

    @pytest.mark.parametrize("mu", [1e-2, 0.3, 1.0, 7.0, 60.0, 900.0])
    @pytest.mark.parametrize("delta", [1e-12, 1e-5, 1e-2])
    def test_epsilon_agrees_with_the_library_where_that_is_accurate(self, mu, delta):
        assert gdp_epsilon(mu, delta) == pytest.approx(dp_accounting.get_epsilon_gaussian(1 / mu, delta), rel=1e-9)

    @pytest.mark.filterwarnings("ignore:divide by zero")
    def test_the_library_is_below_every_valid_bound_for_very_little_noise(self):
        """Why the curve is computed by hand: delta is above 1/2 for every epsilon below mu^2 / 2."""
        mu = 1e12
        assert dp_accounting.get_epsilon_gaussian(1 / mu, 1e-5) < mu * mu / 2 <= gdp_epsilon(mu, 1e-5)

    def test_limits(self):
        assert gdp_epsilon(0.0, 1e-5) == 0
        assert gdp_epsilon(0.0, 0.0) == 0
        assert gdp_epsilon(math.inf, 1e-5) == math.inf
        for mu in (1.3e3, 1e6, 1e12, 1e150):  # hardly any noise: at least mu^2 / 2, and not much more
            assert mu * mu / 2 <= gdp_epsilon(mu, 1e-5) <= mu * mu / 2 * (1 + 10 / mu)
        assert gdp_delta(math.inf, 1.0) == 1
        with pytest.raises(ValueError, match="mu is"):
            gdp_epsilon(-1.0, 1e-5)
        with pytest.raises(ValueError, match="mu is"):
            gdp_delta(math.nan, 1.0)
        with pytest.raises(ValueError, match="epsilon is"):
            gdp_delta(1.0, -1.0)


class TestGoldenValues:
    def test_poisson_gaussian(self):
        items = [(Mechanism(gaussian=1 / 1.5**2, amplification=PoissonAmplification(0.04)), 2250)]
        bound = epsilon(items, 1e-5, "zero-out")
        assert bound == pytest.approx(6.7688, abs=1e-3)
        assert rdp.epsilon(items, 1e-5, "zero-out") == pytest.approx(7.33, abs=0.05)  # the library: 7.3293
        assert (bound.accountant, bound.adjacency, bound.delta) == ("PLD", "zero-out", 1e-5)

    @pytest.mark.parametrize(
        ("mechanism", "event"),
        [
            (Mechanism(gaussian=0.7**2), dp_accounting.GaussianDpEvent(1 / 0.7)),
            (Mechanism(laplace=(0.7,)), dp_accounting.LaplaceDpEvent(1 / 0.7)),
            *(
                (
                    Mechanism(gaussian=mu**2, amplification=PoissonAmplification(rate)),
                    dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(1 / mu)),
                )
                for mu, rate in ((0.7, 0.01), (0.7, 0.5), (9.0, 0.001))
            ),
        ],
    )
    def test_renyi_bounds_are_those_of_the_library_and_above_what_is_exact(self, mechanism, event):
        relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
        for order in (2, 7, 64):
            library = RdpAccountant([order], relation).compose(event, 30).get_epsilon(1e-5)
            assert rdp.converted(30 * rdp.divergence(mechanism, order), order, 1e-5) == pytest.approx(library, rel=1e-9)
        exact = epsilon([(mechanism, 30)], 1e-5, "zero-out").considered
        assert rdp.epsilon([(mechanism, 30)], 1e-5, "zero-out") >= min(v for k, v in exact.items() if k != "RDP")

    @pytest.mark.parametrize(("mu", "rate"), [(0.7, 0.01), (0.7, 0.5), (9.0, 0.001), (3.0, 0.9)])
    @pytest.mark.parametrize("order", [1.05, 1.9, 2.5, 7.3])
    def test_between_whole_orders_a_divergence_is_an_upper_bound(self, mu, rate, order):
        z = np.linspace(-60, 140, 400_001)
        ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + mu * z - mu**2 / 2)
        both = [logsumexp(power * ratio - z * z / 2) + math.log((z[1] - z[0]) / math.sqrt(2 * math.pi))
                for power in (order, 1 - order)]  # fmt: skip
        mechanism = Mechanism(gaussian=mu**2, amplification=PoissonAmplification(rate))
        assert rdp.divergence(mechanism, order) >= max(both) / (order - 1) * (1 - 1e-9)

    def test_a_tiny_delta_is_left_to_renyi_divergences(self):
        """The loss distribution has no finite answer there; the library's bound, with more orders, is 74.79."""
        mechanism = Mechanism(gaussian=24.505782272567664, amplification=PoissonAmplification(0.0005054890116320226))
        bound = epsilon([(mechanism, 145)], 1.13e-12, "zero-out")
        assert bound.accountant == "RDP"
        assert 74.7 < bound < 120

    def test_unsampled_gaussian_is_not_the_library_reading(self):
        """z = 2: 1.9931 exactly under zero-out, 4.3772 when the sensitivity doubles, never RDP's 2.1657."""
        zero_out = epsilon([(Mechanism(gaussian=0.25), 1)], 1e-5, "zero-out")
        replace_one = epsilon([(Mechanism(gaussian=0.25), 1)], 1e-5, "replace-one")
        assert zero_out == pytest.approx(1.9931, abs=1e-4)
        assert replace_one == pytest.approx(4.3772, abs=1e-4)
        assert zero_out.accountant == replace_one.accountant == "exact GDP"

    def test_without_replacement(self):
        mechanism = Mechanism(gaussian=0.01, amplification=SubsetAmplification(1000, 100))
        bound = epsilon([(mechanism, 501)], 1e-5, "replace-one")
        assert bound == pytest.approx(1.91594, abs=1e-4)  # the library's RDP bound is 4.313
        one_sided = pld.Shifted(0.2, ((0, 0.9), (1, 0.1)))  # others at -C, the record at C or -C: a lower bound
        assert 1.808 < pld.epsilon([(one_sided, 501)], 1e-5) < bound
        assert epsilon([(mechanism, 501)], 1e-5, "zero-out") == pytest.approx(0.90198, abs=1e-4)
        # Laplace releases: a removed record is a null record in its place, and the replace-one bound stands, unhalved
        laplace = [(Mechanism(laplace=(0.05,), amplification=SubsetAmplification(1000, 100)), 20)]
        assert epsilon(laplace, 1e-5, "zero-out") == pytest.approx(float(epsilon(laplace, 1e-5, "replace-one")))

    def test_with_replacement_is_worse_than_poisson(self):
        """50 releases of z = 4, batches of 100 out of 5000: another record stands where the record was not drawn."""
        poisson = epsilon(
            [(Mechanism(gaussian=1 / 16, amplification=PoissonAmplification(0.02)), 50)], 1e-5, "zero-out"
        )
        drawn = epsilon(
            [(Mechanism(gaussian=1 / 16, amplification=RedrawAmplification(5000, 100)), 50)], 1e-5, "zero-out"
        )
        assert poisson == pytest.approx(0.11841, abs=1e-5)
        assert drawn == pytest.approx(0.43370, abs=1e-4)

    def test_small_epsilon_is_accurate(self):
        """Un-sampled Laplace and pure pieces of tiny size, against the central limit's exact neighbour: GDP."""
        bound = epsilon([(Mechanism(laplace=(1e-3,)), 10_000)], 1e-6, "zero-out")
        assert bound == pytest.approx(gdp_epsilon(0.1, 1e-6), rel=5e-3)


class TestRulesThatAreEasyToGetWrong:
    def test_gaussian_releases_refuse_delta_zero_and_laplace_ones_take_it(self):
        assert gdp_epsilon(0.3, 0.0) == math.inf
        assert gdp_epsilon(0.3, -1e-9) == math.inf
        with pytest.raises(ValueError, match="delta is 0"):
            epsilon([(Mechanism(gaussian=0.1), 1)], 0.0, "zero-out")
        with pytest.raises(ValueError, match=r"delta is -0\.1"):
            epsilon([(Mechanism(laplace=(0.1,)), 1)], -0.1, "zero-out")
        assert epsilon([(Mechanism(laplace=(0.1,)), 3)], 0.0, "zero-out") == pytest.approx(0.3)

    @pytest.mark.parametrize(("releases", "truth", "wrong"), [(2, 9.0, (7.15, 6.85)), (3, 14.4, (9.4, 8.6))])
    def test_releases_that_share_a_batch_are_one_mechanism(self, releases, truth, wrong):
        shared = Mechanism(laplace=(1.0,) * releases, amplification=PoissonAmplification(0.1))
        bound = epsilon([(shared, 100)], 1e-6, "zero-out")
        loose = epsilon(
            [(Mechanism(laplace=(float(releases),), amplification=PoissonAmplification(0.1)), 100)], 1e-6, "zero-out"
        )
        assert bound == pytest.approx(truth, abs=0.05)
        assert bound <= loose
        root = Mechanism(laplace=(math.sqrt(releases),), amplification=PoissonAmplification(0.1))
        apart = Mechanism(laplace=(1.0,), amplification=PoissonAmplification(0.1))
        rules = [epsilon([(root, 100)], 1e-6, "zero-out"), epsilon([(apart, 100 * releases)], 1e-6, "zero-out")]
        assert rules == pytest.approx(wrong, abs=0.05)  # what the two wrong rules would say
        assert all(bound > rule + 1 for rule in rules)

    @pytest.mark.parametrize(("capacity", "true"), [(None, 0.829), (110, 1.55), (100, 2.51)])
    def test_cutting_batches_silently_is_another_mechanism(self, capacity, true):
        """The library's cut batches: at our capacity epsilon does not change, at the mean or a little more it does."""
        capacity = capacity or sampling.Poisson(100).capacity(1000)
        library = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL, 1e-3)
        library.compose(dp_accounting.dp_event.TruncatedSubsampledGaussianDpEvent(1000, 0.1, capacity, 10.0), 501)
        assert library.get_epsilon(1e-5) == pytest.approx(true, abs=5e-3)

    @pytest.mark.parametrize(
        ("z", "rate", "steps", "zero_out", "replace_one"),
        [(10.0, 0.1, 501, 0.829, 1.761), (0.045 * 55, 55 / 12_000, 2001, 0.295, 0.592)],
    )
    def test_each_adjacency_has_its_own_epsilon_and_states_it(self, z, rate, steps, zero_out, replace_one):
        items = [(Mechanism(gaussian=1 / z**2, amplification=PoissonAmplification(rate)), steps)]
        first, second = epsilon(items, 1e-5, "zero-out"), epsilon(items, 1e-5, "replace-one")
        assert first == pytest.approx(zero_out, abs=1e-3)
        assert second == pytest.approx(replace_one, abs=1e-3)
        assert (first.adjacency, second.adjacency) == ("zero-out", "replace-one")
        assert "RDP" not in second.considered
        with pytest.raises(ValueError, match="choose one of zero-out, replace-one"):
            epsilon(items, 1e-5, "add-remove")

    def test_laplace_under_replace_one_is_group_privacy(self):
        items = [(Mechanism(laplace=(1.0,), amplification=PoissonAmplification(0.1)), 100)]
        bound = epsilon(items, 1e-6, "replace-one")
        assert bound.accountant == "PLD of pairs"
        half = float(bound) / 2
        assert epsilon(items, 1e-6 / (1 + math.exp(half)), "zero-out") <= half + 1e-9
        assert bound > 2 * epsilon(items, 1e-6, "zero-out")


def curve(piece, eps, h=2.0**-9):
    """delta(eps) of one piece as the engine sees it, the larger of both directions."""
    return [
        losses.infinite + float(np.clip(-np.expm1(eps - losses.at(h)), 0, None) @ losses.mass)
        for losses in pld._losses(piece, h, 1e-13)
    ]


class TestLossDistributions:
    """Single pieces against integrals of (p - e^eps q)_+; composition against the library."""

    @pytest.mark.parametrize("eps", few([0.0, 0.2, 0.9], [0.2]))
    @pytest.mark.parametrize("rate", few([1.0, 0.2], [0.2]))
    def test_laplace_and_gaussian_on_one_batch(self, eps, rate):
        mu, shift, cell = 0.7, 1.1, 0.005
        x = np.arange(-7, 8, cell)[:, None] + cell / 2
        y = np.arange(-14, 15.1, cell)[None, :] + cell / 2  # the kinks at 0 and 1.1 fall between cells
        without = norm.pdf(x) * laplace.pdf(y)
        mixed = rate * norm.pdf(x - mu) * laplace.pdf(y - shift) + (1 - rate) * without
        exact = [
            float(np.clip(p - math.exp(eps) * q, 0, None).sum()) * cell**2
            for p, q in [(mixed, without), (without, mixed)]
        ]
        assert curve(pld.Shared(mu, (shift,), (), rate), eps) == pytest.approx(exact, abs=3e-5)

    @pytest.mark.parametrize("eps", few([0.0, 0.05, 0.5], [0.05]))
    def test_gaussian_mixtures(self, eps):
        mu, draws = 0.8, tuple((k, float(binom.pmf(k, 5, 0.1))) for k in range(6))
        pairs = [
            (draws, ((0, 1.0),)),  # with replacement
            (((0, 0.9), (1, 0.1)), ((-1, 0.1), (0, 0.9))),  # PoissonAmplification, replace-one
        ]

        def density(weights, x):
            return sum(w * norm.pdf(x - k * mu) for k, w in weights)

        def excess(p, q):
            return quad(lambda x: max(0.0, density(p, x) - math.exp(eps) * density(q, x)), -12, 16, limit=200)[0]

        for over, under in pairs:
            exact = [excess(over, under), excess(under, over)]
            found = curve(pld.Shifted(mu, over, under), eps)
            assert found == pytest.approx(exact, abs=1e-5)
            assert all(f >= e - 1e-9 for f, e in zip(found, exact))  # rounded to the safe side

    def test_pure_piece_is_randomised_response(self):
        assert curve(pld.Shared(pure=(1.0,)), 0.5)[0] == pytest.approx(
            (math.e - math.exp(0.5)) / (1 + math.e), abs=1e-5
        )

    @settings(max_examples=12, deadline=None)
    @given(
        z=st.floats(0.8, 10),
        rate=st.floats(0.01, 0.5),
        steps=st.integers(1, 500),
        exponent=st.floats(-8, -4),
    )
    def test_poisson_gaussian_lies_between_the_librarys_bounds(self, z, rate, steps, exponent):
        delta = 10**exponent
        ours = pld.epsilon([(pld.Shifted(1 / z, ((0, 1 - rate), (1, rate))), steps)], delta)
        from_library = privacy_loss_distribution.from_gaussian_mechanism
        upper = from_library(z, sampling_prob=rate, value_discretization_interval=1e-3)
        lower = from_library(
            z,
            sampling_prob=rate,
            value_discretization_interval=1e-3,
            pessimistic_estimate=False,
            use_connect_dots=False,
        )
        assert lower.self_compose(steps).get_epsilon_for_delta(delta) <= ours
        assert ours <= upper.self_compose(steps).get_epsilon_for_delta(delta) * (1 + 1e-3) + 1e-4

    @settings(max_examples=12, deadline=None)
    @given(z=st.floats(0.5, 20), rate=st.sampled_from([1.0, 0.3, 0.05]), steps=st.integers(1, 200))
    def test_laplace_agrees_with_the_library(self, z, rate, steps):
        library = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE, 1e-4)
        event = dp_accounting.LaplaceDpEvent(z)
        library.compose(event if rate == 1 else dp_accounting.PoissonSampledDpEvent(rate, event), steps)
        ours = epsilon(
            [(Mechanism(laplace=(1 / z,), amplification=PoissonAmplification(rate)), steps)], 1e-6, "zero-out"
        )
        assert ours == pytest.approx(library.get_epsilon(1e-6), rel=2e-3, abs=2e-4)

    def test_poisson_gaussian_replace_one_agrees_with_the_library(self):
        library = PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE, 1e-4)
        library.compose(dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(2.0)), 300)
        ours = epsilon([(Mechanism(gaussian=0.25, amplification=PoissonAmplification(0.05)), 300)], 1e-6, "replace-one")
        assert ours == pytest.approx(library.get_epsilon(1e-6), rel=1e-3)

    def test_unsampled_gaussian_is_the_closed_form(self):
        for mu, delta in itertools.product([0.05, 1.0, 6.0], [1e-9, 1e-4]):
            exact = gdp_epsilon(mu, delta)
            found = pld.epsilon([(pld.Shifted(mu), 1)], delta)
            assert exact <= found + 1e-9
            assert found == pytest.approx(exact, rel=1e-3)


class TestComposition:
    def test_different_mechanisms_compose_at_once(self):
        """A Gaussian and a Laplace un-sampled release: the pieces of one batch at rate 1."""
        apart = epsilon([(Mechanism(gaussian=0.5), 1), (Mechanism(laplace=(0.6,)), 1)], 1e-5, "zero-out")
        one = epsilon([(Mechanism(gaussian=0.5, laplace=(0.6,)), 1)], 1e-5, "zero-out")
        assert apart == pytest.approx(one, rel=1e-4)
        assert one < gdp_epsilon(math.sqrt(0.5), 1e-5) + 0.6  # basic composition

    def test_order_and_grouping_do_not_matter(self):
        a, b = (
            Mechanism(gaussian=0.1, amplification=PoissonAmplification(0.1)),
            Mechanism(laplace=(0.1, 0.2), amplification=PoissonAmplification(0.2)),
        )
        assert epsilon([(a, 3), (b, 2)], 1e-6, "zero-out") == epsilon([(b, 1), (a, 3), (b, 1)], 1e-6, "zero-out")
        assert Mechanism(laplace=(0.2, 0.1)) == Mechanism(laplace=(0.1, 0.0, 0.2))

    def test_nothing_released_costs_nothing(self):
        assert epsilon([], 1e-5, "zero-out") == 0
        assert epsilon([(Mechanism(), 5), (Mechanism(gaussian=1.0), 0)], 0.0, "zero-out") == 0

    def test_no_noise_is_infinite(self):
        bound = epsilon([(Mechanism(gaussian=math.inf), 1)], 1e-5, "zero-out")
        assert bound == math.inf
        assert bound.accountant == "no noise"

    def test_everybody_sampled_is_unsampled(self):
        for amplification in (PoissonAmplification(1.0), SubsetAmplification(50, 50)):
            bound = epsilon([(Mechanism(gaussian=0.2, amplification=amplification), 3)], 1e-5, "replace-one")
            assert bound == pytest.approx(gdp_epsilon(2 * math.sqrt(0.6), 1e-5))

    def test_pure_sum_is_amplified(self):
        mechanism = Mechanism(laplace=(0.3, 0.2), pure=0.5, amplification=PoissonAmplification(0.1))
        assert epsilon([(mechanism, 2)], 0.0, "zero-out") == pytest.approx(2 * math.log1p(0.1 * math.expm1(1.0)))
        fixed = Mechanism(laplace=(0.5,), amplification=SubsetAmplification(100, 10))
        for adjacency in ("zero-out", "replace-one"):
            assert epsilon([(fixed, 1)], 0.0, adjacency) == pytest.approx(math.log1p(0.1 * math.expm1(1.0)))

    @pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
    def test_pure_releases_are_randomised_responses(self, adjacency):
        """Twenty of them: the count of true answers is binomial, so delta is a finite sum."""
        bound = epsilon([(Mechanism(pure=0.4), 20)], 1e-3, adjacency)
        truth = 1 / (1 + math.exp(-0.4))
        k = np.arange(21)
        loss = 0.4 * (2 * k - 20)
        delta = float(np.clip(-np.expm1(bound - loss), 0, None) @ binom.pmf(k, 20, truth))
        assert delta == pytest.approx(1e-3, rel=2e-3)
        assert set(bound.considered) == {"pure sum", "PLD"}

    def test_mixed_samplings_compose_in_one_accountant(self):
        fixed = Mechanism(gaussian=0.01, amplification=SubsetAmplification(1000, 100))
        poisson = Mechanism(gaussian=0.01, amplification=PoissonAmplification(0.1))
        both = epsilon([(fixed, 50), (poisson, 50)], 1e-5, "zero-out")
        parts = [epsilon([(m, 50)], 5e-6, "zero-out") for m in (fixed, poisson)]
        assert max(parts) < both < sum(parts)

    def test_a_long_schedule_is_rounded_up_not_down(self, monkeypatch):
        items = [
            (Mechanism(gaussian=1 / (1 + t / 40) ** 2, amplification=PoissonAmplification(0.05)), 1) for t in range(120)
        ]
        exact = epsilon(items, 1e-5, "zero-out")
        monkeypatch.setattr(accountant, "_MOST_DIFFERENT", 40)
        accountant._epsilon.cache_clear()
        rounded = epsilon(items, 1e-5, "zero-out")
        accountant._epsilon.cache_clear()
        assert exact <= rounded <= 1.05 * exact

    @pytest.mark.slow
    def test_seven_thousand_different_steps(self):
        items = [
            (Mechanism(gaussian=1 / (1 + t / 700) ** 2, amplification=PoissonAmplification(0.01)), 1)
            for t in range(7000)
        ]
        assert 1.29 < epsilon(items, 1e-6, "zero-out") < 1.31

    @pytest.mark.parametrize(
        "make",
        [
            lambda: PoissonAmplification(0.0),
            lambda: SubsetAmplification(10, 11),
            lambda: RedrawAmplification(10, 0),
            lambda: Mechanism(gaussian=-1.0),
            lambda: Mechanism(laplace=(math.nan,)),
            lambda: epsilon([(Mechanism(gaussian=1.0), -1)], 1e-5, "zero-out"),
            lambda: epsilon([(Mechanism(gaussian=1.0), 1)], 1.0, "zero-out"),
        ],
    )
    def test_impossible_settings_are_refused(self, make):
        with pytest.raises(ValueError, match=r"give|must be"):
            make()


amplifications = st.sampled_from(
    [NoAmplification(), PoissonAmplification(0.1), RedrawAmplification(100, 5), SubsetAmplification(100, 5)]
)


@settings(max_examples=10, deadline=None)
@given(
    gaussian=st.floats(0.01, 2),
    amplification=amplifications,
    steps=st.integers(1, 30),
    adjacency=st.sampled_from(["zero-out", "replace-one"]),
)
@pytest.mark.slow
def test_epsilon_is_monotone(gaussian, amplification, steps, adjacency):
    """More noise, fewer steps or a larger delta never cost more; replace-one never costs less."""

    def bound(g, count, delta, relation):
        return epsilon([(Mechanism(gaussian=g, amplification=amplification), count)], delta, relation)

    here = bound(gaussian, steps, 1e-5, adjacency)
    slack = 1 + 1e-3
    assert bound(gaussian / 1.5, steps, 1e-5, adjacency) <= here * slack
    assert here <= bound(gaussian, steps + 1, 1e-5, adjacency) * slack
    assert bound(gaussian, steps, 1e-4, adjacency) <= here * slack
    assert bound(gaussian, steps, 1e-5, "zero-out") <= bound(gaussian, steps, 1e-5, "replace-one") * slack


def test_a_bound_is_a_number_that_says_what_it_is():
    bound = epsilon([(Mechanism(laplace=(0.5,)), 4)], 1e-5, "zero-out")
    assert isinstance(bound, float)
    assert min(bound.considered.values()) == float(bound) == bound.considered[bound.accountant]
    again = pickle.loads(pickle.dumps(bound))
    assert isinstance(again, Epsilon)
    assert vars(again) == vars(bound)
    assert accountant.library().startswith("sottovoce ")
