"""State what is optimised, and the sets that variables are confined to.

>>> import jax.numpy as jnp
>>> Minimize(lambda x, record: jnp.sum((x - record) ** 2), x0=jnp.zeros(2)).variables
('x',)
"""

from sottovoce.problems import sets
from sottovoce.problems.implicit import hypergradient, minimise_lower, objectives
from sottovoce.problems.objectives import Bilevel, Minimize, MinMax, Problem, along, public_along

__all__ = [
    "Bilevel",
    "MinMax",
    "Minimize",
    "Problem",
    "along",
    "hypergradient",
    "minimise_lower",
    "objectives",
    "public_along",
    "sets",
]
