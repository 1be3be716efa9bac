"""An exact adversary for tiny populations: it finds accounts that are too small.

For up to 6 records with one coordinate and up to 3 steps, records are at their worst (0, +clip or -clip). Every batch
of a sampling's exact law is passed through the package's own gate, without noise, which gives the means that could be
behind an output. An output's density under D and under D' is then a mixture over batches, and the privacy loss is
integrated numerically. Losses are rounded toward zero, so what is found is never more than the truth: if it is more
than what `account` states, the account is wrong.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from scipy.signal import fftconvolve

import sottovoce as sv
from sottovoce.data.sealed import Sealed
from sottovoce.methods.handle import explicit
from sottovoce.privacy import gate
from sottovoce.privacy.gate import Reading, RecordFunction
from sottovoce.privacy.sampling import Sampling

CLIP = 1.0
_POINTS = 1201  # of the grid over one output
_LOSS = 4e-3  # step of the grid over privacy losses


@dataclass(frozen=True)
class World:
    """One configuration: a sampling, a mechanism, sizes, and how often the batch is released."""

    sampling: Sampling
    mechanism: Literal["gaussian", "laplace"]
    noise: float
    n: int
    steps: int
    adjacency: Literal["zero-out", "replace-one"]
    releases: int = 1

    def method(self) -> sv.methods.Method:
        return Repeated(sv.Release(CLIP, self.noise, self.mechanism, name="gradient"), self.sampling, self.releases)

    def stated(self, delta: float) -> float:
        """What the package states."""
        population = sv.Population([self.n])
        return sv.account(self.method(), population, steps=self.steps, delta=delta, adjacency=self.adjacency).epsilon


@dataclass(frozen=True)
class Repeated(sv.methods.Method):
    """Releases one gradient per step, or several from one batch."""

    gradient: sv.Release
    sampling: Sampling
    times: int

    def init(self, problem: Any, agent: Any) -> Any:
        return {"x": problem.x0}

    def step(self, problem: Any, state: Any, agent: Any) -> Any:
        batch = agent.sample(self.sampling)
        found = [agent.release(self.gradient, problem.loss, at=state["x"], batch=batch) for _ in range(self.times)]
        return {"x": sum(found[1:], found[0])}


_JAXPR, _ = explicit(lambda x, r: 1e3 * x * r, [jax.ShapeDtypeStruct((), jnp.float32)] * 2)
_STEEP = RecordFunction("records", _JAXPR, 0)
_RELEASE = sv.Release(CLIP, 1.0, name="gradient")


@jax.jit
def _sums(values: jax.Array, batches: jax.Array) -> jax.Array:
    """The gate's clipped sums of many batches (rows of multiplicities), without noise."""
    n = values.shape[0]
    source = Sealed(values, jnp.arange(n), None, jnp.zeros((), jnp.int32))

    def one(weights: jax.Array) -> jax.Array:
        reading = Reading(source, _STEEP, (), (jnp.arange(n), weights), 1.0)
        return gate.clipped_mean(reading, jnp.zeros(()), _RELEASE, 1024)

    return jax.vmap(one)(batches)


def largest_delta(world: World, epsilon: float) -> float:
    """The largest delta at this epsilon that some records, some neighbour and some direction have."""
    # Where batches are drawn anew each step, one step's law is enough: steps are independent and alike.
    steps = 1 if world.sampling.amplifies else world.steps
    law = world.sampling.law(world.n, steps)
    sequences = np.array([sequence for sequence, _ in law], np.float64)  # (outcomes, steps, n)
    chances = np.array([float(chance) for _, chance in law])
    worst = 0.0
    for target in {0} if world.sampling.amplifies else {0, world.n - 1}:
        for others in itertools.combinations_with_replacement((0.0, CLIP, -CLIP), world.n - 1):
            first = np.insert(np.array(others), target, CLIP)
            second = np.insert(np.array(others), target, 0.0 if world.adjacency == "zero-out" else -CLIP)
            p, q = (_means(world, values, sequences) for values in (first, second))
            worst = max(worst, _delta(world, chances, p, q, epsilon), _delta(world, chances, q, p, epsilon))
    return worst


def _means(world: World, values: np.ndarray, sequences: np.ndarray) -> np.ndarray:
    flat = sequences.reshape(-1, world.n)
    unique, back = np.unique(flat, axis=0, return_inverse=True)
    sums = np.asarray(_sums(jnp.asarray(values, jnp.float32), jnp.asarray(unique, jnp.float32)), np.float64)
    denominators = np.array([float(world.sampling.denominator(world.n, t)) for t in range(sequences.shape[1])])
    return sums[back.reshape(-1)].reshape(sequences.shape[:2]) / denominators


def _delta(world: World, chances: np.ndarray, p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    """The hockey-stick divergence of the outputs; steps compose by their losses where batches are independent."""
    if len(chances) == 1 and world.mechanism == "gaussian":  # no coin is tossed: the closed form
        again = world.steps / p.shape[1]
        return _gaussian(math.sqrt(again * world.releases * np.sum((p - q) ** 2)) / world.noise, epsilon)
    losses: np.ndarray | None = None
    for t in range(world.steps):
        found = _losses(world, chances, p[:, t % p.shape[1]], q[:, t % p.shape[1]])
        losses = found if losses is None else fftconvolve(losses, found)
    assert losses is not None
    middle = (len(losses) - 1) // 2
    grid = (np.arange(len(losses)) - middle) * _LOSS
    return float(np.sum(losses * np.maximum(0.0, -np.expm1(np.minimum(epsilon - grid, 0.0)))))


def _gaussian(shift: float, epsilon: float) -> float:
    from scipy.stats import norm

    if shift == 0:
        return 0.0
    above = norm.cdf(shift / 2 - epsilon / shift)
    return float(above - math.exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift))


def _losses(world: World, chances: np.ndarray, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The distribution, under P, of one step's privacy loss, on a grid and rounded toward minus infinity."""
    points = _outputs(world, np.concatenate([p, q]))
    density_p, density_q = (_mixture(world, chances, means, points) for means in (p, q))
    mass = density_p * (points[1] - points[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.where(mass > 0, np.log(density_p) - np.log(density_q), 0.0)
    largest = 10.0
    steps = np.floor(np.clip(loss, -largest, largest) / _LOSS).astype(int)
    size = int(largest / _LOSS)
    found = np.zeros(2 * size + 1)
    np.add.at(found, steps + size, mass)
    return found * 0.999999 / max(1.0, found.sum())  # never more than one


def _outputs(world: World, means: np.ndarray) -> np.ndarray:
    """A grid over the sum of a batch's releases over their number, whose noise is smaller by its root."""
    spread = 10 * world.noise if world.mechanism == "gaussian" else 18 * world.noise
    return np.linspace(means.min() - spread, means.max() + spread, _POINTS)


def _mixture(world: World, chances: np.ndarray, means: np.ndarray, points: np.ndarray) -> np.ndarray:
    values, back = np.unique(np.round(means, 12), return_inverse=True)
    weights = np.bincount(back.reshape(-1), weights=chances)
    total = np.zeros_like(points)
    for value, weight in zip(values, weights):
        total += weight * _density(world, points - value)
    return total


def _density(world: World, off: np.ndarray) -> np.ndarray:
    if world.mechanism == "gaussian":
        scale = world.noise / math.sqrt(world.releases)
        return np.exp(-0.5 * (off / scale) ** 2) / (scale * math.sqrt(2 * math.pi))
    assert world.releases == 1, "several Laplace releases have no single sufficient number"
    return np.exp(-np.abs(off) / world.noise) / (2 * world.noise)
