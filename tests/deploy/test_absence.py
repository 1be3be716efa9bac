"""When some go on without somebody, averages stay averages and sums stay sums."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import lay_out
from sottovoce.runtime.socket_transport import SocketTransport
from sottovoce.runtime.threads import ThreadPlace
from sottovoce.runtime.transport import Patience

GONE, FIRST, BACK = 2, 1, 4  # agent 2 is away in rounds 1 to 3


class Held(NamedTuple):
    x: Any


@dataclass(frozen=True)
class Averages(sv.methods.Method):
    """Each agent starts at its own number; then all average."""

    solves = (sv.Minimize,)

    def init(self, problem, agent):
        return Held(problem.x0 + agent.index)

    def step(self, problem, state, agent):
        return Held(agent.mix(state.x))

    @classmethod
    def examples(cls):
        return {}


@dataclass(frozen=True)
class Pushes(Averages):
    """Each agent hands a part of what it has to those who hear it."""

    over: ClassVar[tuple[str, ...]] = ("pull", "push")

    def step(self, problem, state, agent):
        given = 0.3 * agent.sent("push")
        return Held((1 - given) * state.x + 0.3 * agent.mix(state.x, over="push"))


del sv.methods.Method.registry["Averages"], sv.methods.Method.registry["Pushes"]
DIRECTED = sv.networks.directed(pull=[(0, 1), (0, 2), (1, 3)], push=[(1, 0), (2, 0), (3, 1), (0, 2), (2, 3)])


@pytest.mark.parametrize(("method", "network"), [(Averages(), sv.networks.ring(4)), (Pushes(), DIRECTED)])
def test_nothing_is_lost_or_made_while_somebody_is_away(method, network):
    parts = [np.zeros((3, 1), np.float32)] * 4
    problem = sv.Minimize(lambda x, record: jnp.sum((x - record) ** 2), jnp.zeros(1))
    trace = account_of(method, parts, 6, network, problem=problem).trace

    def connect(agents):
        made = SocketTransport.local(agents, "", Patience(20.0))
        for me, one in enumerate(made):
            one.away = lambda agent, round, silent, me=me: FIRST <= round < BACK and GONE in (agent, me)
        return made

    place = ThreadPlace.simulated(trace, problem, lay_out(parts), root_key(0), 16)
    place.connect = connect
    states = [place.begin()]
    for step in range(6):
        states.append(place.advance(states[-1], step, 1)[0])
    values = np.array([np.asarray(state[0])[:, 0] for state in states])
    np.testing.assert_allclose(values.sum(axis=1), 6.0, rtol=1e-6)
    np.testing.assert_array_equal(values[FIRST : BACK + 1, GONE], values[FIRST, GONE])  # it computes alone
    others = np.delete(values, GONE, axis=1)
    assert not np.allclose(others[FIRST], others[BACK])  # the others go on
    assert values[BACK + 1, GONE] != values[BACK, GONE]  # and it is back
