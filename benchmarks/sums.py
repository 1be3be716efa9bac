"""What being many costs: parties by their own noise, parties by secure sums, and one table, at epsilon 1.

    python -m benchmarks.sums tables 40 5 [NAME ...]  # 5 and 20 unequal parties, 40 seeds, 5 splits: AUROC, into a file
    python -m benchmarks.sums mean                    # what `tables` found, and the mean over all tables
    python -m benchmarks.sums parties 20 3            # 2 to 50 equal parties on four of the tables, into a file
    python -m benchmarks.sums picture                 # docs/pictures/being-many-auroc.svg, of what `parties` found
    python -m benchmarks.sums noise                   # docs/pictures/being-many.svg: the noise itself, by formulas

Tables, declarations and encoding are those of `benchmarks.own_tables`, the same defaults (`sv.auto`) are everywhere,
and no setting was chosen on these tables. A split draws a quarter of the rows for the test, and deals the others out to
the parties: of five, 45, 25, 15, 10 and 5 %; of twenty, shares in proportion to 1, 2, ..., 20. All contenders of a
split have the same rows. Of sums any one party may collude (of two parties none); without sums everybody talks to
everybody. All runs of one contender are members of one program (`sv.run_many`). Figures are AUROC minus that of one
table, averaged over the seeds and splits of a table; standard errors are those of the splits within each table.
"""

import csv
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
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
FOUR = ("HMDA", "email", "catholic", "rotterdam")
RESULTS = measure.ROOT / "docs" / "results"
TABLES, PARTIES = RESULTS / "being-many-tables.csv", RESULTS / "being-many-parties.csv"
PICTURES = measure.ROOT / "docs" / "pictures"
QUIET = sv.Performance(chunk=8192, progress=False)
ALONE, OWN, SUMS = "one table", "own noise", "sums"
Found = dict[tuple[str, int], np.ndarray]  # AUROC minus that of one table by split, for a contender and its parties


@dataclass(frozen=True)
class Measured:
    """Hold a table that contenders are measured on."""

    table: Table
    splits: int
    seeds: int

    @cached_property
    def drawn(self) -> list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
        """Return for each split the rows to train on, in an order that parties take shares of, and those to test on."""
        rows, label, _, _ = load(self.table)
        whole = {"features": rows.astype(np.float32), "label": (label == np.unique(label)[1]).astype(np.int32)}
        test = len(rows) // 4
        orders = [np.random.default_rng([seed, 7]).permutation(len(rows)) for seed in range(self.splits)]
        return [
            ({key: leaf[order[test:]] for key, leaf in whole.items()}, {k: v[order[:test]] for k, v in whole.items()})
            for order in orders
        ]

    @cached_property
    def task(self) -> Task:
        """Return what is learned."""
        return get("logistic")(Shape((self.drawn[0][0]["features"].shape[1],), 2, 1))

    def aurocs(self, how: str, shares: np.ndarray) -> np.ndarray:
        """Run one contender on each split with each seed, and return the mean AUROC of each split."""
        many = len(shares)
        trust = sv.Sum(min(1, many - 2)) if how == SUMS else None
        network = sv.networks.complete(many) if many > 1 and trust is None else None
        settings = dict[str, Any]()
        runs = []
        for train, test in self.drawn:
            data = dealt(train, shares)
            if not settings:  # sizes are the same in each split
                plan = sv.auto(
                    self.task.problem, data, epsilon=EPSILON, delta=DELTA, norm=1.0, network=network, trust=trust
                )
                settings = {**plan.settings, "every": plan.steps, "performance": QUIET}
            given = {"problem": self.task.problem, "data": data, "evaluate": self.task.metrics(test), **settings}
            runs += [{**given, "seed": seed} for seed in range(self.seeds)]
        ends = sv.run_many(runs)
        found = [0.5 if isinstance(end, FloatingPointError) else float(end.history["auroc"][-1]) for end in ends]
        return np.array(found).reshape(self.splits, self.seeds).mean(axis=1)

    def found(self, shares: dict[int, np.ndarray]) -> Found:
        """Return what each contender loses, and under (ALONE, 1) the AUROC of one table."""
        base = self.aurocs(ALONE, np.ones(1))
        lost = {(how, many): self.aurocs(how, own) - base for many, own in shares.items() for how in (OWN, SUMS)}
        return {(ALONE, 1): base, **lost}


def dealt(train: dict[str, np.ndarray], shares: np.ndarray) -> list[Part]:
    """Deal rows out to parties."""
    rows = np.arange(len(train["label"]))
    ends = np.round(np.concatenate([[0], np.cumsum(shares)]) / np.sum(shares) * len(rows)).astype(int)
    return [Part(train, rows[start:stop]) for start, stop in pairwise(ends)]


def error(values: np.ndarray) -> float:
    """Return the standard error of the mean of splits."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def listed() -> dict[str, Table]:
    """Return all tables by name."""
    return {one.name: one for one in (FLCHAIN, INSURANCE, *(unseen(package, name) for package, name in UNSEEN))}


def tables(seeds: str = "40", splits: str = "5", *names: str) -> None:
    """Measure 5 and 20 unequal parties, table by table, and keep what is found."""
    for name, table in listed().items():
        if names and name not in names:
            continue
        began = time.perf_counter()
        found = Measured(table, int(splits), int(seeds)).found(UNEQUAL)
        keep(TABLES, "table", name, found, seeds, splits)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)


def parties(seeds: str = "20", splits: str = "3", *names: str) -> None:
    """Measure 2 to 50 equal parties, and keep what is found."""
    for name in names or FOUR:
        found = Measured(listed()[name], int(splits), int(seeds)).found({many: np.ones(many) for many in COUNTS})
        keep(PARTIES, "table", name, found, seeds, splits)
        print(name, flush=True)


def keep(file: Path, key: str, name: str, found: Found, seeds: str, splits: str) -> None:
    """Write what was found of a table into a file, in place of what it held of that table."""
    lines = [line for line in held(file) if line[key] != name]
    for (how, many), values in found.items():
        plain = {"mean": f"{values.mean():.5f}", "error": f"{error(values):.5f}", "seeds": seeds, "splits": splits}
        lines.append({key: name, "contender": how, "parties": str(many), **plain})
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def held(file: Path) -> list[dict[str, str]]:
    """Return what a file holds."""
    if not file.exists():
        return []
    with file.open() as lines:
        return list(csv.DictReader(lines))


def mean() -> None:
    """Print what `tables` found, and the mean over all tables with its standard error."""
    lines = held(TABLES)
    names = list(dict.fromkeys(line["table"] for line in lines))
    at = {(line["table"], line["contender"], int(line["parties"])): line for line in lines}
    columns = [(how, many) for many in UNEQUAL for how in (OWN, SUMS)]
    print(f"{'table':18s}{ALONE:>10s}" + "".join(f"{f'{many}, {how}':>16s}" for how, many in columns))
    for name in names:
        cells = "".join(f"{float(at[name, *column]['mean']):+16.4f}" for column in columns)
        print(f"{name:18s}{float(at[name, ALONE, 1]['mean']):10.4f}{cells}")
    print(f"\nmean of {len(names)} tables, {lines[0]['seeds']} seeds, {lines[0]['splits']} splits (standard error)")
    for how, many in columns:
        average, around = over([at[name, how, many] for name in names])
        print(f"{many:3d} parties, {how:10s} {average:+.4f} ({around:.4f}); two standard errors below: "
              f"{average - 2 * around:+.4f}")  # fmt: skip


def over(lines: Sequence[dict[str, str]]) -> tuple[float, float]:
    """Return the mean over tables, and its standard error."""
    each, errors = (np.array([float(line[key]) for line in lines]) for key in ("mean", "error"))
    return float(each.mean()), float(np.sqrt(np.sum(errors**2)) / len(errors))


def picture() -> None:
    """Draw and print what `parties` found, by the number of parties, with bands of two standard errors."""
    found, many, lines = held(PARTIES), np.array(COUNTS, float), []
    for slot, how in enumerate((OWN, SUMS)):
        own = [over([one for one in found if (one["contender"], one["parties"]) == (how, f"{m}")]) for m in COUNTS]
        level, around = np.array(own).T
        lines.append(Line(how, how, many, level, level - 2 * around, level + 2 * around, slot, dots=True))
        print(f"{how:10s}", *(f"{m} parties {value:+.4f} ({wide:.4f}) " for m, (value, wide) in zip(COUNTS, own)))
    lines.append(Line(ALONE, ALONE, many, np.zeros(len(many)), ink=True, style="--"))
    least = min(float(line.low.min()) for line in lines if line.low is not None)
    across = Axis("parties", many[0], many[-1], log=True, ticks=COUNTS)
    up = Axis("AUROC minus that of one table", least, 0.01)
    words = "What 2 to 50 equal parties lose against one table, with noise of their own and by secure sums"
    (PICTURES / "being-many-auroc.svg").write_text(pictures.by_itself([chart(lines, across, up, words)]) + "\n")


def noise() -> None:
    """Draw and print the noise in what equal parties learn together, over that of one table at the same epsilon."""
    many = np.arange(2, 51)
    own, factors = np.sqrt(many), np.array([sv.Sum(min(1, m - 2)).factor(m) for m in many.tolist()])
    for m in COUNTS:
        print(f"{m:2d} parties: {OWN} {own[m - 2]:.2f}, {SUMS} {factors[m - 2]:.2f}, {ALONE} 1")
    lines = [
        Line(OWN, OWN, many, own, slot=0),
        Line(SUMS, SUMS, many, factors, slot=1),
        Line(ALONE, ALONE, many, np.ones(len(many)), ink=True, style="--"),
    ]
    across, up = Axis("parties", 2, 50, log=True, ticks=COUNTS), Axis("noise, over that of one table", 0, 8)
    words = (
        "Noise in what 2 to 50 equal parties learn: their own noise grows as the root of their number, sums stay at 1"
    )
    (PICTURES / "being-many.svg").write_text(pictures.by_itself([chart(lines, across, up, words)]) + "\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    chosen: dict[str, Any] = {"tables": tables, "mean": mean, "parties": parties, "picture": picture, "noise": noise}
    if len(sys.argv) < 2 or sys.argv[1] not in chosen:
        raise SystemExit(__doc__)
    chosen[sys.argv[1]](*sys.argv[2:])
