"""Fit private linear regression on one table or over parties, with the interface of scikit-learn."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from sottovoce.data import Column
from sottovoce.estimators.base import PrivateLinear, task_of
from sottovoce.estimators.reading import validated
from sottovoce.estimators.travel import linear
from sottovoce.networks import Network
from sottovoce.privacy.ledger import Budget, Ledger
from sottovoce.problems.tasks.linear import ridge
from sottovoce.runtime.coefficients import Coefficients
from sottovoce.runtime.model_file import Travelling


class PrivateRidge(RegressorMixin, PrivateLinear):
    """Fit linear regression of a number with a declared range, with differential privacy for each row.

    Guarantee, parties, `norm`, weights, noise, ledger and budget are as for `PrivateLogisticRegression`; the range of
    the label takes the place of the class list. Values outside the range are set to its nearest end.

    Args:
        epsilon, delta: the whole budget of `fit`, per party; epsilon None is for a comparison without privacy.
        label_range: the lowest and the highest label; by default it is read from y, and the statement says so.
        alpha: public penalty on the squared norm of the weights, for rows of norm 1 at most and labels within -1 and 1.
        columns, curves, norm, weight_bound, network, trust, colluding, random_state, ledger, budget: as for
            `PrivateLogisticRegression`.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-0.5, 0.5, size=(5000, 3)); y = 10 * X[:, 0] + rng.normal(size=5000)
    >>> model = PrivateRidge(epsilon=2.0, label_range=(-10, 10), random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.8, round(model.privacy_.epsilon, 2)
    (True, 2.0)
    """

    def __init__(
        self,
        epsilon: float | None = 1.0,
        delta: float = 1e-5,
        *,
        label_range: tuple[float, float] | None = None,
        alpha: float = 0.0,
        columns: Mapping[str, Any] | None = None,
        curves: Literal["auto", "private", "public"] | None = None,
        norm: float = 1.0,
        weight_bound: float = 1.0,
        network: Network | None = None,
        trust: Literal["local", "sum"] = "local",
        colluding: int = 1,
        random_state: Any = None,
        ledger: Ledger | Sequence[Ledger] | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.label_range = label_range
        self.alpha = alpha
        self.columns = columns
        self.curves = curves
        self.norm = norm
        self.weight_bound = weight_bound
        self.network = network
        self.trust = trust
        self.colluding = colluding
        self.random_state = random_state
        self.ledger = ledger
        self.budget = budget

    def fit(self, X: Any, y: Any, *, parties: Any = None, sample_weight: Any = None) -> "PrivateRidge":
        """Train; afterwards `privacy_` holds the statement that goes with the model.

        `parties` says who holds each row (a column of names); without it all rows are one table.
        """
        X, y = validated(self, self._settled(X, parties), y, accept_sparse="csr", y_numeric=True)
        if y.dtype.kind not in "biuf":
            raise ValueError("y holds texts: give numbers, or fit PrivateLogisticRegression for classes")
        if not self.alpha >= 0:
            raise ValueError(f"alpha is {self.alpha}: give a penalty of 0 or more")
        (low, high), read = self._range(y)
        middle, half = (low + high) / 2, (high - low) / 2
        label = np.clip((y - middle) / half, -1.0, 1.0).astype(np.float32)
        records = self._records(X, label, sample_weight)
        parts = self._parts(records, parties)
        task = task_of(ridge, self._shape(records, 1, len(parts)), penalty=2 * float(self.alpha))
        result = self._run(task, parts)
        model: Any = result.x
        self.coef_ = half * np.asarray(model["weights"], np.float64) / self.norm
        self.intercept_ = float(middle + half * np.asarray(model["bias"], np.float64))
        self.label_range_ = (low, high)
        self.privacy_ = self._stated(result, *read)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the expected label, within the declared range."""
        check_is_fitted(self)
        X = validated(self, self._encoded(X), reset=False, accept_sparse="csr")
        return np.clip(self._bounded(X) @ self.coef_ + self.intercept_, *self.label_range_)

    def travelling(self, before: Sequence[Any]) -> Travelling:
        """Return what `sv.save` writes; `before` are the steps of a pipeline in front."""
        check_is_fitted(self)
        low, high = self.label_range_
        return linear(self, before, Column(range=(low, high)), ((low + high) / 2, (high - low) / 2))

    def _of_label(self, made: Coefficients) -> Coefficients:
        low, high = self.label_range_
        return replace(made.scaled((high - low) / 2, (low + high) / 2), on="the label")

    def _range(self, y: np.ndarray) -> tuple[tuple[float, float], tuple[str, ...]]:
        """Return the label's range, and what was read off the labels."""
        if self.label_range is None:
            low, high = float(np.min(y)), float(np.max(y))
            return (low, high if high > low else low + 1.0), ("the label's range was read from it: taken as public",)
        if isinstance(self.label_range, (tuple, list, np.ndarray)) and len(self.label_range) == 2:
            low, high = self.label_range
            numbers = all(isinstance(end, (int, float, np.number)) for end in (low, high))
            if numbers and np.isfinite(low) and np.isfinite(high) and low < high:
                return (float(low), float(high)), ()
        raise ValueError(f"label_range is {self.label_range!r}: give the lowest and the highest label, as in (0, 100)")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # a few dozen rows cannot be learned privately
        return tags
