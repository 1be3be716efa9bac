"""Run DM-HSGD: decentralised min-max with hybrid stochastic gradients, without privacy.

Xian, Huang, Zhang and Huang, "A faster decentralized algorithm for nonconvex minimax problems", NeurIPS 2021.
"""

from dataclasses import dataclass, field

from sottovoce.papers.dpmixsgd.method import DpMixSgd
from sottovoce.privacy.release import Release


@dataclass(frozen=True)
class DmHsgd(DpMixSgd):
    """Run DM-HSGD: `DpMixSgd` without clipping and noise, that is STORM estimators and gradient tracking.

    >>> from sottovoce.privacy.sampling import Poisson
    >>> DmHsgd(0.1, 0.01, Poisson(20), first=Poisson(10_000, cut=True)).design_name
    'non-private'
    """

    release_x: Release = field(default_factory=Release.open)
    release_y: Release = field(default_factory=Release.open)
