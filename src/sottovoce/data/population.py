"""Who takes part: the parties' names, how many records (or units) each holds, and which units are held twice.

Example: three hospitals with 400, 300 and 50 patients are `Population([400, 300, 50], unit="patient")`. All of it is
public, and it is all that an account needs to know about the data: no record is read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from sottovoce.data.parts import NO_FACTS, Facts, Levels, Part

SINGLE = "records"  # the level of a problem that has one record set
Cell = tuple[int, str]  # a party's number and a level


@dataclass(frozen=True, eq=False)
class Population:
    """The parties of a run, as far as they are public.

    Args:
        sizes: how many units each party holds: a list of numbers, a list of ``Levels(upper, lower)`` of numbers, or a
            mapping from level to list.
        unit: whose data is protected: "record", or what the ids name ("patient", ...).
        names: one name per party; "0", "1" and so on by default. A ledger goes by names over several runs: a name must
            stand for the same holder of the same records in each. A number is no name to a ledger.
        shared: for each unit with records in several places, these places: pairs (party number, level). Example:
            ``{((0, "upper"), (0, "lower"))}`` says that some unit of party 0 has records in both levels.
        facts: what else is known about the records, and what was paid to know it (`sottovoce.data.table`).

    >>> Population([400, 300, 50]).parties
    3
    >>> Population([Levels(100, 900)]).sizes
    {'upper': (100,), 'lower': (900,)}
    """

    sizes: Any
    unit: str = "record"
    names: tuple[str, ...] = ()
    shared: Any = frozenset()
    facts: Facts = NO_FACTS

    def __post_init__(self) -> None:
        sizes = _by_level(self.sizes)
        parties = {len(n) for n in sizes.values()}
        if len(parties) != 1:
            raise ValueError(f"sizes list {sorted(parties)} parties: give every level one number per party")
        for level, n in sizes.items():
            if not n or min(n) < 1:
                raise ValueError(f"sizes ({level}) are {list(n)}: every party needs at least one {self.unit}")
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "shared", frozenset(frozenset(cells) for cells in self.shared))
        count = parties.pop()
        names = tuple(map(str, self.names)) or tuple(map(str, range(count)))
        if len(names) != count or len(set(names)) != count:
            raise ValueError(
                f"there are {count} parties and {len(set(names))} different names: give one name per party"
            )
        if not all(names):
            raise ValueError(f"names are {list(names)}: a name must not be empty")
        object.__setattr__(self, "names", names)

    @classmethod
    def of(cls, data: Any) -> "Population":
        """Read a population off the parties' parts; a population is returned as it is.

        >>> pool = np.arange(10.0)
        >>> both = Population.of([Levels(Part(pool, np.arange(4)), Part(pool, np.arange(3, 10)))])
        >>> both.in_both_levels(0)    # row 3 is in both
        True
        """
        if isinstance(data, Population):
            return data
        if _are_numbers(data):
            raise TypeError(f"{data!r} are numbers, not records: give sv.Population(sizes) to account without records")
        by_level = parts_by_level(data)
        first = next(iter(by_level.values()))[0]
        return cls(
            {level: [part.units for part in group] for level, group in by_level.items()},
            unit="record" if first.unit is None else first.facts.unit or "unit",
            names=_names(by_level),
            shared=_shared(by_level),
            facts=first.facts,
        )

    @property
    def parties(self) -> int:
        """How many parties there are."""
        return len(self.names)

    @cached_property
    def counts(self) -> dict[str, np.ndarray]:
        """The sizes as arrays."""
        return {level: np.asarray(n, dtype=np.int64) for level, n in self.sizes.items()}

    def in_both_levels(self, party: int) -> bool:
        """Say whether some unit of this party has records in both levels, so that it pays for both."""
        return party in self._paying_twice

    @cached_property
    def spread(self) -> bool:
        """Whether some unit has records with several parties: epsilon then is of what one party holds of it."""
        return any(len({party for party, _ in cells}) > 1 for cells in self.shared)

    @cached_property
    def _paying_twice(self) -> frozenset[int]:
        levels_of: dict[int, int] = {}
        for cells in self.shared:
            for party in {party for party, _ in cells}:
                held = len({level for holder, level in cells if holder == party})
                levels_of[party] = max(levels_of.get(party, 0), held)
        return frozenset(party for party, held in levels_of.items() if held > 1)

    @cached_property
    def _content(self) -> tuple[Any, ...]:
        return tuple(self.sizes.items()), self.unit, self.names, self.shared, self.facts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Population) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)


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


def parts_by_level(parts: Sequence[Any]) -> dict[str, list[Part]]:
    """Return each level's parts, checked: ValueError names the party that is empty, or differs from the others.

    >>> sorted(parts_by_level([Levels(np.zeros(3), np.zeros(5))]))
    ['lower', 'upper']
    """
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
        raise ValueError(f"party {odd} differs from party 0: either all parties have Levels(upper, lower) or none has")
    if all(split):
        by_level = {level: [as_part(getattr(part, level)) for part in parts] for level in ("upper", "lower")}
    else:
        by_level = {SINGLE: [as_part(part) for part in parts]}
    for level, group in by_level.items():
        _check_group(level, group)
    if len({group[0].unit is None for group in by_level.values()}) > 1:  # a unit's records would be clipped one by one
        raise ValueError("one level names a privacy unit, the other does not: name it in both levels, or in neither")
    return by_level


def record_shapes(by_level: Mapping[str, Sequence[Part]]) -> dict[str, Any]:
    """Return the shapes and types of one record per level: public, and all that tracing a loss needs.

    >>> record_shapes(parts_by_level([np.zeros((5, 2), np.float32)]))
    {'records': ShapeDtypeStruct(shape=(2,), dtype=float32)}
    """
    return {level: jax.tree.map(_one_record, group[0].records) for level, group in by_level.items()}


def _names(by_level: Mapping[str, Sequence[Part]]) -> tuple[str, ...]:
    """Return the names that the parties' parts have; none if no part has one."""
    given = [{part.name for part in held if part.name is not None} for held in zip(*by_level.values())]
    if not any(given):
        return ()
    for party, names in enumerate(given):
        if len(names) != 1:
            said = f"two names, {' and '.join(sorted(names))}" if names else "no name, and others have one"
            raise ValueError(f"party {party} has {said}: give every party one name, sv.data.Part(..., name=...)")
    return tuple(name for names in given for name in names)


def _one_record(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(leaf)[1:], jax.dtypes.canonicalize_dtype(leaf.dtype))


def _are_numbers(data: Any) -> bool:
    def number(item: Any) -> bool:
        return isinstance(item, (int, np.integer)) or (isinstance(item, Levels) and number(item.upper))

    return isinstance(data, Sequence) and bool(data) and number(data[0])


def _by_level(sizes: Any) -> dict[str, tuple[int, ...]]:
    if isinstance(sizes, Mapping):
        if set(sizes) not in ({SINGLE}, {"upper", "lower"}):
            raise ValueError(f"sizes name the levels {sorted(sizes)}: give 'records', or 'upper' and 'lower'")
        return {level: tuple(int(count) for count in n) for level, n in sizes.items()}
    listed = list(sizes)
    if listed and isinstance(listed[0], Levels):
        return {level: tuple(int(getattr(part, level)) for part in listed) for level in ("upper", "lower")}
    return {SINGLE: tuple(int(count) for count in listed)}


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
        rows = np.asarray(part.rows)
        if len(np.unique(rows)) < len(rows) or rows.min() < 0:
            raise ValueError(f"party {number}{where} lists a row twice, or one below 0: each record counts once")
        if (part.unit is None) != (group[0].unit is None):
            raise ValueError(f"party {number}{where}: either every party names a privacy unit or none does")


def _shared(by_level: Mapping[str, Sequence[Part]]) -> set[frozenset[Cell]]:
    """Return the places of units that are held in several: across an agent's levels, and across agents.

    Records are the same where parts are views of one record set. Units go by their ids; two agents may use the same ids
    for different people, so between agents the ids must come from one column.
    """
    found: set[frozenset[Cell]] = set()
    if len(by_level) > 1:
        for party, held in enumerate(zip(*by_level.values())):
            sources = [id(part.records) if part.unit is None else 0 for part in held]
            if sources[0] == sources[1] and np.intersect1d(ids_of(held[0]), ids_of(held[1])).size:
                found.add(frozenset((party, level) for level in by_level))
    columns: dict[int, list[tuple[np.ndarray, Cell]]] = {}
    for level, group in by_level.items():
        for party, part in enumerate(group):
            source = id(part.records) if part.unit is None else id(part.unit)
            columns.setdefault(source, []).append((ids_of(part), (party, level)))
    for held_ids in columns.values():
        found |= _held_twice(held_ids)
    return found


def _held_twice(held: list[tuple[np.ndarray, Cell]]) -> set[frozenset[Cell]]:
    """Return the sets of cells that hold some id together, where they belong to several parties."""
    cells = [cell for _, cell in held]
    parties = np.array([party for party, _ in cells])
    ids = np.concatenate([own for own, _ in held])
    distinct, unit = np.unique(ids, return_inverse=True)
    if len(distinct) == len(ids):
        return set()
    where = np.repeat(np.arange(len(cells)), [len(own) for own, _ in held])
    pairs = np.stack(np.divmod(np.unique(unit.reshape(-1) * len(cells) + where), len(cells)), axis=1)
    holders = np.unique(pairs[:, 0] * (parties.max() + 1) + parties[pairs[:, 1]]) // (parties.max() + 1)
    several = np.flatnonzero(np.bincount(holders) > 1)
    if not several.size:
        return set()
    kept = pairs[np.isin(pairs[:, 0], several)]
    groups = np.split(kept[:, 1], np.flatnonzero(np.diff(kept[:, 0])) + 1)
    return {frozenset(cells[place] for place in group) for group in groups}


def ids_of(part: Part) -> np.ndarray:
    """Return the unit of each row of a part; a row is its own unit where no unit is named.

    >>> ids_of(Part(np.zeros(4), np.array([1, 3]), unit=np.array([7, 7, 8, 8]))).tolist()
    [7, 8]
    """
    return np.asarray(part.rows) if part.unit is None else np.asarray(part.unit)[part.rows]


def named(population: Population, parties: Iterable[int]) -> str:
    """Return the names of some parties, the first few of them.

    >>> named(Population([5, 5, 5], names=("north", "south", "east")), [0, 2])
    'north, east'
    """
    listed = [population.names[party] for party in parties]
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
