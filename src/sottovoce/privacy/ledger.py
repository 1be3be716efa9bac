"""The ledger: what each agent has spent, written down before it is spent.

An entry covers a stretch of steps of one run. Writing the same entry again changes nothing: a run that was killed and
resumed repeats the same bytes, which cost no privacy, so nothing is charged twice.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sottovoce.privacy import accountant
from sottovoce.privacy.accountant import Adjacency, Epsilon, Mechanism

Spent = tuple[tuple[Mechanism, int], ...]
_SAMPLINGS = {kind.__name__: kind for kind in accountant.Sampling.__args__}


@dataclass(frozen=True)
class Budget:
    """The most that any agent may spend, over all runs in a ledger.

    >>> Budget(epsilon=2.0, delta=1e-5)
    Budget(epsilon=2.0, delta=1e-05)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not self.epsilon > 0 or not 0 <= self.delta < 1:
            raise ValueError(f"budget ({self.epsilon}, {self.delta}): epsilon must be positive and delta in [0, 1)")


class BudgetExceeded(ValueError):
    """A run was refused because it would spend more than the budget."""


@dataclass(frozen=True)
class Group:
    """Agents that spend alike on the records of one level ("records" for a problem with one record set)."""

    level: str
    agents: tuple[int, ...]
    spent: Spent


@dataclass(frozen=True)
class Entry:
    """Steps `start` to `stop` - 1 of a run, and what each group of agents spends in them."""

    run: str
    start: int
    stop: int
    groups: tuple[Group, ...]

    @property
    def key(self) -> tuple[str, int, int]:
        """What makes it the same entry."""
        return self.run, self.start, self.stop


class Ledger:
    """Entries in order, in memory and, with a path, in a file that only grows (one JSON line an entry).

    >>> ledger = Ledger()
    >>> once = Entry("run", 0, 10, (Group("records", (0,), ((Mechanism(laplace=(0.1,)), 10),)),))
    >>> ledger.charge(once); ledger.charge(once)
    >>> float(ledger.epsilon(agent=0, delta=0.0, adjacency="zero-out"))
    1.0
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = Path(path) if path is not None else None
        self.entries: dict[tuple[str, int, int], Entry] = {}
        if self.path is not None and self.path.exists():
            for number, line in enumerate(self.path.read_text().splitlines(), start=1):
                try:
                    entry = _decode(json.loads(line))
                except (ValueError, KeyError, TypeError) as error:
                    raise ValueError(
                        f"{self.path}, line {number}, is not a ledger entry ({error}): the file was changed or cut. "
                        "Restore it from a copy; without it nobody knows what was spent."
                    ) from error
                self.entries[entry.key] = entry

    def charge(self, entry: Entry) -> None:
        """Write an entry down and sync it to disk; the release may follow. No effect if it is there already."""
        if entry.key in self.entries:
            if self.entries[entry.key] != entry:
                raise ValueError(
                    f"run {entry.run}, steps {entry.start} to {entry.stop}, was charged differently before"
                )
            return
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(_encode(entry)) + "\n")
                file.flush()
                os.fsync(file.fileno())
        self.entries[entry.key] = entry

    def spent(self, agent: int, level: str, leaving_out: str | None = None) -> Spent:
        """All that was spent on an agent's records of a level, but for one run."""
        counts: Counter[Mechanism] = Counter()
        for entry in self.entries.values():
            if entry.run != leaving_out:
                for group in entry.groups:
                    if group.level == level and agent in group.agents:
                        counts.update(dict(group.spent))
        return tuple(counts.items())

    def epsilon(self, agent: int, delta: float, adjacency: Adjacency) -> Epsilon:
        """Epsilon of everything an agent spent, all runs composed: that of the level which paid most."""
        levels = {group.level for entry in self.entries.values() for group in entry.groups if agent in group.agents}
        spent = [self.spent(agent, level) for level in sorted(levels)] or [()]
        return max((accountant.epsilon(mechanisms, delta, adjacency) for mechanisms in spent), key=float)

    def require(self, budget: Budget, run: str, planned: Iterable[Group], adjacency: Adjacency) -> None:
        """Refuse a run that would bring any agent over its budget, before anything is released."""
        for group in planned:
            by_past: dict[Spent, int] = {}
            for agent in group.agents:
                by_past.setdefault(self.spent(agent, group.level, leaving_out=run), agent)
            for past, agent in by_past.items():
                total = accountant.epsilon((*past, *group.spent), budget.delta, adjacency)
                if total > budget.epsilon:
                    before = accountant.epsilon(past, budget.delta, adjacency) if past else 0.0
                    raise BudgetExceeded(
                        f"agent {agent} would reach epsilon {float(total):.4g} of a budget of {budget.epsilon:g} "
                        f"(delta {budget.delta:g}; {float(before):.4g} is spent already). Use fewer steps, more noise "
                        f"(sv.calibrate finds how much), or a larger budget. Nothing was released."
                    )


def _encode(entry: Entry) -> dict[str, Any]:
    groups = [
        {
            "level": group.level,
            "agents": list(group.agents),
            "spent": [
                {**asdict(m), "sampling": {"kind": type(m.sampling).__name__, **asdict(m.sampling)}, "count": count}
                for m, count in group.spent
            ],
        }
        for group in entry.groups
    ]
    return {"run": entry.run, "start": entry.start, "stop": entry.stop, "groups": groups}


def _decode(data: dict[str, Any]) -> Entry:
    def mechanism(item: dict[str, Any]) -> tuple[Mechanism, int]:
        sampling = dict(item.pop("sampling"))
        count = item.pop("count")
        kind = _SAMPLINGS[sampling.pop("kind")]
        return Mechanism(**{**item, "laplace": tuple(item["laplace"]), "sampling": kind(**sampling)}), count

    groups = tuple(
        Group(group["level"], tuple(group["agents"]), tuple(mechanism(dict(item)) for item in group["spent"]))
        for group in data["groups"]
    )
    return Entry(data["run"], data["start"], data["stop"], groups)
