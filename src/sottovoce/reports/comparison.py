"""Collect the figures of an experiment's runs: means over seeds, worst agents, and what was guaranteed.

A `Comparison` has one `Row` per configuration, and a `Row` has one `Outcome` per seed.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from sottovoce.files import read_facts, write_atomically, write_facts
from sottovoce.privacy.report import PrivacyReport, rounded_up
from sottovoce.runtime.result import RESULT

Kind = Literal["together", "alone", "pooled"]
TRAIN = "train "  # first word of a metric that is computed on private records, without noise
ALONE = ", alone"  # added to a variant's name where each of its parties trains alone
_EXPERIMENT = ("the plan of an experiment", 1)  # kind and version of comparison.json
_AGAIN = "restore it from a copy, or run the experiment again into another folder"
_PLAN = ("run.toml", "comparison.json")
_NOT_METRICS = ("step", "seconds", "consensus")
_LOWER_IS_BETTER = ("loss", "error", "gap", "norm")


class PaperFigure(BaseModel):
    """A figure that a paper prints, to be shown beside ours.

    >>> PaperFigure(what="DP-SGD, test accuracy", value=0.93, epsilon=1.0, source="Table 2").value
    0.93
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    what: str
    value: float
    epsilon: float | None = None
    source: str = ""


@dataclass(frozen=True)
class Outcome:
    """One finished run as `Result.save` wrote it, without the model."""

    history: dict[str, np.ndarray]
    privacy: PrivacyReport
    releasable: bool

    @classmethod
    def load(cls, folder: Path) -> "Outcome":
        """Read a run's folder."""
        path = folder / "result.json"
        stored = read_facts(path, *RESULT, _AGAIN)
        history = {name: np.asarray(values) for name, values in stored["history"].items()}
        return cls(history, PrivacyReport.from_dict(stored.get("privacy"), path), stored["releasable"])


@dataclass(frozen=True)
class Row:
    """One configuration, run once per seed.

    Kind "together": the parties train over their network. "alone": each party trains alone, and the figures are means
    over the parties, not those of an averaged model. "pooled": all records are in one place.
    """

    name: str
    kind: Kind
    runs: tuple[Outcome, ...]
    metric: str | None = None

    @property
    def family(self) -> str:
        """The name without its epsilon: rows that differ in nothing else are points of one curve."""
        return re.sub(r"(, )?\bepsilon [\d.]+(, )?", r"\1", self.name).removesuffix(", ")

    @property
    def privacy(self) -> PrivacyReport:
        """The statement, the same for all seeds."""
        return self.runs[0].privacy

    @property
    def metrics(self) -> list[str]:
        """The names of what was evaluated."""
        return [name for name in self.runs[0].history if name not in _NOT_METRICS and "/" not in name]

    @property
    def seconds(self) -> float:
        """The mean time of a run's steps, compilation included."""
        return float(np.mean([run.history["seconds"][-1] for run in self.runs]))

    def values(self, metric: str) -> np.ndarray:
        """Return the metric over time, one row per seed."""
        if self.kind == "alone":
            return np.stack([run.history[f"{metric}/agents"].mean(axis=1) for run in self.runs])
        return np.stack([run.history[metric] for run in self.runs])

    def final(self, metric: str) -> tuple[float, float]:
        """Return mean and standard deviation over the seeds at the end (the deviation of one seed is NaN)."""
        last = self.values(metric)[:, -1]
        return float(last.mean()), float(last.std(ddof=1)) if len(last) > 1 else math.nan

    def worst(self, metric: str) -> float | None:
        """Return the worst agent's figure at the end, averaged over the seeds; None where only averages are known."""
        if f"{metric}/agents" not in self.runs[0].history:
            return None
        pick = np.max if lower_is_better(metric) else np.min
        return float(np.mean([pick(run.history[f"{metric}/agents"][-1]) for run in self.runs]))


@dataclass(frozen=True)
class Comparison:
    """All rows of an experiment that have been run, and a paper's figures to compare them with."""

    title: str
    rows: tuple[Row, ...]
    printed: tuple[PaperFigure, ...] = ()
    text: str = ""
    chosen: str = ""  # with [select]: what was chosen, among what, and what that cost

    @property
    def metric(self) -> str | None:
        """The metric that pictures show."""
        known = [name for row in self.rows for name in row.metrics]
        wanted = [row.metric for row in self.rows if row.metric in known]
        usual = [name for name in ("accuracy", "auroc") if name in known]
        return next(iter([*wanted, *usual, *known]), None)

    @property
    def metrics(self) -> list[str]:
        """All metrics, the one that pictures show first."""
        names = dict.fromkeys(name for row in self.rows for name in row.metrics)
        return sorted(names, key=lambda name: (name != self.metric, list(names).index(name)))

    def table(self, brief: bool = False) -> tuple[list[str], list[list[str]]]:
        """Return the heads and cells of the main table; a brief one fits a terminal."""
        metrics = self.metrics[:1] if brief else self.metrics
        columns: dict[str, Callable[[Row], str]] = {"": lambda row: row.name}
        for metric in metrics:
            columns[metric] = partial(_mean, metric)
            if metric == self.metric:
                columns["worst agent"] = partial(_worst, metric)
        columns["epsilon"] = lambda row: upward(row.privacy.epsilon)
        columns["adjacency"] = lambda row: row.privacy.adjacency if row.privacy.private else ""
        if not brief:
            columns["delta"] = lambda row: f"{row.privacy.delta:g}" if row.privacy.private else "-"
        columns["design"] = lambda row: row.privacy.design
        if any(row.privacy.published is not None for row in self.rows):
            columns["published"] = lambda row: upward(row.privacy.published)
        columns["seconds"] = lambda row: f"{row.seconds:.1f}"
        return list(columns), [[cell(row) for cell in columns.values()] for row in self.rows]


def _mean(metric: str, row: Row) -> str:
    return spread(*row.final(metric)) if metric in row.metrics else "-"


def _worst(metric: str, row: Row) -> str:
    worst = row.worst(metric)
    return "-" if worst is None else f"{worst:#.4g}"


def load(folder: str | Path) -> Comparison:
    """Load the comparison in a folder: one that `sottovoce run` wrote, one run, or several runs side by side."""
    folder = Path(folder)
    if (folder / "comparison.json").exists():
        return _load_comparison(folder)
    runs = (
        [folder] if (folder / "result.json").exists() else sorted(path.parent for path in folder.glob("*/result.json"))
    )
    parts = [_load_comparison(path.parent) for path in sorted(folder.glob("*/comparison.json"))]
    rows = [Row(run.name, "together", (Outcome.load(run),)) for run in runs]
    rows += [row for part in parts for row in part.rows]
    if not rows:
        raise ValueError(f"{folder} holds no finished run: give the folder that `sottovoce run --out` wrote")
    return Comparison(folder.resolve().name, tuple(rows))


def _load_comparison(folder: Path) -> Comparison:
    facts = read_facts(folder / "comparison.json", *_EXPERIMENT, _AGAIN)
    rows = []
    for entry in facts["rows"]:
        done = [folder / run for run in entry["runs"] if (folder / run / "result.json").exists()]
        if done:
            rows.append(Row(entry["name"], entry["kind"], tuple(map(Outcome.load, done)), entry["metric"]))
    if not rows:
        raise ValueError(f"no run in {folder} is finished: continue with `sottovoce run ... --resume`")
    printed = tuple(PaperFigure.model_validate(entry) for entry in facts["printed"])
    path = folder / "run.toml"
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read ({error}): {_AGAIN}") from error
    return Comparison(facts["title"], tuple(rows), printed, text, facts["chosen"])


def save_plan(
    folder: Path,
    title: str,
    text: str,
    printed: Sequence[PaperFigure],
    rows: Sequence[dict[str, Any]],
    chosen: str = "",
) -> None:
    """Write down what is going to be run, so that a stopped experiment can be shown too.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> save_plan(folder, "mine", "title = 'mine'", [], [])
    >>> sorted(stored_plan(folder))
    ['comparison.json', 'run.toml']
    """
    facts = {"title": title, "printed": [entry.model_dump() for entry in printed], "rows": list(rows)}
    facts["chosen"] = chosen
    write_atomically(folder / "run.toml", text.encode())
    write_facts(folder / "comparison.json", *_EXPERIMENT, facts)


def stored_plan(folder: Path) -> dict[str, bytes]:
    """Read the files that `save_plan` would overwrite."""
    return {name: (folder / name).read_bytes() for name in _PLAN if (folder / name).is_file()}


def restore_plan(folder: Path, stored: dict[str, bytes]) -> None:
    """Put back what `stored_plan` found, if anything."""
    for name, content in stored.items():
        write_atomically(folder / name, content)


def lower_is_better(metric: str) -> bool:
    """Tell by the metric's name whether a small value is a good one.

    >>> lower_is_better("test loss"), lower_is_better("accuracy")
    (True, False)
    """
    return any(word in metric for word in _LOWER_IS_BETTER)


def figure(value: float | None) -> str:
    """Format a number for a table.

    >>> figure(0.89512), figure(math.inf), figure(None), figure(2.0)
    ('0.8951', 'infinite', '-', '2')
    """
    if value is None:
        return "-"
    return f"{value:.4g}" if math.isfinite(value) else "infinite" if value > 0 else "undefined"


def upward(epsilon: float | None, digits: int = 3) -> str:
    """Format an epsilon for a table, rounded up: what is written is never less than what is guaranteed.

    >>> upward(1.9991), upward(2.0001), upward(0.34561, digits=4), upward(math.inf), upward(None)
    ('2', '2.01', '0.3457', 'infinite', '-')
    """
    if epsilon is None or not math.isfinite(epsilon) or epsilon <= 0:
        return figure(epsilon)
    return rounded_up(epsilon, digits)


def spread(mean: float, deviation: float) -> str:
    """Format a mean with its deviation, if there is one.

    >>> spread(0.91234, 0.0042), spread(0.9, math.nan)
    ('0.9123 ± 0.0042', '0.9000')
    """
    return f"{mean:#.4g}" if math.isnan(deviation) else f"{mean:#.4g} ± {deviation:.2g}"
