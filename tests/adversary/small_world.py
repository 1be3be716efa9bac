"""An exact adversary for tiny populations: it finds accounts that are too small.

Up to 6 people have one record or several, in one level or in two, for up to 3 steps. Records are at their worst
(0, +clip or -clip). Every batch of a sampling's exact law is passed through the package's own layout and gate, without
noise, which gives the means that could be behind an output. An output's density under D and under D' is then a mixture
over batches, and the privacy loss is integrated numerically (over the plane for two outputs of one random batch).
Losses are rounded toward minus infinity, so what is found is never more than the truth: if it is more than what
`account` states, the account is wrong.

Who is who. In `people` a record's value is the number of the person it belongs to. The package never compares values,
so it does not know; the adversary does, and changes all that one person has.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.signal import fftconvolve
from scipy.stats import norm

import sottovoce as sv
from sottovoce.accounting.account import Account, account_of
from sottovoce.data.sealed import Sealed
from sottovoce.methods import equations
from sottovoce.privacy import gate
from sottovoce.privacy.gate import Reading, RecordFunction
from sottovoce.privacy.sampling import OnePass, Sampling, Stream
from sottovoce.runtime.layout import lay_out
from tests.privacy.laws import law

from .people import PEOPLE

CLIP = 1.0
WORST = (0.0, CLIP, -CLIP)
_POINTS = 1201  # of the grid over one output
_PLANE = {"gaussian": 501, "laplace": 1501}  # of the grid over each of two outputs of one batch; Laplace has corners
_LOSS = 4e-3  # step of the grid over privacy losses
_LARGEST = 10.0  # loss that is told apart
_ROOM = 32  # batches are passed through the gate so many at a time, in one compiled program

Functions = tuple[tuple[str, str], ...]  # levels, and what is read of them
Pattern = Literal["one", "twice", "unlike", "apart", "joint", "nested"]
OTHER = {"gaussian": "laplace", "laplace": "gaussian"}


@dataclass(frozen=True)
class World:
    """One configuration: a sampling, a mechanism, who holds what, and what is released of a batch.

    `pattern`: of one loss "one" release per batch, "twice" the same, or two "unlike" ones, with the other mechanism and
    more noise; of two losses each "apart", both "joint" under one noise, or "nested": the lower one, and then both.
    """

    sampling: Sampling
    mechanism: Literal["gaussian", "laplace"]
    noise: float
    n: int
    steps: int
    adjacency: Literal["zero-out", "replace-one"]
    people: str = "records"
    pattern: Pattern = "one"

    @functools.cached_property
    def parts(self) -> Any:
        return PEOPLE[self.people](self.n)

    @functools.cached_property
    def two_losses(self) -> bool:
        return self.pattern in ("apart", "joint", "nested")

    def account(self, delta: float) -> Account:
        """What the package states; ValueError if it refuses."""
        release = sv.Release(CLIP, self.noise, self.mechanism)
        if self.two_losses:
            method: Any = Levelled(release, release, self.sampling, self.pattern)
            problem: Any = TWO
        else:
            unlike = sv.Release(CLIP, 1.5 * self.noise, OTHER[self.mechanism])  # type: ignore[arg-type]
            second = {"one": None, "twice": release, "unlike": unlike}[self.pattern]
            method, problem = Repeated(release, second, self.sampling), ONE
        return account_of(method, self.parts, self.steps, None, delta, self.adjacency, problem)


def _steep(x: Any, r: Any) -> Any:
    return 1e3 * x * _only(r)


def _only(records: Any) -> Any:
    (leaf,) = jax.tree.leaves(records)
    return leaf


ONE = sv.Minimize(_steep, np.float32(0.0))
TWO = sv.Bilevel(lambda x, y, r: _steep(x, r), lambda x, y, r: _steep(x, r), np.float32(0.0), np.float32(0.0))


@dataclass(frozen=True)
class Repeated(sv.methods.Method):
    """Releases one gradient per step, or two from one batch."""

    gradient: sv.Release
    second: sv.Release | None
    sampling: Sampling

    def init(self, problem: Any, agent: Any) -> Any:
        return {"x": jnp.asarray(problem.x0)}

    def step(self, problem: Any, state: Any, agent: Any) -> Any:
        batch = agent.sample(self.sampling)
        releases = (self.gradient,) if self.second is None else (self.gradient, self.second)
        found = [agent.release(one, problem.loss, at=state["x"], batch=batch) for one in releases]
        return {"x": sum(found[1:], found[0])}


@dataclass(frozen=True)
class Levelled(sv.methods.Method):
    """Releases the gradients of two losses per step: each alone, or together under one noise."""

    release_x: sv.Release
    release_y: sv.Release
    sampling: Sampling
    pattern: str
    solves = (sv.Bilevel,)

    def init(self, problem: Any, agent: Any) -> Any:
        return {"x": jnp.asarray(problem.x0), "y": jnp.asarray(problem.y0)}

    def step(self, problem: Any, state: Any, agent: Any) -> Any:
        batch = agent.sample(self.sampling)
        upper, lower = ((lambda x, r, fn=fn: fn(x, x, r)) for fn in (problem.upper, problem.lower))
        first = {"upper": upper} if self.pattern == "apart" else {"upper": upper, "lower": lower}
        x = agent.release(self.release_x, at=state["x"], batch=batch, **first)
        if self.pattern == "joint":
            return {"x": x, "y": state["y"]}
        return {"x": x, "y": agent.release(self.release_y, at=state["y"], batch=batch, lower=lower)}


class Noise(NamedTuple):
    """What is added to one output."""

    mechanism: str
    scale: float

    def density(self, off: np.ndarray) -> np.ndarray:
        if self.mechanism == "gaussian":
            return np.exp(-0.5 * (off / self.scale) ** 2) / (self.scale * math.sqrt(2 * math.pi))
        return np.exp(-np.abs(off) / self.scale) / (2 * self.scale)

    def points(self, means: np.ndarray, count: int) -> np.ndarray:
        """A grid beyond which next to nothing lies."""
        spread = self.scale * (10 if self.mechanism == "gaussian" else 18)
        return np.linspace(means.min() - spread, means.max() + spread, count)


class Channel(NamedTuple):
    """One output per step, or two of one batch, that do not depend on others: how they come about, what is behind."""

    chances: np.ndarray  # of each outcome
    p: np.ndarray  # means under D: (outcomes, steps, outputs)
    q: np.ndarray  # means under D'
    noise: tuple[Noise, ...]  # of each output


def largest_delta(world: World, epsilon: float, account: Account) -> float:
    """The largest delta at this epsilon that some records, some neighbour and some direction have."""
    reader = _Reader(world, account)
    worst, seen = 0.0, set()
    for first, second in _neighbours(world, reader):
        channels = reader.channels(first, second)
        key = tuple(map(_same, channels))
        if key not in seen:
            seen.add(key)
            turned = [channel._replace(p=channel.q, q=channel.p) for channel in channels]
            worst = max(worst, _delta(world, channels, epsilon), _delta(world, turned, epsilon))
    return worst


def _same(channel: Channel) -> Any:
    """Equal for channels that tell the same: outcomes in another order, moved or mirrored."""
    both = np.stack([channel.p, channel.q]).round(9)
    ways = []
    for turned in (both, -both):
        moved = (turned - turned.min(axis=(0, 1))).round(9) + 0.0
        flat = moved.reshape(2, moved.shape[1], -1)
        ways.append(tuple(tuple(sorted(zip(map(tuple, means.tolist()), channel.chances))) for means in flat))
    return (channel.noise, min(ways))


def _neighbours(world: World, reader: "_Reader") -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """What everybody's records are, under D and under D': all that one person has is changed."""
    away = 0.0 if world.adjacency == "zero-out" else -CLIP
    alike = world.people in ("records", "units", "one set") and world.sampling.amplifies
    choices = itertools.combinations_with_replacement if alike else _all
    for target in reader.targets:
        for others in choices(WORST, reader.persons - 1):
            yield np.insert(np.array(others), target, CLIP), np.insert(np.array(others), target, away)


def _all(values: tuple[float, ...], count: int) -> Iterator[tuple[float, ...]]:
    return itertools.product(values, repeat=count)


class _Reader:
    """Passes batches through the layout and the gate of the package."""

    def __init__(self, world: World, account: Account) -> None:
        self.world = world
        self.sealed = {level: sealed.of(0) for level, sealed in lay_out(world.parts).sealed.items()}
        self.owner = {level: np.asarray(_only(sealed.unseal())).astype(int) for level, sealed in self.sealed.items()}
        self.people = {level: np.unique(owner) for level, owner in self.owner.items()}
        self.persons = 1 + max(int(owner.max()) for owner in self.owner.values())
        held = {tuple(int(np.sum(owner == k)) for owner in self.owner.values()): k for k in range(self.persons)}
        ordered = isinstance(world.sampling, (OnePass, Stream))  # otherwise who holds as much is as exposed
        self.targets = range(self.persons) if ordered else sorted(held.values())
        sizes = account.population.counts
        # Where batches are drawn anew each step, one step's law is enough: steps are independent and alike.
        self.turns = 1 if world.sampling.amplifies else world.steps
        laws = {level: law(world.sampling, int(n[0]), self.turns) for level, n in sizes.items()}
        self.batches = {level: np.array([batch for batch, _ in stated], np.float32) for level, stated in laws.items()}
        self.chances = {level: np.array([float(chance) for _, chance in stated]) for level, stated in laws.items()}
        self.divided_by = {
            level: np.array([float(world.sampling.denominator(int(n[0]), t)) for t in range(self.turns)])
            for level, n in sizes.items()
        }
        self.clip = next(charge.release.clip for charge in account.charges)
        self.groups = self._together(
            [line.params for line in account.trace.step.eqns if line.primitive is equations.release_p]
        )

    def _together(self, asked: list[Any]) -> list[list[tuple[Functions, Noise]]]:
        """Outputs that depend on each other, because they read one random batch, in one group."""
        outputs: list[tuple[Functions, Noise]] = []
        for one in asked:
            functions = tuple((function.level, _known(function)) for function in one["asked"].functions)
            outputs.append((functions, Noise(one["release"].mechanism, float(one["release"].scale(0, 0)))))
        levels = [level for functions, _ in outputs for level, _ in functions]
        coins = any(len(chances) > 1 for chances in self.chances.values())
        if len(levels) == len(set(levels)) or not coins:
            return [[one] for one in outputs]
        alike = {functions for functions, _ in outputs}
        if len(alike) == 1 and all(noise == outputs[0][1] and noise.mechanism == "gaussian" for _, noise in outputs):
            functions, noise = outputs[0]  # the mean of equal releases has less noise, and tells as much
            return [[(functions, Noise("gaussian", noise.scale / math.sqrt(len(outputs))))]]
        assert len(outputs) == 2
        return [outputs]

    def channels(self, first: np.ndarray, second: np.ndarray) -> list[Channel]:
        return [self._channel(group, first, second) for group in self.groups]

    def _channel(self, group: list[tuple[Functions, Noise]], first: np.ndarray, second: np.ndarray) -> Channel:
        levels = sorted({level for functions, _ in group for level, _ in functions})
        shape = [len(self.chances[level]) for level in levels]  # the batches of two levels are independent
        chances = functools.reduce(np.multiply.outer, (self.chances[level] for level in levels)).reshape(-1)

        def means(values: np.ndarray) -> np.ndarray:
            found = np.zeros((*shape, self.turns, len(group)))
            for output, (functions, _) in enumerate(group):
                for level, function in functions:
                    at = [len(self.chances[level]) if level == other else 1 for other in levels]
                    found[..., output] += self._means(level, function, values).reshape(*at, self.turns)
            return found.reshape(-1, self.turns, len(group))

        return Channel(chances, means(first), means(second), tuple(noise for _, noise in group))

    def _means(self, level: str, function: str, values: np.ndarray) -> np.ndarray:
        return self._table(level, function)[tuple(values[self.people[level]])]

    @functools.cache  # noqa: B019 (a reader lives as long as its world is looked at)
    def _table(self, level: str, function: str) -> dict[tuple[float, ...], np.ndarray]:
        """The means of all batches, for all worst-case records that the people of a level may have."""
        people, sealed, batches = self.people[level], self.sealed[level], self.batches[level]
        cases = np.array(list(itertools.product(WORST, repeat=len(people))), np.float32)
        flat = batches.reshape(-1, batches.shape[-1])
        padded = np.pad(flat, [(0, -len(flat) % _ROOM), (0, 0)])
        held = cases[:, np.searchsorted(people, self.owner[level])]
        pools = jax.tree.map(lambda _: jnp.asarray(held), sealed.unseal())
        release = sv.Release(self.clip, 1.0, self.world.mechanism)
        sums = np.asarray(_sums(function, release, sealed, pools, jnp.asarray(padded)), np.float64)
        means = sums[:, : len(flat)].reshape(len(cases), *batches.shape[:2]) / self.divided_by[level]
        return dict(zip(map(tuple, cases.tolist()), means))


_FUNCTIONS: dict[str, RecordFunction] = {}  # by their text, so that each is compiled once


def _known(function: RecordFunction) -> str:
    assert function.consts == 0
    _FUNCTIONS.setdefault(text := str(function.jaxpr), function)
    return text


@functools.partial(jax.jit, static_argnums=(0, 1))
def _sums(function: str, release: sv.Release, sealed: Sealed, pools: Any, batches: jax.Array) -> jax.Array:
    """The gate's clipped sums of many batches (rows of multiplicities) of many record sets, without noise."""

    def one(pool: Any, weights: jax.Array) -> jax.Array:
        rows = jnp.arange(weights.shape[0]), weights
        reading = Reading(sealed.with_pool(pool), _FUNCTIONS[function], (), rows, 1.0)
        return gate.clipped_mean(reading, jnp.zeros(()), release, 1024)

    return jax.vmap(lambda pool: jax.vmap(lambda weights: one(pool, weights))(batches))(pools)


def _delta(world: World, channels: list[Channel], epsilon: float) -> float:
    """The hockey-stick divergence of the outputs; channels and steps compose by their losses."""
    silent = all(len(channel.chances) == 1 for channel in channels)
    if silent and all(noise.mechanism == "gaussian" for channel in channels for noise in channel.noise):
        squares = [  # the closed form
            world.steps / channel.p.shape[1] * np.sum(((channel.p - channel.q)[..., 0] / channel.noise[0].scale) ** 2)
            for channel in channels
        ]
        return _gaussian(math.sqrt(sum(squares)), epsilon)
    losses = np.ones(1)
    for channel in channels:
        for t in range(world.steps):
            column = t % channel.p.shape[1]
            p, q = channel.p[:, column], channel.q[:, column]
            if not np.array_equal(p, q):
                losses = fftconvolve(losses, _losses(channel, p, q))
    middle = (len(losses) - 1) // 2
    grid = (np.arange(len(losses)) - middle) * _LOSS
    return float(np.sum(losses * np.maximum(0.0, -np.expm1(np.minimum(epsilon - grid, 0.0)))))


def _gaussian(shift: float, epsilon: float) -> float:
    if shift == 0:
        return 0.0
    above = norm.cdf(shift / 2 - epsilon / shift)
    return float(above - math.exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift))


def _losses(channel: Channel, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The distribution, under P, of one step's privacy loss, on a grid and rounded toward minus infinity."""
    axes = [
        noise.points(
            np.concatenate([p[:, k], q[:, k]]), _POINTS if len(channel.noise) == 1 else _PLANE[noise.mechanism]
        )
        for k, noise in enumerate(channel.noise)
    ]
    density_p, density_q = (_mixture(channel, means, axes) for means in (p, q))
    mass = density_p * math.prod(points[1] - points[0] for points in axes)
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.where(mass > 0, np.log(density_p) - np.log(density_q), 0.0)
    steps = np.floor(np.clip(loss, -_LARGEST, _LARGEST) / _LOSS).astype(int)
    size = int(_LARGEST / _LOSS)
    found = np.bincount((steps + size).reshape(-1), mass.reshape(-1), minlength=2 * size + 1)
    return found * 0.999999 / max(1.0, found.sum())  # never more than one


def _mixture(channel: Channel, means: np.ndarray, axes: list[np.ndarray]) -> np.ndarray:
    values, back = np.unique(np.round(means, 12), axis=0, return_inverse=True)
    weights = np.bincount(back.reshape(-1), weights=channel.chances)
    seen = [noise.density(points - values[:, k, None]) for k, (noise, points) in enumerate(zip(channel.noise, axes))]
    return weights @ seen[0] if len(seen) == 1 else (weights[:, None] * seen[0]).T @ seen[1]
