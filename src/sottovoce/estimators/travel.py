"""Prepare a fitted estimator, or a pipeline of `DeclaredScaler` and one, for a file that travels: ``sv.save``.

The file predicts what the estimator predicts, with its statement. Of another step in front, such as `StandardScaler`,
nobody knows what it learned from the rows, so it is refused.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.data import Column, Declarations
from sottovoce.data.values import as_text
from sottovoce.runtime.model_file import Travelling
from sottovoce.runtime.result import Result

_LABEL = "label"  # what the label is called in predictions: scikit-learn tells no name


def linear(model: Any, before: Sequence[Any], target: Column, halves: tuple[float, float] = (0.0, 1.0)) -> Travelling:
    """Return a fitted linear model as it travels; `halves` are the middle and half of a label's range.

    >>> import sottovoce as sv
    >>> rows = sv.data.synthetic.logistic(200, 2)
    >>> model = sv.PrivateLogisticRegression(random_state=0).fit(rows["features"], rows["label"])
    >>> linear(model, [], Column(categories=[0, 1])).result.privacy.epsilon <= 1.0
    True
    """
    columns, scale = _scaling(model, before)
    norm, (middle, half), classes = float(model.norm), halves, not target.numeric

    def predict(x: Any, rows: Any) -> Any:
        rows = scale(rows)
        long = jnp.linalg.norm(rows, axis=1, keepdims=True)
        scores = rows * jnp.minimum(1.0, norm / jnp.maximum(long, 1e-30)) @ x["weights"] + x["bias"]
        if not classes:
            return jnp.clip((scores[:, 0] - middle) / half, -1.0, 1.0)
        return jax.nn.softmax(scores, axis=1) if scores.shape[1] > 1 else jax.nn.sigmoid(scores[:, 0])

    weights = np.atleast_2d(np.asarray(model.coef_, np.float32)).T
    x = {"weights": weights, "bias": np.atleast_1d(np.asarray(model.intercept_, np.float32))}
    width = model.n_features_in_ if columns is None else len(columns.names)
    result = _result(model, x, None, predict)
    found = None if getattr(model, "_passage", None) is None else model.coefficients(columns)
    return Travelling(result, np.zeros((1, width)), columns, _LABEL, target, _values(model), found)


def blocks(model: Any, before: Sequence[Any]) -> Travelling:
    """Return a fitted model of several organisations' columns as it travels."""
    if before:
        raise ValueError("a model of several organisations' columns travels by itself: give it, not a pipeline")
    result = _result(model, model.x_, model.y_, model.problem_.predict)
    rows = [np.zeros((1, width)) for width in model.widths_]
    return Travelling(result, rows, None, _LABEL, Column(categories=classes(model)), _values(model))


def classes(model: Any) -> list[str]:
    """Return the names of a fitted classifier's classes."""
    return [as_text(value) for value in model.classes_.tolist()]


def _values(model: Any) -> list[Any] | None:
    """Return the classes as the rows had them: predictions are these, and not their names."""
    return model.classes_.tolist() if hasattr(model, "classes_") else None


def _result(model: Any, x: Any, y: Any, predict: Any) -> Result:
    return Result(x, y, None, {}, model.privacy_, model.releasable_, predict, model.about_)


def _scaling(model: Any, before: Sequence[Any]) -> tuple[Declarations | None, Any]:
    """Return the declared columns, if there are any, and what turns encoded rows into the model's features."""
    own = getattr(model, "declarations_", None)
    if own is not None:
        if before:
            raise ValueError("a model with declared columns encodes rows itself: leave out the steps in front of it")
        norm = own.norm
        return own, lambda rows: rows / norm
    if not before:
        return None, lambda rows: rows
    if len(before) > 1 or not hasattr(before[0], "scaled"):
        names = ", ".join(type(step).__name__ for step in before)
        raise ValueError(
            f"in front of the model stand {names}: a pipeline travels with sv.DeclaredScaler alone, because what "
            "another step learned from the rows has no statement"
        )
    return before[0].scaled()
