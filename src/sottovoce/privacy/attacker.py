"""Say what an attacker can gain who knows everything but one record (or unit).

The attacker tests whether the record took part. Of all who did not, the test wrongly accuses a share a (its
false-positive rate). Of all who did, it finds at most ``min over eps of e^eps a + delta(eps)`` (its true-positive
rate), because the composed releases are (eps, delta(eps))-private for every eps at once. Example: 1-GDP releases let a
test that wrongly accuses 1 in 100 find at most 9.2 in 100.

>>> from sottovoce.privacy.mechanisms import Mechanism
>>> round(highest_power(((Mechanism(gaussian=1.0), 1),), [0.01], "zero-out")[0], 3)
0.092
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr, ndtri

from sottovoce.privacy import accountant, pld
from sottovoce.privacy.mechanisms import Adjacency, Mechanism, Spent, clips_moved

RATES = (0.001, 0.01, 0.1)  # false-positive rates that statements show
_TAIL = 1e-9  # charged to every delta of a numerical curve
_DELTAS = 10.0 ** -np.arange(1.0, 10.0)  # tried where no dominating pair is known


def highest_power(
    spent: Spent, rates: Sequence[float], adjacency: Adjacency, *, overflow: float = 0.0
) -> tuple[float, ...]:
    """Return the highest true-positive rate of any test at each false-positive rate, rounded to the safe side.

    Guarantee: no test of "the record took part" against "it did not", in either direction, has more, for the ideal
    mechanisms. `overflow` is the chance that a batch did not fit its array: it moves either rate by that much at most.

    Proof. For a test with rejection region S, and any eps, P(S) <= e^eps Q(S) + delta(eps), where delta(eps) is the
    hockey-stick divergence of the dominating pair; this holds for negative eps too. The smallest right side counts. The
    dominating pair of a composition is the product of the pairs, whose curve `pld.curves` bounds from above, once for
    each direction; the larger of the two is returned.

    >>> highest_power((), [0.01], "zero-out")
    (0.01,)
    """
    raised = [min(1.0, rate + overflow) for rate in rates]
    found = _power(tuple((m, count) for m, count in spent if count), raised, adjacency)
    return tuple(min(1.0, power + overflow) for power in found)


def power_of(epsilon: float, delta: float, rates: Sequence[float]) -> tuple[float, ...]:
    """Return the highest true-positive rates that one (epsilon, delta) allows, where nothing more is known.

    >>> [round(power, 3) for power in power_of(1.0, 0.0, [0.01, 0.9])]
    [0.027, 0.963]
    """
    if math.isinf(epsilon):
        return (1.0,) * len(rates)
    grow, shrink = math.exp(min(epsilon, 700.0)), math.exp(-epsilon)
    return tuple(min(1.0, grow * rate + delta, 1.0 - shrink * (1.0 - rate - delta)) for rate in rates)


def _power(spent: Spent, rates: Sequence[float], adjacency: Adjacency) -> list[float]:
    if not spent:
        return list(rates)
    plain = all(mechanism == Mechanism(gaussian=mechanism.gaussian) for mechanism, _ in spent)
    if plain and all(math.isfinite(mechanism.gaussian) for mechanism, _ in spent):
        mu = clips_moved(adjacency) * math.sqrt(sum(count * mechanism.gaussian for mechanism, count in spent))
        return [float(ndtr(ndtri(rate) + mu)) for rate in rates]
    pieces = accountant.pairs(spent, _TAIL, adjacency)
    if pieces is not None:
        ways = pld.curves(pieces, _TAIL)
        return [
            max(float(np.min(np.exp(np.minimum(e, 700.0)) * rate + d, initial=1.0)) for e, d in ways) for rate in rates
        ]
    bounds = [(float(accountant.epsilon(spent, delta, adjacency)), delta) for delta in _DELTAS]
    return [min(power_of(epsilon, delta, [rate])[0] for epsilon, delta in bounds) for rate in rates]
