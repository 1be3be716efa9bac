"""Say which device holds which agents, and average along the edges between devices.

Example: 5 agents on 2 devices lie in 2 x 3 slots, (0, 1, 2) and (3, 4, nobody). On a ring the devices exchange what the
agents 0, 2, 3 and 4 send, and nothing else (`ppermute`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from sottovoce.networks import Network
from sottovoce.runtime import mixing
from sottovoce.trees import Tree

AXIS = "agents"  # the mesh axis that agents are spread over
_UNROLL = 8  # neighbours added one by one in straight code; beyond that, in a loop


@dataclass(frozen=True)
class Spread:
    """Put agents into slots: every device has the same number of slots, and the last ones may be empty.

    >>> Spread(agents=5, devices=2).slots.tolist()
    [[0, 1, 2], [3, 4, -1]]
    """

    agents: int
    devices: int

    @property
    def per(self) -> int:
        """Return how many slots a device has."""
        return -(-self.agents // self.devices)

    @cached_property
    def slots(self) -> np.ndarray:
        """Return the agent in each slot of each device; -1 for nobody."""
        table = np.full((self.devices, self.per), -1)
        for device, own in enumerate(np.array_split(np.arange(self.agents), self.devices)):
            table[device, : len(own)] = own
        return table

    def of(self, devices: range) -> range:
        """Return the agents on some neighbouring devices.

        >>> Spread(agents=5, devices=2).of(range(1, 2))
        range(3, 5)
        """
        held = self.slots[devices.start : devices.stop]
        real = held[held >= 0]
        return range(int(real[0]), int(real[-1]) + 1) if real.size else range(self.agents, self.agents)

    def of_one(self, device: int) -> range:
        """Return the agents on one device.

        >>> Spread(agents=5, devices=2).of_one(1)
        range(3, 5)
        """
        return self.of(range(device, device + 1))


@dataclass(frozen=True)
class _Shift:
    """Say what each device sends to the device `by` places before it: slots to send, and pairs of devices."""

    pairs: tuple[tuple[int, int], ...]
    slots: np.ndarray  # (devices, rows)


@dataclass(frozen=True)
class _Plan:
    """Hold the shifts, and where each slot's senders lie in what a device then holds: its own slots, then what came."""

    shifts: list[_Shift]
    places: list[dict[int, int]]  # per device: agent to row


def _plan(heard: list[np.ndarray], spread: Spread) -> _Plan:
    """Plan the exchange; ``heard[i]`` lists whom agent i hears."""
    device_of = {int(agent): d for d, row in enumerate(spread.slots) for agent in row if agent >= 0}
    slot_of = {int(agent): k for row in spread.slots for k, agent in enumerate(row) if agent >= 0}
    wanted: list[dict[int, list[int]]] = []
    for row in spread.slots:
        senders = sorted({int(sender) for agent in row if agent >= 0 for sender in heard[agent]})
        by_device: dict[int, list[int]] = {}
        for sender in senders:
            by_device.setdefault(device_of[sender], []).append(sender)
        wanted.append(by_device)
    places = [{int(agent): k for k, agent in enumerate(row) if agent >= 0} for row in spread.slots]
    shifts, start = [], spread.per
    for by in range(1, spread.devices):
        lists = [wanted[d].get((d + by) % spread.devices, []) for d in range(spread.devices)]
        rows = max(map(len, lists))
        if not rows:
            continue
        table = np.zeros((spread.devices, rows), np.int32)
        for d, senders in enumerate(lists):
            table[(d + by) % spread.devices, : len(senders)] = [slot_of[sender] for sender in senders]
            places[d].update({sender: start + k for k, sender in enumerate(senders)})
        pairs = tuple(((d + by) % spread.devices, d) for d, senders in enumerate(lists) if senders)
        shifts.append(_Shift(pairs, table))
        start += rows
    return _Plan(shifts, places)


def along_edges(network: Network, over: str, others_only: bool, spread: Spread) -> Callable[..., Tree]:
    """Return `mix(tree, agent)` for code that is `vmap`ped over a device's slots, inside `shard_map` over `AXIS`."""
    lists = mixing.neighbours(network, over, others_only)
    used = lists.weights != 0
    heard = [row[kept] for row, kept in zip(lists.senders, used)]
    plan = _plan(heard, spread)
    edges = int(used.sum())
    wasteful = lists.senders.size > 4 * edges + 64
    apply = _by_edge(plan, heard, lists, spread) if wasteful else _padded(plan, heard, lists, spread)

    @custom_vmap
    def mix(leaf: jax.Array, agent: jax.Array) -> jax.Array:
        return leaf  # never run: an agent is always one slot of the vectorised whole

    @mix.def_vmap
    def over_slots(size: int, batched: list[bool], leaf: jax.Array, agent: jax.Array) -> tuple[jax.Array, bool]:
        own = leaf if batched[0] else jnp.broadcast_to(leaf, (size, *leaf.shape))
        me, held = jax.lax.axis_index(AXIS), [own]
        for shift in plan.shifts:
            held.append(jax.lax.ppermute(own[jnp.asarray(shift.slots)[me]], AXIS, shift.pairs))
        return apply(jnp.concatenate(held) if len(held) > 1 else own, me), True

    return lambda tree, agent: jax.tree.map(lambda leaf: mix(jnp.asarray(leaf), agent), tree)


def _padded(plan: _Plan, heard: list[np.ndarray], lists: Any, spread: Spread) -> Callable[..., jax.Array]:
    """Sum by lists that are padded to the largest degree, in the order of the senders' numbers."""
    degree = max(1, max(map(len, heard)))
    rows = np.zeros((spread.devices, spread.per, degree), np.int32)
    weights = np.zeros(rows.shape, np.float32)
    for device, slot in np.argwhere(spread.slots >= 0):
        agent = spread.slots[device, slot]
        own = [plan.places[device][int(sender)] for sender in heard[agent]]
        rows[device, slot, : len(own)] = own
        weights[device, slot, : len(own)] = lists.weights[agent][lists.weights[agent] != 0]
    return partial(_sum_padded, rows, weights)


def _sum_padded(rows: np.ndarray, weights: np.ndarray, held: jax.Array, me: jax.Array) -> jax.Array:
    from_row, weight = jnp.asarray(rows)[me], jnp.asarray(weights)[me]
    expand = (slice(None),) + (None,) * (held.ndim - 1)

    def add(k: Any, total: jax.Array) -> jax.Array:
        return total + weight[:, k][expand] * held[from_row[:, k]]

    total = jnp.zeros((rows.shape[1], *held.shape[1:]), held.dtype)
    if rows.shape[2] > _UNROLL:
        return jax.lax.fori_loop(0, rows.shape[2], add, total)
    for k in range(rows.shape[2]):
        total = add(k, total)
    return total


def _by_edge(plan: _Plan, heard: list[np.ndarray], lists: Any, spread: Spread) -> Callable[..., jax.Array]:
    """Sum edge by edge, where a few agents hear very many (a star)."""
    per_device = []
    for device, row in enumerate(spread.slots):
        own = [
            (slot, plan.places[device][int(sender)], weight)
            for slot, agent in enumerate(row)
            if agent >= 0
            for sender, weight in zip(heard[agent], lists.weights[agent][lists.weights[agent] != 0])
        ]
        per_device.append(own)
    most = max(1, max(map(len, per_device)))
    nothing = (spread.per - 1, 0, 0.0)
    slots, rows, weights = np.moveaxis(np.array([own + [nothing] * (most - len(own)) for own in per_device]), 2, 0)

    def apply(held: jax.Array, me: jax.Array) -> jax.Array:
        slot, row = (jnp.asarray(table, jnp.int32)[me] for table in (slots, rows))
        weight = jnp.asarray(weights, jnp.float32)[me][(slice(None),) + (None,) * (held.ndim - 1)]
        return jax.ops.segment_sum(weight * held[row], slot, num_segments=spread.per, indices_are_sorted=True)

    return apply
