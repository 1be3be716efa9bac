"""An exact adversary for tiny populations: it finds accounts that are too small.

Up to 6 people have one record or several, in one level or in two, for up to 3 steps. Records are at their worst
(0, +clip or -clip). Every batch of a sampling's exact law is passed through the package's own layout and gate, without
noise, which gives the means that could be behind an output. An output's density under D and under D' is then a mixture
over batches, and the privacy loss is integrated numerically. Losses are rounded toward minus infinity, so what is found
is never more than the truth: if it is more than what `account` states, the account is wrong.

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

from .people import PEOPLE

CLIP = 1.0
WORST = (0.0, CLIP, -CLIP)
_POINTS = 1201  # of the grid over one output
_LOSS = 4e-3  # step of the grid over privacy losses
_LARGEST = 10.0  # loss that is told apart
_ROOM = 32  # batches are passed through the gate so many at a time, in one compiled program

Pattern = Literal["one", "twice", "apart", "joint", "nested"]


@dataclass(frozen=True)
class World:
    """One configuration: a sampling, a mechanism, who holds what, and what is released of a batch.

    `pattern`: of one loss "one" release per batch, or "twice"; of two losses each "apart", both "joint" under one
    noise, or "nested": the lower one alone and then both.
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
            method = Repeated(release, self.sampling, 2 if self.pattern == "twice" else 1)
            problem = ONE
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
    """Releases one gradient per step, or several from one batch."""

    gradient: sv.Release
    sampling: Sampling
    times: int

    def init(self, problem: Any, agent: Any) -> Any:
        return {"x": jnp.asarray(problem.x0)}

    def step(self, problem: Any, state: Any, agent: Any) -> Any:
        batch = agent.sample(self.sampling)
        found = [agent.release(self.gradient, problem.loss, at=state["x"], batch=batch) for _ in range(self.times)]
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


class Channel(NamedTuple):
    """One output per step that does not depend on the others: how it may come about, and what is behind it."""

    chances: np.ndarray  # of each outcome
    p: np.ndarray  # means under D: (outcomes, steps)
    q: np.ndarray  # means under D'
    times: int  # that it is released


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
        ways.append(tuple(tuple(sorted(zip(map(tuple, means.tolist()), channel.chances))) for means in moved))
    return min(ways)


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
        laws = {level: world.sampling.law(int(n[0]), self.turns) for level, n in sizes.items()}
        self.batches = {level: np.array([batch for batch, _ in law], np.float32) for level, law in laws.items()}
        self.chances = {level: np.array([float(chance) for _, chance in law]) for level, law in laws.items()}
        self.divided_by = {
            level: np.array([float(world.sampling.denominator(int(n[0]), t)) for t in range(self.turns)])
            for level, n in sizes.items()
        }
        self.release = next(charge.release for charge in account.charges)
        asked = [line.params["asked"] for line in account.trace.step.eqns if line.primitive is equations.release_p]
        self.asked: dict[
            tuple[tuple[str, str], ...], int
        ] = {}  # the functions of an equation, and how often it is there
        for one in asked:
            key = tuple((function.level, _known(function)) for function in one.functions)
            self.asked[key] = self.asked.get(key, 0) + 1
        levels = [level for key in self.asked for level, _ in key]
        shares = len(levels) > len(set(levels))  # equations that are not alike read one batch
        coins = any(len(chances) > 1 for chances in self.chances.values())
        if (world.mechanism == "laplace" and max(self.asked.values()) > 1) or (shares and coins):
            raise NotImplementedError("outputs that depend on each other have no single sufficient number")

    def channels(self, first: np.ndarray, second: np.ndarray) -> list[Channel]:
        return [self._channel(key, times, first, second) for key, times in self.asked.items()]

    def _channel(
        self, functions: tuple[tuple[str, str], ...], times: int, first: np.ndarray, second: np.ndarray
    ) -> Channel:
        chances, p, q = np.ones(1), np.zeros((1, self.turns)), np.zeros((1, self.turns))
        for level, function in functions:  # the batches of two levels are independent
            one, other = (self._means(level, function, values) for values in (first, second))
            p, q = (np.reshape(a[:, None] + b, (-1, self.turns)) for a, b in ((p, one), (q, other)))
            chances = np.outer(chances, self.chances[level]).reshape(-1)
        return Channel(chances, p, q, times)

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
        release = sv.Release(self.release.clip, 1.0, self.release.mechanism)
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
    if all(len(channel.chances) == 1 for channel in channels) and world.mechanism == "gaussian":  # the closed form
        squares = [
            channel.times * world.steps / channel.p.shape[1] * np.sum((channel.p - channel.q) ** 2)
            for channel in channels
        ]
        return _gaussian(math.sqrt(sum(squares)) / world.noise, epsilon)
    losses = np.ones(1)
    for channel in channels:
        for t in range(world.steps):
            column = t % channel.p.shape[1]
            p, q = channel.p[:, column], channel.q[:, column]
            if not np.array_equal(p, q):
                losses = fftconvolve(losses, _losses(world, channel, p, q))
    middle = (len(losses) - 1) // 2
    grid = (np.arange(len(losses)) - middle) * _LOSS
    return float(np.sum(losses * np.maximum(0.0, -np.expm1(np.minimum(epsilon - grid, 0.0)))))


def _gaussian(shift: float, epsilon: float) -> float:
    if shift == 0:
        return 0.0
    above = norm.cdf(shift / 2 - epsilon / shift)
    return float(above - math.exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift))


def _losses(world: World, channel: Channel, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The distribution, under P, of one step's privacy loss, on a grid and rounded toward minus infinity."""
    spread = 10 * world.noise if world.mechanism == "gaussian" else 18 * world.noise
    points = np.linspace(min(p.min(), q.min()) - spread, max(p.max(), q.max()) + spread, _POINTS)
    density_p, density_q = (_mixture(world, channel, means, points) for means in (p, q))
    mass = density_p * (points[1] - points[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.where(mass > 0, np.log(density_p) - np.log(density_q), 0.0)
    steps = np.floor(np.clip(loss, -_LARGEST, _LARGEST) / _LOSS).astype(int)
    size = int(_LARGEST / _LOSS)
    found = np.bincount(steps + size, mass, minlength=2 * size + 1)
    return found * 0.999999 / max(1.0, found.sum())  # never more than one


def _mixture(world: World, channel: Channel, means: np.ndarray, points: np.ndarray) -> np.ndarray:
    values, back = np.unique(np.round(means, 12), return_inverse=True)
    weights = np.bincount(back.reshape(-1), weights=channel.chances)
    off = points - values[:, None]
    if world.mechanism == "gaussian":  # the mean of several releases has less noise, and tells as much
        scale = world.noise / math.sqrt(channel.times)
        return weights @ np.exp(-0.5 * (off / scale) ** 2) / (scale * math.sqrt(2 * math.pi))
    return weights @ np.exp(-np.abs(off) / world.noise) / (2 * world.noise)
