"""Keep a ledger: what each party has spent, written to a file before it is spent.

For example, a run of 40 steps that charges every 10 steps writes four entries. A later run reads them, and is refused
if both runs together would exceed the budget.

A simulation has one ledger for all its parties; a deployed party keeps its own. An entry covers consecutive steps of
one run. Writing the same entry again changes nothing: a run that was killed and resumed repeats the same bytes, which
cost no privacy, so nothing is charged twice.

Who is who. A shared ledger goes by the names of the parties, because numbers change when a list is sorted another way:
"north" is the same holder of the same records in every run. Parties without names can share a ledger within one run
only, unless every run has a single party. "all" is the whole table (`EVERYBODY`): its records are those of the other
parties, so what was spent on it is counted for each of them, and the reverse. A run whose parties were never charged
before has nothing to add up with this ledger; more likely the same records go by other names, so it is refused.

Adjacency. Entries hold mechanisms, which do not depend on the adjacency, and the adjacency that their run stated. All
entries are composed under one adjacency: the one that is asked for, or that of the budget. Replace-one, the default of
a budget, covers zero-out: a record that is zeroed out is replaced by one that contributes nothing, so every bound under
replace-one is a bound under zero-out too. The opposite is false.

Files. The ledger only grows. Each line carries the hash of the line before it. A small file beside it (`.head`) holds
the number of lines and the hash of the last line; it is made before the first line. A line that was changed, removed or
inserted is therefore refused, and so is a file that was cut, deleted or rolled back without its head: nobody would know
what was spent. A line that a kill left incomplete was never followed by a release, and is removed by the next charge.
Writers wait for each other (`.lock`), and read what others wrote before they add a line or state an epsilon.

What a process knows is never forgotten. A path is resolved once, so a process may change its folder. What a process has
read or written of a file must be how the file begins, whichever object asks: a file that was removed, cut, or replaced
by an older copy or another ledger is refused while the process lives. A ledger in memory is refused in a forked copy of
its process.

This guards against accidents and careless edits. Somebody who rewrites both files can forge them, so the files are
readable by their owner only. Not noticed: both files put back from an older copy while no process lives that has seen
more. Keep them where backups are not restored over them.
"""

import functools
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sottovoce.files import Here, append, locked, traces, write_atomically
from sottovoce.naming import unknown
from sottovoce.privacy import accountant
from sottovoce.privacy.ledger_line import VERSION, Entry, Group, content, digest, encoded, read_head, read_line, refusal
from sottovoce.privacy.mechanisms import (
    Adjacency,
    Epsilon,
    Mechanism,
    Spent,
    check_adjacency,
    check_delta,
    check_epsilon,
)
from sottovoce.privacy.report import rounded_up

Cost = tuple[Spent, float]  # mechanisms, and the chance that some padded batch did not fit
CostByLevel = dict[str, Cost]  # what one run spent on records of each level
OWNER = ""  # stands for the party itself in the ledger that it keeps for itself, whatever its name is in a run
EVERYBODY = "all"  # the party that holds the whole table: whoever has records is in it
_COMBINATIONS = 64  # combinations of levels over runs that are tried one by one
_SEEN: dict[Path, tuple[int, str]] = {}  # lines of each file that this process has seen, and the hash of the last


@dataclass(frozen=True)
class Budget:
    """State the most that any party may spend, over all runs in a ledger.

    Everything that was ever spent is composed under `adjacency`, whatever adjacency an earlier run stated for itself:
    epsilons of different adjacencies do not add up. By default it is the adjacency of the run that the budget is given
    to, and replace-one, which covers both, as soon as any run in the ledger stated that.

    >>> Budget(epsilon=2.0, delta=1e-5).under("zero-out")
    Budget(epsilon=2.0, delta=1e-05, adjacency='zero-out')
    """

    epsilon: float
    delta: float
    adjacency: Adjacency | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        object.__setattr__(self, "delta", check_delta(self.delta))
        if self.adjacency is not None:
            check_adjacency(self.adjacency)

    def under(self, adjacency: Adjacency) -> "Budget":
        """Return the budget of a run with this adjacency; what the budget says itself counts first.

        >>> Budget(2.0, 1e-5, "replace-one").under("zero-out").adjacency
        'replace-one'
        """
        return replace(self, adjacency=self.adjacency or adjacency)

    @property
    def sense(self) -> Adjacency:
        """Return the adjacency; where neither the budget nor a run says one, the one that covers both."""
        return self.adjacency or "replace-one"


class BudgetExceeded(ValueError):
    """Say that a run was refused because it would spend more than the budget."""


class Ledger:
    """Hold entries in order, in memory and, with a path, in a file (one JSON line per entry).

    >>> ledger = Ledger()
    >>> once = Entry("run", 0, 10, (Group("records", ("north",), ((Mechanism(laplace=(0.1,)), 10),)),))
    >>> ledger.charge(once); ledger.charge(once)
    >>> float(ledger.epsilon("north", delta=0.0, adjacency="zero-out"))
    1.0
    """

    def __init__(self, path: Path | str | None = None) -> None:
        self.path = Path(path).resolve() if path is not None else None
        self.entries: dict[tuple[str, int, int, int], Entry] = {}
        self._last = digest(b"")
        self._size = 0  # of the complete lines in the file, as this ledger knows it
        self._told: int | None = None  # how many lines the head says there are; None: there is no head
        self._traces: Any = None  # of the file and its head, when they were read or written last
        self._here = Here()
        self._promised: dict[str, _Promise] = {}  # by run: checks the budget again
        self._alone = threading.RLock()  # two runs of one process may share a ledger
        self._refresh()

    def __copy__(self) -> "Ledger":
        """Return the ledger itself: a copy (as scikit-learn's `clone` makes of settings) would lose what is charged."""
        return self

    def __deepcopy__(self, memo: object) -> "Ledger":
        """Return the ledger itself."""
        return self

    def __reduce__(self) -> Any:
        """Send the path to another process, which reads the file; charges to a copy in memory would be lost."""
        if self.path is None:
            raise TypeError("a ledger in memory cannot go to another process: give it a file, sv.Ledger(path)")
        return Ledger, (self.path,)

    def charge(self, entry: Entry) -> None:
        """Write an entry and sync it to disk, after which the release may follow; do nothing if it is there already.

        If another run wrote meanwhile, in this process or in another, its entries are read first, and the budget of
        this run is checked again.
        """
        with self._alone:
            if self.path is None:
                self._refresh()
                return self._add(entry)
            with locked(self.path, writing=True):
                self._read_if_changed(self.path)
                self._add(entry)
                self._traces = traces(self.path, _head(self.path))
                _SEEN[self.path] = len(self.entries), self._last

    def _add(self, entry: Entry) -> None:
        if not self._is_new(entry):
            return
        promise = self._promised.get(entry.run)
        if promise is not None and promise.entries != len(self.entries):
            promise.check()
        if self.path is not None:
            self._append(self.path, entry)
        self.entries[entry.key] = entry
        if promise is not None:
            promise.entries = len(self.entries)

    def _is_new(self, entry: Entry) -> bool:
        if entry.key in self.entries:
            if self.entries[entry.key] != entry:
                raise ValueError(
                    f"run {entry.run}, steps {entry.start} to {entry.stop}, was charged differently before: go on with "
                    "the settings that it began with, or start a new run"
                )
            return False
        self.check(entry)
        return True

    def check(self, entry: Entry) -> None:
        """Refuse an entry that does not compose with those of other runs, with the remedy."""
        where, kept_so_far = self.path or "the ledger", tuple(self.entries.values())
        if not kept_so_far:
            return
        first = kept_so_far[0]
        if first.unit != entry.unit:
            raise ValueError(f"{where} counts by {first.unit}, this run by {entry.unit}: give it another ledger")
        if first.owned != entry.owned:
            kind, remedy = ("all agents", "by itself") if entry.owned else ("its owner alone", "in a list")
            raise ValueError(f"{where} was kept for {kind}: give it {remedy}, or give another ledger")
        others = [kept for kept in kept_so_far if kept.run != entry.run]
        if entry.owned:
            strangers = {name for kept in others for name in kept.names if _is_name(name)} - entry.names
            if strangers and all(map(_is_name, entry.names)):
                raise ValueError(
                    f"{where} was kept by {', '.join(sorted(strangers))}, not by {', '.join(sorted(entry.names))}: "
                    "give each party its own ledger, in the order of the parties"
                )
            return
        parties = frozenset().union(entry.names, *(kept.names for kept in others))
        if others and len(parties) > 1 and not all(map(_is_name, parties)):
            raise ValueError(
                f"{where} holds another run, and some parties have no names: by number alone it is not known who spent "
                "what. Name them, for example sv.data.Part(records, rows, name='north') or split(..., names=...), or "
                "give another ledger"
            )
        before = frozenset().union(*(kept.names for kept in others))
        if before and not before & entry.names and EVERYBODY not in before | entry.names and len(parties) > 1:
            raise ValueError(
                f"{where} was kept for {_listed(before)}, and this run is of {_listed(entry.names)}: if these hold the "
                "same records, give them the same names as before; if not, give another ledger"
            )

    def _refresh(self) -> None:
        """Read what others wrote; refuse a ledger in memory that was copied by a fork."""
        if self.path is None:
            return self._here.require("a ledger in memory", "give it a file, sv.Ledger(path)")
        if self._behind(self.path):
            with locked(self.path):
                self._read_if_changed(self.path)

    def _behind(self, path: Path) -> bool:
        """Say whether the file changed, or another object of this process knows more of it."""
        own = len(self.entries), self._last
        return self._traces != traces(path, _head(path)) or _SEEN.get(path, own) != own

    def _read_if_changed(self, path: Path) -> None:
        if self._behind(path):
            found = traces(path, _head(path))
            self._read(path)
            self._traces = found

    def _append(self, path: Path, entry: Entry) -> None:
        line = json.dumps({"version": VERSION, **encoded(entry), "before": self._last}).encode()
        if self._told != len(self.entries):  # no head yet, or a kill came before it was written: now, or a second kill,
            self._write_head(path, len(self.entries))  # inside the next line, would leave two lines more than it says
        append(path, line + b"\n", at=self._size)  # overwrites the part of a line that a kill may have left
        self._size += len(line) + 1
        self._last = digest(line)
        self._write_head(path, len(self.entries) + 1)

    def _write_head(self, path: Path, lines: int) -> None:
        self._told = lines
        facts = {"version": VERSION, "lines": lines, "last": self._last}
        write_atomically(_head(path), json.dumps(facts).encode() + b"\n", private=True)

    def _read(self, path: Path) -> None:
        """Read all entries and check the chain of hashes; raise ValueError if anything is missing or changed."""
        head = read_head(_head(path))
        data = content(path)
        if path.exists() and path.stat().st_nlink > 1:
            raise ValueError(
                f"{path} has a second name (a hard link), and who writes by one name does not wait for who writes by "
                "the other: remove the other name. For a backup, copy the file and its head"
            )
        *lines, torn = data.split(b"\n")
        digests, entries = [digest(b"")], dict[tuple[str, int, int, int], Entry]()
        for number, line in enumerate(lines, start=1):
            entry = read_line(f"{path}, line {number},", line, digests[-1])
            if entry.key in entries:
                raise ValueError(refusal(f"{path}, line {number}, repeats an earlier one"))
            entries[entry.key] = entry
            digests.append(digest(line))
        if head is None and (lines or torn):
            raise ValueError(refusal(f"{_head(path)} is missing"))
        self._told = None if head is None else head[0]
        count, last = head or (0, digests[0])
        # A kill may come between a line and its head, or inside a line: that release did not happen.
        if len(lines) not in (count, count + 1) or (torn and len(lines) != count):
            raise ValueError(refusal(f"{path} has {len(lines)} lines where {count} were written"))
        if digests[count] != last:
            raise ValueError(refusal(f"{path}, line {count}, is not the one that was written"))
        known = _SEEN.get(path, (0, digests[0]))
        if len(lines) < known[0] or digests[known[0]] != known[1]:
            raise ValueError(
                f"{path} does not begin with the {known[0]} lines that this process knows: it was removed, cut, or "
                "replaced by an older copy or another ledger. Put the newest copy back, with its head; or give another "
                "path, for records of which nothing was spent"
            )
        _SEEN[path] = len(lines), digests[-1]
        self.entries = entries
        self._last, self._size = digests[-1], len(data) - len(torn)

    def spent(self, agent: str, leaving_out: Callable[[Entry], bool] = lambda _: False) -> list[CostByLevel]:
        """Return what each run spent on a party's records, by level, but for the entries that are left out.

        In an owner's ledger every party is the owner. What was spent on everybody is counted for each party.
        """
        runs: dict[str, dict[str, tuple[Counter[Mechanism], float]]] = {}
        for entry in self.entries.values():
            if leaving_out(entry):
                continue
            for group in entry.groups:
                if entry.owned or str(agent) in group.agents or EVERYBODY in group.agents:
                    levels = runs.setdefault(entry.run, {})
                    counts, overflow = levels.get(group.level, (Counter(), 0.0))
                    counts.update(_counted(group.spent))
                    levels[group.level] = counts, overflow + group.overflow
        return [
            {level: (tuple(counts.items()), overflow) for level, (counts, overflow) in levels.items()}
            for levels in runs.values()
        ]

    def alike(self, agents: Iterable[str]) -> list[list[str]]:
        """Group parties that were always charged together: they have spent the same."""
        charged: dict[str, list[int]] = {str(agent): [] for agent in agents}
        groups = [(group, entry.owned) for entry in self.entries.values() for group in entry.groups]
        for number, (group, owned) in enumerate(groups):
            for agent in charged if owned or EVERYBODY in group.agents else charged.keys() & group.agents:
                charged[agent].append(number)
        together: dict[tuple[int, ...], list[str]] = {}
        for agent, numbers in charged.items():
            together.setdefault(tuple(numbers), []).append(agent)
        return list(together.values())

    def epsilon(self, agent: str, delta: float, adjacency: Adjacency) -> Epsilon:
        """Return epsilon of everything a party spent, all runs composed, for the record that paid most.

        A party that no entry names is an error, because a misspelt name would look as if nothing had been spent. In an
        empty ledger nobody has spent anything.
        """
        with self._alone:
            self._refresh()
            known = {name for entry in self.entries.values() for name in entry.names}
            owned = any(entry.owned for entry in self.entries.values())
            if known and not owned and str(agent) not in known | {EVERYBODY}:
                where = "this ledger" if self.path is None else str(self.path)
                raise ValueError(f"{where}: {unknown('party', str(agent), known)}")
            return max((_composed(self.spent(one), delta, adjacency) for one in self._in(str(agent))), key=float)

    def _in(self, agent: str) -> list[str]:
        """Return the parties whose records a party's records may be: for everybody, those of any party."""
        held = {name for entry in self.entries.values() for name in entry.names if not entry.owned}
        return [members[0] for members in self.alike(sorted({agent, *held}))] if agent == EVERYBODY else [agent]

    def require(
        self, budget: Budget, run: str, planned: Iterable[Group], owner: str = "the owner", *, attempt: int = 0,
        first: int = 0, stated: Adjacency = "replace-one",
    ) -> None:  # fmt: skip
        """Refuse a run that would bring any party over its budget, before anything is released.

        `planned` is all of the run from an attempt and a step on, whether the ledger holds some of it or not. It is
        checked again if another run writes to the ledger meanwhile. `stated` is the run's own adjacency.
        """
        plan = tuple(planned)

        def in_plan(entry: Entry) -> bool:
            return entry.run == run and entry.attempt >= attempt and entry.start >= first

        with self._alone:
            self._refresh()
            promise = _Promise(
                lambda: self._require(self.bound(budget, stated), in_plan, plan, owner), len(self.entries)
            )
            promise.check()
            self._promised[run] = promise

    def bound(self, budget: Budget, stated: Adjacency) -> Budget:
        """Return the budget with the adjacency in which it counts for a run that states this one.

        >>> Ledger().bound(Budget(1.0, 1e-5), "zero-out").adjacency
        'zero-out'
        """
        known = all(entry.adjacency == "zero-out" for entry in self.entries.values())
        return budget.under(stated if known else "replace-one")

    def _require(self, budget: Budget, in_plan: Callable[[Entry], bool], planned: Sequence[Group], owner: str) -> None:
        plans: dict[str, CostByLevel] = {}
        for group in planned:
            for agent in (one for name in group.agents for one in self._in(name)):
                plans.setdefault(agent, {})[group.level] = group.spent, group.overflow
        first: dict[tuple[Any, ...], str] = {}  # one party of those with the same past and the same plan
        for members in self.alike(plans):
            for agent in members:
                first.setdefault((members[0], *plans[agent].items()), agent)
        owned = any(entry.owned for entry in self.entries.values())
        for agent in first.values():
            past = self.spent(agent, in_plan)
            total = _composed([*past, plans[agent]], budget.delta, budget.sense)
            if total > budget.epsilon:
                before = _composed(past, budget.delta, budget.sense)
                who = owner if agent == OWNER or owned else f"agent {agent}"
                left_out = _composed([*past, plans[agent]], budget.delta, "zero-out")
                fits = budget.sense == "replace-one" and left_out <= budget.epsilon
                weaker = (
                    f", or count a record that is left out (adjacency='zero-out': epsilon {float(left_out):.4g})" * fits
                )
                begun = any(map(in_plan, self.entries.values()))  # another run spent meanwhile what this one counted on
                raise BudgetExceeded(
                    f"{who} would reach epsilon {float(total):.4g} of a budget of {budget.epsilon:g} "
                    f"(delta {budget.delta:g}, {budget.sense}; {float(before):.4g} is spent already). Use fewer "
                    f"steps, more noise (sv.calibrate finds how much), or a larger budget{weaker}. "
                    f"Nothing {'more ' if begun else ''}was released."
                )


@dataclass
class _Promise:
    """A budget that a run was allowed to spend within, as long as nobody else has written since."""

    check: Callable[[], None]
    entries: int  # that the ledger held when it was checked, or this run wrote last


def _composed(runs: Sequence[CostByLevel], delta: float, adjacency: Adjacency) -> Epsilon:
    """Return epsilon of the record that paid most over several runs.

    Within a run a record is in one level. In which level it was in another run is not known, because the split may have
    changed. So all combinations are tried. Where there are too many, a record counts as in all levels of all runs.
    """
    possible: set[Cost] = {((), 0.0)}
    for levels in runs:
        possible = {_sum(total, cost) for total in possible for cost in set(levels.values())}
        if len(possible) > _COMBINATIONS:
            everything = [cost for levels in runs for cost in levels.values()]
            nothing: Cost = ((), 0.0)
            possible = {functools.reduce(_sum, everything, nothing)}
            break
    return max(
        (accountant.epsilon(spent, delta, adjacency, overflow=overflow) for spent, overflow in possible), key=float
    )


def _sum(one: Cost, other: Cost) -> Cost:
    counts = _counted((*one[0], *other[0]))
    return tuple(sorted(counts.items(), key=repr)), one[1] + other[1]


def _counted(spent: Spent) -> Counter[Mechanism]:
    """Count each mechanism; one that is listed twice, by two kinds of batches, is paid for twice."""
    counts: Counter[Mechanism] = Counter()
    for mechanism, count in spent:
        counts[mechanism] += count
    return counts


def _listed(names: Iterable[str]) -> str:
    some = sorted(names)
    return ", ".join(some[:5]) + (f" and {len(some) - 5} more" if len(some) > 5 else "")


def _is_name(agent: str) -> bool:
    """Say whether a party was given a name; a number is what it has without one."""
    return agent != OWNER and not agent.isdigit()


def show(ledger: Ledger, delta: float, adjacency: Adjacency, budget: Budget | None = None) -> str:
    """Describe as text what each party has spent, all runs composed under one adjacency: the budget's, if there is one.

    >>> ledger = Ledger()
    >>> ledger.charge(Entry("a1", 0, 10, (Group("records", ("a", "b"), ((Mechanism(laplace=(0.1,)), 10),)),)))
    >>> print(show(ledger, delta=0.0, adjacency="zero-out", budget=Budget(2.0, 0.0, "zero-out")))
    run a1: steps 0 to 9
    agents a, b: epsilon 1 of 2, delta 0, zero-out
    """
    if budget is not None:
        delta, adjacency = budget.delta, budget.under(adjacency).sense
    told = totals(ledger, delta, adjacency)
    sums = told.get("sums hold against", {})
    lines = [
        f"run {run}: steps {first} to {last}" + (f", by sums, against any {sums[run]}" if run in sums else "")
        for run, (first, last) in told["steps by run"].items()
    ]
    alike: dict[str, list[str]] = {}
    for party, epsilon in told["epsilon by party"].items():
        alike.setdefault(rounded_up(epsilon, 4), []).append(party)
    for spent, members in alike.items():
        of = f" of {budget.epsilon:g}" if budget is not None else ""
        named = ", ".join(members[:8]) + (f" and {len(members) - 8} more" if len(members) > 8 else "")
        who = "owner" if told["owned"] else f"agent{'s' if len(members) > 1 else ''} {named}"
        lines.append(f"{who}: epsilon {spent}{of}, delta {delta:g}, {adjacency}")
    return "\n".join(lines) or "nothing has been spent"


def totals(ledger: Ledger, delta: float, adjacency: Adjacency) -> dict[str, Any]:
    """Return what `show` tells as data: the first and last step of each run, and the epsilon of each party.

    >>> ledger = Ledger()
    >>> ledger.charge(Entry("a1", 0, 10, (Group("records", ("a",), ((Mechanism(laplace=(0.1,)), 10),)),)))
    >>> totals(ledger, delta=0.0, adjacency="zero-out")
    {'owned': False, 'steps by run': {'a1': (0, 9)}, 'epsilon by party': {'a': 1.0}}
    """
    runs: dict[str, tuple[int, int]] = {}
    sums: dict[str, str] = {}
    for entry in ledger.entries.values():
        if entry.roster:
            sums[entry.run] = f"{entry.colluding} of {', '.join(entry.roster)}"
        first, last = runs.get(entry.run, (entry.start, entry.stop - 1))
        runs[entry.run] = min(first, entry.start), max(last, entry.stop - 1)
    agents = {agent for entry in ledger.entries.values() for agent in entry.names}
    epsilons: dict[str, float] = {}
    for members in ledger.alike(
        sorted(agents, key=lambda name: (not name.isdigit(), name.zfill(12) if name.isdigit() else name))
    ):
        epsilons |= dict.fromkeys(members, float(ledger.epsilon(members[0], delta, adjacency)))
    owned = any(entry.owned for entry in ledger.entries.values())
    told = {"owned": owned, "steps by run": runs, "epsilon by party": epsilons}
    return {**told, "sums hold against": sums} if sums else told


def _head(path: Path) -> Path:
    return path.with_name(path.name + ".head")
