"""Curves beside straight lines on public tables: AUROC at equal epsilon, and scikit-learn without privacy.

    python -m benchmarks.curves choose [SEEDS] [SPLITS]    # the noise up to which curves pay, on the choosing tables
    python -m benchmarks.curves report [SEEDS] [SPLITS]    # the reporting tables, by the rule of `tuning/curves.py`

Tables: `benchmarks/public_tables.py`; of a longer one 10 000 rows are drawn. A quarter is for testing. One table and
five unequal parties; each has the whole epsilon for ranks and model together. All seeds and splits of one table are
members of one job. No setting was chosen on a reporting table.
"""

import sys
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sottovoce as sv
from benchmarks.public_tables import CHOOSING, REPORTING, Public, load, split
from sottovoce.privacy.gdp import gdp_mu
from sottovoce.problems.tasks import Shape, get
from sottovoce.tuning.curves import curves_pay, price

EPSILONS = (0.5, 1.0, 2.0, 4.0)
MOST = 10_000
QUIET = sv.Performance(progress=False)


def measure(name: str, seeds: int, splits: int) -> Iterable[dict[str, Any]]:
    """Measure lines and curves on one table: per number of parties and epsilon, AUROC of each seed and split."""
    table = load(name, MOST)
    for five in (False, True):
        given = {"party": "party"} if five else {}
        runs, places = [], []
        for number in range(splits):
            train, test = split(table, number)
            line = table.only(train, **given)
            for epsilon in EPSILONS:
                for seed in range(seeds):
                    counts = sv.NoisyCounts(price(epsilon), seed=1000 * number + seed)
                    curve = table.only(train, curves="private", private=counts, **given)
                    for kind, made in (("lines", line), ("curves", curve)):
                        runs.append(_run(made, epsilon, 1000 * number + seed))
                        places.append((kind, epsilon, made, test))
        found: dict[tuple[str, float], list[float]] = {}
        for (kind, epsilon, made, test), result in zip(places, sv.run_many(runs)):
            rows, label = _encoded(table, made, test)
            score = rows @ np.asarray(result.x["weights"])
            found.setdefault((kind, epsilon), []).append(float(roc_auc_score(label, score)))
        width = len(line.names)
        for epsilon in EPSILONS:
            noise = np.sqrt((5 if five else 1) * (1 + width)) / (gdp_mu(epsilon, 1e-5) * len(line))
            yield {"name": name, "parties": 5 if five else 1, "epsilon": epsilon, "noise": float(noise),
                   "lines": found["lines", epsilon], "curves": found["curves", epsilon],
                   "on": curves_pay(width, line.parts(), epsilon)}  # fmt: skip


def _run(made: Any, epsilon: float, seed: int) -> dict[str, Any]:
    parts = made.parts()
    problem = get("logistic")(Shape((len(made.names),), classes=2, agents=len(parts))).problem
    network = sv.networks.complete(len(parts)) if len(parts) > 1 else None
    plan = sv.auto(problem, parts, epsilon=epsilon, network=network)
    return {"problem": problem, "data": parts, **plan.settings, "seed": seed, "every": plan.steps, "performance": QUIET}


def _encoded(table: Public, made: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    frame = {name: table.frame[name][rows] for name in made.columns}
    return made.columns.encode(frame), table.frame["label"][rows]


def without_privacy(name: str, splits: int) -> tuple[float, float]:
    """Return the AUROC of scikit-learn's logistic regression and boosting."""
    table, found = load(name, MOST), []
    for number in range(splits):
        train, test = split(table, number)
        made = table.only(train)
        rows, label = _encoded(table, made, train)
        seen, truth = _encoded(table, made, test)
        usual = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(rows, label)
        boosted = HistGradientBoostingClassifier(max_iter=100, learning_rate=0.06).fit(rows, label)
        found.append([roc_auc_score(truth, model.predict_proba(seen)[:, 1]) for model in (usual, boosted)])
    return tuple(np.mean(found, axis=0))  # type: ignore[return-value]


def choose(seeds: int, splits: int) -> None:
    made = [cell for name in CHOOSING for cell in _told(measure(name, seeds, splits))]
    noise = np.array([cell["noise"] for cell in made])
    gained = np.array([np.mean(cell["curves"]) - np.mean(cell["lines"]) for cell in made])
    for threshold in (0.003, 0.005, 0.007, 0.01, 0.014, 0.02, 0.03, 0.04):
        on = noise <= threshold
        lost = int(np.sum(gained[on] < -0.003))
        print(
            f"on up to {threshold:.3f}: {on.sum():3d} of {len(made)} cells, gained {gained[on].sum() / len(made):+.4f} "
            f"over all, {lost} worse by more than .003, least {gained[on].min(initial=0):+.4f}"
        )


def report(seeds: int, splits: int) -> None:
    over, worse = [], []
    for name in REPORTING:
        for cell in _told(measure(name, seeds, splits)):
            if cell["on"]:
                apart = np.subtract(cell["curves"], cell["lines"])
                over.append(apart.mean())
                if apart.mean() < -0.003 - 2 * apart.std() / np.sqrt(len(apart)):
                    worse.append((name, cell["parties"], cell["epsilon"], round(float(apart.mean()), 4)))
            else:
                over.append(0.0)
        usual, boosted = without_privacy(name, splits)
        print(f"  without privacy: scikit-learn {usual:.4f}, boosting {boosted:.4f}", flush=True)
    print(f"{len(REPORTING)} tables, {seeds} seeds x {splits} splits: by the rule {np.mean(over):+.4f} over lines")
    print(f"worse than lines by more than .003 and two standard errors: {worse or 'none'}")


def _told(cells: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    for cell in cells:
        apart = np.subtract(cell["curves"], cell["lines"])
        print(
            f"{cell['name']:26s} {cell['parties']} epsilon {cell['epsilon']:3.1f} noise {cell['noise']:.4f}: lines "
            f"{np.mean(cell['lines']):.4f}, curves {apart.mean():+.4f} (error {apart.std() / np.sqrt(len(apart)):.4f})"
            f"{'' if cell['on'] else ', off by the rule'}",
            flush=True,
        )
        yield cell


def main() -> None:
    warnings.simplefilter("ignore")
    what, *rest = sys.argv[1:] or [""]
    seeds, splits = (int(number) for number in (*rest, *("3", "2")[len(rest) :]))
    if what not in ("choose", "report"):
        raise SystemExit(__doc__)
    (choose if what == "choose" else report)(seeds, splits)


if __name__ == "__main__":
    main()
