"""Describe a model that is linear in a row of numbers: what is known of its loss before any record is read.

Example: logistic regression on rows of norm at most 1. Its loss depends on x through the score
``features @ x["weights"] + x["bias"]`` alone, and its second derivative in the score is at most 1/4, whatever the
records are. So a method knows which step sizes are stable, and it can whiten the rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from sottovoce.problems.sets import simplex
from sottovoce.trees import Tree


@dataclass(frozen=True)
class LinearModel:
    """State how a loss depends on the scores ``features @ x["weights"] + x["bias"]``, from declared facts only.

    Args:
        features: returns one record's row of numbers.
        loss: ``loss(scores, record)``, the loss of one record as a function of its scores.
        curvature: bound on the second derivative of the loss in the scores.
        residual: size of the loss's first derivative in the scores where x starts; it scales a clip.
        intercept: returns the constant scores that lower the loss most, from the mean of its first derivative at zero
            scores and the deviation of the noise in it. By default, Newton's own step.
        target: for the squared loss, the number that the score should equal, in [-1, 1]. Then the same moments that
            whiten the rows give the least-squares solution to start from.

    >>> def loss(score, record): return jax.nn.softplus(score) - record["label"] * score
    >>> model = LinearModel(lambda record: record["features"], loss, curvature=0.25, residual=0.5)
    >>> model.row({"features": jnp.asarray([2.0, 0.0])}, norm=2.0).tolist()
    [1.0, 0.0, 0.5]
    """

    features: Callable[[Any], jax.Array]
    loss: Callable[[jax.Array, Any], jax.Array]
    curvature: float
    residual: float
    target: Callable[[Any], jax.Array] | None = None
    intercept: Callable[[jax.Array, jax.Array], jax.Array] | None = None

    def __post_init__(self) -> None:
        for name in ("curvature", "residual"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} of a linear model is {getattr(self, name)}: give a positive number")

    def row(self, record: Any, norm: float) -> jax.Array:
        """Return a record's row over the bound on its norm, and the number that stands for the intercept."""
        return jnp.append(self.features(record) / norm, INTERCEPT)

    def scores(self, x: Tree, record: Any) -> jax.Array:
        """Return a record's scores under x."""
        return self.features(record) @ x["weights"] + x["bias"]

    def constant(self, slope: jax.Array, noise: jax.Array) -> jax.Array:
        """Return the constant scores to which a mean first derivative at zero scores leads; see `intercept`."""
        return -slope / self.curvature if self.intercept is None else self.intercept(slope, noise)

    @property
    def bound(self) -> float:
        """Return the largest squared norm of a row with its intercept, and with its target if there is one."""
        return 1.0 + INTERCEPT**2 + (TARGET**2 if self.target is not None else 0.0)

    def moved(self, x: Tree, change: jax.Array, norm: float) -> Tree:
        """Return x after a change that is stated for `row`: one line per entry of a row, one column per score."""
        change = change.reshape(change.shape[0], *jnp.shape(x["bias"]))
        return {"weights": x["weights"] + change[:-1] / norm, "bias": x["bias"] + INTERCEPT * change[-1]}


INTERCEPT = 0.5  # stands in a row for the intercept: half of the largest row, so that it does not dominate the clip
TARGET = 0.5  # weight of the target beside a row


@dataclass(frozen=True)
class PartyWeights:
    """State that a min-max loss weighs parties: the loss of party i's records is m y_i times that of a linear model.

    y is on the simplex of the m parties, and leaving uniform weights costs ``price/2 |m y - 1|^2``. Weights are public,
    so a method can apply them after a party's release.

    >>> weights = PartyWeights(LinearModel(lambda r: r, lambda score, r: score, curvature=1.0, residual=1.0), price=0.1)
    >>> [round(weight, 3) for weight in weights.best(jnp.asarray([0.5, 0.6])).tolist()]
    [0.375, 0.625]
    """

    model: LinearModel
    price: float

    def best(self, losses: jax.Array) -> jax.Array:
        """Return the weights that maximise the weighted loss less its price."""
        m = losses.shape[0]
        return simplex()(1 / m + losses / (self.price * m**2))
