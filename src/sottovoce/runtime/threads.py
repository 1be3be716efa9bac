"""Each agent on a thread of its own, holding its own records only, its messages travelling through queues.

Slow, and not for work: it shows that a step is one agent's code, so that a cluster or a federation can run it.
"""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from sottovoce.methods.base import Method, State
from sottovoce.networks import Network
from sottovoce.runtime import mixing
from sottovoce.runtime.agent import Agent, Place, RecordFn, root_key, run_key, step_key
from sottovoce.runtime.store import Store, lay_out
from sottovoce.trees import Tree


@dataclass(frozen=True)
class ThreadPlace(Place):
    """An agent's own records, and a queue from each of the others."""

    stores: Mapping[str, Store]
    me: int
    inboxes: Sequence[Sequence[queue.Queue[Tree]]]  # inboxes[hearer][sender]

    def gather(self, level: str, rows: jax.Array) -> Tree:
        """The store holds nobody else's."""
        return self.stores[level].gather(jnp.zeros((), jnp.int32), rows)

    def lift(self, level: str, fn: RecordFn) -> RecordFn:
        """As the store holds records or units."""
        return self.stores[level].lift(fn)

    def mix(self, over: str, value: Tree, index: jax.Array, others_only: bool) -> Tree:
        """Send to those who hear, wait for those who are heard, add in the order of their numbers."""
        column = self.network.matrices[over].tocsc()[:, [self.me]].tocoo()
        for hearer, weight in zip(column.row, column.data):
            if hearer != self.me and weight != 0:
                self.inboxes[hearer][self.me].put(value)
        lists = mixing.neighbours(self.network, over, others_only)
        total = jax.tree.map(jnp.zeros_like, value)
        for sender, weight in zip(lists.senders[self.me], lists.weights[self.me]):
            if weight != 0:
                said = value if sender == self.me else self.inboxes[self.me][sender].get(timeout=300)
                total = jax.tree.map(lambda a, b, weight=weight: a + weight * b, total, said)
        return total

    def loop(self, times: int, body: Callable[[Tree, jax.Array], Tree], carry: Tree) -> Tree:
        """In Python: messages inside must really be sent."""
        for k in range(times):
            carry = body(carry, jnp.int32(k))
        return carry


def run_threads(
    problem: Any, parts: Sequence[Any], method: Method, network: Network, steps: int, seed: int, chunk: int = 1024
) -> State:
    """The final states of all agents, stacked as in the vectorised run."""
    agents = range(len(parts))
    inboxes: list[list[queue.Queue[Tree]]] = [[queue.Queue() for _ in agents] for _ in agents]
    finals: list[Any] = [None] * len(parts)
    failures: list[BaseException] = []

    def live(me: int) -> None:
        try:
            layout = lay_out(parts, range(me, me + 1))
            place = ThreadPlace(network, layout.sizes, steps, chunk, layout.stores, me, inboxes)
            index = jnp.int32(me)

            def handle(phase: str, t: int) -> Agent:
                return Agent(place, index, jnp.int32(t), step_key(run_key(root_key(seed), index), phase, jnp.int32(t)))

            state = method.init(problem, handle("init", 0))
            for t in range(steps):
                state = method.step(problem, state, handle("step", t))
            finals[me] = state
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=live, args=(me,), daemon=True) for me in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *finals)
