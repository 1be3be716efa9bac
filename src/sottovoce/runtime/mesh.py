"""The vectorised run spread over devices with `shard_map`: each holds only its own agents' records."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from sottovoce.methods.base import State
from sottovoce.runtime import vectorised
from sottovoce.runtime.store import Layout, Store
from sottovoce.runtime.vectorised import AXIS, Array, Program, Spec, Starts, Stores


def program(spec: Spec, layout: Layout, indices: Array, seed: Array) -> Program:
    """As `vectorised.program`, over ``spec.devices`` devices."""
    if layout.agents % spec.devices:
        raise ValueError(f"{layout.agents} agents do not spread evenly over {spec.devices} devices: use a divisor")
    if len(jax.devices()) < spec.devices:
        raise ValueError(
            f"{spec.devices} devices were asked for, {len(jax.devices())} are there; on a CPU set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={spec.devices} before Python starts"
        )
    stores = {level: _shard(store, layout.sizes[level], spec.devices) for level, store in layout.stores.items()}
    return Program(
        init=lambda: _compiled(spec, None)(indices, stores, seed),
        advance=lambda state, first, count: _compiled(spec, count)(state, jnp.int32(first), indices, stores, seed),
    )


@lru_cache(maxsize=64)
def _compiled(spec: Spec, count: int | None) -> Callable[..., Any]:
    """`init` (no count) or `advance` by `count` steps, compiled."""
    devices = Mesh(np.array(jax.devices()[: spec.devices]), (AXIS,))
    spread, everywhere = PartitionSpec(AXIS), PartitionSpec()

    def local_init(indices: Array, stores: Stores, seed: Array) -> State:
        return vectorised.init(spec, indices, *_own(stores), seed)

    def local_advance(state: State, first: Array, indices: Array, stores: Stores, seed: Array) -> tuple[State, Array]:
        assert count is not None
        state, broken = vectorised.advance(spec, count, state, first, indices, *_own(stores), seed)
        return state, jax.lax.pmin(broken, AXIS)

    shard = partial(jax.shard_map, mesh=devices, check_vma=False)
    if count is None:
        return jax.jit(shard(local_init, in_specs=(spread, spread, everywhere), out_specs=spread))
    specs = (spread, everywhere, spread, spread, everywhere)
    return jax.jit(shard(local_advance, in_specs=specs, out_specs=(spread, everywhere)))


def _own(stores: Stores) -> tuple[Starts, Stores]:
    """A device's slice of the stacked stores."""
    mine = jax.tree.map(lambda leaf: leaf[0], stores)
    return {level: store.starts for level, store in mine.items()}, mine


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
