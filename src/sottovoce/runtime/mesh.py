"""The array of agents spread over devices with `shard_map`: each device holds only its own agents' records."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from sottovoce.accounting.trace import Trace
from sottovoce.data.sealed import Sealed
from sottovoce.runtime import array
from sottovoce.runtime.array import Array, Spec
from sottovoce.runtime.layout import Layout, shard
from sottovoce.runtime.place import RowsPlace

AXIS = "agents"  # the mesh axis that agents are spread over


class MeshPlace(RowsPlace):
    """One compiled program over several devices, with the same agents on each."""

    def __init__(self, trace: Trace, problem: Any, layout: Layout, root: Array, chunk: int, devices: int) -> None:
        super().__init__(trace, problem)
        agents = layout.population.parties
        check_devices(agents, devices)
        self.spec, self.devices = Spec(trace, chunk, AXIS), devices
        self.indices = jnp.arange(agents, dtype=jnp.int32)
        self.roots = jnp.broadcast_to(root, agents)
        counts = layout.population.counts
        self.records = {level: shard(sealed, counts[level], devices) for level, sealed in layout.sealed.items()}

    def begin(self) -> list[Array]:
        """Return the first state."""
        return _compiled(self.spec, self.devices, None)(self.indices, self.records, self.roots)

    def advance(self, state: list[Array], first: int, count: int) -> tuple[list[Array], np.ndarray]:
        """Run `count` steps."""
        given = (list(state), jnp.int32(first), self.indices, self.records, self.roots)
        moved, broken = _compiled(self.spec, self.devices, count)(*given)
        return moved, np.asarray(broken)


def check_devices(agents: int, devices: int) -> None:
    """Refuse a number of devices that is not there, or that does not divide the agents.

    >>> check_devices(agents=4, devices=3)
    Traceback (most recent call last):
    ...
    ValueError: 4 agents do not spread evenly over 3 devices: use a divisor
    """
    if agents % devices:
        raise ValueError(f"{agents} agents do not spread evenly over {devices} devices: use a divisor")
    if len(jax.devices()) < devices:
        raise ValueError(
            f"{devices} devices were asked for, {len(jax.devices())} are there; on a CPU set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={devices} before Python starts"
        )


@lru_cache(maxsize=64)
def _compiled(spec: Spec, devices: int, count: int | None) -> Callable[..., Any]:
    """Compile `init` (no count), or `advance` by `count` steps."""
    mesh = Mesh(np.array(jax.devices()[:devices]), (AXIS,))
    spread, everywhere = PartitionSpec(AXIS), PartitionSpec()

    def local_init(indices: Array, records: dict[str, Sealed], roots: Array) -> list[Array]:
        return array.init(spec, indices, *_own(records), roots)

    def local_advance(
        state: list[Array], first: Array, indices: Array, records: dict[str, Sealed], roots: Array
    ) -> tuple[list[Array], Array]:
        assert count is not None
        state, broken = array.advance(spec, count, state, first, indices, *_own(records), roots)
        return state, jax.lax.pmin(broken, AXIS)

    sharded = partial(jax.shard_map, mesh=mesh, check_vma=False)
    if count is None:
        return jax.jit(sharded(local_init, in_specs=(spread, spread, spread), out_specs=spread))
    specs = (spread, everywhere, spread, spread, spread)
    return jax.jit(sharded(local_advance, in_specs=specs, out_specs=(spread, everywhere)))


def _own(records: dict[str, Sealed]) -> tuple[dict[str, Array], dict[str, Sealed]]:
    """Return a device's slice of the stacked sets."""
    mine = jax.tree.map(lambda leaf: leaf[0], records)
    return {level: sealed.starts for level, sealed in mine.items()}, mine
