"""Execute run files with [columns]: a table is split by columns, and its labels are read through their gate only."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.sparse as sp

from sottovoce import accounting
from sottovoce.data.columns import Columns, split_columns, unit_rows
from sottovoce.data.parts import Records
from sottovoce.experiments import build
from sottovoce.experiments.construct import construct
from sottovoce.experiments.schema import AUTO, Case, ColumnsTable, Data, TaskTable
from sottovoce.experiments.setup import Setup, both
from sottovoce.methods.column_method import ColumnMethod
from sottovoce.naming import unknown
from sottovoce.privacy.labels import Labels, Memoised, Open
from sottovoce.privacy.report import PrivacyReport
from sottovoce.privacy.table import Table
from sottovoce.problems import tasks
from sottovoce.problems.tasks.base import Evaluate
from sottovoce.problems.vertical import Vertical
from sottovoce.registry import over_columns
from sottovoce.runtime import model_file
from sottovoce.runtime.performance import Performance
from sottovoce.runtime.result import Result
from sottovoce.runtime.run import run
from sottovoce.runtime.staged_labels import Staged, run_in_stages
from sottovoce.shown import Shown
from sottovoce.tuning.columns import METHOD, STEPS, TASK, usual

_OF_ROWS = (
    "party",
    "agents",
    "by",
    "skew",
    "alpha",
    "sizes",
    "unit",
    "weight",
    "private",
    "share",
    "curves",
)  # keys of [data] that distribute rows


@dataclass(frozen=True, eq=False, repr=False)
class Held(Shown):
    """Hold training and test records, one block of columns per party."""

    columns: Columns
    label: np.ndarray
    classes: int
    test: Mapping[str, Any]
    holders: Mapping[str, list[str]] | None = None  # who holds which columns of one's own table

    @property
    def shape(self) -> tasks.Shape:
        """Return the public facts that a task may use."""
        blocks = self.columns.blocks
        widths = tuple(block.shape[1] for block in blocks)
        return tasks.Shape((sum(widths),), self.classes, len(blocks), widths=widths)


@dataclass(frozen=True, repr=False)
class ColumnsSetup(Setup, Shown):
    """Hold a case of a table split by columns, with everything built."""

    case: Case
    held: Held
    method: ColumnMethod
    why: tuple[str, ...] = ()
    share: bool = False  # whether runs with other numbers share its compiled program

    @property
    def asked(self) -> ColumnsTable:
        """Return the table [columns]."""
        assert self.case.columns is not None
        return self.case.columns

    @property
    def asked_task(self) -> TaskTable:
        """Return the table [task]; a linear model of all parties by default."""
        return self.case.task or TaskTable(name=TASK)

    @property
    def data(self) -> Table:
        """Return the parties' columns and labels, with the seed of the first run."""
        return self._table(self.case.run.seeds[0])

    @property
    def problem(self) -> Any:
        """Return what is solved, started with the first seed."""
        return self.task(0).problem

    @property
    def graph(self) -> None:
        """Return None: parties talk to a server."""
        return None

    @property
    def delta(self) -> float:
        """Return the delta of the statement: memoised labels need none, so it is zero unless the file sets it."""
        return self.case.privacy.delta if "delta" in self.case.privacy.model_fields_set else 0.0

    @cached_property
    def account(self) -> PrivacyReport:
        """Return the privacy statement, computed without running."""
        return accounting.account(self.method, self.data, problem=self.problem, steps=self.steps, delta=self.delta)

    def _table(self, seed: int) -> Table:
        active = None if self.asked.active is None else list(self.held.holders or ()).index(self.asked.active)
        return Table(self.held.columns, Labels(self.held.label, self.held.classes, seed=seed), active)

    def task(self, seed: int) -> tasks.Task:
        """Build the task; a task that takes a seed gets this one."""
        given = {"shape": self.held.shape, "seed": seed}
        return construct(tasks.get(self.asked_task.name), self.asked_task.options, "[task]", given)

    def metrics(self) -> list[str]:
        """Return the names of what a run measures."""
        task = self.task(0)
        assert isinstance(task.problem, Vertical)
        named = jax.eval_shape(self.judge(task), task.problem.x0, task.problem.y0)
        return [*named, "bytes up", "bytes down"]

    def judge(self, task: tasks.Task) -> Evaluate:
        """Return metrics on test records and, if wanted, on some training records with their true labels."""
        on_test = task.metrics(self.held.test)
        if (count := self.case.run.train) is None:
            return on_test
        columns = self.held.columns
        rows = np.unique(columns.lower[np.linspace(0, len(columns.lower) - 1, count).astype(int)])
        some = {"blocks": [block[rows] for block in columns.blocks], "label": self.held.label[rows]}
        return both(on_test, task.metrics(some))

    def alone(self) -> "ColumnsSetup":
        """Refuse: no party can train alone, because only one has the labels."""
        raise ValueError("compare.alone is for parties with records: with [columns] only one has the labels; remove it")

    def pooled(self) -> "ColumnsSetup":
        """Return the setup without privacy: the parties compute what one place with all columns would."""
        return replace(self, method=self.method.without_privacy())

    def run(self, seed: int, out: Path | None = None, resume: bool = False) -> Result:
        """Run it once."""
        how, asked = self.case.run, self.asked
        gate = self.method.labels
        staged = gate.staged and asked.question == "groups"
        made = [self.task(seed * asked.models + number) for number in range(asked.models if staged else 1)]
        options: dict[str, Any] = {
            "steps": self.steps,
            "seed": seed,
            "every": how.every,
            "evaluate": self.judge(made[0]),
            "public_test": self.case.data.file is None,
            "delta": self.delta,
            "out": out,
            "resume": resume,
            "performance": Performance(share=self.share),
        }
        table = self._table(seed)
        if not staged:
            result = run(made[0].problem, table, self.method, **options)
            self._save_model(result, out)
            return result
        problems = [task.problem for task in made]
        found = run_in_stages(problems, table, self.method, stages=asked.stages, **options)  # type: ignore[arg-type]
        result = found.members[0] if asked.stages == asked.models == 1 else averaged(found, self.held.test)
        if out is not None:
            result.save(out)
        self._save_model(result, out)
        return result

    def _save_model(self, result: Result, out: Path | None) -> None:
        """Store the parts of all parties as one model of the whole table, as far as it is one's own."""
        if out is not None and self.held.holders is not None:
            table = build.own(self.case.data)[0]
            model_file.save(result, out / model_file.NAME, table=table, holders=self.held.holders)


def records(case: Case) -> Held:
    """Return the records of a case with [columns]."""
    assert case.columns is not None
    # A search, whose seeds are not reported, must not train on records that a reported seed is tested on.
    testing = case.data.seed if case.search is None else 0
    return _records(case.data, case.columns.model_dump_json(exclude={"stages", "models", "question"}), testing)


def apart(held: Held, share: float, seed: int) -> Held:
    """Return the table with a share of its rows in the place of the test rows; nothing is trained on them."""
    order = np.random.default_rng([seed, 1]).permutation(len(held.label))  # not the order that makes the levels
    count = max(1, round(share * len(order)))
    out, rest = np.sort(order[:count]), np.sort(order[count:])
    test = {"blocks": [block[out] for block in held.columns.blocks], "label": held.label[out]}
    return replace(held, columns=held.columns.only(rest), test=test)


def setup(case: Case, held: Held | None = None) -> ColumnsSetup:
    """Build a case with [columns]; nothing is run. `held` takes the place of its [data].

    >>> case = Case.model_validate({
    ...     "data": {"name": "digits"}, "columns": {"parties": 2}, "task": {"name": "vertical-representation"},
    ...     "method": {"name": "VerticalSgd", "batch": 50, "rate_x": 0.1, "rate_y": 0.1},
    ...     "run": {"steps": 5}, "privacy": {"epsilon": 1.0},
    ... })
    >>> setup(case).account.epsilon
    1.0
    """
    check(case)
    held = records(case) if held is None else held
    made = _chosen(case, held) if case.method.name == AUTO else ColumnsSetup(case, held, _method(case))
    made = replace(made, share=case.run.redraw)  # seeds that draw their own start then have one program
    if not isinstance(made.task(0).problem, Vertical):
        fitting = ", ".join(name for name in tasks.available if name.startswith("vertical-"))
        raise ValueError(f"the task {made.asked_task.name!r} is not for parties with columns: choose one of {fitting}")
    if (wanted := case.run.metric) is not None:
        build.check_metric(wanted, made.metrics())
    if case.privacy.by_sums is not None:
        raise ValueError('privacy.trust = "sum" is for parties with records: with [columns] parties talk to a server')
    if case.privacy.budget is not None and made.account.epsilon > case.privacy.budget:
        raise ValueError(
            f"the run would spend epsilon {made.account.epsilon:g}, more than privacy.budget {case.privacy.budget:g}: "
            "raise the budget, or lower privacy.epsilon"
        )
    return made


def averaged(found: Staged, test: Mapping[str, Any]) -> Result:
    """Combine the models of the last stage into one result.

    Its history has one line per stage; steps, seconds and bytes are summed over all models.
    """
    history: dict[str, list[float]] = {}
    taken = {"step": 0.0, "seconds": 0.0, "bytes up": 0.0, "bytes down": 0.0}
    for stage, members in enumerate(found.stages):
        for member in members:
            taken = {name: value + float(member.history[name][-1]) for name, value in taken.items()}
        chances = found.probabilities(Columns(test["blocks"]), stage=stage)
        right = chances[np.arange(len(chances)), test["label"]]
        figures = {"accuracy": np.mean(chances.argmax(axis=1) == test["label"]), "loss": -np.mean(np.log(right))}
        for name, value in {**taken, **figures}.items():
            history.setdefault(name, []).append(float(value))

    def predict(x: Any, y: Any, features: Any) -> Any:
        each = [problem.predict(a, b, features) for problem, a, b in zip(found.problems, x, y, strict=True)]
        return sum(each[1:], each[0]) / len(each)

    x, y = [member.x for member in found.members], [member.y for member in found.members]
    told = {name: np.asarray(values) for name, values in history.items()}
    runs = [run.about for members in found.stages for run in members if run.about is not None]
    counted = ("sent", "received", "messages")
    summed: dict[str, Any] = {name: tuple(map(sum, zip(*(getattr(run, name) for run in runs)))) for name in counted}
    about = replace(runs[-1], **summed, batches=sum(run.batches for run in runs)) if runs else None
    first = found.members[0]
    return Result(
        x, y, found.members, told, found.privacy, False, predict, about, first.public_constants, first.public_test
    )


def check(case: Case) -> None:
    """Refuse what does not go with [columns]; nothing is read."""
    build.check_data(case.data)
    useless = [f"data.{key}" for key in _OF_ROWS if key in case.data.model_fields_set]
    useless += [f"run.{key}" for key in ("chunk", "devices") if key in case.run.model_fields_set]
    useless += ["network"] * (case.network is not None) + ["privacy.adjacency"] * (case.privacy.adjacency is not None)
    if useless:
        raise ValueError(f"{', '.join(useless)} has no effect with [columns] (a table split by columns): remove it")
    if case.method.name not in (*over_columns, AUTO):
        raise ValueError(unknown("method for [columns]", case.method.name, [*over_columns, AUTO]))
    asked = case.columns
    if asked is not None and asked.question == "classes" and max(asked.stages, asked.models) > 1:
        raise ValueError('columns.question = "classes" is for one stage and one model: remove stages and models')
    if asked is not None and case.data.file is None and asked.holders is not None:
        raise ValueError("columns.holders is for your own table (data.file): set columns.parties instead")
    if asked is not None and asked.active is not None and asked.active not in (asked.holders or ()):
        known = list(asked.holders) if asked.holders else ["list them in [columns.holders]"]
        raise ValueError("columns.active: " + unknown("holder", asked.active, known))
    if case.data.id is not None and case.data.id in (case.data.label, *case.data.columns):
        raise ValueError(f"data.id is {case.data.id!r}, which is declared too: an id is no feature, remove its line")
    if asked is not None and case.data.file is not None:
        for key in ("test", "log", "unit", *(["parties"] * (asked.holders is not None))):
            if key in asked.model_fields_set:
                raise ValueError(f"columns.{key} has no effect with data.file: remove it (data.test holds rows out)")
    if case.data.name == "heterogeneous":
        raise ValueError("heterogeneous makes one data set per party, not a table for [columns]: choose other data")


def _chosen(case: Case, held: Held) -> ColumnsSetup:
    """Build the case with a method and a number of steps from public facts: labels are drawn once, steps are free."""
    if case.privacy.enabled and case.privacy.epsilon is None:
        raise ValueError("method auto needs to know what it may spend: set privacy.epsilon, such as 1.0")
    given = {name: value for name, value in usual(held.columns).items() if name not in case.method.options}
    steps, method = case.run.steps or STEPS, _method(case, given)
    case = case.model_copy(update={"run": case.run.model_copy(update={"steps": steps})})
    return ColumnsSetup(case, held, method, method.why(steps))


def _method(case: Case, given: Mapping[str, Any] | None = None) -> ColumnMethod:
    """Build the method; fields that are `given` are not in the table."""
    kind, options, wanted = over_columns.get(case.method.name, METHOD), case.method.options, case.privacy
    if "labels" in options:
        if wanted.epsilon is not None or not wanted.enabled:
            raise ValueError("method.labels and [privacy] both say how labels are hidden: leave one of them out")
        return construct(kind, options, "[method]", given)
    if wanted.enabled and wanted.epsilon is None:
        raise ValueError("nothing says how labels are hidden: set privacy.epsilon, or privacy.enabled = false")
    gate = Open() if wanted.epsilon is None or not wanted.enabled else Memoised(wanted.epsilon)
    return construct(kind, options, "[method]", {**(given or {}), "labels": gate})


def _records(table: Data, split: str, testing: int) -> Held:
    """Return the records; `testing` is the seed of the test rows that columns.test holds out."""
    if table.file is None:
        return _held(table.model_dump_json(exclude_unset=True), split, testing)
    asked = ColumnsTable.model_validate_json(split)
    train, test = build.own(table)
    if test is None or train.target.numeric:
        what = "data.test = 0" if test is None else f"the label {train.label!r}, a number,"
        raise ValueError(f"{what} does not go with [columns]: hold some rows out, and declare the label's categories")
    holders = holders_of(asked, train.columns)
    columns = with_levels(Columns(train.blocks(holders), facts=train.facts, names=tuple(holders)), table)
    own = {"blocks": test.blocks(holders), "label": test.records["label"]}
    return Held(columns, train.classes_of_rows, len(train.classes), own, holders)


def holders_of(asked: ColumnsTable, features: Collection[str]) -> dict[str, list[str]]:
    """Return who holds which features: as declared, else in equal numbers.

    >>> holders_of(ColumnsTable(parties=2), ["age", "sex", "income"])
    {'0': ['age', 'sex'], '1': ['income']}
    """
    if asked.holders is None:
        if asked.parties > len(features):
            raise ValueError(f"columns.parties is {asked.parties}, but there are {len(features)} features: lower it")
        each = np.array_split(list(features), asked.parties)
        return {str(number): own.tolist() for number, own in enumerate(each)}
    held = [name for own in asked.holders.values() for name in own]
    for name in held:
        if name not in features:
            raise ValueError("columns.holders: " + unknown("declared feature", name, list(features)))
        if held.count(name) > 1:
            raise ValueError(f"columns.holders: {name!r} is listed twice: a column has one holder")
    if left := [name for name in features if name not in held]:
        raise ValueError(f"columns.holders: nobody holds {', '.join(left)}: give each to a holder, or drop it")
    if empty := [holder for holder, own in asked.holders.items() if not own]:
        raise ValueError(f"columns.holders: {empty[0]} holds no column: give it one, or remove it")
    return asked.holders


def with_levels(columns: Columns, table: Data) -> Columns:
    """Return the columns with the levels that [data] asks for."""
    if table.upper == "same":
        raise ValueError('data.upper = "same" is for parties with rows: give the upper level\'s share, such as 0.2')
    return columns if table.upper is None else columns.levels(table.upper, table.seed)


@lru_cache(maxsize=2)
def _held(data: str, columns: str, testing: int) -> Held:
    """Build the records once per content, because variants mostly share their data."""
    table, split = Data.model_validate_json(data), ColumnsTable.model_validate_json(columns)
    train, test, classes = build.whole(table)
    if split.test is not None:
        train, test = _held_out([train, test], split.test, testing)
    blocks, own = (_blocks(records["features"], split) for records in (train, test))
    held = Columns(blocks)
    return Held(with_levels(held, table), train["label"], classes, {"blocks": own, "label": test["label"]})


def _held_out(both: list[Records], share: float, seed: int) -> list[Records]:
    """Join all records, and hold out a random share of them for the test."""
    label = np.concatenate([records["label"] for records in both])
    each = [records["features"] for records in both]
    features = sp.csr_array(sp.vstack(each)) if sp.issparse(each[0]) else np.concatenate(each)
    order = np.random.default_rng(seed).permutation(len(label))
    cut = len(label) - math.floor(share * len(label))
    return [{"features": features[rows], "label": label[rows]} for rows in (order[:cut], order[cut:])]


def _blocks(features: Any, split: ColumnsTable) -> list[Any]:
    if split.log:
        features = features.astype(np.float32).log1p() if sp.issparse(features) else np.log1p(features)
    blocks = split_columns(features, split.parties)
    return [unit_rows(block) for block in blocks] if split.unit else blocks
