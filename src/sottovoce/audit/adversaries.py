"""Build what an audit attacks: a worst-case problem, neighbouring data sets D and D', and runs under each of them.

Example: agent 0 has ten records, and D' is D without its record 0. `worst_case` makes both data sets and a problem in
which that record is as visible as it can be. `scores` runs the method on one of them and returns, for each run, how
much more likely its messages are under D than under D' (see `Observer`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.accounting.trace import trace
from sottovoce.audit.observer import Observer, Watch
from sottovoce.data.parties import as_part
from sottovoce.data.parts import Levels
from sottovoce.data.sealed import Sealed
from sottovoce.methods.agent import Known
from sottovoce.methods.base import Method
from sottovoce.networks import Network
from sottovoce.privacy.accountant import Adjacency
from sottovoce.problems import Bilevel, Minimize, MinMax
from sottovoce.runtime import array
from sottovoce.runtime.array import ArrayAnswers, SealedRecords, Spec
from sottovoce.runtime.interpreter import Answer, play, walk
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import Layout, alone, lay_out
from sottovoce.runtime.lone_agent import LoneAnswers, NoiseSource
from sottovoce.runtime.threads import ThreadPlace
from sottovoce.trees import Tree

_CHUNK = 1024  # records that are treated at once


@dataclass(frozen=True)
class Target:
    """Name the attacked record: the agent that holds it, its record set, and its row there."""

    agent: int = 0
    level: str = "records"
    row: int = 0


@dataclass(frozen=True)
class Instance:
    """Hold a problem, the data sets D and D', and the record in which they differ."""

    problem: Any
    layout: Layout
    under_d: SealedRecords
    under_other: SealedRecords
    target: Target

    def known(self, network: Network, steps: int) -> Known:
        """Return what everybody knows of a run on this instance."""
        shapes = {
            level: jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), sealed.unseal())
            for level, sealed in self.under_d.items()
        }
        return Known(self.layout.population, network, steps, shapes)


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
        both = zip(by_level["upper"], by_level["lower"])
        parts: list[Any] = [Levels(as_part(up), as_part(low), disjoint=True) for up, low in both]
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
    records, counts = dict(layout.sealed), layout.population.counts
    if target.level not in records:
        raise ValueError(f"there is no record set {target.level!r}: choose one of {', '.join(records)}")
    if not 0 <= target.agent < len(counts[target.level]) or not 0 <= target.row < counts[target.level][target.agent]:
        raise ValueError(
            f"there is no record {target.row} of agent {target.agent} ({target.level}): give an agent and a row "
            "that exist"
        )
    sealed = records[target.level]
    entry = sealed.order[int(sealed.starts[target.agent]) + target.row]
    if adjacency == "replace-one" and replacement is None:
        raise ValueError("under replace-one an audit needs the record that takes the other's place: give replacement=")
    if adjacency == "zero-out" and not any(_floating(leaf) for leaf in jax.tree.leaves(sealed.unseal())):
        raise ValueError("records of whole numbers cannot be marked as absent: audit with adjacency='replace-one'")

    if adjacency == "replace-one":
        pool = jax.tree.map(lambda leaf, value: leaf.at[entry].set(value), sealed.unseal(), replacement)
        changed = sealed.with_pool(pool)
    else:
        changed = without(sealed, entry)
    return Instance(problem, layout, records, {**records, target.level: changed}, target)


def without(sealed: Sealed, entries: jax.Array) -> Sealed:
    """Return the set with the records at these rows of its pool marked as absent: not finite."""
    pool = jax.tree.map(lambda leaf: leaf.at[entries].set(jnp.nan) if _floating(leaf) else leaf, sealed.unseal())
    return sealed.with_pool(pool)


def _floating(leaf: jax.Array) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def worst_case(method: Method, sizes: Mapping[str, np.ndarray], target: Target, adjacency: Adjacency) -> Instance:
    """Build the worst case with one canary: present or absent (zero-out), or with opposite signs (replace-one)."""
    problem, layout = canaries(method, sizes, target)
    opposite = -jnp.ones(1) if adjacency == "replace-one" else None
    return neighbours(problem, layout, target, adjacency, opposite)


def scores(
    instance: Instance, method: Method, network: Network, steps: int, each: int = 0
) -> Callable[[jax.Array, SealedRecords], jax.Array]:
    """Return `score(seeds, data)`: for each seed, run the method on `data` and return the observer's two scores.

    The run with seed s is the one that ``sv.run(seed=s)`` makes on that data. With `each`, two scores per canary.
    """
    target = instance.target
    spec = Spec(trace(method, instance.problem, instance.known(network, steps)), _CHUNK)
    indices = jnp.arange(instance.layout.population.parties, dtype=jnp.int32)
    first, step = spec.trace.init, spec.trace.step

    def trial(data: SealedRecords, seed: Any) -> jax.Array:
        root = root_key(seed)

        def observer(index: jax.Array, phase: str, t: jax.Array) -> Observer:
            def own(records: SealedRecords) -> SealedRecords:
                return {level: sealed.of(index) for level, sealed in records.items()}

            watch = Watch(target.level, target.row, (own(instance.under_d), own(instance.under_other)), each)
            return Observer(ArrayAnswers(spec, array.moment(spec, index, phase, t, own(data), root)), watch)

        def begin(index: jax.Array) -> tuple[Any, jax.Array]:
            watching = observer(index, "init", jnp.zeros((), jnp.int32))
            return play(walk(first.jaxpr, first.consts, [index], compiled=False), watching), watching.settled()

        def advance(carry: tuple[Any, jax.Array], t: jax.Array) -> tuple[tuple[Any, jax.Array], None]:
            def one(state: Any, index: jax.Array) -> tuple[Any, jax.Array]:
                watching = observer(index, "step", t)
                moved = play(walk(step.jaxpr, step.consts, [index, t, *state], compiled=False), watching)
                return moved, watching.settled()

            state, total = carry
            state, more = jax.vmap(one)(state, indices)
            return (state, total + more), None

        started = jax.vmap(begin)(indices)
        (_, total), _ = jax.lax.scan(advance, started, jnp.arange(steps, dtype=jnp.int32))
        return total[target.agent]

    return jax.jit(lambda seeds, data: jax.vmap(partial(trial, data))(seeds))


def thread_scores(
    instance: Instance, method: Method, network: Network, steps: int, noise: NoiseSource, each: int = 0
) -> Callable[[jax.Array, SealedRecords], np.ndarray]:  # fmt: skip
    """Return the scores of runs in which every agent lives on a thread: one after the other, slowly.

    With discrete noise a seed fixes nothing: coins and noise come from the operating system.
    """
    target, counts = instance.target, instance.layout.population.counts
    traced = trace(method, instance.problem, instance.known(network, steps))

    def own(data: SealedRecords, me: int) -> SealedRecords:
        return {level: alone(sealed, me, int(counts[level][me])) for level, sealed in data.items()}

    hypotheses = (own(instance.under_d, target.agent), own(instance.under_other, target.agent))

    def trial(data: SealedRecords, seed: int) -> np.ndarray:
        watching: list[Observer] = []

        def observe(answers: LoneAnswers) -> Answer:
            if answers.me != target.agent:
                return answers
            watching.append(Observer(answers, Watch(target.level, target.row, hypotheses, each)))
            return watching[-1]

        agents = range(instance.layout.population.parties)
        records, roots = [own(data, me) for me in agents], [root_key(seed) for _ in agents]
        place = ThreadPlace(traced, instance.problem, records, roots, _CHUNK, noise, observe=observe)
        place.advance(place.begin(), 0, steps)
        return np.sum([np.asarray(observer.settled()) for observer in watching], axis=0)

    return lambda seeds, data: np.stack([trial(data, int(seed)) for seed in np.asarray(seeds)])
