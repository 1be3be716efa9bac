"""Who talks to whom: graphs, weight matrices, and what must hold of them."""

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
