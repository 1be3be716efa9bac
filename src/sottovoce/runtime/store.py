"""The agents' records as the compiled run holds them: one pool, and for each agent where its rows are.

Parts that are views of one record set share that set: no record is copied per agent, and unequal sizes cost nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.data.parts import Levels, Part
from sottovoce.trees import Tree


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Store:
    """Records of one level for a group of agents.

    `order` lists pool rows, agent after agent; with a privacy unit each entry is a unit's rows, padded, and `filled`
    says which of them are real. `starts` is each agent's first entry.
    """

    pool: Tree
    order: jax.Array
    filled: jax.Array | None
    starts: jax.Array

    def gather(self, start: jax.Array, rows: jax.Array) -> Tree:
        """The records (or units) at an agent's local rows; rows beyond the end give some record, to be masked."""
        entries = jnp.minimum(start + rows, self.order.shape[0] - 1)
        records = jax.tree.map(lambda leaf: leaf[self.order[entries]], self.pool)
        return records if self.filled is None else (records, self.filled[entries])

    def lift(self, fn: Callable[[Tree, Any], jax.Array]) -> Callable[[Tree, Any], jax.Array]:
        """A function of one record as a function of one unit: the mean over the unit's records."""
        if self.filled is None:
            return fn

        def of_unit(at: Tree, unit: tuple[Tree, jax.Array]) -> jax.Array:
            records, filled = unit
            values = jax.vmap(fn, (None, 0))(at, records)
            return jnp.sum(jnp.where(filled, values, 0.0)) / jnp.sum(filled)

        return of_unit


@dataclass(frozen=True)
class Layout:
    """All agents' stores by level, and their sizes, counted in units."""

    stores: Mapping[str, Store]
    sizes: Mapping[str, np.ndarray]
    unit: str
    shared_units: bool = False  # a unit has records in both levels, so it pays for both
    spread: bool = False  # a unit has records with several agents

    @property
    def agents(self) -> int:
        """How many agents there are."""
        return len(next(iter(self.sizes.values())))

    @property
    def facts(self) -> dict[str, Any]:
        """What `account` and `calibrate` ask of the records, as their keywords."""
        return {name: getattr(self, name) for name in ("sizes", "unit", "shared_units", "spread")}

    def example(self) -> dict[str, Tree]:
        """One record of each level, to try a loss on."""
        return {level: jax.tree.map(lambda leaf: leaf[0], store.pool) for level, store in self.stores.items()}


def as_part(records: Any) -> Part:
    """A part from a part or from a plain record set."""
    if isinstance(records, Part):
        return records
    leaves = jax.tree.leaves(records)
    if not leaves or not all(hasattr(leaf, "dtype") for leaf in leaves):
        raise ValueError("a party's record set must be arrays that share their first axis, alone or in a dict or tuple")
    if any(leaf.dtype.kind in "OUS" for leaf in leaves):
        raise ValueError("records must be numbers: encode text and categories first (sv.data.categories)")
    lengths = {np.shape(leaf)[:1] for leaf in leaves}
    if len(lengths) != 1 or () in lengths:
        shapes = [np.shape(leaf) for leaf in leaves]
        raise ValueError(f"a record set's arrays must share their first axis; got shapes {shapes}")
    return Part(records, np.arange(lengths.pop()[0]))


def lay_out(parts: Sequence[Any], agents: range | None = None) -> Layout:
    """Arrange parts for the run; with `agents`, the stores hold only those agents' records (sizes stay everyone's).

    Raises ValueError naming the party that is empty, of another kind, or holds records of another shape.
    """
    by_level = _by_level(parts)
    kept = list(agents) if agents is not None else list(range(len(parts)))
    return Layout({level: _build(group, kept) for level, group in by_level.items()}, **_facts(by_level))


def facts(parts: Sequence[Any]) -> dict[str, Any]:
    """What `account` asks of the records, without arranging them.

    >>> pool = np.arange(10.0)
    >>> facts([Levels(Part(pool, np.arange(4)), Part(pool, np.arange(3, 10)))])["shared_units"]    # row 3 is in both
    True
    """
    return _facts(_by_level(parts))


def _by_level(parts: Sequence[Any]) -> dict[str, list[Part]]:
    if isinstance(parts, Mapping):
        raise ValueError("parts is one record set: give a list, one record set per agent ([records] for one agent)")
    if not len(parts):
        raise ValueError("there are no parties: give one record set per agent")
    split = [isinstance(part, Levels) for part in parts]
    if any(split) and not all(split):
        odd = split.index(not split[0])
        raise ValueError(f"party {odd} differs from party 0: either all parties have Levels(upper, lower) or none has")
    if all(split):
        by_level = {level: [as_part(getattr(part, level)) for part in parts] for level in ("upper", "lower")}
    else:
        by_level = {"records": [as_part(part) for part in parts]}
    for level, group in by_level.items():
        _check_group(level, group)
    return by_level


def _facts(by_level: Mapping[str, list[Part]]) -> dict[str, Any]:
    groups = list(by_level.values())
    by_agent = list(zip(*groups))
    return {
        "sizes": {level: np.array([part.units for part in group]) for level, group in by_level.items()},
        "unit": "record" if groups[0][0].unit is None else "unit",
        "shared_units": len(groups) > 1 and any(_overlap(parts) for parts in by_agent),
        "spread": _overlap([part for group in groups for part in group], by_agent=len(groups[0])),
    }


def _check_group(level: str, group: list[Part]) -> None:
    where = "" if level == "records" else f" ({level} level)"
    reference = jax.tree.map(lambda leaf: (np.shape(leaf)[1:], np.asarray(leaf[:0]).dtype), group[0].records)
    for number, part in enumerate(group):
        if len(part) == 0:
            raise ValueError(f"party {number}{where} has no records: leave it out or give it some")
        if part.records is not group[0].records:
            shapes = jax.tree.map(lambda leaf: (np.shape(leaf)[1:], np.asarray(leaf[:0]).dtype), part.records)
            if shapes != reference:
                raise ValueError(
                    f"party {number}{where} holds records of shapes {shapes}, party 0 of {reference}: they must agree"
                )
        rows = np.asarray(part.rows)
        if len(np.unique(rows)) < len(rows) or rows.min() < 0:
            raise ValueError(f"party {number}{where} lists a row twice, or one below 0: each record counts once")
        if (part.unit is None) != (group[0].unit is None):
            raise ValueError(f"party {number}{where}: either every party names a privacy unit or none does")


def _build(group: list[Part], kept: list[int]) -> Store:
    pool, rows = _pool([group[i] for i in kept])
    sizes = np.array([part.units for part in group])
    starts = np.concatenate([[0], np.cumsum(sizes[kept])[:-1]])
    if group[0].unit is None:
        order, filled = np.concatenate(rows), None
    else:
        units = [unit for i, own in zip(kept, rows) for unit in _by_unit(_ids(group[i]), own)]
        width = max(len(unit) for unit in units)
        order = np.stack([np.pad(unit, (0, width - len(unit)), mode="edge") for unit in units])
        filled = jnp.arange(width) < jnp.asarray([len(unit) for unit in units])[:, None]
    return Store(pool, jnp.asarray(order, jnp.int32), filled, jnp.asarray(starts, jnp.int32))


def _pool(group: list[Part]) -> tuple[Tree, list[np.ndarray]]:
    """One record set for all, and each part's rows in it: the shared set if there is one, else theirs end to end."""
    shared = group[0].records
    if all(part.records is shared for part in group) and sum(map(len, group)) == len(jax.tree.leaves(shared)[0]):
        return jax.tree.map(jnp.asarray, shared), [np.asarray(part.rows) for part in group]
    own = [part.gather() for part in group]
    pool = jax.tree.map(lambda *leaves: jnp.concatenate([jnp.asarray(leaf) for leaf in leaves]), *own)
    return pool, np.split(np.arange(sum(map(len, group))), np.cumsum([len(part) for part in group])[:-1])


def _ids(part: Part) -> np.ndarray:
    """Which unit each of its rows belongs to; a row is its own unit where none is named."""
    return np.asarray(part.rows) if part.unit is None else np.asarray(part.unit)[part.rows]


def _by_unit(ids: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
    """Rows gathered unit by unit."""
    _, which = np.unique(ids, return_inverse=True)
    return np.split(rows[np.argsort(which, kind="stable")], np.cumsum(np.bincount(which))[:-1])


def _overlap(parts: Sequence[Part], by_agent: int | None = None) -> bool:
    """Whether some unit is in two of the parts; with `by_agent`, in two that belong to different agents.

    Records are the same where parts are views of one record set. Units go by their ids; two agents may use the same ids
    for different people, so theirs must come from one column.
    """
    pools: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for number, part in enumerate(parts):
        ids = _ids(part)
        holder = np.full(len(ids), number if by_agent is None else number % by_agent)
        source = id(part.records) if part.unit is None else 0 if by_agent is None else id(part.unit)
        pools.setdefault(source, []).append((ids, holder))
    for held in pools.values():
        every_id, holders = (np.concatenate(column) for column in zip(*held))
        distinct, place = np.unique(every_id, return_inverse=True)
        if np.unique(place * len(parts) + holders).size > distinct.size:  # a pair of unit and holder as one number
            return True
    return False
