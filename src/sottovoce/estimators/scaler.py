"""Bring columns with declared ranges and categories to rows of norm at most 1: nothing is learned from the data."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import _check_feature_names, check_is_fitted

from sottovoce.data.declarations import Declarations
from sottovoce.data.frames import as_frame
from sottovoce.data.notes import MANY, Note, holder_notes, tell_holder
from sottovoce.data.preprocess import Ranges
from sottovoce.data.values import read_numbers
from sottovoce.estimators.reading import validated


class DeclaredScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Encode columns by declarations: numbers to [-1, 1], categories to one column each, then rows to norm at most 1.

    Every row is encoded by itself, so a pipeline of this and a private estimator leaks nothing: unlike `StandardScaler`
    it needs no charge. Values outside a range are set to its nearest end, an unknown category counts as "other"; where
    much does not fit, the holder of the rows is warned (`sv.data.DeclarationWarning`).

    Args:
        columns: declarations by column name, as in `sv.data.table`; X then is a DataFrame, and other columns are left
            out. Without it X is numbers.
        default: the declared range of every column of X, if `columns` is left out; -1 to 1 where nothing is said.

    >>> scaler = DeclaredScaler({"age": {"range": (0, 120)}, "sex": {"categories": ["F", "M"]}})
    >>> scaler.fit_transform({"age": [60, 120], "sex": ["F", "M"]}).round(2).tolist()
    [[0.0, 0.71, 0.0, 0.0], [0.71, 0.0, 0.71, 0.0]]
    >>> DeclaredScaler(default=(0, 10)).fit_transform([[5.0, 10.0]]).round(2).tolist()
    [[0.0, 0.71]]
    """

    def __init__(self, columns: Mapping[str, Any] | None = None, *, default: tuple[float, float] = (-1.0, 1.0)) -> None:
        self.columns = columns
        self.default = default

    def fit(self, X: Any, y: Any = None) -> "DeclaredScaler":
        """Check that X has the declared columns; no value is read."""
        if self.columns is None:
            validated(self, X)
            self.ranges_ = Ranges(*self.default)
            return self
        self.declarations_ = Declarations(self.columns)
        for name, column in self.declarations_.items():
            if column.source is not None:
                raise ValueError(
                    f"column {name!r} is {column.source}, but a scaler reads nothing off the rows: declare it, or read "
                    "the table with sv.data.table"
                )
        self.declarations_.check(as_frame(X))
        _check_feature_names(self, X, reset=True)
        self.n_features_in_ = len(as_frame(X).names)
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return encoded rows; each has norm 1 at most."""
        check_is_fitted(self, ["n_features_in_"])
        if self.columns is None:
            X = validated(self, X, reset=False)
            self._tell_of_clipped(X)
            return self.ranges_.scale(X, signed=True).astype(np.float64) / math.sqrt(self.n_features_in_)
        read = self.declarations_.read(X)
        tell_holder(holder_notes("X", read))
        return self.declarations_.encode_read(read).astype(np.float64) / self.declarations_.norm

    def scaled(self) -> tuple[Declarations | None, Callable[[Any], Any]]:
        """Return the declarations, if there are any, and the function from encoded rows to what `transform` gives."""
        check_is_fitted(self, ["n_features_in_"])
        if self.columns is not None:
            norm = self.declarations_.norm
            return self.declarations_, lambda rows: rows / norm
        low, high = self.default
        root = math.sqrt(self.n_features_in_)
        return None, lambda rows: jnp.clip(2.0 * (rows - low) / (high - low) - 1.0, -1.0, 1.0) / root

    def _tell_of_clipped(self, X: np.ndarray) -> None:
        """Tell the holder of the rows which columns of numbers have values outside of the one range."""
        low, high = self.default
        names = getattr(self, "feature_names_in_", range(X.shape[1]))
        read = {str(name): read_numbers(column, low, high) for name, column in zip(names, X.T)}
        clipped = [name for name, reading in read.items() if len(reading.misfits) > MANY * len(X)]
        if clipped:
            told = (
                f"DeclaredScaler(default=({low:g}, {high:g})) cuts many values of {len(clipped)} of {X.shape[1]} "
                f"columns (the first is {clipped[0]!r}): declare what is publicly known of each column, as in "
                "sv.DeclaredScaler({'age': {'range': (0, 120)}}), or another default"
            )
            tell_holder([Note(told, told)])

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the encoded columns."""
        check_is_fitted(self, ["n_features_in_"])
        if self.columns is None:
            return super().get_feature_names_out(input_features)
        return np.asarray(self.declarations_.names, dtype=object)
