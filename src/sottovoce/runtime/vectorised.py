"""All agents on one machine (or a mesh of devices) as one array: `vmap` over agents, `scan` over steps, one program."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from sottovoce.methods.base import Method, State
from sottovoce.networks import Network
from sottovoce.runtime import mixing
from sottovoce.runtime.agent import Agent, Place, RecordFn, run_key, step_key
from sottovoce.runtime.store import Layout, Store
from sottovoce.trees import Private, Tree

AXIS = "agents"  # the mesh axis that agents are spread over
NEVER = np.iinfo(np.int32).max


@dataclass(frozen=True)
class VectorPlace(Place):
    """One row of the array of agents."""

    stores: dict[str, Store]
    starts: dict[str, jax.Array]  # this agent's first row in each store
    mixers: dict[tuple[str, bool], Callable[..., Tree]] = field(default_factory=dict)
    mesh_axis: str | None = None

    def gather(self, level: str, rows: jax.Array) -> Tree:
        """The agent's rows, out of the pool that all share."""
        return self.stores[level].gather(self.starts[level], rows)

    def lift(self, level: str, fn: RecordFn) -> RecordFn:
        """As the store holds records or units."""
        return self.stores[level].lift(fn)

    def mix(self, over: str, value: Tree, index: jax.Array, others_only: bool) -> Tree:
        """A weighted sum along the array."""
        key = (over, others_only)
        if key not in self.mixers:
            self.mixers[key] = mixing.vectorised(self.network, over, others_only, self.mesh_axis)
        return self.mixers[key](value, index)

    def loop(self, times: int, body: Callable[[Tree, jax.Array], Tree], carry: Tree) -> Tree:
        """Compiled once, whatever the number of turns."""
        return jax.lax.fori_loop(0, times, lambda k, c: body(c, k), carry)


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


def program(
    problem: Any, method: Method, layout: Layout, network: Network, steps: int, seed: int, chunk: int, devices: int = 1
) -> Program:
    """Build the run of all agents; with more than one device they are spread evenly over them."""
    stores, agents = dict(layout.stores), layout.agents
    mesh_axis = AXIS if devices > 1 else None
    mixers: dict[tuple[str, bool], Callable[..., Tree]] = {}
    starts = {level: store.starts for level, store in stores.items()}

    def agent(
        index: jax.Array, starts: dict[str, jax.Array], stores: dict[str, Store], phase: str, t: jax.Array
    ) -> Agent:
        place = VectorPlace(network, layout.sizes, steps, chunk, stores, starts, mixers, mesh_axis)
        return Agent(place, index, t, step_key(run_key(seed, index), phase, t))

    def init(indices: jax.Array, starts: dict[str, jax.Array], stores: dict[str, Store]) -> State:
        def one(index: jax.Array, starts: dict[str, jax.Array]) -> State:
            return method.init(problem, agent(index, starts, stores, "init", jnp.zeros((), jnp.int32)))

        return jax.vmap(one)(indices, starts)

    def advance(
        state: State,
        first: jax.Array,
        indices: jax.Array,
        starts: dict[str, jax.Array],
        stores: dict[str, Store],
        count: int,
    ) -> tuple[State, jax.Array]:
        def step(carry: tuple[State, jax.Array], t: jax.Array) -> tuple[tuple[State, jax.Array], None]:
            state, broken = carry

            def one(own: State, index: jax.Array, starts: dict[str, jax.Array]) -> State:
                return method.step(problem, own, agent(index, starts, stores, "step", t))

            state = jax.vmap(one)(state, indices, starts)
            fine = [jnp.all(jnp.isfinite(leaf)) for _, leaf in public_leaves(state)]
            return (state, jnp.where(jnp.array(fine), broken, jnp.minimum(broken, t))), None

        broken = jnp.full(len(public_leaves(state)), NEVER, jnp.int32)
        return jax.lax.scan(step, (state, broken), first + jnp.arange(count, dtype=jnp.int32))[0]

    indices = jnp.arange(agents, dtype=jnp.int32)
    if devices > 1:
        return _sharded(init, advance, indices, layout, devices)
    start = jax.jit(init)
    run = jax.jit(advance, static_argnames="count", donate_argnums=0)
    return Program(
        init=lambda: start(indices, starts, stores),
        advance=lambda state, first, count: run(state, jnp.int32(first), indices, starts, stores, count=count),
    )


def _sharded(init: Callable, advance: Callable, indices: jax.Array, layout: Layout, devices: int) -> Program:
    """The same functions under `shard_map`: each device holds only its own agents' records."""
    if layout.agents % devices:
        raise ValueError(f"{layout.agents} agents do not spread evenly over {devices} devices: use a divisor")
    if len(jax.devices()) < devices:
        raise ValueError(
            f"{devices} devices were asked for, {len(jax.devices())} are there; on a CPU set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={devices} before Python starts"
        )
    mesh = Mesh(np.array(jax.devices()[:devices]), (AXIS,))
    stores = {level: _shard(store, layout.sizes[level], devices) for level, store in layout.stores.items()}
    spread = PartitionSpec(AXIS)
    everywhere = PartitionSpec()

    def local(stores: dict[str, Store]) -> tuple[dict[str, jax.Array], dict[str, Store]]:
        mine = jax.tree.map(lambda leaf: leaf[0], stores)
        return {level: store.starts for level, store in mine.items()}, mine

    def local_init(indices: jax.Array, stores: dict[str, Store]) -> State:
        starts, mine = local(stores)
        return init(indices, starts, mine)

    def local_advance(
        state: State, first: jax.Array, indices: jax.Array, stores: dict[str, Store], count: int
    ) -> tuple[State, jax.Array]:
        starts, mine = local(stores)
        state, broken = advance(state, first, indices, starts, mine, count)
        return state, jax.lax.pmin(broken, AXIS)

    start = jax.jit(jax.shard_map(local_init, mesh=mesh, in_specs=spread, out_specs=spread, check_vma=False))

    @partial(jax.jit, static_argnames="count")
    def run(
        state: State, first: jax.Array, indices: jax.Array, stores: dict[str, Store], count: int
    ) -> tuple[State, jax.Array]:
        body = partial(local_advance, count=count)
        specs = (spread, everywhere, spread, spread)
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=(spread, everywhere), check_vma=False)(
            state, first, indices, stores
        )

    return Program(
        init=lambda: start(indices, stores),
        advance=lambda state, first, count: run(state, jnp.int32(first), indices, stores, count=count),
    )


def _shard(store: Store, sizes: np.ndarray, devices: int) -> Store:
    """A store per device, of equal shapes (padded), stacked: each holds the records of its agents alone."""
    order, per = np.asarray(store.order), len(sizes) // devices
    ends = np.cumsum(sizes)
    bounds = [(int(ends[d * per - 1]) if d else 0, int(ends[(d + 1) * per - 1])) for d in range(devices)]
    longest = max(stop - start for start, stop in bounds)
    rows = [
        np.pad(order[start:stop], [(0, longest - (stop - start))] + [(0, 0)] * (order.ndim - 1), mode="edge")
        for start, stop in bounds
    ]
    pool = jax.tree.map(lambda leaf: jnp.stack([leaf[r.reshape(-1)] for r in rows]), store.pool)
    shape = (longest, *order.shape[1:])
    renumbered = jnp.stack([jnp.arange(np.prod(shape), dtype=jnp.int32).reshape(shape)] * devices)
    filled = None
    if store.filled is not None:
        mask = np.asarray(store.filled)
        filled = jnp.stack([jnp.asarray(np.pad(mask[a:b], [(0, longest - (b - a)), (0, 0)])) for a, b in bounds])
    starts = np.asarray(store.starts).reshape(devices, per)
    return Store(pool, renumbered, filled, jnp.asarray(starts - starts[:, :1], jnp.int32))
