"""Make candidates and a private score for `sv.select` from private estimators.

>>> import sottovoce as sv
>>> from sottovoce.data.synthetic import logistic
>>> rows = logistic(3000, 3)
>>> models = {"all": sv.PrivateLogisticRegression(random_state=0), "short": sv.PrivateLogisticRegression(norm=0.01)}
>>> candidates, score = trials(models, rows["features"], rows["label"], seed=0)
>>> sorted(candidates)
['all', 'short']
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.utils import check_X_y

from sottovoce.estimators.base import PrivateLinear
from sottovoce.privacy.gdp import gdp_epsilon
from sottovoce.privacy.ledger import Ledger
from sottovoce.shown import Shown


def trials(
    models: Mapping[str, PrivateLinear],
    X: Any,
    y: Any,
    *,
    validation: float = 0.2,
    delta: float = 1e-5,
    seed: int | None = None,
) -> tuple[dict[str, Callable[[float], Any]], Callable[[Any, float], float]]:
    """Return functions that train each model privately, and one that scores a model privately on other rows.

    A share `validation` of the rows, drawn at random, is used for scores, the others for training: give both to
    ``sv.select(candidates, score, epsilon=...)``. The score is the accuracy, for regressions 1 minus the mean squared
    error over the squared range, cut to [0, 1] for each row; Gaussian noise hides one row. Each model must be an exact
    Gaussian mechanism, which objectives other than "mean" and sampled methods are not: that is checked.

    Args:
        models: private estimators by name; their own epsilon and ledger are replaced.
        X, y: rows and labels.
        validation: share of the rows for scores.
        delta: at which a trial's own statement is written.
        seed: of the split and of the scores' noise, for simulation only; None takes them from the operating system.
    """
    if not 0 < validation < 1:
        raise ValueError(f"validation is {validation}: give the share of rows for scores, between 0 and 1")
    # Before the split: a value that is not finite would stop a fit, but turn all scores into nan, which no noise hides.
    X, y = check_X_y(X, y, y_numeric=not any(map(is_classifier, models.values())))
    rng = np.random.default_rng(secrets.randbits(128) if seed is None else seed)
    order = rng.permutation(len(y))
    count = max(1, round(validation * len(y)))
    judge, train = order[:count], order[count:]

    def candidate(name: str) -> Callable[[float], Any]:
        def fit(mu: float) -> Any:
            # The number of trials is secret, and a ledger that all of them write to would tell it (or a warning that
            # these rows were fitted on before): `sv.select` charges for all.
            own = {"ledger": Ledger(), "budget": None}
            model = clone(models[name]).set_params(epsilon=gdp_epsilon(mu, delta), delta=delta, **own)
            if model.random_state is not None:
                model.set_params(random_state=int(rng.integers(2**31)))
            model.fit(X[train], y[train])
            if model.privacy_.accountant != "exact GDP":
                raise ValueError(f"candidate {name!r} is no plain Gaussian mechanism: sv.select has no bound for it")
            return model

        return fit

    return {name: candidate(name) for name in models}, _Score(X[judge], y[judge], rng, seed is not None)


@dataclass(frozen=True, eq=False, repr=False)
class _Score(Shown):
    """Score a model on rows that none is trained on; `seeded` says that a seed draws the noise."""

    rows: np.ndarray
    label: np.ndarray
    rng: np.random.Generator
    seeded: bool

    def __call__(self, model: Any, mu: float) -> float:
        guessed, count = model.predict(self.rows), len(self.label)
        if is_classifier(model):
            each = (guessed == self.label).astype(float)
        else:
            low, high = model.label_range_
            each = 1.0 - np.clip(((guessed - self.label) / (high - low)) ** 2, 0.0, 1.0)
        return float(each.mean() + self.rng.normal() / (count * mu))
