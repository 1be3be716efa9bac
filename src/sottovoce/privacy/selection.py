"""Bound the privacy of the best of a random number of private trials.

Papernot and Steinke, "Hyperparameter tuning with Renyi differential privacy", ICLR 2022. A trial trains one candidate,
drawn at random, and scores it; trial and score together are private. The number of trials is random and secret, and
only the best trial is shown. Then the loss grows with the logarithm of the number of trials, and not with its root.

Example: trials that are 0.2-GDP each, so that one has epsilon 0.73. About ten of them cost twice as much as one:

>>> round(epsilon_of(0.2, PoissonTrials(10), 1e-5), 2), round(epsilon_of(0.2, GeometricTrials(10), 1e-5), 2)
(1.5, 1.72)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from sottovoce.privacy.gdp import gdp_delta
from sottovoce.privacy.rdp import ORDERS, converted

Curve = Callable[[float], float]


@dataclass(frozen=True)
class PoissonTrials:
    """Draw the number of trials from a Poisson law: `mean` on average, and none at all with chance e^-mean.

    >>> PoissonTrials(2.0).draw(np.random.default_rng(0))
    2
    """

    mean: float

    def __post_init__(self) -> None:
        if not self.mean >= 1:
            raise ValueError(f"the mean number of trials is {self.mean}: give at least 1")

    def draw(self, rng: np.random.Generator) -> int:
        """Draw a number of trials."""
        return int(rng.poisson(self.mean))

    def renyi(self, order: float, rdp: Curve, delta: Curve) -> float:
        """Bound the Renyi divergence of the best trial: Theorem 6.

        Proof idea. With F and f the law and density of a trial, the best of K has density f(y) E[K F(y)^(K-1)], which
        is m f(y) e^(m (F(y) - 1)). In the ratio for two data sets the factors m cancel except for the power order - 1
        of one of them, which gives log(m) / (order - 1), and the exponents differ by m (F - F') per unit, which (e,
        d)-privacy of a trial with e^e <= 1 + 1/(order - 1) keeps below m d.
        """
        near = math.log1p(1 / (order - 1))
        return rdp(order) + self.mean * delta(near) + math.log(self.mean) / (order - 1)


@dataclass(frozen=True)
class GeometricTrials:
    """Draw the number of trials from a geometric law: at least one, `mean` on average.

    >>> GeometricTrials(2.0).draw(np.random.default_rng(0))
    2
    """

    mean: float

    def __post_init__(self) -> None:
        if not self.mean > 1:
            raise ValueError(f"the mean number of trials is {self.mean}: give more than 1")

    def draw(self, rng: np.random.Generator) -> int:
        """Draw a number of trials."""
        return int(rng.geometric(1 / self.mean))

    def renyi(self, order: float, rdp: Curve, delta: Curve) -> float:
        """Bound the Renyi divergence of the best trial: Theorem 2 for the geometric law (eta = 1).

        ``rdp(order) + 2 (1 - 1/a) rdp(a) + 2 log(mean)/a + log(mean)/(order - 1)`` for every order a > 1; the smallest
        counts.
        """
        logarithm = math.log(self.mean)
        beside = min(2 * (1 - 1 / a) * rdp(a) + 2 * logarithm / a for a in ORDERS)
        return rdp(order) + beside + logarithm / (order - 1)


Trials = PoissonTrials | GeometricTrials


def epsilon_of(mu: float, trials: Trials, delta: float) -> float:
    """Return epsilon of the best of a random number of trials, each mu-GDP with its score."""
    if not (mu >= 0 and 0 < delta < 1):
        raise ValueError(f"mu is {mu} and delta {delta}: give mu >= 0 and a delta between 0 and 1")

    def rdp(order: float) -> float:
        return order * mu * mu / 2

    def approximate(epsilon: float) -> float:
        return gdp_delta(mu, epsilon)

    def bound(order: float) -> float:
        return converted(trials.renyi(order, rdp, approximate), order, delta)

    return max(0.0, min(bound(order) for order in ORDERS))


def mu_for(epsilon: float, trials: Trials, delta: float) -> float:
    """Return the largest mu of a trial for which the best of them is (epsilon, delta)-private.

    >>> trials = PoissonTrials(10)
    >>> round(epsilon_of(mu_for(1.0, trials, 1e-5), trials, 1e-5), 6)
    1.0
    """
    least = epsilon_of(0.0, trials, delta)
    if epsilon <= least:
        raise ValueError(
            f"epsilon is {epsilon:g}: a choice among {trials.mean:g} trials costs {least:.3g} by itself in this bound. "
            "Use fewer trials, or a larger epsilon"
        )
    top = 1.0
    while epsilon_of(top, trials, delta) < epsilon:
        top *= 2
    root = float(brentq(lambda mu: epsilon_of(mu, trials, delta) - epsilon, 0.0, top, xtol=1e-10))
    return root * (1 - 1e-9)
