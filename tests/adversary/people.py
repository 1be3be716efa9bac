"""Who holds what: record sets whose values are the numbers of the people they belong to."""

from collections.abc import Callable
from typing import Any

import numpy as np

import sottovoce as sv
from sottovoce.data.parts import Levels, Part

Build = Callable[[int], list[Any]]


def _numbers(*people: int) -> np.ndarray:
    return np.array(people, np.float32)


def _records(n: int) -> list[Any]:
    return [np.arange(n, dtype=np.float32)]


def _units(n: int) -> list[Any]:
    owner = _numbers(0, *range(n), 0)  # person 0 has three records
    return [Part(owner, np.arange(len(owner)), owner.astype(int))]


def _split(n: int) -> list[Any]:
    return [sv.data.levels(sv.data.split({"a": np.arange(2 * n, dtype=np.float32)}, 1)[0], 0.5)]


def _said(n: int) -> list[Any]:
    everybody = np.arange(2 * n, dtype=np.float32)
    return [Levels(everybody[:n].copy(), everybody[n:].copy(), disjoint=True)]


def _copies(n: int) -> list[Any]:
    return [Levels(*(np.arange(n, dtype=np.float32) for _ in range(2)))]


def _view(n: int) -> list[Any]:
    everybody = np.arange(n, dtype=np.float32)
    return [Levels(everybody, everybody[::-1])]


def _dicts(n: int) -> list[Any]:
    everybody = np.arange(n, dtype=np.float32)
    return [Levels({"a": everybody}, {"a": everybody})]


def _slices(n: int) -> list[Any]:
    everybody = np.arange(n + 1, dtype=np.float32)
    return [Levels(everybody[:-1], everybody[1:])]


def _unit_in_one_level(n: int) -> list[Any]:
    owner = np.repeat(np.arange(2 * n, dtype=np.float32), 2)
    upper, lower = np.split(np.arange(4 * n), 2)
    return [Levels(Part(owner, upper, owner.astype(int)), Part(owner, lower, owner.astype(int)))]


def _unit_across(n: int) -> list[Any]:
    """Everybody has one record in the upper level, and one in the lower; person 0 has two there."""
    upper, lower = _numbers(*range(n)), _numbers(0, *range(n))
    return [Levels(Part(upper, np.arange(n), upper.astype(int)), Part(lower, np.arange(n + 1), lower.astype(int)))]


def _unit_named_above(n: int) -> list[Any]:
    """As `_unit_across`, but only the upper level says whose a record is."""
    (both,) = _unit_across(n)
    return [Levels(both.upper, Part(both.lower.records, both.lower.rows))]


ONE_LEVEL: dict[str, Build] = {"records": _records, "units": _units}
TWO_LEVELS: dict[str, Build] = {
    "one set": _records,
    "split": _split,
    "said": _said,
    "copies": _copies,
    "view": _view,
    "dicts": _dicts,
    "slices": _slices,
    "unit in one level": _unit_in_one_level,
    "unit across": _unit_across,
    "unit named above": _unit_named_above,
}
PEOPLE = ONE_LEVEL | TWO_LEVELS
