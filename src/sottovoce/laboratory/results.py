"""Write the results of an experiment as small CSV files: one line per variant and seed, and curves over the steps.

Both begin with comment lines that say what made them: the command, versions and date, what a seed redraws, the search.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.experiments import redraw
from sottovoce.experiments.runfile import RunFile
from sottovoce.experiments.schema import Case, worded
from sottovoce.files import write_atomically
from sottovoce.reports import comparison
from sottovoce.reports.comparison import Comparison, Outcome
from sottovoce.runtime.result import TRAIN

POINTS = 12  # points of a curve, at most
COUNTED = ("messages", "numbers", "batches")  # counts per agent, in the whole run
Cells = list[Any]


def write(folder: Path, name: str, command: str, runfile: RunFile, out: Path) -> list[Path]:
    """Write ``folder/name.csv`` from the runs in `out`, and return the paths of what was written.

    ``folder/name-curves.csv`` is written too, if metrics were computed at more than one step.
    """
    made = comparison.load(out)
    head = "".join(f"# {line}\n" for line in _head(command, runfile, made))
    path = folder / f"{name}.csv"
    tables = {path: _lines(out, made)}
    if any(len(row.runs[0].history["step"]) > 1 for row in made.rows):
        tables[path.with_name(f"{path.stem}-curves.csv")] = _curves(made)
    for file, table in tables.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([_written(cell) for cell in line] for line in table)
        write_atomically(file, (head + text.getvalue()).encode())
    return list(tables)


def _head(command: str, runfile: RunFile, made: Comparison) -> Iterable[str]:
    yield command
    about = made.rows[0].about
    yield ", ".join([*(f"{name} {version}" for name, version in about.versions.items()), about.date[:10]])
    for said in dict.fromkeys(redraw.words(case) for case in runfile.cases.values()):
        yield f"redrawn by each seed: {said}"
    searched = {name: case for name, case in runfile.cases.items() if case.search is not None}
    for case in list(searched.values())[:1]:
        yield _protocol(case)
    for name, case in searched.items():
        assert case.search is not None
        like = case.search.like
        yield f"searched, {name}: {_ranges(case.search.ranges) if like is None else f'taken from {like}'}"


def _protocol(case: Case) -> str:
    assert case.search is not None
    asked = case.search
    return (
        f"search: {asked.trials} trials per contender, seeds {', '.join(map(str, asked.seeds))}, scored by "
        f"{asked.metric} on {asked.validation:.0%} of the training records; not charged"
    )


def _ranges(ranges: dict[str, Any]) -> str:
    told = (
        f"{key} one of {asked['choices']}" if isinstance(asked, dict) else f"{key} {asked[0]} to {asked[1]}"
        for key, asked in ranges.items()
    )
    return "; ".join(told) or "nothing, its settings are those of the file"


def _lines(out: Path, made: Comparison) -> Iterable[Cells]:
    """Return a line per row and seed; a run that diverged has empty cells."""
    metrics = [name for name in made.metrics if not name.startswith("bytes")]
    worst = [] if made.metric is None else [f"worst {made.metric}"]
    stated = ("epsilon", "published", "delta", "adjacency", "steps")
    yield ["variant", "kind", "seed", *metrics, *worst, *stated, *COUNTED, "settings"]
    for entry in comparison.planned_rows(out):
        for folder in entry["runs"]:
            run = Outcome.load(out / folder) if (out / folder / "result.json").is_file() else None
            cells = None if run is None or run.diverged else _cells(run, entry["kind"], made.metric, metrics)
            empty: Cells = [None] * (len(metrics) + len(worst) + len(stated) + len(COUNTED))
            settings = worded(entry.get("settings", {}))
            yield [entry["name"], entry["kind"], Path(folder).name, *(cells or empty), settings]


def _cells(run: Outcome, kind: comparison.Kind, main: str | None, metrics: Sequence[str]) -> Cells:
    finals = [run.values(name, kind)[-1] if name in run.history else None for name in metrics]
    worst = [] if main is None else [run.worst(main)]
    privacy, about = run.privacy, run.about
    stated = [privacy.epsilon, privacy.published, privacy.delta, privacy.adjacency, int(run.history["step"][-1])]
    counted: Cells = [None] * len(COUNTED)
    if about is not None and about.messages:
        counted = [float(np.mean(about.messages)), float(np.mean(about.sent)) / 4, about.batches]
    return [*finals, *worst, *stated, *counted]


def _curves(made: Comparison) -> Iterable[Cells]:
    """Return mean, lowest and highest over the seeds, at some steps of each row."""
    yield ["variant", "metric", "step", "mean", "lowest", "highest"]
    shown = [made.metric, "loss", f"{TRAIN}{made.metric}", f"{TRAIN}loss"] if made.metric is not None else ["loss"]
    for row in made.rows:
        steps = row.runs[0].history["step"]
        picked = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), POINTS)).round().astype(int))
        for metric in dict.fromkeys(shown):
            if (f"{metric}/agents" if row.kind == "alone" else metric) not in row.runs[0].history:
                continue
            values = row.values(metric)
            for k in picked:
                at = values[:, k]
                yield [row.name, metric, int(steps[k]), float(at.mean()), float(at.min()), float(at.max())]


def _written(cell: Any) -> str:
    return "" if cell is None else f"{cell:.6g}" if isinstance(cell, float) else str(cell)
