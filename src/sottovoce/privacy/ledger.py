"""Keep a ledger: what each agent has spent, written to a file before it is spent.

For example, a run of 40 steps that charges every 10 steps writes four entries. A later run reads them, and is refused
if both runs together would exceed the budget.

A simulation has one ledger for all its agents; a deployed agent keeps its own. An entry covers consecutive steps of one
run. Writing the same entry again changes nothing: a run that was killed and resumed repeats the same bytes, which cost
no privacy, so nothing is charged twice.

The file only grows. Each line carries the hash of the line before it. A small file beside it (`.head`) holds the number
of lines and the hash of the last line. A line that was changed, removed or inserted is therefore refused, and so is a
file that was cut, deleted or rolled back without its head: nobody would know what was spent. This guards against
accidents and careless edits. Whoever rewrites both files can forge them, so keep them where only the agent can write.

What is stable. A ledger outlives the program that wrote it. Each line has a version, and a line of another version is
refused. Within a version these may never change: the names of the fields in a line, the names of the amplifications
(`AMPLIFICATIONS`) and of their fields (rate, size, batch), and the meaning of the numbers, which is that of
`sottovoce.privacy.mechanisms.Mechanism`. The names of Python classes are not in the file. A line, without its hash:

    {"version": 1, "run": "a", "start": 0, "stop": 10, "unit": "record",
     "groups": [{"level": "records", "agents": [0], "spent": [{"count": 10,
         "gaussian": 0.25, "laplace": [], "pure": 0.0, "sampling": {"kind": "poisson", "rate": 0.1}}]}]}
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
from sottovoce.privacy.mechanisms import (
    Adjacency,
    Amplification,
    Epsilon,
    Mechanism,
    NoAmplification,
    PoissonAmplification,
    RedrawAmplification,
    Spent,
    SubsetAmplification,
)

SpentByLevel = dict[str, Spent]  # what one run spent on records of each level
VERSION = 1  # of a line in a ledger file
AMPLIFICATIONS: dict[str, type[Amplification]] = {  # names in ledger files, which are stable, and the classes
    "none": NoAmplification,
    "poisson": PoissonAmplification,
    "without replacement": SubsetAmplification,
    "with replacement": RedrawAmplification,
}
OWNER = -1  # stands for the agent itself in the ledger that it keeps for itself, whatever its number is in a run
_COMBINATIONS = 64  # combinations of levels over runs that are tried one by one
_NAMES = {kind: name for name, kind in AMPLIFICATIONS.items()}


@dataclass(frozen=True)
class Budget:
    """State the most that any agent may spend, over all runs in a ledger.

    >>> Budget(epsilon=2.0, delta=1e-5)
    Budget(epsilon=2.0, delta=1e-05)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not self.epsilon > 0 or not 0 <= self.delta < 1:
            raise ValueError(f"budget ({self.epsilon}, {self.delta}): epsilon must be positive and delta in [0, 1)")


class BudgetExceeded(ValueError):
    """Say that a run was refused because it would spend more than the budget."""


@dataclass(frozen=True)
class Group:
    """Name agents (or the `OWNER`) that spend the same on records of one level.

    The level is "records" for a problem with one record set.
    """

    level: str
    agents: tuple[int, ...]
    spent: Spent


@dataclass(frozen=True)
class Entry:
    """State what each group of agents spends in the steps `start` to `stop` - 1 of a run."""

    run: str
    start: int
    stop: int
    groups: tuple[Group, ...]
    unit: str = "record"  # whose data is protected: epsilons of records and of larger units do not compose
    attempt: int = 0  # how often the stretch was drawn before: deployed noise cannot be repeated

    @property
    def key(self) -> tuple[str, int, int, int]:
        """What makes it the same entry."""
        return self.run, self.start, self.stop, self.attempt


class Ledger:
    """Hold entries in order, in memory and, with a path, in a file (one JSON line per entry).

    >>> ledger = Ledger()
    >>> once = Entry("run", 0, 10, (Group("records", (0,), ((Mechanism(laplace=(0.1,)), 10),)),))
    >>> ledger.charge(once); ledger.charge(once)
    >>> float(ledger.epsilon(agent=0, delta=0.0, adjacency="zero-out"))
    1.0
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = Path(path) if path is not None else None
        self.entries: dict[tuple[str, int, int, int], Entry] = {}
        self._last = digest(b"")
        self._size = 0  # of the file, as this ledger knows it
        if self.path is not None:
            self._read(self.path)

    def charge(self, entry: Entry) -> None:
        """Write an entry and sync it to disk, after which the release may follow; do nothing if it is there already."""
        if entry.key in self.entries:
            if self.entries[entry.key] != entry:
                raise ValueError(
                    f"run {entry.run}, steps {entry.start} to {entry.stop}, was charged differently before"
                )
            return
        self.check(entry.unit, _owned(entry))
        if self.path is not None:
            self._append(self.path, json.dumps({"version": VERSION, **_encode(entry), "before": self._last}).encode())
        self.entries[entry.key] = entry

    def check(self, unit: str, owned: bool) -> None:
        """Refuse an entry of another unit or owner than the first one, with which all others agree."""
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
        """Read all entries and check the chain of hashes; raise ValueError if anything is missing or changed."""
        head = _head(path).read_text().split() if _head(path).exists() else None
        data = path.read_bytes() if path.exists() else b""
        *lines, torn = data.split(b"\n")
        digests = [self._last]
        for number, line in enumerate(lines, start=1):
            try:
                fields = json.loads(line)
                if fields.pop("before") != digests[-1]:
                    raise ValueError("it does not follow the line before")
                version = fields.pop("version")
                entry = _decode(fields) if version == VERSION else None
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(_refusal(f"{path}, line {number}, is not a ledger entry ({error})")) from error
            if entry is None:
                raise ValueError(
                    f"{path}, line {number}, has version {version!r}, and this program reads version {VERSION}: "
                    "use the version of sottovoce that wrote it, or give another ledger"
                )
            self.entries[entry.key] = entry
            digests.append(digest(line))
        count = int(head[0]) if head else 0
        if head is None and (lines or torn):
            raise ValueError(_refusal(f"{_head(path)} is missing"))
        # A kill may come between a line and its head, or inside a line: that release did not happen.
        if len(lines) not in (count, count + 1) or (torn and len(lines) != count):
            raise ValueError(_refusal(f"{path} has {len(lines)} lines where {count} were written"))
        if head is not None and digests[count] != head[1]:
            raise ValueError(_refusal(f"{path}, line {count}, is not the one that was written"))
        if torn:
            os.truncate(path, len(data) - len(torn))
        self._last, self._size = digests[-1], len(data) - len(torn)

    def spent(self, agent: int, leaving_out: str | None = None) -> list[SpentByLevel]:
        """Return what each run but `leaving_out` spent on an agent's records, by level.

        In an owner's ledger every agent is the owner.
        """
        runs: dict[str, dict[str, Counter[Mechanism]]] = {}
        for entry in self.entries.values():
            for group in entry.groups:
                if entry.run != leaving_out and (agent in group.agents or OWNER in group.agents):
                    level = runs.setdefault(entry.run, {}).setdefault(group.level, Counter())
                    level.update(dict(group.spent))
        return [{level: tuple(counts.items()) for level, counts in levels.items()} for levels in runs.values()]

    def alike(self, agents: Iterable[int]) -> list[list[int]]:
        """Group agents that were always charged together: they have spent the same."""
        charged: dict[int, list[int]] = {agent: [] for agent in agents}
        for number, group in enumerate(group for entry in self.entries.values() for group in entry.groups):
            for agent in charged if OWNER in group.agents else charged.keys() & group.agents:
                charged[agent].append(number)
        together: dict[tuple[int, ...], list[int]] = {}
        for agent, numbers in charged.items():
            together.setdefault(tuple(numbers), []).append(agent)
        return list(together.values())

    def epsilon(self, agent: int, delta: float, adjacency: Adjacency) -> Epsilon:
        """Return epsilon of everything an agent spent, all runs composed, for the record that paid most."""
        return _composed(self.spent(agent), delta, adjacency)

    def require(
        self, budget: Budget, run: str, planned: Iterable[Group], adjacency: Adjacency, owner: str = "the owner"
    ) -> None:
        """Refuse a run that would bring any agent over its budget, before anything is released."""
        plans: dict[int, SpentByLevel] = {}
        for group in planned:
            for agent in group.agents:
                plans.setdefault(agent, {})[group.level] = group.spent
        first: dict[tuple[Any, ...], int] = {}  # one agent of those with the same past and the same plan
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


def _composed(runs: Sequence[SpentByLevel], delta: float, adjacency: Adjacency) -> Epsilon:
    """Return epsilon of the record that paid most over several runs.

    Within a run a record is in one level. In which level it was in another run is not known, because the split may have
    changed. So all combinations are tried. Where there are too many, a record counts as in all levels of all runs.
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
    """Describe as text what each agent has spent, all runs composed.

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
    """Return the hash of a line or a file, which changes when its content does.

    >>> digest(b"")[:8]
    'e3b0c442'
    """
    return hashlib.sha256(line).hexdigest()


def _refusal(what: str) -> str:
    return f"{what}: the ledger was changed or cut. Restore it from a copy; without it nobody knows what was spent."


def _encode(entry: Entry) -> dict[str, Any]:
    groups = [
        {
            "level": group.level,
            "agents": list(group.agents),
            "spent": [{"count": count, **_encode_mechanism(m)} for m, count in group.spent],
        }
        for group in entry.groups
    ]
    facts = {"run": entry.run, "start": entry.start, "stop": entry.stop, "unit": entry.unit, "attempt": entry.attempt}
    return {**facts, "groups": groups}


def _encode_mechanism(mechanism: Mechanism) -> dict[str, Any]:
    by = mechanism.amplification
    return {
        "gaussian": mechanism.gaussian,
        "laplace": list(mechanism.laplace),
        "pure": mechanism.pure,
        "sampling": {"kind": _NAMES[type(by)], **asdict(by)},
    }


def _decode(data: dict[str, Any]) -> Entry:
    def mechanism(item: dict[str, Any]) -> tuple[Mechanism, int]:
        sampling = dict(item["sampling"])
        by = AMPLIFICATIONS[sampling.pop("kind")](**sampling)
        return Mechanism(item["gaussian"], tuple(item["laplace"]), item["pure"], by), item["count"]

    groups = tuple(
        Group(group["level"], tuple(group["agents"]), tuple(mechanism(item) for item in group["spent"]))
        for group in data["groups"]
    )
    return Entry(data["run"], data["start"], data["stop"], groups, data["unit"], data["attempt"])
