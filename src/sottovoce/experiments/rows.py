"""Build a case of parties with rows: records, task, network and method, with the noise that its epsilon needs."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sottovoce import accounting
from sottovoce.accounting import advice, sums
from sottovoce.data.declarations import Column, Declarations
from sottovoce.data.held import held
from sottovoce.data.parts import Levels, Part
from sottovoce.data.population import Population
from sottovoce.experiments import build, choice, own_table
from sottovoce.experiments.schema import AUTO, Case
from sottovoce.experiments.setup import Setup, both
from sottovoce.methods import Method
from sottovoce.naming import unknown
from sottovoce.networks import Network, isolated
from sottovoce.privacy.ledger import Budget
from sottovoce.privacy.mechanisms import check_adjacency
from sottovoce.privacy.report import PrivacyReport
from sottovoce.privacy.sampling import Sampling
from sottovoce.privacy.summed import Summed
from sottovoce.privacy.trust import Sum
from sottovoce.problems import objectives, tasks
from sottovoce.problems.tasks.base import Evaluate, Task
from sottovoce.problems.tasks.robust import numbered
from sottovoce.registry import over_columns
from sottovoce.reports import comparison
from sottovoce.runtime import model_file, peers
from sottovoce.runtime.coefficients import Coefficients, empty_directions, in_units, passage
from sottovoce.runtime.mesh import Grid
from sottovoce.runtime.performance import Performance
from sottovoce.runtime.result import Result
from sottovoce.runtime.run import run
from sottovoce.schedules import same_for_all
from sottovoce.shown import Shown
from sottovoce.tuning.curves import curves_pay, price

_WEIGHTED = ("logistic", "softmax", "ridge")  # tasks that count a record with its weight
_FEWEST = 3  # parties that secure sums are for, of which one may collude
_TOLD_APART = 64  # up to this number of agents, a run records the metrics of each one
Loaded = tuple[list[Any], Any, tasks.Shape]  # the parties' parts, test records, and what a task may know of them


@dataclass(frozen=True, repr=False)
class RowsSetup(Setup, Shown):
    """Hold a case with everything built that `run` takes."""

    case: Case
    task: Task
    parts: list[Any]
    test: Any
    network: Network
    method: Method
    shape: tasks.Shape
    why: tuple[str, ...] = ()  # why `auto` chose this
    expected: tuple[str, ...] = ()  # warnings about what noise will do
    sample: Any = None  # training records for metrics, taken before other processes' records are dropped
    judges: choice.Judges | None = None  # with [select]: what a trial is scored on
    share: bool = False  # whether runs with other numbers share its compiled program
    trust: Sum | None = None  # secure sums over the parties

    @cached_property
    def account(self) -> PrivacyReport:
        """Return the privacy statement, computed without running."""
        return self._stated(self.one_run)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Return what a user should look at before the run: parties that are small, delta, and what noise will do."""
        if not self.case.privacy.enabled:
            return ()
        shared = all(same_for_all(release.scale) for release in self.method.releases())
        population = Population.of(self.parts)
        if self.trust is not None:
            population = Summed(self.trust, population).program
        return (*advice.before(population, self.delta, shared_noise=shared), *self.expected)

    @cached_property
    def gain(self) -> str:
        """Say what secure sums would change; nothing where they serve already, or cannot."""
        privacy, population = self.case.privacy, Population.of(self.parts)
        if self.trust is not None or population.parties < _FEWEST or not privacy.enabled or self.judges is not None:
            return ""
        trust, shared = Sum(), all(same_for_all(release.scale) for release in self.method.releases())
        probe = self.method.map_releases(lambda release: replace(release, noise=1.0))
        try:
            accounting.account(probe, self.parts, **{**self.setting, "network": None, "trust": trust})
        except (ValueError, TypeError):
            return ""
        less = sums.gain(trust, population, shared_noise=shared)
        return (
            f'privacy.trust = "sum" would need {less:.2g} times less noise in what all learn: parties would share one '
            f"noise, against any {trust.colluding} of the {population.parties} together"
        )

    @cached_property
    def one_run(self) -> PrivacyReport:
        """Return the statement of one run; with [select] there are several, and `account` covers the best of them."""
        return accounting.account(self.method, self.parts, delta=self.delta, **self.setting)

    def _stated(self, own: PrivacyReport) -> PrivacyReport:
        return own if self.judges is None else choice.stated(own, self.case, self.judges)

    @property
    def data(self) -> list[Any]:
        """Return the parties' parts."""
        return self.parts

    @property
    def problem(self) -> Any:
        """Return what is solved."""
        return self.task.problem

    @property
    def graph(self) -> Network | None:
        """Return who talks to whom."""
        return self.network if self.trust is None else None

    @property
    def delta(self) -> float:
        """Return the delta of the statement."""
        return self.case.privacy.delta

    @cached_property
    def setting(self) -> dict[str, Any]:
        """Return what `account` and `calibrate` take besides the method, the parts and delta."""
        return {
            "steps": self.steps,
            "network": self.graph,
            "trust": self.trust,
            "adjacency": self.case.privacy.adjacency,
            "problem": self.task.problem,
        }

    def calibrated(self) -> "RowsSetup":
        """Return the setup with the noise that the wanted epsilon needs."""
        wanted = self.case.privacy
        if wanted.epsilon is None:
            return self
        method = accounting.calibrate(
            self.method, self.parts, epsilon=wanted.epsilon, delta=wanted.delta, **self.setting
        )
        return replace(self, method=method)

    def alone(self) -> "RowsSetup":
        """Return the setup in which each party trains alone.

        Noise and sizes stay the same, so epsilon does too. In place of a sum's noise, which is for the records of all,
        each party has noise for the same epsilon of its own.
        """
        if len(self.parts) > _TOLD_APART:
            raise ValueError(
                f"compare.alone needs the metrics of each party, which runs record for up to {_TOLD_APART} parties; "
                f"there are {len(self.parts)}: set compare.alone = false, or lower data.agents"
            )
        alone = replace(self, network=isolated(len(self.parts)), trust=None)
        return alone if self.trust is None else alone.calibrated()

    def pooled(self) -> "RowsSetup":
        """Return the setup of one party with all records, without privacy.

        A batch has as many records as the batches of all parties together.
        """
        first, agents = self.parts[0], len(self.parts)
        if isinstance(first, Levels):
            everything: Any = Levels(_joined([p.upper for p in self.parts]), _joined([p.lower for p in self.parts]))
        else:
            everything = _joined(self.parts)
        network = isolated(1)
        method = _with_batches(self.method.without_privacy(), 1 if self.trust is not None else agents)
        return replace(self, parts=[everything], network=network, method=method, trust=None)

    def here(self) -> "RowsSetup":
        """Return the setup with the records of this process's parties alone."""
        if peers.current().count == 1 or self.trust is not None:  # a sum is one agent with everybody's records
            return self
        own = Grid(self._devices).held(len(self.parts))
        sample = None if self.case.run.train is None else _some(self.parts, self.case.run.train)
        return replace(self, parts=held(self.parts, own), sample=sample)

    @property
    def _devices(self) -> int:
        return self.case.run.devices if len(self.parts) > 1 and self.trust is None else 1

    @property
    def public_test(self) -> bool:
        """Say whether test rows are public: those of ready-made data sets are, those of one's own table are not."""
        return self.case.data.file is None

    def judge(self) -> Evaluate:
        """Return metrics on test records and, if wanted, on some training records of every party, the loss first."""
        on_test = _judge(self.task, own_table.Same(self.test)) if self.test is not None else lambda *variables: {}
        if self.case.data.file is not None and self.test is not None:
            on_test = own_table.in_units(on_test, self.test, self.case.data, self.task)
        if (count := self.case.run.train) is None:
            return on_test
        return both(on_test, self.task.metrics(_some(self.parts, count) if self.sample is None else self.sample))

    def check_metric(self) -> None:
        """Refuse a metric that the task does not have, before anything is run."""
        if (wanted := self.case.run.metric) is not None:
            build.check_metric(wanted, self.metrics())
        if self.case.select is not None and self.case.select.metric not in self.metrics():
            raise ValueError("select.metric: " + unknown("metric", self.case.select.metric, self.metrics()))

    def metrics(self) -> list[str]:
        """Return the names of what a run measures."""
        return list(jax.eval_shape(self.judge(), *objectives.start(self.task.problem)))

    def run(self, seed: int, out: Path | None = None, resume: bool = False) -> Result:
        """Run it once."""
        return self.finished(run(**self.arguments(seed, out, resume)), out)

    def arguments(self, seed: int, out: Path | None = None, resume: bool = False) -> dict[str, Any]:
        """Return the arguments of `sv.run`."""
        how, privacy = self.case.run, self.case.privacy
        return {
            "problem": self.task.problem,
            "data": self.parts,
            "method": self.method,
            "steps": self.steps,
            "network": self.graph,
            "trust": self.trust,
            "seed": seed,
            "evaluate": self.judge(),
            "public_test": self.public_test,
            "every": how.every,
            "out": out,
            "resume": resume,
            "delta": privacy.delta,
            "adjacency": privacy.adjacency,
            "budget": self._budget(),
            "performance": Performance(how.chunk, self._devices, share=self.share),
        }

    def finished(self, result: Result, out: Path | None) -> Result:
        """Return a run's result with the statement of this case, and store its model beside it."""
        result = replace(result, privacy=self._stated(result.privacy))
        if out is not None and peers.current().leads:
            self._save_model(result, out)
        return result

    def save(self, result: Result, out: Path) -> None:
        """Store the result of a run that had no folder."""
        result.save(out)
        self._save_model(result, out)

    def _save_model(self, result: Result, out: Path) -> None:
        if self.case.data.file is not None and result.predictor is not None:
            assert self.case.task is not None
            task = model_file.NamedTask(self.case.task.name, self.case.task.options, self.shape)
            table = build.own(self.case.data)[0]
            known = self._coefficients(result, table.columns, table.target)
            model_file.save_with(known, result, out / model_file.NAME, table, task)

    def _coefficients(self, result: Result, columns: Declarations, label: Column) -> Coefficients | None:
        """Return the coefficients in the columns' own units, where their errors are known."""
        data = self.case.data
        if data.weight is not None or data.unit is not None:
            return None
        sizes = [len(part) for part in self.parts]
        found = passage(result.agents, self.method, self.task.problem, sizes, self.steps, self.trust)
        if found is None:
            return None
        on = f"log odds of {label.names[1]}" if not label.numeric else f"{'the logarithm of ' * label.log}{data.label}"
        encoded = found.coefficients(columns.names, empty_directions(columns, found.norm))
        return replace(in_units(encoded, columns, label), on=on)

    def _budget(self) -> Budget | None:
        """Return the run file's budget, under the adjacency in which its epsilon is stated."""
        privacy = self.case.privacy
        if not privacy.budget or not self.account.private:
            return None
        return Budget(privacy.budget, privacy.delta, check_adjacency(self.account.adjacency))


def setup(case: Case, draws: bool = True, loaded: Loaded | None = None) -> RowsSetup:
    """Build a case of parties with rows; arguments as for `planned.setup`."""
    if case.method.name in over_columns:
        raise ValueError(f"{case.method.name} is for a table split by columns: add [columns], for example parties = 4")
    wanted, trust = case.privacy, case.privacy.by_sums
    if trust is not None and case.network is not None:
        raise ValueError('with privacy.trust = "sum" everybody sees every sum: leave [network] out')
    build.check_data(case.data)
    if case.data.id is not None:
        raise ValueError("data.id names rows that several parties know ([columns]): for whose row it is, set data.unit")
    if case.data.private is not None and wanted.epsilon is not None and case.data.private >= wanted.epsilon:
        raise ValueError(
            f"data.private is {case.data.private:g}, but privacy.epsilon, which covers it too, is {wanted.epsilon:g}: "
            "lower data.private, or raise privacy.epsilon"
        )
    chosen = case.method.name == AUTO
    if chosen and wanted.enabled and wanted.epsilon is None:
        raise ValueError("method auto needs to know what it may spend: set privacy.epsilon, such as 1.0")
    calibrated = wanted.epsilon is not None or not wanted.enabled
    method = None if chosen else build.method(case.method, calibrated=calibrated)
    if case.data.file is None:
        build.network(case.network, case.data.agents)  # before records are loaded, which may take long
    if loaded is None:
        case = _with_curves(case)
    parts, test, shape = build.records(case.data, draws) if loaded is None else loaded
    judges = None
    if case.select is not None:
        parts, judges = choice.apart(case, parts)
    network = build.network(case.network, len(parts))
    asked = build.task_table(case.task, shape)
    case = case.model_copy(update={"task": asked})
    task = build.task(asked, shape)
    if case.data.weight is not None and asked.name not in _WEIGHTED:
        known = ", ".join(_WEIGHTED)
        raise ValueError(f"data.weight: the task {asked.name!r} has no weights, {known} have: remove data.weight")
    if trust is not None and task.prepare is numbered:
        raise ValueError(
            f"the task {asked.name!r} weighs parties, and a sum does not show what a party contributes: set "
            'task.groups = "label", or leave privacy.trust out'
        )
    ready = task.prepare(parts)
    why: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    if method is None:
        plan = build.chosen(case, task.problem, ready, network)
        method, why, expected = plan.method, plan.why, plan.expected
        case = case.model_copy(
            update={
                "run": case.run.model_copy(update={"steps": plan.steps}),
                "privacy": wanted.model_copy(update={"adjacency": plan.adjacency}),
            }
        )
    if not isinstance(task.problem, method.solves):
        kinds = " or ".join(kind.__name__ for kind in method.solves)
        raise ValueError(
            f"{type(method).__name__} solves {kinds}, but the task {asked.name!r} is a "
            f"{type(task.problem).__name__}: choose another task or method"
        )
    if isinstance(parts[0], Levels) and set(task.problem.losses) != {"upper", "lower"}:
        raise ValueError(f"data.upper makes two levels, but the task {asked.name!r} has one: leave data.upper out")
    share = case.run.redraw  # seeds that draw their own data and start then have one program
    made = RowsSetup(
        case, task, ready, test, network, method, shape, why, expected, judges=judges, share=share, trust=trust
    )
    if case.data.file is not None and case.run.metric is None:
        # The accuracy of two classes says little where one of them is rare, and a loss says nothing to most readers.
        first = next((name for name in ("auroc", "r2") if name in made.metrics()), None)
        made = replace(made, case=case.model_copy(update={"run": case.run.model_copy(update={"metric": first})}))
    made.check_metric()
    if case.select is not None:
        choice.check_trial(made.one_run)
    if not wanted.enabled:
        return replace(made, method=method.without_privacy())
    made = made if chosen else made.calibrated()
    if wanted.budget is not None and made.account.private and made.account.epsilon > wanted.budget:
        raise ValueError(
            f"privacy.budget is {wanted.budget:g}, but a run would spend {comparison.upward(made.account.epsilon)}: "
            "raise the budget, or lower privacy.epsilon or run.steps"
        )
    return made


def _with_curves(case: Case) -> Case:
    """Return the case in which it is settled whether numbers have curves, and what their ranks may cost."""
    data, wanted = case.data, case.privacy
    if data.curves is None or data.curves == "public":
        return case
    if wanted.epsilon is None or not wanted.enabled:
        if data.curves == "private" and data.private is not None:
            return case
        raise ValueError(
            f'data.curves is "{data.curves}", but nothing says what ranks may cost: set privacy.epsilon or data.private'
        )
    if data.curves == AUTO:
        parts, _, shape = build.records(data, draws=False)
        if not curves_pay(math.prod(shape.features), parts, wanted.epsilon, wanted.delta):
            return case.model_copy(update={"data": data.model_copy(update={"curves": None})})
    bought = {"curves": "private", "private": data.private or price(wanted.epsilon, wanted.delta)}
    return case.model_copy(update={"data": data.model_copy(update=bought)})


@lru_cache(maxsize=8)
def _judge(task: Task, test: own_table.Same) -> Evaluate:
    """Return one and the same function for the same task and records: runs then share its compiled program."""
    return task.metrics(test.held)


def _some(parts: Sequence[Any], count: int) -> Any:
    """Take about `count` training records, the same number from every party."""
    each = math.ceil(count / len(parts))
    lower = [part.lower if isinstance(part, Levels) else part for part in parts]
    spread = [np.linspace(0, len(part) - 1, min(each, len(part))).astype(int) for part in lower]
    some = [replace(part, rows=part.rows[rows]).gather() for part, rows in zip(lower, spread)]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *some)


def _joined(parts: Sequence[Part]) -> Part:
    """Return one part with the records of all parts, as a view of the set that they share."""
    first = parts[0]
    if first.unit is not None and first.facts.bought:  # a unit with two parties was counted by both
        raise ValueError(
            "compare.pooled does not know what units paid whose table was read with noisy counts: set it to false"
        )
    if all(part.records is first.records for part in parts):
        return replace(first, rows=np.concatenate([part.rows for part in parts]), name=None)
    raise ValueError("compare.pooled needs parties that are views of one record set: set it to false for this data")


def _with_batches(method: Any, times: int) -> Any:
    """Return a copy whose batches are `times` as large."""
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if isinstance(value, Sampling):
            if hasattr(value, "batch"):
                changes[field.name] = replace(value, batch=math.ceil(value.batch * times))  # type: ignore[type-var]
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            changes[field.name] = _with_batches(value, times)
    return replace(method, **changes)
