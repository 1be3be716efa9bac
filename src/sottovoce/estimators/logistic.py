"""Fit private logistic regression on one table or over parties, with the interface of scikit-learn.

Nothing has to be guessed: clips, steps and rates follow from public facts (`sv.auto`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from sottovoce.data import Column
from sottovoce.estimators.base import PrivateLinear, numbered, task_of
from sottovoce.estimators.reading import validated
from sottovoce.estimators.travel import classes, linear
from sottovoce.naming import check_choice
from sottovoce.networks import Network
from sottovoce.privacy.ledger import Budget, Ledger
from sottovoce.problems.tasks import Task
from sottovoce.problems.tasks.linear import logistic, softmax
from sottovoce.problems.tasks.robust import auc, group_robust, robust_logistic
from sottovoce.runtime.model_file import Travelling

Objective = Literal["mean", "worst-party", "worst-class", "auc"]
_MILD = 0.3  # price of leaving uniform weights: differences in loss of 0.3 / groups let one group have all weight
_OBJECTIVES = ("mean", "worst-party", "worst-class", "auc")


class PrivateLogisticRegression(ClassifierMixin, PrivateLinear):
    """Fit logistic regression (softmax for several classes) with differential privacy for each row.

    Guarantee: `coef_`, `intercept_` and everything computed from them are (epsilon, delta)-differentially private for
    one row of X and y under zero-out adjacency, given that the following are public: the number of rows of each party,
    the class list (give `classes`, or it is read from y), and the settings. If `fit` is given several parties, each
    party has an epsilon of its own. It protects the rows that this party holds, against everybody who sees the messages
    of this party.

    Each `fit` spends its budget again. `GridSearchCV` and cross-validation fit many times on the same rows: give them a
    `ledger`, which adds up all fits, and a `budget`, which refuses a fit that would exceed it. With a ledger the
    statement says what all fits cost together. Without one the second fit on the same rows in one process gives a
    warning, once.

    Rows of X longer than `norm` are shortened to it, each separately. `sv.DeclaredScaler` brings columns with declared
    ranges and categories to rows of norm at most 1; statistics of the data would have to be charged.

    Args:
        epsilon, delta: the whole budget of `fit`, per party; epsilon None is for a comparison without privacy.
        columns: declarations by column name, as in `sv.data.table`. X then is a DataFrame (or a mapping from names to
            columns), and the model encodes it. Without it X is numbers.
        curves: with `columns`, give numbers curves (`sottovoce.data.curves`): "auto" where a public rule expects them
            to pay, "private" in any case, both with ranks that a twentieth of the budget buys; "public" reads ranks
            openly.
        norm: bound on a row's L2 norm.
        objective: "mean"; "worst-party" or "worst-class" for the group that fares worst; "auc" for the area under the
            curve (two classes).
        classes: the class list; by default it is read from y, and the statement says so. A row with another label
            contributes nothing.
        prior: for "auc", the public share of the second class; by default it is read from y, and the statement says so.
        class_weight: how much a row of each class counts, such as ``{"ill": 5, "well": 1}``: what you know of the
            classes, or bought. "balanced" is refused, because it would read the classes' shares off private labels.
        weight_bound: the largest `sample_weight`; larger ones are cut. Rows of all weights are protected alike.
        network: who talks to whom, if `fit` is given parties; everybody with everybody by default.
        trust: "sum" lets parties fit as one table by secure sums: they share one noise, so that being many costs next
            to nothing (`sottovoce.privacy.trust`). "local", the default, protects each party by noise of its own.
        colluding: with "sum", how many parties may pool what they know.
        random_state: None draws exact noise from the operating system. With a given state the fit is a simulation, and
            its statement says so: anybody who knows the state can subtract the noise.
        ledger: an `sv.Ledger` that all fits on this data share.
        budget: an `sv.Budget` for all fits in the ledger together; this estimator spends under "zero-out" adjacency.

    >>> from sottovoce.data.synthetic import logistic
    >>> rows = logistic(4000, 5)
    >>> model = PrivateLogisticRegression(epsilon=2.0, random_state=0).fit(rows["features"], rows["label"])
    >>> model.score(rows["features"], rows["label"]) > 0.8, round(model.privacy_.epsilon, 2)
    (True, 2.0)
    """

    def __init__(
        self,
        epsilon: float | None = 1.0,
        delta: float = 1e-5,
        *,
        columns: Mapping[str, Any] | None = None,
        curves: Literal["auto", "private", "public"] | None = None,
        norm: float = 1.0,
        objective: Objective = "mean",
        classes: Sequence[Any] | None = None,
        prior: float | None = None,
        class_weight: Mapping[Any, float] | None = None,
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
        self.columns = columns
        self.curves = curves
        self.norm = norm
        self.objective = objective
        self.classes = classes
        self.prior = prior
        self.class_weight = class_weight
        self.weight_bound = weight_bound
        self.network = network
        self.trust = trust
        self.colluding = colluding
        self.random_state = random_state
        self.ledger = ledger
        self.budget = budget

    def fit(self, X: Any, y: Any, *, parties: Any = None, sample_weight: Any = None) -> "PrivateLogisticRegression":
        """Train; afterwards `privacy_` holds the statement that goes with the model.

        `parties` says who holds each row (a column of names); without it all rows are one table.
        """
        X, y = validated(self, self._settled(X, parties), y, accept_sparse="csr")
        label, read = self._labels(y)
        each = _weights_of(self.class_weight, self.classes_)
        if self.objective != "mean" and (each is not None or sample_weight is not None):
            raise ValueError(f"objective={self.objective!r} weighs rows itself: weights are for objective='mean'")
        records = self._class_records(X, label, sample_weight)
        if each is not None:
            records["weight"] = records.get("weight", np.float32(1.0)) * each[np.maximum(label, 0)]
        parts = self._parts(records, parties)
        task, told = self._task(self._shape(records, len(self.classes_), len(parts)), label)
        result = self._run(task, parts)
        weights, bias = _linear(result.x)
        self.coef_ = weights.T.astype(np.float64) / self.norm
        self.intercept_ = bias.astype(np.float64)
        self.privacy_ = self._stated(result, *read, *told)
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Return scores: one per row for two classes, one per row and class for more."""
        check_is_fitted(self)
        X = validated(self, self._encoded(X), reset=False, accept_sparse="csr")
        scores = self._bounded(X) @ self.coef_.T + self.intercept_
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return class probabilities, in the order of `classes_`."""
        scores = self.decision_function(X)
        if len(self.classes_) == 2:
            scores = np.stack([np.zeros_like(scores), scores], axis=1)
        return np.asarray(jax.nn.softmax(scores, axis=1))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]

    def travelling(self, before: Sequence[Any]) -> Travelling:
        """Return what `sv.save` writes; `before` are the steps of a pipeline in front."""
        check_is_fitted(self)
        return linear(self, before, Column(categories=classes(self)))

    def _labels(self, y: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return classes as numbers, and what was read off the labels."""
        self.classes_, label, read = numbered(y, self.classes)
        return label, read

    def _class_records(self, X: Any, label: np.ndarray, sample_weight: Any) -> dict[str, np.ndarray]:
        """Return the record set; a row whose label is not listed (-1) contributes nothing."""
        records = self._records(X, np.maximum(label, 0), sample_weight)
        records["features"][label < 0] = np.nan
        return records

    def _task(self, shape: Any, label: np.ndarray) -> tuple[Task, tuple[str, ...]]:
        """Return what is optimised, and what was read off the labels for it."""
        check_choice("objective", self.objective, _OBJECTIVES)
        if self.objective == "mean":
            return task_of(logistic if shape.classes == 2 else softmax, shape), ()
        if self.objective == "auc":
            if isinstance(self.prior, str):
                raise ValueError(f"prior is {self.prior!r}: give the public share of the second class as a number")
            share = float(np.mean(label[label >= 0])) if self.prior is None else float(self.prior)
            told = () if self.prior is not None else ("the share of the second class was read from the labels: public",)
            return task_of(auc, shape, prior=share), told
        groups: Literal["party", "label"] = "party" if self.objective == "worst-party" else "label"
        if groups == "party" and self.trust == "sum":
            raise ValueError(
                "objective='worst-party' weighs parties, and a sum does not show what a party contributes: leave trust "
                "out, or use 'worst-class'"
            )
        if groups == "party" and shape.agents == 1:
            raise ValueError("objective='worst-party' needs several parties: fit(X, y, parties=...)")
        price = _MILD / (shape.agents if groups == "party" else shape.classes) ** 2
        if shape.classes == 2:
            return task_of(robust_logistic, shape, groups=groups, price=price, penalty=0.0), ()
        return task_of(group_robust, shape, groups=groups, price=price), ()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # a few dozen rows cannot be learned privately
        return tags


def _weights_of(given: Mapping[Any, float] | str | None, classes: np.ndarray) -> np.ndarray | None:
    """Return each class's weight over the largest one: no row counts for more than 1, so clip and charge stay.

    >>> _weights_of({"ill": 5, "well": 1}, np.array(["ill", "well"])).tolist()
    [1.0, 0.20000000298023224]
    """
    if given is None:
        return None
    example = dict.fromkeys(classes.tolist(), 1)
    if not isinstance(given, Mapping):
        raise ValueError(
            f"class_weight is {given!r}: 'balanced' would read the classes' shares off private labels. Give weights, "
            f"such as {example}: one over each share, where the shares are publicly known or bought (sv.NoisyCounts)"
        )
    if foreign := [value for value in given if value not in example]:
        raise ValueError(f"class_weight names {foreign[0]!r}, which is no class: the classes are {list(example)}")
    numbers = [given.get(value, 1.0) for value in example]
    plain = all(isinstance(one, (int, float, np.number)) and not isinstance(one, bool) for one in numbers)
    weights = np.array(numbers if plain else [-1.0], np.float64)
    if not (np.all(np.isfinite(weights)) and np.all(weights >= 0) and weights.max() > 0):
        raise ValueError(f"class_weight is {dict(given)}: give a number of 0 or more for each class, not all 0")
    return (weights / weights.max()).astype(np.float32)


def _linear(x: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return weights (one column per score) and intercepts; two classes with two scores become one score."""
    model: Any = x
    while not (isinstance(model, dict) and "weights" in model):  # tasks of `robust` keep layers, `auc` more beside
        model = model["model"] if isinstance(model, dict) else model[0]
    weights, bias = np.asarray(model["weights"]), np.asarray(model["bias"]).reshape(-1)
    weights = weights.reshape(len(weights), -1)
    if weights.shape[1] == 2:
        return weights[:, 1:] - weights[:, :1], bias[1:] - bias[:1]
    return weights, bias
