"""Say who takes part: the parties' names, how many records (or units) each holds, and which units are held twice.

Example: three hospitals with 400, 300 and 50 patients are `Population([400, 300, 50], unit="patient")`. All of it is
public, and it is all that an account needs to know about the data: no record is read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import jax
import numpy as np

from sottovoce.closed import Closed, require
from sottovoce.data import overlap
from sottovoce.data.parties import SINGLE, Parties
from sottovoce.data.parts import NO_FACTS, Bought, Facts, Levels, Part, ids_of

Cell = tuple[int, str]  # a party's number and a level


@dataclass(frozen=True, eq=False)
class Population(Closed):
    """Describe the parties of a run by public facts: their names, and how many units each of them holds.

    Args:
        sizes: how many units each party holds: a list of numbers, a list of ``Levels(upper, lower)`` of numbers, or a
            mapping from level to list.
        unit: whose data is protected: "record", or what the ids name ("patient", ...).
        names: one name per party; "0", "1" and so on by default. A ledger goes by names over several runs: a name must
            stand for the same holder of the same records in each. A number is no name to a ledger.
        shared: for each unit with records in several places, these places: pairs (party number, level). Example:
            ``{((0, "upper"), (1, "upper"))}`` says that some unit has records with parties 0 and 1.
        apart: per party, how it is known that no unit is in both of its levels (`sottovoce.data.overlap`). It is read
            off the parts, or off ``Levels(100, 900, disjoint=True)``. Where it is not known, a unit pays for both.
        facts: what else is known about the records, and what was paid to know it (`sottovoce.data.table`).
        record: one record, or its shapes (``jax.ShapeDtypeStruct``); where the levels differ, a mapping from level to
            record. An account needs it to look at a problem; values are not kept.
        purchases: by level, what each party has bought. It is read off the parts; by default every party has bought, in
            every level, what `facts` list.

    >>> Population([400, 300, 50]).parties
    3
    >>> [Population([Levels(100, 900, disjoint=said)]).in_both_levels(0) for said in (False, True)]
    [True, False]
    """

    sizes: Any
    unit: str = "record"
    names: tuple[str, ...] = ()
    shared: Any = frozenset()
    apart: tuple[overlap.Apart, ...] = ()
    facts: Facts = NO_FACTS
    record: Any = None
    purchases: Any = None

    def __post_init__(self) -> None:
        require("unit", self.unit, (str,))
        require("facts", self.facts, (Facts,))
        if isinstance(self.names, str) or not all(isinstance(name, str | Integral) for name in self.names):
            raise TypeError(f"names are {self.names!r}: give a text per party, such as ('north', 'south')")
        sizes, apart = _by_level(self.sizes), self.apart or _said(self.sizes)
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
        object.__setattr__(self, "record", jax.tree.map(_shape_of, self.record))
        object.__setattr__(self, "apart", tuple(apart) or ("",) * count)
        if len(self.apart) != count or not {*self.apart} <= {*overlap.REASONS, ""}:
            raise ValueError(f"apart is {self.apart}: give one of {sorted(overlap.REASONS)}, or '', per party")
        purchases = self.purchases or dict.fromkeys(sizes, (self.facts.bought,) * count)
        object.__setattr__(self, "purchases", {level: tuple(each) for level, each in purchases.items()})
        self._check_purchases()
        for party in self._seen_twice:
            if self.apart[party]:
                raise ValueError(
                    f"party {names[party]}: shared names a {self.unit} in both levels, which are given as disjoint: "
                    "leave one of them out"
                )

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
        parties = Parties.of(data)
        by_level = parties.by_level
        first = next(iter(by_level.values()))[0]
        facts = Facts.together(part.facts for group in by_level.values() for part in group)
        return cls(
            {level: [part.units for part in group] for level, group in by_level.items()},
            unit="record" if first.unit is None else facts.unit or "unit",
            names=_names(by_level),
            shared=_shared(by_level),
            apart=_apart(parties),
            facts=facts,
            purchases={level: [part.facts.bought for part in group] for level, group in by_level.items()},
        )

    def _check_purchases(self) -> None:
        if {level: len(each) for level, each in self.purchases.items()} != dict.fromkeys(self.sizes, self.parties):
            raise ValueError("purchases are not those of these levels and parties: give every level one per party")
        for one in (one for each in self.purchases.values() for held in each for one in held):
            if one.unit != self.unit:
                raise ValueError(
                    f"noisy counts were bought per {one.unit}, and the run protects each {self.unit}: one {self.unit} "
                    f"may move several counts. Read the table with the same unit, sv.data.table(..., unit=...)"
                )

    @property
    def parties(self) -> int:
        """Return how many parties there are."""
        return len(self.names)

    def bought(self, party: int, levels: Iterable[str]) -> tuple[Bought, ...]:
        """Return the purchases that one unit with records in a party's `levels` took part in, each one once."""
        return tuple(dict.fromkeys(one for level in levels for one in self.purchases[level][party]))

    @cached_property
    def counts(self) -> dict[str, np.ndarray]:
        """Return the sizes as arrays."""
        return {level: np.asarray(n, dtype=np.int64) for level, n in self.sizes.items()}

    @property
    def records(self) -> dict[str, Any]:
        """Return the shapes of one record per level; nothing where they were not given."""
        if self.record is None:
            return {}
        by_level = isinstance(self.record, Mapping) and set(self.record) == set(self.sizes)
        return dict(self.record) if by_level else dict.fromkeys(self.sizes, self.record)

    def in_both_levels(self, party: int) -> bool:
        """Say whether some unit of this party has, or may have, records in both levels, so that it pays for both."""
        return len(self.sizes) > 1 and not self.apart[party]

    def seen_in_both_levels(self, party: int) -> bool:
        """Say whether it is known that some unit of this party has records in both levels."""
        return party in self._seen_twice

    @cached_property
    def spread(self) -> bool:
        """Say whether some unit has records with several parties: epsilon then covers what one party holds of it."""
        return any(len({party for party, _ in cells}) > 1 for cells in self.shared)

    @cached_property
    def _seen_twice(self) -> frozenset[int]:
        levels_of: dict[int, int] = {}
        for cells in self.shared:
            for party in {party for party, _ in cells}:
                held = len({level for holder, level in cells if holder == party})
                levels_of[party] = max(levels_of.get(party, 0), held)
        return frozenset(party for party, held in levels_of.items() if held > 1)

    @cached_property
    def _content(self) -> tuple[Any, ...]:
        leaves, structure = jax.tree.flatten(self.record)
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
        held = tuple(self.sizes.items()), tuple(self.purchases.items()), shapes, structure
        return *held, self.unit, self.names, self.shared, self.apart, self.facts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Population) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)


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


def _shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.canonicalize_dtype(dtype))


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


def _shared(by_level: Mapping[str, Sequence[Part]]) -> set[frozenset[Cell]]:
    """Return the places of units that are held in several: across an agent's levels, and across agents.

    Units go by their ids: equal ids are one unit, whichever column they stand in. A record goes by its row where parts
    are views of one record set; of record sets that share memory, all records count as held twice.
    """
    cells = [(part, (party, level)) for level, group in by_level.items() for party, part in enumerate(group)]
    if cells[0][0].unit is not None:
        return _held_twice([(ids_of(part), cell) for part, cell in cells])
    sets: dict[Any, list[tuple[Part, Cell]]] = {}
    for part, cell in cells:
        sets.setdefault(overlap.origin(part), []).append((part, cell))
    found = {places for held in sets.values() for places in _held_twice([(ids_of(part), at) for part, at in held])}
    distinct = list(sets.values())
    for pair in overlap.sharing([held[0][0].records for held in distinct]):
        one, other = ([cell for _, cell in distinct[number]] for number in pair)
        found |= {frozenset({a, b}) for a in one for b in other if a[0] != b[0]}  # a party's levels: see `_apart`
    return found


def _apart(parties: Parties) -> tuple[overlap.Apart, ...]:
    """Return per party how it is known that no unit is in both levels."""
    if len(parties.by_level) == 1:
        return ()
    held = zip(parties.by_level["upper"], parties.by_level["lower"], parties.disjoint, strict=True)
    return tuple(overlap.apart(up, low, said, f"party {k}") for k, (up, low, said) in enumerate(held))


def _said(sizes: Any) -> tuple[overlap.Apart, ...]:
    """Return per party whether its levels, given by their sizes, are declared to be disjoint."""
    if isinstance(sizes, Mapping) or not any(isinstance(size, Levels) for size in sizes):
        return ()
    return tuple("said" if size.disjoint else "" for size in sizes)


def _held_twice(held: list[tuple[np.ndarray, Cell]]) -> set[frozenset[Cell]]:
    """Return the sets of cells that hold some id together."""
    cells = [cell for _, cell in held]
    ids = np.concatenate([own for own, _ in held])
    distinct, unit = np.unique(ids, return_inverse=True)
    if len(distinct) == len(ids):
        return set()
    where = np.repeat(np.arange(len(cells)), [len(own) for own, _ in held])
    pairs = np.stack(np.divmod(np.unique(unit.reshape(-1) * len(cells) + where), len(cells)), axis=1)
    several = np.flatnonzero(np.bincount(pairs[:, 0]) > 1)
    if not several.size:
        return set()
    kept = pairs[np.isin(pairs[:, 0], several)]
    groups = np.split(kept[:, 1], np.flatnonzero(np.diff(kept[:, 0])) + 1)
    return {frozenset(cells[place] for place in group) for group in groups}


def named(population: Population, parties: Iterable[int]) -> str:
    """Return the names of some parties, the first few of them.

    >>> named(Population([5, 5, 5], names=("north", "south", "east")), [0, 2])
    'north, east'
    """
    listed = [population.names[party] for party in parties]
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
