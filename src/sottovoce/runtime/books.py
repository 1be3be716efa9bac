"""A run's books: what each agent spends in a stretch of steps, charged before anything of it is released."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce import accounting
from sottovoce.methods.base import Method
from sottovoce.networks import Network
from sottovoce.privacy.accountant import check_adjacency
from sottovoce.privacy.ledger import OWNER, Budget, Entry, Group, Ledger
from sottovoce.privacy.report import PrivacyReport
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
        self.run, self.layout, self.steps, self.report = run, layout, steps, report
        self.notes = charges(method, layout.sizes, steps, network, problem)
        self.kinds = accounting.kinds(method, layout.sizes)

    def charge(self, start: int, stop: int) -> None:
        """Write a stretch down for everyone."""
        if self._counts():
            if self.shared is not None:
                self.shared.charge(Entry(self.run, start, stop, self._planned(range(start, stop))))
            for agent in range(len(self.own)):
                self.charge_own(agent, start, stop)

    def charge_own(self, agent: int, start: int, stop: int) -> None:
        """Write a stretch down in the ledger of one agent."""
        self.own[agent].charge(Entry(self.run, start, stop, self._planned(range(start, stop), agent)))

    def require(self, budget: Budget) -> None:
        """Refuse what would go over the budget."""
        if not isinstance(budget, Budget):
            raise TypeError(f"budget is {budget!r}: give sv.Budget(epsilon, delta)")
        if not self._counts():
            raise ValueError(f"a budget of {budget.epsilon:g} was set, but: {self.report.statement()}")
        whole, adjacency = range(self.steps), check_adjacency(self.report.adjacency)
        if self.shared is not None:
            self.shared.require(budget, self.run, self._planned(whole), adjacency)
        for agent, ledger in enumerate(self.own):
            ledger.require(budget, self.run, self._planned(whole, agent), adjacency, f"agent {agent}")

    def _counts(self) -> bool:
        """Whether the charges say all there is: not where private state is sent."""
        return self.report.private and not any(note.sampling is None for note in self.notes)

    def _planned(self, stretch: range, agent: int | None = None) -> tuple[Group, ...]:
        """By level and kind of agent, or for one; units that are in both levels pay for both at once."""
        sizes = self.layout.sizes
        levels = {"both": tuple(sizes)} if self.layout.shared_units else {level: (level,) for level in sizes}
        if agent is None:
            who = [tuple(np.flatnonzero(self.kinds == kind).tolist()) for kind in np.unique(self.kinds)]
        else:
            who = [(agent,)]
        return tuple(
            Group(
                name,
                agents if agent is None else (OWNER,),
                accounting.spent(self.notes, sizes, agents[0], read, stretch),
            )
            for name, read in levels.items()
            for agents in who
        )


def own_ledgers(folder: Path | None, agents: int) -> list[Ledger]:
    """A ledger an agent, in a folder as `ledger-0.jsonl` and so on, or in memory."""
    return [Ledger(folder / f"ledger-{agent}.jsonl" if folder else None) for agent in range(agents)]


def _one_each(ledgers: Sequence[Ledger], agents: int) -> tuple[Ledger, ...]:
    if len(ledgers) != agents:
        raise ValueError(f"there are {len(ledgers)} ledgers for {agents} agents: give one ledger an agent")
    files = [id(ledger) if ledger.path is None else ledger.path.resolve() for ledger in ledgers]
    if len(set(files)) < agents:
        raise ValueError("two agents share a ledger: in a list of ledgers each agent has its own file")
    return tuple(ledgers)
