"""Run all agents on one machine as one array: `vmap` over agents, `scan` over steps, one compiled program.

`sottovoce.runtime.mesh` spreads the same program over devices.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from sottovoce.accounting.content import KEPT
from sottovoce.accounting.trace import Trace
from sottovoce.data.sealed import Sealed
from sottovoce.methods import equations
from sottovoce.runtime import answers, mixing
from sottovoce.runtime.answers import BatchRows, Moment
from sottovoce.runtime.blocks import CACHE, in_blocks
from sottovoce.runtime.interpreter import play, walk
from sottovoce.runtime.layout import Layout
from sottovoce.runtime.place import NEVER, WholePlace, public
from sottovoce.runtime.shared_program import shared
from sottovoce.runtime.spread import Spread, along_edges
from sottovoce.trees import Tree

LOOK = 16  # steps between two looks at whether the state is finite
Array = jax.Array
SealedRecords = Mapping[str, Sealed]


@dataclass(frozen=True)
class Spec:
    """State what a compiled run depends on besides arrays. Equal specs share one compiled program, for every seed."""

    trace: Trace  # compared by identity: `trace` returns the same one where the same is traced
    chunk: int
    spread: Spread | None = None  # set where agents are spread over devices


@dataclass(frozen=True)
class ArrayAnswers:
    """Answer equations inside the compiled program: an agent is one row of the array."""

    spec: Spec
    moment: Moment
    compiled: ClassVar[bool] = False  # what lies between two stops becomes part of the surrounding program

    def __call__(self, equation: JaxprEqn, values: list[Any]) -> list[Any]:
        """Return an equation's results."""
        kind, moment = equation.primitive, self.moment
        if kind is not equations.mix_p and equation.params.get("given"):
            *values, scales = values
            step = moment.t if len(scales) > 1 else 0
            moment = replace(moment, scale=scales[step, moment.index if scales.shape[1] > 1 else 0])
        if kind is equations.sample_p:
            return [answers.draw(moment, equation)]
        if kind is equations.release_p or kind is equations.mean_p:
            return in_cache(moment, equation, values)
        if kind is equations.tell_p:
            return answers.noised(moment, equation, values)
        if kind is equations.mix_p:
            return self.mix(equation, values)
        if kind is equations.loop_p:
            return self.loop(equation, values)
        return [moment.named(equation)]  # a key

    def mix(self, equation: JaxprEqn, values: list[Any]) -> list[Any]:
        """Return weighted sums along the array."""
        over, others_only = equation.params["over"], equation.params["others_only"]
        network, spread = self.moment.known.network, self.spec.spread
        if equation.params.get("given"):
            return mixing.by_matrix(values[:-1], self.moment.index, values[-1])
        if spread is not None:
            return along_edges(network, over, others_only, spread)(values, self.moment.index)
        return mixing.vectorised(network, over, others_only)(values, self.moment.index)

    def loop(self, equation: JaxprEqn, values: list[Any]) -> list[Any]:
        """Run a loop's turns, compiled once whatever their number."""
        body, consts = equation.params["body"], equation.params["consts"]

        def turn(k: Any, carry: list[Any]) -> list[Any]:
            inside = self.inside(equation, k)
            return play(walk(body, (), [*values[:consts], *carry], compiled=False), inside)

        return self.repeat(equation.params["times"], turn, list(values[consts:]))

    def inside(self, loop: JaxprEqn, turn: Any) -> "ArrayAnswers":
        """Return the answers inside one turn of a loop."""
        return ArrayAnswers(self.spec, self.moment.inside(loop, turn))

    def repeat(self, times: int, turn: Callable[[Any, Any], Any], carry: Any) -> Any:
        """Return the carry after all turns."""
        return jax.lax.fori_loop(0, times, turn, carry)


def in_cache(moment: Moment, equation: JaxprEqn, values: list[Any]) -> list[Any]:
    """Return the leaves of a `release` or `mean`; when vectorised, a block of agents at a time.

    Memory does not grow with the agents, and noise is added to what is still in the cache.
    """
    batch, *operands = values

    def one(rows: Any, operands: list[Any], index: Any, scale: Any, keys: Any, records: SealedRecords) -> list[Any]:
        now = replace(moment, index=index, scale=scale, key=keys[0], every=keys[1], records=records)
        mean = answers.mean(now, equation, [BatchRows(rows, batch.sampling), *operands])
        noisy = equation.primitive is equations.release_p
        return jax.tree.leaves(answers.noised(now, equation, mean) if noisy else mean)

    levels, counts = {f.level for f in equation.params["asked"].functions}, moment.known.population.counts
    held = {level: min(moment.chunk, batch.sampling.usual(counts[level])) for level in levels}
    size = sum(moment.records[level].record_bytes * rows for level, rows in held.items())
    used = {level: moment.records[level] for level in levels}
    keys = moment.key, moment.every if equation.params["release"].law.reaches else None
    return in_blocks(one, max(1, CACHE // size))(batch.rows, operands, moment.index, moment.scale, keys, used)


def moment(spec: Spec, index: Any, phase: str, t: Any, records: SealedRecords, root: Array) -> Moment:
    """Return one agent's moment; `records` are sealed sets whose `starts` is this agent's."""
    known = spec.trace.known
    return Moment.of(known, root, index, phase, t, records, spec.chunk)


def _shares(spec: Spec, indices: Array, records: SealedRecords) -> dict[str, Tree]:
    """Return each agent's records as an array of its own, where that costs nothing (else None)."""
    sizes = {level: set(counts.tolist()) for level, counts in spec.trace.known.population.counts.items()}
    return {
        level: sealed.shares(indices.shape[0], min(sizes[level])) if len(sizes[level]) == 1 else None
        for level, sealed in records.items()
    }


def init(
    spec: Spec, indices: Array, starts: Mapping[str, Array], records: SealedRecords, roots: Array,
    numbers: list[Any] | None = None,
) -> list[Array]:  # fmt: skip
    """Return the leaves of the agents' states before the first step, stacked; `numbers` replace those of the trace."""
    first = spec.trace.init
    consts = first.consts if numbers is None else numbers

    def one(index: Array, starts: Mapping[str, Array], shares: Any, root: Array) -> list[Array]:
        own = {level: sealed.starting(starts[level], shares[level]) for level, sealed in records.items()}
        answer = ArrayAnswers(spec, moment(spec, index, "init", jnp.int32(0), own, root))
        return play(walk(first.jaxpr, consts, [index], compiled=False), answer)

    return _for_each(spec, one)(indices, starts, _shares(spec, indices, records), roots)


def advance(
    spec: Spec, count: int, state: list[Array], first: Array, indices: Array, starts: Mapping[str, Array],
    records: SealedRecords, roots: Array, live: Array | None = None, every: int = LOOK,
    numbers: list[Any] | None = None,
) -> tuple[list[Array], Array]:  # fmt: skip
    """Return the state after `count` steps from step `first`, and when each public leaf was first seen not finite.

    The state is looked at after each `every` steps and after the last one, because a look costs a pass over it. `live`
    says which rows are agents; the others are not looked at. `numbers` replace the constants of the traced step.
    """
    step, shown = spec.trace.step, public(spec.trace)
    consts = step.consts if numbers is None else numbers
    shares = _shares(spec, indices, records)

    def step_from(start: Array, number: Array, state: list[Array]) -> list[Array]:
        t = start + number

        def one(own: list[Array], index: Array, starts: Mapping[str, Array], shares: Any, root: Array) -> list[Array]:
            mine = {level: sealed.starting(starts[level], shares[level]) for level, sealed in records.items()}
            answer = ArrayAnswers(spec, moment(spec, index, "step", t, mine, root))
            return play(walk(step.jaxpr, consts, [index, t, *own], compiled=False), answer)

        return _for_each(spec, one)(state, indices, starts, shares, roots)

    def stretch(carry: tuple[list[Array], Array], start: Array) -> tuple[tuple[list[Array], Array], None]:
        state, broken = carry
        steps = jnp.minimum(every, first + count - start)
        state = jax.lax.fori_loop(0, steps, partial(step_from, start), state)
        fine = jnp.array([jnp.all(_finite(state[leaf], live)) for leaf in shown], bool)
        return (state, jnp.where(fine, broken, jnp.minimum(broken, start + steps - 1))), None

    broken = jnp.full(len(shown), NEVER, jnp.int32)
    begins = first + jnp.arange(0, count, every, dtype=jnp.int32)
    return jax.lax.scan(stretch, (list(state), broken), begins)[0]


def _for_each(spec: Spec, one: Callable[..., list[Array]]) -> Callable[..., list[Array]]:
    """Return what computes all agents' results; a lone agent is not vectorised, which spares a third of the tracing."""
    if spec.trace.known.network.size > 1:
        return jax.vmap(one)
    return lambda *given: [leaf[None] for leaf in one(*jax.tree.map(lambda leaf: leaf[0], given))]


def _finite(leaf: Array, live: Array | None) -> Array:
    fine = jnp.isfinite(leaf)
    return fine if live is None else fine | ~live.reshape(-1, *[1] * (leaf.ndim - 1))


@lru_cache(maxsize=KEPT)
def compiled(spec: Spec) -> tuple[Callable[..., list[Array]], Callable[..., tuple[list[Array], Array]]]:
    """Return `init` and `advance` of a spec, compiled; the programs of old specs are forgotten (see `KEPT`)."""
    return jax.jit(partial(init, spec)), jax.jit(partial(advance, spec), static_argnums=0, static_argnames="every")


class ArrayPlace(WholePlace):
    """Run all agents as one compiled program."""

    def __init__(
        self, trace: Trace, problem: Any, layout: Layout, root: Array, chunk: int, share: bool = False
    ) -> None:
        super().__init__(trace, problem)
        self.chunk = chunk
        self.spec, self.first_numbers, self.numbers = self.form if share else (Spec(trace, chunk), None, None)
        self.indices = jax.device_put(np.arange(layout.population.parties, dtype=np.int32))
        self.records, self.roots = dict(layout.sealed), jnp.broadcast_to(root, self.indices.shape)
        self.starts = {level: sealed.starts for level, sealed in self.records.items()}

    @cached_property
    def form(self) -> tuple[Spec, list[Any] | None, list[Any] | None]:
        """Return the program that all runs of this form share, and the numbers of this one for `init` and `step`."""
        trace, (first_numbers, numbers) = shared(self.trace)
        return Spec(trace, self.chunk), first_numbers, numbers

    def begin(self) -> list[Array]:
        """Return the first state."""
        start, _ = compiled(self.spec)
        return start(self.indices, self.starts, self.records, self.roots, self.first_numbers)

    def advance(self, state: list[Array], first: int, count: int) -> tuple[list[Array], np.ndarray]:
        """Run `count` steps."""
        given = (np.int32(first), self.indices, self.starts, self.records, self.roots)
        _, move = compiled(self.spec)
        return pinned(lambda every: move(count, list(state), *given, every=every, numbers=self.numbers))


def pinned(run: Callable[[int], tuple[list[Array], Array]]) -> tuple[list[Array], np.ndarray]:
    """Return what `run(every)` returns; if the state broke, run again and look after each step to find the first."""
    moved, broken = run(LOOK)
    seen = np.asarray(broken)
    if seen.size and seen.min() < NEVER:
        moved, broken = run(1)
    return moved, np.asarray(broken)
