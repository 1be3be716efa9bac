"""Run one agent by itself: its program, its own records, and a transport to the others.

What an agent computes between two exchanges is one compiled program, with the sum of what it received and its random
keys inside. Example: the step of DP-SGD is one program up to the exchange and one after it. With ``noise="discrete"``
batches and noise come from the operating system and are exact (`sottovoce.privacy.exact_gate`), so drawing a batch and
releasing are stops too.

A *holder* has records and answers; a *role* is an agent's number in the program. Each agent of a program has its own
holder, so the two are one number, except where all parties add up (`sottovoce.runtime.sums`): then the program has one
agent, and every party holds a part of its records and answers in that role (`Drawn`).

`ThreadPlace` runs one such agent per thread; `run_agent` runs one alone, in a process that knows nobody else's records.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn
from jax.extend.core import Literal as Constant

from sottovoce.accounting.account import check_network
from sottovoce.accounting.trace import Known, Trace, trace
from sottovoce.data.parties import Parties
from sottovoce.data.population import Population
from sottovoce.data.sealed import Sealed
from sottovoce.methods import equations
from sottovoce.methods.base import Method
from sottovoce.networks import Network
from sottovoce.privacy import exact_gate
from sottovoce.privacy.discrete import GridRelease
from sottovoce.privacy.exact_gate import Noised
from sottovoce.privacy.gate import Reading
from sottovoce.privacy.sampling import Rows
from sottovoce.runtime.answers import BatchRows, Moment
from sottovoce.runtime.array import ArrayAnswers, Spec
from sottovoce.runtime.compiler import require_right_sums
from sottovoce.runtime.exchange import Edges, Heard, edges_of, settled
from sottovoce.runtime.interpreter import Answer, Segment, contains, play, walk
from sottovoce.runtime.journal import NO_JOURNAL, Journal
from sottovoce.runtime.layout import Layout, alone, lay_out
from sottovoce.runtime.place import NEVER, public
from sottovoce.runtime.transport import Absent, Message, MessageId, Standing, Transport
from sottovoce.tracing import compiled

NoiseSource = Literal["simulated", "discrete"]
Turns = tuple[tuple[JaxprEqn, Any], ...]  # the loops that a moment is in, and their turns
STOPS = {
    "simulated": frozenset({equations.mix_p}),
    "discrete": equations.OURS - {equations.key_p, equations.loop_p},
}


class Programs:
    """Hold the compiled programs of a trace, shared by all agents and steps."""

    def __init__(self, trace: Trace, chunk: int) -> None:
        self.spec, self.shown = Spec(trace, chunk), public(trace)
        self._made: dict[tuple[Segment, str], Callable[..., list[Any]]] = {}
        self._alone: dict[int, Segment] = {}
        self._edges: dict[tuple[str, bool], Edges] = {}
        self.settle, self.finish = compiled(settled), compiled(self._finish)
        told = contains([*trace.init.jaxpr.eqns, *trace.step.jaxpr.eqns], frozenset({equations.tell_p}))
        self.standing: Standing = "disclosure" if told else "release"  # the standing of all messages

    def between(self, segment: Segment, phase: str, loops: Sequence[JaxprEqn]) -> Callable[..., list[Any]]:
        """Return the program of a segment, inside the loops that it always is in."""

        def computed(root: Any, index: Any, t: Any, turns: Sequence[Any], records: Any, values: Any) -> list[Any]:
            now = moment(self.spec, root, index, phase, t, tuple(zip(loops, turns)), records)
            return segment(*settled(values), answer=ArrayAnswers(self.spec, now))

        made = self._made.get((segment, phase))  # making a program costs more than running it
        return made or self._made.setdefault((segment, phase), compiled(computed))

    def edges(self, over: str, others_only: bool) -> Edges:
        """Return who talks to whom at an exchange."""
        found = self._edges.get((over, others_only))
        return found or self._edges.setdefault(
            (over, others_only), edges_of(self.spec.trace.known.network, over, others_only)
        )

    def alone(self, equation: JaxprEqn) -> Segment:
        """Return the segment that is one equation, for observers that want to see each answer."""
        inputs = dict.fromkeys(var for var in equation.invars if not isinstance(var, Constant))
        made = Segment((equation,), tuple(inputs), tuple(equation.outvars))
        return self._alone.setdefault(id(equation), made)

    def _finish(self, state: Sequence[Any], broken: Any, t: Any) -> tuple[list[Any], Any]:
        """Return the state, and when each public leaf was first not finite."""
        leaves = settled(state)
        fine = jnp.array([jnp.all(jnp.isfinite(leaves[leaf])) for leaf in self.shown], bool)
        return leaves, jnp.where(fine, broken, jnp.minimum(broken, t))


@lru_cache(maxsize=16)
def programs_of(trace: Trace, chunk: int) -> Programs:
    """Return the programs of a trace: another run of it finds them compiled."""
    return Programs(trace, chunk)


def moment(spec: Spec, root: Any, index: Any, phase: str, t: Any, turns: Turns, records: Any) -> Moment:
    """Return one agent's moment inside some loops' turns."""
    now = Moment.of(spec.trace.known, root, index, phase, t, records, spec.chunk)
    for loop, turn in turns:
        now = now.inside(loop, turn)
    return now


class Drawn(Protocol):
    """Say how a holder of records draws as deployed: by itself, or its part of what all holders draw together."""

    def batches(self, answers: "LoneAnswers", equation: JaxprEqn) -> list[Rows]:
        """Return the holder's rows of a batch of each level."""

    def noised(self, answers: "LoneAnswers", equation: JaxprEqn, readings: Sequence[Reading]) -> Noised:
        """Return what makes a noisy mean of the holder's sum of a release."""


class _ByItself:
    """Draw as an agent that has its records to itself."""

    def batches(self, answers: "LoneAnswers", equation: JaxprEqn) -> list[Rows]:
        """Draw from all records of the agent."""
        counts = answers.counts.values()
        return [exact_gate.draw(equation.params["sampling"], n, answers.t) for n in counts]

    def noised(self, answers: "LoneAnswers", equation: JaxprEqn, readings: Sequence[Reading]) -> Noised:
        """Return the grid's own noise."""
        return GridRelease.noised


BY_ITSELF: Drawn = _ByItself()


@dataclass(frozen=True)
class LoneAnswers:
    """Answer the equations of one agent, at one step: it holds its own records and talks to the others.

    `me` is its role: its number in the program.
    """

    me: int
    phase: str
    t: int
    root: Any
    records: Mapping[str, Sealed]
    programs: Programs
    transport: Transport
    noise: NoiseSource
    run: str
    journal: Journal = NO_JOURNAL
    drawn: Drawn = BY_ITSELF
    turns: Turns = ()
    compiled: ClassVar[bool] = True  # each piece between two stops is a program of its own

    @property
    def moment(self) -> Moment:
        """Return the agent's moment, for observers."""
        here = (self.root, jnp.int32(self.me), self.phase, jnp.int32(self.t), self.turns)
        return moment(self.programs.spec, *here, self.records)

    def __call__(self, equation: JaxprEqn, values: list[Any]) -> list[Any]:
        """Return an equation's results."""
        kind = equation.primitive
        if any(isinstance(value, Heard) for value in values):
            values = self.programs.settle(values)
        if kind is equations.mix_p:
            return self.mix(equation, values)
        if kind is equations.loop_p:
            return self.loop(equation, values)
        if kind in STOPS[self.noise]:
            return self.exact(equation, values)
        given = {var: value for var, value in zip(equation.invars, values) if not isinstance(var, Constant)}
        return self.compute(self.programs.alone(equation), list(given.values()))

    def compute(self, segment: Segment, values: list[Any]) -> list[Any]:
        """Run what lies between two stops."""
        loops, turns = [loop for loop, _ in self.turns], [np.int32(turn) for _, turn in self.turns]
        here = (self.root, np.int32(self.me), np.int32(self.t), turns)
        records = self.records if self.noise == "simulated" else {}
        return self.programs.between(segment, self.phase, loops)(*here, dict(records), values)

    def exact(self, equation: JaxprEqn, values: list[Any]) -> list[Any]:
        """Answer as deployed: secret coins, whole-number sums, exact noise; each is drawn once (`Journal`)."""
        place, counts = self.place(equation), self.counts
        drawn = self.journal.recall(place)
        if equation.primitive is equations.sample_p:
            if drawn is None:
                drawn = [np.asarray(part) for batch in self.drawn.batches(self, equation) for part in batch]
                self.journal.note(place, drawn)
            rows: Any = dict(zip(counts, zip(drawn[::2], drawn[1::2])))  # read by NumPy
            return [BatchRows(rows, equation.params["sampling"])]
        release = equation.params["release"]
        if equation.primitive is not equations.release_p:
            raise ValueError(exact_gate.PRINTED.format(release.name))
        if drawn is not None:
            return list(drawn)
        asked = equation.params["asked"]
        batch, leaves, closed_over = asked.split(values)
        readings = []
        for function, given in zip(asked.functions, closed_over):  # no comprehension: few frames up to the records
            whole = batch.sampling.denominator(counts[function.level], self.t)
            readings.append(Reading(self.records[function.level], function, given, batch.rows[function.level], whole))
        at = jax.tree.unflatten(asked.structure, leaves)
        noised, chunk = self.drawn.noised(self, equation, readings), self.programs.spec.chunk
        means = jax.tree.leaves(exact_gate.release(readings, at, release, self.t, self.me, chunk, noised))
        self.journal.note(place, means)
        return means

    @property
    def counts(self) -> dict[str, int]:
        """Return how many records (or units) the program's agent has, by level in order."""
        population = self.programs.spec.trace.known.population
        return {level: int(n[self.me]) for level, n in sorted(population.counts.items())}

    def place(self, equation: JaxprEqn) -> str:
        """Return the name of an equation's turn in the run, for the journal."""
        return f"{self.t} {self.tag(equation)}"

    def tag(self, equation: JaxprEqn) -> str:
        """Return the name of an equation's turn within the step: equations of two loops may have the same number."""
        turns = "".join(f", loop {loop.params['number']} turn {turn}" for loop, turn in self.turns)
        what = equation.params.get("over", equation.primitive.name)
        return f"{self.phase}: {what} {equation.params['number']}{turns}"

    def mix(self, equation: JaxprEqn, values: list[Any]) -> list[Any]:
        """Send to those who hear, wait for those who are heard; the sum is part of the next program."""
        over, others_only = equation.params["over"], equation.params["others_only"]
        edges = self.programs.edges(over, others_only)
        mine = Message(MessageId(self.run, self.t, self.me, self.tag(equation)), tuple(values), self.programs.standing)
        for hearer in edges.hearers[self.me]:
            self.transport.send(hearer, mine)
        said = [
            values if sender == self.me else self._heard(replace(mine.id, sender=sender), values, over)
            for sender in edges.senders[self.me]
        ]
        weights = edges.weights[self.me]
        if over == "push" and (kept := self._not_heard(edges)):
            said, weights = [*said, values], np.append(weights, np.float32(kept))
        if not said:
            return [jnp.zeros_like(value) for value in values]
        return [Heard(list(heard), weights) for heard in zip(*said)]

    def _heard(self, wanted: MessageId, values: list[Any], over: str) -> Sequence[Any]:
        """Wait for what a sender sends; if all go on without it, return a stand-in.

        The stand-in is what we send ourselves, so the weight goes to our own value: rows and columns of `mix` still sum
        to one. What is pushed along edges stays with the agent that would have sent it (`_not_heard`): the stand-in is
        zero.
        """
        try:
            return self.transport.receive(self.me, wanted, values)
        except Absent:
            return [jnp.zeros_like(value) for value in values] if over == "push" else values

    def _not_heard(self, edges: Edges) -> float:
        """Return the weight of what we push to agents that are away: we keep it, so that sums do not change."""
        away = [hearer for hearer in edges.hearers[self.me] if self.transport.away(hearer, self.t, False)]
        return sum(float(edges.weights[hearer][edges.senders[hearer].index(self.me)]) for hearer in away)

    def loop(self, equation: JaxprEqn, values: list[Any]) -> list[Any]:
        """Run the turns one by one: messages inside must really be sent."""
        body, consts = equation.params["body"], equation.params["consts"]

        def turn(k: Any, carry: list[Any]) -> list[Any]:
            inside = self.inside(equation, k)
            given = [*values[:consts], *carry]
            return play(walk(body, (), given, True, STOPS[self.noise], inside.compute), inside)

        return self.repeat(equation.params["times"], turn, list(values[consts:]))

    def inside(self, loop: JaxprEqn, turn: Any) -> "LoneAnswers":
        """Return the answers inside one turn of a loop."""
        return replace(self, turns=(*self.turns, (loop, turn)))

    def repeat(self, times: int, turn: Callable[[Any, Any], Any], carry: Any) -> Any:
        """Return the carry after all turns."""
        for k in range(times):
            carry = turn(k, carry)
        return carry


@dataclass(frozen=True)
class LoneAgent:
    """Run one agent by its program, its own records and its key.

    `pay(agent, t)` is called before `init` (with step 0) and before each step, so that a deployed agent charges its own
    ledger before it releases anything; a step that is paid for twice is charged once. `observe` may wrap the agent's
    answers, for an audit. Messages carry the name `run`. With a `journal`, exact noise that was drawn is not drawn
    again.

    `me` is the holder's number; its role is the same number, unless all hold the records of one agent (`drawn`).
    """

    me: int
    programs: Programs
    records: Mapping[str, Sealed]
    root: jax.Array
    noise: NoiseSource = "simulated"
    pay: Callable[[int, int], None] = lambda agent, t: None
    observe: Callable[[LoneAnswers], Answer] = lambda answers: answers
    run: str = ""
    journal: Journal = NO_JOURNAL
    drawn: Drawn = BY_ITSELF

    @property
    def role(self) -> int:
        """Return the agent's number in the program."""
        return self.me if self.drawn is BY_ITSELF else 0

    @classmethod
    def of(
        cls, me: int, own: Any, problem: Any, method: Method, population: Population, network: Network, steps: int,
        root: jax.Array, chunk: int = 1024, **how: Any,
    ) -> "LoneAgent":  # fmt: skip
        """Return agent `me` from its own part and public facts alone: everybody's sizes and the network.

        >>> import sottovoce as sv
        >>> from sottovoce.runtime.keys import root_key
        >>> problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(2))
        >>> method = sv.methods.DpSgd(1.0, sv.Release(clip=5.0, noise=0.1), sv.Full())
        >>> public = (sv.Population([4, 3]), sv.networks.ring(2))
        >>> LoneAgent.of(1, np.ones((4, 2)), problem, method, *public, steps=3, root=root_key(0))
        Traceback (most recent call last):
        ...
        ValueError: agent 1 has {'records': 4}, and the population says {'records': 3}: all must state the same sizes
        """
        require_right_sums()
        parties = Parties.of([own])
        layout = lay_out(parties)
        stated, held = (
            {level: int(n[agent]) for level, n in known.counts.items()}
            for known, agent in ((population, me), (layout.population, 0))
        )
        if stated != held:
            raise ValueError(f"agent {me} has {held}, and the population says {stated}: all must state the same sizes")
        known = Known(population, check_network(network, population.parties), steps, parties.records)
        return cls(me, programs_of(trace(method, problem, known), chunk), own_records(layout, 0), root, **how)

    def begin(self, transport: Transport) -> tuple[list[Any], Any]:
        """Return the first state, and that it was always finite."""
        self.pay(self.me, 0)  # what `init` releases is charged with step 0
        state = self._live("init", 0, transport, [np.int32(self.role)])
        return self.programs.finish(state, self._fine, np.int32(0))[0], self._fine

    def advance(self, transport: Transport, state: list[Any], first: int, count: int) -> tuple[list[Any], Any]:
        """Return the state `count` steps after step `first`, and when each public leaf was first not finite."""
        broken = self._fine
        for t in range(first, first + count):
            self.pay(self.me, t)  # step 0 again: where a run goes on from its first state, `init` has not paid for it
            state = self._live("step", t, transport, [np.int32(self.role), np.int32(t), *state])
            state, broken = self.programs.finish(state, broken, np.int32(t))
        return state, broken

    @property
    def _fine(self) -> np.ndarray:
        return np.full(len(self.programs.shown), NEVER, np.int32)

    def _live(self, phase: str, t: int, transport: Transport, arguments: list[Any]) -> list[Any]:
        """Return the state after `init` or after a step."""
        transport.check()
        trace = self.programs.spec.trace
        closed = trace.init if phase == "init" else trace.step
        own = LoneAnswers(
            self.role, phase, t, self.root, self.records, self.programs, transport, self.noise, self.run, self.journal,
            self.drawn,
        )  # fmt: skip
        answer = self.observe(own)
        stops = STOPS[self.noise] if answer is own else equations.OURS  # an observer wants to see each answer
        return play(walk(closed.jaxpr, closed.consts, arguments, True, stops, own.compute), answer)


def run_agent(agent: LoneAgent, transport: Transport, steps: int) -> tuple[list[Any], Any]:
    """Run one agent from its first state to the end, and leave; return what `LoneAgent.advance` returns.

    >>> import sottovoce as sv
    >>> from sottovoce.runtime.keys import root_key
    >>> from sottovoce.runtime.transport import QueueTransport
    >>> problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(2))
    >>> method = sv.methods.DpSgd(1.0, sv.Release(clip=5.0, noise=1e-6), sv.Full())
    >>> public = (sv.Population([4]), sv.networks.single())
    >>> agent = LoneAgent.of(0, np.ones((4, 2)), problem, method, *public, steps=3, root=root_key(0))
    >>> state, _ = run_agent(agent, QueueTransport(), steps=3)
    >>> np.round(state[0], 3).tolist()
    [1.0, 1.0]
    """
    try:
        state, _ = agent.begin(transport)
        return agent.advance(transport, state, 0, steps)
    finally:
        transport.leave(agent.me)


def own_records(layout: Layout, me: int) -> dict[str, Sealed]:
    """Return one agent's records by level; nobody else's are held.

    >>> from sottovoce.runtime.layout import lay_out
    >>> own_records(lay_out([np.zeros(5), np.zeros(3)]), 1)["records"].order.shape
    (3,)
    """
    counts = layout.population.counts
    return {level: alone(sealed, me, int(counts[level][me])) for level, sealed in layout.sealed.items()}
