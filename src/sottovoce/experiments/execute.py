"""Execute a run file: every variant with every seed, and the comparisons it asks for. Each run can be resumed."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sottovoce import accounting
from sottovoce.data.held import held
from sottovoce.data.parts import Levels, Part
from sottovoce.experiments import build, choice, columns
from sottovoce.experiments.runfile import AUTO, Case, RunFile
from sottovoce.experiments.setup import Setup
from sottovoce.files import reserved
from sottovoce.methods import Method
from sottovoce.naming import unknown
from sottovoce.networks import Network, isolated
from sottovoce.privacy.ledger import Budget
from sottovoce.privacy.mechanisms import check_adjacency
from sottovoce.privacy.report import PrivacyReport
from sottovoce.privacy.sampling import Sampling
from sottovoce.problems import objectives, tasks
from sottovoce.problems.tasks.base import Evaluate, Task
from sottovoce.reports import comparison, write_report
from sottovoce.reports.comparison import ALONE, TRAIN, Comparison, Kind
from sottovoce.runtime import model_file, peers
from sottovoce.runtime.mesh import Grid
from sottovoce.runtime.performance import Performance
from sottovoce.runtime.result import Result
from sottovoce.runtime.run import run
from sottovoce.trees import Tree

_WEIGHTED = ("logistic", "softmax", "ridge")  # tasks that count a record with its weight
_LONGEST = 200  # letters in the name of a variant's folder
_TOLD_APART = 64  # up to this number of agents, a run records the metrics of each one


@dataclass(frozen=True)
class RowsSetup(Setup):
    """A case with everything built that `run` takes."""

    case: Case
    task: Task
    parts: list[Any]
    test: Any
    network: Network
    method: Method
    shape: tasks.Shape
    why: tuple[str, ...] = ()  # why `auto` chose this, and its warnings
    sample: Any = None  # training records for metrics, taken before other processes' records are dropped
    judges: choice.Judges | None = None  # with [select]: what a trial is scored on

    @cached_property
    def account(self) -> PrivacyReport:
        """The privacy statement, computed without running."""
        return self._stated(self.one_run)

    @cached_property
    def one_run(self) -> PrivacyReport:
        """The statement of one run; with [select] several runs are made, and `account` covers the best of them."""
        return accounting.account(self.method, self.parts, delta=self.delta, **self._setting)

    def _stated(self, own: PrivacyReport) -> PrivacyReport:
        return own if self.judges is None else choice.stated(own, self.case, self.judges)

    @property
    def data(self) -> list[Any]:
        """The parties' parts."""
        return self.parts

    @property
    def problem(self) -> Any:
        """What is solved."""
        return self.task.problem

    @property
    def graph(self) -> Network:
        """Who talks to whom."""
        return self.network

    @property
    def delta(self) -> float:
        """The delta of the statement."""
        return self.case.privacy.delta

    @cached_property
    def _setting(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "network": self.network,
            "adjacency": self.case.privacy.adjacency,
            "problem": self.task.problem,
        }

    def calibrated(self) -> "RowsSetup":
        """Return the setup with the noise that the wanted epsilon needs."""
        wanted = self.case.privacy
        if wanted.epsilon is None:
            return self
        method = accounting.calibrate(
            self.method, self.parts, epsilon=wanted.epsilon, delta=wanted.delta, **self._setting
        )
        return replace(self, method=method)

    def alone(self) -> "RowsSetup":
        """Return the setup in which each party trains alone.

        Noise and sizes stay the same, so epsilon does too.
        """
        if len(self.parts) > _TOLD_APART:
            raise ValueError(
                f"compare.alone needs the metrics of each party, which runs record for up to {_TOLD_APART} parties; "
                f"there are {len(self.parts)}: set compare.alone = false, or lower data.agents"
            )
        return replace(self, network=isolated(len(self.parts)))

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
        method = _with_batches(self.method.without_privacy(), agents)
        return replace(self, parts=[everything], network=network, method=method)

    def here(self) -> "RowsSetup":
        """Return the setup with the records of this process's parties alone."""
        if peers.current().count == 1:
            return self
        own = Grid(self._devices).held(len(self.parts))
        sample = None if self.case.run.train is None else _some(self.parts, self.case.run.train)
        return replace(self, parts=held(self.parts, own), sample=sample)

    @property
    def _devices(self) -> int:
        return self.case.run.devices if len(self.parts) > 1 else 1

    def judge(self) -> Evaluate:
        """Return metrics on test records and, if wanted, on some training records of every party, the loss first."""
        on_test = self.task.metrics(self.test) if self.test is not None else lambda *variables: {}
        if (count := self.case.run.train) is None:
            return on_test
        on_train = self.task.metrics(_some(self.parts, count) if self.sample is None else self.sample)

        def both(*variables: Tree) -> Mapping[str, jax.Array]:
            own = on_train(*variables)
            named = {TRAIN + name: own[name] for name in sorted(own, key=lambda name: name != "loss")}
            return {**on_test(*variables), **named}

        return both

    def check_metric(self) -> None:
        """Refuse a metric that the task does not have, before anything is run."""
        if (wanted := self.case.run.metric) is not None:
            build.check_metric(wanted, self._metrics())
        if self.case.select is not None and self.case.select.metric not in self._metrics():
            raise ValueError("select.metric: " + unknown("metric", self.case.select.metric, self._metrics()))

    def _metrics(self) -> list[str]:
        return list(jax.eval_shape(self.judge(), *objectives.start(self.task.problem)))

    def run(self, seed: int, out: Path | None = None, resume: bool = False) -> Result:
        """Run it once."""
        how, privacy = self.case.run, self.case.privacy
        result = run(
            self.task.problem,
            self.parts,
            self.method,
            steps=self.steps,
            network=self.network,
            seed=seed,
            evaluate=self.judge(),
            every=how.every,
            out=out,
            resume=resume,
            delta=privacy.delta,
            adjacency=privacy.adjacency,
            budget=self._budget(),
            performance=Performance(how.chunk, self._devices),
        )
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
            model_file.save(result, out / model_file.NAME, table=build.own(self.case.data)[0], task=task)

    def _budget(self) -> Budget | None:
        """Return the run file's budget, under the adjacency in which its epsilon is stated."""
        privacy = self.case.privacy
        if not privacy.budget or not self.account.private:
            return None
        return Budget(privacy.budget, privacy.delta, check_adjacency(self.account.adjacency))


Loaded = tuple[list[Any], Any, tasks.Shape]  # the parties' parts, test records, and what a task may know of them


def setup(case: Case, draws: bool = True, loaded: Loaded | None = None) -> Setup:
    """Build a case, and calibrate it if it names an epsilon; nothing is run. `loaded` takes the place of its [data].

    Without `draws`, ranges and lists that are to be bought have stand-ins, and nothing about private rows is learned.

    >>> from sottovoce.experiments.runfile import Case
    >>> case = Case.model_validate({
    ...     "data": {"name": "digits", "agents": 4}, "task": {"name": "softmax"}, "network": {"kind": "ring"},
    ...     "method": {"name": "DpSgd", "rate": 0.5, "sampling": "full", "gradient": {"clip": 1.0}},
    ...     "run": {"steps": 5}, "privacy": {"epsilon": 3.0},
    ... })
    >>> round(setup(case).account.epsilon, 2)
    3.0
    """
    if case.select is not None:
        choice.check(case)
        case = case.model_copy(update={"privacy": choice.of_a_trial(case)})
    if case.columns is not None:
        return columns.setup(case)
    if case.method.name == "Bambi":
        raise ValueError("Bambi is for a table split by columns: add [columns], for example parties = 4")
    wanted = case.privacy
    build.check_data(case.data)
    chosen = case.method.name == AUTO
    if chosen and wanted.enabled and wanted.epsilon is None:
        raise ValueError("method auto needs to know what it may spend: set privacy.epsilon, such as 1.0")
    calibrated = wanted.epsilon is not None or not wanted.enabled
    method = None if chosen else build.method(case.method, calibrated=calibrated)
    if case.data.file is None:
        build.network(case.network, case.data.agents)  # before records are loaded, which may take long
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
    ready = task.prepare(parts)
    why: tuple[str, ...] = ()
    if method is None:
        plan = build.chosen(case, task.problem, ready, network)
        method, why = plan.method, (*plan.why, *(f"warning: {line}" for line in plan.warnings))
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
    if case.data.upper is not None and set(task.problem.losses) != {"upper", "lower"}:
        raise ValueError(f"data.upper makes two levels, but the task {asked.name!r} has one: leave data.upper out")
    made = RowsSetup(case, task, ready, test, network, method, shape, why, judges=judges)
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


def setups(runfile: RunFile, draws: bool = True) -> dict[str, Setup]:
    """Build every case of a run file, as `setup` does; an error names the file and the case."""
    made: dict[str, Setup] = {}
    try:
        cases = choice.complete(runfile.cases)
    except ValueError as error:
        raise ValueError(f"{runfile.source}: {error}") from None
    for name, case in cases.items():
        try:
            made[name] = setup(case, draws)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"{runfile.source}, {name}: {error}") from error
        except MemoryError as error:
            raise ValueError(
                f"{runfile.source}, {name}: it does not fit into memory ({error}): lower the sizes in [data] and [task]"
            ) from error
    return made


@dataclass(frozen=True)
class Planned:
    """One row of the planned comparison."""

    name: str
    kind: Kind
    setup: Setup

    def folder(self, seed: int) -> str:
        """Return the folder of a seed's run, within the experiment's folder: no name leads out of it."""
        words = re.sub(r"[^A-Za-z0-9.]+", "-", self.name).strip("-.")
        if not 0 < len(words) <= _LONGEST:
            raise ValueError(
                f"the variant {self.name[:40]!r} cannot give its folder a name: use 1 to {_LONGEST} letters and digits"
            )
        return f"{words}/{seed}"


def plan(runfile: RunFile, draws: bool = True) -> list[Planned]:
    """Build and check all rows of a run file, so that an error in the last is found before the first is run.

    `draws` is as for `setup`.
    """
    rows: list[Planned] = []
    pooled: set[str] = set()
    several = len(runfile.cases) > 1
    for (name, case), made in zip(runfile.cases.items(), setups(runfile, draws).values()):
        rows.append(Planned(name, "together", made))
        if case.compare.alone:
            rows.append(Planned(name + ALONE, "alone", made.alone()))
        if case.compare.pooled:
            whole = made.pooled()
            same = repr((case.data, case.task, case.run, whole.method))  # variants may share it: run it once
            if same not in pooled:
                suffix = f" ({name})" if several and pooled else ""
                rows.append(Planned(f"pooled, no privacy{suffix}", "pooled", whole))
            pooled.add(same)
    folders = [row.folder(0).lower() for row in rows]
    twice = {row.name for row, folder in zip(rows, folders) if folders.count(folder) > 1}
    if twice:
        raise ValueError(f"variants {sorted(twice)} would share a folder: give them names that differ in their letters")
    return [replace(row, setup=row.setup.here()) if isinstance(row.setup, RowsSetup) else row for row in rows]


def execute(
    runfile: RunFile, out: str | Path, resume: bool = False, say: Callable[[str], None] = lambda line: None
) -> Comparison:
    """Run everything a run file asks for, into ``out/<variant>/<seed>``; `resume` continues what is there.

    `say` is called with a line of text when a run begins.
    """
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: give a folder with --out")
    _refuse_over_another(out, resume)
    say(f"preparing {runfile.title}")
    rows = plan(runfile)
    for row in rows:
        for line in row.setup.why if row.kind == "together" else ():
            say(f"{row.name}: {line}")
    with reserved(out / "comparison.json"):
        _refuse_over_another(out, resume)  # another process may have begun meanwhile
        if next(iter(runfile.cases.values())).select is None:
            _run_all(runfile, rows, out, resume, say)
        else:
            _choose(runfile, rows, out, say)
    return comparison.load(out)


def _refuse_over_another(out: Path, resume: bool) -> None:
    if (out / "comparison.json").exists() and not resume:
        raise ValueError(f"{out} holds an experiment already: choose another --out, or continue it with --resume")


def _run_all(runfile: RunFile, rows: Sequence[Planned], out: Path, resume: bool, say: Callable[[str], None]) -> None:
    entries = [
        {
            "name": row.name,
            "kind": row.kind,
            "metric": row.setup.case.run.metric,
            "runs": [row.folder(seed) for seed in row.setup.case.run.seeds],
        }
        for row in rows
    ]
    before = comparison.stored_plan(out)
    comparison.save_plan(out, runfile.title, runfile.text, runfile.printed, entries)
    total, begun = sum(len(row.setup.case.run.seeds) for row in rows), 0
    for row in rows:
        for seed in row.setup.case.run.seeds:
            begun += 1
            say(f"{begun} of {total}: {row.name}, seed {seed}")
            try:
                row.setup.run(seed, out / row.folder(seed), resume)
            except FloatingPointError as error:  # a method that diverges is a result too: the others continue
                say(f"left out: {error}")
            except (ValueError, TimeoutError):  # these settings do not fit what is there: leave it as it was
                comparison.restore_plan(out, before)
                raise


def take_part(runfile: RunFile, out: str | Path, resume: bool = False) -> None:
    """Run everything a run file asks for as one of several processes that does not lead: it writes no report."""
    for row in plan(runfile):
        for seed in row.setup.case.run.seeds:
            with suppress(FloatingPointError):
                row.setup.run(seed, Path(out) / row.folder(seed), resume)


def _choose(runfile: RunFile, rows: Sequence[Planned], out: Path, say: Callable[[str], None]) -> None:
    """Store one variant, chosen by a private score. Begun again it starts anew: the same seed makes the same choice."""
    first = next(iter(runfile.cases.values()))
    variants = {row.name: row.setup for row in rows if isinstance(row.setup, RowsSetup)}
    assert first.privacy.epsilon is not None
    found = choice.choose(variants, first.privacy.epsilon, say)
    best = next(row for row in rows if row.name == found.name)
    folder = best.folder(first.run.seeds[0])
    variants[found.name].save(found.output, out / folder)
    entry = {"name": best.name, "kind": best.kind, "metric": first.run.metric, "runs": [folder]}
    words = f"{found.name}, chosen among {', '.join(variants)}: {found.statement}"
    comparison.save_plan(out, runfile.title, runfile.text, runfile.printed, [entry], words)
    say(words)


def report(folder: str | Path, path: str | Path | None = None) -> Path:
    """Write the report of a finished or stopped experiment, and return its path (default: ``folder/report.html``).

    The networks of its run file are drawn in it.
    """
    made = comparison.load(folder)
    parties = max(len(row.privacy.parties) for row in made.rows)
    networks = build.different_networks(RunFile.parse(made.text).cases.values(), parties) if made.text else []
    return write_report(made, Path(folder) / "report.html" if path is None else path, networks)


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
    if all(part.records is first.records for part in parts):
        return Part(first.records, np.concatenate([part.rows for part in parts]), first.unit)
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
