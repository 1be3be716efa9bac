"""Say who talks to whom: graphs, weight matrices, and the conditions that they must meet.

>>> ring(4, weight=0.3).mix.toarray()[0].round(1).tolist()
[0.4, 0.3, 0.0, 0.3]
"""

from sottovoce.networks.checks import Condition
from sottovoce.networks.graphs import (
    Network,
    complete,
    directed,
    erdos_renyi,
    exponential,
    from_matrix,
    isolated,
    regular,
    ring,
    single,
    star,
)
from sottovoce.networks.picture import draw

__all__ = [
    "Condition",
    "Network",
    "complete",
    "directed",
    "draw",
    "erdos_renyi",
    "exponential",
    "from_matrix",
    "isolated",
    "regular",
    "ring",
    "single",
    "star",
]
