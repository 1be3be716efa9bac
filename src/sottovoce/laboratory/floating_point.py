"""Attack noise that is drawn in floating point: the last bits of a float depend on what was added to the noise.

Example: 0.1 + noise and 0.3 + noise, rounded to floats, can take different values. An adversary who sees a value that
only one of the two sums can take knows which one it was.
"""

import math
import random
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.accounting.account import account_of
from sottovoce.audit import bounds
from sottovoce.laboratory.exhibit import CONFIDENCE, Measurement, attack, exhibit, sized
from sottovoce.methods.dp_sgd import DpSgd
from sottovoce.privacy import threefry
from sottovoce.privacy.discrete import GridRelease, on_grid
from sottovoce.privacy.gdp import gdp_epsilon
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full
from sottovoce.problems import Minimize
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import lay_out
from sottovoce.runtime.run import run
from sottovoce.runtime.threads import ThreadPlace
from sottovoce.schedules import RAISED

PAPER = "implementation"
DEPLOYED = GridRelease(clip=2048, scale=2048, step=2.0**-10, denominator=1, mechanism="laplace")


@exhibit(
    "last-bit",
    PAPER,
    "vector Laplace noise of scale 2 on a one-hot label has epsilon 1: for real numbers; with floats the "
    "event {log-likelihood ratio > 1}, empty in theory, happens, and under one label more often",
)
def last_bit(rng: np.random.Generator, quick: bool) -> list[Measurement]:
    """Measure the same event against NumPy's float64 noise and against whole-number noise."""
    # The leak is a rare event: with fewer trials the bound would stay below 1.
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
        Measurement("float64 noise, empty event", 1.0, naive, 1.0, trials),
        Measurement("whole-number noise, same event", 1.0, deployed, 1.0, few, control=True),
        Measurement("whole-number noise, best event", 1.0, attack(_wholes, rng, few), 1.0, few, control=True),
    ]


def _floats(rng: np.random.Generator, trials: int, truth: bool) -> np.ndarray:
    """Return the log-likelihood ratio in floating point, not rounded."""
    labels = np.eye(3)[:2]
    seen = labels[0 if truth else 1] + rng.laplace(scale=2.0, size=(trials, 3))
    return np.sum(np.abs(seen - labels[1]) - np.abs(seen - labels[0]), axis=1) / 2


def _wholes(rng: np.random.Generator, trials: int, truth: bool) -> np.ndarray:
    """Return the same for exact discrete noise: a ratio of whole numbers, so the event is computed exactly."""
    labels = np.stack(
        [DEPLOYED.whole(label) for label in np.eye(3)[:2]]
    )  # one-hot vectors are 2 apart in L1, which is the clip
    source = random.Random(int(rng.integers(2**62)))
    seen = labels[0 if truth else 1] + DEPLOYED.noise(3 * trials, source).reshape(trials, 3).astype(np.int64)
    return np.sum(np.abs(seen - labels[1]) - np.abs(seen - labels[0]), axis=1) / DEPLOYED.scale


@exhibit(
    "float32-normal",
    PAPER,
    "Gaussian noise drawn in float32 hides a shift: but it takes few values, and most sums are impossible "
    "for the neighbour",
)
def float32_normal(rng: np.random.Generator, quick: bool) -> list[Measurement]:
    """Attack one scalar release by asking whether the value could have come from the neighbour at all."""
    scale, shift = 1.0, 0.3
    trials = sized(2e5, quick)
    without = np.sort(np.asarray(jnp.float32(0.0) + jnp.float32(scale) * _all_normals()))
    key = jax.random.key(int(rng.integers(2**31)))

    def impossible(center: float, number: int) -> np.ndarray:
        drawn = jax.random.normal(jax.random.fold_in(key, number), (trials,), jnp.float32)
        return _missing(without, np.asarray(jnp.float32(center) + jnp.float32(scale) * drawn))

    event = bounds.Event(0.5, above=True)
    ideal = gdp_epsilon(shift / scale, 1e-5)
    measured = bounds.measure(event, impossible(shift, 0), impossible(0.0, 1), 1e-5, CONFIDENCE)
    return [Measurement("one float32 release", ideal, measured, math.inf, trials)]


def _missing(support: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Return 1 for each value that is not in a sorted support."""
    place = np.minimum(np.searchsorted(support, seen), support.size - 1)
    return (support[place] != seen).astype(float)


@exhibit(
    "runtime",
    PAPER,
    "the noise of a release hides a record: a real release from the runtime with one thread per agent, with simulated "
    "float32 noise and with discrete noise as deployed; the event is {the neighbour cannot have sent this}",
)
def runtime(rng: np.random.Generator, quick: bool) -> list[Measurement]:
    """Put in every second record, alone in its coordinate: each coordinate of the one release is a trial."""
    count, delta, shift = (600 if quick else 4000), 1e-2, 0.7
    there = np.arange(count) % 2 == 0
    release = Release(clip=1.0, noise=1 / (shift * count), name="gradient")
    method = DpSgd(rate=1.0, gradient=release, sampling=Full())
    problem = Minimize(lambda x, r: 1e3 * jnp.sum(r * x), jnp.zeros(count))
    parts = [np.diag(there).astype(np.float32)]
    root = root_key(int(rng.integers(2**31)))
    place = ThreadPlace.simulated(
        account_of(method, parts, 1, problem=problem).trace, problem, lay_out(parts), root, 1024
    )
    floats = -place.trace.state(place.advance(place.begin(), 0, 1)[0]).x[0]  # one step of size 1 from zero
    wholes = -run(problem, parts, method, steps=1, noise="discrete").agents.x[0]

    support = np.sort(np.asarray(_all_noise(jnp.float32(float(release.scale(0, 0))))))
    grid = on_grid(release, count)
    steps = np.round(np.asarray(wholes, np.float64) * count / grid.step)
    off_grid = (np.float32(steps * grid.step / count) != np.asarray(wholes)).astype(float)
    ideal, trials = gdp_epsilon(shift, delta), count // 2

    def measured(scores: np.ndarray, event: bounds.Event) -> float:
        return bounds.measure(event, scores[there], scores[~there], delta, CONFIDENCE)

    empty = bounds.Event(0.5, above=True)
    best = bounds.halves(np.asarray(wholes)[there], np.asarray(wholes)[~there], delta, CONFIDENCE)
    return [
        Measurement(
            "float32 noise, impossible values",
            ideal,
            measured(_missing(support, np.asarray(floats)), empty),
            math.inf,
            trials,
        ),
        Measurement("discrete noise, impossible values", ideal, measured(off_grid, empty), ideal, trials, control=True),
        Measurement("discrete noise, best event", ideal, best, ideal, trials, control=True),
    ]


@cache
def _all_normals() -> jax.Array:
    """Return every value that `jax.random.normal` can take in float32: a function of 23 random bits."""
    lowest = np.nextafter(np.float32(-1.0), np.float32(0.0), dtype=np.float32)
    unit = jnp.arange(2**23, dtype=jnp.float32) / jnp.float32(2**23)
    uniform = jnp.maximum(lowest, unit * (jnp.float32(1.0) - lowest) + lowest)
    return jnp.float32(np.sqrt(2)) * jax.lax.erf_inv(uniform)


@jax.jit
def _all_noise(scale: jax.Array) -> jax.Array:
    """Return every value that the gate's noise can take, by the gate's own arithmetic.

    Compiled as one program, because the compiler puts factors together and so changes last bits.
    """
    return (scale * (1 + RAISED)) * threefry.quantile(jnp.arange(1 - 2**24, 2**24, 2, dtype=jnp.int32))
