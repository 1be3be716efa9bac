"""Tuning as a bilevel problem: the model is trained below, its regularisation is chosen above.

Every feature, or every group of features, has a penalty exp(x) of its own; y are the weights. The penalty is a public
term, so that no record ever meets x: `LdpDsbo` with ``x=None`` tunes it without spending anything on x.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.problems import sets
from sottovoce.problems.objectives import Bilevel, Minimize
from sottovoce.problems.tasks.base import Evaluate, Shape, Task, task
from sottovoce.problems.tasks.linear import logistic, softmax
from sottovoce.trees import Tree

Groups = int | Sequence[int] | None


@task("tuned-softmax")
def tuned_softmax(
    shape: Shape,
    penalty: float | None = None,
    start: float = 0.0,
    limit: float = 10.0,
    groups: Groups = None,
    bias: bool = True,
) -> Task:
    """Softmax regression with a tuned penalty for each feature or group: ``penalty * exp(x_s) * sum_r y_sr^2``.

    Args:
        penalty: what exp(x) is multiplied with; 1 / (classes * features) by default.
        start: where every x starts: exp(start) times `penalty` is the untuned regularisation.
        limit: x stays between -limit and limit.
        groups: how many blocks of neighbouring features share a coefficient, or each feature's group number from 0 on;
            one coefficient a feature by default.
        bias: whether the model has intercepts (not regularised).

    >>> tuned = tuned_softmax(Shape((4,), classes=3, agents=1), groups=2)
    >>> tuned.problem.x0.shape, tuned.problem.y0["weights"].shape
    ((2,), (4, 3))
    """
    features = math.prod(shape.features)
    return _tuned(softmax(shape), features, penalty or 1 / (shape.classes * features), start, limit, groups, bias)


@task("tuned-logistic")
def tuned_logistic(
    shape: Shape,
    penalty: float | None = None,
    start: float = 0.0,
    limit: float = 10.0,
    groups: Groups = None,
    bias: bool = True,
) -> Task:
    """Logistic regression with a tuned penalty for each feature or group: ``penalty * exp(x_s) * y_s^2``.

    Arguments as for `tuned_softmax`; `penalty` is 1 / (2 * features) by default.

    >>> tuned_logistic(Shape((4,), classes=2, agents=1)).problem.x0.shape
    (4,)
    """
    features = math.prod(shape.features)
    return _tuned(logistic(shape), features, penalty or 1 / (2 * features), start, limit, groups, bias)


def _tuned(
    untuned: Task, features: int, penalty: float, start: float, limit: float, groups: Groups, bias: bool
) -> Task:
    """A task's model with tuned coefficients: the same loss above and below, the penalty below."""
    if not penalty > 0:
        raise ValueError(f"penalty is {penalty}: it must be positive")
    if not abs(start) <= limit:
        raise ValueError(f"start is {start}, outside -limit to limit ({limit}): move one of them")
    group = _group_numbers(groups, features)
    model = untuned.problem
    assert isinstance(model, Minimize)
    loss, y0 = model.loss, dict(model.x0)
    none = y0["bias"]
    if not bias:
        del y0["bias"]

    def whole(y: Tree) -> Tree:
        return {"bias": none, **y}

    def per_record(x: Tree, y: Tree, record: Any) -> jax.Array:
        return loss(whole(y), record)

    def public_lower(x: Tree, y: Tree) -> jax.Array:
        squares = y["weights"].reshape(features, -1) ** 2
        return penalty * jnp.sum(jnp.exp(x)[group] * jnp.sum(squares, axis=1))

    def metrics(test: Any) -> Evaluate:
        judge = untuned.metrics(test)

        def evaluate(x: Tree, y: Tree) -> Mapping[str, jax.Array]:
            return judge(whole(y))

        return evaluate

    problem = Bilevel(
        per_record,
        per_record,
        x0=jnp.full(int(group.max()) + 1, start, jnp.float32),
        y0=y0,
        public_lower=public_lower,
        project_x=sets.box(-limit, limit),
        predict=lambda x, y, features: model.predict(whole(y), features) if model.predict else None,
        public_constants=True,  # the absent intercepts: zeros
    )
    return Task(problem, metrics)


def _group_numbers(groups: Groups, features: int) -> np.ndarray:
    if groups is None:
        return np.arange(features)
    if isinstance(groups, int):
        if not 1 <= groups <= features:
            raise ValueError(f"groups is {groups}: with {features} features it must lie between 1 and {features}")
        return np.arange(features) * groups // features
    numbers = np.asarray(groups)
    if numbers.shape != (features,) or set(numbers.tolist()) != set(range(int(numbers.max()) + 1)):
        raise ValueError(f"groups lists {numbers.size} numbers: give one a feature ({features}), counted from 0 on")
    return numbers
