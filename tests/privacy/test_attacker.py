"""What an attacker can gain: closed forms, and the exact Neyman-Pearson test of a sampled release."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

import sottovoce as sv
from sottovoce.privacy import pld
from sottovoce.privacy.attacker import RATES, highest_power, power_of
from sottovoce.privacy.mechanisms import Mechanism, PoissonAmplification

FALSE_ALARMS = (0.001, 0.01, 0.1, 0.5)


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_numerical_curve_gives_the_closed_form_of_gaussian_releases(mu) -> None:
    exact = ndtr(ndtri(np.array(FALSE_ALARMS)) + mu)
    for eps, delta in pld.curves([(pld.Shifted(mu / 2), 4)], 1e-9):  # four releases, composed numerically
        found = np.array([np.min(np.exp(eps) * rate + delta) for rate in FALSE_ALARMS])
        assert np.all(found >= exact)
        np.testing.assert_allclose(found, exact, rtol=5e-3)
    spent = ((Mechanism(gaussian=mu**2 / 4), 4),)
    np.testing.assert_allclose(highest_power(spent, FALSE_ALARMS, "zero-out"), exact, rtol=1e-9)
    twice = highest_power(spent, FALSE_ALARMS, "replace-one")
    np.testing.assert_allclose(twice, ndtr(ndtri(np.array(FALSE_ALARMS)) + 2 * mu), rtol=1e-9)


def test_sampled_release_against_its_best_test_in_both_directions() -> None:
    """One Poisson release: the likelihood ratio rises with x, so the best tests are tails, on either side."""
    rate, mu, x = 0.2, 2.0, np.linspace(-9, 11, 20_001)
    without, with_it = ndtr(-x), (1 - rate) * ndtr(-x) + rate * ndtr(mu - x)  # chances above x
    found = highest_power(
        ((Mechanism(gaussian=mu**2, amplification=PoissonAmplification(rate)), 1),), FALSE_ALARMS, "zero-out"
    )
    for false_alarms, power in zip(FALSE_ALARMS, found):
        accusing = with_it[np.argmin(np.abs(without - false_alarms))]
        clearing = 1 - without[np.argmin(np.abs((1 - with_it) - false_alarms))]
        best = max(accusing, clearing)
        assert best * 0.995 <= power <= best * 1.02 + 1e-6


def test_pure_release_and_epsilon_alone() -> None:
    spent = ((Mechanism(pure=1.0), 1),)
    np.testing.assert_allclose(highest_power(spent, [0.01], "zero-out"), [math.e * 0.01], rtol=1e-2)
    assert power_of(math.inf, 0.0, [0.01]) == (1.0,)
    assert highest_power(((Mechanism(gaussian=math.inf), 1),), [0.01], "zero-out") == (1.0,)
    assert highest_power(spent, [0.01], "zero-out", overflow=0.5)[0] > 0.5


def test_statement_says_who_is_protected_and_how_the_noise_was_drawn() -> None:
    method = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(clip=1.0, noise=0.02), sampling=sv.Poisson(20))
    visits = sv.Population([100, 100], unit="patient")
    report = sv.account(method, visits, steps=3, network=sv.networks.ring(2))
    assert [rate for rate, _ in report.attack] == list(RATES)
    loose = power_of(report.epsilon, report.delta, RATES)
    assert all(power <= bound + 1e-12 for (_, power), bound in zip(report.attack, loose))
    text = str(report)
    assert "all records of one patient that one party holds" in text
    assert "false alarm" in text
    assert sv.PrivacyReport.from_dict(report.to_dict(), Path("result.json")) == report
    simulated = dataclasses.replace(report, drawn="simulated")
    assert "must not be released" in str(simulated)
