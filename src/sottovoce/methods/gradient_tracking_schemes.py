"""Step sizes, batch and noise of DP gradient tracking: the paper's schemes S1 and S2, or plain numbers."""

import math
from dataclasses import dataclass
from typing import Any

from sottovoce.schedules import Constant, Decay, Schedule


@dataclass(frozen=True)
class Rates:
    """Plain step sizes: `alpha` toward the heard states, `beta` toward the heard trackers, `gamma` downhill.

    >>> Rates(0.1, 0.1, 0.05).gamma
    0.05
    """

    alpha: float | Schedule
    beta: float | Schedule
    gamma: float | Schedule


@dataclass(frozen=True)
class S1:
    """Scheme S1: step sizes fall and the batch grows polynomially with the last iteration K (iterations are 0 to K).

    alpha = a1 / K^p_alpha, beta = a2 / K^p_beta, gamma = a3 / K^p_gamma, m = floor(a4 K^p_m) + 1. The defaults are the
    paper's experiment.

    >>> scheme = S1(K=2000)
    >>> round(scheme.alpha, 3), round(scheme.beta, 3), round(scheme.gamma, 3), scheme.batch
    (0.04, 0.005, 0.05, 57)
    """

    K: int
    a1: float = 80.0
    a2: float = 0.75
    a3: float = 100.0
    a4: float = 3e-5
    p_alpha: float = 1.0
    p_beta: float = 0.66
    p_gamma: float = 1.0
    p_m: float = 1.9

    def __post_init__(self) -> None:
        _require_positive(self, "K", "a1", "a2", "a3", "a4", "p_alpha", "p_beta", "p_gamma")

    @property
    def alpha(self) -> float:
        """Toward the heard states."""
        return self.a1 / self.K**self.p_alpha

    @property
    def beta(self) -> float:
        """Toward the heard trackers."""
        return self.a2 / self.K**self.p_beta

    @property
    def gamma(self) -> float:
        """Downhill."""
        return self.a3 / self.K**self.p_gamma

    @property
    def batch(self) -> int:
        """The sampling number m."""
        return math.floor(self.a4 * self.K**self.p_m) + 1

    def noise(self, p: float) -> Schedule:
        """The scheme's noise (k+1)^p on a message."""
        return Decay(1.0, -p)


@dataclass(frozen=True)
class S2:
    """Scheme S2: constant step sizes, and a batch m = floor(p_m^K) + 1 that grows exponentially with K.

    The defaults are the paper's experiment.

    >>> S2(K=2000).batch, round(S2(K=2000).noise(0.9996)(0), 3)
    (55, 0.449)
    """

    K: int
    alpha: float = 0.1
    beta: float = 0.01
    gamma: float = 0.1
    p_m: float = 1.002

    def __post_init__(self) -> None:
        _require_positive(self, "K", "alpha", "beta", "gamma", "p_m")

    @property
    def batch(self) -> int:
        """The sampling number m."""
        return math.floor(self.p_m**self.K) + 1

    def noise(self, p: float) -> Schedule:
        """The scheme's noise p^K on every message."""
        return Constant(float(p) ** self.K)


Scheme = S1 | S2


def _require_positive(scheme: Any, *names: str) -> None:
    for name in names:
        if not getattr(scheme, name) > 0:
            raise ValueError(f"{name} of scheme {type(scheme).__name__} is {getattr(scheme, name)}: it must be > 0")
