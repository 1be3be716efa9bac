"""DP bilevel: the lemma on sampling with replacement, and a sensitivity that is proved at exact minimisers only."""

import math

import numpy as np
from scipy.optimize import brentq

from sottovoce.audit import bounds
from sottovoce.audit.exhibits.base import CONFIDENCE, Row, attack, exhibit, sized
from sottovoce.privacy import sound

PAPER = "DP bilevel"
DELTA = 1e-5


@exhibit(
    "dp-bilevel-replacement",
    PAPER,
    "Lemma 2.3: drawing with replacement amplifies epsilon and leaves delta as it is; but a record may be drawn twice",
)
def replacement(rng: np.random.Generator, quick: bool) -> list[Row]:
    """Two draws from two records, Gaussian noise made for (1, 1e-5): delta at the amplified epsilon."""
    noise = 1 / brentq(lambda mu: sound.gdp_delta(mu, 1.0) - DELTA, 1e-3, 5.0)
    epsilon = math.log(1 + (1 - 0.25) * (math.e - 1))
    threshold = _crossing(epsilon, noise)
    trials = sized(4e7, quick)
    right = wrong = 0
    for done in range(0, trials, 1_000_000):
        count = min(1_000_000, trials - done)
        drawn = rng.binomial(2, 0.5, size=count)
        right += int(np.sum(drawn + noise * rng.normal(size=count) >= threshold))
        wrong += int(np.sum(noise * rng.normal(size=count) >= threshold))
    measured = bounds.delta_bound(right, wrong, trials, epsilon, CONFIDENCE)
    tails = [_tail(threshold - k, noise) for k in range(3)]
    exact = (tails[0] + 2 * tails[1] + tails[2]) / 4 - math.exp(epsilon) * tails[0]
    return [Row("2 draws of 2 records", DELTA, measured, exact, trials, quantity="delta")]


def _crossing(epsilon: float, noise: float) -> float:
    """Where the mixture's density is e^epsilon times that of the noise: the event of the largest delta lies above."""

    def ratio(x: float) -> float:
        return sum(w * math.exp((2 * k * x - k * k) / (2 * noise**2)) for k, w in enumerate((0.25, 0.5, 0.25)))

    return brentq(lambda x: ratio(x) - math.exp(epsilon), -50.0, 50.0)


def _tail(x: float, noise: float) -> float:
    return math.erfc(x / (noise * math.sqrt(2))) / 2


@exhibit(
    "dp-bilevel-sensitivity",
    PAPER,
    "a record's share of the outer gradient is at most 5 l kappa: at exact inner solutions; an inexact one is "
    "multiplied by the penalty lambda",
)
def sensitivity(rng: np.random.Generator, quick: bool) -> list[Row]:
    """g_i = (y - xi x)^2 / 2, xi = +1 or -1: one outer release, inner solutions r apart, noise made for epsilon 1."""
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
        rows.append(Row(case, 1.0, measured, exact, trials, control=r == nearest))
    return rows
