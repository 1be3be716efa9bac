"""Read a site's own part of the data, and make stand-ins for the others' parts, of which only sizes are known.

Example: site "south" holds 300 records and was told that "north" has 400. The list of parts that an account and a trace
take then has zeros of the right shapes in place of the 400 records: nothing of them is ever read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.data.held import elsewhere, held
from sottovoce.data.parties import as_part
from sottovoce.data.parts import Levels, Part
from sottovoce.data.population import Population
from sottovoce.deploy.policy import Policy
from sottovoce.experiments import build
from sottovoce.experiments.rows import Loaded
from sottovoce.experiments.schema import Case

LARGEST = 2**26  # records of a level that a party may say it has: whoever says more could fill our memory
APART = ("", "rows", "ids", "said")  # how levels are known to be apart, as numbers in a message


def read(case: Case, policy: Policy, home: Path, names: Sequence[str], me: int) -> tuple[Case, Loaded]:
    """Read this site's records; return the case with the site's own file, and one part per party.

    A ready-made set, for trials, is split as on one machine, and the others' records are dropped.
    """
    if case.data.file is None:
        if case.data.agents != len(names):
            raise ValueError(f"data.agents is {case.data.agents}, but deploy.sites lists {len(names)}: they must agree")
        parts, test, shape = build.records(case.data)
        return case, (held([_named(part, name) for part, name in zip(parts, names)], range(me, me + 1)), test, shape)
    assert policy.data.file is not None
    case = case.model_copy(update={"data": case.data.model_copy(update={"file": str(home / policy.data.file)})})
    parts, test, shape = build.records(case.data)
    if len(parts) != 1:
        raise ValueError("data.agents and data.by split one table: in a federation each site has its own; remove them")
    own = _named(parts[0], names[me])
    for part in _levels(own).values():
        part.records["party"][:] = me
    return case, ([own], test, replace(shape, agents=len(names)))


def sizes(part: Any) -> list[int]:
    """Return what a site tells the others about its part: units by level, and how levels are known to be apart.

    >>> sizes(np.zeros((5, 2)))
    [5, 0]
    """
    known = Population.of([part])
    return [*(int(n[0]) for _, n in sorted(known.counts.items())), APART.index(known.apart[0])]


def with_stand_ins(own: Any, told: Mapping[str, Sequence[int]], me: str) -> list[Any]:
    """Return one part per party, in the order of `told`: the own one, and stand-ins of the sizes that were told.

    >>> parts = with_stand_ins(np.ones((2, 3)), {"north": [4, 0], "south": [2, 0]}, "south")
    >>> [len(part) for part in parts], parts[0].gather().sum()
    ([4, 2], np.float64(0.0))
    """
    own = _named(as_part(own) if not isinstance(own, Levels) else own, me)
    return [
        own if name == me else _stand_in(own, name, place, list(numbers))
        for place, (name, numbers) in enumerate(told.items())
    ]


def _stand_in(like: Any, name: str, place: int, numbers: list[int]) -> Any:
    *counts, apart = numbers
    levels = _levels(like)
    if len(counts) != len(levels) or not 0 <= apart < len(APART) or min(counts) < 1 or max(counts) > LARGEST:
        raise ValueError(
            f"{name} tells sizes {numbers}, which do not fit a part with {' and '.join(levels)}, of 1 to {LARGEST} rows"
        )
    made, first = {}, 0
    total = sum(counts)
    shared = {level: elsewhere(_rows(part.records, total)) for level, part in levels.items()}
    pool = next(iter(shared.values()))
    for (level, part), count in zip(sorted(levels.items()), counts):
        unit = None if part.unit is None else _strange(part.unit, name, place, total)
        records = pool if APART[apart] in ("rows", "ids") else shared[level]
        made[level] = Part(records, np.arange(first, first + count), unit, name, part.facts)
        first += count
    if not isinstance(like, Levels):
        return next(iter(made.values()))
    return Levels(made["upper"], made["lower"], disjoint=APART[apart] == "said")


def _rows(records: Any, count: int) -> Any:
    """Return arrays of the same kind with another number of rows, which take no memory."""
    import jax

    return jax.tree.map(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), (count, *leaf.shape[1:])), records)


def _strange(ids: np.ndarray, name: str, place: int, count: int) -> np.ndarray:
    """Return ids that no unit has, here or elsewhere: whether a person is known to two parties is not found out."""
    held = np.asarray(ids)
    if held.dtype.kind in "iu":
        first, last = int(held.max(initial=0)) + 1 + 2 * LARGEST * place, int(held.min(initial=0)) - 2 * LARGEST * place
        start = first if first < 2**63 - 2 * LARGEST else last - count
        return np.arange(start, start + count, dtype=np.int64)
    return np.array([f"{name}\x00{number}" for number in range(count)])


def _levels(part: Any) -> dict[str, Part]:
    return {"upper": part.upper, "lower": part.lower} if isinstance(part, Levels) else {"records": part}


def _named(part: Any, name: str) -> Any:
    if isinstance(part, Levels):
        return replace(part, upper=replace(part.upper, name=name), lower=replace(part.lower, name=name))
    return replace(part, name=name)
