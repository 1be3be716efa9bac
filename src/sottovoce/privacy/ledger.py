"""The ledger: what each agent has spent, written down before it is spent.

A simulation has one ledger for all its agents, a deployed agent keeps its own (`runtime/books.py`).
An entry covers a stretch of steps of one run. Writing the same entry again changes nothing: a run that was killed and
resumed repeats the same bytes, which cost no privacy, so nothing is charged twice.

The file only grows. Each line carries the hash of the line before it, and a small file beside it (`.head`) the number
of lines and the hash of the last. So a line that was changed, removed or put in, a file that was cut, deleted or
rolled back without its head, is refused: nobody would know what was spent. This guards against accidents and
careless edits; who rewrites both files can forge them, so keep them where only the agent can write.
"""

import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sottovoce.files import write_atomically
from sottovoce.privacy import accountant
from sottovoce.privacy.accountant import Adjacency, Epsilon, Mechanism

Spent = tuple[tuple[Mechanism, int], ...]
Levels = dict[str, Spent]  # what one run spent on records of each level
OWNER = -1  # in the ledger that an agent keeps for itself: that agent, whatever its number is in a run
_COMBINATIONS = 64  # of levels over runs that are told apart
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
    """Agents (or the `OWNER`) that spend alike on records of one level ("records" for a problem with one set)."""

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
    unit: str = "record"  # whose data is protected: epsilons of records and of larger units do not compose

    @property
    def key(self) -> tuple[str, int, int]:
        """What makes it the same entry."""
        return self.run, self.start, self.stop


class Ledger:
    """Entries in order, in memory and, with a path, in a file (one JSON line an entry).

    >>> ledger = Ledger()
    >>> once = Entry("run", 0, 10, (Group("records", (0,), ((Mechanism(laplace=(0.1,)), 10),)),))
    >>> ledger.charge(once); ledger.charge(once)
    >>> float(ledger.epsilon(agent=0, delta=0.0, adjacency="zero-out"))
    1.0
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = Path(path) if path is not None else None
        self.entries: dict[tuple[str, int, int], Entry] = {}
        self._last = digest(b"")
        self._size = 0  # of the file, as this ledger knows it
        if self.path is not None:
            self._read(self.path)

    def charge(self, entry: Entry) -> None:
        """Write an entry down and sync it to disk; the release may follow. No effect if it is there already."""
        if entry.key in self.entries:
            if self.entries[entry.key] != entry:
                raise ValueError(
                    f"run {entry.run}, steps {entry.start} to {entry.stop}, was charged differently before"
                )
            return
        self.check(entry.unit, _owned(entry))
        if self.path is not None:
            self._append(self.path, json.dumps({**_encode(entry), "before": self._last}).encode())
        self.entries[entry.key] = entry

    def check(self, unit: str, owned: bool) -> None:
        """Refuse entries that do not belong with those that are there, which all agree with the first."""
        first = next(iter(self.entries.values()), None)
        where = self.path or "the ledger"
        if first is not None and first.unit != unit:
            raise ValueError(f"{where} counts by {first.unit}, this run by {unit}: give it another ledger")
        if first is not None and _owned(first) != owned:
            kind, remedy = ("all agents", "by itself") if owned else ("its owner alone", "in a list")
            raise ValueError(f"{where} was kept for {kind}: give it {remedy}, or give another ledger")

    def _append(self, path: Path, line: bytes) -> None:
        if (path.stat().st_size if path.exists() else 0) != self._size:
            raise ValueError(
                f"{path} was written to by another run meanwhile, so what is left of the budget has changed: "
                "run again (what was released so far is charged)"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._size += len(line) + 1
        self._last = digest(line)
        write_atomically(_head(path), f"{len(self.entries) + 1} {self._last}\n".encode())

    def _read(self, path: Path) -> None:
        """All entries, the chain of hashes checked; ValueError if anything is missing or changed."""
        head = _head(path).read_text().split() if _head(path).exists() else None
        data = path.read_bytes() if path.exists() else b""
        *lines, torn = data.split(b"\n")
        digests = [self._last]
        for number, line in enumerate(lines, start=1):
            try:
                fields = json.loads(line)
                if fields.pop("before") != digests[-1]:
                    raise ValueError("it does not follow the line before")
                entry = _decode(fields)
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(_refusal(f"{path}, line {number}, is not a ledger entry ({error})")) from error
            self.entries[entry.key] = entry
            digests.append(digest(line))
        count = int(head[0]) if head else 0
        if head is None and (lines or torn):
            raise ValueError(_refusal(f"{_head(path)} is missing"))
        # A kill may fall between a line and its head, or inside a line: that release did not happen.
        if len(lines) not in (count, count + 1) or (torn and len(lines) != count):
            raise ValueError(_refusal(f"{path} has {len(lines)} lines where {count} were written"))
        if head is not None and digests[count] != head[1]:
            raise ValueError(_refusal(f"{path}, line {count}, is not the one that was written"))
        if torn:
            os.truncate(path, len(data) - len(torn))
        self._last, self._size = digests[-1], len(data) - len(torn)

    def spent(self, agent: int, leaving_out: str | None = None) -> list[Levels]:
        """What each run but one spent on an agent's records, by level; in an owner's ledger any agent is the owner."""
        runs: dict[str, dict[str, Counter[Mechanism]]] = {}
        for entry in self.entries.values():
            for group in entry.groups:
                if entry.run != leaving_out and (agent in group.agents or OWNER in group.agents):
                    level = runs.setdefault(entry.run, {}).setdefault(group.level, Counter())
                    level.update(dict(group.spent))
        return [{level: tuple(counts.items()) for level, counts in levels.items()} for levels in runs.values()]

    def alike(self, agents: Iterable[int]) -> list[list[int]]:
        """Agents that were charged together, always: they have spent the same."""
        charged: dict[int, list[int]] = {agent: [] for agent in agents}
        for number, group in enumerate(group for entry in self.entries.values() for group in entry.groups):
            for agent in charged if OWNER in group.agents else charged.keys() & group.agents:
                charged[agent].append(number)
        together: dict[tuple[int, ...], list[int]] = {}
        for agent, numbers in charged.items():
            together.setdefault(tuple(numbers), []).append(agent)
        return list(together.values())

    def epsilon(self, agent: int, delta: float, adjacency: Adjacency) -> Epsilon:
        """Epsilon of everything an agent spent, all runs composed, for the record that paid most."""
        return _composed(self.spent(agent), delta, adjacency)

    def require(
        self, budget: Budget, run: str, planned: Iterable[Group], adjacency: Adjacency, owner: str = "the owner"
    ) -> None:
        """Refuse a run that would bring any agent over its budget, before anything is released."""
        plans: dict[int, Levels] = {}
        for group in planned:
            for agent in group.agents:
                plans.setdefault(agent, {})[group.level] = group.spent
        first: dict[tuple[Any, ...], int] = {}  # of those with the same past and the same plan
        for members in self.alike(plans):
            for agent in members:
                first.setdefault((members[0], *plans[agent].items()), agent)
        for agent in first.values():
            past = self.spent(agent, leaving_out=run)
            total = _composed([*past, plans[agent]], budget.delta, adjacency)
            if total > budget.epsilon:
                before = _composed(past, budget.delta, adjacency)
                who = owner if agent == OWNER else f"agent {agent}"
                raise BudgetExceeded(
                    f"{who} would reach epsilon {float(total):.4g} of a budget of {budget.epsilon:g} "
                    f"(delta {budget.delta:g}; {float(before):.4g} is spent already). Use fewer steps, more noise "
                    f"(sv.calibrate finds how much), or a larger budget. Nothing was released."
                )


def _composed(runs: Sequence[Levels], delta: float, adjacency: Adjacency) -> Epsilon:
    """Epsilon of the record that paid most over several runs.

    Within a run a record is in one level. Which one it was in another run is not known (the split may have changed),
    so all combinations are tried; where they are too many, a record is taken to have been in all levels of all runs.
    """
    possible: set[Spent] = {()}
    for levels in runs:
        possible = {_sum(total, spent) for total in possible for spent in set(levels.values())}
        if len(possible) > _COMBINATIONS:
            everything = [spent for levels in runs for spent in levels.values()]
            possible = {functools.reduce(_sum, everything, ())}
            break
    return max((accountant.epsilon(total, delta, adjacency) for total in possible), key=float)


def _sum(one: Spent, other: Spent) -> Spent:
    counts = Counter(dict(one))
    counts.update(dict(other))
    return tuple(sorted(counts.items(), key=repr))


def show(ledger: Ledger, delta: float, adjacency: Adjacency, budget: Budget | None = None) -> str:
    """What each agent has spent, all runs composed, as text.

    >>> ledger = Ledger()
    >>> ledger.charge(Entry("a1", 0, 10, (Group("records", (0, 1), ((Mechanism(laplace=(0.1,)), 10),)),)))
    >>> print(show(ledger, delta=0.0, adjacency="zero-out", budget=Budget(2.0, 0.0)))
    run a1: steps 0 to 9
    agents 0, 1: epsilon 1 of 2, delta 0, zero-out
    """
    stretches: dict[str, list[Entry]] = {}
    for entry in ledger.entries.values():
        stretches.setdefault(entry.run, []).append(entry)
    lines = [
        f"run {run}: steps {min(e.start for e in entries)} to {max(e.stop for e in entries) - 1}"
        for run, entries in stretches.items()
    ]
    agents = {agent for entry in ledger.entries.values() for group in entry.groups for agent in group.agents}
    for members in ledger.alike(sorted(agents)):
        spent = float(ledger.epsilon(members[0], delta, adjacency))
        of = f" of {budget.epsilon:g}" if budget is not None else ""
        named = ", ".join(map(str, members[:8])) + (f" and {len(members) - 8} more" if len(members) > 8 else "")
        who = "owner" if members == [OWNER] else f"agent{'s' if len(members) > 1 else ''} {named}"
        lines.append(f"{who}: epsilon {spent:.4g}{of}, delta {delta:g}, {adjacency}")
    return "\n".join(lines) or "nothing has been spent"


def _owned(entry: Entry) -> bool:
    return any(group.agents == (OWNER,) for group in entry.groups)


def _head(path: Path) -> Path:
    return path.with_name(path.name + ".head")


def digest(line: bytes) -> str:
    """What a change of a line or a file shows in."""
    return hashlib.sha256(line).hexdigest()


def _refusal(what: str) -> str:
    return f"{what}: the ledger was changed or cut. Restore it from a copy; without it nobody knows what was spent."


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
    return {"run": entry.run, "start": entry.start, "stop": entry.stop, "unit": entry.unit, "groups": groups}


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
    return Entry(data["run"], data["start"], data["stop"], groups, data["unit"])
