"""Run each agent on a thread of its own, holding its own records only; messages travel by a transport.

Agents are as separate as in a deployment: see `sottovoce.runtime.lone_agent`.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.accounting.trace import Trace
from sottovoce.data.sealed import Sealed
from sottovoce.runtime.interpreter import Answer
from sottovoce.runtime.keys import common_key, secret_key
from sottovoce.runtime.layout import Layout
from sottovoce.runtime.lone_agent import BY_ITSELF, Drawn, LoneAgent, LoneAnswers, NoiseSource, own_records, programs_of
from sottovoce.runtime.place import WholePlace
from sottovoce.runtime.sums.keys import Secrets, digest
from sottovoce.runtime.sums.member import Member
from sottovoce.runtime.sums.roster import Roster
from sottovoce.runtime.sums.session import Session
from sottovoce.runtime.transport import QueueTransport, Stopped, Transport


def queues(agents: int) -> Sequence[Transport]:
    """Return one transport by queues, for all agents of this process.

    >>> len(queues(3))
    3
    """
    return [QueueTransport()] * agents


class ThreadPlace(WholePlace):
    """Run each agent on a thread of its own.

    `pay`, `observe` and `run` are those of each `LoneAgent`. `connect(agents)` is called for `begin` and for each
    stretch of steps: it returns each agent's transport.
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
        observe: Callable[[LoneAnswers], Answer] = lambda answers: answers,
        run: str = "",
        connect: Callable[[int], Sequence[Transport]] = queues,
        drawn: Sequence[Drawn] | None = None,
    ) -> None:
        super().__init__(trace, problem, deployed=noise == "discrete")
        programs, drawn = programs_of(trace, chunk), [BY_ITSELF] * len(roots) if drawn is None else drawn
        self.agents = [
            LoneAgent(me, programs, own, root, noise, pay, observe, run, drawn=draws)
            for me, (own, root, draws) in enumerate(zip(records, roots, drawn))
        ]
        self.connect = connect

    @classmethod
    def simulated(cls, trace: Trace, problem: Any, layout: Layout, root: jax.Array, chunk: int) -> "ThreadPlace":
        """Return the place whose states are those of the array with this root key, or with these, one per agent."""
        agents = range(layout.population.parties)
        roots = list(jnp.broadcast_to(root, len(agents)))
        return cls(trace, problem, [own_records(layout, me) for me in agents], roots, chunk)

    @classmethod
    def deployed(
        cls, trace: Trace, problem: Any, layout: Layout, chunk: int, pay: Callable[[int, int], None], run: str = ""
    ) -> "ThreadPlace":
        """Return the place with exact noise and coins from the operating system; keys for own choices are secret."""
        agents = range(layout.population.parties)
        records, roots = [own_records(layout, me) for me in agents], [secret_key() for _ in agents]
        return cls(trace, problem, records, roots, chunk, "discrete", pay, run=run)

    @classmethod
    def summed(
        cls, trace: Trace, problem: Any, layout: Layout, chunk: int, pay: Callable[[int, int], None], run: str = "",
        attempt: int = 0,
    ) -> "ThreadPlace":  # fmt: skip
        """Return the place of a program whose one agent's records lie with the parties of the layout.

        Each place is a session with fresh secrets: what is drawn anew after an interrupt is another release.
        """
        summed = trace.known.summed
        assert summed is not None
        own = [Secrets.fresh(name) for name in summed.holders.names]
        about = digest([run, trace.identity])
        roster = Roster.of([one.card for one in own], summed.trust, summed.holders.sizes, about, attempt)
        members = [Member.of(Session.begin(one, roster)) for one in own]
        records = [own_records(layout, me) for me in range(len(own))]
        roots = [common_key(roster.digest)] * len(own)
        return cls(trace, problem, records, roots, chunk, "discrete", pay, run=run, drawn=members)

    def begin(self) -> list[Any]:
        """Return the first state."""
        return self._together(lambda agent, transport: agent.begin(transport))[0]

    def advance(self, state: list[Any], first: int, count: int) -> tuple[list[Any], np.ndarray]:
        """Run `count` steps of every agent."""
        held = [np.asarray(leaf) if jnp.issubdtype(leaf.dtype, np.number) else leaf for leaf in state]
        own = [[leaf[agent.role] for leaf in held] for agent in self.agents]
        return self._together(lambda agent, transport: agent.advance(transport, own[agent.me], first, count))

    def _together(self, life: Callable[[LoneAgent, Transport], tuple[list[Any], Any]]) -> tuple[list[Any], np.ndarray]:
        """Run all lives, each on a thread; return the states of all roles, stacked, and the first broken steps.

        Those who hold one agent's records together have its state each, made of the same totals: one of them is enough.
        """
        states, broken = zip(*on_threads(self.agents, self.connect(len(self.agents)), life))
        by_role = dict(zip((agent.role for agent in self.agents), states))
        return [jnp.stack(leaves) for leaves in zip(*by_role.values())], np.min(np.stack(broken), axis=0)


def on_threads(
    members: Sequence[Any], transports: Sequence[Transport], life: Callable[[Any, Transport], Any]
) -> list[Any]:
    """Run ``life(member, transport)`` of all members, each on a thread; return what each returned, in their order.

    If one fails, the others are told that it is gone, and its error is raised here.

    >>> from types import SimpleNamespace
    >>> on_threads([SimpleNamespace(me=0), SimpleNamespace(me=1)], queues(2), lambda member, transport: member.me)
    [0, 1]
    """
    ends: list[Any] = [None] * len(members)
    failures = list[BaseException]()

    def one(number: int, transport: Transport) -> None:
        try:
            ends[number] = life(members[number], transport)
        except BaseException as failure:
            failures.append(failure)
        finally:
            transport.leave(members[number].me)

    threads = [threading.Thread(target=one, args=pair, daemon=True) for pair in enumerate(transports)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        for transport in transports:
            transport.stop()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        raise
    causes = [failure for failure in failures if not isinstance(failure, Stopped)] or failures
    if causes:
        raise causes[0]
    return ends
