"""State what is optimised, and the sets that variables are confined to.

>>> import jax.numpy as jnp
>>> Minimize(lambda x, record: jnp.sum((x - record) ** 2), x0=jnp.zeros(2)).variables
('x',)
"""

from sottovoce.problems import sets
from sottovoce.problems.implicit import bilevel_objectives, hypergradient, minimise_lower
from sottovoce.problems.objectives import Bilevel, Minimize, MinMax, Problem, along, public_along

__all__ = [
    "Bilevel",
    "MinMax",
    "Minimize",
    "Problem",
    "along",
    "bilevel_objectives",
    "hypergradient",
    "minimise_lower",
    "public_along",
    "sets",
]
