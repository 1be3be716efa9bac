"""Write down what each agent spends in a stretch of steps, before anything of it is released.

Example: a run of 100 steps that is measured every 10 writes ten entries; the entry "steps 0 to 9" is in the ledger, on
disk, before step 0 draws its batch.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sottovoce.accounting.account import Account
from sottovoce.accounting.composition import composed, paid
from sottovoce.data.parts import Bought
from sottovoce.files import Here
from sottovoce.privacy.accountant import Mechanism
from sottovoce.privacy.ledger import Budget, Ledger
from sottovoce.privacy.ledger_line import Entry, Group
from sottovoce.privacy.mechanisms import Spent


class Charging:
    """Write the charges of one run into a ledger that all agents share, or into one ledger per agent.

    A simulation is one process that holds everybody's records, so one file is enough. It goes by the names in the
    `Population`. Deployed agents keep their own: it outlives the run, and only its owner writes it.

    `attempt` counts how often a stretch was drawn. A simulation repeats the same bytes when it is resumed, so it stays
    0 and nothing is charged twice. Deployed noise cannot be repeated: a stretch that is drawn anew is a new release,
    with a new attempt number and a new charge.
    """

    def __init__(self, ledger: Ledger | Sequence[Ledger], run: str, account: Account) -> None:
        self.account, self.run, self.attempt = account, run, 0
        self._here = Here()  # a fork would draw twice, and pay once: entries are the same
        self.first = 0  # the step where this attempt starts: what is paid for once per run is paid for there again
        self.shared = ledger if isinstance(ledger, Ledger) else None
        self.own = () if isinstance(ledger, Ledger) else _one_each(ledger, account.population.parties)
        for agent, kept in enumerate(self.ledgers):  # before any work
            kept.check(self._entry(range(0), None if self.shared is not None else agent))

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        """Return the shared ledger, or every agent's own one."""
        return (self.shared,) if self.shared is not None else self.own

    def next_attempt(self) -> None:
        """Count one more attempt than any ledger has seen of this run."""
        seen = [entry.attempt for kept in self.ledgers for entry in kept.entries.values() if entry.run == self.run]
        self.attempt = 1 + max(seen, default=-1)

    def charge(self, start: int, stop: int) -> None:
        """Charge a stretch of steps for all agents."""
        if self.shared is not None:
            self._write(self.shared, start, stop, None)
        for agent in range(len(self.own)):
            self.charge_own(agent, start, stop)

    def charge_own(self, agent: int, start: int, stop: int) -> None:
        """Charge a stretch of steps in the ledger of one agent."""
        self._write(self.own[agent], start, stop, agent)

    def require(self, budget: Budget, first: int = 0) -> None:
        """Refuse what would go over the budget; `first` is where a resumed run goes on."""
        if not isinstance(budget, Budget):
            raise TypeError(f"budget is {budget!r}: give sv.Budget(epsilon, delta)")
        if not self.account.report.private:
            raise ValueError(f"a budget of {budget.epsilon:g} was set, but: {self.account.report.statement()}")
        if self.account.tells:
            raise ValueError(
                f"a budget of {budget.epsilon:g} was set, but messages of this design carry private state, and a bound "
                "of its own cannot be added to other runs in a ledger: use a sound design, or leave the budget out"
            )
        # A repeated simulation replaces what it charged; a new attempt comes on top of all earlier ones.
        first = 0 if self.attempt == 0 else first
        planned, stated = range(first, self.account.steps), self.account.adjacency
        if self.shared is not None:
            self.shared.require(
                budget, self.run, self._planned(planned), attempt=self.attempt, first=first, stated=stated
            )
        for agent, ledger in enumerate(self.own):
            name = f"agent {self.account.population.names[agent]}"
            groups = self._planned(planned, agent)
            ledger.require(budget, self.run, groups, name, attempt=self.attempt, first=first, stated=stated)

    def require_own(self, agent: int, budget: Budget) -> None:
        """Refuse what would bring one agent over its budget: what its own ledger holds of other runs counts too."""
        planned, name = self._planned(range(self.account.steps), agent), f"agent {self.account.population.names[agent]}"
        self.own[agent].require(budget, self.run, planned, name, stated=self.account.adjacency)

    def bound(self, budget: Budget) -> Budget:
        """Return the budget with the adjacency in which it counts, the strongest of all ledgers."""
        each = [kept.bound(budget, self.account.adjacency) for kept in self.ledgers]
        return next((one for one in each if one.sense == "replace-one"), each[0])

    def spent(self, budget: Budget) -> float:
        """Return the most that an agent has spent, over all runs in its ledger, as the budget counts."""
        names, how = self.account.population.names, (budget.delta, self.bound(budget).sense)
        if self.shared is not None:
            return max(float(self.shared.epsilon(members[0], *how)) for members in self.shared.alike(names))
        return max(float(kept.epsilon(name, *how)) for name, kept in zip(names, self.own))

    def ensure(self, stop: int, every: int) -> None:
        """Charge what a resumed run has released before step `stop`, if a ledger does not hold it yet."""
        if self.shared is not None:
            for start in range(0, stop, every):
                self.charge(start, min(start + every, stop))
        for agent, ledger in enumerate(self.own):
            held = {t for e in ledger.entries.values() if e.run == self.run for t in range(e.start, e.stop)}
            for t in sorted(set(range(stop)) - held):
                self.charge_own(agent, t, t + 1)

    def _write(self, ledger: Ledger, start: int, stop: int, agent: int | None) -> None:
        self._here.require("a run", "start a run in each process, with a folder of its own")
        ledger.charge(self._entry(range(start, stop), agent))

    def _entry(self, stretch: range, agent: int | None) -> Entry:
        """Return the entry of a stretch, for everyone or in the ledger of one agent."""
        account, summed = self.account, self.account.trace.known.summed
        return Entry(
            self.run,
            stretch.start,
            stretch.stop,
            self._planned(stretch, agent),
            account.population.unit,
            self.attempt,
            account.adjacency,
            owned=agent is not None,
            roster=() if summed is None else summed.holders.names,
            colluding=0 if summed is None else summed.trust.colluding,
        )

    def _planned(self, stretch: range, agent: int | None = None) -> tuple[Group, ...]:
        """Return what is spent by level and kind of agent, or for one agent."""
        account, kinds = self.account, self.account.kinds
        alike = [np.flatnonzero(kinds == kind).tolist() for kind in np.unique(kinds)]
        who = [(agents[0], agents) for agents in alike] if agent is None else [(agent, [agent])]
        names = account.population.names
        groups = []
        for first, agents in who:
            named = tuple(names[number] for number in agents)
            for name, levels in account.groups(first).items():
                unpaid = self._unpaid(agent, named, account.population.bought(first, levels))
                overflow = account.overflow(first, levels, stretch, bought=unpaid)
                groups.append(Group(name, named, self._spent(first, levels, stretch, unpaid), overflow))
        return tuple(groups)

    def _unpaid(self, agent: int | None, named: Sequence[str], purchases: Sequence[Bought]) -> tuple[Bought, ...]:
        """Return the purchases that the ledger does not hold yet for these agents (`NoisyCounts(ledger=...)`)."""
        ledger = self.shared if agent is None else self.own[agent]
        assert ledger is not None
        held = {entry.run for entry in ledger.entries.values() if entry.owned or entry.names >= set(named)}
        return tuple(one for one in purchases if one.name not in held)

    def _spent(self, agent: int, levels: Sequence[str], stretch: range, unpaid: Sequence[Bought]) -> Spent:
        """Return composed releases; infinity for messages of private state, whose bounds (if any) do not compose."""
        account = self.account
        if account.tells:
            return ((Mechanism(pure=math.inf), 1),) if 0 in stretch else ()
        # A record is in one batch of a single pass, and nobody knows which: it pays for the costliest, once per run.
        once = [charge for charge in account.charges if charge.once]
        others = [charge for charge in account.charges if not charge.once]
        whole = range(account.steps) if 0 in stretch or self.first in stretch else range(0)
        return (
            *paid(unpaid, stretch),
            *composed(others, account.population, agent, levels, stretch),
            *composed(once, account.population, agent, levels, whole),
        )


def own_ledgers(folder: Path | None, agents: int) -> list[Ledger]:
    """Return one ledger per agent, in a folder as `ledger-0.jsonl` and so on, or in memory.

    >>> len(own_ledgers(None, 3))
    3
    """
    return [Ledger(folder / f"ledger-{agent}.jsonl" if folder else None) for agent in range(agents)]


def _one_each(ledgers: Sequence[Ledger], agents: int) -> tuple[Ledger, ...]:
    if isinstance(ledgers, str) or not all(isinstance(ledger, Ledger) for ledger in ledgers):
        raise TypeError("ledger is neither a ledger nor a list of them: give sv.Ledger(path), or one for each agent")
    if len(ledgers) != agents:
        raise ValueError(f"there are {len(ledgers)} ledgers for {agents} agents: give one ledger per agent")
    files = [id(ledger) if ledger.path is None else ledger.path.resolve() for ledger in ledgers]
    if len(set(files)) < agents:
        raise ValueError("two agents share a ledger: in a list of ledgers each agent has its own file")
    return tuple(ledgers)
