"""Load, make, preprocess and distribute records.

>>> train, test = load("digits")
>>> [len(part) for part in split(train, agents=3)]
[480, 479, 479]
"""

from sottovoce.data import synthetic
from sottovoce.data.declarations import Column, Declarations
from sottovoce.data.declared import DeclaredTable, table
from sottovoce.data.notes import DeclarationWarning
from sottovoce.data.parts import Facts, Levels, Part
from sottovoce.data.population import Population
from sottovoce.data.preprocess import Ranges, bounded_norm, check_records
from sottovoce.data.sources import available, load, names
from sottovoce.data.split import levels, split

__all__ = [
    "Column",
    "DeclarationWarning",
    "Declarations",
    "DeclaredTable",
    "Facts",
    "Levels",
    "Part",
    "Population",
    "Ranges",
    "available",
    "bounded_norm",
    "check_records",
    "levels",
    "load",
    "names",
    "split",
    "synthetic",
    "table",
]
