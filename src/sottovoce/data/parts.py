"""Hold a party's records as a view into a shared record set.

>>> Part({"label": np.array([3, 1, 4])}, rows=np.array([0, 2])).gather()["label"].tolist()
[3, 4]
"""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from sottovoce.shown import Shown

Records = dict[str, Any]  # a record set by column, for example {"features": ..., "label": ...}


@dataclass(frozen=True)
class Bought:
    """State what one purchase of noisy counts cost: under its `name`, which no other purchase has, it is charged once.

    `gaussian` is the Gaussian term of all its counts together, under zero-out adjacency: (sensitivity / noise)^2.
    `delta` is the chance that a list shows a `unit`. `simulated` says that a seed drew the noise.
    """

    name: str
    gaussian: float
    delta: float = 0.0
    unit: str = "record"
    simulated: bool = False


@dataclass(frozen=True)
class Facts:
    """State what is publicly known about the records of a table, and what was paid to know it.

    `norm` bounds the L2 norm of each record's features, `unit` says what a privacy unit is called, `words` list for a
    report what was declared, read off the records, or bought. An account charges each purchase in `bought`.

    >>> Facts(norm=2.0).bought
    ()
    """

    norm: float | None = None
    unit: str | None = None
    words: tuple[str, ...] = ()
    bought: tuple[Bought, ...] = ()

    @property
    def simulated(self) -> bool:
        """Say whether a seed drew the noise of some purchase."""
        return any(one.simulated for one in self.bought)

    @classmethod
    def together(cls, each: Iterable["Facts"]) -> "Facts":
        """Return what is known of the records of several parties, each of which may have a table of its own.

        All purchases are listed, each one once; a `Population` knows which party pays for which.

        >>> one, other = (Facts(bought=(Bought(name, 0.01),)) for name in ("counts a", "counts b"))
        >>> [bought.name for bought in Facts.together([one, other, one]).bought]
        ['counts a', 'counts b']
        """
        known = list(dict.fromkeys(each))
        if len(known) == 1:
            return known[0]
        units = sorted({facts.unit for facts in known if facts.unit is not None})
        if len(units) > 1:
            raise ValueError(f"parties protect different units ({' and '.join(units)}): name one unit in all tables")
        norms = [facts.norm for facts in known]
        bounds = [norm for norm in norms if norm is not None]
        return cls(
            norm=max(bounds) if len(bounds) == len(norms) else None,
            unit=units[0] if units else None,
            words=tuple(dict.fromkeys(line for facts in known for line in facts.words)),
            bought=tuple(dict.fromkeys(one for facts in known for one in facts.bought)),
        )


NO_FACTS = Facts()
_PAID_FOR: dict[int, tuple["weakref.ref[np.ndarray]", Facts]] = {}  # by the id of an array that lives


def note_purchases(records: Any, facts: Facts) -> None:
    """Remember what was paid to know how these arrays are encoded: whoever makes parts of them by hand pays it too."""
    for leaf in jax.tree.leaves(records) if facts.bought else ():
        key = id(leaf)
        _PAID_FOR[key] = weakref.ref(leaf, lambda _, key=key: _PAID_FOR.pop(key, None)), facts  # type: ignore[misc]


def purchases_of(records: Any) -> list[Facts]:
    """Return what was paid for these arrays, or for those that they are views of."""
    found = []
    for leaf in jax.tree.leaves(records) if _PAID_FOR else ():
        while leaf is not None:
            held, facts = _PAID_FOR.get(id(leaf), (None, NO_FACTS))
            if held is not None and held() is leaf:
                found.append(facts)
            leaf = getattr(leaf, "base", None)
    return found


@dataclass(frozen=True, eq=False, repr=False)
class Part(Shown):
    """Select some rows of a record set: no record is copied until `gather`.

    `records` is a pytree whose leaves share their first axis, `rows` the positions that belong to this part, `unit`
    the whole record set's column of unit ids (one per record), or None when a record is its own unit. `name` says whose
    records they are: a ledger that is kept over several runs goes by it. `facts` are what is publicly known about the
    records of a declared table (`sottovoce.data.table`); what was bought for such arrays, or for arrays of which these
    are views, is among them always.

    >>> part = Part({"label": np.array([3, 1, 4, 1])}, np.array([0, 2]))
    >>> len(part), part.gather()["label"].tolist()
    (2, [3, 4])
    """

    records: Any
    rows: np.ndarray
    unit: np.ndarray | None = None
    name: str | None = None
    facts: Facts = NO_FACTS

    def __post_init__(self) -> None:
        for paid in purchases_of(self.records):
            if not set(paid.bought) <= set(self.facts.bought):
                words = tuple(dict.fromkeys((*self.facts.words, *paid.words)))
                bought = tuple(dict.fromkeys((*self.facts.bought, *paid.bought)))
                object.__setattr__(self, "facts", replace(self.facts, words=words, bought=bought))

    def _told(self) -> list[tuple[str, str]]:
        return [
            ("name", "none" if self.name is None else self.name),
            ("rows", f"{len(self)}"),
            ("records", f"arrays: {len(jax.tree.leaves(self.records))}"),
            ("protected", self.facts.unit or ("record" if self.unit is None else "unit with all its records")),
        ]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def units(self) -> int:
        """Return the number of privacy units in it."""
        return len(self) if self.unit is None else np.unique(np.asarray(self.unit)[self.rows]).size

    def gather(self) -> Any:
        """Copy the part's own records into a pytree of new arrays."""
        return jax.tree.map(lambda leaf: leaf[self.rows], self.records)


@dataclass(frozen=True, eq=False, repr=False)
class Levels(Shown):
    """Give a party's records to the two levels of a bilevel problem: upper for validation, lower for training.

    With `disjoint=True` you say that no unit has records in both levels, and that who is where was decided without
    looking at values. Each unit then pays for its own level. You need not say it of levels made by `sv.data.levels`, or
    where units have ids. For other levels it is not known, so a unit pays for both (`sottovoce.data.overlap`).

    >>> Levels(np.zeros(3), np.ones(5), disjoint=True).disjoint
    True
    """

    upper: Part
    lower: Part
    disjoint: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.disjoint, bool):
            raise TypeError(f"disjoint is {self.disjoint!r}: give True or False")


def ids_of(part: Part) -> np.ndarray:
    """Return the unit of each row of a part; a row is its own unit where no unit is named.

    >>> ids_of(Part(np.zeros(4), np.array([1, 3]), unit=np.array([7, 7, 8, 8]))).tolist()
    [7, 8]
    """
    return np.asarray(part.rows) if part.unit is None else np.asarray(part.unit)[part.rows]
