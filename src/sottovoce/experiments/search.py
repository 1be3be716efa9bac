"""Choose the settings of every contender by one protocol, the table [search]: the same number of trials for all.

Each trial trains on a part of the training records, with a seed that is not reported, and is scored on the rest. The
test set is not read. Example: eight trials of ``"method.rate" = [0.03, 3.0]`` are the rate of the file and seven that
are drawn log-uniformly. The settings with the best score are then run with all training records.

What is chosen depends on the records, and nothing is charged for it: this is for experiments with public data sets.
[select] chooses among variants and pays for it.
"""

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sottovoce.data.parts import Levels, Part, ids_of
from sottovoce.experiments import build, columns, rows, together
from sottovoce.experiments.planned import Planned, of_kind
from sottovoce.experiments.redraw import redrawn
from sottovoce.experiments.schema import Case, Data, SearchTable, Settings, own_settings, with_settings
from sottovoce.experiments.setup import Setup
from sottovoce.files import read_facts, write_facts
from sottovoce.naming import unknown
from sottovoce.reports.comparison import finite, lower_is_better
from sottovoce.runtime.result import Result

FILE = "search.json"  # in the folder of a variant
_SEARCH = ("the trials of a search", 1)
_REMEDY = "remove it, and the search starts again"


@dataclass(frozen=True)
class Trial:
    """Hold settings that were tried, and their score; None where a run diverged."""

    settings: dict[str, Any]
    score: float | None


def settings_of(case: Case, name: str) -> list[dict[str, Any]]:
    """Return the settings of all trials of a contender: those of the file, then random ones, the same every time.

    With one trial there is nothing to choose, and nothing is tried.

    >>> case = Case.model_validate({
    ...     "data": {"name": "digits"}, "method": {"name": "DpSgd", "rate": 0.5},
    ...     "search": {"trials": 3, "ranges": {"method.rate": [0.1, 1.0]}},
    ... })
    >>> [round(trial["method.rate"], 3) for trial in settings_of(case, "DpSgd")]
    [0.5, 0.16, 0.603]
    """
    search = case.search
    if search is None or not search.ranges or search.trials == 1:
        return []
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    own = own_settings(case, search.ranges)
    return [own, *({key: _draw(rng, search.ranges[key]) for key in search.ranges} for _ in range(search.trials - 1))]


def _draw(rng: np.random.Generator, asked: Any) -> Any:
    """Draw a value: one of the choices, or log-uniformly; between two whole numbers, a whole number."""
    if isinstance(asked, dict):
        return asked["choices"][int(rng.integers(len(asked["choices"])))]
    low, high = asked
    drawn = math.exp(rng.uniform(math.log(low), math.log(high)))
    return round(drawn) if isinstance(low, int) and isinstance(high, int) else float(f"{drawn:.4g}")


def check(row: Planned) -> None:
    """Refuse, before anything is run, what cannot be searched."""
    search = row.case.search
    if search is None or not search.ranges:
        return
    if jax.process_count() > 1:
        raise ValueError("[search] runs in one process: start one, or set the chosen values and remove [search]")
    if row.case.select is not None:
        raise ValueError("[search] and [select] both choose: keep [select] for private rows, [search] for public ones")
    own_settings(row.case, search.ranges)
    known = row.setup.metrics()
    if search.metric not in known:
        raise ValueError("search.metric: " + unknown("metric", search.metric, known))


def search(row: Planned, folder: Path, tell: Callable[[int, Trial], None]) -> Trial:
    """Try all settings of a contender, and return the best trial; stored trials are not repeated.

    `tell` is called with the number of a trial that was run, and the trial. A trial that diverges is the worst. Of
    equal ones the first is taken.
    """
    asked = row.case.search
    assert asked is not None
    path, what = folder / FILE, _identity(row)
    done = _stored(path, what)
    left = settings_of(row.case, row.name)[len(done) :]
    for settings, scored in zip(left, scores(row, asked, left)):
        done.append(Trial(settings, scored))
        write_facts(path, *_SEARCH, {**what, "trials": [asdict(trial) for trial in done]})
        tell(len(done) - 1, done[-1])
    return best(done, row.name, asked.metric)


def best(trials: Sequence[Trial], name: str, metric: str) -> Trial:
    """Return the trial with the best score, the first of equal ones.

    >>> best([Trial({"method.rate": 0.1}, 0.8), Trial({"method.rate": 1.0}, None)], "DpSgd", "accuracy").score
    0.8
    """
    fine = [trial for trial in trials if trial.score is not None]
    if not fine:
        raise ValueError(f"{name}: every trial of its search diverged: give search.ranges that hold smaller steps")
    sign = -1 if lower_is_better(metric) else 1
    return max(fine, key=lambda trial: sign * (trial.score or 0.0))


def alike(rows: Sequence[Planned], chosen: Mapping[str, Settings]) -> dict[str, Settings]:
    """Return the settings of all rows, where those with ``search.like`` take what was chosen for another variant."""
    like = {row.name: row.case.search.like if row.case.search else None for row in rows}
    return {name: chosen[other] if (other := like[name]) is not None else own for name, own in chosen.items()}


def _identity(row: Planned) -> dict[str, Any]:
    """Return what makes stored trials those of this search; reported seeds and the pace of metrics have no effect."""
    case = row.case.model_copy(update={"run": row.case.run.model_copy(update={"seeds": [0], "every": None})})
    return {"name": row.name, "row": row.kind, "case": case.model_dump_json(exclude_unset=True)}


def _stored(path: Path, what: Mapping[str, Any]) -> list[Trial]:
    if not path.is_file():
        return []
    facts = read_facts(path, *_SEARCH, _REMEDY)
    same = all(facts.get(key) == value for key, value in what.items())
    return [Trial(**trial) for trial in facts["trials"]] if same else []


def scores(row: Planned, asked: SearchTable, tried: Sequence[Mapping[str, Any]]) -> Iterator[float | None]:
    """Yield the mean score of each of some settings over the search's seeds, in turn; None if one of the runs diverges.

    Trials that differ in numbers alone run side by side.
    """
    runs = [(settings, seed) for settings in tried for seed in asked.seeds]
    setups = (trial_setup(with_settings(row.case, settings), row.kind, asked, seed) for settings, seed in runs)
    found: dict[int, float | None] = {}
    ended, each = 0, len(asked.seeds)
    for number, end in together.as_they_end((made, seed, None) for made, (_, seed) in zip(setups, runs)):
        found[number] = None if isinstance(end, FloatingPointError) else _score(end, row, asked)
        while ended < len(tried) and all(ended * each + one in found for one in range(each)):
            yield mean([found[ended * each + one] for one in range(each)])
            ended += 1


def _score(result: Result, row: Planned, asked: SearchTable) -> float | None:
    """Return the score of a run; None if its state is not finite."""
    history = result.history
    if not finite(history):
        return None
    own = history[f"{asked.metric}/agents"][-1] if row.kind == "alone" else history[asked.metric][-1]
    return float(np.mean(own))


def mean(scores: Sequence[float | None]) -> float | None:
    """Return the score of a trial from those of its seeds; None if one of them diverged or has no finite score.

    >>> mean([0.5, 1.0]), mean([0.5, math.nan]), mean([0.5, None])
    (0.75, None, None)
    """
    fine = [score for score in scores if score is not None and math.isfinite(score)]
    return float(np.mean(fine)) if len(fine) == len(scores) else None


def trial_setup(case: Case, kind: Any, asked: SearchTable, seed: int) -> Setup:
    """Build a case on a part of its training records, with the rest of them in the place of the test records."""
    how = {"seeds": [seed], "every": case.run.steps, "train": None, "metric": None}
    drawn = redrawn(case, seed).model_copy(update={"run": case.run.model_copy(update=how)})
    if drawn.columns is not None:
        table = columns.apart(columns.records(drawn), asked.validation, seed)
        return of_kind(replace(columns.setup(drawn, table), share=True), kind)
    loaded = _apart(drawn.data.model_dump_json(exclude_unset=True), asked.validation, seed)
    return of_kind(replace(rows.setup(drawn, loaded=loaded), share=True), kind)


@lru_cache(maxsize=2)
def _apart(data: str, share: float, seed: int) -> rows.Loaded:
    """Hold records out once per content, because trials and variants mostly share their data."""
    parts, _, shape = build.records(Data.model_validate_json(data))
    kept, held = apart(parts, share, seed)
    return kept, held, shape


def apart(parts: list[Any], share: float, seed: int) -> tuple[list[Any], Any]:
    """Hold out a share of each party's units, at both levels if there are two; return the parts and what is held out.

    >>> kept, held = apart([Part({"label": np.arange(10)}, np.arange(10))], share=0.2, seed=0)
    >>> len(kept[0]), sorted({*kept[0].gather()["label"], *held["label"]}) == list(range(10))
    (8, True)
    """
    kept, held = [], []
    for number, part in enumerate(parts):
        levels = {"upper": part.upper, "lower": part.lower} if isinstance(part, Levels) else {"": part}
        if isinstance(part, Levels) and np.intersect1d(ids_of(part.upper), ids_of(part.lower)).size:
            if not np.array_equal(part.upper.rows, part.lower.rows):
                raise ValueError("[search] needs levels with the same records or with none in common")
            levels = {"upper": part.upper}  # the same rows: what is held out is held out of both
        pairs = {name: _split(own, share, (seed, number, place)) for place, (name, own) in enumerate(levels.items())}
        rest = [pair[0] for pair in pairs.values()]
        kept.append(replace(part, upper=rest[0], lower=rest[-1]) if isinstance(part, Levels) else rest[0])
        held += [pair[1] for pair in pairs.values()]
    some = [part.gather() for part in held]
    return kept, jax.tree.map(lambda *leaves: np.concatenate(leaves), *some)


def _split(part: Part, share: float, seed: tuple[int, ...]) -> tuple[Part, Part]:
    units, item = np.unique(ids_of(part), return_inverse=True)
    if len(units) < 2:
        raise ValueError("search.validation: a party has one record at a level, and two are needed: use fewer parties")
    count = min(max(1, round(share * len(units))), len(units) - 1)
    out = np.isin(item.reshape(-1), np.random.default_rng(seed).permutation(len(units))[:count])
    return replace(part, rows=part.rows[~out]), replace(part, rows=part.rows[out])
