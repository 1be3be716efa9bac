"""Collect the figures of an experiment's runs: means over seeds, worst parties, and what was guaranteed.

A `Comparison` has one `Row` per configuration, and a `Row` has one `Outcome` per seed.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from sottovoce.files import read_facts, write_atomically, write_facts
from sottovoce.privacy.report import PrivacyReport, rounded_up
from sottovoce.runtime.about import About
from sottovoce.runtime.coefficients import Coefficients
from sottovoce.runtime.model_file import NAME as MODEL
from sottovoce.runtime.model_file import coefficients_of
from sottovoce.runtime.result import RESULT

Kind = Literal["together", "alone", "pooled"]
ALONE = ", alone"  # added to a variant's name where each of its parties trains alone
_EXPERIMENT = ("the plan of an experiment", 1)  # kind and version of comparison.json
_AGAIN = "restore it from a copy, or run the experiment again into another folder"
RUN_FILE = "run.toml"  # in an experiment's folder
_PLAN = (RUN_FILE, "comparison.json")
_NOT_METRICS = ("step", "seconds", "consensus")
_LOWER_IS_BETTER = ("loss", "error", "rmse", "gap", "norm")


class PaperFigure(BaseModel):
    """Hold a figure that a paper prints, to be shown beside ours.

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
    """Hold one finished run as `Result.save` wrote it, without the model."""

    history: dict[str, np.ndarray]
    privacy: PrivacyReport
    releasable: bool
    about: About | None = None
    card: Path | None = None  # the model's card, if there is one
    public_test: bool = False  # whether figures were declared to be of public rows
    coefficients: Coefficients | None = None  # of a linear model, with their errors

    @classmethod
    def load(cls, folder: Path) -> "Outcome":
        """Read a run's folder."""
        path = folder / "result.json"
        stored = read_facts(path, *RESULT, _AGAIN)
        history = {name: np.asarray(values) for name, values in stored["history"].items()}
        told = stored.get("about")
        card = (folder / MODEL).with_suffix(".md")
        return cls(
            history,
            PrivacyReport.from_dict(stored.get("privacy"), path),
            stored["releasable"],
            None if told is None else About.from_dict(told, path),
            card if card.is_file() else None,
            bool(stored.get("public_test")),
            coefficients_of(folder / MODEL),
        )

    @property
    def diverged(self) -> bool:
        """Say whether the agents' state is not finite at the end."""
        return not finite(self.history)

    def values(self, metric: str, kind: Kind = "together") -> np.ndarray:
        """Return the metric over time: of the agents' average, or the mean over agents that train alone."""
        return self.history[f"{metric}/agents"].mean(axis=1) if kind == "alone" else self.history[metric]

    def worst(self, metric: str) -> float | None:
        """Return the worst agent's figure at the end; None where only averages are known."""
        if f"{metric}/agents" not in self.history:
            return None
        return float((np.max if lower_is_better(metric) else np.min)(self.history[f"{metric}/agents"][-1]))


def finite(history: Mapping[str, Any]) -> bool:
    """Say whether a run ended with finite states: a private state is not looked at on the way, so such a run goes on.

    >>> finite({"consensus": [0.0, 0.1]}), finite({"consensus": [0.0, float("nan")]})
    (True, False)
    """
    return "consensus" not in history or bool(np.isfinite(history["consensus"][-1]))


@dataclass(frozen=True)
class Row:
    """Hold the runs of one configuration, one per seed.

    Kind "together": the parties train over their network. "alone": each party trains alone, and the figures are means
    over the parties, not those of an averaged model. "pooled": all records are in one place.
    """

    name: str
    kind: Kind
    runs: tuple[Outcome, ...]
    metric: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # what a search chose, by dotted keys

    @property
    def family(self) -> str:
        """Return the name without its epsilon: rows that differ in nothing else are points of one curve."""
        return re.sub(r"(, )?\bepsilon [\d.]+(, )?", r"\1", self.name).removesuffix(", ")

    @property
    def privacy(self) -> PrivacyReport:
        """Return the statement of the seed that pays most: seeds that redraw the split may differ in epsilon."""
        return max((run.privacy for run in self.runs), key=lambda privacy: privacy.epsilon)

    @property
    def about(self) -> About:
        """Return the facts of the first run; empty ones where none were stored."""
        return self.runs[0].about or About(date="", versions={})

    @property
    def parties(self) -> tuple[str, ...]:
        """Return the names of the parties."""
        return self.about.parties or self.privacy.parties

    @property
    def called(self) -> tuple[str, ...]:
        """Return what the parties are called in words: "party 0" where a party has a number only."""
        return tuple(f"party {name}" if name.isdigit() else name for name in self.parties)

    @property
    def releasable(self) -> bool:
        """Say whether the results of all seeds may leave."""
        return all(run.releasable for run in self.runs)

    @property
    def metrics(self) -> list[str]:
        """Return the names of what was evaluated."""
        return [name for name in self.runs[0].history if name not in _NOT_METRICS and "/" not in name]

    @property
    def seconds(self) -> float:
        """Return the mean time of a run's steps, compilation included."""
        return float(np.mean([run.history["seconds"][-1] for run in self.runs]))

    def values(self, metric: str) -> np.ndarray:
        """Return the metric over time, one row per seed."""
        return np.stack([run.values(metric, self.kind) for run in self.runs])

    def final(self, metric: str) -> tuple[float, float]:
        """Return mean and standard deviation over the seeds at the end (the deviation of one seed is NaN)."""
        last = self.values(metric)[:, -1]
        return float(last.mean()), float(last.std(ddof=1)) if len(last) > 1 else math.nan

    def worst(self, metric: str) -> float | None:
        """Return the worst party's figure at the end, averaged over the seeds; None where only averages are known."""
        if f"{metric}/agents" not in self.runs[0].history:
            return None
        return float(np.mean([run.worst(metric) for run in self.runs]))


@dataclass(frozen=True)
class Comparison:
    """Hold all rows of an experiment that have been run, and a paper's figures to compare them with."""

    title: str
    rows: tuple[Row, ...]
    printed: tuple[PaperFigure, ...] = ()
    text: str = ""
    chosen: str = ""  # with [select]: what was chosen, among what, and what that cost
    sources: tuple[str, ...] = ()  # where the data come from, in words

    @property
    def main(self) -> Row:
        """Return the row that the first screen speaks of: the first private one at the epsilon that most rows share."""
        together = [row for row in self.rows if row.kind == "together"] or list(self.rows)
        private = [row for row in together if row.privacy.private]
        epsilon = shared_epsilon(private)
        return next((row for row in private if upward(row.privacy.epsilon) == epsilon), together[0])

    @property
    def metric(self) -> str | None:
        """Return the metric that pictures show: bytes only if asked for. None where a party measures nothing."""
        known = [name for row in self.rows for name in row.metrics]
        wanted = [row.metric for row in self.rows if row.metric in known]
        usual = [name for name in ("accuracy", "auroc") if name in known]
        measured = [name for name in known if not name.startswith("bytes")]
        return next(iter([*wanted, *usual, *measured]), None)

    @property
    def metrics(self) -> list[str]:
        """Return all metrics, the one that pictures show first."""
        names = dict.fromkeys(name for row in self.rows for name in row.metrics)
        return sorted(names, key=lambda name: (name != self.metric, list(names).index(name)))

    @property
    def sense(self) -> str | None:
        """Say in which sense all epsilons are meant; None if rows differ, or if nothing is guaranteed."""
        private = [row.privacy for row in self.rows if row.privacy.private]
        said = {
            f"at delta {one.delta:g}, per {one.unit}, {one.adjacency} adjacency, {one.design} design" for one in private
        }
        return said.pop() if len(said) == 1 else None

    def table(self, brief: bool = False) -> tuple[list[str], list[list[str]]]:
        """Return the heads and cells of the main table; a brief one fits a terminal."""
        shown = [name for name in self.metrics if name == self.metric or not name.startswith("bytes")]
        beside = (
            ("accuracy", "base rate") if "base rate" in shown else ("rmse", "error factor")
        )  # without them a figure is misread
        metrics = [*shown[:1], *(name for name in shown[1:] if name in beside)] if brief else shown
        columns: dict[str, Callable[[Row], str]] = {"": lambda row: row.name}
        paid: dict[str, Callable[[Row], str]] = {"epsilon": lambda row: upward(row.privacy.epsilon)}
        worst: dict[str, Callable[[Row], str]] = {}
        for metric in metrics[:1]:
            columns[metric] = partial(_mean, metric)
            if any(row.worst(metric) is not None for row in self.rows if metric in row.metrics):
                worst["worst party"] = partial(_worst, metric)
        columns |= worst | paid if brief else paid | worst  # a phone shows three columns of the whole table
        columns |= {metric: partial(_mean, metric) for metric in metrics[1:]}
        if not brief or self.sense is None:
            columns["adjacency"] = lambda row: row.privacy.adjacency if row.privacy.private else ""
        if not brief:
            columns["delta"] = lambda row: f"{row.privacy.delta:g}" if row.privacy.private else "-"
        if not brief or self.sense is None:
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


def shared_epsilon(rows: Sequence[Row]) -> str | None:
    """Return the epsilon that most private rows share, the middle one of several, as it is written."""
    shared = Counter(upward(row.privacy.epsilon) for row in rows if row.privacy.private)
    common = [epsilon for epsilon, count in shared.items() if count == max(shared.values())]
    return sorted(common, key=float)[len(common) // 2] if common else None


def load(*folders: str | Path) -> Comparison:
    """Load what is in a folder: an experiment that `sottovoce run` wrote, one run, or several runs side by side.

    Several folders become one comparison, in which each row is named after its folder.
    """
    if not folders:
        raise ValueError("give at least one folder that `sottovoce run --out` wrote")
    if len(folders) == 1:
        return _load_folder(Path(folders[0]))
    parts = {Path(folder): _load_folder(Path(folder)) for folder in folders}
    names = {folder: folder.resolve().name for folder in parts}
    if len(set(names.values())) < len(folders):
        raise ValueError(
            f"{', '.join(map(str, folders))}: two folders have the same name, or one is given twice: rename one"
        )
    rows = (replace(row, name=f"{names[folder]}: {row.name}") for folder, part in parts.items() for row in part.rows)
    text = "\n".join(f"# {names[folder]}\n{part.text}" for folder, part in parts.items() if part.text)
    chosen = "; ".join(f"{names[folder]}: {part.chosen}" for folder, part in parts.items() if part.chosen)
    printed = tuple(dict.fromkeys(entry for part in parts.values() for entry in part.printed))
    return Comparison(f"Comparison of {', '.join(names.values())}", tuple(rows), printed, text, chosen)


def _load_folder(folder: Path) -> Comparison:
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


def planned_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of an experiment as `save_plan` wrote them, with those that no run of is finished."""
    return read_facts(folder / "comparison.json", *_EXPERIMENT, _AGAIN)["rows"]


def _load_comparison(folder: Path) -> Comparison:
    facts = read_facts(folder / "comparison.json", *_EXPERIMENT, _AGAIN)
    rows = []
    for entry in facts["rows"]:
        done = [folder / run for run in entry["runs"] if (folder / run / "result.json").exists()]
        runs = tuple(run for run in map(Outcome.load, done) if not run.diverged)
        if runs:
            rows.append(Row(entry["name"], entry["kind"], runs, entry["metric"], entry.get("settings", {})))
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
