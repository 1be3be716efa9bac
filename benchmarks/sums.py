"""What being many costs: parties by their own noise, parties by secure sums, and one table, at epsilon 1.

    python -m benchmarks.sums tables [SEEDS] [SPLITS]   # 5 and 20 unequal parties on fourteen public tables: AUROC
    python -m benchmarks.sums parties [SEEDS] [SPLITS]  # 2 to 50 equal parties on four of these tables
    python -m benchmarks.sums picture                   # docs/pictures/being-many.svg, from what `parties` wrote

Tables, declarations and encoding are those of `benchmarks.own_tables`, the same defaults (`sv.auto`) are everywhere,
and no setting was chosen on these tables. A split draws a quarter of the rows for the test, and deals the others out to
the parties: of five, 45, 25, 15, 10 and 5 %; of twenty, shares in proportion to 1, 2, ..., 20. All contenders of a
split have the same rows. Of sums any one party may collude (of two parties none); without sums everybody talks to
everybody. The seeds of one contender are members of one program (`sv.run_many`). Figures are AUROC minus that of one
table, averaged over the seeds and splits of a table. Standard errors are those of splits within each table.
"""

import csv
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

import sottovoce as sv
from benchmarks import measure
from benchmarks.own_tables import FLCHAIN, INSURANCE, UNSEEN, Table, load, unseen
from sottovoce.data.parts import Part
from sottovoce.problems.tasks import Shape, Task, get
from sottovoce.reports import pictures
from sottovoce.reports.chart import Axis, Line, chart

EPSILON, DELTA = 1.0, 1e-5
UNEQUAL = {5: np.array([45, 25, 15, 10, 5]), 20: np.arange(1, 21)}
COUNTS = (2, 3, 5, 10, 20, 50)
SMALL = (("AER", "HMDA"), ("openintro", "email"), ("wooldridge", "catholic"), ("survival", "rotterdam"))
FOUND = measure.ROOT / "docs" / "results" / "being-many.csv"
PICTURE = measure.ROOT / "docs" / "pictures" / "being-many.svg"
QUIET = sv.Performance(chunk=8192, progress=False)
CONTENDERS = ("one table", "own noise", "sums")


@dataclass(frozen=True)
class Split:
    """Hold the rows of one split: those to train on, in an order that parties take shares of, and those to test on."""

    task: Task
    train: dict[str, np.ndarray]
    test: dict[str, np.ndarray]

    @classmethod
    def of(cls, rows: np.ndarray, label: np.ndarray, seed: int, task: Task) -> "Split":
        """Draw a split."""
        order = np.random.default_rng([seed, 7]).permutation(len(rows))
        held = {"features": rows.astype(np.float32)[order], "label": label[order]}
        test = len(rows) // 4
        return cls(
            task, {key: leaf[test:] for key, leaf in held.items()}, {key: leaf[:test] for key, leaf in held.items()}
        )

    def parts(self, shares: np.ndarray) -> list[Part]:
        """Deal the rows out."""
        count = len(self.train["label"])
        ends = np.round(np.concatenate([[0], np.cumsum(shares)]) / np.sum(shares) * count).astype(int)
        rows = np.arange(count)
        return [Part(self.train, rows[start:stop]) for start, stop in pairwise(ends)]

    def aurocs(self, how: str, shares: np.ndarray, seeds: int) -> list[float]:
        """Run one contender with each seed, and return the AUROC on the test rows."""
        parts = self.parts(np.ones(1) if how == "one table" else shares)
        network = sv.networks.complete(len(parts)) if len(parts) > 1 and how != "sums" else None
        trust = sv.Sum(1) if how == "sums" and len(parts) > 2 else sv.Sum(0) if how == "sums" else None
        problem = self.task.problem
        plan = sv.auto(problem, parts, epsilon=EPSILON, delta=DELTA, norm=1.0, network=network, trust=trust)
        common = {
            "problem": problem,
            "data": parts,
            **plan.settings,
            "every": plan.steps,
            "evaluate": self.task.metrics(self.test),
            "performance": QUIET,
        }
        ends = sv.run_many([{**common, "seed": seed} for seed in range(seeds)])
        if any(isinstance(end, FloatingPointError) for end in ends):
            raise FloatingPointError(f"{how} diverged")
        return [float(end.history["auroc"][-1]) for end in ends]  # type: ignore[union-attr]


def splits_of(table: Table, splits: int) -> Iterator[Split]:
    rows, label, _, _ = load(table)
    numbers = (label == np.unique(label)[1]).astype(np.int32)
    task = get("logistic")(Shape((rows.shape[1],), 2, 1))
    for seed in range(splits):
        yield Split.of(rows, numbers, seed, task)


def measured(table: Table, splits: int, seeds: int, shares: dict[int, np.ndarray]) -> dict[tuple[str, int], np.ndarray]:
    """Return, for each contender and number of parties, AUROC minus that of one table, by split."""
    found: dict[tuple[str, int], list[float]] = {}
    for split in splits_of(table, splits):
        base = float(np.mean(split.aurocs("one table", np.ones(1), seeds)))
        found.setdefault(("one table", 1), []).append(base)
        for many, own in shares.items():
            for how in CONTENDERS[1:]:
                found.setdefault((how, many), []).append(float(np.mean(split.aurocs(how, own, seeds))) - base)
    return {key: np.array(values) for key, values in found.items()}


def error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def tables(seeds: int = 40, splits: int = 5) -> None:
    """Print the figures of each table, and the mean over tables."""
    all_found: list[dict[tuple[str, int], np.ndarray]] = []
    columns = [(how, many) for many in UNEQUAL for how in CONTENDERS[1:]]
    print(f"epsilon {EPSILON:g}, {seeds} seeds of the noise, {splits} splits; AUROC of one table, then minus it")
    print(f"{'table':16s}{'one table':>10s}" + "".join(f"{f'{many}, {how}':>20s}" for how, many in columns))
    for table in (FLCHAIN, INSURANCE, *(unseen(package, name) for package, name in UNSEEN)):
        began = time.perf_counter()
        found = measured(table, splits, seeds, UNEQUAL)
        all_found.append(found)
        cells = "".join(f"{found[key].mean():+12.4f} ({error(found[key]):.4f})"[:20].rjust(20) for key in columns)
        base = found["one table", 1].mean()
        print(f"{table.name:16s}{base:10.4f}{cells}  {time.perf_counter() - began:.0f} s", flush=True)
    print(f"mean over {len(all_found)} tables, its standard error, and the mean minus two of these:")
    for key in columns:
        means = np.array([found[key].mean() for found in all_found])
        drawn = np.sqrt(np.nansum([error(found[key]) ** 2 for found in all_found])) / len(all_found)
        print(f"  {key[1]:2d} parties, {key[0]:9s} {means.mean():+.4f} ({drawn:.4f}) {means.mean() - 2 * drawn:+.4f}")


def parties(seeds: int = 20, splits: int = 3) -> None:
    """Print and write the loss of 2 to 50 equal parties, the mean over four tables."""
    found = [
        measured(unseen(package, name), splits, seeds, {many: np.ones(many) for many in COUNTS})
        for package, name in SMALL
    ]
    lines: list[dict[str, Any]] = []
    for many in COUNTS:
        for how in CONTENDERS[1:]:
            each = [one[how, many] for one in found]
            drawn = np.sqrt(np.nansum([error(values) ** 2 for values in each])) / len(each)
            mean = float(np.mean([values.mean() for values in each]))
            lines.append({"parties": many, "contender": how, "auroc": f"{mean:+.4f}", "error": f"{drawn:.4f}"})
            print(f"{many:2d} parties, {how:9s} {mean:+.4f} ({drawn:.4f})", flush=True)
    with FOUND.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def picture() -> None:
    """Draw what `parties` wrote."""
    with FOUND.open() as file:
        held = list(csv.DictReader(file))
    PICTURE.write_text(drawn(held) + "\n")


def drawn(held: Sequence[dict[str, str]]) -> str:
    """Return the loss against the number of parties, with bands of two standard errors; one table is the line at 0."""
    lines, many = [], np.array(COUNTS, float)
    for slot, how in enumerate(CONTENDERS[1:]):
        own = [line for line in held if line["contender"] == how]
        mean, error = (np.array([float(line[key]) for line in own]) for key in ("auroc", "error"))
        lines.append(Line(how, how, many, mean, mean - 2 * error, mean + 2 * error, slot, dots=True))
    lines.append(Line("one table", "one table", many, np.zeros(len(many)), ink=True, style="--"))
    least = min(float(line.low.min()) for line in lines if line.low is not None)
    across = Axis("parties", many[0], many[-1], log=True, ticks=COUNTS)
    up = Axis("AUROC minus that of one table", least, 0.005)
    return pictures.by_itself([chart(lines, across, up, "what 2 to 50 parties lose against one table")])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    chosen: dict[str, Any] = {"tables": tables, "parties": parties, "picture": picture}
    if len(sys.argv) < 2 or sys.argv[1] not in chosen:
        raise SystemExit(__doc__)
    chosen[sys.argv[1]](*map(int, sys.argv[2:]))
