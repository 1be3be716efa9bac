"""Each agent on a thread of its own, holding its own records only, its messages travelling through queues.

The shape of a deployment: a step is one agent's code, so that a cluster or a federation can run it, and coins and noise
can come from the operating system, exact to the last bit (`run_discrete`). Slow: nothing is compiled as a whole.
"""

import math
import queue
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from sottovoce import accounting
from sottovoce.methods.base import Method, State
from sottovoce.naming import check_count
from sottovoce.networks import Network
from sottovoce.privacy import discrete
from sottovoce.privacy.accountant import Adjacency
from sottovoce.privacy.ledger import Budget, Ledger
from sottovoce.privacy.release import Release
from sottovoce.privacy.report import PrivacyReport
from sottovoce.privacy.sampling import Rows, Sampling
from sottovoce.runtime import checks, mixing
from sottovoce.runtime.agent import Agent, Place, Read, RecordFn, root_key, run_key, step_key
from sottovoce.runtime.books import Books, own_ledgers
from sottovoce.runtime.recorder import Charge, charges
from sottovoce.runtime.result import Result, measure
from sottovoce.runtime.store import Store, lay_out
from sottovoce.trees import Tree

Noise = Literal["simulated", "discrete"]
EXACT = (
    "noise is discrete and exact, coins and noise come from the operating system: the guarantee holds bit for bit, "
    "if a compiled program gives the same bits for the same input"
)
_GONE = object()  # what an agent that failed leaves in the others' inboxes


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
        column = self.network.matrix(over).tocsc()[:, [self.me]].tocoo()
        for hearer, weight in zip(column.row, column.data):
            if hearer != self.me and weight != 0:
                self.inboxes[hearer][self.me].put(value)
        lists = mixing.neighbours(self.network, over, others_only)
        total = jax.tree.map(jnp.zeros_like, value)
        for sender, weight in zip(lists.senders[self.me], lists.weights[self.me]):
            if weight != 0:
                said = value if sender == self.me else self.inboxes[self.me][sender].get()
                if said is _GONE:
                    raise ConnectionError(f"agent {sender} is gone")
                total = jax.tree.map(lambda a, b, weight=weight: a + weight * b, total, said)
        return total

    def loop(self, times: int, body: Callable[[Tree, jax.Array], Tree], carry: Tree) -> Tree:
        """In Python: messages inside must really be sent."""
        for k in range(times):
            carry = body(carry, jnp.int32(k))
        return carry


@dataclass(frozen=True)
class DiscretePlace(ThreadPlace):
    """As deployed: the operating system's coins, and exact noise on whole-number sums (`privacy.discrete`)."""

    def draw(self, sampling: Sampling, level: str, key: jax.Array, index: jax.Array, t: jax.Array) -> Rows:
        """A batch by secret coins, padded to its usual size; one that is larger is not cut."""
        n = int(self.sizes[level][self.me])
        rows = discrete.draw(sampling, n, int(t))
        room = max(sampling.capacity(n), len(rows))
        return jnp.asarray(np.pad(rows, (0, room - len(rows)))), jnp.asarray(np.arange(room) < len(rows), jnp.float32)

    def noisy_mean(
        self, release: Release, reads: Sequence[Read], at: Tree, key: jax.Array, index: jax.Array, t: jax.Array
    ) -> Tree:
        """Whole-number sums of the levels on their common grid, noised; the key is not used."""
        flat, unflatten = ravel_pytree(at)
        common = math.lcm(*(int(read.denominator) for read in reads))
        grid = discrete.on_grid(release, common, int(t), self.me)
        total = np.zeros(flat.shape, object)
        for read in reads:
            total += self._whole_sum(grid, read, at).astype(object) * (common // int(read.denominator))
        return unflatten(jnp.asarray(grid.noised(total), flat.dtype))

    def noised(self, value: Tree, release: Release, key: jax.Array, index: jax.Array, t: jax.Array) -> Tree:
        """Floating-point state is on no grid."""
        raise ValueError(_PRINTED.format(release.name))

    def _whole_sum(self, grid: discrete.GridRelease, read: Read, at: Tree) -> np.ndarray:
        """Each record's gradient by itself, with one program for all: what it is does not depend on the others."""
        fn = self.lift(read.level, read.fn)
        slope = jax.jit(lambda at, record: ravel_pytree(jax.grad(fn)(at, record))[0])
        rows = np.asarray(read.rows[0])[np.asarray(read.rows[1]) > 0]
        total = np.zeros(ravel_pytree(at)[0].shape, np.int64)
        for start in range(0, len(rows), self.chunk):
            part = jax.tree.map(np.asarray, self.gather(read.level, jnp.asarray(rows[start : start + self.chunk])))
            for number in range(len(rows[start : start + self.chunk])):
                record = jax.tree.map(lambda leaf, number=number: leaf[number], part)
                total += grid.whole(np.asarray(slope(at, record)))
        return total


_PRINTED = (
    "message {!r} carries private state, which is on no grid: discrete noise is for sound designs, whose every message "
    "is a release. Use design='sound', or simulate."
)


def places(
    stores: Sequence[Mapping[str, Store]],
    sizes: Mapping[str, np.ndarray],
    network: Network,
    steps: int,
    chunk: int = 1024,
    noise: Noise = "simulated",
) -> list[ThreadPlace]:
    """A place for each agent, given its own stores, and the queues between them."""
    agents = range(len(stores))
    inboxes: list[list[queue.Queue[Tree]]] = [[queue.Queue() for _ in agents] for _ in agents]
    kind = DiscretePlace if noise == "discrete" else ThreadPlace
    return [kind(network, sizes, steps, chunk, stores[me], me, inboxes) for me in agents]


def live(
    problem: Any, method: Method, where: Sequence[ThreadPlace], handle: Callable[[ThreadPlace, str, int], Agent]
) -> State:
    """All agents' lives, each on a thread: their final states, stacked as in the vectorised run.

    `handle(place, phase, t)` makes the agent of a step.
    """
    finals: list[Any] = [None] * len(where)
    failures: list[BaseException] = []

    def one(place: ThreadPlace) -> None:
        try:
            state = method.init(problem, handle(place, "init", 0))
            for t in range(place.steps):
                state = method.step(problem, state, handle(place, "step", t))
            finals[place.me] = state
        except BaseException as failure:
            failures.append(failure)
            for inbox in place.inboxes:
                inbox[place.me].put(_GONE)

    threads = [threading.Thread(target=one, args=(place,), daemon=True) for place in where]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *finals)


def agent_of(place: ThreadPlace, phase: str, t: int, root: jax.Array) -> Agent:
    """An agent at one step of the run with this root key."""
    index, now = jnp.int32(place.me), jnp.int32(t)
    return Agent(place, index, now, step_key(run_key(root, index), phase, now))


def run_threads(
    problem: Any, parts: Sequence[Any], method: Method, network: Network, steps: int, seed: int, chunk: int = 1024
) -> State:
    """The final states of all agents, simulated: those of the vectorised run with this seed."""
    layouts = [lay_out(parts, range(me, me + 1)) for me in range(len(parts))]
    where = places([layout.stores for layout in layouts], layouts[0].sizes, network, steps, chunk)
    return live(problem, method, where, lambda place, phase, t: agent_of(place, phase, t, root_key(seed)))


def run_discrete(
    problem: Any,
    parts: Sequence[Any],
    method: Method,
    *,
    steps: int,
    network: Network | None = None,
    evaluate: Callable[..., Mapping[str, Any]] | None = None,
    out: str | Path | None = None,
    delta: float = 1e-5,
    adjacency: Adjacency | None = None,
    budget: Budget | None = None,
    ledger: Sequence[Ledger] | None = None,
    chunk: int = 1024,
) -> Result:
    """Run a method as it is deployed: exact discrete noise and the operating system's coins, nothing from a seed.

    Takes the arguments of `sv.run` that apply; `evaluate` is asked once, at the end. Each agent keeps a ledger of its
    own: it writes down what a step will spend, and syncs it, before it takes the step, and anew in each run, for no two
    draw the same noise. Each charge is that of the stated release, which the discrete noise is rounded up to deserve
    (see `privacy.discrete`).

    >>> import sottovoce as sv
    >>> problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), x0=jnp.zeros(2))
    >>> method = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(clip=5.0, noise=0.01), sampling=sv.Full())
    >>> result = run_discrete(problem, [np.ones((20, 2), np.float32)], method, steps=8)
    >>> np.round(result.x, 1).tolist(), result.privacy.epsilon == sv.account(method, sizes=[20], steps=8).epsilon
    ([1.0, 1.0], True)
    >>> print(result.privacy.events[0])
    gradient: discrete gaussian noise of scale 3277 on whole-number sums of records clipped to 81920 (l2), in steps of
    6.10352e-05 / 20, Full(), 8 times
    """
    if isinstance(ledger, Ledger):
        raise ValueError("deployed agents keep a ledger each: give a list, ledger=[sv.Ledger(path), ...]")
    layout = lay_out(parts)
    network = checks.fitting(problem, method, network, layout, steps)
    check_count("chunk", chunk)
    checks.metrics(problem, evaluate)
    checks.finite(layout)
    notes = charges(method, layout.sizes, steps, network, problem)
    for note in notes:
        if note.sampling is None:
            raise ValueError(_PRINTED.format(note.release.name))
        if not note.release.private:
            raise ValueError(f"release {note.release.name!r} has no clip or no noise: discrete noise needs both")
    place = {"steps": steps, "network": network, "problem": problem, **layout.facts}
    report = accounting.account(method, delta=delta, adjacency=adjacency, **place)
    if not report.private:
        raise ValueError(f"discrete noise is for runs that guarantee something: {report.statement()}")
    report = _as_drawn(report, notes, layout.sizes, steps)
    folder = checks.ready(out, resume=False)
    ledger = own_ledgers(folder, layout.agents) if ledger is None else ledger
    books = Books(ledger, secrets.token_hex(8), method, problem, layout, network, steps, report)
    if budget is not None:
        books.require(budget)
    stores = [lay_out(parts, range(me, me + 1)).stores for me in range(layout.agents)]
    roots = [jax.random.wrap_key_data(jnp.asarray(np.frombuffer(secrets.token_bytes(8), np.uint32))) for _ in stores]
    where = places(stores, layout.sizes, network, steps, chunk, "discrete")

    def pay_and_act(place: ThreadPlace, phase: str, t: int) -> Agent:
        if phase == "init" or t > 0:  # what `init` releases is charged with step 0
            books.charge_own(place.me, t, t + 1)
        return agent_of(place, phase, t, roots[place.me])

    state = live(problem, method, where, pay_and_act)
    measured = {"step": steps, **measure(state, problem, evaluate)}
    result = Result.of(problem, state, {name: np.asarray(value)[None] for name, value in measured.items()}, report)
    if folder is not None:
        result.save(folder)
    return result


def _as_drawn(
    report: PrivacyReport, notes: Sequence[Charge], sizes: Mapping[str, np.ndarray], steps: int
) -> PrivacyReport:
    """The report with each release as it is drawn, for the first agent at the first step."""
    events = []
    for note in notes:
        assert note.sampling is not None
        shares = [int(note.sampling.denominator(int(sizes[level][0]), 0)) for level in note.levels]
        grid = discrete.on_grid(note.release, math.lcm(*shares))
        often = note.batches * note.times * (1 if note.phase == "init" else steps)
        events.append(f"{note.release.name}: {grid}, {note.sampling}, {often} times")
    return replace(report, events=tuple(events), caveats=(*report.caveats, EXACT))
