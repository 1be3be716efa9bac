"""What is optimised, and the sets it is confined to."""

from sottovoce.problems import sets
from sottovoce.problems.objectives import Bilevel, Minimize, MinMax, Problem, along, public_along

__all__ = ["Bilevel", "MinMax", "Minimize", "Problem", "along", "public_along", "sets"]
