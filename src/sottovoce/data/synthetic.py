"""Make records with a known truth, drawn by numpy from a seed.

>>> logistic(100, 5)["features"].shape
(100, 5)
"""

from typing import Literal

import numpy as np

from sottovoce.data.parts import Part, Records
from sottovoce.naming import check_count

Distribution = Literal["normal", "chi-squared", "mixed"]


def heterogeneous(
    agents: int = 10,
    records: int = 1000,
    test: int = 20000,
    dim: int = 200,
    kind: Distribution = "normal",
    seed: int = 0,
) -> tuple[list[Part], Records]:
    """Make parties whose features differ in distribution, and a test set (Chen and Wang, ICML 2024, section 5.1).

    Parties are numbered i = 1 to `agents` in the formulas. Each entry of a record a of party i is N(0, i^2) (`normal`),
    chi-squared with i degrees of freedom (`chi-squared`), or the first for even i and the second for odd i (`mixed`);
    its label says whether a.w + 0.1 e is positive, with one standard normal w for all (the paper leaves w open) and a
    standard normal e per record. The test set takes its records from the parties in turn.

    >>> parts, test = heterogeneous(agents=3, records=50, test=30, dim=4)
    >>> len(parts), len(parts[0]), test["features"].shape
    (3, 50, (30, 4))
    """
    if kind not in ("normal", "chi-squared", "mixed"):
        raise ValueError(f'kind must be "normal", "chi-squared" or "mixed", got {kind!r}')
    if min(agents, records, test, dim) < 1:
        raise ValueError(f"agents, records, test and dim must be positive, got {(agents, records, test, dim)}")
    rng = np.random.default_rng(seed)
    w = rng.normal(size=dim)
    party = np.concatenate([np.repeat(np.arange(1, agents + 1), records), np.arange(test) % agents + 1])
    features = np.empty((len(party), dim), dtype=np.float32)
    for i in range(1, agents + 1):
        shape = (int((party == i).sum()), dim)
        normal = kind == "normal" or (kind == "mixed" and i % 2 == 0)
        features[party == i] = rng.normal(scale=i, size=shape) if normal else rng.chisquare(i, size=shape)
    label = (features @ w + 0.1 * rng.normal(size=len(party)) > 0).astype(np.int32)
    train = agents * records
    held = {"features": features[:train], "label": label[:train]}
    parts = [Part(held, np.arange(a * records, (a + 1) * records)) for a in range(agents)]
    return parts, {"features": features[train:], "label": label[train:]}


def logistic(n: int, dim: int, seed: int = 0) -> Records:
    """Draw records of a logistic model: features of norm about one, label 1 with probability sigmoid(5 a.w / |w|).

    >>> records = logistic(100, 5)
    >>> records["features"].shape, sorted(set(records["label"].tolist()))
    ((100, 5), [0, 1])
    """
    check_count("n", n)
    check_count("dim", dim)
    rng = np.random.default_rng(seed)
    w = rng.normal(size=dim)
    features = rng.normal(size=(n, dim)) / np.sqrt(dim)
    score = 5.0 * np.sqrt(dim) * features @ (w / np.linalg.norm(w))
    label = rng.random(n) < 1.0 / (1.0 + np.exp(-score))
    return {"features": features.astype(np.float32), "label": label.astype(np.int32)}


def quadratic(n: int, dim: int, seed: int = 0, spread: float = 0.0) -> Records:
    """Draw records of the loss sum_k curvature_k (x_k - centre_k)^2 / 2, whose minimiser is known.

    The minimiser of the sum is sum(curvature * centre) / sum(curvature), column by column. `spread` = 0 gives the
    curvature 1 to all; otherwise it is uniform in [1 - spread, 1 + spread].

    >>> records = quadratic(8, 2)
    >>> records["centre"].shape, float(records["curvature"].max())
    ((8, 2), 1.0)
    """
    if not 0 <= spread < 1:
        raise ValueError(f"spread must be at least 0 and below 1, so that every record is convex; got {spread}")
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(n, dim))
    curvature = 1.0 + spread * rng.uniform(-1.0, 1.0, size=(n, dim))
    return {"centre": centre.astype(np.float32), "curvature": curvature.astype(np.float32)}


def patients(count: int = 600, informative: int = 5, useless: int = 15, groups: int = 3, seed: int = 0) -> Records:
    """Make a small clinic table: several visits per patient, a few informative measurements among useless ones.

    Columns: `features` in [-1, 1] (the first `informative` ones matter), `label` (ill or not), `patient_id` (the unit:
    one to four visits each), `group` (each group is half as large as the one before, and its measurements are shifted
    further). With these records one regularisation coefficient per feature is useful, and a model that is good on
    average can be bad for a group.

    >>> table = patients(count=50)
    >>> table["features"].shape[1], len(set(table["patient_id"].tolist()))
    (20, 50)
    """
    if min(count, informative, groups) < 1 or useless < 0:
        raise ValueError("count, informative and groups must be positive, useless not negative")
    rng = np.random.default_rng(seed)
    share = 0.5 ** np.arange(groups)
    group = rng.choice(groups, size=count, p=share / share.sum())
    weight = rng.choice([-1.0, 1.0], size=informative) * rng.uniform(1.0, 2.0, size=informative)
    constitution = rng.normal(scale=0.35, size=(count, informative + useless))
    ill = rng.random(count) < 1.0 / (1.0 + np.exp(-4.0 * constitution[:, :informative] @ weight))
    patient = np.repeat(np.arange(count), rng.integers(1, 5, size=count))
    features = constitution[patient] + 0.15 * group[patient, None]
    features += rng.normal(scale=0.1, size=features.shape)
    return {
        "features": np.clip(features, -1.0, 1.0).astype(np.float32),
        "label": ill[patient].astype(np.int32),
        "patient_id": patient.astype(np.int32),
        "group": group[patient].astype(np.int32),
    }
