"""Attack DP bilevel: its lemma on sampling with replacement, and a sensitivity proved only at exact minimisers."""

import math

import numpy as np
from scipy.optimize import brentq

from sottovoce.audit import bounds
from sottovoce.laboratory.exhibit import CONFIDENCE, Measurement, attack, exhibit, sized
from sottovoce.privacy import sound

PAPER = "DP bilevel"
DELTA = 1e-5


@exhibit(
    "dp-bilevel-replacement",
    PAPER,
    "Lemma 2.3: drawing with replacement amplifies epsilon and leaves delta as it is; but a record may be drawn twice",
)
def replacement(rng: np.random.Generator, quick: bool) -> list[Measurement]:
    """Measure delta at the amplified epsilon: two draws from two records, Gaussian noise made for (1, 1e-5)."""
    noise = 1 / brentq(lambda mu: sound.gdp_delta(mu, 1.0) - DELTA, 1e-3, 5.0)
    epsilon = math.log(1 + (1 - 0.25) * (math.e - 1))
    trials = sized(4e7, quick)
    threshold = max(np.linspace(0.0, 10 * noise, 1000), key=lambda x: _expected(x, epsilon, noise, trials))
    right = wrong = 0
    for done in range(0, trials, 1_000_000):
        count = min(1_000_000, trials - done)
        drawn = rng.binomial(2, 0.5, size=count)
        right += int(np.sum(drawn + noise * rng.normal(size=count) >= threshold))
        wrong += int(np.sum(noise * rng.normal(size=count) >= threshold))
    measured = bounds.delta_bound(right, wrong, trials, epsilon, CONFIDENCE)
    exact = max(_expected(x, epsilon, noise, math.inf) for x in np.linspace(0.0, 10 * noise, 1000))
    return [Measurement("2 draws of 2 records", DELTA, measured, exact, trials, quantity="delta")]


def _expected(threshold: float, epsilon: float, noise: float, trials: float) -> float:
    """Return what the event {value >= threshold} shows of delta: its excess less two standard errors."""
    below, once, twice = (math.erfc((threshold - k) / (noise * math.sqrt(2))) / 2 for k in range(3))
    seen = (below + 2 * once + twice) / 4
    errors = math.sqrt(seen / trials) + math.exp(epsilon) * math.sqrt(below / trials)
    return seen - math.exp(epsilon) * below - 2 * errors


@exhibit(
    "dp-bilevel-sensitivity",
    PAPER,
    "a record's share of the outer gradient is at most 5 l kappa: at exact inner solutions; an inexact one is "
    "multiplied by the penalty lambda",
)
def sensitivity(rng: np.random.Generator, quick: bool) -> list[Measurement]:
    """Attack one outer release for g_i = (y - xi x)^2 / 2, xi = +1 or -1.

    Inner solutions are r apart, and the noise is made for epsilon 1.
    """
    slope, kappa, penalty = 1.0, 10.0, 1000.0
    assumed = 5 * slope * kappa
    noise = math.sqrt(2 * math.log(1.25 / DELTA)) * 2 * assumed  # of the sum: the factor 1/n is in both
    nearest = slope * kappa / penalty  # how far apart exact solutions can be: L0f / (lambda mu), mu = 1 / kappa
    rows = []
    for case, r in [("inner solutions .2 apart", 0.2), ("after projection", min(0.2, nearest))]:
        share = slope + penalty * r
        trials = sized(1e6, quick)

        def scores(rng: np.random.Generator, trials: int, truth: bool, share: float = share) -> np.ndarray:
            seen = (share if truth else -share) + noise * rng.normal(size=trials)
            return 2 * share * seen / noise**2

        exact = sound.gdp_epsilon(2 * share / noise, DELTA)
        measured = attack(scores, rng, trials, DELTA)
        rows.append(Measurement(case, 1.0, measured, exact, trials, control=r == nearest))
    return rows
