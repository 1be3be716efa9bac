"""All agents on one machine (or a mesh of devices) as one array: `vmap` over agents, `scan` over steps, one program."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from sottovoce.methods.base import Method, State
from sottovoce.networks import Network
from sottovoce.privacy.sampling import Rows
from sottovoce.runtime import mixing
from sottovoce.runtime.agent import Agent, Place, RecordFn, root_key, run_key, step_key
from sottovoce.runtime.store import Layout, Store
from sottovoce.trees import Private, Tree

AXIS = "agents"  # the mesh axis that agents are spread over
NEVER = np.iinfo(np.int32).max
_CACHE = 4 * 2**20  # bytes of records that are worked on side by side
Array = jax.Array
Starts = dict[str, Array]  # agents' first rows by level
Stores = dict[str, Store]


@dataclass(frozen=True)
class VectorPlace(Place):
    """One row of the array of agents."""

    stores: dict[str, Store]
    starts: dict[str, jax.Array]  # this agent's first row in each store
    mesh_axis: str | None = None

    def gather(self, level: str, rows: jax.Array) -> Tree:
        """The agent's rows, out of the pool that all share."""
        return self.stores[level].gather(self.starts[level], rows)

    def lift(self, level: str, fn: RecordFn) -> RecordFn:
        """As the store holds records or units."""
        return self.stores[level].lift(fn)

    def mix(self, over: str, value: Tree, index: jax.Array, others_only: bool) -> Tree:
        """A weighted sum along the array."""
        return mixing.vectorised(self.network, over, others_only, self.mesh_axis)(value, index)

    def read(self, level: str, fn: Callable[[Tree, Rows], Tree], at: Tree, rows: Rows) -> Tree:
        """Some agents after others where all at once would not fit the cache: memory does not grow with the agents."""
        leaves = jax.tree.leaves(self.stores[level].pool)
        width = self.stores[level].order.shape[1:]  # the rows of a unit
        record = sum(leaf.nbytes // leaf.shape[0] for leaf in leaves) * math.prod(width)
        return _in_blocks(fn, max(1, _CACHE // (record * rows[0].shape[0])))(at, rows)

    def loop(self, times: int, body: Callable[[Tree, jax.Array], Tree], carry: Tree) -> Tree:
        """Compiled once, whatever the number of turns."""
        return jax.lax.fori_loop(0, times, lambda k, c: body(c, k), carry)


def _in_blocks(fn: Callable[..., Tree], block: int) -> Callable[..., Tree]:
    """`fn`, of which at most `block` run side by side when it is vectorised."""

    def call(*args: Tree) -> Tree:
        flat, structure = jax.tree.flatten(args)
        # what fn closes over may be vectorised too: make it an argument
        closed, out = jax.make_jaxpr(lambda *flat: fn(*jax.tree.unflatten(structure, flat)), return_shape=True)(*flat)

        @custom_vmap
        def apply(*values: Array) -> list[Array]:
            return jax.core.eval_jaxpr(closed.jaxpr, values[: len(closed.consts)], *values[len(closed.consts) :])

        @apply.def_vmap
        def over_agents(size: int, batched: list[bool], *values: Array) -> tuple[list[Array], list[bool]]:
            whole = [value for value, many in zip(values, batched) if not many]

            def one(own: list[Array]) -> list[Array]:
                mine, shared = iter(own), iter(whole)
                merged = [next(mine) if many else next(shared) for many in batched]
                return jax.core.eval_jaxpr(closed.jaxpr, merged[: len(closed.consts)], *merged[len(closed.consts) :])

            own = [value for value, many in zip(values, batched) if many]
            outs = jax.vmap(one)(own) if block >= size else jax.lax.map(one, own, batch_size=block)
            return outs, [True] * len(outs)

        return jax.tree.unflatten(jax.tree.structure(out), apply(*closed.consts, *flat))

    return call


@dataclass(frozen=True)
class Program:
    """The compiled run: `init()`, and `advance(state, first, count)` for `count` steps from step `first`.

    `advance` also says, for each public leaf of the state, the first step after which it was not finite (`NEVER` if
    it always was). Private leaves are not looked at: a stop that depends on them would itself tell something.
    """

    init: Callable[[], State]
    advance: Callable[[State, int, int], tuple[State, np.ndarray]]


def public_leaves(state: State) -> list[tuple[str, jax.Array]]:
    """The floating-point leaves that are not private, with their names."""
    leaves = jax.tree_util.tree_leaves_with_path(state, is_leaf=lambda node: isinstance(node, Private))
    return [
        (jax.tree_util.keystr(path).lstrip("."), leaf)
        for path, leaf in leaves
        if not isinstance(leaf, Private) and jnp.issubdtype(leaf.dtype, jnp.floating)
    ]


@dataclass(frozen=True)
class Spec:
    """All that a compiled run depends on besides arrays. Equal specs share one compiled program, whatever the seed."""

    problem: Any  # compared by identity: functions have no other
    method: Method
    network: Network
    sizes: tuple[tuple[str, tuple[int, ...]], ...]
    steps: int
    chunk: int
    devices: int = 1

    def agent(self, index: Array, starts: Starts, stores: Stores, phase: str, t: Array, seed: Array) -> Agent:
        """One agent at one step."""
        sizes = {level: np.array(n) for level, n in self.sizes}
        mesh_axis = AXIS if self.devices > 1 else None
        place = VectorPlace(self.network, sizes, self.steps, self.chunk, stores, starts, mesh_axis)
        return Agent(place, index, t, step_key(run_key(seed, index), phase, t))


def init(spec: Spec, indices: Array, starts: Starts, stores: Stores, seed: Array) -> State:
    """The agents' states before the first step, stacked."""

    def one(index: Array, starts: Starts) -> State:
        return spec.method.init(spec.problem, spec.agent(index, starts, stores, "init", jnp.int32(0), seed))

    return jax.vmap(one)(indices, starts)


def advance(
    spec: Spec, count: int, state: State, first: Array, indices: Array, starts: Starts, stores: Stores, seed: Array
) -> tuple[State, Array]:
    """`count` steps from step `first`, and the step after which each public leaf was first not finite."""

    def step(carry: tuple[State, Array], t: Array) -> tuple[tuple[State, Array], None]:
        state, broken = carry

        def one(own: State, index: Array, starts: Starts) -> State:
            return spec.method.step(spec.problem, own, spec.agent(index, starts, stores, "step", t, seed))

        state = jax.vmap(one)(state, indices, starts)
        fine = jnp.array([jnp.all(jnp.isfinite(leaf)) for _, leaf in public_leaves(state)], bool)
        return (state, jnp.where(fine, broken, jnp.minimum(broken, t))), None

    broken = jnp.full(len(public_leaves(state)), NEVER, jnp.int32)
    return jax.lax.scan(step, (state, broken), first + jnp.arange(count, dtype=jnp.int32))[0]


_init = jax.jit(init, static_argnums=0)
_advance = jax.jit(advance, static_argnums=(0, 1), donate_argnums=2)


def program(
    problem: Any, method: Method, layout: Layout, network: Network, steps: int, seed: int, chunk: int, devices: int = 1
) -> Program:
    """The run of all agents; with more than one device they are spread evenly over them."""
    sizes = tuple((level, tuple(n.tolist())) for level, n in sorted(layout.sizes.items()))
    spec = Spec(problem, method, network, sizes, steps, chunk, devices)
    try:
        hash(spec)
    except TypeError as error:
        raise TypeError(f"{type(method).__name__} has a field that cannot be hashed ({error}): use tuples") from error
    indices, secret = jnp.arange(layout.agents, dtype=jnp.int32), root_key(seed)
    if devices > 1:
        from sottovoce.runtime import mesh

        return mesh.program(spec, layout, indices, secret)
    stores = dict(layout.stores)
    starts = {level: store.starts for level, store in stores.items()}
    return Program(
        init=lambda: _init(spec, indices, starts, stores, secret),
        advance=lambda state, first, count: _advance(
            spec, count, state, jnp.int32(first), indices, starts, stores, secret
        ),
    )
