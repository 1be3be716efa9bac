"""Fit private logistic regression that tunes its own regularisation, with the interface of scikit-learn.

Training and tuning share one (epsilon, delta): there is no grid search, and no further access to the data to charge.
"""

import math
import secrets
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from sklearn.utils import check_random_state

from sottovoce.data.split import levels
from sottovoce.estimators.base import task_of
from sottovoce.estimators.logistic import PrivateLogisticRegression
from sottovoce.estimators.reading import validated
from sottovoce.optimisers import Momentum
from sottovoce.papers.dp_bilevel.method import Descent, DpBilevel
from sottovoce.privacy.ledger import Budget, Ledger
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full
from sottovoce.problems.tasks import Shape, Task
from sottovoce.problems.tasks.tuning import tuned_logistic, tuned_softmax
from sottovoce.runtime.performance import Performance
from sottovoce.runtime.run import run

_MOMENTUM = 0.8


class TunedLogisticRegression(PrivateLogisticRegression):
    """Fit logistic regression (softmax for several classes) with a privately tuned penalty for each feature or group.

    Guarantee as for `PrivateLogisticRegression`, on one table or by secure sums over parties, and of `penalties_` too;
    noise is drawn in floating point, from a secret key of 64 bits. Tuning is worth its price where many features are
    useless. A random share `validation` of the rows is used to judge the penalties, the others are used to train: no
    row is used for both.

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
        classes, trust, colluding, random_state, ledger, budget: as for `PrivateLogisticRegression`.

    >>> from sottovoce.data.synthetic import logistic
    >>> rows = logistic(4000, 5)
    >>> model = TunedLogisticRegression(epsilon=2.0, steps=4, random_state=0).fit(rows["features"], rows["label"])
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
        trust: Literal["local", "sum"] = "local",
        colluding: int = 1,
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
        self.trust = trust
        self.colluding = colluding
        self.random_state = random_state
        self.ledger = ledger
        self.budget = budget

    def fit(self, X: Any, y: Any, *, parties: Any = None) -> "TunedLogisticRegression":  # type: ignore[override]
        """Train and tune; afterwards `privacy_` holds the statement that goes with the model.

        `parties` says who holds each row (a column of names); several parties need trust="sum".
        """
        X, y = validated(self, X, y, accept_sparse="csr")
        label, read = self._labels(y)
        records = self._class_records(X, label, None)
        seed = None if self.random_state is None else int(check_random_state(self.random_state).randint(2**31 - 1))
        rows_seed = secrets.randbits(63) if seed is None else seed  # which rows judge is kept secret
        held, trust = self._parts(records, parties), self._trust()
        if len(held) > 1 and trust is None:
            raise ValueError(f"{len(held)} parties cannot tune together by noise of their own: give trust='sum'")
        parts = levels(held, self.validation, rows_seed)
        task = self._tuned(self._shape(records, len(self.classes_), 1))
        result = run(
            task.problem, parts, self._method(), steps=self.steps, trust=trust, epsilon=self.epsilon, delta=self.delta,
            adjacency="zero-out", seed=seed, every=self.steps, ledger=self.ledger, budget=self.budget,
            performance=Performance(chunk=8192, progress=False),
        )  # fmt: skip
        model: Any = result.y
        weights, bias = np.asarray(model["weights"]), np.asarray(model["bias"])
        self.coef_ = weights.reshape(len(weights), -1).T.astype(np.float64) / self.norm
        self.intercept_ = bias.reshape(-1).astype(np.float64)
        self.penalties_ = self.penalty * np.exp(np.asarray(result.x, np.float64))
        self.privacy_ = self._stated(result, *read)
        self.n_iter_ = self.steps * self.inner_steps
        return self

    def _tuned(self, shape: Shape) -> Task:
        build = tuned_logistic if len(self.classes_) == 2 else tuned_softmax
        limit = min(4.0, math.log(self._room() / self.penalty)) if self.penalty > 0 else -1.0
        if limit <= 0:
            raise ValueError(f"penalty is {self.penalty}: it must be positive and below {self._room():.3g}")
        groups = tuple(self.groups) if isinstance(self.groups, (Sequence, np.ndarray)) else self.groups
        return task_of(build, shape, penalty=self.penalty, limit=limit, groups=groups)

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
