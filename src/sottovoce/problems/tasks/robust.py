"""Solve min-max tasks: robust logistic regression, training for the worst group, and AUC maximisation.

`hidden` lists the widths of hidden layers; without any, the model is linear. Features are multiplied by `scale`, a
public number that brings their norms near 1. The maximising variables and their sets:

- robust-logistic and group-robust: weights y on the simplex, one per group; leaving uniform weights has a public price;
- auc: one number alpha, the dual variable of the square surrogate (Ying, Wen and Lyu, NeurIPS 2016).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.data.parts import Part
from sottovoce.problems import models, sets
from sottovoce.problems.linear_model import LinearModel, PartyWeights
from sottovoce.problems.objectives import MinMax
from sottovoce.problems.tasks.base import Evaluate, Shape, Task, check_classes, task
from sottovoce.problems.tasks.metrics import accuracy, auroc
from sottovoce.trees import Tree, norm

GroupBy = Literal["party", "label"]


def numbered(parts: Sequence[Part]) -> list[Part]:
    """Add a column `party` to the parts: the number of the party that holds the record, which is public.

    >>> held = {"label": np.zeros(4)}
    >>> first, second = numbered([Part(held, np.arange(1)), Part(held, np.arange(1, 4))])
    >>> second.gather()["party"].tolist(), first.records is second.records
    ([1, 1, 1], True)
    """
    sets_of_records: dict[int, Any] = {}
    for number, part in enumerate(parts):
        count = len(jax.tree.leaves(part.records)[0])
        records = sets_of_records.setdefault(id(part.records), {**part.records, "party": np.zeros(count, np.int32)})
        records["party"][part.rows] = number
    return [replace(part, records=sets_of_records[id(part.records)]) for part in parts]


@task("robust-logistic")
def robust_logistic(
    shape: Shape,
    groups: GroupBy = "party",
    hidden: Sequence[int] = (),
    scale: float = 1.0,
    price: float | None = None,
    penalty: float = 1e-3,
    sharpness: float = 10.0,
    seed: int = 0,
) -> Task:
    """Fit logistic regression under the worst weighting of parties (as in the DPMixSGD paper) or of classes.

    min over x, max over y on the simplex of
    ``sum_i y_i l_i(x) - price/2 |m y - 1|^2 + penalty sum s x^2 / (1 + s x^2)``, with l_i the loss of group i, of m,
    and s the `sharpness`; the last term is for weights of unscaled features, so it does not depend on `scale`.
    The price is 1 / m^2 if not given. A record's own term is ``m y_i`` times its loss, so that its mean over parties is
    the sum above. Where metrics are of training records (``run.train``), they include the length of the gradient of
    Phi(x), the maximum over y, which is what Theorem 1 of the paper bounds.

    >>> robust_logistic(Shape((4,), classes=2, agents=5)).problem.y0.shape
    (5,)
    """
    check_classes("robust-logistic", shape, two=True)
    model = _Scores(shape, 1, hidden, scale, seed)
    count = _count(groups, shape)

    def loss(x: Tree, y: jax.Array, record: Any) -> jax.Array:
        score = model(x, record["features"])[0]
        return count * y[record[groups]] * (jax.nn.softplus(score) - record["label"] * score)

    def public(x: Tree, y: jax.Array) -> jax.Array:
        squares = [sharpness * leaf**2 for leaf in jax.tree.leaves(model.unscaled(x))]
        return penalty * sum(jnp.sum(s / (1 + s)) for s in squares) - _leaving(y, price)

    def of_scores(scores: jax.Array, record: Any) -> jax.Array:
        return jax.nn.softplus(scores[0]) - record["label"] * scores[0]

    problem = MinMax(
        loss,
        model.start,
        jnp.full(count, 1 / count),
        public=public,
        project_y=sets.simplex(),
        predict=lambda x, y, features: jax.nn.sigmoid(model(x, features)[..., 0]),
        weighted=model.weighted(groups, of_scores, 0.25, 0.5, _price(price, count)),
    )
    on_records = _binary(lambda x, y, features: model(x, features)[..., 0])

    def metrics(records: Any) -> Evaluate:
        binary = on_records(records)
        if groups not in records or groups == "label":
            return binary
        slope = jax.grad(partial(_phi, model, public, records, count, _price(price, count)))

        def evaluate(x: Tree, y: Tree) -> Mapping[str, jax.Array]:
            return {**binary(x, y), "gradient of Phi": norm(slope(x))}

        return evaluate

    return Task(problem, metrics, _preparation(groups))


@task("group-robust")
def group_robust(
    shape: Shape,
    groups: GroupBy = "label",
    hidden: Sequence[int] = (),
    scale: float = 1.0,
    price: float | None = None,
    seed: int = 0,
) -> Task:
    """Minimise cross entropy under the worst weighting of groups (classes or parties), with a price on the weighting.

    This is distributionally robust training (Sagawa et al., ICLR 2020) as a min-max problem. Weights that are not
    uniform have the price. The worst class is reported too.

    >>> group_robust(Shape((4,), classes=3, agents=5)).problem.y0.shape
    (3,)
    """
    check_classes("group-robust", shape)
    model = _Scores(shape, shape.classes, hidden, scale, seed)
    count = _count(groups, shape)

    def loss(x: Tree, y: jax.Array, record: Any) -> jax.Array:
        right = jax.nn.log_softmax(model(x, record["features"]))[record["label"]]
        return -count * y[record[groups]] * right

    def metrics(test: Any) -> Evaluate:
        features, label = jnp.asarray(test["features"]), jnp.asarray(test["label"])

        def evaluate(x: Tree, y: jax.Array) -> Mapping[str, jax.Array]:
            guessed = jnp.argmax(model(x, features), axis=-1)
            each = [jnp.sum((guessed == c) & (label == c)) / jnp.sum(label == c) for c in range(shape.classes)]
            return {"accuracy": accuracy(guessed, label), "worst class": jnp.nanmin(jnp.stack(each))}

        return evaluate

    def of_scores(scores: jax.Array, record: Any) -> jax.Array:
        return -jax.nn.log_softmax(scores)[record["label"]]

    problem = MinMax(
        loss,
        model.start,
        jnp.full(count, 1 / count),
        public=lambda x, y: -_leaving(y, price),
        project_y=sets.simplex(),
        predict=lambda x, y, features: jax.nn.softmax(model(x, features)),
        weighted=model.weighted(groups, of_scores, 0.5, math.sqrt(1 - 1 / shape.classes), _price(price, count)),
    )
    return Task(problem, metrics, _preparation(groups))


@task("auc")
def auc(
    shape: Shape, prior: float | None = None, hidden: Sequence[int] = (), scale: float = 1.0, seed: int = 0
) -> Task:
    """Maximise the AUC as a min-max problem.

    With h the score in (0, 1) and p the share of class 1, a record contributes
    ``(1-p) (h-a)^2 - 2 (1+alpha) (1-p) h`` if of class 1, else ``p (h-b)^2 + 2 (1+alpha) p h``; ``-p (1-p) alpha^2`` is
    public. a, b and the model are minimised, alpha is maximised. At the saddle a and b are the classes' mean scores and
    alpha is b - a. The `prior` p is public by declaration: a share measured on the parties' records must be charged. By
    default it is the share that one's own table was asked for (``data.share``).

    >>> problem = auc(Shape((4,), classes=2, agents=5), prior=0.25).problem
    >>> sorted(problem.x0), problem.y0.shape
    (['a', 'b', 'model'], ())
    """
    check_classes("auc", shape, two=True)
    if prior is None:
        prior = shape.prior
    if prior is None:
        raise ValueError('auc needs the share of class 1: set task.prior, or data.share = "public" or "private"')
    if not 0 < prior < 1:
        raise ValueError(f"prior is {prior}: give the public share of class 1, between 0 and 1")
    model = _Scores(shape, 1, hidden, scale, seed)

    def score(x: Tree, features: Any) -> jax.Array:
        return jax.nn.sigmoid(model(x["model"], features)[..., 0])

    def loss(x: Tree, y: jax.Array, record: Any) -> jax.Array:
        h = score(x, record["features"])
        above = (1 - prior) * ((h - x["a"]) ** 2 - 2 * (1 + y) * h)
        below = prior * ((h - x["b"]) ** 2 + 2 * (1 + y) * h)
        return jnp.where(record["label"] > 0, above, below)

    problem = MinMax(
        loss,
        {"model": model.start, "a": jnp.asarray(0.5), "b": jnp.asarray(0.5)},
        jnp.zeros(()),
        public=lambda x, y: -prior * (1 - prior) * y**2,
        project_y=sets.box(-1.0, 1.0),
        predict=lambda x, y, features: score(x, features),
    )
    return Task(problem, _binary(lambda x, y, features: model(x["model"], features)[..., 0]), chances=False)


class _Scores:
    """Score scaled features, by a linear model that starts at zero or by a perceptron that starts at random."""

    def __init__(self, shape: Shape, outputs: int, hidden: Sequence[int], scale: float, seed: int) -> None:
        if not scale > 0:
            raise ValueError(f"scale is {scale}: it must be positive")
        self.model, self.scale = models.mlp((math.prod(shape.features),), outputs, tuple(hidden)), scale
        drawn = self.model.init(jax.random.key(seed))
        self.linear = not hidden
        self.start: Tree = drawn if hidden else jax.tree.map(jnp.zeros_like, drawn[0])

    def __call__(self, x: Tree, features: Any) -> jax.Array:
        return self.model.apply([x] if self.linear else x, self.scale * features)

    def unscaled(self, x: Tree) -> Tree:
        """Return the parameters of the same function of unscaled features."""
        first, *rest = [x] if self.linear else x
        return [{**first, "weights": self.scale * first["weights"]}, *rest]

    def weighted(
        self, groups: str, loss: Callable[..., jax.Array], curvature: float, residual: float, price: float
    ) -> PartyWeights | None:
        """Return what is known beforehand where the model is linear in the features and groups are parties."""
        if not self.linear or self.scale != 1.0 or groups != "party" or price <= 0:
            return None
        return PartyWeights(LinearModel(_row, loss, curvature, residual), price)


def _row(record: Any) -> jax.Array:
    return record["features"].reshape(-1)


def _count(groups: str, shape: Shape) -> int:
    counts = {"party": shape.agents, "label": shape.classes}
    if groups not in counts:
        raise ValueError(f"groups is {groups!r}: choose 'party' or 'label'")
    if groups == "party" and shape.agents == 1:
        raise ValueError(
            "the worst party needs several parties, and there is one: name their column (data.party), or set "
            'task.groups = "label" for the worst class'
        )
    return counts[groups]


def _preparation(groups: str) -> Any:
    return numbered if groups == "party" else list


def _leaving(y: jax.Array, price: float | None) -> jax.Array:
    """Return the price of weights that are not uniform."""
    m = y.shape[0]
    return 0.5 * _price(price, m) * jnp.sum((m * y - 1) ** 2)


def _price(price: float | None, groups: int) -> float:
    return 1 / groups**2 if price is None else price


def _phi(model: "_Scores", public: Any, records: Any, count: int, price: float, x: Tree) -> jax.Array:
    """Return Phi(x), the maximum over y of robust logistic regression, on records that say their party.

    The best weights are the projection of 1/m + l_i / (price m^2) on the simplex. By Danskin's theorem the gradient
    takes them as constant.
    """
    scores = model(x, jnp.asarray(records["features"]))[..., 0]
    party = jnp.asarray(records["party"])
    each = jax.nn.softplus(scores) - jnp.asarray(records["label"]) * scores
    losses = jax.ops.segment_sum(each, party, count) / jax.ops.segment_sum(jnp.ones_like(each), party, count)
    y = sets.simplex()(jax.lax.stop_gradient(1 / count + losses / (price * count**2)))
    return y @ losses + public(x, y)


def _binary(score: Any) -> Any:
    def metrics(test: Any) -> Evaluate:
        features, label = jnp.asarray(test["features"]), jnp.asarray(test["label"])

        def evaluate(x: Tree, y: Tree) -> Mapping[str, jax.Array]:
            scores = score(x, y, features)
            return {"auroc": auroc(scores, label), "accuracy": accuracy(scores > 0, label > 0)}

        return evaluate

    return metrics
