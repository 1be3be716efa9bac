"""Compute Renyi bounds, for where the loss distributions have no finite answer: many large losses, or a tiny delta.

The Renyi divergence of order a measures how far two distributions lie apart; it adds up over releases, and every order
gives an epsilon. For example, one Gaussian release of noise multiplier 2 costs a / 8 at order a.

Sources: Laplace noise, Mironov (CSF 2017), Table II; Gaussian noise on Poisson batches at whole orders, Mironov, Talwar
and Zhang (2019). Between whole orders, (a - 1) D_a is convex in a (Wang, Balle and Kasiviswanathan, 2019). At every
order a mixture is no farther away than its parts on average: e^((a-1) D_a) <= 1 - q + q e^(a (a-1) mu^2 / 2).
"""

import math
from collections.abc import Sequence
from typing import Any

import lazy_loader
import numpy as np

from sottovoce.privacy.mechanisms import Adjacency, Mechanism, PoissonAmplification, clips_moved

special: Any = lazy_loader.load("scipy.special", suppress_warning=True)

ORDERS = (1 + np.geomspace(0.05, 2000, 120)).tolist()  # which are tried


def converted(divergence: float, order: float, delta: float) -> float:
    """Return the epsilon of a Renyi divergence (Canonne, Kamath and Steinke, NeurIPS 2020).

    >>> round(converted(1.0, 10.0, 1e-5), 4)
    1.918
    """
    return divergence + math.log((order - 1) / order) - (math.log(delta) + math.log(order)) / (order - 1)


def epsilon(items: Sequence[tuple[Mechanism, int]], delta: float, adjacency: Adjacency) -> float:
    """Return the Renyi bound of all (mechanism, count) together.

    Valid for un-sampled noise, and for Gaussian releases on Poisson batches (zero-out only). The caller must check
    this.

    >>> round(epsilon([(Mechanism(gaussian=0.25), 1)], 1e-5, "zero-out"), 4)
    2.166
    """
    scale = clips_moved(adjacency)
    sums = ((order, sum(count * divergence(one, order, scale) for one, count in items)) for order in ORDERS)
    return max(0.0, min(converted(total, order, delta) for order, total in sums))


def divergence(mechanism: Mechanism, order: float, scale: float = 1.0) -> float:
    """Return the Renyi divergence of one release, whose inverse noise multipliers are taken times `scale`.

    >>> divergence(Mechanism(gaussian=0.25), 4.0)
    0.5
    """
    gaussian, by = scale**2 * mechanism.gaussian, mechanism.amplification
    if isinstance(by, PoissonAmplification):
        below = math.floor(order)
        low, high = (_moment(gaussian, by.rate, whole) for whole in (below, below + 1))
        split = np.logaddexp(math.log1p(-by.rate), math.log(by.rate) + order * (order - 1) * gaussian / 2)
        return float(min(low + (order - below) * (high - low), split)) / (order - 1)
    return order * gaussian / 2 + sum(_laplace(scale * inverse, order) for inverse in mechanism.laplace)


def _moment(gaussian: float, rate: float, order: int) -> float:
    """Return (order - 1) times the divergence of Gaussian noise on a Poisson batch, for a whole order."""
    k = np.arange(order + 1)
    chances = special.gammaln(order + 1) - special.gammaln(k + 1) - special.gammaln(order - k + 1)
    chances = chances + k * math.log(rate) + (order - k) * math.log1p(-rate)
    return float(special.logsumexp(chances + (k * k - k) * gaussian / 2))


def _laplace(inverse: float, order: float) -> float:
    """Return the divergence of Laplace noise of scale 1 / inverse between 0 and 1."""
    up = math.log(order / (2 * order - 1)) + (order - 1) * inverse
    down = math.log((order - 1) / (2 * order - 1)) - order * inverse
    return float(np.logaddexp(up, down)) / (order - 1)
