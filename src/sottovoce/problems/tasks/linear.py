"""Fit linear models: softmax regression for many classes, logistic regression for two, ridge for numbers."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from sottovoce.problems.linear_model import LinearModel
from sottovoce.problems.objectives import Minimize, nothing
from sottovoce.problems.tasks.base import Evaluate, Shape, Task, check_classes, task
from sottovoce.problems.tasks.metrics import accuracy, auroc
from sottovoce.trees import Tree, inner

_RAREST = 1e-3  # the smallest share of a class that a base rate names


@task("softmax")
def softmax(shape: Shape, penalty: float = 0.0) -> Task:
    """Fit softmax regression; `penalty` times half the squared norm of the weights is public.

    >>> softmax(Shape((4,), classes=3, agents=1)).problem.x0["weights"].shape
    (4, 3)
    """
    check_classes("softmax", shape)
    start = {"weights": jnp.zeros((math.prod(shape.features), shape.classes)), "bias": jnp.zeros(shape.classes)}

    def loss(scores: jax.Array, record: Any) -> jax.Array:
        return -_weight(record) * jax.nn.log_softmax(scores)[record["label"]]

    def predict(x: Tree, features: Any) -> jax.Array:
        return jax.nn.softmax(_scores(x, _flat(features)))

    def metrics(test: Any) -> Evaluate:
        features, label = _flat(test["features"]), jnp.asarray(test["label"])

        def evaluate(x: Tree) -> Mapping[str, jax.Array]:
            scores = _scores(x, features)
            right = jnp.take_along_axis(jax.nn.log_softmax(scores), label[:, None], axis=1)
            return {"accuracy": accuracy(jnp.argmax(scores, axis=1), label), "loss": -jnp.mean(right)}

        return evaluate

    known = LinearModel(_row, loss, curvature=0.5, residual=math.sqrt(1 - 1 / shape.classes), intercept=_shares)
    return Task(_minimize(known, start, penalty, predict), metrics)


@task("logistic")
def logistic(shape: Shape, penalty: float = 0.0) -> Task:
    """Fit logistic regression for labels 0 and 1; `penalty` times half the squared norm of the weights is public.

    >>> logistic(Shape((4,), classes=2, agents=1)).problem.x0["weights"].shape
    (4,)
    """
    check_classes("logistic", shape, two=True)
    start = {"weights": jnp.zeros(math.prod(shape.features)), "bias": jnp.zeros(())}

    def loss(score: jax.Array, record: Any) -> jax.Array:
        return _weight(record) * (jax.nn.softplus(score) - record["label"] * score)

    def predict(x: Tree, features: Any) -> jax.Array:
        return jax.nn.sigmoid(_scores(x, _flat(features)))

    def metrics(test: Any) -> Evaluate:
        features, label = _flat(test["features"]), jnp.asarray(test["label"])

        def evaluate(x: Tree) -> Mapping[str, jax.Array]:
            score = _scores(x, features)
            return {
                "accuracy": accuracy(score > 0, label > 0),
                "auroc": auroc(score, label),
                "loss": jnp.mean(jax.nn.softplus(score) - label * score),
            }

        return evaluate

    known = LinearModel(_row, loss, curvature=0.25, residual=0.5, intercept=_odds)
    return Task(_minimize(known, start, penalty, predict), metrics)


@task("ridge")
def ridge(shape: Shape, penalty: float = 0.0) -> Task:
    """Fit linear regression of a label in [-1, 1]; `penalty` times half the squared norm of the weights is public.

    >>> ridge(Shape((4,), classes=1, agents=1)).problem.x0["weights"].shape
    (4,)
    """
    if shape.classes != 1:
        raise ValueError(
            f"the task ridge is for a label that is a number, the data have {shape.classes} classes: use the task "
            "logistic or softmax, or declare a range of the label"
        )
    start = {"weights": jnp.zeros(math.prod(shape.features)), "bias": jnp.zeros(())}

    def loss(score: jax.Array, record: Any) -> jax.Array:
        return 0.5 * _weight(record) * (score - _target(record)) ** 2

    def predict(x: Tree, features: Any) -> jax.Array:
        return _scores(x, _flat(features))

    def metrics(test: Any) -> Evaluate:
        features, label = _flat(test["features"]), jnp.asarray(test["label"])

        def evaluate(x: Tree) -> Mapping[str, jax.Array]:
            error = jnp.mean((_scores(x, features) - label) ** 2)
            return {"r2": 1 - error / jnp.var(label), "loss": 0.5 * error}

        return evaluate

    known = LinearModel(_row, loss, curvature=1.0, residual=1.0, target=_target)
    return Task(_minimize(known, start, penalty, predict), metrics)


def _odds(slope: jax.Array, noise: jax.Array) -> jax.Array:
    """Return the log odds of class 1, whose share is one half less the slope; noise makes no class impossible."""
    least = jnp.clip(noise, _RAREST, 0.5)
    share = jnp.clip(0.5 - slope, least, 1 - least)
    return jnp.log(share) - jnp.log1p(-share)


def _shares(slope: jax.Array, noise: jax.Array) -> jax.Array:
    """Return the logarithms of the classes' shares, which are those of equal shares less the slope."""
    equal = 1 / slope.shape[0]
    return jnp.log(jnp.maximum(equal - slope, jnp.clip(noise, _RAREST, equal)))


def _minimize(known: LinearModel, start: Tree, penalty: float, predict: Any) -> Minimize:
    def loss(x: Tree, record: Any) -> jax.Array:
        return known.loss(known.scores(x, record), record)

    public = _ridge(penalty) if penalty else nothing
    return Minimize(loss, start, public=public, predict=predict, linear=known)


def _row(record: Any) -> jax.Array:
    return record["features"].reshape(-1)


def _weight(record: Any) -> Any:
    """Return how much a record counts, between 0 and 1; 1 where the records have no weights."""
    return record.get("weight", 1.0)


def _target(record: Any) -> jax.Array:
    return jnp.clip(record["label"], -1.0, 1.0)


def _scores(x: Tree, features: jax.Array) -> jax.Array:
    return features @ x["weights"] + x["bias"]


def _flat(features: Any) -> jax.Array:
    rows = jnp.asarray(features)
    return rows.reshape(rows.shape[0], -1)  # a model file has as many rows as it is given


def _ridge(penalty: float) -> Any:
    if penalty < 0:
        raise ValueError(f"penalty is {penalty}: it must not be negative")
    return (lambda x: 0.5 * penalty * inner(x["weights"], x["weights"])) if penalty else None
