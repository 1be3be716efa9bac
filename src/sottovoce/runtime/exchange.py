"""Describe one exchange of an agent with its neighbours: who talks to whom, and the sum of what was received."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from sottovoce.accounting.trace import Trace
from sottovoce.methods import equations
from sottovoce.networks import Network
from sottovoce.runtime import mixing
from sottovoce.runtime.frames import frame_size
from sottovoce.runtime.sums.talk import message_sizes
from sottovoce.runtime.transport import Expected


@partial(jax.tree_util.register_dataclass, data_fields=["said", "weights"], meta_fields=[])
@dataclass(frozen=True)
class Heard:
    """Hold what was received at an exchange, in the order of the senders' numbers; the next program sums it up."""

    said: Sequence[Any]
    weights: Any

    def total(self) -> jax.Array:
        """Return the weighted sum."""
        total = jnp.zeros_like(self.said[0])
        for number, value in enumerate(self.said):
            total = total + self.weights[number] * value
        return total


def settled(values: Sequence[Any]) -> list[Any]:
    """Return values with the sums of what was heard computed."""
    return [value.total() if isinstance(value, Heard) else value for value in values]


@dataclass(frozen=True)
class Edges:
    """List per agent who receives from it (itself apart), from whom it receives, in order, and with which weights."""

    hearers: list[list[int]]
    senders: list[list[int]]
    weights: list[np.ndarray]


def expected_of(trace: Trace) -> Expected:
    """Return what the messages of a traced method are at most.

    >>> import sottovoce as sv
    >>> from sottovoce.accounting.account import account_of
    >>> method = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(clip=1.0, noise=0.1), sampling=sv.Full())
    >>> account = account_of(method, sv.Population([100] * 4), steps=10, network=sv.networks.ring(4))
    >>> expected_of(account.trace).each_round
    1
    """
    summed = trace.known.summed is not None
    said = [*_said(trace.init.jaxpr.eqns, 1, summed), *_said(trace.step.jaxpr.eqns, 1, summed)]
    return Expected(max((size for size, _ in said), default=0), sum(times for _, times in said))


def _said(found: Iterable[JaxprEqn], times: int, summed: bool) -> Iterator[tuple[int, int]]:
    """Yield the size of each message, and how often a step says it; by secure sums, releases are messages."""
    for equation in found:
        if equation.primitive is equations.mix_p and not summed:
            yield frame_size([var.aval for var in equation.invars]), times
        elif equation.primitive is equations.release_p and summed:
            yield frame_size(message_sizes(sum(equations.shape_of(var).size for var in equation.outvars))), times
        elif equation.primitive is equations.loop_p:
            yield from _said(equation.params["body"].eqns, times * equation.params["times"], summed)


def edges_of(network: Network, over: str, others_only: bool) -> Edges:
    """Return who talks to whom over one of a network's matrices.

    >>> from sottovoce.networks import ring
    >>> edges_of(ring(4), "mix", others_only=True).hearers[0]
    [1, 3]
    """
    lists = mixing.neighbours(network, over, others_only)
    kept = [weights != 0 for weights in lists.weights]
    senders = [row[used].tolist() for row, used in zip(lists.senders, kept)]
    hearers: list[list[int]] = [[] for _ in senders]
    for hearer, heard in enumerate(senders):
        for sender in heard:
            if sender != hearer:
                hearers[sender].append(hearer)
    return Edges(hearers, senders, [weights[used] for weights, used in zip(lists.weights, kept)])
