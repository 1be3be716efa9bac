"""Fit private logistic regression that tunes its own regularisation, with the interface of scikit-learn.

Training and tuning share one (epsilon, delta): there is no grid search, and no further access to the data to charge.
"""

import hashlib
import math
import secrets
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from sottovoce.data.preprocess import bounded_norm
from sottovoce.data.split import levels, split
from sottovoce.methods.dp_bilevel import Descent, DpBilevel
from sottovoce.optimisers import Momentum
from sottovoce.privacy.ledger import Budget, Ledger
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full
from sottovoce.problems.tasks import Shape, Task
from sottovoce.problems.tasks.tuning import tuned_logistic, tuned_softmax
from sottovoce.runtime.performance import Performance
from sottovoce.runtime.run import run

_MOMENTUM = 0.8
_FEWEST = 10  # rows: below this a guarantee for one of them leaves nothing to learn
_FITTED_BEFORE = (
    "not covered: whatever was fitted on these rows before (a scaler, a feature selection), and other fits without a "
    "ledger"
)
_SECRET = secrets.token_bytes(16)
_SEEN: set[bytes] = set()  # keyed digests of rows that this process has fitted on; at most `_REMEMBERED` per fit
_REMEMBERED = 2000


class PrivateLogisticRegression(ClassifierMixin, BaseEstimator):
    """Logistic regression (softmax for several classes) with a privately tuned penalty for each feature or group.

    Guarantee: `coef_`, `intercept_`, `penalties_` and everything computed from them are (epsilon, delta)-differentially
    private for one row of X and y under zero-out adjacency, given that the following are public: the number of rows,
    the class list (give `classes`, or it is read from y), and the settings. The figure is that of the ideal mechanism:
    noise is drawn in floating point, from a secret key of 64 bits. With a given `random_state` the fit is a simulation,
    and its statement says so: who knows the state can subtract the noise.

    Each `fit` spends its budget again. `GridSearchCV` and cross-validation fit many times on the same rows: give them a
    `ledger`, which adds up all fits, and a `budget`, which refuses a fit that would exceed it. Without a ledger the
    second fit on the same rows in one process gives a warning.

    Rows of X longer than `norm` are shortened to it, each separately. Scale features to comparable sizes by public
    ranges beforehand (`sottovoce.data.Ranges`); statistics of the data would have to be charged. A random share
    `validation` of the rows is used to judge the penalties, the others are used to train: no row is used for both.

    Args:
        epsilon, delta: the whole budget of `fit`.
        groups: number of blocks of neighbouring features that share a penalty, or each feature's group number; one
            penalty per feature by default.
        norm: bound on a row's L2 norm.
        penalty: where every penalty starts.
        validation: share of the rows that are used to judge the penalties.
        steps: number of updates of the penalties.
        inner_steps: steps of training (and as many of judging) before each update.
        tuning_rate: how far the logarithm of a penalty moves; 0 leaves all at `penalty`.
        clip: bound on a row's gradient.
        classes: the class list; by default it is read from y.
        random_state: None draws a secret key from the operating system.
        ledger: an `sv.Ledger` that all fits on this data share.
        budget: an `sv.Budget` for all fits in the ledger together; this estimator spends under "zero-out" adjacency.

    >>> from sottovoce.data.synthetic import logistic
    >>> rows = logistic(4000, 5)
    >>> model = PrivateLogisticRegression(epsilon=2.0, steps=4, random_state=0).fit(rows["features"], rows["label"])
    >>> model.score(rows["features"], rows["label"]) > 0.8, round(model.privacy_.epsilon, 2)
    (True, 2.0)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        groups: int | Sequence[int] | None = None,
        norm: float = 1.0,
        penalty: float = 2e-4,
        validation: float = 0.2,
        steps: int = 20,
        inner_steps: int = 10,
        tuning_rate: float = 0.05,
        clip: float = 1.0,
        classes: Sequence[Any] | None = None,
        random_state: Any = None,
        ledger: Ledger | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.groups = groups
        self.norm = norm
        self.penalty = penalty
        self.validation = validation
        self.steps = steps
        self.inner_steps = inner_steps
        self.tuning_rate = tuning_rate
        self.clip = clip
        self.classes = classes
        self.random_state = random_state
        self.ledger = ledger
        self.budget = budget

    def fit(self, X: Any, y: Any) -> "PrivateLogisticRegression":
        """Train and tune; afterwards `privacy_` holds the statement that goes with the model."""
        X, y = validate_data(self, X, y)
        check_classification_targets(y)
        self.classes_ = np.unique(y) if self.classes is None else np.unique(np.asarray(self.classes))
        unknown = np.setdiff1d(y, self.classes_)
        if unknown.size:
            raise ValueError(f"y holds {unknown.tolist()}, which `classes` does not list: add them, or drop these rows")
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class only ({self.classes_.tolist()}): a classifier needs at least two")
        if len(X) < _FEWEST:
            raise ValueError(f"n_samples = {len(X)}: at least {_FEWEST} rows are needed to hide one among them")
        _check_budget(self.epsilon, self.delta, len(X))
        if self.ledger is None:
            _warn_of_second_fit(X)
        seed = None if self.random_state is None else int(check_random_state(self.random_state).randint(2**31 - 1))
        rows_seed = secrets.randbits(63) if seed is None else seed  # which rows judge: kept to ourselves
        records = {
            "features": bounded_norm(X, self.norm) / np.float32(self.norm),
            "label": np.searchsorted(self.classes_, y).astype(np.int32),
        }
        part = levels(split(records, agents=1, seed=rows_seed)[0], self.validation, rows_seed)
        task = self._task(X.shape[1])
        result = run(
            task.problem, [part], self._method(), steps=self.steps, epsilon=self.epsilon, delta=self.delta,
            adjacency="zero-out", seed=seed, every=self.steps, ledger=self.ledger, budget=self.budget,
            performance=Performance(chunk=8192, progress=False),
        )  # fmt: skip
        model: Any = result.y
        weights, bias = np.asarray(model["weights"]), np.asarray(model["bias"])
        self.coef_ = weights.reshape(X.shape[1], -1).T.astype(np.float64) / self.norm
        self.intercept_ = bias.reshape(-1).astype(np.float64)
        self.penalties_ = self.penalty * np.exp(np.asarray(result.x, np.float64))
        read = () if self.classes is not None else ("the class list was read from the labels: taken as public",)
        self.privacy_ = replace(result.privacy, caveats=(*result.privacy.caveats, _FITTED_BEFORE, *read))
        self.n_iter_ = self.steps * self.inner_steps
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Return scores: one per row for two classes, one per row and class for more."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False)
        rows = bounded_norm(X, self.norm).astype(np.float64)
        scores = rows @ self.coef_.T + self.intercept_
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

    def _task(self, features: int) -> Task:
        shape = Shape((features,), classes=len(self.classes_), agents=1)
        build = tuned_logistic if len(self.classes_) == 2 else tuned_softmax
        limit = min(4.0, math.log(self._room() / self.penalty)) if self.penalty > 0 else -1.0
        if limit <= 0:
            raise ValueError(f"penalty is {self.penalty}: it must be positive and below {self._room():.3g}")
        return build(shape, penalty=self.penalty, limit=limit, groups=self.groups)

    def _rate(self) -> float:
        """Return 2 / the largest curvature of the loss, on rows of norm 1 with an intercept: stable with momentum."""
        return 4.0 if len(self.classes_) == 2 else 2.0

    def _room(self) -> float:
        """Return the largest allowed penalty: with it, a step stays well below the stability limit 2 (1 + momentum)."""
        return 0.25 / self._rate()

    def _method(self) -> DpBilevel:
        gradient = Release(self.clip, self.clip)
        # Validation rows take part in half of the releases, but there are fewer of them: with this ratio both sets
        # spend the whole budget.
        ratio = math.sqrt(max((1 / self.validation - 1) ** 2 - 1, 1.0))
        return DpBilevel(
            step_x=self.tuning_rate / self.penalty,
            inner=Descent(self.inner_steps, Momentum(self._rate(), _MOMENTUM), averaged=False),
            release_y=gradient,
            release_penalised=gradient.louder(ratio),
            sampling=Full(),
            penalty=10.0,
            radius=10.0,
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.classifier_tags.poor_score = True  # a few dozen rows cannot be learned privately
        return tags


def _check_budget(epsilon: Any, delta: Any, rows: int) -> None:
    """Refuse what is no epsilon, or a delta that guarantees nothing."""
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            raise ValueError(f"{name} is {value!r}: give a positive number")
    if not 0 < delta <= 1 / rows:
        raise ValueError(
            f"delta is {delta}: it must be positive and at most 1/n = {1 / rows:.2g}, because a mechanism that "
            "publishes one row at random would satisfy a larger one"
        )


def _warn_of_second_fit(X: np.ndarray) -> None:
    """Warn if this process has fitted on some of these rows before: their epsilons add up."""
    rows = np.ascontiguousarray(X[:: max(1, len(X) // _REMEMBERED)][:_REMEMBERED])
    digests = {hashlib.blake2b(row.tobytes(), key=_SECRET, digest_size=12).digest() for row in rows}
    if digests & _SEEN:
        warnings.warn(
            "these rows were fitted on before, and their epsilons add up: give ledger=sv.Ledger(path) to compose them, "
            "and budget=sv.Budget(epsilon, delta) to bound them",
            stacklevel=3,
        )
    _SEEN.update(digests)
