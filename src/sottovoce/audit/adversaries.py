"""Build what an audit attacks: a worst-case problem, neighbouring data sets D and D', and runs under each of them.

Example: agent 0 has ten records, and D' is D without its record 0. `worst_case` makes both data sets and a problem in
which that record is as visible as it can be. `scores` runs the method on one of them and returns, for each run, how
much more likely its messages are under D than under D' (see `Observer`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.audit.observer import Observer, Watch
from sottovoce.data.parts import Levels
from sottovoce.methods.base import Method
from sottovoce.networks import Network
from sottovoce.privacy.accountant import Adjacency
from sottovoce.problems import Bilevel, Minimize, MinMax
from sottovoce.runtime.agent import Agent, root_key, run_key, step_key
from sottovoce.runtime.store import Layout, Store, as_part, lay_out
from sottovoce.runtime.threads import Noise, ThreadPlace, agent_of, live, places
from sottovoce.runtime.vectorised import Stores, VectorPlace
from sottovoce.trees import Tree


@dataclass(frozen=True)
class Target:
    """The attacked record: the agent that holds it, its record set, and its row there."""

    agent: int = 0
    level: str = "records"
    row: int = 0


@dataclass(frozen=True)
class Instance:
    """A problem, the data sets D and D', and the record in which they differ."""

    problem: Any
    layout: Layout
    under_d: Stores
    under_other: Stores
    target: Target


def canaries(method: Method, sizes: Mapping[str, np.ndarray], target: Target, width: int = 1) -> tuple[Any, Layout]:
    """Build the worst case for a sound design: canary k's gradient is the whole clip, in a coordinate of its own.

    A canary is a record that is made to be as visible as possible. Losses are so steep that every release of a canary
    is clipped. The target's agent has canaries in its first `width` rows (a single canary: in the target's row); all
    other records are zero and contribute nothing.
    """
    steep = 1e3 * max([release.clip for release in method.releases() if np.isfinite(release.clip)], default=1.0)
    zero = jnp.zeros(width)
    problems: dict[type, Callable[[], Any]] = {
        Minimize: lambda: Minimize(lambda x, r: steep * jnp.sum(r * x), zero),
        MinMax: lambda: MinMax(lambda x, y, r: steep * jnp.sum(r * (x + y)), zero, zero),
        # The quadratic terms make a record of the lower level visible in second derivatives too.
        Bilevel: lambda: Bilevel(
            upper=lambda x, y, r: steep * jnp.sum(r * (x + y)),
            lower=lambda x, y, r: steep * jnp.sum(r * (y + y**2 / 2 + x * y)),
            x0=zero,
            y0=zero,
        ),
    }
    kind = next((kind for kind in method.solves if kind in problems), None)
    if kind is None:
        raise ValueError(f"there is no worst-case instance for {type(method).__name__}: give problem= and parts=")

    def records(level: str) -> list[np.ndarray]:
        made = [np.zeros((int(n), width), np.float32) for n in sizes[level]]
        if level == target.level:
            rows = np.arange(width) if width > 1 else np.array([target.row])
            made[target.agent][rows, np.arange(width)] = 1.0
        return made

    by_level = {level: records(level) for level in sizes}
    if target.level in ("upper", "lower"):
        parts: list[Any] = [Levels(as_part(up), as_part(low)) for up, low in zip(by_level["upper"], by_level["lower"])]
    else:
        parts = by_level["records"]
    return problems[kind](), lay_out(parts)


def neighbours(
    problem: Any, layout: Layout, target: Target, adjacency: Adjacency, replacement: Tree | None = None
) -> Instance:
    """Return D as laid out, and D' with the target's record replaced or removed.

    A removed record is marked by values that are not finite: the gate lets it contribute exactly zero. Every shape and
    every sampling coin stays the same, as zero-out adjacency demands.
    """
    stores = dict(layout.stores)
    if target.level not in stores:
        raise ValueError(f"there is no record set {target.level!r}; there are {', '.join(stores)}")
    if not 0 <= target.agent < layout.agents or not 0 <= target.row < layout.sizes[target.level][target.agent]:
        raise ValueError(f"there is no record {target.row} of agent {target.agent} ({target.level})")
    store = stores[target.level]
    entry = store.order[int(store.starts[target.agent]) + target.row]
    if adjacency == "replace-one" and replacement is None:
        raise ValueError("under replace-one an audit needs the record that takes the other's place: give replacement=")
    if adjacency == "zero-out" and not any(_floating(leaf) for leaf in jax.tree.leaves(store.pool)):
        raise ValueError("records of whole numbers cannot be marked as absent: audit with adjacency='replace-one'")

    if adjacency == "replace-one":
        pool = jax.tree.map(lambda leaf, value: leaf.at[entry].set(value), store.pool, replacement)
        changed = replace(store, pool=pool)
    else:
        changed = without(store, entry)
    return Instance(problem, layout, stores, {**stores, target.level: changed}, target)


def without(store: Store, entries: jax.Array) -> Store:
    """Return the store with the records at these rows of its pool marked as absent (not finite)."""
    pool = jax.tree.map(lambda leaf: leaf.at[entries].set(jnp.nan) if _floating(leaf) else leaf, store.pool)
    return replace(store, pool=pool)


def _floating(leaf: jax.Array) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def worst_case(method: Method, sizes: Mapping[str, np.ndarray], target: Target, adjacency: Adjacency) -> Instance:
    """Build the worst case with one canary: present or absent (zero-out), or with opposite signs (replace-one)."""
    problem, layout = canaries(method, sizes, target)
    opposite = -jnp.ones(1) if adjacency == "replace-one" else None
    return neighbours(problem, layout, target, adjacency, opposite)


def scores(
    instance: Instance, method: Method, network: Network, steps: int, chunk: int = 1024, each: int = 0
) -> Callable[[jax.Array, Stores], jax.Array]:
    """Return `score(seeds, data)`, which runs the method on `data` for each seed and returns the observer's two scores.

    The run with seed s is the one that ``sv.run(seed=s)`` makes on that data. With `each` there are two scores per
    canary.
    """
    layout, target = instance.layout, instance.target
    indices = jnp.arange(layout.agents, dtype=jnp.int32)

    def trial(data: Stores, seed: Any) -> jax.Array:
        root = root_key(seed)

        def observer(index: jax.Array, phase: str, t: jax.Array) -> Observer:
            def place(stores: Stores) -> VectorPlace:
                starts = {level: store.starts[index] for level, store in stores.items()}
                return VectorPlace(network, layout.sizes, steps, chunk, stores, starts)

            watch = Watch(target.level, target.row, (place(instance.under_d), place(instance.under_other)), each)
            return Observer(place(data), index, t, step_key(run_key(root, index), phase, t), (), watch)

        def begin(index: jax.Array) -> tuple[Any, jax.Array]:
            agent = observer(index, "init", jnp.zeros((), jnp.int32))
            return method.init(instance.problem, agent), agent.settled()

        def step(carry: tuple[Any, jax.Array], t: jax.Array) -> tuple[tuple[Any, jax.Array], None]:
            def one(state: Any, index: jax.Array) -> tuple[Any, jax.Array]:
                agent = observer(index, "step", t)
                return method.step(instance.problem, state, agent), agent.settled()

            state, total = carry
            state, more = jax.vmap(one)(state, indices)
            return (state, total + more), None

        started = jax.vmap(begin)(indices)
        (_, total), _ = jax.lax.scan(step, started, jnp.arange(steps, dtype=jnp.int32))
        return total[target.agent]

    return jax.jit(lambda seeds, data: jax.vmap(partial(trial, data))(seeds))


def thread_scores(
    instance: Instance, method: Method, network: Network, steps: int, noise: Noise, chunk: int = 1024, each: int = 0
) -> Callable[[jax.Array, Stores], np.ndarray]:
    """Do as `scores`, for runs in which every agent has its own thread. They run one after the other, so it is slow.

    With discrete noise a seed fixes nothing: coins and noise come from the operating system.
    """
    layout, target = instance.layout, instance.target

    def alone(data: Stores, me: int) -> Stores:
        return {level: _own(store, me, int(layout.sizes[level][me])) for level, store in data.items()}

    hypotheses = [alone(data, target.agent) for data in (instance.under_d, instance.under_other)]

    def trial(data: Stores, seed: int) -> np.ndarray:
        where = places([alone(data, me) for me in range(layout.agents)], layout.sizes, network, steps, chunk, noise)
        d, other = (replace(where[target.agent], stores=stores) for stores in hypotheses)
        watched: list[Observer] = []

        def handle(place: ThreadPlace, phase: str, t: int) -> Agent:
            plain = agent_of(place, phase, t, root_key(seed))
            if place.me != target.agent:
                return plain
            watch = Watch(target.level, target.row, (d, other), each)
            watched.append(Observer(place, plain.index, plain.t, plain._key, (), watch))
            return watched[-1]

        live(instance.problem, method, where, handle)
        return np.sum([np.asarray(observer.settled()) for observer in watched], axis=0)

    return lambda seeds, data: np.stack([trial(data, int(seed)) for seed in np.asarray(seeds)])


def _own(store: Store, agent: int, size: int) -> Store:
    """Return one agent's records out of a store that all agents share."""
    entries = slice(int(store.starts[agent]), int(store.starts[agent]) + size)
    rows = store.order[entries]
    filled = None if store.filled is None else store.filled[entries]
    pool = jax.tree.map(lambda leaf: leaf[rows.reshape(-1)], store.pool)
    order = jnp.arange(rows.size, dtype=jnp.int32).reshape(rows.shape)
    return Store(pool, order, filled, jnp.zeros(1, jnp.int32))
