"""Run a party with rows: it tells sizes, checks that all mean the same run, and computes its own part.

The order is fixed: sizes are sent and public facts compared before anything is drawn; the ledger is charged before each
step; a message is stored before it is sent.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from sottovoce.accounting.account import Account, account_of
from sottovoce.accounting.charging import Charging
from sottovoce.accounting.table import SIMULATED
from sottovoce.deploy import own_part, sums
from sottovoce.deploy.bounds import weights_of
from sottovoce.deploy.flare import FlareTransport, fact, neighbours
from sottovoce.deploy.order import MEETING, OTHERS, Seat
from sottovoce.experiments import build
from sottovoce.experiments.planned import setup
from sottovoce.experiments.rows import RowsSetup
from sottovoce.privacy.ledger import Budget, Ledger
from sottovoce.privacy.report import PrivacyReport, units_of
from sottovoce.runtime import generations, peers
from sottovoce.runtime.about import FEDERATION, About, about_rows
from sottovoce.runtime.exchange import expected_of
from sottovoce.runtime.jobs import as_drawn, check_exact
from sottovoce.runtime.keys import agent_keys, common_key
from sottovoce.runtime.layout import alone, lay_out, own_digests
from sottovoce.runtime.lone_agent import BY_ITSELF, LoneAgent, programs_of
from sottovoce.runtime.loop import Job, Run, drive
from sottovoce.runtime.place import WholePlace
from sottovoce.runtime.result import Result
from sottovoce.runtime.run import EVALUATED
from sottovoce.runtime.run_state import RunFolder


class LonePlace(WholePlace):
    """Run one site's part: an agent that talks to the others, or its part of the one agent of secure sums."""

    def __init__(self, agent: LoneAgent, problem: Any, transport: FlareTransport, folder: Path) -> None:
        super().__init__(agent.programs.spec.trace, problem, deployed=agent.noise == "discrete")
        self.agent, self.transport, self.folder = agent, transport, folder

    @property
    def holds(self) -> range:
        """Return this agent alone."""
        return range(self.agent.role, self.agent.role + 1)

    def begin(self) -> list[Any]:
        """Return the first state."""
        return [jnp.asarray(leaf)[None] for leaf in self.agent.begin(self.transport)[0]]

    def advance(self, state: list[Any], first: int, count: int) -> tuple[list[Any], np.ndarray]:
        """Run some steps; what is older than the last checkpoint is not needed again."""
        stored = generations.latest(self.folder, peers.current()) or 0
        self.transport.stored = stored
        self.transport.tidy(stored)
        after, broken = self.agent.advance(self.transport, [leaf[0] for leaf in state], first, count)
        return [jnp.asarray(leaf)[None] for leaf in after], broken


def take_part(seat: Seat, transport: FlareTransport) -> None:
    """Run to the end, from the last checkpoint on, and store this party's model, result and statement."""
    made, account = _agreed(seat, transport)
    result, folder = _computed(seat, made, account, transport)
    made.save(result, folder)


def _agreed(seat: Seat, transport: FlareTransport) -> tuple[RowsSetup, Account]:
    """Read the records, tell sizes, hear those of the others, and check that all parties mean the same run."""
    case, (parts, test, shape) = own_part.read(seat.case, seat.policy, seat.home, seat.deploy.sites, seat.me)
    own = parts[seat.me if len(parts) > 1 else 0]
    numbers = np.array(own_part.sizes(own), np.int64)
    transport.state(fact(seat.order.run, seat.me, "sizes", [numbers], disclosed=True))
    told = {
        name: numbers.tolist() if peer == seat.me else _numbers(seat, transport, peer)
        for peer, name in enumerate(seat.deploy.sites)
    }
    seat.policy.require_most(seat.name, "weights", weights_of(build.task_table(case.task, shape), shape))
    if len(parts) == 1:
        parts = own_part.with_stand_ins(own, told, seat.name)
    made = setup(case, loaded=(parts, test, shape))
    assert isinstance(made, RowsSetup)
    seat.policy.require_most(seat.name, "steps", made.steps)  # `auto` has chosen them
    privacy = made.case.privacy  # `auto` has chosen its sense
    account = account_of(
        made.method, made.parts, made.steps, made.graph, privacy.delta, privacy.adjacency, made.problem, made.trust
    )
    if account.report.epsilon > seat.policy.epsilon:
        raise PermissionError(
            f"the policy of {seat.name} does not agree to epsilon {account.report.epsilon:g}: at most "
            f"{seat.policy.epsilon:g}"
        )
    if seat.deploy.noise == "exact":
        check_exact(account)
    epsilon = [account.report.epsilon, account.delta, account.adjacency, account.steps, account.population.unit]
    seat.compare(transport, "facts", {"told": told, "program": account.trace.identity, "epsilon": epsilon})
    return made, account


def _numbers(seat: Seat, transport: FlareTransport, peer: int) -> list[int]:
    values = transport.learn(peer, "sizes", MEETING).values
    if len(values) != 1 or values[0].ndim != 1 or values[0].dtype != np.int64 or values[0].size > 3:
        raise ValueError(
            f"{seat.deploy.sites[peer]} sent sizes that cannot be read: does it run this version of sottovoce?"
        )
    return [int(number) for number in values[0]]


def _computed(seat: Seat, made: RowsSetup, account: Account, transport: FlareTransport) -> tuple[Result, Path]:
    """Charge, compute and talk, from the last checkpoint on."""
    me, sites, exact, out = seat.me, seat.deploy.sites, seat.deploy.noise == "exact", seat.folder / "run"
    transport.steps = account.steps
    folder = RunFolder.open(out, resume=True)
    ledgers = [Ledger(seat.home / "ledger.jsonl") if k == me else Ledger() for k in range(len(sites))]
    charging = Charging(ledgers, folder.name, account)
    budget = Budget(seat.policy.budget, seat.policy.delta, seat.policy.adjacency)
    charging.require_own(me, budget)
    layout = lay_out(made.parts, range(me, me + 1))
    counts = account.trace.known.holders.counts
    records = {level: alone(sealed, 0, int(counts[level][me])) for level, sealed in layout.sealed.items()}
    begin_with = folder.secret.hex() if exact else seat.case.run.seeds[0]

    def pay(agent: int, t: int) -> None:
        charging.charge_own(agent, t, t + 1)
        transport.charged = True

    transport.first = transport.stored = generations.latest(out, peers.current()) or 0
    transport.outbox.require(transport.stored)
    digests = own_digests(layout)
    drawn, root = BY_ITSELF, agent_keys(begin_with, account.trace.identity, digests)[0]
    senders = neighbours(account.network.matrices, me)
    if account.trace.known.summed is not None:
        member = sums.member(seat, transport, account, folder.seal([np.frombuffer(digests[0], np.uint8)]))
        drawn, root, senders = member, common_key(member.session.roster.digest), sums.speakers(seat)
    agent = LoneAgent(
        me, programs_of(account.trace, seat.case.run.chunk), records, root, "discrete" if exact else "simulated",
        pay, run=seat.order.run, journal=transport.outbox, drawn=drawn,
    )  # fmt: skip
    place = LonePlace(agent, made.problem, transport, out)
    transport.expected = expected_of(account.trace)
    transport.expect(senders)
    identity = {"program": account.trace.identity, "noise": seat.deploy.noise, "run": seat.order.run}

    def about() -> About:
        spent = float(ledgers[me].epsilon(seat.name, budget.delta, budget.sense))
        return about_rows(account, f"{FEDERATION} of {len(sites)} sites", budget, spent)

    job = Job(
        place, _stated(account, exact, seat.caveats), identity, lambda start, stop: None, lambda step: None, about
    )
    every = seat.case.run.every or max(1, account.steps // 10)
    evaluate = made.judge() if made.test is not None else None
    last = drive(Run(job, folder, True, account.steps, every, evaluate, seat.name, False))
    transport.leave(me)
    report = job.report
    if absent := str(transport.absences):
        words = f"the run went on without {absent}; this costs no privacy, because it changes no release"
        report = replace(report, caveats=(*report.caveats, words))
    return replace(place.result(last.leaves, last.stacked(), report), about=job.about()), out


def _stated(account: Account, exact: bool, caveats: tuple[str, ...]) -> PrivacyReport:
    report = as_drawn(account) if exact else replace(
        account.statement, caveats=(*account.statement.caveats, SIMULATED), drawn="simulated"
    )  # fmt: skip
    return replace(report, caveats=(*report.caveats, _told(account), OTHERS, EVALUATED, *caveats))


def _told(account: Account) -> str:
    """Say what was told about sizes: they are counted by the policy's own unit."""
    population = account.population
    several = " in each level, and how its levels are known to be apart," if len(population.sizes) > 1 else ""
    return f"the number of {units_of(population.unit)} of each party{several} was told to all parties, without noise"
