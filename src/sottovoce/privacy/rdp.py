"""Compute Renyi bounds with dp-accounting, as a cross-check of the bounds that are computed here.

The Renyi divergence of order a measures how far two distributions lie apart; it adds up over releases, and every order
gives an epsilon. For example, one Gaussian release of noise multiplier 2 costs a / 8 at order a.
"""

import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from sottovoce.privacy.mechanisms import Adjacency, Mechanism, PoissonAmplification, clips_moved


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

    Valid for un-sampled noise, and for Gaussian releases on Poisson batches (zero-out only). The caller must check
    this. The library never doubles a sensitivity here, so it is given the true ratio. Its bound for batches without
    replacement is not used: it is looser than the one here (4.31 where 1.92 is proved), and fails for much noise.

    >>> round(epsilon([(Mechanism(gaussian=0.25), 1)], 1e-5, "zero-out"), 4)
    2.1657
    """
    import dp_accounting  # slow to load, and most accounts need no Renyi bound
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    for mechanism, count in items:
        scale, by = clips_moved(adjacency), mechanism.amplification
        if mechanism.gaussian:
            event = dp_accounting.GaussianDpEvent(1 / (scale * math.sqrt(mechanism.gaussian)))
            if isinstance(by, PoissonAmplification):
                event = dp_accounting.PoissonSampledDpEvent(by.rate, event)
            accountant.compose(event, count)
        for inverse in mechanism.laplace:
            accountant.compose(dp_accounting.LaplaceDpEvent(1 / (scale * inverse)), count)
    return float(accountant.get_epsilon(delta))
