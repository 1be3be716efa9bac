"""Fit one classifier on the columns of several organisations, with label privacy, as scikit-learn does it.

Example: a bank and a shop know different things about the same customers, in the same order. ``fit([bank, shop], y)``
trains one model on both; head outputs, gradients at them and a number per direction leave an organisation.
"""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, column_or_1d

from sottovoce.data.columns import Columns
from sottovoce.estimators.base import check_kept, numbered, task_of
from sottovoce.estimators.travel import blocks
from sottovoce.privacy.labels import Labels, Memoised
from sottovoce.privacy.ledger import Budget
from sottovoce.privacy.table import Table
from sottovoce.problems.tasks import Shape, get
from sottovoce.problems.tasks.vertical import probabilities
from sottovoce.runtime.model_file import Travelling
from sottovoce.runtime.staged_labels import run_in_stages
from sottovoce.tuning.columns import METHOD, STEPS, TASK, usual

_OTHER_FITS = (
    "not covered: other fits on these labels without the same `path`, and a choice among several fits by their scores "
    "on private rows"
)


class PrivateColumnsClassifier(ClassifierMixin, BaseEstimator):
    """Fit logistic regression on the columns of several organisations: two classes, one tuned penalty for each.

    Guarantee: the model and all messages are `epsilon`-differentially private (delta 0) for one row's label, which may
    be replaced. Each label is drawn once, by randomised response, before anything is trained. Features are not covered:
    head outputs travel in clear. Nor are the number of rows, the class list (give `classes`, or it is read from y), and
    who is in the table.

    A second fit draws the labels again, and its epsilon adds up, unless both are given the same `path`: it keeps the
    draws, and what follows from them costs nothing more.

    Settings are those that ``method = "auto"`` of a run file with [columns] takes. Scale features by declared ranges
    first (`sv.DeclaredScaler`, one per organisation).

    Args:
        epsilon: of each label.
        classes: the class list; by default it is read from y, and the statement says so. Another label counts as the
            first class.
        steps: number of updates of the penalties; more cost time and no privacy.
        active: the number of the organisation that sits with the server, if one does.
        random_state: None draws labels with coins of the operating system. With a given state the fit is a simulation.
        path: a file for the draws, to be kept with the labels.
        budget: the most that all fits with this `path` may release about a label: an `sv.Budget` with replace-one
            adjacency.

    >>> import numpy as np, sottovoce as sv
    >>> rng = np.random.default_rng(0)
    >>> bank, shop = rng.uniform(-1, 1, (2000, 2)), rng.uniform(-1, 1, (2000, 3))
    >>> y = np.where(bank[:, 0] + shop[:, 1] > 0, "late", "in time")
    >>> model = sv.PrivateColumnsClassifier(epsilon=2.0, steps=3, random_state=0).fit([bank, shop], y)
    >>> model.score([bank, shop], y) > 0.9, model.privacy_.epsilon, model.privacy_.unit
    (True, 2.0, 'label')
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        classes: Sequence[Any] | None = None,
        steps: int = STEPS,
        active: int | None = None,
        random_state: Any = None,
        path: str | Path | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.classes = classes
        self.steps = steps
        self.active = active
        self.random_state = random_state
        self.path = path
        self.budget = budget

    def fit(self, X: Sequence[Any], y: Any) -> "PrivateColumnsClassifier":
        """Train on blocks of columns, one per organisation, whose rows are the same people in the same order."""
        check_kept(self.budget, "path", self.path, "'labels.store'")
        columns = _columns(X)
        self.classes_, numbers, read = numbered(column_or_1d(y), self.classes)
        label = np.maximum(numbers, 0)  # randomised response needs a class: others count as the first
        if len(self.classes_) != 2:
            raise ValueError(f"y has {len(self.classes_)} classes, and this estimator is for two: use a run file "
                             "with [columns] and task.name = 'vertical-representation'")  # fmt: skip
        widths = tuple(block.shape[1] for block in columns.blocks)
        given = self.random_state is not None
        seed = int(check_random_state(self.random_state).randint(2**31 - 1)) if given else secrets.randbits(31)
        labels = Labels(label, 2, path=self.path, seed=seed if given else None, budget=self.budget)
        method = METHOD(**{**usual(columns), "labels": Memoised(self.epsilon)})
        task = task_of(get(TASK), Shape((sum(widths),), 2, len(widths), widths=widths))
        found = run_in_stages(
            task.problem,  # type: ignore[arg-type]  # a vertical task
            Table(columns, labels, self.active), method, steps=self.steps, stages=1, seed=seed,
        )  # fmt: skip
        result = found.members[0]
        self.problem_, self.x_, self.y_ = task.problem, result.x, result.y
        self.releasable_, self.about_ = result.releasable, result.about
        self.widths_, self.method_, self.why_ = widths, method, method.why(self.steps)
        self.privacy_ = replace(result.privacy, caveats=(*result.privacy.caveats, _OTHER_FITS, *read))
        return self

    def travelling(self, before: Sequence[Any]) -> Travelling:
        """Return what `sv.save` writes; a pipeline has no steps in front of several blocks."""
        check_is_fitted(self)
        return blocks(self, before)

    def predict_proba(self, X: Sequence[Any]) -> np.ndarray:
        """Return class probabilities, in the order of `classes_`."""
        check_is_fitted(self)
        columns = _columns(X)
        widths = tuple(block.shape[1] for block in columns.blocks)
        if widths != self.widths_:
            raise ValueError(f"the blocks have {list(widths)} columns, those of fit had {list(self.widths_)}: give the "
                             "same columns of the same organisations, in the same order")  # fmt: skip
        return probabilities(self.problem_, self.x_, self.y_, columns)  # type: ignore[arg-type]

    def predict(self, X: Sequence[Any]) -> np.ndarray:
        """Return the most probable class."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


def _columns(X: Any) -> Columns:
    if not isinstance(X, (list, tuple)):
        raise TypeError(f"X is of type {type(X).__name__}: give a list of blocks of columns, one per organisation")
    return Columns([check_array(block, accept_sparse="csr", dtype=np.float32, input_name="a block") for block in X])
