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


def of_chances(chance: jax.Array, label: jax.Array) -> dict[str, jax.Array]:
    """Return what stated chances of classes are worth: AUROC, log loss, calibration, and balanced accuracy.

    `chance` is that of class 1, or has a column per class. Balanced accuracy is for three classes or more, where
    calibration is that of the class that is guessed.

    >>> sorted(of_chances(jnp.asarray([0.2, 0.8, 0.6]), jnp.asarray([0, 1, 1])))
    ['auroc', 'calibration error', 'log loss']
    """
    least = 1e-6  # float32 knows no chance nearer to 1
    if chance.ndim == 1:
        stated = jnp.clip(jnp.where(label > 0, chance, 1.0 - chance), least, 1.0)
        return {
            "auroc": auroc(chance, label),
            "log loss": -jnp.mean(jnp.log(stated)),
            "calibration error": calibration_error(chance, (label > 0).astype(chance.dtype)),
        }
    guessed = jnp.argmax(chance, axis=1)
    stated = jnp.clip(jnp.take_along_axis(chance, label[:, None], axis=1), least, 1.0)
    return {
        "auroc": macro_auroc(chance, label),
        "balanced accuracy": balanced_accuracy(guessed, label, chance.shape[1]),
        "log loss": -jnp.mean(jnp.log(stated)),
        "calibration error": calibration_error(jnp.max(chance, axis=1), (guessed == label).astype(chance.dtype)),
    }


def macro_auroc(chance: jax.Array, label: jax.Array) -> jax.Array:
    """Return the mean over classes of the AUROC of one class against the rest; classes that no row has are left out.

    `chance` has one line per row and one column per class.

    >>> chance = jnp.asarray([[0.8, 0.1, 0.1], [0.2, 0.5, 0.3], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]])
    >>> round(float(macro_auroc(chance, jnp.asarray([0, 1, 2, 2]))), 3)
    0.847
    """
    numbers = jnp.arange(chance.shape[1])
    held = jax.vmap(lambda one: jnp.any(label == one) & jnp.any(label != one))(numbers)
    each = jax.vmap(lambda one: auroc(chance[:, one], label == one))(numbers)
    return jnp.sum(jnp.where(held, each, 0.0)) / jnp.sum(held)


def balanced_accuracy(predicted: jax.Array, label: jax.Array, classes: int) -> jax.Array:
    """Return the mean over classes of the share of a class's rows that are right; classes that no row has are left out.

    >>> float(balanced_accuracy(jnp.asarray([0, 0, 0, 1]), jnp.asarray([0, 0, 1, 1]), 2))
    0.75
    """
    count = jax.ops.segment_sum(jnp.ones(label.shape), label, classes)
    right = jax.ops.segment_sum((predicted == label).astype(jnp.float32), label, classes)
    return jnp.sum(right / jnp.maximum(count, 1.0)) / jnp.sum(count > 0)


def calibration_error(chance: jax.Array, happened: jax.Array, groups: int = 10) -> jax.Array:
    """Return how far stated chances are from shares: over ten groups of rows with like chances, of equal size.

    It is the mean over groups of |mean chance - share that happened|. Small groups have an error by luck: about
    0.4 / sqrt(rows in a group) where chances are right.

    >>> stated, happened = jnp.full(100, 0.7), jnp.arange(100) % 2
    >>> round(float(calibration_error(stated, happened)), 2)
    0.2
    """
    order = jnp.argsort(chance)
    group = jnp.arange(len(order)) * groups // len(order)
    count = jax.ops.segment_sum(jnp.ones(len(order)), group, groups)
    apart = jax.ops.segment_sum((chance - happened)[order], group, groups)
    return jnp.sum(jnp.abs(apart)) / jnp.sum(count)
