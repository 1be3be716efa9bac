"""Decide from public facts whether curves pay, and what their ranks may cost.

Example: of 3000 rows with ten numbers at epsilon 2, curves learn more than the extra noise of their weights hides; of
300 rows they do not.
"""

import math

from sottovoce.data.population import Population
from sottovoce.privacy.gdp import gdp_epsilon, gdp_mu
from sottovoce.tuning.auto import Facts

# Noise over signal, for straight lines, up to which curves pay. `python -m benchmarks.curves choose` prints what other
# values would do on public tables.
_LOUDEST = 0.02
_SHARE = 0.05  # of the budget, in squares: what ranks may cost


def curves_pay(entries: int, data: object, epsilon: float | None, delta: float = 1e-5) -> bool:
    """Say whether curves are expected to improve a model whose rows have so many encoded numbers without them.

    >>> curves_pay(10, Population([3000]), epsilon=2.0), curves_pay(10, Population([300]), epsilon=2.0)
    (True, False)
    """
    facts = Facts.of(Population.of(data), epsilon, delta, "zero-out")
    return math.sqrt(facts.parties * (1 + entries)) / (facts.mu * facts.rows) <= _LOUDEST


def price(epsilon: float, delta: float = 1e-5) -> float:
    """Return the epsilon that ranks may cost by themselves, of a run's epsilon that covers both.

    >>> round(price(1.0), 3)
    0.195
    """
    return gdp_epsilon(math.sqrt(_SHARE) * gdp_mu(epsilon, delta), delta)
