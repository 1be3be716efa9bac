"""Un-noised means that try to leave an agent: in containers, through norms and reshapes, or never told at all."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import sottovoce as sv
from sottovoce import trees

RING = sv.networks.ring(2)
DATA = [np.random.default_rng(seed).normal(size=(50, 3)).astype(np.float32) for seed in range(2)]
PROBLEM = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), x0=jnp.zeros(3))


class State(NamedTuple):
    x: Any


@dataclass(frozen=True)
class _Leaky(sv.methods.Method):
    """Takes the exact mean and lets it out in the way of a subclass."""

    gradient: sv.Release
    sampling: Any

    def init(self, problem, agent):
        return State(problem.x0)

    def step(self, problem, state, agent):
        batch = agent.sample(self.sampling)
        mean = agent.mean(self.gradient, problem.loss, at=state.x, batch=batch)
        return State(self.leak(state.x, mean, agent))


@dataclass(frozen=True)
class _InContainer(_Leaky):
    def leak(self, x, mean, agent):
        return x - jax.tree.leaves(agent.mix({"g": [mean]}))[0]


@dataclass(frozen=True)
class _Norm(_Leaky):
    def leak(self, x, mean, agent):
        return agent.mix(x - trees.norm(mean))


@dataclass(frozen=True)
class _Inner(_Leaky):
    def leak(self, x, mean, agent):
        return agent.mix(x - trees.inner(mean, mean))


@dataclass(frozen=True)
class _Ravelled(_Leaky):
    def leak(self, x, mean, agent):
        return agent.mix(x - ravel_pytree(mean)[0])


@dataclass(frozen=True)
class _Rounded(_Leaky):
    def leak(self, x, mean, agent):
        return agent.mix(jnp.round(x - jnp.sort(mean)))


@dataclass(frozen=True)
class _Chosen(_Leaky):
    def leak(self, x, mean, agent):
        return agent.mix(jax.lax.cond(mean[0] > 0, lambda: x + 1, lambda: x))


@dataclass(frozen=True)
class _NeverTold(_Leaky):
    def leak(self, x, mean, agent):
        return x - mean


LEAKS = [_InContainer, _Norm, _Inner, _Ravelled, _Rounded, _Chosen]


@pytest.mark.parametrize("kind", LEAKS)
def test_a_mean_without_noise_is_not_sent_in_any_disguise(kind):
    """Attacks a03 and a03b: stated epsilon 0, "sound", while the exact mean went to the neighbours."""
    method = kind(sv.Release(5.0, 1.0), sv.Full())
    with pytest.raises(TypeError, match="a private value may not leave the agent"):
        sv.account(method, sv.Population([50, 50]), steps=1, network=RING)
    with pytest.raises(TypeError, match="a private value may not leave the agent"):
        sv.run(PROBLEM, DATA, method, steps=1, network=RING)


@pytest.mark.slow
def test_a_mean_that_is_never_told_is_not_covered_by_the_statement():
    """Attack a03: nothing was sent, so nothing was charged, but the result held the mean."""
    result = sv.run(PROBLEM, DATA, _NeverTold(sv.Release(5.0, 1.0), sv.Full()), steps=1, network=RING)
    assert not result.covered
    assert not result.releasable
