"""Tune one weight per source of records, or per group of records, while a softmax model is trained.

>>> reweighting(Shape((4,), classes=2, agents=1), groups=3).problem.x0.shape
(3,)

A weight belongs to a *source* (a hospital, an annotator, a crawl), never to a record: a record's own weight would be
an output about that record alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import brentq

from sottovoce.data.parts import Levels
from sottovoce.problems import sets
from sottovoce.problems.objectives import Bilevel, Minimize
from sottovoce.problems.tasks.base import Evaluate, Shape, Task, task
from sottovoce.problems.tasks.linear import softmax
from sottovoce.trees import Tree, inner

WeightKind = Literal["sigmoid", "simplex"]


@task("cleaning")
def cleaning(
    shape: Shape,
    sources: int = 20,
    wrong: float = 0.55,
    weights: WeightKind = "sigmoid",
    start: float = 0.0,
    penalty: float = 1e-3,
    seed: int = 0,
) -> Task:
    """Clean data: the lower level has sources with wrong labels, the upper level a few clean records.

    The model is softmax regression. The lower level's records are distributed evenly to sources (in the column
    `source`, which is public). In source k, labels are replaced by the next class at a rate that rises from 0 to 1 with
    k, and that is `wrong` over all records. One weight per source is tuned.

    Args:
        sources: number of sources.
        wrong: the share of wrong labels at the lower level.
        weights: "sigmoid" (each between 0 and 1) or "simplex" (they sum to the number of sources).
        start: the sigmoid's argument at the start (the simplex starts uniform).
        penalty: weight of half the squared norm of the model, a public term.
        seed: distributes the records and draws the wrong labels.

    >>> clean = cleaning(Shape((4,), classes=3, agents=1), sources=5)
    >>> clean.problem.x0.shape, [round(float(r), 2) for r in rates(5, 0.55)]
    ((5,), [0.0, 0.35, 0.59, 0.81, 1.0])
    """
    truth = rates(sources, wrong)

    def prepare(parts: list[Any]) -> list[Any]:
        if not all(isinstance(part, Levels) for part in parts):
            raise ValueError(
                "cleaning needs clean records at the upper level and others at the lower: set data.upper to a small "
                "share"
            )
        return [_corrupted(part, truth, shape.classes, (seed, number)) for number, part in enumerate(parts)]

    return _weighted(shape, sources, "source", weights, start, penalty, prepare, truth)


@task("reweighting")
def reweighting(
    shape: Shape, groups: int = 3, column: str = "group", weights: WeightKind = "simplex", penalty: float = 1e-3
) -> Task:
    """Fit softmax regression with one tuned weight per group of records, given by a public column of group numbers.

    `weights` and `penalty` as in `cleaning`.

    >>> reweighting(Shape((4,), classes=2, agents=1), groups=3).problem.x0.tolist()
    [0.333..., 0.333..., 0.333...]
    """
    return _weighted(shape, groups, column, weights, 0.0, penalty, list, None)


def rates(sources: int, wrong: float) -> np.ndarray:
    """Return rates of wrong labels from 0 to 1, one per source, with mean `wrong`: powers of an even grid.

    >>> float(rates(20, 0.55).mean().round(6))
    0.55
    """
    if sources < 3 or not 0.1 <= wrong <= 0.9:
        raise ValueError(f"{sources} sources, {wrong} wrong: give at least 3 sources and a share between 0.1 and 0.9")
    grid = np.arange(sources) / (sources - 1)
    power = brentq(lambda p: np.mean(grid**p) - wrong, 1e-3, 100.0)
    return grid**power


def source_weights(x: Tree, weights: WeightKind) -> jax.Array:
    """Return the weights that x stands for.

    >>> source_weights(jnp.zeros(3), "sigmoid").tolist()
    [0.5, 0.5, 0.5]
    """
    return jax.nn.sigmoid(x) if weights == "sigmoid" else x * x.size


def _weighted(
    shape: Shape,
    sources: int,
    column: str,
    weights: WeightKind,
    start: float,
    penalty: float,
    prepare: Callable[[list[Any]], list[Any]],
    truth: np.ndarray | None,
) -> Task:
    if weights not in ("sigmoid", "simplex"):
        raise ValueError(f"weights is {weights!r}: choose 'sigmoid' or 'simplex'")
    plain = softmax(shape)
    model = plain.problem
    assert isinstance(model, Minimize)

    def upper(x: Tree, y: Tree, record: Any) -> jax.Array:
        return model.loss(y, record)

    def lower(x: Tree, y: Tree, record: Any) -> jax.Array:
        return source_weights(x, weights)[record[column]] * model.loss(y, record)

    def metrics(test: Any) -> Evaluate:
        judge = plain.metrics(test)

        def evaluate(x: Tree, y: Tree) -> Mapping[str, jax.Array]:
            found = judge(y)
            if truth is None:
                return found
            clean = jnp.corrcoef(source_weights(x, weights), 1.0 - jnp.asarray(truth, jnp.float32))[0, 1]
            return {**found, "weights against truth": jnp.nan_to_num(clean)}

        return evaluate

    problem = Bilevel(
        upper,
        lower,
        x0=jnp.full(sources, start if weights == "sigmoid" else 1.0 / sources),
        y0=model.x0,
        public_lower=lambda x, y: 0.5 * penalty * inner(y, y),
        project_x=sets.simplex() if weights == "simplex" else lambda x: x,
        predict=lambda x, y, features: model.predict(y, features) if model.predict else None,
    )
    return Task(problem, metrics, prepare)


def _corrupted(part: Levels, truth: np.ndarray, classes: int, seed: tuple[int, int]) -> Levels:
    """Add a column `source`, and make labels of the lower level wrong; which ones does not depend on the labels."""
    rng = np.random.default_rng(seed)
    records, rows = dict(part.lower.records), part.lower.rows
    source = rng.permutation(np.arange(len(rows)) % len(truth)).astype(np.int32)
    label, column = records["label"].copy(), np.zeros(len(records["label"]), np.int32)
    label[rows] = (label[rows] + (rng.random(len(rows)) < truth[source])) % classes
    column[rows] = source
    records.update(label=label, source=column)
    return replace(part, upper=replace(part.upper, records=records), lower=replace(part.lower, records=records))
