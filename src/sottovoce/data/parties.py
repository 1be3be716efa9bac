"""Check the parties' parts before anybody reads them: once per run, which hands the checked ones on.

Example: ``Parties.of([records_of_north, records_of_south])`` has one list of two parts, under the level "records"; of
``[Levels(upper, lower), ...]`` it has two lists, "upper" and "lower".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from sottovoce.data import overlap
from sottovoce.data.parts import Facts, Levels, Part, ids_of
from sottovoce.shown import Shown

SINGLE = "records"  # the level of a problem that has one record set


@dataclass(frozen=True, eq=False, repr=False)
class Parties(Shown):
    """Hold the checked parts of all parties by level, and which parties said that their levels are disjoint."""

    by_level: Mapping[str, list[Part]]
    disjoint: tuple[bool, ...] = ()

    @classmethod
    def of(cls, parts: Any) -> "Parties":
        """Check parts; what was checked is returned as it is.

        ValueError names the party that is empty, or differs from the others.

        >>> sorted(Parties.of([Levels(np.zeros(3), np.zeros(5))]).by_level)
        ['lower', 'upper']
        """
        if isinstance(parts, Parties):
            return parts
        if isinstance(parts, Mapping) or hasattr(parts, "dtype"):
            raise ValueError("parts is one record set: give a list, one record set per agent ([records] for one agent)")
        if hasattr(parts, "columns"):
            raise ValueError(
                "parts is a table: declare its columns first, sv.data.table(frame, label=..., columns={...}).parts()"
            )
        if not len(parts):
            raise ValueError("there are no parties: give one record set per agent")
        split = [isinstance(part, Levels) for part in parts]
        if any(split) and not all(split):
            odd = split.index(not split[0])
            raise ValueError(
                f"party {odd} differs from party 0: either all parties have Levels(upper, lower) or none has"
            )
        disjoint: tuple[bool, ...] = ()
        if all(split):
            by_level = {level: [as_part(getattr(part, level)) for part in parts] for level in ("upper", "lower")}
            disjoint = tuple(part.disjoint for part in parts)
        else:
            by_level = {SINGLE: [as_part(part) for part in parts]}
        for level, group in by_level.items():
            _check_group(level, group)
        _check_units_named(by_level)
        return cls(by_level, disjoint)

    @cached_property
    def records(self) -> dict[str, Any]:
        """Return the shapes and types of one record per level: public, and all that tracing a loss needs.

        >>> Parties.of([np.zeros((5, 2), np.float32)]).records
        {'records': ShapeDtypeStruct(shape=(2,), dtype=float32)}
        """
        return {level: jax.tree.map(_one_record, group[0].records) for level, group in self.by_level.items()}

    def together(self) -> "Parties":
        """Return all parties' records as those of one, as a secure sum adds them up.

        Ids mean what their party means by them: a unit that two parties hold is two units, each clipped by itself.

        >>> both = Parties.of([Part(np.zeros(3), np.arange(3), unit=np.array([7, 7, 8]))] * 2).together()
        >>> len(both.by_level["records"]), both.by_level["records"][0].units
        (1, 4)
        """
        return Parties({level: [_together(group, self._numbers)] for level, group in self.by_level.items()})

    @cached_property
    def _numbers(self) -> list[dict[Any, int]]:
        """Return a number for each unit of each party, the same in both levels."""
        found, first = [], 0
        for party in range(len(next(iter(self.by_level.values())))):
            held = [ids_of(group[party]).tolist() for group in self.by_level.values()]
            own = {one: first + number for number, one in enumerate(dict.fromkeys(one for ids in held for one in ids))}
            found.append(own)
            first += len(own)
        return found


def _together(group: list[Part], numbers: list[dict[Any, int]]) -> Part:
    """Return one part with the records of all; `numbers` are those of each party's units."""
    rows = np.concatenate([np.asarray(part.rows) for part in group])
    shared = all(part.records is group[0].records for part in group) and len(np.unique(rows)) == len(rows)
    if shared:
        records = group[0].records
    else:
        records = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(part.gather() for part in group))
        rows = np.arange(len(rows))
    unit = None
    if group[0].unit is not None:
        unit = np.full(len(jax.tree.leaves(records)[0]), -1)
        unit[rows] = [own[one] for part, own in zip(group, numbers) for one in ids_of(part).tolist()]
    return Part(records, rows, unit, facts=Facts.together(part.facts for part in group))


def as_part(records: Any) -> Part:
    """Return a part as it is, and make one from a plain record set.

    >>> len(as_part({"label": np.zeros(5)}))
    5
    """
    if isinstance(records, Part):
        return records
    leaves = jax.tree.leaves(records)
    if not leaves or not all(hasattr(leaf, "dtype") for leaf in leaves):
        raise ValueError("a party's record set must be arrays that share their first axis, alone or in a dict or tuple")
    if any(leaf.dtype.kind in "OUS" for leaf in leaves):
        raise ValueError("records must be numbers: declare text and categories first (sv.data.table)")
    lengths = {np.shape(leaf)[:1] for leaf in leaves}
    if len(lengths) != 1 or () in lengths:
        shapes = [np.shape(leaf) for leaf in leaves]
        raise ValueError(f"a record set's arrays must share their first axis; got shapes {shapes}")
    return Part(records, np.arange(lengths.pop()[0]))


def _one_record(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(leaf)[1:], jax.dtypes.canonicalize_dtype(leaf.dtype))


def _check_group(level: str, group: list[Part]) -> None:
    where = "" if level == SINGLE else f" ({level} level)"
    reference = jax.tree.map(_one_record, group[0].records)
    for number, part in enumerate(group):
        if len(part) == 0:
            raise ValueError(f"party {number}{where} has no records: leave it out or give it some")
        if part.records is not group[0].records:
            shapes = jax.tree.map(_one_record, part.records)
            if shapes != reference:
                raise ValueError(
                    f"party {number}{where} holds records of shapes {shapes}, party 0 of {reference}: they must agree"
                )
        rows, count = np.asarray(part.rows), len(jax.tree.leaves(part.records)[0])
        if rows.dtype.kind not in "iu":
            raise ValueError(f"party {number}{where} has rows of type {rows.dtype}: give row numbers")
        ascending = rows[0] >= 0 and bool((rows[1:] > rows[:-1]).all())  # the usual case, without a table of all rows
        if not ascending and (len(np.unique(rows)) < len(rows) or rows.min() < 0):
            raise ValueError(f"party {number}{where} lists a row twice, or one below 0: each record counts once")
        if overlap.one_row(part.records):
            raise ValueError(f"party {number}{where} holds one row, repeated in memory: each record counts once")
        if rows.max() >= count:
            raise ValueError(
                f"party {number}{where} lists row {rows.max()} of {count} records: the last is {count - 1}"
            )
        if (part.unit is None) != (group[0].unit is None):
            raise ValueError(f"party {number}{where}: either every party names a privacy unit or none does")
        if part.unit is not None:
            _check_ids(np.asarray(part.unit), count, f"party {number}{where}")


def _check_units_named(by_level: Mapping[str, list[Part]]) -> None:
    if len({group[0].unit is None for group in by_level.values()}) > 1:  # a unit's records would be clipped one by one
        raise ValueError("one level names a privacy unit, the other does not: name it in both levels, or in neither")
    columns = {id(part.unit): part.unit for group in by_level.values() for part in group if part.unit is not None}
    if len({_are_texts(np.asarray(ids)) for ids in columns.values()}) > 1:  # 1.0 and "1" would be two units
        raise ValueError("unit ids are numbers in one place and texts in another: give all of them one kind")


def _are_texts(ids: np.ndarray) -> bool:
    return ids.dtype.kind in "SU" or (ids.dtype.kind == "O" and any(isinstance(one, str) for one in ids))


def _check_ids(ids: np.ndarray, count: int, who: str) -> None:
    if ids.shape != (count,):
        raise ValueError(f"{who} has unit ids of shape {ids.shape} for {count} records: give one id per record")
    missing = ids != ids if ids.dtype.kind != "O" else np.array([one is None or one != one for one in ids], bool)
    if np.any(missing):  # a missing id equals no other: a unit in both levels would not be seen
        raise ValueError(f"{who} has no unit id for row {int(np.argmax(missing))}: give every record an id")
