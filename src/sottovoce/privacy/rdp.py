"""Compute Renyi bounds with dp-accounting: for batches without replacement, and as a cross-check elsewhere.

The Renyi divergence of order a measures how far two distributions lie apart; it adds up over releases, and every order
gives an epsilon. For example, one Gaussian release of noise multiplier 2 costs a / 8 at order a.
"""

import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import dp_accounting
from dp_accounting.rdp import RdpAccountant

from sottovoce.privacy.mechanisms import Adjacency, Mechanism, PoissonAmplification, SubsetAmplification, clips_moved


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence the library, which warns of orders that it leaves out: that only loosens the bound."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@_without_warnings()
def epsilon(items: Iterable[tuple[Mechanism, int]], delta: float, adjacency: Adjacency) -> float:
    """Return the Renyi bound of all (mechanism, count) together.

    Valid for un-sampled noise, Gaussian releases on Poisson batches (zero-out only), and Gaussian ones on batches
    without replacement (not together with Poisson batches). The caller must check this. The library never doubles a
    sensitivity here, so it is given the true ratio; without replacement that is always the replace-one ratio.

    >>> round(epsilon([(Mechanism(gaussian=0.25), 1)], 1e-5, "zero-out"), 4)
    2.1657
    """
    items = list(items)
    fixed = any(isinstance(mechanism.amplification, SubsetAmplification) for mechanism, _ in items)
    relation = dp_accounting.NeighboringRelation
    accountant = RdpAccountant(neighboring_relation=relation.REPLACE_ONE if fixed else relation.REPLACE_SPECIAL)
    for mechanism, count in items:
        scale, by = clips_moved(adjacency), mechanism.amplification
        if mechanism.gaussian:
            sensitivity = 2.0 if isinstance(by, SubsetAmplification) else scale
            event = dp_accounting.GaussianDpEvent(1 / (sensitivity * math.sqrt(mechanism.gaussian)))
            if isinstance(by, PoissonAmplification):
                event = dp_accounting.PoissonSampledDpEvent(by.rate, event)
            if isinstance(by, SubsetAmplification):
                event = dp_accounting.SampledWithoutReplacementDpEvent(by.size, by.batch, event)
            accountant.compose(event, count)
        for inverse in mechanism.laplace:
            accountant.compose(dp_accounting.LaplaceDpEvent(1 / (scale * inverse)), count)
    return float(accountant.get_epsilon(delta))
