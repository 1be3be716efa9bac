"""Check what a label store is given, and hold what it has drawn: `Memo`."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sottovoce.privacy.response import Response
from sottovoce.shown import Shown

NEW, PAID = -1, -2


@dataclass(frozen=True, eq=False, repr=False)
class Memo(Shown):
    """Hold labels as they were drawn: per row what was `observed`, out of `answers` answers.

    `NEW` labels were neither paid for nor drawn; `PAID` ones were charged, and are drawn next.

    What was observed is a class, or the number of a group of classes where a prior was given. `likelihood[i, b]` is the
    probability of what was observed in row i if b were true; it is 1 for all b where nothing is known.
    """

    epsilon: float
    observed: np.ndarray
    answers: np.ndarray
    likelihood: np.ndarray

    def debiased(self) -> np.ndarray:
        """Return one-hot vectors whose mean over the draw is the true one-hot vector.

        >>> import sottovoce as sv
        >>> memo = sv.Labels(np.arange(4000) % 4, classes=4, seed=0).memo(1.0)
        >>> truth = np.eye(4)[np.arange(4000) % 4]
        >>> bool(np.abs((memo.debiased() - truth).reshape(-1, 4, 4).mean(axis=0)).max() < 0.15)
        True
        """
        classes = self.likelihood.shape[1]
        if not np.isin(self.answers, (0, classes)).all():
            raise ValueError("labels drawn with a prior have no unbiased form: use the forward correction")
        response = Response(self.epsilon, classes)
        low, high = float(response.other), float(response.truth)
        return ((np.eye(classes)[self.observed] - low) / (high - low)).astype(np.float32)


def rows_of(rows: Any, count: int) -> np.ndarray:
    """Return row numbers, each once and in range, by default all; a mask of booleans is not a list of rows.

    >>> rows_of([2, 0], 3).tolist(), rows_of(None, 3).tolist()
    ([2, 0], [0, 1, 2])
    """
    if rows is None:
        return np.arange(count)
    found = np.asarray(rows)
    if found.size == 0:
        return np.zeros(0, np.int64)
    if found.dtype == bool:
        raise TypeError("rows are booleans: give row numbers, np.flatnonzero(rows)")
    if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer):
        raise TypeError(f"rows are {found.dtype} of shape {found.shape}: give a list of row numbers")
    if found.min() < 0 or found.max() >= count:
        raise ValueError(f"rows run from {found.min()} to {found.max()}: there are rows 0 to {count - 1}")
    if len(np.unique(found)) < len(found):
        raise ValueError("rows list a row twice: a label is used once per call")
    return found.astype(np.int64)


def checked_seed(seed: Any) -> int | None:
    """Return a seed as a whole number, or None.

    >>> checked_seed(np.int64(3))
    3
    """
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer)):
        raise TypeError(f"seed is {seed!r}: give a whole number, or None")
    return None if seed is None else int(seed)


def checked_ids(ids: Any, count: int) -> list[Any] | None:
    """Return ids as a list, one for each label, all different.

    >>> checked_ids(np.array([7, 8]), 2)
    [7, 8]
    """
    if ids is None:
        return None
    listed = np.asarray(ids)
    if listed.shape != (count,) or len(np.unique(listed)) < count:
        raise ValueError(f"ids have shape {listed.shape}: give {count} different ids, one per label")
    return list(listed.tolist())


def checked_labels(label: Any, classes: int) -> np.ndarray:
    """Return labels as an array of classes, which are whole numbers from 0 to classes - 1.

    >>> checked_labels([0, 2], classes=3).tolist()
    [0, 2]
    """
    label = np.asarray(label)
    if isinstance(classes, bool) or not isinstance(classes, int | np.integer):
        raise TypeError(f"classes is {classes!r}: give a whole number")
    if classes < 2:
        raise ValueError(f"classes is {classes}: a label needs at least 2 possible values")
    if label.ndim != 1 or not np.issubdtype(label.dtype, np.integer) or not len(label):
        raise ValueError(f"labels must be a list of whole numbers, got {label.dtype} of shape {label.shape}")
    if label.min() < 0 or label.max() >= classes:
        raise ValueError(f"labels run from {label.min()} to {label.max()}, expected 0 to {classes - 1}: recode them")
    return label
