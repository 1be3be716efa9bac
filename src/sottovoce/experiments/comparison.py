"""What runs of an experiment have in common and how they differ: the figures behind every table and picture."""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sottovoce.experiments.runfile import PaperFigure
from sottovoce.privacy.report import PrivacyReport, rounded_up
from sottovoce.runtime import checkpoint

Kind = Literal["together", "alone", "pooled"]
TRAIN = "train "  # begins the name of a metric of private records, which has no noise
ALONE = ", alone"  # what is added to a variant's name for its parties alone
_PLAN = ("run.toml", "comparison.json")
_NOT_METRICS = ("step", "seconds", "consensus")
_LOWER_IS_BETTER = ("loss", "error", "gap", "norm")


@dataclass(frozen=True)
class Outcome:
    """One finished run as `Result.save` wrote it, without the model."""

    history: dict[str, np.ndarray]
    privacy: PrivacyReport
    releasable: bool

    @classmethod
    def load(cls, folder: Path) -> "Outcome":
        """From a run's folder."""
        stored = json.loads((folder / "result.json").read_text())
        history = {name: np.asarray(values) for name, values in stored["history"].items()}
        return cls(history, PrivacyReport.from_dict(stored["privacy"]), stored["releasable"])


@dataclass(frozen=True)
class Row:
    """One configuration, run once a seed.

    Kind "together": the parties over their network. "alone": each on its own, so that its figures are the mean over
    the parties, not those of an averaged model. "pooled": all records in one place.
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
        """The metric over time, a row per seed."""
        if self.kind == "alone":
            return np.stack([run.history[f"{metric}/agents"].mean(axis=1) for run in self.runs])
        return np.stack([run.history[metric] for run in self.runs])

    def final(self, metric: str) -> tuple[float, float]:
        """Mean and standard deviation over the seeds at the end (deviation NaN for one seed)."""
        last = self.values(metric)[:, -1]
        return float(last.mean()), float(last.std(ddof=1)) if len(last) > 1 else math.nan

    def worst(self, metric: str) -> float | None:
        """The worst agent's figure at the end, mean over the seeds; None where agents were not told apart."""
        if f"{metric}/agents" not in self.runs[0].history:
            return None
        pick = np.max if lower_is_better(metric) else np.min
        return float(np.mean([pick(run.history[f"{metric}/agents"][-1]) for run in self.runs]))


@dataclass(frozen=True)
class Comparison:
    """All rows of an experiment that have been run, and the figures of a paper to hold against them."""

    title: str
    rows: tuple[Row, ...]
    printed: tuple[PaperFigure, ...] = ()
    text: str = ""

    @property
    def metric(self) -> str | None:
        """The metric that pictures show."""
        known = [name for row in self.rows for name in row.metrics]
        wished = [row.metric for row in self.rows if row.metric in known]
        usual = [name for name in ("accuracy", "auroc") if name in known]
        return next(iter([*wished, *usual, *known]), None)

    @property
    def metrics(self) -> list[str]:
        """All metrics, the one that pictures show first."""
        names = dict.fromkeys(name for row in self.rows for name in row.metrics)
        return sorted(names, key=lambda name: (name != self.metric, list(names).index(name)))

    def table(self, brief: bool = False) -> tuple[list[str], list[list[str]]]:
        """Heads and cells of the main table; a brief one fits a terminal."""
        metrics = self.metrics[:1] if brief else self.metrics
        columns: dict[str, Callable[[Row], str]] = {"": lambda row: row.name}
        for metric in metrics:
            columns[metric] = partial(_mean, metric)
            if metric == self.metric:
                columns["worst agent"] = partial(_worst, metric)
        columns["epsilon"] = lambda row: upward(row.privacy.epsilon)
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
    """The comparison in a folder: one that `sottovoce run` wrote, one run, or several runs side by side."""
    folder = Path(folder)
    if (folder / "comparison.json").is_file():
        return _load_comparison(folder)
    runs = (
        [folder] if (folder / "result.json").is_file() else sorted(path.parent for path in folder.glob("*/result.json"))
    )
    parts = [_load_comparison(path.parent) for path in sorted(folder.glob("*/comparison.json"))]
    rows = [Row(run.name, "together", (Outcome.load(run),)) for run in runs]
    rows += [row for part in parts for row in part.rows]
    if not rows:
        raise ValueError(f"{folder} holds no finished run: give the folder that `sottovoce run --out` wrote")
    return Comparison(folder.resolve().name, tuple(rows))


def _load_comparison(folder: Path) -> Comparison:
    facts = json.loads((folder / "comparison.json").read_text())
    rows = []
    for entry in facts["rows"]:
        done = [folder / run for run in entry["runs"] if (folder / run / "result.json").is_file()]
        if done:
            rows.append(Row(entry["name"], entry["kind"], tuple(map(Outcome.load, done)), entry["metric"]))
    if not rows:
        raise ValueError(f"no run in {folder} is finished: go on with `sottovoce run ... --resume`")
    printed = tuple(PaperFigure.model_validate(entry) for entry in facts["printed"])
    return Comparison(facts["title"], tuple(rows), printed, (folder / "run.toml").read_text())


def save_plan(
    folder: Path, title: str, text: str, printed: Sequence[PaperFigure], rows: Sequence[dict[str, Any]]
) -> None:
    """Write what is going to be run, so that a stopped experiment can be looked at, too."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"title": title, "printed": [entry.model_dump() for entry in printed], "rows": list(rows)}
    checkpoint.write_atomically(folder / "run.toml", text.encode())
    checkpoint.write_atomically(folder / "comparison.json", json.dumps(facts, indent=1).encode())


def stored_plan(folder: Path) -> dict[str, bytes]:
    """What `save_plan` would write over."""
    return {name: (folder / name).read_bytes() for name in _PLAN if (folder / name).is_file()}


def restore_plan(folder: Path, stored: dict[str, bytes]) -> None:
    """Put back what `stored_plan` found, if anything."""
    for name, content in stored.items():
        checkpoint.write_atomically(folder / name, content)


def lower_is_better(metric: str) -> bool:
    """Whether a small value is a good one, by the metric's name.

    >>> lower_is_better("test loss"), lower_is_better("accuracy")
    (True, False)
    """
    return any(word in metric for word in _LOWER_IS_BETTER)


def figure(value: float | None) -> str:
    """A number for a table.

    >>> figure(0.89512), figure(math.inf), figure(None), figure(2.0)
    ('0.8951', 'infinite', '-', '2')
    """
    if value is None:
        return "-"
    return f"{value:.4g}" if math.isfinite(value) else "infinite" if value > 0 else "undefined"


def upward(epsilon: float | None, digits: int = 3) -> str:
    """An epsilon for a table, rounded up: what is written is never less than what is guaranteed.

    >>> upward(1.9991), upward(2.0001), upward(0.34561, digits=4), upward(math.inf), upward(None)
    ('2', '2.01', '0.3457', 'infinite', '-')
    """
    if epsilon is None or not math.isfinite(epsilon) or epsilon <= 0:
        return figure(epsilon)
    return rounded_up(epsilon, digits)


def spread(mean: float, deviation: float) -> str:
    """A mean with its deviation, if there is one.

    >>> spread(0.91234, 0.0042), spread(0.9, math.nan)
    ('0.9123 ± 0.0042', '0.9000')
    """
    return f"{mean:#.4g}" if math.isnan(deviation) else f"{mean:#.4g} ± {deviation:.2g}"
