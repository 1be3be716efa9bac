"""Keep only some parties' records in memory: of the others, sizes and shapes stay.

A process of a cluster holds its own agents' records alone. Example: with ``held(parts, range(0, 2))`` the records of
the parties 0 and 1 are copied out of the set that all share, so that this set can be freed.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from sottovoce.data.parties import as_part
from sottovoce.data.parts import Levels, Part
from sottovoce.data.population import Population


def held(parts: Sequence[Any], parties: range) -> list[Any]:
    """Return the parts with the records of `parties` copied, and sets of the same shapes in place of all others'.

    ValueError if a unit has records both here and elsewhere: what it pays could no longer be seen.

    >>> pool = np.arange(6.0)
    >>> first, second = held([Part(pool, np.array([4, 0])), Part(pool, np.array([1, 2, 5]))], range(0, 1))
    >>> first.gather().tolist(), len(second), second.gather().tolist()
    ([4.0, 0.0], 3, [0.0, 0.0, 0.0])
    """
    flat = [_parts_of(part) for part in parts]
    own = _Copies([part for number in parties for part in flat[number]])
    others = _Copies([])
    kept = [
        _rebuilt(part, [(own if number in parties else others).of(one) for one in flat[number]])
        for number, part in enumerate(parts)
    ]
    if Population.of(kept) != Population.of(parts):
        raise ValueError(
            "some unit has records with parties of several processes: give the parties that share units to one "
            "process, or run in one process"
        )
    return kept


def elsewhere(records: Any) -> Any:
    """Return zeros of the same shapes, for records that another process holds.

    They take no memory as long as nobody touches them: the operating system gives pages when they are used.

    >>> elsewhere({"a": np.ones((2, 3), np.float32)})["a"].tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), records)


class _Copies:
    """Copy the rows of some parts out of shared sets; parts that shared a set still share its copy."""

    def __init__(self, parts: Sequence[Part]) -> None:
        rows: dict[int, list[np.ndarray]] = {}
        for part in parts:
            rows.setdefault(id(part.records), []).append(np.asarray(part.rows))
        self._rows = {source: np.unique(np.concatenate(own)) for source, own in rows.items()}
        self._sets: dict[int, Any] = {}
        self._units: dict[int, Any] = {}

    def of(self, part: Part) -> Part:
        """Return a part as a view of the copy, or of a set without content where no row was copied."""
        source, rows = id(part.records), self._rows.get(id(part.records))
        if rows is None:
            if source not in self._sets:
                self._sets[source] = elsewhere(part.records)
            return replace(part, records=self._sets[source])
        if source not in self._sets:
            self._sets[source] = jax.tree.map(lambda leaf: np.asarray(leaf)[rows], part.records)
        unit = part.unit
        if unit is not None:
            unit = self._units.setdefault(id(unit), np.asarray(unit)[rows])
        return replace(part, records=self._sets[source], rows=np.searchsorted(rows, part.rows), unit=unit)


def _parts_of(part: Any) -> list[Part]:
    return [as_part(part.upper), as_part(part.lower)] if isinstance(part, Levels) else [as_part(part)]


def _rebuilt(part: Any, made: list[Part]) -> Any:
    return replace(part, upper=made[0], lower=made[1]) if isinstance(part, Levels) else made[0]
