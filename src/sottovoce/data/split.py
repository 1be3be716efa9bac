"""Distribute a record set to parties, and a party's records to the two levels of a bilevel problem.

Everything here is a view: rows are assigned, no record is copied.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, overload

import jax
import numpy as np

from sottovoce.data.parts import NO_FACTS, Facts, Levels, Part
from sottovoce.naming import unknown

By = Literal["iid", "label", "dirichlet", "sizes"] | str
_WAYS = ("iid", "label", "dirichlet", "sizes")
_READS = ("label", "dirichlet")  # of these ways, the ones that read labels


def split(
    records: Any,
    agents: int | None = None,
    by: By = "iid",
    *,
    skew: float = 0.5,
    alpha: float = 0.5,
    sizes: Sequence[int] | None = None,
    seed: int = 0,
    unit: str | None = None,
    names: Sequence[str] | None = None,
) -> list[Part]:
    """Give every record to exactly one of `agents` parties.

    - `iid`: shuffled, with sizes as equal as possible;
    - `label`: the share `skew` of class i goes to agent i (modulo the number of agents), the rest of the class is
      spread evenly over the other agents, as in the heterogeneous experiments of the literature;
    - `dirichlet`: each class is divided in proportions drawn from a symmetric Dirichlet(`alpha`); a smaller alpha is
      more uneven;
    - `sizes`: shuffled, agent i gets `sizes[i]`;
    - the name of another column: its values say who holds a record, and are the parties' names. `agents` is left out.

    With `unit`, the name of a column of ids, units stay whole: a party has all records of a unit or none, sizes count
    units, and a unit's class is its most frequent label. `label` and `dirichlet` read the labels: they simulate
    parties, they do not protect anything, and every statement about these parts says so. `names`, one per party, are
    what a ledger knows the parties by.

    >>> records = {"features": np.zeros((180, 3)), "label": np.arange(180) % 10}
    >>> parts = split(records, agents=10, by="label", skew=0.5)
    >>> [len(part) for part in parts] == [18] * 10, int((parts[3].gather()["label"] == 3).sum())
    (True, 9)
    """
    total = _leading(records)
    if not isinstance(by, str):
        raise TypeError(f"by is of type {type(by).__name__}: give {', '.join(map(repr, _WAYS))}, or a column's name")
    if by not in _WAYS and isinstance(records, dict) and by in records:
        return _by_column(records, by, unit, agents)
    if agents is None:
        raise ValueError(f"by is {by!r}, so the number of parties is open: give agents=, or a column that names them")
    agents = int(agents)
    if agents < 1:
        raise ValueError(f"agents must be at least 1, got {agents}")
    if names is not None and (isinstance(names, str) or len(names) != agents or len(set(names)) != agents):
        raise ValueError(f"names are {names!r}: give {agents} different names, one per party")
    ids = None if unit is None else _column(records, unit, "unit")
    # Items are distributed: records, or units. `item` is the number of the item that a record belongs to.
    item = np.arange(total) if ids is None else np.unique(ids, return_inverse=True)[1].reshape(-1)
    count = int(item.max()) + 1
    rng = np.random.default_rng(seed)
    if by == "iid":
        owner = _by_sizes(count, [count // agents + (a < count % agents) for a in range(agents)], rng)
    elif by == "sizes":
        owner = _by_sizes(count, _checked_sizes(sizes, agents, count, unit), rng)
    elif by == "label":
        owner = _by_label(_item_labels(records, item, count), agents, skew, rng)
    elif by == "dirichlet":
        owner = _by_dirichlet(_item_labels(records, item, count), agents, alpha, rng)
    else:
        known = [*_WAYS, *(records if isinstance(records, dict) else ())]
        raise ValueError("by: " + unknown("way or column", by, known))
    held = np.bincount(owner, minlength=agents)
    if not held.all():
        empty = np.flatnonzero(held == 0).tolist()
        raise ValueError(
            f"agent {empty[0]} would get no {'record' if unit is None else 'unit'} ({len(empty)} of {agents} agents "
            f"empty, {count} to distribute): use fewer agents, a lower skew, a larger alpha, or another seed"
        )
    owner = owner[item]
    order = np.argsort(owner, kind="stable")
    rows = np.split(order, np.cumsum(np.bincount(owner, minlength=agents))[:-1])
    named = [None] * agents if names is None else [str(name) for name in names]
    facts = Facts(words=(_said(by),)) if by in _READS else NO_FACTS
    return [Part(records, part, ids, name, facts) for part, name in zip(rows, named)]


def _said(by: str) -> str:
    """Say what such a split lets everybody see: one label that changes moves other records to other parties."""
    return f"all labels are taken as public where rows were given to parties by them (by={by!r}), sizes of parties too"


def _by_column(records: Any, by: str, unit: str | None, agents: int | None) -> list[Part]:
    """Return one part per value of a column, named by it."""
    values, owner = np.unique(_column(records, by, "by"), return_inverse=True)
    if agents is not None and agents != len(values):
        raise ValueError(f"agents is {agents}, but the column {by!r} names {len(values)} parties: leave agents out")
    ids = None if unit is None else _column(records, unit, "unit")
    rows = [np.flatnonzero(owner.reshape(-1) == number) for number in range(len(values))]
    return [Part(records, own, ids, str(value)) for value, own in zip(values.tolist(), rows)]


@overload
def levels(parts: Part, upper: float = ..., seed: int = ...) -> Levels: ...
@overload
def levels(parts: Sequence[Part], upper: float = ..., seed: int = ...) -> list[Levels]: ...
def levels(parts: Part | Sequence[Part], upper: float = 0.2, seed: int = 0) -> Levels | list[Levels]:
    """Split a part, or each of several, into disjoint records for the upper (share `upper`) and the lower level.

    Guarantee: which records go where depends on `seed`, on how many there are and on their unit ids, never on another
    value; a unit goes to one level as a whole; both levels get at least one.

    >>> part, = split({"label": np.zeros(10, int)}, agents=1)
    >>> both = levels(part, upper=0.3)
    >>> len(both.upper), len(both.lower)
    (3, 7)
    """
    if not 0 < upper < 1:
        raise ValueError(f"upper is the share of records for the upper level, between 0 and 1; got {upper}")
    if isinstance(parts, Part):
        return _levels(parts, upper, (seed, 0), "the part")
    return [_levels(part, upper, (seed, a), f"agent {a}") for a, part in enumerate(parts)]


def _levels(part: Part, upper: float, seed: tuple[int, int], who: str) -> Levels:
    if part.unit is None:
        item = np.arange(len(part))
    else:
        item = np.unique(part.unit[part.rows], return_inverse=True)[1].reshape(-1)
    count = int(item.max()) + 1
    if count < 2:
        what = "record" if part.unit is None else "unit"
        raise ValueError(f"{who} has one {what}, two levels need two: use one set for both levels, or fewer agents")
    above = np.zeros(count, dtype=bool)
    above[np.random.default_rng(seed).permutation(count)[: min(max(round(upper * count), 1), count - 1)]] = True
    goes_up = above[item]
    return Levels(replace(part, rows=part.rows[goes_up]), replace(part, rows=part.rows[~goes_up]))


def _by_sizes(count: int, sizes: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(np.repeat(np.arange(len(sizes)), sizes))


def _by_label(labels: np.ndarray, agents: int, skew: float, rng: np.random.Generator) -> np.ndarray:
    if not 0 <= skew <= 1:
        raise ValueError(f"skew is the share of a class that goes to its agent, between 0 and 1; got {skew}")
    owner = np.empty(len(labels), dtype=int)
    spread = np.zeros(agents, dtype=int)  # what each agent got from other classes: remainders go to those with least
    for label in np.unique(labels):
        items = rng.permutation(np.flatnonzero(labels == label))
        home = int(label) % agents
        others = np.delete(np.arange(agents), home)
        stay = round(skew * len(items)) if others.size else len(items)
        owner[items[:stay]] = home
        if stay < len(items):
            in_turn = others[np.argsort(spread[others], kind="stable")]
            owner[items[stay:]] = np.resize(in_turn, len(items) - stay)
            spread += np.bincount(owner[items[stay:]], minlength=agents)
    return owner


def _by_dirichlet(labels: np.ndarray, agents: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    if not alpha > 0:
        raise ValueError(f"alpha must be positive, got {alpha}")
    owner = np.empty(len(labels), dtype=int)
    for label in np.unique(labels):
        items = rng.permutation(np.flatnonzero(labels == label))
        ends = np.round(np.cumsum(rng.dirichlet(np.full(agents, alpha))) * len(items)).astype(int)[:-1]
        for agent, share in enumerate(np.split(items, ends)):
            owner[share] = agent
    return owner


def _checked_sizes(sizes: Sequence[int] | None, agents: int, count: int, unit: str | None) -> list[int]:
    if sizes is None or len(sizes) != agents:
        raise ValueError(f'by="sizes" needs one size per agent: {agents}, got {0 if sizes is None else len(sizes)}')
    if min(sizes) < 0 or sum(sizes) != count:
        what = "records" if unit is None else "units"
        raise ValueError(f"the sizes must sum to the {count} {what} there are, but they sum to {sum(sizes)}")
    return [int(size) for size in sizes]


def _item_labels(records: Any, item: np.ndarray, count: int) -> np.ndarray:
    labels = _column(records, "label", "by")
    if not np.issubdtype(labels.dtype, np.integer) or labels.min(initial=0) < 0:
        raise ValueError('labels must be whole numbers from 0 on to split by them; use by="iid"')
    if count == len(labels):
        return labels
    tally = np.zeros((count, int(labels.max()) + 1), dtype=int)
    np.add.at(tally, (item, labels), 1)
    return tally.argmax(axis=1)


def _column(records: Any, name: str, option: str) -> np.ndarray:
    if not isinstance(records, dict) or name not in records:
        known = sorted(records) if isinstance(records, dict) else type(records).__name__
        raise ValueError(f"{option} needs a column {name!r} of the records, which have {known}")
    column = np.asarray(records[name])
    if column.ndim != 1:
        raise ValueError(f"the column {name!r} must hold one value per record, its shape is {column.shape}")
    return column


def _leading(records: Any) -> int:
    sizes = {leaf.shape[0] if getattr(leaf, "ndim", 0) else None for leaf in jax.tree.leaves(records)}
    if len(sizes) != 1 or None in sizes or 0 in sizes:
        raise ValueError(
            f"the leaves of a record set must share their first axis and not be empty, theirs are "
            f"{sorted(map(str, sizes))}: see sottovoce.data.check_records"
        )
    return int(sizes.pop())  # type: ignore[arg-type]
