"""Preprocess records without spending privacy: nothing here is learned from the records.

Public by declaration: ranges and norm bounds that the user writes down from knowledge of the domain. Also
free: maps that treat each record separately. Example: "age is between 0 and 120" is a declared range.
For tables with names and categories see `sottovoce.data.table`.

Not here, on purpose: means, standard deviations, minima and maxima, vocabularies, class lists or priors taken from the
data. Those are statistics of private records and need a charged release; using them without a charge voids the
guarantee, and a report lists a declared one under its caveats.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import scipy.sparse as sp


@dataclass(frozen=True, eq=False)
class Ranges:
    """Declare the ranges of the columns: one number for all columns, or one per column.

    >>> Ranges(low=0.0, high=[10.0, 2.0]).scale(np.array([[5.0, 1.0], [20.0, 0.0]])).tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    """

    low: Any
    high: Any

    def __post_init__(self) -> None:
        low, high = np.asarray(self.low, np.float64), np.asarray(self.high, np.float64)
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise ValueError("each declared range needs finite ends, the low one below the high one")

    def scale(self, features: np.ndarray, signed: bool = False) -> np.ndarray:
        """Map each column's range to [0, 1] ([-1, 1] if `signed`) in float32; values outside are clamped to its ends.

        >>> Ranges(0.0, 4.0).scale(np.array([[1.0], [9.0]]), signed=True).tolist()
        [[-0.5], [1.0]]
        """
        low, high = np.asarray(self.low, np.float64), np.asarray(self.high, np.float64)
        unit = np.clip((np.asarray(features, np.float64) - low) / (high - low), 0.0, 1.0)
        return (2.0 * unit - 1.0 if signed else unit).astype(np.float32)


def bounded_norm(features: Any, bound: float) -> Any:
    """Shrink each record whose L2 norm exceeds `bound`. Each record is treated separately: no statistics are needed.

    Guarantee: for finite features every norm of the float32 result is at most `bound`. Records within the bound are
    unchanged, except for rounding to float32. A CSR matrix stays one.

    >>> print(bounded_norm(np.array([[3.0, 4.0], [0.3, 0.4]]), bound=1.0).round(3))
    [[0.6 0.8]
     [0.3 0.4]]
    """
    if not (np.isfinite(bound) and bound > 0):
        raise ValueError(f"bound must be a positive number, got {bound}")
    # Slightly below the bound, so that rounding to float32 cannot move a norm above it.
    reach = bound * (1.0 - 1e-6)
    if sp.issparse(features):
        matrix = sp.csr_array(features, dtype=np.float64)
        norms = np.sqrt(matrix.multiply(matrix).sum(axis=1))
        return sp.csr_array(sp.diags_array(_shrink(norms, reach)) @ matrix, dtype=np.float32)
    array = np.asarray(features, np.float64)
    factor = _shrink(np.linalg.norm(array.reshape(len(array), -1), axis=1), reach)
    return (array * factor.reshape(-1, *[1] * (array.ndim - 1))).astype(np.float32)


def check_records(records: Any, classes: int | None = None) -> None:
    """Raise a ValueError that lists everything that is wrong with a record set; return nothing when it is sound.

    Checked: every leaf is an array, all have the same length, there are records, numbers are finite, and, with
    `classes`, the leaf `label` has whole numbers from 0 to classes - 1.

    >>> check_records({"features": np.array([[1.0, np.nan], [0.0, 2.0]]), "label": np.array([0, 3])}, classes=2)
    Traceback (most recent call last):
    ...
    ValueError: the records cannot be used:
    - features: 1 of 2 records not finite, first in row 0 (column 1): drop or impute them, by a rule fixed beforehand
    - label: values from 0 to 3, expected whole numbers from 0 to 1: recode the labels, or raise the number of classes
    """
    leaves = [
        (jax.tree_util.keystr(path, simple=True, separator="/") or "records", leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(records)
    ]
    problems = [f"{name}: a {type(leaf).__name__}, expected an array" for name, leaf in leaves if not _is_array(leaf)]
    leaves = [(name, leaf) for name, leaf in leaves if _is_array(leaf)]
    sizes = {name: leaf.shape[0] for name, leaf in leaves}
    if len(set(sizes.values())) > 1:
        problems.append(f"first axes differ ({sizes}): every leaf needs one row per record")
    if not leaves or 0 in sizes.values():
        problems.append("there are no records")
    problems += [problem for name, leaf in leaves if (problem := _not_finite(name, leaf))]
    if classes is not None:
        problems += _label_problems(dict(leaves).get("label"), classes)
    if problems:
        raise ValueError("the records cannot be used:\n- " + "\n- ".join(problems))


def _shrink(norms: np.ndarray, reach: float) -> np.ndarray:
    return np.minimum(1.0, reach / np.maximum(norms, reach))


def _is_array(leaf: Any) -> bool:
    return (isinstance(leaf, np.ndarray | jax.Array) or sp.issparse(leaf)) and leaf.ndim > 0


def _not_finite(name: str, leaf: Any) -> str | None:
    values = leaf.data if sp.issparse(leaf) else np.asarray(leaf)
    if not np.issubdtype(values.dtype, np.inexact):
        return None
    bad = np.argwhere(~np.isfinite(values))
    if not len(bad):
        return None
    if sp.issparse(leaf):
        entries = leaf.tocoo()
        bad = np.stack([entries.row, entries.col], axis=1)[~np.isfinite(entries.data)]
    where = f"row {bad[0][0]}" + (f" (column {', '.join(map(str, bad[0][1:].tolist()))})" if bad.shape[1] > 1 else "")
    rows = len(np.unique(bad[:, 0]))
    return (
        f"{name}: {rows} of {leaf.shape[0]} records not finite, first in {where}: drop or impute them, by a rule fixed "
        "beforehand"
    )


def _label_problems(label: Any, classes: int) -> list[str]:
    if label is None:
        return ["label: missing"]
    values = np.asarray(label)
    if values.size == 0:
        return []
    if np.issubdtype(values.dtype, np.integer) and values.min() >= 0 and values.max() < classes:
        return []
    return [
        f"label: values from {values.min()} to {values.max()}, expected whole numbers from 0 to {classes - 1}: recode "
        "the labels, or raise the number of classes"
    ]
