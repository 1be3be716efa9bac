"""Spread the array of agents over devices with `shard_map`: each device holds only its own agents' records.

The devices may belong to several processes (`sottovoce.runtime.peers`). Every process then runs the same lines, and
holds the records and states of its own devices' agents.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sottovoce.accounting.trace import Trace
from sottovoce.data.sealed import Sealed
from sottovoce.runtime import array, peers
from sottovoce.runtime.array import Array, Spec
from sottovoce.runtime.layout import Layout, shard
from sottovoce.runtime.place import Metrics, RowsPlace
from sottovoce.runtime.result import EACH
from sottovoce.runtime.spread import AXIS, Spread

SPREAD, EVERYWHERE = PartitionSpec(AXIS), PartitionSpec()


@dataclass(frozen=True)
class Grid:
    """List the devices of a run: `per_process` of every process, in the order of the processes' ranks."""

    per_process: int

    @cached_property
    def mesh(self) -> Mesh:
        """Return all devices along one axis."""
        owned = [[device for device in jax.devices() if device.process_index == rank] for rank in range(self.processes)]
        return Mesh(np.array([device for own in owned for device in own[: self.per_process]]), (AXIS,))

    @property
    def processes(self) -> int:
        """Return how many processes there are."""
        return peers.current().count

    @property
    def local(self) -> range:
        """Return which of the devices are this process's."""
        first = peers.current().rank * self.per_process
        return range(first, first + self.per_process)

    def spread(self, agents: int) -> Spread:
        """Return where the agents lie."""
        return Spread(agents, self.processes * self.per_process)

    def held(self, agents: int) -> range:
        """Return the agents that lie in this process."""
        return self.spread(agents).of(self.local)

    def put(self, local: Any) -> jax.Array:
        """Return one array over all devices from this process's part of it."""
        held = np.asarray(local)
        whole = (held.shape[0] * self.processes, *held.shape[1:])
        return jax.make_array_from_process_local_data(NamedSharding(self.mesh, SPREAD), held, whole)


class MeshPlace(RowsPlace):
    """Run one compiled program over several devices, with the same number of slots for agents on each."""

    def __init__(self, trace: Trace, problem: Any, layout: Layout, root: Array, chunk: int, devices: int) -> None:
        """Put the records of the layout's agents on their devices; `root` is one key, or one per such agent."""
        super().__init__(trace, problem)
        check_devices(devices)
        self.grid = Grid(devices)
        self.spread = spread = self.grid.spread(layout.population.parties)
        self.spec, here = Spec(trace, chunk, spread), self.grid.local
        mine = spread.slots[here.start : here.stop].reshape(-1)
        self._real, first = mine >= 0, self.holds.start
        keys = np.asarray(jax.random.key_data(jnp.broadcast_to(root, len(self.holds))))
        keys = np.concatenate([keys, np.zeros((1, 2), np.uint32)])  # the last key is for empty slots
        self._indices = self.grid.put(np.where(self._real, mine, spread.agents - 1).astype(np.int32))
        self._live = self.grid.put(self._real)
        self._roots = self.grid.put(keys[np.where(self._real, mine - first, -1)])
        counts = layout.population.counts
        widths = {
            level: sealed.order.shape[-1] for level, sealed in sorted(layout.sealed.items()) if sealed.order.ndim > 1
        }
        widest = {level: max(said[level] for said in peers.current().gather(widths)) for level in widths}
        self.records = {
            level: jax.tree.map(self.grid.put, shard(sealed, counts[level], spread, here, widest.get(level, 0)))
            for level, sealed in layout.sealed.items()
        }

    @property
    def holds(self) -> range:
        """Return the agents on this process's devices."""
        return self.grid.held(self.trace.known.population.parties)

    def begin(self) -> list[Array]:
        """Return the first state."""
        return _compiled(self.spec, self.grid, None)(self._indices, self.records, self._roots)

    def advance(self, state: list[Array], first: int, count: int) -> tuple[list[Array], np.ndarray]:
        """Run `count` steps."""
        given = (list(state), np.int32(first), self._indices, self._live, self.records, self._roots)
        return array.pinned(lambda every: _compiled(self.spec, self.grid, count, every)(*given))

    def stored(self, state: list[Any]) -> list[np.ndarray]:
        """Return the rows of this process's agents."""
        return [_local(leaf)[self._real] for leaf in state]

    def restored(self, rows: list[np.ndarray]) -> list[Any]:
        """Return the state; an empty slot repeats an agent's row."""
        last = max(len(self.holds) - 1, 0)
        at = np.minimum(np.cumsum(self._real) - 1, last).clip(0)
        some = [row if len(row) else np.zeros((1, *row.shape[1:]), row.dtype) for row in rows]
        return [self.grid.put(row[at]) for row in some]

    def measure(self, state: list[Any], step: int, evaluate: Metrics | None) -> Mapping[str, Any]:
        """Return the consensus error and the user's metrics; each device evaluates its own agents."""
        common, each = _measuring(self.spread, self.grid, evaluate)(self._live, self.variables(state))
        real = self.spread.slots.reshape(-1) >= 0
        told_apart = {f"{name}/agents": np.asarray(value)[real] for name, value in each.items()}
        return {**{name: np.asarray(value) for name, value in common.items()}, **told_apart}

    def average(self, state: list[Any]) -> tuple[Any, ...]:
        """Return the means over all devices."""
        return _averaging(self.spread, self.grid)(self._live, self.variables(state))


def check_devices(devices: int) -> None:
    """Refuse a number of devices that a process does not have."""
    here = len(jax.local_devices())
    if here < devices:
        raise ValueError(
            f"{devices} devices were asked for, {here} are there; on a CPU set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={devices} before Python starts"
        )


def _local(leaf: jax.Array) -> np.ndarray:
    """Return the rows of an array that lie in this process."""
    shards = sorted(leaf.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in shards])


@lru_cache(maxsize=64)
def _compiled(spec: Spec, grid: Grid, count: int | None, every: int = array.LOOK) -> Callable[..., Any]:
    """Compile `init` (no count), or `advance` by `count` steps."""

    def local_init(indices: Array, records: dict[str, Sealed], roots: Array) -> list[Array]:
        return array.init(spec, indices, *_own(records), jax.random.wrap_key_data(roots))

    def local_advance(
        state: list[Array], first: Array, indices: Array, live: Array, records: dict[str, Sealed], roots: Array
    ) -> tuple[list[Array], Array]:
        assert count is not None
        given = (first, indices, *_own(records), jax.random.wrap_key_data(roots))
        state, broken = array.advance(spec, count, state, *given, live, every)
        return state, jax.lax.pmin(broken, AXIS)

    sharded = partial(jax.shard_map, mesh=grid.mesh, check_vma=False)
    if count is None:
        return jax.jit(sharded(local_init, in_specs=(SPREAD, SPREAD, SPREAD), out_specs=SPREAD))
    specs = (SPREAD, EVERYWHERE, SPREAD, SPREAD, SPREAD, SPREAD)
    return jax.jit(sharded(local_advance, in_specs=specs, out_specs=(SPREAD, EVERYWHERE)))


def _own(records: dict[str, Sealed]) -> tuple[dict[str, Array], dict[str, Sealed]]:
    """Return a device's slice of the stacked sets."""
    mine = jax.tree.map(lambda leaf: leaf[0], records)
    return {level: sealed.starts for level, sealed in mine.items()}, mine


def _mean(spread: Spread, live: Array, variables: Any) -> Any:
    """Return the means over all agents, inside `shard_map`."""

    def over_agents(leaf: Array) -> Array:
        own = jnp.sum(jnp.where(_wide(live, leaf), leaf, 0), axis=0)
        return jax.lax.psum(own, AXIS) / spread.agents

    return jax.tree.map(over_agents, variables)


def _wide(live: Array, leaf: Array) -> Array:
    return live.reshape(-1, *[1] * (leaf.ndim - 1))


@lru_cache(maxsize=16)
def _averaging(spread: Spread, grid: Grid) -> Callable[..., Any]:
    averaged = partial(_mean, spread)
    sharded = jax.shard_map(averaged, mesh=grid.mesh, in_specs=(SPREAD, SPREAD), out_specs=EVERYWHERE, check_vma=False)
    return jax.jit(sharded)


@lru_cache(maxsize=64)
def _measuring(spread: Spread, grid: Grid, evaluate: Metrics | None) -> Callable[..., Any]:
    """Compile the consensus error, the metrics of the average, and those of each agent (`sottovoce.runtime.result`)."""

    def figures(live: Array, variables: Sequence[Any]) -> tuple[dict[str, Array], dict[str, Array]]:
        mean = _mean(spread, live, variables)

        def gap(leaf: Array, middle: Array) -> Array:
            return jnp.sum(jnp.where(_wide(live, leaf), (leaf - middle) ** 2, 0))

        gaps = [gap(*pair) for pair in zip(jax.tree.leaves(variables), jax.tree.leaves(mean))]
        common: dict[str, Array] = {"consensus": jax.lax.psum(sum(gaps[1:], gaps[0]), AXIS) / spread.agents}
        each: dict[str, Array] = {}
        if evaluate is not None:
            common.update({name: jnp.asarray(value) for name, value in evaluate(*mean).items()})
            if 1 < spread.agents <= EACH:
                own = jax.lax.map(lambda one: dict(evaluate(*one)), tuple(variables))
                each = {name: jax.lax.all_gather(value, AXIS, tiled=True) for name, value in own.items()}
        return common, each

    sharded = jax.shard_map(figures, mesh=grid.mesh, in_specs=(SPREAD, SPREAD), out_specs=EVERYWHERE, check_vma=False)
    return jax.jit(sharded)
