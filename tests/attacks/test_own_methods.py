"""Attacks by methods of one's own: what they inherit, and what the losses in their releases do."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.methods import DpMixSgd
from sottovoce.methods.averaged import Averaged

SETTINGS = (0.1, 0.1, sv.Full(), sv.Release(1.0, 1.0), sv.Release(1.0, 1.0))


@dataclass(frozen=True)
class _Chatty(DpMixSgd):
    """The printed design, which says everything 51 times: stated 0.49, true 4.3."""

    def step(self, problem, state, agent):
        after = super().step(problem, state, agent)
        for _ in range(50):
            agent.tell(self.release_x, after.estimate)
        return after


@dataclass(frozen=True)
class _Renamed(DpMixSgd):
    """The printed design under another name."""


def test_a_proof_does_not_cover_code_that_a_subclass_changes():
    population = sv.Population([50])
    proved = sv.account(DpMixSgd(*SETTINGS, design="printed"), population, steps=5).epsilon
    assert proved == pytest.approx(0.486, abs=1e-3)
    assert sv.account(_Renamed(*SETTINGS, design="printed"), population, steps=5).epsilon == proved
    for method in (_Chatty(*SETTINGS, design="printed"), Averaged(_Chatty(*SETTINGS, design="printed"))):
        assert sv.account(method, population, steps=5).epsilon == np.inf
    report = sv.account(_Chatty(*SETTINGS, design="printed"), population, steps=5)
    assert any("_Chatty changes step of a design" in line for line in report.caveats)


class State(NamedTuple):
    """One variable."""

    x: Any


SEEN: list[Any] = []


def keep(value):
    SEEN.append(np.asarray(value))


@jax.custom_vjp
def watched(value):
    return value


watched.defvjp(lambda value: (value, value), lambda value, slope: (jax.debug.callback(keep, value), (slope,))[1])


@dataclass(frozen=True)
class _Spy(sv.methods.Method):
    """The loss that it releases calls back to Python: directly, or in the derivative alone."""

    gradient: sv.Release
    where: str

    def init(self, problem, agent):
        return State(problem.x0)

    def step(self, problem, state, agent):
        def loss(x, record):
            if self.where == "value":
                jax.debug.callback(keep, record)
            elif self.where == "derivative":
                return watched(problem.loss(x, record))
            return problem.loss(x, record)

        def turn(x, agent):
            return x - agent.release(self.gradient, loss, at=x, batch=agent.sample(sv.Full()))

        return State(agent.loop(2, turn, state.x) if self.where == "value" else turn(state.x, agent))


@pytest.mark.parametrize("where", ["value", "derivative"])
def test_a_loss_inside_a_method_does_not_call_back_to_python(where):
    """A callback inside a release reads every record as it is: ten records of ten, at a stated epsilon of 0.7."""
    problem = sv.Minimize(lambda x, r: jnp.sum(x * r), x0=jnp.zeros(2))
    parts = [np.ones((10, 2), np.float32)]
    with pytest.raises(ValueError, match=r"_Spy\.step calls back to Python \(debug_callback\)"):
        sv.run(problem, parts, _Spy(sv.Release(1.0, 1.0), where), steps=1)
    assert not SEEN
    sv.run(problem, parts, _Spy(sv.Release(1.0, 1.0), "nowhere"), steps=1)
