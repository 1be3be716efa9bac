"""A run's books: what each agent spends in a stretch of steps, charged before anything of it is released."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce import accounting
from sottovoce.methods.base import Method
from sottovoce.networks import Network
from sottovoce.privacy.accountant import Mechanism, check_adjacency
from sottovoce.privacy.ledger import OWNER, Budget, Entry, Group, Ledger
from sottovoce.privacy.mechanisms import Spent
from sottovoce.privacy.report import PrivacyReport
from sottovoce.privacy.sampling import OnePass
from sottovoce.runtime.recorder import charges
from sottovoce.runtime.store import Layout


class Books:
    """The charges of one run, in a ledger that all agents share, or in one that each keeps for itself.

    A simulation is one process that holds everybody's records, so one file will do. Deployed agents keep their own: it
    outlives the run, and only its owner writes it.
    """

    def __init__(
        self,
        ledger: Ledger | Sequence[Ledger],
        run: str,
        method: Method,
        problem: Any,
        layout: Layout,
        network: Network,
        steps: int,
        report: PrivacyReport,
    ) -> None:
        self.shared = ledger if isinstance(ledger, Ledger) else None
        self.own = () if isinstance(ledger, Ledger) else _one_each(ledger, layout.agents)
        for kept in [self.shared] if self.shared is not None else self.own:
            kept.check(layout.unit, owned=self.shared is None)
        self.run, self.layout, self.steps, self.report = run, layout, steps, report
        self.notes = charges(method, layout.sizes, steps, network, problem)
        self.told = any(note.sampling is None for note in self.notes)  # private state is sent
        self.kinds = accounting.kinds(self.notes, layout.sizes)

    def charge(self, start: int, stop: int) -> None:
        """Write a stretch down for everyone."""
        if self.shared is not None:
            self._write(self.shared, start, stop, None)
        for agent in range(len(self.own)):
            self.charge_own(agent, start, stop)

    def charge_own(self, agent: int, start: int, stop: int) -> None:
        """Write a stretch down in the ledger of one agent."""
        self._write(self.own[agent], start, stop, agent)

    def require(self, budget: Budget) -> None:
        """Refuse what would go over the budget."""
        if not isinstance(budget, Budget):
            raise TypeError(f"budget is {budget!r}: give sv.Budget(epsilon, delta)")
        if self.told or not self.report.private:
            raise ValueError(f"a budget of {budget.epsilon:g} was set, but: {self.report.statement()}")
        whole, adjacency = range(self.steps), check_adjacency(self.report.adjacency)
        if self.shared is not None:
            self.shared.require(budget, self.run, self._planned(whole), adjacency)
        for agent, ledger in enumerate(self.own):
            ledger.require(budget, self.run, self._planned(whole, agent), adjacency, f"agent {agent}")

    def _write(self, ledger: Ledger, start: int, stop: int, agent: int | None) -> None:
        ledger.charge(Entry(self.run, start, stop, self._planned(range(start, stop), agent), self.layout.unit))

    def _planned(self, stretch: range, agent: int | None = None) -> tuple[Group, ...]:
        """By level and kind of agent, or for one; units that are in both levels pay for both at once."""
        sizes = self.layout.sizes
        levels = {"both": tuple(sizes)} if self.layout.shared_units else {level: (level,) for level in sizes}
        kinds = [np.flatnonzero(self.kinds == kind).tolist() for kind in np.unique(self.kinds)]
        who = [(agents[0], tuple(agents)) for agents in kinds] if agent is None else [(agent, (OWNER,))]
        return tuple(
            Group(name, agents, self._spent(first, read, stretch))
            for name, read in levels.items()
            for first, agents in who
        )

    def _spent(self, agent: int, levels: Sequence[str], stretch: range) -> Spent:
        """Composed releases; infinity for messages of private state, whose bounds (if any) do not compose."""
        if self.told:
            return ((Mechanism(pure=math.inf), 1),) if 0 in stretch else ()
        # A record is in one batch of a single pass, which one is not told: it pays for the dearest, once a run.
        once = [note for note in self.notes if isinstance(note.sampling, OnePass)]
        others = [note for note in self.notes if not isinstance(note.sampling, OnePass)]
        whole = range(self.steps) if 0 in stretch else range(0)
        sizes = self.layout.sizes
        return (
            *accounting.spent(others, sizes, agent, levels, stretch),
            *accounting.spent(once, sizes, agent, levels, whole),
        )


def own_ledgers(folder: Path | None, agents: int) -> list[Ledger]:
    """A ledger an agent, in a folder as `ledger-0.jsonl` and so on, or in memory."""
    return [Ledger(folder / f"ledger-{agent}.jsonl" if folder else None) for agent in range(agents)]


def _one_each(ledgers: Sequence[Ledger], agents: int) -> tuple[Ledger, ...]:
    if isinstance(ledgers, str) or not all(isinstance(ledger, Ledger) for ledger in ledgers):
        raise TypeError("ledger is neither a ledger nor a list of them: give sv.Ledger(path), or one for each agent")
    if len(ledgers) != agents:
        raise ValueError(f"there are {len(ledgers)} ledgers for {agents} agents: give one ledger an agent")
    files = [id(ledger) if ledger.path is None else ledger.path.resolve() for ledger in ledgers]
    if len(set(files)) < agents:
        raise ValueError("two agents share a ledger: in a list of ledgers each agent has its own file")
    return tuple(ledgers)
