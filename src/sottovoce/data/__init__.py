"""Record sets: loaders, partitions, synthetic data and public preprocessing."""

from sottovoce.data import synthetic
from sottovoce.data.parts import Levels, Part
from sottovoce.data.population import Population
from sottovoce.data.preprocess import Ranges, bounded_norm, categories, check_records
from sottovoce.data.sources import available, load, names
from sottovoce.data.split import levels, split

__all__ = [
    "Levels",
    "Part",
    "Population",
    "Ranges",
    "available",
    "bounded_norm",
    "categories",
    "check_records",
    "levels",
    "load",
    "names",
    "split",
    "synthetic",
]
