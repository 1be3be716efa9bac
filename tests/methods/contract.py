"""What every method must satisfy, as functions that raise AssertionError: run on all registered methods, sound and
printed, and on broken ones that must fail."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.methods.base import Method
from sottovoce.methods.dp_grid import DpGrid
from sottovoce.optimisers import Adam
from sottovoce.privacy.sampling import Full, Poisson
from sottovoce.runtime.array import ArrayPlace
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import lay_out
from sottovoce.runtime.mesh import MeshPlace
from sottovoce.runtime.place import Place
from sottovoce.runtime.result import Result
from sottovoce.runtime.threads import ThreadPlace

AGENTS, RECORDS, STEPS = 4, 12, 2


@dataclass(frozen=True)
class Case:
    """A quadratic problem with common curvature and its solution in closed form."""

    problem: Any
    parts: list[Any]
    solution: tuple[Any, ...]


def _records(seed: int, agents: int = AGENTS) -> list[dict[str, np.ndarray]]:
    """Two vectors a record; the agents' means differ."""
    rng = np.random.default_rng(seed)
    return [
        {name: (rng.normal(size=(RECORDS, 3)) * 0.3 + rng.normal(size=3)).astype(np.float32) for name in ("a", "b")}
        for _ in range(agents)
    ]


def _means(parts: list[dict[str, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.mean([part[name].mean(axis=0) for part in parts], axis=0) for name in ("a", "b"))


def _tree(vector: Any) -> dict[str, Any]:
    """A tree of a scalar and a vector: methods must not care."""
    return {"first": vector[0], "rest": (vector[1:],)}


def _flat(tree: dict[str, Any]) -> jax.Array:
    return jnp.concatenate([jnp.reshape(tree["first"], 1), tree["rest"][0]])


@cache  # one problem object, so that compiled programs are shared
def minimize() -> Case:
    parts = _records(0)
    a, _ = _means(parts)
    problem = sv.Minimize(
        lambda x, r: 0.25 * jnp.sum((_flat(x) - r["a"]) ** 2),
        x0=_tree(jnp.zeros(3)),
        public=lambda x: 0.25 * jnp.sum(_flat(x) ** 2),
    )
    return Case(problem, parts, (_tree(a / 2),))


@cache
def minmax() -> Case:
    """Gradients x + y - a and x - y - b (with half of each quadratic public): the saddle is ((a+b)/2, (a-b)/2)."""
    parts = _records(1)
    a, b = _means(parts)

    def loss(x: Any, y: Any, r: Any) -> jax.Array:
        u, v = _flat(x), _flat(y)
        return 0.25 * u @ u + u @ v - 0.25 * v @ v - r["a"] @ u - r["b"] @ v

    def public(x: Any, y: Any) -> jax.Array:
        u, v = _flat(x), _flat(y)
        return 0.25 * u @ u - 0.25 * v @ v

    problem = sv.MinMax(loss, _tree(jnp.zeros(3)), _tree(jnp.zeros(3)), public=public)
    return Case(problem, parts, (_tree((a + b) / 2), _tree((a - b) / 2)))


@cache
def bilevel(levels: bool = False) -> Case:
    """Lower: y*(x) = x + a. Upper: |y - b|^2 / 2 + |x|^2 / 2, so x* = (b - a) / 2 and y* = (a + b) / 2."""
    parts = _records(2)
    a, b = _means(parts)
    problem = sv.Bilevel(
        upper=lambda x, y, r: 0.5 * jnp.sum((_flat(y) - r["b"]) ** 2),
        lower=lambda x, y, r: 0.25 * jnp.sum((_flat(y) - _flat(x) - 2 * r["a"]) ** 2),
        x0=_tree(jnp.zeros(3)),
        y0=_tree(jnp.zeros(3)),
        public_upper=lambda x, y: 0.5 * jnp.sum(_flat(x) ** 2),
        public_lower=lambda x, y: 0.25 * jnp.sum((_flat(y) - _flat(x)) ** 2),
    )
    solution = (_tree((b - a) / 2), _tree((a + b) / 2))
    return Case(problem, [sv.data.Levels(part, part) for part in parts] if levels else parts, solution)


CASES: dict[type, Callable[[], Case]] = {sv.Minimize: minimize, sv.MinMax: minmax, sv.Bilevel: bilevel}


@cache
def grid() -> Case:
    """As `bilevel`, with b - a = 1 on average: x* = 1/2 in every coordinate, where a grid can find it."""
    whole = bilevel()
    a, b = _means(whole.parts)
    parts = [{"a": part["a"], "b": (part["b"] - b + a + 1).astype(np.float32)} for part in whole.parts]
    return Case(whole.problem, parts, (_tree(np.full(3, 0.5)), _tree(a + 0.5)))


def case_for(method: Method) -> Case:
    return grid() if isinstance(method, DpGrid) else CASES[method.solves[0]]()


def network_for(method: Method, agents: int = AGENTS) -> sv.networks.Network:
    if "pull" in method.over:
        return directed(agents)
    return sv.networks.single() if agents == 1 else sv.networks.ring(agents)


def directed(agents: int) -> sv.networks.Network:
    """A directed cycle that pulls and one that pushes the other way, with a chord: both balanced or nearly so."""
    if agents == 1:
        return sv.networks.directed(np.zeros((1, 1)), np.zeros((1, 1)))
    pull, push = np.zeros((agents, agents)), np.zeros((agents, agents))
    for i in range(agents):
        pull[i, (i + 1) % agents] = 1.0
        push[i, (i - 1) % agents] = 1.0
    return sv.networks.directed(pull, push)


def noisy(method: Method) -> Method:
    """The same with clipping, noise, and Poisson batches in place of full ones."""

    def release(r: sv.Release) -> sv.Release:
        return dataclasses.replace(sv.Release(clip=4.0, noise=0.05, mechanism=r.mechanism), name=r.name)

    louder = method.map_releases(release)
    poisson = {
        field.name: Poisson(RECORDS // 2)
        for field in dataclasses.fields(louder)
        if isinstance(getattr(louder, field.name), Full)
    }
    return dataclasses.replace(louder, **poisson)


def run(method: Method, case: Case, steps: int, **options: Any) -> Result:
    agents = len(case.parts)
    return sv.run(
        case.problem, case.parts, method, network=network_for(method, agents), steps=steps, every=steps, **options
    )


def check_converges(method: Method, case: Case, steps: int = 600, tolerance: float = 1e-2) -> None:
    """Without noise, the agents' average reaches the closed form and the agents agree.

    Adam weighs agents by the size of their own gradients: with it all agents have all records.
    """
    if any(isinstance(getattr(method, field.name), Adam) for field in dataclasses.fields(method)):
        pooled = jax.tree.map(lambda *leaves: np.concatenate(leaves), *case.parts)
        case = dataclasses.replace(case, parts=[pooled] * AGENTS)
        assert all(np.max(np.abs(leaf)) > 0.05 for leaf in jax.tree.leaves(case.solution)), "the start must be wrong"
    result = run(method, case, steps)
    reached = (result.x,) if result.y is None else (result.x, result.y)
    for got, wanted in zip(jax.tree.leaves(reached), jax.tree.leaves(case.solution), strict=True):
        np.testing.assert_allclose(got, wanted, atol=tolerance)
    assert result.history["consensus"][-1] <= 0.1 * spread(case) + 1e-6, "the agents did not move towards each other"


def spread(case: Case) -> float:
    """How far apart the agents' own data are: what consensus must beat."""
    means = np.array([np.concatenate([part[name].mean(axis=0) for name in ("a", "b")]) for part in case.parts])
    return float(np.sum((means - means.mean(axis=0)) ** 2) / len(means))


def check_equal_agents_are_one(method: Method, case: Case) -> None:
    """Agents with the same records do what one agent with these records does."""
    same = dataclasses.replace(case, parts=[case.parts[0]] * AGENTS)
    alone = dataclasses.replace(case, parts=[case.parts[0]])
    many, one = run(method, same, 12), run(method, alone, 12)
    _close((many.x, many.y), (one.x, one.y), 1e-4)


def check_private_is_accounted(method: Method, case: Case) -> None:
    """The account of a stand-in is that of the real problem; more noise costs less, no noise is infinite."""
    loud, network = noisy(method), network_for(method)
    clinics = sv.Population([RECORDS] * AGENTS)
    stand_in = sv.account(loud, clinics, steps=5, network=network)
    real = sv.account(loud, case.parts, steps=5, network=network, problem=case.problem)
    assert stand_in.events == real.events
    assert stand_in.per_agent == real.per_agent
    assert real.events, "a method that reads records must show in the account"
    louder = sv.account(loud.louder(4.0), clinics, steps=5, network=network)
    if stand_in.design == "sound":
        assert np.isfinite(stand_in.epsilon)
        assert louder.epsilon < stand_in.epsilon
        assert sv.account(loud, clinics, steps=10, network=network).epsilon > stand_in.epsilon
    assert sv.account(method, clinics, steps=5, network=network).epsilon == np.inf


def check_threads_equal_vectorised(method: Method, case: Case) -> None:
    """A step is one agent's code: agents that hold only their own records, and only talk, do the same."""
    _close(_final(noisy(method), case, 7), _final(noisy(method), case, 7, ThreadPlace.simulated))


def check_sharded_equals_vectorised(method: Method, case: Case) -> None:
    """Spread over two devices, each with its own agents' records."""

    def mesh(*given: Any) -> Place:
        return MeshPlace(*given, devices=2)

    _close(_final(noisy(method), case, 7), _final(noisy(method), case, 7, mesh))


def check_noise_is_drawn(method: Method, case: Case) -> None:
    """Another seed gives another run, the same seed the same bytes."""
    once, again, other = (_final(noisy(method), case, seed) for seed in (1, 1, 2))
    for a, b in zip(once, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(np.any(np.asarray(a) != np.asarray(b)) for a, b in zip(once, other))


CHECKS = [
    check_converges,
    check_equal_agents_are_one,
    check_private_is_accounted,
    check_threads_equal_vectorised,
    check_sharded_equals_vectorised,
    check_noise_is_drawn,
]


def _final(method: Method, case: Case, seed: int, place: Callable[..., Place] = ArrayPlace) -> list[Any]:
    account = account_of(method, case.parts, STEPS, network_for(method), problem=case.problem)
    made = place(account.trace, case.problem, lay_out(case.parts), root_key(seed), 1024)
    return made.advance(made.begin(), 0, STEPS)[0]


def _close(a: list[Any], b: list[Any] | tuple[Any, ...], tolerance: float = 1e-5) -> None:
    for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(p), np.asarray(q), rtol=tolerance, atol=tolerance)
