"""Provide ready-made vertical problems: learned representations, and tuned coefficients of a penalty."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.data.columns import Columns, device_block, dot, gather
from sottovoce.data.columns import widths as of_parties
from sottovoce.naming import check_choice
from sottovoce.problems.tasks.base import Shape, Task, task
from sottovoce.problems.tasks.metrics import accuracy
from sottovoce.problems.vertical import Vertical, cross_entropy, logistic
from sottovoce.trees import Tree, inner

Coefficient = Literal["exp", "plain"]


@task("vertical-representation")
def vertical_representation(
    shape: Shape,
    hidden: Sequence[int] = (128, 64, 32),
    penalty: float = 0.0,
    shift: int = 0,
    line: int = 28,
    seed: int = 0,
) -> Task:
    """Let each party with columns learn a network and a linear head on it (see `hyper_representation`).

    >>> vertical_representation(Shape((6,), classes=3, agents=2), hidden=[4]).problem.y0[0]["weights"].shape
    (4, 3)
    """
    return _judged(hyper_representation(_widths(shape), shape.classes, hidden, penalty, seed, shift, line))


@task("vertical-coefficients")
def vertical_coefficients(shape: Shape, start: float = -8.0, coefficient: Coefficient = "exp") -> Task:
    """Fit logistic regression for parties with columns, with one tuned penalty per party (see `hyper_parameters`).

    >>> vertical_coefficients(Shape((6,), classes=2, agents=2)).problem.parties
    2
    """
    return _judged(hyper_parameters(_two_classes("vertical-coefficients", shape), start, coefficient))


@task("vertical-regressor")
def vertical_regressor(shape: Shape, penalty: float = 0.0) -> Task:
    """Fit logistic regression whose weights are the upper level, and one factor per party the lower (`regressors`).

    >>> vertical_regressor(Shape((6,), classes=2, agents=2)).problem.y0
    [Array(1., dtype=float32), Array(1., dtype=float32)]
    """
    return _judged(regressors(_two_classes("vertical-regressor", shape), penalty))


def _two_classes(name: str, shape: Shape) -> Sequence[int]:
    if shape.classes != 2:
        raise ValueError(f"{name} is for two classes, not {shape.classes}: set data.positive")
    return _widths(shape)


def _widths(shape: Shape) -> Sequence[int]:
    return shape.widths or of_parties(math.prod(shape.features), shape.agents)


def _judged(problem: Vertical) -> Task:
    # Test records are one block per party. Methods that do not solve vertical problems refuse them elsewhere.
    return Task(problem, lambda test: judged_on(problem, test["blocks"], test["label"]))  # type: ignore[arg-type]


def hyper_representation(
    widths: Sequence[int],
    classes: int,
    hidden: Sequence[int] = (128, 64, 32),
    penalty: float = 1e-4,
    seed: int = 0,
    shift: int = 0,
    line: int = 28,
) -> Vertical:
    """Let each party embed its columns by a network (upper level) and apply a linear head (lower level).

    `widths` are the parties' numbers of columns; `hidden` the layers of each network, rectified; `penalty` times |y|^2
    is added to the lower level. All start at random: with heads at zero, the networks would at first be moved only by
    the noise of the zeroth-order term. For parties with lines of a picture, `line` pixels each, every picture is moved
    sideways in training, by up to `shift` pixels.

    >>> problem = hyper_representation([4, 3], classes=10, hidden=(8, 5))
    >>> problem.parties, problem.y0[1]["weights"].shape
    (2, (5, 10))
    """
    if shift and any(width % line for width in widths):
        raise ValueError(f"shift needs whole lines of {line} pixels, but the parties have {list(widths)} columns")
    drawn = [
        _layers(key, [width, *hidden, classes])
        for key, width in zip(jax.random.split(jax.random.key(seed), len(widths)), widths)
    ]

    def embed(x: Tree, features: jax.Array) -> jax.Array:
        for layer in x:
            features = jax.nn.relu(dot(features, layer["weights"]) + layer["bias"])
        return features

    return Vertical(
        embed,
        _affine,
        cross_entropy,
        x0=[layers[:-1] for layers in drawn],
        y0=[layers[-1] for layers in drawn],
        penalty=lambda x, y: penalty * inner(y, y),
        alter=partial(_shifted, shift, line) if shift else None,
    )


def hyper_parameters(widths: Sequence[int], start: float = -8.0, coefficient: Coefficient = "exp") -> Vertical:
    """Fit logistic regression on all parties' columns, dense or sparse (lower level); each party has one coefficient.

    Party m's penalty is ``exp(x_m) |y_m|^2 / 2``, so that x_m (upper level) can be any number. With "plain" it is
    ``x_m |y_m|^2 / 2``, as the paper's problem 2 prints it: then `start` must be positive, and nothing keeps x_m from
    becoming negative, where the lower level has no minimum. There is one coefficient per party, not one per column,
    because the variance of the zeroth-order estimate grows with their number.

    >>> hyper_parameters([5, 5]).y0[0]["weights"].shape
    (5, 1)
    >>> float(hyper_parameters([2], 0.5, "plain").penalty_of(0.5, {"weights": jnp.ones((2, 1))}))
    0.5
    """
    check_choice("coefficient", coefficient, ("exp", "plain"))
    if coefficient == "plain" and not start > 0:
        raise ValueError(f"start is {start}: a plain coefficient starts positive, such as 1e-3")
    factor = jnp.exp if coefficient == "exp" else jnp.asarray
    return Vertical(
        lambda x, features: features,
        _affine,
        logistic,
        x0=[jnp.asarray(start)] * len(widths),
        y0=[{"weights": jnp.zeros((width, 1)), "bias": jnp.zeros(1)} for width in widths],
        penalty=lambda x, y: 0.5 * factor(x) * inner(y["weights"], y["weights"]),
    )


def regressors(widths: Sequence[int], penalty: float = 0.0) -> Vertical:
    """Fit logistic regression as the paper's appendix E.4 does: x_m are the weights, y_m a factor of party m's sum.

    The factors start at 1, where the sum of the parties' sums is a logistic regression on all columns. `penalty` times
    y_m^2 is added to the lower level.

    >>> problem = regressors([2, 1])
    >>> problem.scores(problem.x0, problem.y0, [jnp.ones((4, 2)), jnp.ones((4, 1))]).shape
    (4, 1)
    """
    return Vertical(
        lambda x, features: dot(features, x["weights"]) + x["bias"],
        lambda y, summed: y * summed,
        logistic,
        x0=[{"weights": jnp.zeros((width, 1)), "bias": jnp.zeros(1)} for width in widths],
        y0=[jnp.ones(())] * len(widths),
        penalty=lambda x, y: penalty * y**2,
    )


def probabilities(
    problem: Vertical, x: Sequence[Tree], y: Sequence[Tree], columns: Columns, rows: Any = None, batch: int = 1000
) -> np.ndarray:
    """Return class probabilities of some rows (default: all). Only head outputs are needed, no label.

    >>> problem = hyper_parameters([2])
    >>> probabilities(problem, problem.x0, problem.y0, Columns([np.ones((3, 2))]), rows=[0, 2]).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    rows = np.arange(len(columns)) if rows is None else np.asarray(rows)
    blocks = [device_block(block, batch) for block in columns.blocks]
    predict = jax.jit(lambda x, y, blocks, rows: problem.predict(x, y, [gather(block, rows) for block in blocks]))
    padded = np.resize(rows, math.ceil(len(rows) / batch) * batch).reshape(-1, batch)
    found = [np.asarray(predict(x, y, blocks, jnp.asarray(some))) for some in padded]
    return np.concatenate(found)[: len(rows)]


def judged_on(
    problem: Vertical, blocks: Sequence[Any], label: Any, batch: int = 1000
) -> Callable[..., Mapping[str, Any]]:
    """Return what a run over columns evaluates: accuracy and loss on test records, which are public by declaration.

    >>> problem = hyper_parameters([2])
    >>> figures = judged_on(problem, [np.ones((4, 2))], np.array([0, 0, 0, 1]))(problem.x0, problem.y0)
    >>> float(figures["accuracy"])
    0.75
    """
    count, label = len(label), jnp.asarray(label)
    batch = min(batch, count)
    held = [device_block(block, batch) for block in blocks]
    rows = jnp.asarray(np.resize(np.arange(count), math.ceil(count / batch) * batch).reshape(-1, batch))

    def evaluate(x: Sequence[Tree], y: Sequence[Tree]) -> Mapping[str, Any]:
        def some(rows: jax.Array) -> jax.Array:
            return problem.losses(problem.scores(x, y, [gather(block, rows) for block in held]))

        each = jax.lax.map(some, rows)
        losses = each.reshape(-1, each.shape[-1])[:count]
        right = jnp.take_along_axis(losses, label[:, None], axis=1)
        return {"accuracy": accuracy(jnp.argmin(losses, axis=1), label), "loss": jnp.mean(right)}

    return evaluate


def _shifted(most: int, line: int, key: jax.Array, features: jax.Array) -> jax.Array:
    """Move each row's lines sideways by its own random number of pixels; zeros fill the gap."""
    lines = jnp.pad(features.reshape(len(features), -1, line), ((0, 0), (0, 0), (most, most)))
    start = jax.random.randint(key, (len(features), 1, 1), 0, 2 * most + 1)
    return jnp.take_along_axis(lines, start + jnp.arange(line), axis=2).reshape(features.shape)


def _layers(key: jax.Array, sizes: Sequence[int]) -> list[Tree]:
    """Draw dense layers for rectified inputs; the last is a head, whose outputs are not rectified."""
    keys = jax.random.split(key, len(sizes) - 1)
    layers = [
        {"weights": jax.random.normal(k, (m, n)) * math.sqrt(2 / m), "bias": jnp.zeros(n)}
        for k, (m, n) in zip(keys, pairwise(sizes))
    ]
    layers[-1]["weights"] /= math.sqrt(2)
    return layers


def _affine(y: Tree, embedded: Any) -> jax.Array:
    return dot(embedded, y["weights"]) + y["bias"]
