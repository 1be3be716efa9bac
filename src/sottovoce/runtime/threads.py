"""Each agent on a thread of its own, holding its own records only; messages travel through queues.

This is the shape of a deployment. Example: the step of DP-SGD is three compiled pieces (up to the release, up to the
exchange, after it); at the exchange the thread sends its value to its neighbours and waits for theirs. With
``noise="discrete"`` batches and noise come from the operating system and are exact (`sottovoce.privacy.exact_gate`).
"""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from sottovoce.accounting.trace import Trace
from sottovoce.data.sealed import Sealed
from sottovoce.methods import equations
from sottovoce.methods.agent import Known
from sottovoce.privacy import exact_gate
from sottovoce.runtime import answers, mixing
from sottovoce.runtime.answers import BatchRows, Moment
from sottovoce.runtime.interpreter import Answer, play, walk
from sottovoce.runtime.keys import secret_key, step_key
from sottovoce.runtime.layout import Layout, alone
from sottovoce.runtime.place import NEVER, RowsPlace, public

NoiseSource = Literal["simulated", "discrete"]
_GONE = object()  # what an agent that failed leaves in the others' inboxes


class Stopped(Exception):
    """The run was interrupted: a thread ends without a result."""


@dataclass
class Post:
    """The queues between agents for one stretch of steps: ``inboxes[hearer][sender]``."""

    inboxes: list[dict[int, "queue.SimpleQueue[Any]"]]
    stopping: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def between(cls, agents: int) -> "Post":
        """Return empty queues between all pairs."""
        return cls([{sender: queue.SimpleQueue() for sender in range(agents)} for _ in range(agents)])

    def send(self, sender: int, hearer: int, value: Any) -> None:
        """Put a message into an inbox."""
        self.inboxes[hearer][sender].put(value)

    def receive(self, hearer: int, sender: int) -> Any:
        """Wait for the next message of a sender."""
        said = self.inboxes[hearer][sender].get()
        if said is _GONE:
            raise Stopped(f"agent {sender} is gone")
        return said

    def leave(self, agent: int) -> None:
        """Tell everybody that this agent says nothing more."""
        for inbox in self.inboxes:
            inbox[agent].put(_GONE)

    def stop(self) -> None:
        """End all threads at their next exchange or step."""
        self.stopping.set()
        for agent in range(len(self.inboxes)):
            self.leave(agent)


class Programs:
    """The compiled program of each equation that reads records, shared by all agents and steps."""

    def __init__(self, known: Known, chunk: int) -> None:
        self.known, self.chunk = known, chunk
        self._made: dict[int, Callable[..., Any]] = {}

    def draw(self, equation: JaxprEqn, moment: Moment) -> BatchRows:
        """Draw a batch by the simulation's coins."""

        def drawn(index: Any, t: Any, key: Any) -> Any:
            return answers.draw(Moment(self.known, index, t, key, {}, self.chunk), equation).rows

        program = self._made.setdefault(id(equation), jax.jit(drawn))
        return BatchRows(program(moment.index, moment.t, moment.key), equation.params["sampling"])

    def read(self, equation: JaxprEqn, moment: Moment, values: list[Any]) -> list[Any]:
        """Compute a simulated `release` or `mean`."""
        sampling = values[0].sampling

        def computed(records: Any, rows: Any, operands: Any, index: Any, t: Any, key: Any) -> list[Any]:
            now = Moment(self.known, index, t, key, records, self.chunk)
            mean = answers.mean(now, equation, [BatchRows(rows, sampling), *operands])
            noisy = equation.primitive is equations.release_p
            return jax.tree.leaves(answers.noised(now, equation, mean) if noisy else mean)

        program = self._made.setdefault(id(equation), jax.jit(computed))
        return program(dict(moment.records), values[0].rows, values[1:], moment.index, moment.t, moment.key)


@dataclass(frozen=True)
class ThreadAnswers:
    """Answers of one agent on its thread."""

    me: int
    moment: Moment
    programs: Programs
    post: Post
    noise: NoiseSource
    compiled: ClassVar[bool] = True  # each piece between two stops is a program of its own

    def __call__(self, equation: JaxprEqn, values: list[Any]) -> list[Any]:
        """Return an equation's results."""
        if self.post.stopping.is_set():
            raise Stopped("the run was interrupted")
        kind, moment = equation.primitive, self.moment
        if kind is equations.mix_p:
            return self.mix(equation, values)
        if kind is equations.loop_p:
            return self.loop(equation, values)
        if kind is equations.key_p:
            return [moment.named(equation)]
        if self.noise == "discrete":
            return self.exact(equation, values)
        if kind is equations.sample_p:
            return [self.programs.draw(equation, moment)]
        if kind is equations.tell_p:
            return answers.noised(moment, equation, values)
        return self.programs.read(equation, moment, values)

    def exact(self, equation: JaxprEqn, values: list[Any]) -> list[Any]:
        """Answer as deployed: secret coins, whole-number sums, exact noise."""
        t = int(self.moment.t)
        if equation.primitive is equations.sample_p:
            sampling, counts = equation.params["sampling"], self.moment.known.population.counts
            rows = {level: exact_gate.draw(sampling, int(n[self.me]), t) for level, n in sorted(counts.items())}
            return [BatchRows(rows, sampling)]
        release = equation.params["release"]
        if equation.primitive is not equations.release_p:
            raise ValueError(exact_gate.PRINTED.format(release.name))
        readings, at = self.moment.readings(equation.params["asked"], values, values[0].sampling)
        return jax.tree.leaves(exact_gate.release(readings, at, release, t, self.me, self.moment.chunk))

    def mix(self, equation: JaxprEqn, values: list[Any]) -> list[Any]:
        """Send to those who hear, wait for those who are heard, add in the order of their numbers."""
        network, over = self.moment.known.network, equation.params["over"]
        column = network.matrix(over).tocsc()[:, [self.me]].tocoo()
        for hearer, weight in zip(column.row, column.data):
            if hearer != self.me and weight != 0:
                self.post.send(self.me, int(hearer), values)
        lists = mixing.neighbours(network, over, equation.params["others_only"])
        total = [jnp.zeros_like(value) for value in values]
        for sender, weight in zip(lists.senders[self.me], lists.weights[self.me]):
            if weight != 0:
                said = values if sender == self.me else self.post.receive(self.me, int(sender))
                total = [mine + weight * other for mine, other in zip(total, said)]
        return total

    def loop(self, equation: JaxprEqn, values: list[Any]) -> list[Any]:
        """Run the turns one by one: messages inside must really be sent."""
        body, consts = equation.params["body"], equation.params["consts"]

        def turn(k: Any, carry: list[Any]) -> list[Any]:
            return play(walk(body, (), [*values[:consts], *carry], compiled=True), self.inside(equation, k))

        return self.repeat(equation.params["times"], turn, list(values[consts:]))

    def inside(self, loop: JaxprEqn, turn: Any) -> "ThreadAnswers":
        """Return the answers inside one turn of a loop."""
        return ThreadAnswers(self.me, self.moment.inside(loop, turn), self.programs, self.post, self.noise)

    def repeat(self, times: int, turn: Callable[[Any, Any], Any], carry: Any) -> Any:
        """Return the carry after all turns."""
        for k in range(times):
            carry = turn(k, carry)
        return carry


class ThreadPlace(RowsPlace):
    """One thread per agent.

    `pay(agent, t)` is called by each agent before `init` (with step 0) and before each of its steps, so that a deployed
    agent charges its own ledger before it releases anything; to pay twice for a step is to pay once. `observe` may wrap
    an agent's answers, for an audit.
    """

    def __init__(
        self,
        trace: Trace,
        problem: Any,
        records: Sequence[Mapping[str, Sealed]],
        roots: Sequence[jax.Array],
        chunk: int,
        noise: NoiseSource = "simulated",
        pay: Callable[[int, int], None] = lambda agent, t: None,
        observe: Callable[[ThreadAnswers], Answer] = lambda answers: answers,
    ) -> None:
        super().__init__(trace, problem, deployed=noise == "discrete")
        self.records, self.roots, self.noise, self.pay, self.observe = records, roots, noise, pay, observe
        self.programs = _programs(trace, chunk)

    @classmethod
    def simulated(cls, trace: Trace, problem: Any, layout: Layout, root: jax.Array, chunk: int) -> "ThreadPlace":
        """Return the place whose states are those of the array with this root key, or with these, one per agent."""
        agents = range(layout.population.parties)
        roots = list(jnp.broadcast_to(root, len(agents)))
        return cls(trace, problem, [own_records(layout, me) for me in agents], roots, chunk)

    @classmethod
    def deployed(
        cls, trace: Trace, problem: Any, layout: Layout, chunk: int, pay: Callable[[int, int], None]
    ) -> "ThreadPlace":
        """Return the place with exact noise and coins from the operating system; keys for own choices are secret."""
        agents = range(layout.population.parties)
        records, roots = [own_records(layout, me) for me in agents], [secret_key() for _ in agents]
        return cls(trace, problem, records, roots, chunk, "discrete", pay)

    def begin(self) -> list[Any]:
        """Return the first state."""
        return self._together(lambda me, post: self._init(me, post))[0]

    def advance(self, state: list[Any], first: int, count: int) -> tuple[list[Any], np.ndarray]:
        """Run `count` steps of every agent."""
        own = [[leaf[me] for leaf in state] for me in range(len(self.records))]
        return self._together(lambda me, post: self._steps(me, post, own[me], first, count))

    def _init(self, me: int, post: Post) -> tuple[list[Any], np.ndarray]:
        first = self.trace.init
        self.pay(me, 0)  # what `init` releases is charged with step 0
        index = jnp.int32(me)
        answer = self._answers(me, "init", 0, post)
        return play(walk(first.jaxpr, first.consts, [index], compiled=True), answer), np.empty(0, np.int32)

    def _steps(self, me: int, post: Post, state: list[Any], first: int, count: int) -> tuple[list[Any], np.ndarray]:
        step, shown = self.trace.step, public(self.trace)
        broken = np.full(len(shown), NEVER, np.int32)
        for t in range(first, first + count):
            self.pay(me, t)  # step 0 again: where a run goes on from its first state, `init` has not paid for it
            answer = self._answers(me, "step", t, post)
            arguments = [jnp.int32(me), jnp.int32(t), *state]
            state = play(walk(step.jaxpr, step.consts, arguments, compiled=True), answer)
            fine = np.array([bool(jnp.isfinite(state[leaf]).all()) for leaf in shown], bool)
            broken = np.where(fine, broken, np.minimum(broken, t)).astype(np.int32)
        return state, broken

    def _answers(self, me: int, phase: str, t: int, post: Post) -> Answer:
        index, now = jnp.int32(me), jnp.int32(t)
        key = step_key(self.roots[me], index, phase, now)
        moment = Moment(self.trace.known, index, now, key, self.records[me], self.programs.chunk)
        return self.observe(ThreadAnswers(me, moment, self.programs, post, self.noise))

    def _together(self, life: Callable[[int, Post], tuple[list[Any], np.ndarray]]) -> tuple[list[Any], np.ndarray]:
        """Run all agents' lives, each on a thread; return their states, stacked, and the first broken steps."""
        agents = len(self.records)
        post, ends, failures = Post.between(agents), [None] * agents, list[BaseException]()

        def one(me: int) -> None:
            try:
                ends[me] = life(me, post)  # type: ignore[call-overload]
            except BaseException as failure:
                failures.append(failure)
                post.leave(me)

        threads = [threading.Thread(target=one, args=(me,), daemon=True) for me in range(agents)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:
            post.stop()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            raise
        causes = [failure for failure in failures if not isinstance(failure, Stopped)] or failures
        if causes:
            raise causes[0]
        states, broken = zip(*ends)
        return [jnp.stack(leaves) for leaves in zip(*states)], np.min(np.stack(broken), axis=0)


@lru_cache(maxsize=16)
def _programs(trace: Trace, chunk: int) -> Programs:
    """Return the programs of a trace: another run of it finds them compiled."""
    return Programs(trace.known, chunk)


def own_records(layout: Layout, me: int) -> dict[str, Sealed]:
    """Return one agent's records by level; nobody else's are held.

    >>> from sottovoce.runtime.layout import lay_out
    >>> own_records(lay_out([np.zeros(5), np.zeros(3)]), 1)["records"].order.shape
    (3,)
    """
    counts = layout.population.counts
    return {level: alone(sealed, me, int(counts[level][me])) for level, sealed in layout.sealed.items()}
