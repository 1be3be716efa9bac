"""Say whether the two levels of a party may hold records of the same unit: such a unit pays for both levels.

Values are never compared, because epsilon would then depend on the data. What counts is where records come from:

| the levels | a unit pays for |
|---|---|
| are different rows of one record set (`sv.data.levels` makes these) | its own level |
| name units, and no id is in both | its own level |
| are said to be disjoint: ``Levels(upper, lower, disjoint=True)`` | its own level |
| are anything else: nobody knows | both levels |

Levels that share memory hold the same records. If ids or `disjoint=True` say otherwise, they are refused.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import jax
import numpy as np

from sottovoce.data.parts import Part, ids_of

Apart = Literal["rows", "ids", "said", ""]  # how it is known that no unit is in both levels; "": it is not known
REASONS = {"rows": "different rows of one record set", "ids": "different unit ids", "said": "disjoint=True"}
_MOST_WORK = 10_000  # candidates that NumPy tries before two arrays count as sharing memory
_MOST_PAIRS = 100_000  # pairs of record sets that are compared before they count as sharing memory


def apart(upper: Part, lower: Part, said: bool, who: str) -> Apart:
    """Return how it is known that no unit is in both levels of a party; ValueError if disjoint=True is wrong.

    >>> pool, copy = np.zeros(9), np.zeros(9)
    >>> apart(Part(pool, np.arange(4)), Part(pool, np.arange(4, 9)), said=False, who="party 0")
    'rows'
    >>> apart(Part(pool, np.arange(4)), Part(copy, np.arange(4, 9)), said=False, who="party 0")
    ''
    """
    one_set = origin(upper) == origin(lower)
    shared = _rows_meet(upper, lower) if one_set else share_memory(upper.records, lower.records)
    if upper.unit is not None:
        common = np.intersect1d(ids_of(upper), ids_of(lower))
        if common.size and said:
            raise ValueError(
                f"{who}: {common.size} units are in both levels, which are given as disjoint=True: leave that out"
            )
        if not common.size and shared:
            raise ValueError(
                f"{who}: the levels hold the same records (they share memory), but different unit ids: give each "
                "record one id, the same in both levels"
            )
        return "" if common.size else "ids"
    if shared and said:
        raise ValueError(
            f"{who}: the levels are given as disjoint=True, but share memory: split one record set with "
            "sv.data.levels, or leave disjoint=True out, and records pay for both levels"
        )
    if one_set and not shared:
        return "rows"
    return "said" if said else ""


def origin(part: Part) -> tuple[Any, ...]:
    """Return what tells record sets apart: where in memory their arrays lie. It is for comparing only.

    >>> pool = np.zeros(9)
    >>> origin(Part({"a": pool}, np.arange(2))) == origin(Part({"a": pool[:]}, np.arange(5)))
    True
    """
    arrays = _arrays(part.records)
    places = [(array.ctypes.data, array.shape, array.strides, array.dtype.str) for array in arrays]
    return jax.tree.structure(part.records), *places


def share_memory(one: Any, other: Any) -> bool:
    """Say whether some array of one record set lies in the memory of the other: the same array, a view or a slice.

    >>> pool = np.zeros((9, 2))
    >>> share_memory({"a": pool[:5]}, {"b": pool[::-1]}), share_memory(pool[:5], pool[5:])
    (True, False)
    """
    return any(_meet(a, b) for a, b in itertools.product(_arrays(one), _arrays(other)))


def sharing(sets: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Return the numbers of record sets that share memory, in pairs; of very many interleaved ones all, unchecked.

    >>> pool = np.zeros((9, 2))
    >>> list(sharing([pool[:5], pool[5:], pool[3:4]]))
    [(0, 2)]
    """
    spans = sorted(
        (*np.lib.array_utils.byte_bounds(array), number)
        for number, records in enumerate(sets)
        for array in _arrays(records)
        if array.size
    )
    compared, open_ones = 0, list[tuple[int, int]]()  # (end, number) of spans that reach the current one
    found: set[tuple[int, int]] = set()
    for start, end, number in spans:
        open_ones = [(other_end, other) for other_end, other in open_ones if other_end > start]
        for _, other in open_ones:
            pair = (min(number, other), max(number, other))
            if number != other and pair not in found:
                compared += 1
                if compared > _MOST_PAIRS or share_memory(sets[number], sets[other]):
                    found.add(pair)
        open_ones.append((end, number))
    yield from sorted(found)


def _rows_meet(one: Part, other: Part) -> bool:
    if np.intersect1d(one.rows, other.rows).size:
        return True
    return any(_overlapping(array) for array in _arrays(one.records))


def one_row(records: Any) -> bool:
    """Say whether all rows of a record set are one row in memory, as `np.broadcast_to` makes them.

    >>> one_row({"a": np.broadcast_to(1.0, 5)}), one_row({"a": np.zeros(5), "weight": np.broadcast_to(1.0, 5)})
    (True, False)
    """
    return all(len(array) > 1 and array.strides[0] == 0 for array in _arrays(records))


def _overlapping(array: np.ndarray) -> bool:
    """Say whether different rows of an array may share memory, as sliding windows do; a constant column may."""
    steps = [(abs(step), count) for step, count in zip(array.strides, array.shape) if count > 1 and step]
    reach = array.itemsize
    for step, count in sorted(steps):
        if step < reach:
            return array.strides[0] != 0
        reach += step * (count - 1)
    return False


def _meet(one: np.ndarray, other: np.ndarray) -> bool:
    if one is other:
        return bool(one.size)
    try:
        return bool(np.shares_memory(one, other, max_work=_MOST_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _arrays(records: Any) -> list[np.ndarray]:
    return [leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf) for leaf in jax.tree.leaves(records)]
