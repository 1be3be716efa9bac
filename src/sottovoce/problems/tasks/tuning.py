"""Tune regularisation as a bilevel problem: the lower level trains the model, the upper level chooses the penalties.

Every feature, or every group of features, has its own penalty exp(x); y are the weights. The penalty is a public term:
no loss of a record depends on x. So `LdpDsbo` without a release for x tunes it without spending anything on x.

>>> tuned = tuned_softmax(Shape((4,), classes=3, agents=1), groups=2)
>>> tuned.problem.x0.shape, tuned.problem.y0["weights"].shape
((2,), (4, 3))
>>> tuned_logistic(Shape((4,), classes=2, agents=1)).problem.x0.shape
(4,)
>>> tuned_logistic(Shape((4,), classes=2, agents=2), spread=0.5).problem.spread     # agents start apart
0.5
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.problems import sets
from sottovoce.problems.objectives import Bilevel, Minimize
from sottovoce.problems.tasks.base import Builder, Evaluate, Shape, Task, task
from sottovoce.problems.tasks.linear import logistic, softmax
from sottovoce.trees import Tree

FeatureGroups = int | list[int] | None


def _register(name: str, untuned: Callable[[Shape], Task], rows: Callable[[Shape], int]) -> Builder:
    """Register the tuned form of a linear task; `rows` is how many classes' weights share the default penalty."""

    @task(name)
    def tuned(
        shape: Shape,
        penalty: float | None = None,
        start: float = 0.0,
        limit: float = 10.0,
        groups: FeatureGroups = None,
        bias: bool = True,
        weight: float = 1.0,
        centre: float = 0.0,
        norm: float | None = None,
        spread: float = 0.0,
    ) -> Task:
        """Fit a linear model with a tuned penalty for each feature or group: ``penalty * exp(x_s) * sum_r y_sr^2``.

        Args:
            penalty: what exp(x) is multiplied with; 1 / (classes * features) by default.
            start: where every x starts: exp(start) times `penalty` is the untuned regularisation.
            limit: x stays between -limit and limit. Descent on y needs 2 * penalty * exp(limit) * step size below 2.
            groups: number of blocks of neighbouring features that share a coefficient, or each feature's group number
                from 0 on; one coefficient per feature by default.
            bias: whether the model has intercepts (not regularised).
            weight: how much a record's loss counts, at both levels.
            centre: a public constant that is subtracted from every feature.
            norm: then each record's features are shrunk to at most this norm. This bound is all that a clip needs.
            spread: each agent starts x and y at a place of its own, normal numbers of this deviation away.
        """
        features = math.prod(shape.features)
        public = _Penalty(features, penalty or 1 / (rows(shape) * features), start, limit, groups)
        made = _tuned(untuned(shape), public, bias, weight, _prepared(centre, norm))
        return replace(made, problem=replace(made.problem, spread=spread))

    return tuned


class _Penalty:
    """Compute the public term, and hold the set that x is confined to."""

    def __init__(self, features: int, penalty: float, start: float, limit: float, groups: FeatureGroups) -> None:
        if not penalty > 0:
            raise ValueError(f"penalty is {penalty}: it must be positive")
        if not abs(start) <= limit:
            raise ValueError(f"start is {start}, outside -limit to limit ({limit}): move one of them")
        self.features, self.penalty, self.group = features, penalty, _group_numbers(groups, features)
        self.x0 = jnp.full(int(self.group.max()) + 1, start, jnp.float32)
        self.project = sets.box(-limit, limit)

    def __call__(self, x: Tree, y: Tree) -> jax.Array:
        squares = jnp.sum(y["weights"].reshape(self.features, -1) ** 2, axis=1)
        return self.penalty * jnp.sum(jnp.exp(x)[self.group] * squares)


def _tuned(untuned: Task, public: _Penalty, bias: bool, weight: float, prepared: Callable[[Any], Any]) -> Task:
    """Build a task's model with tuned coefficients: the same loss at both levels, the penalty at the lower one."""
    model = untuned.problem
    assert isinstance(model, Minimize)
    absent = {} if bias else {"bias": np.zeros(jnp.shape(model.x0["bias"]), np.float32)}

    def per_record(x: Tree, y: Tree, record: Any) -> jax.Array:
        return weight * model.loss({**y, **absent}, {**record, "features": prepared(record["features"])})

    def predict(x: Tree, y: Tree, features: Any) -> jax.Array:
        assert model.predict is not None
        return model.predict({**y, **absent}, jax.vmap(prepared)(jnp.asarray(features)))

    def metrics(test: Any) -> Evaluate:
        judge = untuned.metrics({**test, "features": jax.vmap(prepared)(jnp.asarray(test["features"]))})

        def evaluate(x: Tree, y: Tree) -> Mapping[str, jax.Array]:
            return judge({**y, **absent})

        return evaluate

    problem = Bilevel(
        per_record,
        per_record,
        x0=public.x0,
        y0={name: leaf for name, leaf in model.x0.items() if name not in absent},
        public_lower=public,
        project_x=public.project,
        predict=predict,
        public_constants=True,  # the absent intercepts: zeros
    )
    return Task(problem, metrics)


def _prepared(centre: float, norm: float | None) -> Callable[[Any], Any]:
    """Return a map of each record's features separately: it needs no statistics, so it costs no privacy."""
    if norm is not None and not norm > 0:
        raise ValueError(f"norm is {norm}: it must be positive")

    def shaped(features: Any) -> Any:
        if centre:
            features = features - centre
        if norm is None:
            return features
        return features * jnp.minimum(1.0, norm / jnp.maximum(jnp.linalg.norm(features), 1e-12))

    return shaped


def _group_numbers(groups: FeatureGroups, features: int) -> np.ndarray:
    if groups is None:
        return np.arange(features)
    if isinstance(groups, int):
        if not 1 <= groups <= features:
            raise ValueError(f"groups is {groups}: with {features} features it must lie between 1 and {features}")
        return np.arange(features) * groups // features
    numbers = np.asarray(groups)
    if numbers.shape != (features,) or set(numbers.tolist()) != set(range(int(numbers.max()) + 1)):
        raise ValueError(f"groups lists {numbers.size} numbers: give one per feature ({features}), counted from 0 on")
    return numbers


tuned_softmax = _register("tuned-softmax", softmax, lambda shape: shape.classes)
tuned_logistic = _register("tuned-logistic", logistic, lambda shape: 2)


@task("tuned-ridge")
def tuned_ridge(shape: Shape, start: float = -2.0, limit: float = 6.0) -> Task:
    """Fit least squares to a numeric label with a tuned penalty per feature: ``exp(x_s) * y_s^2 / 2``, no intercept.

    `start` is where every x starts, and x stays between -limit and limit. Everything here has a closed form.

    >>> tuned_ridge(Shape((4,), classes=2, agents=1)).problem.y0.shape
    (4,)
    """
    features = math.prod(shape.features)

    def loss(x: Tree, y: Tree, record: Any) -> jax.Array:
        return 0.5 * (record["features"].reshape(-1) @ y - record["label"]) ** 2

    def metrics(test: Any) -> Evaluate:
        rows, label = jnp.asarray(test["features"]).reshape(len(test["label"]), -1), jnp.asarray(test["label"])

        def evaluate(x: Tree, y: Tree) -> Mapping[str, jax.Array]:
            return {"squared error": jnp.mean((rows @ y - label) ** 2)}

        return evaluate

    problem = Bilevel(
        loss,
        loss,
        x0=jnp.full(features, start),
        y0=jnp.zeros(features),
        public_lower=lambda x, y: 0.5 * jnp.sum(jnp.exp(x) * y**2),
        project_x=sets.box(-limit, limit),
        predict=lambda x, y, rows: jnp.asarray(rows).reshape(rows.shape[0], -1) @ y,
    )
    return Task(problem, metrics)
