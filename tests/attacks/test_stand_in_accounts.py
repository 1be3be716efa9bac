"""Accounts of a stand-in problem: where what is released depends on the problem, the account asks for it."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.privacy.sampling import Sampling

ROWS = np.ones((500, 2), np.float32)


class _State(NamedTuple):
    x: Any


@dataclass(frozen=True)
class _PerLayer(sv.methods.Method):
    """DP-SGD with a clip for each layer."""

    rate: float
    gradient: sv.Release
    sampling: Sampling

    def init(self, problem, agent):
        return _State(problem.x0)

    def step(self, problem, state, agent):
        batch = agent.sample(self.sampling)
        leaves, tree = jax.tree.flatten(state.x)
        moved = []
        for k, leaf in enumerate(leaves):

            def of_layer(at, record, k=k):
                return problem.loss(jax.tree.unflatten(tree, [*leaves[:k], at, *leaves[k + 1 :]]), record)

            slope = agent.release(self.release_of(leaf), of_layer, at=leaf, batch=batch)
            moved.append(leaf - self.rate * slope)
        return _State(jax.tree.unflatten(tree, moved))

    def release_of(self, leaf):
        return self.gradient


@dataclass(frozen=True)
class _BySize(_PerLayer):
    """Has less noise where a leaf is large."""

    def release_of(self, leaf):
        return self.gradient.louder(1 / math.sqrt(max(leaf.size, 1)))


@dataclass(frozen=True)
class _ByModel(_PerLayer):
    """Releases twice where a linear model is known."""

    def step(self, problem, state, agent):
        if problem.linear is not None:
            state = super().step(problem, state, agent)
        batch, x0 = agent.sample(self.sampling), state.x
        slope = agent.release(self.gradient, problem.loss, at=x0, batch=batch)
        return _State(jax.tree.map(lambda x, g: x - self.rate * g, x0, slope))


METHODS = [kind(0.1, sv.Release(1.0, 0.02), sv.Poisson(50)) for kind in (_PerLayer, _BySize, _ByModel)]


def problem_of(layers):
    start = {f"layer{k}": jnp.zeros(2) for k in range(layers)}
    return sv.Minimize(lambda x, r: sum(jnp.sum((v - r) ** 2) for v in x.values()), x0=start)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("ask", [sv.account, lambda *given, **more: sv.calibrate(*given, epsilon=1.0, **more)])
def test_an_account_that_depends_on_the_problem_asks_for_it(method, ask):
    """Stated 3.59 where the run has no finite epsilon; calibrated to 1.0, it ran at 8.41."""
    for data in (sv.Population([500]), [ROWS]):
        with pytest.raises(ValueError, match=r"depends on the problem: give problem="):
            ask(method, data, steps=20)


def test_a_population_that_knows_a_record_gives_the_account_of_the_problem():
    method, problem = METHODS[0].louder(30.0), problem_of(3)
    run = sv.account(method, [ROWS], steps=20, problem=problem)
    assert sv.account(method, sv.Population([500], record=ROWS[0]), steps=20, problem=problem).epsilon == run.epsilon
    shapes = jax.ShapeDtypeStruct((2,), jnp.float32)
    with pytest.raises(TypeError, match=r"Population\(..., record=...\)"):
        sv.account(method, sv.Population([500]), steps=20, problem=problem)
    assert sv.Population([5], record=ROWS[0]) == sv.Population([5], record=shapes) != sv.Population([5])


def test_levels_have_records_of_their_own():
    both = {"upper": np.zeros(2, np.float32), "lower": np.zeros(3, np.float32)}
    known = sv.Population({"upper": [20], "lower": [30]}, record=both).records
    assert {level: one.shape for level, one in known.items()} == {"upper": (2,), "lower": (3,)}


for kind in (_PerLayer, _BySize, _ByModel):
    sv.methods.Method.registry.pop(kind.__name__, None)
