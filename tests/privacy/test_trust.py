"""Sums of shares: the exact law of what honest parties add, against the noise that the account charges."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq

import sottovoce as sv
from sottovoce.privacy.gdp import gdp_delta, gdp_epsilon, gdp_mu
from sottovoce.privacy.noise import LAWS
from sottovoce.privacy.trust import LEAST_SHARE, hidden_by, share_scale


def together(shares: list[int]) -> np.ndarray:
    """Return the exact law of the sum of independent discrete Gaussians of these scales."""
    law = np.ones(1)
    for share in shares:
        z = np.arange(-40 * share, 40 * share + 1)
        mass = np.exp(-(z**2) / (2.0 * share**2))
        law = np.convolve(law, mass / mass.sum())
    return law


def exact_delta(law: np.ndarray, shift: int, eps: float) -> float:
    """Return the larger hockey-stick divergence between a law and the law shifted."""
    here, there = np.pad(law, (0, shift)), np.pad(law, (shift, 0))
    return max(float(np.maximum(one - math.exp(eps) * other, 0).sum()) for one, other in [(here, there), (there, here)])


CASES = [[8, 8], [8, 8, 8, 8, 8], [8, 13], [9, 20, 11], [12, 12, 40]]


@pytest.mark.parametrize("shares", CASES)
@pytest.mark.parametrize("shift", [1, 5, 24])
def test_a_sum_is_never_above_the_account_and_would_be_without_the_nine(shares: list[int], shift: int) -> None:
    law, charged, bare = together(shares), shift / hidden_by(shares), shift / math.sqrt(sum(s * s for s in shares))
    above = []
    for eps in np.linspace(0, 5 * charged, 30):
        delta = exact_delta(law, shift, eps)
        assert delta <= gdp_delta(charged, eps) + 1e-13
        above.append(delta > gdp_delta(bare, eps) * (1 + 1e-6) + 1e-13)
    assert any(above)  # on a grid so coarse, N(0, S^2) is not enough


def test_a_sum_is_charged_like_the_noise_of_one_table() -> None:
    for scale, parties, colluding in [(1000, 5, 1), (12345, 20, 3), (4096, 3, 1)]:
        share = share_scale(scale, parties, colluding)
        honest = parties - colluding
        assert honest * share**2 >= scale**2 > honest * (share - 1) ** 2  # the least one
        assert 1 / hidden_by([share] * honest) <= LAWS["gaussian"].multiplier(1, scale)


@pytest.mark.parametrize(("parties", "colluding"), [(3, 1), (4, 2), (6, 4)])
def test_t_parties_find_nothing_above_epsilon_and_one_more_does(parties: int, colluding: int) -> None:
    """One release, m = t + 2, epsilon 1: whoever knows t shares meets two others, and t + 1 meet one."""
    delta, shift = 1e-5, 10
    scale = LAWS["gaussian"].whole_scale(shift / gdp_mu(1.0, delta), shift)  # type: ignore[arg-type]
    share = share_scale(scale, parties, colluding)

    def found(honest: int) -> float:
        law = together([share] * honest)
        return brentq(lambda eps: exact_delta(law, shift, eps) - delta, 0.0, 9.0)

    assert 0.9 < found(2) <= 1.0
    assert 1.4 < found(1) <= gdp_epsilon(shift / hidden_by([share]), delta) < 1.5


def test_what_is_left_is_a_lower_bound_at_every_number_of_colluders() -> None:
    for ideal, parties, colluding in [(100.0, 20, 1), (333.3, 6, 3), (57.0, 5, 0)]:
        trust = sv.Sum(colluding)
        scale = LAWS["gaussian"].whole_scale(ideal, 1000)  # type: ignore[arg-type]
        share = share_scale(scale, parties, colluding)
        lefts = [trust.left(parties, colluders, ideal) for colluders in range(parties)]
        assert lefts[colluding] == 1.0
        assert lefts == sorted(lefts, reverse=True)
        for colluders, left in enumerate(lefts):
            exact = hidden_by([share] * (parties - colluders)) / ideal
            assert exact * 0.95 < left <= exact * (1 + 1e-12)


def test_epsilons_of_twenty_parties_are_those_that_were_worked_out_by_hand() -> None:
    """Noise for epsilon 1 and t = 1: two colluding parties find 1.03, all others together 5.25."""
    mu = gdp_mu(1.0, 1e-5)
    left = [sv.Sum(1).left(20, colluders, 1e4) for colluders in (1, 2, 19)]
    assert [round(gdp_epsilon(mu / one, 1e-5), 2) for one in left] == [1.0, 1.03, 5.25]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sv.Sum(-1), "whole number"),
        (lambda: sv.Sum(1.0), "whole number"),  # type: ignore[arg-type]
        (lambda: sv.Sum(True), "whole number"),
        (lambda: sv.Sum(1).check(2), "at least 3 parties, or colluding=0"),
        (lambda: sv.Sum(0).check(1), "at least 2 parties"),
        (lambda: sv.Sum(4).check(5), "at least 6 parties, or colluding=3"),
        (lambda: sv.Sum(1).left(5, 5, 100.0), "5 of 5 parties collude"),
        (lambda: share_scale(LEAST_SHARE, 3, 1), "finer grid"),
        (lambda: share_scale(0, 3, 1), "whole number"),
        (lambda: hidden_by([9, 7]), "finer grid"),
    ],
)
def test_what_is_not_covered_is_refused(call, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=words):
        call()


def test_kinds_of_trust_are_a_closed_list() -> None:
    with pytest.raises(TypeError, match="closed list"):
        type("Own", (sv.Sum,), {"__module__": "elsewhere"})
