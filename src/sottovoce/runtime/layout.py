"""Lay out the agents' records for a run: per level one sealed pool, and for each agent where its rows are.

Parts that are views of one record set share that set: no record is copied per agent, and unequal sizes cost nothing.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.data.parties import Parties
from sottovoce.data.parts import Part, ids_of
from sottovoce.data.population import Population
from sottovoce.data.sealed import Sealed
from sottovoce.runtime.spread import Spread
from sottovoce.trees import Tree


@dataclass(frozen=True)
class Layout:
    """Hold sealed records by level, whose they are, and who takes part."""

    sealed: Mapping[str, Sealed]
    population: Population
    agents: range  # whose records are held here


def lay_out(
    parts: Sequence[Any] | Parties, agents: range | None = None, population: Population | None = None
) -> Layout:
    """Arrange parts for a run; with `agents`, only the records of those agents are held (sizes stay everyone's).

    `population` is who takes part, where it is known already.

    Raises ValueError naming the party that is empty, of another kind, or holds records of another shape.

    >>> layout = lay_out([np.zeros((5, 2)), np.zeros((3, 2))])
    >>> layout.population.sizes
    {'records': (5, 3)}
    """
    parties = Parties.of(parts)
    known = population or Population.of(parties)
    kept = range(known.parties) if agents is None else agents
    sealed = {level: _seal(group[kept.start : kept.stop], group[0]) for level, group in parties.by_level.items()}
    return Layout(sealed, known, kept)


def _seal(group: list[Part], like: Part) -> Sealed:
    if not group:  # nobody's records: one empty record, so that shapes are known
        nothing = jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape[1:]), leaf.dtype), like.records)
        shape = (1,) if like.unit is None else (1, 1)
        filled = None if like.unit is None else jnp.zeros(shape, bool)
        return Sealed(nothing, jnp.zeros(shape, jnp.int32), filled, jnp.zeros(0, jnp.int32))
    pool, rows = _pool(group)
    if group[0].unit is None:
        order, filled = np.concatenate(rows), None
        sizes = [len(part) for part in group]
    else:
        by_part = [_by_unit(ids_of(part), own) for part, own in zip(group, rows)]
        units, sizes = [unit for own in by_part for unit in own], [len(own) for own in by_part]
        width = max(len(unit) for unit in units)
        order = np.stack([np.pad(unit, (0, width - len(unit)), mode="edge") for unit in units])
        filled = jnp.asarray(np.arange(width) < np.asarray([len(unit) for unit in units])[:, None])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32)
    in_turn = filled is None and np.array_equal(order, np.arange(len(jax.tree.leaves(pool)[0])))
    return Sealed(pool, jax.device_put(order.astype(np.int32)), filled, jax.device_put(starts), in_turn)


def _pool(group: list[Part]) -> tuple[Tree, list[np.ndarray]]:
    """Return one record set for all, and each part's rows in it: the shared set if there is one, else theirs in turn.

    Records are put together by NumPy: the compiler would make a program for every list of sizes.
    """
    shared = group[0].records
    if all(part.records is shared for part in group) and sum(map(len, group)) == len(jax.tree.leaves(shared)[0]):
        return jax.tree.map(jax.device_put, shared), [np.asarray(part.rows) for part in group]
    own = [part.records if _is_whole(part) else part.gather() for part in group]
    pool = jax.tree.map(lambda *leaves: jax.device_put(_joined([np.asarray(leaf) for leaf in leaves])), *own)
    return pool, np.split(np.arange(sum(map(len, group))), np.cumsum([len(part) for part in group])[:-1])


def _is_whole(part: Part) -> bool:
    """Say whether a part is all of its record set, in order."""
    return np.array_equal(part.rows, np.arange(len(jax.tree.leaves(part.records)[0])))


def _joined(leaves: list[np.ndarray]) -> np.ndarray:
    """Put arrays together in memory that JAX can take over as it is on a processor: its start is a multiple of 64."""
    kind = jax.dtypes.canonicalize_dtype(np.result_type(*leaves))
    shape = (sum(len(leaf) for leaf in leaves), *leaves[0].shape[1:])
    size = math.prod(shape) * kind.itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return np.concatenate(leaves, out=raw[start : start + size].view(kind).reshape(shape), casting="same_kind")


def _by_unit(ids: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
    """Return rows gathered unit by unit."""
    _, which = np.unique(ids, return_inverse=True)
    return np.split(rows[np.argsort(which, kind="stable")], np.cumsum(np.bincount(which))[:-1])


def shard(sealed: Sealed, sizes: np.ndarray, spread: Spread, devices: range, width: int = 0) -> Sealed:
    """Return one sealed set per device, of equal shapes (padded), stacked: each holds its own agents' records alone.

    `sealed` holds the agents of `devices`, `sizes` are everyone's; `width` is that of the longest unit anywhere.

    >>> whole = lay_out([np.zeros((5, 2)), np.zeros((3, 2))]).sealed["records"]
    >>> shard(whole, np.array([5, 3]), Spread(2, devices=2), range(2)).order.shape
    (2, 5)
    """
    order, first = np.asarray(sealed.order), spread.of(devices).start
    ends = np.concatenate([[0], np.cumsum(sizes)])
    bounds = [(int(ends[own.start]), int(ends[own.stop])) for own in map(spread.of_one, range(spread.devices))]
    longest = max(stop - start for start, stop in bounds)
    shape = (longest, *([max(width, order.shape[1])] if order.ndim > 1 else []))

    def padded(held: np.ndarray, start: int, stop: int, **how: Any) -> np.ndarray:
        own = held[start - ends[first] : stop - ends[first]] if stop > start else held[:1]
        return np.pad(own, [(0, room - have) for room, have in zip(shape, own.shape)], **how)

    mine = [bounds[device] for device in devices]
    rows = [padded(order, *bound, mode="edge").reshape(-1) for bound in mine]
    pool = jax.tree.map(lambda leaf: _rows(np.asarray(leaf), rows), sealed.unseal())
    renumbered = np.stack([np.arange(np.prod(shape), dtype=np.int32).reshape(shape)] * len(mine))
    mask = None if sealed.filled is None else np.asarray(sealed.filled)
    filled = None if mask is None else np.stack([padded(mask, *bound) for bound in mine])
    starts = np.zeros((len(mine), spread.per), np.int32)
    for place, device in enumerate(devices):
        own = spread.of_one(device)
        starts[place, : len(own)] = ends[own.start : own.stop] - ends[own.start]
    rest = cast(tuple[Any, Any, Any], (renumbered, filled, starts))  # the caller puts them on devices
    return Sealed(pool, *rest, filled is None)


def _rows(leaf: np.ndarray, rows: list[np.ndarray]) -> np.ndarray:
    """Return the rows of each device, stacked: copied once, or not at all where one device takes them as they lie."""
    if len(rows) == 1 and np.array_equal(rows[0], np.arange(rows[0][0], rows[0][0] + rows[0].size)):
        return leaf[None, rows[0][0] : rows[0][0] + rows[0].size]
    stacked = np.empty((len(rows), rows[0].size, *leaf.shape[1:]), leaf.dtype)
    for own, wanted in zip(stacked, rows):
        np.take(leaf, wanted, axis=0, out=own, mode="clip")
    return stacked


def alone(sealed: Sealed, agent: int, size: int) -> Sealed:
    """Return one agent's records out of a set that all share: nobody else's are held.

    >>> whole = lay_out([np.zeros((5, 2)), np.zeros((3, 2))]).sealed["records"]
    >>> alone(whole, agent=1, size=3).order.tolist()
    [0, 1, 2]
    """
    start = int(sealed.starts[agent])
    rows = sealed.order[start : start + size]
    filled = None if sealed.filled is None else sealed.filled[start : start + size]
    pool = jax.tree.map(lambda leaf: leaf[rows.reshape(-1)], sealed.unseal())
    order = jnp.arange(rows.size, dtype=jnp.int32).reshape(rows.shape)
    return Sealed(pool, order, filled, jnp.zeros((), jnp.int32), filled is None)


def own_digests(layout: Layout) -> list[bytes]:
    """Return a digest of the own records of each agent that is held here, for keys only: it is never stored.

    >>> one, other = own_digests(lay_out([np.zeros((5, 2)), np.ones((5, 2))]))
    >>> one == other
    False
    """
    found = [hashlib.sha256() for _ in layout.agents]
    for level, sealed in sorted(layout.sealed.items()):
        leaves, order = [np.asarray(leaf) for leaf in jax.tree.leaves(sealed.unseal())], np.asarray(sealed.order)
        counts = layout.population.counts[level][layout.agents.start : layout.agents.stop]
        for sha, stop, count in zip(found, np.cumsum(counts), counts):
            rows, lengths = order[stop - count : stop], ()
            if sealed.filled is not None:  # padding depends on who else is held here
                filled = np.asarray(sealed.filled)[stop - count : stop]
                rows, lengths = rows[filled], tuple(filled.sum(axis=1).tolist())
            sha.update(f"{level}{rows.shape}{lengths}".encode())  # the same rows in other levels or units: other data
            own = slice(stop - count, stop) if sealed.in_turn else rows
            for leaf in leaves:
                sha.update(np.ascontiguousarray(leaf[own]).reshape(-1).view(np.uint8).data)
    return [sha.digest() for sha in found]
