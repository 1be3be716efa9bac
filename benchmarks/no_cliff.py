"""Small and wide tables: what `sv.auto` gains over the noisy base rate, where noise leaves little of the slopes.

    python -m benchmarks.no_cliff choose [SEEDS]           # fits the rule of `sv.auto` on the choosing tables
    python -m benchmarks.no_cliff report [SEEDS] [TABLE ...]   # log loss over the noisy base rate's
    python -m benchmarks.no_cliff numbers [SEEDS]          # the same for labels that are numbers: 1 less R^2
    python -m benchmarks.no_cliff picture FILE.svg [SEEDS] # log loss over epsilon on one hospital table

Tables: `benchmarks/public_tables.py`; of a longer one 3000 rows are drawn. A quarter is for testing. Log loss on the
test rows, mean over the seeds of the noise. The noisy base rate has the whole budget. Settings were chosen on none of
the reporting tables.
"""

import sys
import warnings
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

import sottovoce as sv
from benchmarks.public_tables import CHOOSING, NUMBERS, REPORTING, load, split
from sottovoce.privacy.gdp import gdp_mu
from sottovoce.problems.tasks import Shape, get
from sottovoce.reports.chart import Axis, Line, chart
from sottovoce.reports.pictures import by_itself
from sottovoce.schedules import Constant

EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)
MOST = 3000
EDGES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.4, 9.0)  # of noise over signal
HOSPITAL, ACROSS = "causaldata/nhefs", (0.1, 0.2, 0.4, 0.8, 1.2, 1.6, 1.8, 2.4, 4.0)
ALLOWED = 0.02  # log loss above the noisy base rate's
QUIET = sv.Performance(progress=False)


def cells(names: Iterable[str], seeds: int, epsilons: Any = EPSILONS) -> Iterable[dict[str, Any]]:
    """Measure slopes and the base rate on each table, as one table and as five parties, at each epsilon."""
    for name in names:
        table = load(name, MOST)
        train, test = split(table, 0)
        held = table.only(test)
        for five in (False, True):
            made = table.only(train, party="party") if five else table.only(train)
            parts = made.parts()
            task, classes = ("ridge", 1) if name in NUMBERS else ("logistic", 2)
            problem = get(task)(Shape((len(made.names),), classes=classes, agents=len(parts))).problem
            clip = problem.linear.residual
            network = sv.networks.complete(len(parts)) if five else None
            common = {"problem": problem, "data": parts, "network": network, "performance": QUIET}
            runs, which = [], []
            for epsilon in epsilons:
                slopes = sv.auto(problem, parts, epsilon=epsilon, network=network, tail=0.5)  # only DpNewton has a tail
                rough = sv.methods.BaseRate(sv.Release(clip, Constant(tuple(clip / len(part) for part in parts))))
                rate = sv.calibrate(rough, parts, epsilon=epsilon, steps=1, network=network, problem=problem)
                plain = {"method": rate, "steps": 1, "network": network, "adjacency": "zero-out"}
                for seed in range(seeds):
                    runs += [{**common, **slopes.settings, "seed": seed}, {**common, **plain, "seed": seed}]
                    which += [(epsilon, "slopes"), (epsilon, "base")]
            found = sv.run_many([{**run, "every": run["steps"]} for run in runs])
            losses: dict[tuple[float, str], list[float]] = {}
            for place, result in zip(which, found):
                losses.setdefault(place, []).append(loss(result.x, held.records, name in NUMBERS))
            for epsilon in epsilons:
                noise = np.sqrt(len(parts) * (1 + len(made.names))) / (gdp_mu(epsilon, 1e-5) * len(made))
                plan = sv.auto(problem, parts, epsilon=epsilon, network=network)
                slopes, base = losses[epsilon, "slopes"], losses[epsilon, "base"]
                taken = base if isinstance(plan.method, sv.methods.BaseRate) else slopes
                yield {"name": name, "parties": len(parts), "epsilon": epsilon, "noise": float(noise),
                       "slopes": np.mean(slopes), "base": np.mean(base), "auto": np.mean(taken),
                       "falls back": taken is base}  # fmt: skip


def loss(x: Any, test: Any, number: bool) -> float:
    """Return the log loss, or of a number the share of its variance that is left: 1 less R^2."""
    score, label = test["features"] @ np.asarray(x["weights"]) + float(x["bias"]), test["label"]
    if number:
        return float(np.mean((score - label) ** 2) / np.var(label))
    return float(np.mean(np.logaddexp(0, score) - label * score))


def choose(seeds: int) -> None:
    """Print signal, half and harm of `tuning/auto.py`."""
    made = list(cells(CHOOSING, seeds))
    noise = np.array([cell["noise"] for cell in made])
    gained = np.array([cell["base"] - cell["slopes"] for cell in made])

    def left(fit: np.ndarray) -> np.ndarray:
        return (fit[0] / (1 + noise / fit[1]) - gained) * np.where(gained < 0, np.sqrt(2), 1.0)

    signal, half = least_squares(left, (0.1, 0.05), loss="soft_l1", f_scale=0.02, bounds=(1e-4, 1.0)).x
    safe = 0.0
    for low, high in pairwise(EDGES):
        here = gained[(noise >= low) & (noise < high)]
        told = f"{len(here):3d} cells, gained {here.mean():+.4f}, least {here.min():+.4f}" if len(here) else "no cell"
        print(f"  noise {low:4.2f} to {high:4.2f}: {told}")
        safe = high if safe == low and (not len(here) or here.min() >= -ALLOWED) else safe
    print(f"{len(made)} cells of {len(CHOOSING)} tables: up to noise {safe} none lost more than {ALLOWED}")
    print(f"signal {signal:.3g}, half {half:.3g}, harm {signal * half / safe:.3g}")


def report(names: Iterable[str], seeds: int) -> None:
    names = list(names)
    made = []
    for name in names:
        own = list(cells([name], seeds))
        made += own
        for parties in (1, 5):
            told = "  ".join(
                f"{cell['auto'] - cell['base']:+.4f}{'*' if cell['falls back'] else ' '}"
                for cell in own if cell["parties"] == parties
            )  # fmt: skip
            print(f"{name:24s} {parties}  {told}", flush=True)
    over = np.array([cell["auto"] - cell["base"] for cell in made])
    lost = np.array([cell["auto"] - min(cell["slopes"], cell["base"]) for cell in made])
    worst = made[int(over.argmax())]
    print(f"{len(names)} tables, {seeds} seeds, epsilon {', '.join(map(str, EPSILONS))}; * is the base rate")
    print(f"mean {over.mean():+.4f}; worst {over.max():+.4f} ({worst['name']}, {worst['parties']}, {worst['epsilon']})")
    print(f"above the noisy base rate by more than .02: {np.sum(over > 0.02)} of {len(over)} cells")
    print(f"behind the better of both: mean {lost.mean():.4f}, worst {lost.max():.4f}")


def picture(file: str, seeds: int) -> None:
    """Draw log loss over epsilon on one hospital table: slopes, the noisy base rate, and what `sv.auto` takes."""
    made = list(cells([HOSPITAL], seeds, ACROSS))
    panels = []
    for parties in (1, 5):
        own = [cell for cell in made if cell["parties"] == parties]
        x = np.array([cell["epsilon"] for cell in own])
        kinds = {"slopes": "slopes", "base": "base rate", "auto": "auto"}
        drawn = [
            Line(name, key, x, np.array([cell[key] for cell in own]), slot=slot, dots=True)
            for slot, (key, name) in enumerate(kinds.items())
        ]
        for cell in own:
            print(
                f"{parties} {cell['epsilon']}: " + ", ".join(f"{kind} {cell[kind]:.3f}" for kind in kinds), flush=True
            )
        y = Axis(f"log loss, {'one table' if parties == 1 else 'five parties'}", 0.3, 0.7)
        panels.append(chart(drawn, Axis("epsilon", ACROSS[0], ACROSS[-1], log=True), y, f"log loss of {HOSPITAL}"))
    Path(file).write_text(by_itself(panels))


def main() -> None:
    warnings.simplefilter("ignore")
    what, *rest = sys.argv[1:] or [""]
    if what == "picture" and rest:
        picture(rest[0], int(rest[1]) if len(rest) > 1 else 10)
    elif what == "choose":
        choose(int(rest[0]) if rest else 10)
    elif what in ("report", "numbers"):
        report(rest[1:] or (REPORTING if what == "report" else NUMBERS), int(rest[0]) if rest else 10)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
