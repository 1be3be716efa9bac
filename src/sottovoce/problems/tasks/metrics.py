"""Measure how good predictions are, in JAX: the numbers that tasks report on test records."""

import jax
import jax.numpy as jnp


def accuracy(predicted: jax.Array, label: jax.Array) -> jax.Array:
    """Return the share of predicted classes that are right.

    >>> float(accuracy(jnp.asarray([1, 0, 1, 1]), jnp.asarray([1, 0, 0, 1])))
    0.75
    """
    return jnp.mean((predicted == label).astype(jnp.float32))


def auroc(score: jax.Array, label: jax.Array) -> jax.Array:
    """Return the probability that a record of class 1 scores above one of class 0; ties count half. Exact, by ranks.

    It is NaN when one of the classes is missing or a score is not a number.

    >>> float(auroc(jnp.asarray([0.1, 0.4, 0.4, 0.9]), jnp.asarray([0, 0, 1, 1])))
    0.875
    """
    positive = label > 0
    negatives = jnp.sort(jnp.where(positive, jnp.inf, score))
    below, not_above = (jnp.searchsorted(negatives, score, side=side) for side in ("left", "right"))
    beaten = (below + not_above) / (2.0 * jnp.sum(~positive))
    chance = jnp.sum(jnp.where(positive, beaten, 0.0)) / jnp.sum(positive)
    return jnp.where(jnp.any(jnp.isnan(score)), jnp.nan, chance)
