"""One party's run: from the text of a run file to its own result, with its own policy, ledger and checkpoints.

The order is fixed: the policy is asked before a record is read; sizes are told and public facts compared before
anything is drawn; the ledger is charged before each step; what is said is kept before it is sent.
"""

import hashlib
import importlib.metadata
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from sottovoce.accounting.account import Account, account_of
from sottovoce.accounting.charging import Charging
from sottovoce.deploy import own_part
from sottovoce.deploy.flare import Call, FlareTransport, fact, neighbours
from sottovoce.deploy.outbox import Outbox
from sottovoce.deploy.policy import Policy
from sottovoce.deploy.presence import Absences
from sottovoce.deploy.tunnel import Identity
from sottovoce.experiments.execute import RowsSetup, setup
from sottovoce.experiments.runfile import Case, DeployTable, RunFile
from sottovoce.privacy.ledger import Budget, Ledger
from sottovoce.privacy.report import PrivacyReport
from sottovoce.reports import comparison, write_report
from sottovoce.runtime import generations, peers
from sottovoce.runtime.keys import agent_keys
from sottovoce.runtime.layout import alone, lay_out, own_digests
from sottovoce.runtime.lone_agent import LoneAgent, programs_of
from sottovoce.runtime.place import WholePlace
from sottovoce.runtime.result import Result
from sottovoce.runtime.run import EVALUATED, SIMULATED, Job, as_drawn, check_exact, drive, program_of
from sottovoce.runtime.run_state import RunFolder, keep_for_one_run
from sottovoce.runtime.transport import Patience

TOLD = "the number of records of each party was told to all parties, without noise"
_MEETING = 600.0  # seconds for all sites to be there
_ENDING = 120.0  # seconds for an earlier process of this party to end
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Order:
    """What a site is asked to do: all that travels. `text` is a run file, `run` the run's name."""

    text: str
    run: str

    def case(self) -> tuple[str, Case, DeployTable]:
        """Return the file's title, its one case and its table [deploy]."""
        runfile = RunFile.parse(self.text)
        if len(runfile.cases) != 1:
            raise ValueError(
                f"the run file has {len(runfile.cases)} variants: a federation runs one; use --set or split"
            )
        case = next(iter(runfile.cases.values()))
        for key in ("columns", "select"):
            if getattr(case, key) is not None:
                raise ValueError(f"[{key}] is not for peers with rows: remove it")
        if case.deploy is None:
            raise ValueError('the run file has no [deploy]: add it, with sites = ["north", "south"]')
        return runfile.title, case, case.deploy


class LonePlace(WholePlace):
    """One agent, which talks to the others."""

    def __init__(self, agent: LoneAgent, problem: Any, transport: FlareTransport, folder: Path) -> None:
        super().__init__(agent.programs.spec.trace, problem, deployed=agent.noise == "discrete")
        self.agent, self.transport, self.folder = agent, transport, folder

    @property
    def holds(self) -> range:
        """This agent alone."""
        return range(self.agent.me, self.agent.me + 1)

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


@dataclass
class Party:
    """A site's part in one run. `home` is the site's folder: kit, policy, ledger and runs."""

    home: Path
    name: str
    order: Order
    call: Call
    agreed: Callable[[str, int, bool], bool] | None = None  # asks the relay who is away
    transport: FlareTransport | None = None
    steps: int | None = None
    finished: bool = False

    def __post_init__(self) -> None:
        self.title, self.case, self.deploy = self.order.case()
        if self.name not in self.deploy.sites:
            raise ValueError(f"{self.name} is not in deploy.sites ({', '.join(self.deploy.sites)})")
        self.me = self.deploy.sites.index(self.name)
        self.policy = Policy.load(self.home / "policy.toml")
        self.folder = self.home / "runs" / self.order.run
        kit = self.home / "startup"
        self.identity = Identity(kit / "client.crt", kit / "client.key", kit / "rootCA.pem", self.policy.peers)

    def live(self) -> None:
        """Take part from the beginning to the end, or from where an earlier process stopped.

        One process at a time: two would draw and say different things. An earlier one that is about to end is waited
        for.
        """
        deadline = time.monotonic() + _ENDING
        while True:
            try:
                with keep_for_one_run(self.folder / "run"):
                    self.prepare()
                    return self.run()
            except TimeoutError as error:
                if self.transport is not None or time.monotonic() > deadline:
                    raise
                _log.info("%s", error)
                time.sleep(1.0)

    def prepare(self) -> None:
        """Ask the policy, and open the line to the others; no record is read."""
        self.policy.require(self.case, self.name, self.deploy.noise, self.deploy.sites)
        if (self.folder / "run" / "result.json").exists():
            self.finished = True
        self.transport = FlareTransport(
            self.me, self.deploy.sites, self.order.run, Outbox(self.folder / "outbox"), self.identity, self.call,
            Patience(self.deploy.deadline), self.agreed if self.deploy.absent == "go on" else None,
            Absences(self.folder / "absent.json"),
        )  # fmt: skip
        if self.finished:  # the others may still need what was said
            self.transport.outbox.end()

    def run(self) -> None:
        """Run to the end, and write this party's result and report."""
        if self.finished:
            return
        assert self.transport is not None
        made, account = self._agreed(self.transport)
        result, folder = self._computed(made, account, self.transport)
        made.save(result, folder)
        row = {"name": self.name, "kind": "together", "metric": self.case.run.metric, "runs": ["run"]}
        comparison.save_plan(self.folder, f"{self.title}, {self.name}", self.order.text, (), [row])
        write_report(comparison.load(self.folder), self.folder / "report.html")
        self.finished = True

    def _agreed(self, transport: FlareTransport) -> tuple[RowsSetup, Account]:
        """Read the records, tell sizes, hear those of the others, and check that all parties mean the same run."""
        case, (parts, test, shape) = own_part.read(self.case, self.policy, self.home, self.deploy.sites, self.me)
        own = parts[self.me if len(parts) > 1 else 0]
        numbers = np.array(own_part.sizes(own), np.int64)
        transport.state(fact(self.order.run, self.me, "sizes", [numbers], disclosed=True))
        told = {
            name: numbers.tolist() if peer == self.me else self._numbers(transport, peer)
            for peer, name in enumerate(self.deploy.sites)
        }
        if len(parts) == 1:
            parts = own_part.with_stand_ins(own, told, self.name)
        made = setup(case, loaded=(parts, test, shape))
        assert isinstance(made, RowsSetup)
        privacy = case.privacy
        account = account_of(
            made.method, made.parts, made.steps, made.network, privacy.delta, privacy.adjacency, made.problem
        )
        if account.report.epsilon > self.policy.epsilon:
            raise PermissionError(f"the policy of {self.name} does not agree to epsilon {account.report.epsilon:g}")
        if self.deploy.noise == "exact":
            check_exact(account)
        mine = self._digest(account, told)
        transport.state(fact(self.order.run, self.me, "facts", [np.frombuffer(mine, np.uint8)], disclosed=False))
        for peer, name in enumerate(self.deploy.sites):
            if peer != self.me and transport.learn(peer, "facts", _MEETING).values[0].tobytes() != mine:
                raise ValueError(
                    f"{name} would run something else than {self.name}: all sites need the same version of sottovoce "
                    "and JAX, the same run file and the same declared columns"
                )
        return made, account

    def _numbers(self, transport: FlareTransport, peer: int) -> list[int]:
        values = transport.learn(peer, "sizes", _MEETING).values
        if len(values) != 1 or values[0].ndim != 1 or values[0].dtype != np.int64 or values[0].size > 3:
            raise ValueError(f"{self.deploy.sites[peer]} tells sizes that are none")
        return [int(number) for number in values[0]]

    def _digest(self, account: Account, told: Any) -> bytes:
        """Return a digest of all public facts."""
        facts = {
            "order": [self.order.text, self.order.run],
            "told": told,
            "program": program_of(account),
            "epsilon": [
                account.report.epsilon,
                account.delta,
                account.adjacency,
                account.steps,
                account.population.unit,
            ],
            "versions": [importlib.metadata.version(name) for name in ("sottovoce", "jax", "numpy")],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()

    def _computed(self, made: RowsSetup, account: Account, transport: FlareTransport) -> tuple[Result, Path]:
        """Charge, compute and talk, from the last checkpoint on."""
        exact, out = self.deploy.noise == "exact", self.folder / "run"
        self.steps = account.steps
        folder = RunFolder.open(out, resume=True)
        ledgers = [
            Ledger(self.home / "ledger.jsonl") if k == self.me else Ledger() for k in range(len(self.deploy.sites))
        ]
        charging = Charging(ledgers, folder.name, account)
        charging.require_own(self.me, Budget(self.policy.budget, self.policy.delta, account.adjacency))
        layout = lay_out(made.parts, range(self.me, self.me + 1))
        counts = account.population.counts
        records = {level: alone(sealed, 0, int(counts[level][self.me])) for level, sealed in layout.sealed.items()}
        begin_with = folder.secret.hex() if exact else self.case.run.seeds[0]
        root = agent_keys(begin_with, program_of(account), own_digests(layout))[0]
        agent = LoneAgent(
            self.me, programs_of(account.trace, self.case.run.chunk), records, root,
            "discrete" if exact else "simulated", lambda agent, t: charging.charge_own(agent, t, t + 1),
            run=self.order.run, journal=transport.outbox,
        )  # fmt: skip
        place = LonePlace(agent, made.problem, transport, out)
        stored = generations.latest(out, peers.current()) or 0
        transport.first = transport.stored = stored
        transport.expect(neighbours(account.network.matrices, self.me))
        identity = {"program": program_of(account), "noise": self.deploy.noise, "run": self.order.run}
        job = Job(place, self._stated(account, exact), identity, lambda start, stop: None, lambda step: None)
        every = self.case.run.every or max(1, account.steps // 10)
        evaluate = made.judge() if made.test is not None else None
        last = drive(job, folder, True, account.steps, evaluate, every, self.name, False)
        transport.leave(self.me)
        report = job.report
        if absent := str(transport.absences):
            words = f"the run went on without {absent}; this costs no privacy, because it changes no release"
            report = replace(report, caveats=(*report.caveats, words))
        return place.result(last.leaves, last.stacked(), report), out

    def _stated(self, account: Account, exact: bool) -> PrivacyReport:
        report = as_drawn(account) if exact else replace(
            account.statement, caveats=(*account.statement.caveats, SIMULATED), drawn="simulated"
        )  # fmt: skip
        return replace(report, caveats=(*report.caveats, TOLD, EVALUATED))

    def where(self) -> dict[str, Any]:
        """Say how far this party is, and for whom it waits: public facts only."""
        transport = self.transport
        waits = None if transport is None else transport.waits_for
        return {
            "state": "done" if self.finished else "running",
            "steps": self.steps,
            "round": None if transport is None else transport.round,
            "waits for": None if waits is None else self.deploy.sites[waits[0]],
            "since": None if waits is None else waits[1],
        }
