"""The best of a random number of trials: exact divergences of small finite trials against the bounds."""

import math

import numpy as np
import pytest

from sottovoce.privacy.gdp import gdp_delta, gdp_epsilon
from sottovoce.privacy.selection import ORDERS, GeometricTrials, PoissonTrials, epsilon_of, mu_for

LAWS = [PoissonTrials(3.0), PoissonTrials(20.0), GeometricTrials(3.0), GeometricTrials(20.0)]


def generating(law, z: float) -> float:
    """E[z^K]: the best of K trials is at most y with this chance, if one trial is with chance z."""
    if isinstance(law, PoissonTrials):
        return math.exp(law.mean * (z - 1))
    stop = 1 / law.mean
    return stop * z / (1 - (1 - stop) * z)


def best_of(trial: np.ndarray, law) -> np.ndarray:
    """The law of the best of K trials with outcomes in rising order, and of "no trial at all" in front."""
    below = np.array([generating(law, min(1.0, z)) for z in np.concatenate([[0.0], np.cumsum(trial)])])
    return np.concatenate([below[:1], np.diff(below)])


def renyi(p: np.ndarray, q: np.ndarray, order: float) -> float:
    held = (p > 0) | (q > 0)
    p, q = np.maximum(p[held], 1e-300), np.maximum(q[held], 1e-300)
    return math.log(float(np.sum(p**order * q ** (1 - order)))) / (order - 1)


def hockey_stick(p: np.ndarray, q: np.ndarray, eps: float) -> float:
    return float(np.sum(np.maximum(p - math.exp(eps) * q, 0.0)))


def gaussian_pair(mu: float, points: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """N(0, 1) and N(mu, 1) on a fine grid: the score itself is the release, which is the worst case for a best-of."""
    from scipy.special import ndtr

    ends = np.concatenate([[-np.inf], np.linspace(-6, 6 + mu, points), [np.inf]])
    return np.diff(ndtr(ends)), np.diff(ndtr(ends - mu))


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("direction", [1, -1])
def test_exact_divergence_of_the_best_trial_is_below_the_bound(law, direction) -> None:
    mu = 0.5
    one, other = gaussian_pair(mu)[::direction]
    best, rest = best_of(one, law), best_of(other, law)
    assert math.isclose(best.sum(), 1.0, abs_tol=1e-9)
    for order in (1.5, 2.0, 4.0, 8.0):
        bound = law.renyi(order, lambda a: a * mu * mu / 2, lambda eps: gdp_delta(mu, eps))
        assert renyi(best, rest, order) <= bound
    for delta in (1e-2, 1e-4):
        assert hockey_stick(best, rest, epsilon_of(mu, law, delta)) <= delta


def test_one_trial_s_own_bound_is_broken_by_the_choice() -> None:
    """Choosing costs: a bound that forgot it would fail here, so the test above can fail."""
    mu, delta = 0.5, 1e-2
    law = PoissonTrials(20.0)
    best, rest = (best_of(trial, law) for trial in reversed(gaussian_pair(mu)))
    assert hockey_stick(best, rest, gdp_epsilon(mu, delta)) > 1.2 * delta
    forgotten = 2.0 * mu * mu / 2  # without the price of the choice
    assert renyi(best, rest, 2.0) > forgotten


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_trials_are_drawn_by_the_law_that_is_charged(law) -> None:
    drawn = np.array([law.draw(rng) for rng in [np.random.default_rng(0)] for _ in range(20_000)])
    for z in (0.3, 0.9):
        seen, error = np.mean(z**drawn), np.std(z**drawn) / math.sqrt(len(drawn))
        assert abs(seen - generating(law, z)) < 4 * error + 1e-9
    assert isinstance(law, PoissonTrials) or drawn.min() >= 1


def test_mu_is_the_largest_that_fits() -> None:
    for law in LAWS[:2]:
        mu = mu_for(1.0, law, 1e-5)
        assert epsilon_of(mu, law, 1e-5) <= 1.0 < epsilon_of(1.001 * mu, law, 1e-5)
    assert len(ORDERS) > 100
    with pytest.raises(ValueError, match="Use fewer"):
        mu_for(1e-3, PoissonTrials(50.0), 1e-5)
