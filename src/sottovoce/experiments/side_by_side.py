"""Run many cases that differ in numbers alone as one program: their networks lie side by side in one simulation.

A table of a paper has a hundred small runs, and compiling each takes far longer than running it. Seeds, trials of a
search, epsilons, step sizes and graphs are numbers: runs that differ in nothing else are put into one array of agents,
in which no run hears another. Example: five seeds of four epsilons with five agents each are one run of 100 agents.

The agents' draws are those of the larger run: figures agree with ``sottovoce reproduce`` in law, not bit by bit.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.accounting.account import account_of
from sottovoce.experiments import search
from sottovoce.experiments.execute import refuse_over_another
from sottovoce.experiments.planned import Planned, plan
from sottovoce.experiments.rows import RowsSetup
from sottovoce.experiments.runfile import RunFile
from sottovoce.experiments.schema import Settings, with_settings, worded
from sottovoce.experiments.search import Trial
from sottovoce.methods import Method
from sottovoce.networks import side_by_side
from sottovoce.privacy.release import Release
from sottovoce.problems import MinMax, objectives
from sottovoce.reports import comparison
from sottovoce.reports.comparison import Comparison
from sottovoce.runtime.about import about_rows
from sottovoce.runtime.array import ArrayPlace
from sottovoce.runtime.jobs import as_simulated
from sottovoce.runtime.keys import agent_keys
from sottovoce.runtime.layout import lay_out, own_digests
from sottovoce.runtime.result import Result, measure
from sottovoce.schedules import Constant, Scaled, Schedule

_AGENTS = 600  # agents in one array, at most: each run has a copy of its records there
_BYTES = 2**31  # bytes of records in one array, at most


def execute(
    experiments: Sequence[tuple[RunFile, Path]], say: Callable[[str], None] = lambda line: None
) -> list[Comparison]:
    """Run everything that run files ask for, each into its folder; whatever fits goes side by side, also across files.

    The files of a folder are those that `execute.execute` writes.
    """
    for _, out in experiments:
        refuse_over_another(out, resume=False)
    plans = [plan(runfile) for runfile, _ in experiments]
    for row in (row for rows in plans for row in rows):
        rows_together = row.kind == "together" and isinstance(row.setup, RowsSetup)
        if not rows_together or not isinstance(row.setup.problem, MinMax):
            raise ValueError(f"{row.name}: side by side is for min-max tasks of parties with rows, without [compare]")
        search.check(row)
    chosen = _searched(plans, say)
    places: list[tuple[Path, Planned, int]] = []
    setups: list[RowsSetup] = []
    for (runfile, out), rows, own in zip(experiments, plans, chosen, strict=True):
        entries = [row.entry(own[row.name]) for row in rows]
        out.mkdir(parents=True, exist_ok=True)
        comparison.save_plan(out, runfile.title, runfile.text, runfile.printed, entries)
        some = [(out, row, seed) for row in rows for seed in row.case.run.seeds]
        setups += [_seeded(row, seed, own[row.name]) for _, row, seed in some]
        places += some
    say(f"{len(places)} runs are built")
    for (out, row, seed), setup, result in zip(places, setups, run_all(setups, say), strict=True):
        if result is None:
            say(f"left out, because it diverges: {row.name}, seed {seed}")
        else:
            setup.save(result, out / row.folder(seed))
    return [comparison.load(out) for _, out in experiments]


def _rows(setup: Any) -> RowsSetup:
    assert isinstance(setup, RowsSetup)
    return setup


def _seeded(row: Planned, seed: int, settings: Settings) -> RowsSetup:
    """Return the setup of a seed. Where a seed draws nothing but noise, its number stands in the case, for `_run`.

    Otherwise two seeds that are in two arrays would draw the same noise. Where seeds redraw their records, keys differ
    already, because records are part of them.
    """
    made, run = _rows(row.at(seed, settings)), row.case.run
    if run.redraw:
        return made
    return replace(made, case=made.case.model_copy(update={"run": made.case.run.model_copy(update={"seeds": [seed]})}))


def _searched(plans: Sequence[Sequence[Planned]], say: Callable[[str], None]) -> list[dict[str, Settings]]:
    """Return the settings with the best score for each row of each file, by the protocol of `search`."""
    tried: list[tuple[int, Planned, Settings]] = []
    setups: list[RowsSetup] = []
    for number, rows in enumerate(plans):
        for row in rows:
            for settings in search.settings_of(row.case, row.name):
                asked = row.case.search
                assert asked is not None
                tried.append((number, row, settings))
                case = with_settings(row.case, settings)
                setups += [_rows(search.trial_setup(case, row.kind, asked, seed)) for seed in asked.seeds]
    say(f"{len(setups)} trials are built")
    results = iter(run_all(setups, say))
    trials: list[dict[str, list[Trial]]] = [{} for _ in plans]
    for number, row, own in tried:
        assert row.case.search is not None
        runs = [next(results) for _ in row.case.search.seeds]
        scores = [None if run is None else float(run.history[row.case.search.metric][-1]) for run in runs]
        trials[number].setdefault(row.name, []).append(Trial(dict(own), search.mean(scores)))
    return [_best(rows, of_file, say) for rows, of_file in zip(plans, trials, strict=True)]


def _best(rows: Sequence[Planned], trials: dict[str, list[Trial]], say: Callable[[str], None]) -> dict[str, Settings]:
    chosen: dict[str, Settings] = {}
    for row in rows:
        chosen[row.name] = {}
        if own := trials.get(row.name):
            assert row.case.search is not None
            best = search.best(own, row.name, row.case.search.metric)
            chosen[row.name] = best.settings
            say(f"{row.name}: chosen {worded(best.settings)}, score {best.score:.4f}")
    return search.alike(rows, chosen)


def run_all(setups: Sequence[RowsSetup], say: Callable[[str], None] = lambda line: None) -> list[Result | None]:
    """Run setups, those that differ in numbers alone side by side; None stands for a run that diverged."""
    results: list[Result | None] = [None] * len(setups)
    kinds: dict[str, list[int]] = {}
    for number, setup in enumerate(setups):
        kinds.setdefault(_kind(setup), []).append(number)
    for numbers in kinds.values():
        for some in _pieces(setups, numbers):
            began = time.perf_counter()
            found = _run([setups[number] for number in some])
            for number, result in zip(some, found, strict=True):
                results[number] = result
            say(f"{len(some)} runs side by side in {time.perf_counter() - began:.0f} s")
    return results


def _pieces(setups: Sequence[RowsSetup], numbers: list[int]) -> Iterator[list[int]]:
    first = setups[numbers[0]]
    size = sum(leaf.nbytes for part in first.parts for leaf in jax.tree.leaves(part.gather()))
    most = max(1, min(_AGENTS // len(first.parts), _BYTES // size))
    for start in range(0, len(numbers), most):
        yield numbers[start : start + most]


def _kind(setup: RowsSetup) -> str:
    """Return what must be the same for two setups to share a program, in words."""
    assert setup.case.task is not None
    task = {key: value for key, value in setup.case.task.options.items() if key != "seed"}
    sizes = sorted(len(part) for part in setup.parts)
    shapes = jax.tree.map(np.shape, objectives.start(setup.problem))
    same = (setup.case.task.name, task, setup.shape, shapes, sizes, setup.steps, setup.case.run.chunk)
    return repr((*same, _shape(setup.method)))


def _shape(method: Method) -> Any:
    """Return a method's fields without the numbers that `_merged` gives to each agent."""
    return type(method).__name__, [
        (field.name, _blank(field.name, getattr(method, field.name))) for field in dataclasses.fields(method)
    ]


def _blank(name: str, value: Any) -> Any:
    if not _own(name, value):
        return repr(value)
    if isinstance(value, Release):
        return ("release", value.clip, value.mechanism, value.scale(0, 0) > 0)
    return "a number"


def _own(name: str, value: Any) -> bool:
    """Say whether agents of one array may have a field of their own: noise and step sizes that do not change.

    Everything else, such as a weight inside of a method or noise that falls with the steps, must be the same.
    """
    return _constant(value.noise) if isinstance(value, Release) else name.startswith("rate") and _constant(value)


def _constant(value: Any) -> bool:
    """Say whether this is a number for all steps, or one per agent."""
    if isinstance(value, Scaled):
        return _constant(value.of)
    return isinstance(value, Constant) or (isinstance(value, float | int) and not isinstance(value, bool))


@dataclass(frozen=True)
class _Member:
    """Describe one of the runs: its setup, and which agents of the array are its own."""

    setup: RowsSetup
    agents: slice


def _run(setups: Sequence[RowsSetup]) -> list[Result | None]:
    """Run setups of one kind as one array; if something diverges, in halves, until it is alone."""
    first, ends = setups[0], np.cumsum([0, *(len(setup.parts) for setup in setups)])
    members = [_Member(setup, slice(start, end)) for setup, start, end in zip(setups, ends, ends[1:])]
    method = first.method if len(setups) == 1 else _starting(members, _merged(members))
    network = first.network if len(setups) == 1 else side_by_side([setup.network for setup in setups])
    parts = [part for setup in setups for part in setup.parts]
    account = account_of(method, parts, steps=first.steps, network=network, delta=first.delta, problem=first.problem)
    layout = lay_out(parts)
    keys = agent_keys(first.case.run.seeds[0], account.trace.identity, own_digests(layout))
    place = ArrayPlace(account.trace, first.problem, layout, keys, first.case.run.chunk)
    began = time.perf_counter()
    leaves, _ = place.advance(place.begin(), 0, first.steps)
    state = account.trace.state(leaves)
    variables = (state.x, state.y)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(variables)):
        if len(setups) == 1:
            return [None]
        half = len(setups) // 2
        return [*_run(setups[:half]), *_run(setups[half:])]
    seconds = (time.perf_counter() - began) / len(setups)
    judges: dict[int, Any] = {}
    return [_result(member, variables, seconds, judges) for member in members]


def _merged(members: Sequence[_Member]) -> Method:
    """Return the method of the whole array: the first one's, with the numbers of each agent's own method."""
    first = members[0].setup.method
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(first):
        own = [getattr(member.setup.method, field.name) for member in members]
        if not _own(field.name, own[0]):
            continue
        if isinstance(own[0], Release):
            changes[field.name] = replace(own[0], noise=_numbers(members, [release.noise for release in own]))
        else:
            changes[field.name] = _numbers(members, own)
    return replace(first, **changes)


@dataclass(frozen=True, eq=False)
class _StartingAt(Method):
    """Start each agent of a method where its own run starts; starts are public."""

    of: Method
    starts: Any  # (x0, y0) of each agent, stacked
    public_constants: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "solves", self.of.solves)
        object.__setattr__(self, "over", self.of.over)

    def init(self, problem: MinMax, agent: Any) -> Any:
        """Start at the agent's own start."""
        x0, y0 = jax.tree.map(lambda leaf: jnp.asarray(leaf)[agent.index], self.starts)
        return self.of.init(replace(problem, x0=x0, y0=y0), agent)

    def step(self, problem: MinMax, state: Any, agent: Any) -> Any:
        """Take the method's step."""
        return self.of.step(problem, state, agent)


def _starting(members: Sequence[_Member], method: Method) -> Method:
    """Return the method with each agent's own start, if starts differ."""
    starts = [objectives.start(member.setup.problem) for member in members for _ in member.setup.parts]
    leaves = [jax.tree.leaves(start) for start in starts]
    if all(np.array_equal(a, b) for own in leaves for a, b in zip(own, leaves[0], strict=True)):
        return method
    return _StartingAt(method, jax.tree.map(lambda *own: np.stack(own), *starts))


def _numbers(members: Sequence[_Member], own: Sequence[Any]) -> Schedule:
    values = [
        float(value(0, agent) if isinstance(value, Schedule) else value)
        for member, value in zip(members, own, strict=True)
        for agent in range(len(member.setup.parts))
    ]
    return Constant(tuple(values))


def _result(member: _Member, variables: Any, seconds: float, judges: dict[int, Any]) -> Result:
    """Return one run's result, with its metrics after the last step."""
    setup = member.setup
    own = jax.tree.map(lambda leaf: leaf[member.agents], variables)
    shared = setup.case.run.train is None
    judge = judges.setdefault(id(setup.test), setup.judge()) if shared else setup.judge()
    found = {name: np.asarray(value)[None] for name, value in measure(own, judge).items()}
    mean = jax.tree.map(lambda leaf: np.asarray(leaf).mean(axis=0), own)
    account = account_of(setup.method, setup.parts, delta=setup.delta, **setup.setting)
    return Result(
        x=mean[0],
        y=mean[1],
        agents=own,
        history={"step": np.array([setup.steps]), "seconds": np.array([seconds]), **found},
        privacy=as_simulated(account),
        releasable=False,
        predictor=setup.problem.predict,
        public_constants=setup.problem.public_constants,
        about=about_rows(account, "one simulation, side by side with others"),
        public_test=setup.public_test,
    )
