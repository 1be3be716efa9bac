"""Noise on real machines: a float has last bits, and they know more than the ideal number does."""

import math
import random
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.audit import bounds
from sottovoce.audit.exhibits.base import CONFIDENCE, Row, attack, exhibit, sized
from sottovoce.privacy.discrete import GridRelease
from sottovoce.privacy.gdp import gdp_epsilon

PAPER = "implementation"
DEPLOYED = GridRelease(clip=2048, scale=2048, step=2.0**-10, denominator=1, mechanism="laplace")


@exhibit(
    "last-bit",
    PAPER,
    "vector Laplace noise of scale 2 on a one-hot label has epsilon 1: for real numbers; with floats the "
    "event {log-likelihood ratio > 1}, empty in theory, happens, and under one label more often",
)
def last_bit(rng: np.random.Generator, quick: bool) -> list[Row]:
    """The same event against NumPy's float64 noise and against whole-number noise."""
    # the leak itself is a rare event: counted less often it stays below 1
    trials = sized(2e6, quick=False)
    empty = bounds.Event(np.nextafter(1.0, 2.0), above=True)
    with_it, without = (
        np.concatenate([_floats(rng, trials // 10, truth) for _ in range(10)]) for truth in (True, False)
    )
    naive = bounds.measure(empty, with_it, without, delta=0.0, confidence=CONFIDENCE)
    few = sized(2e5, quick)
    deployed = bounds.measure(
        empty, _wholes(rng, few, True), _wholes(rng, few, False), delta=0.0, confidence=CONFIDENCE
    )
    return [
        Row("float64 noise, empty event", 1.0, naive, 1.0, trials),
        Row("whole-number noise, same event", 1.0, deployed, 1.0, few, control=True),
        Row("whole-number noise, best event", 1.0, attack(_wholes, rng, few), 1.0, few, control=True),
    ]


def _floats(rng: np.random.Generator, trials: int, truth: bool) -> np.ndarray:
    """The log-likelihood ratio in floating point, un-rounded."""
    labels = np.eye(3)[:2]
    seen = labels[0 if truth else 1] + rng.laplace(scale=2.0, size=(trials, 3))
    return np.sum(np.abs(seen - labels[1]) - np.abs(seen - labels[0]), axis=1) / 2


def _wholes(rng: np.random.Generator, trials: int, truth: bool) -> np.ndarray:
    """The same of exact discrete noise: a ratio of whole numbers, so the event is exactly what it says."""
    labels = DEPLOYED.whole(np.eye(3)[:2])  # one-hot vectors are 2 apart in L1, which is the clip
    source = random.Random(int(rng.integers(2**62)))
    seen = labels[0 if truth else 1] + DEPLOYED.noise(3 * trials, source).reshape(trials, 3).astype(np.int64)
    return np.sum(np.abs(seen - labels[1]) - np.abs(seen - labels[0]), axis=1) / DEPLOYED.scale


@exhibit(
    "float32-normal",
    PAPER,
    "Gaussian noise drawn in float32 hides a shift: but it takes few values, and most sums are impossible "
    "for the neighbour",
)
def float32_normal(rng: np.random.Generator, quick: bool) -> list[Row]:
    """One scalar release; the attack asks whether the value could have come from the neighbour at all."""
    scale, shift = 1.0, 0.3
    trials = sized(2e5, quick)
    without = np.sort(np.asarray(jnp.float32(0.0) + jnp.float32(scale) * _all_normals()))
    key = jax.random.key(int(rng.integers(2**31)))

    def impossible(center: float, number: int) -> np.ndarray:
        drawn = jax.random.normal(jax.random.fold_in(key, number), (trials,), jnp.float32)
        seen = np.asarray(jnp.float32(center) + jnp.float32(scale) * drawn)
        place = np.minimum(np.searchsorted(without, seen), without.size - 1)
        return (without[place] != seen).astype(float)

    event = bounds.Event(0.5, above=True)
    ideal = gdp_epsilon(shift / scale, 1e-5)
    measured = bounds.measure(event, impossible(shift, 0), impossible(0.0, 1), 1e-5, CONFIDENCE)
    return [Row("one float32 release", ideal, measured, math.inf, trials)]


@cache
def _all_normals() -> jax.Array:
    """Every value that `jax.random.normal` can take in float32: a function of 23 random bits."""
    lowest = np.nextafter(np.float32(-1.0), np.float32(0.0), dtype=np.float32)
    unit = jnp.arange(2**23, dtype=jnp.float32) / jnp.float32(2**23)
    uniform = jnp.maximum(lowest, unit * (jnp.float32(1.0) - lowest) + lowest)
    return jnp.float32(np.sqrt(2)) * jax.lax.erf_inv(uniform)
