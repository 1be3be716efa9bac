"""Equal methods share a trace; methods that only look equal must not, because each would state another's epsilon."""

from dataclasses import dataclass, field, replace

import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.methods import DpSgd
from sottovoce.methods.base import Method
from sottovoce.privacy.release import Release

PROBLEM = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(2))
PARTS = [np.zeros((6, 2), np.float32)]


class _Plain(Method):
    """No dataclass: what it holds is not among its fields."""

    def __init__(self, noise):
        object.__setattr__(self, "made", DpSgd(rate=0.1, sampling=sv.Full(), gradient=Release(clip=1.0, noise=noise)))

    def init(self, problem, agent):
        return self.made.init(problem, agent)

    def step(self, problem, state, agent):
        return self.made.step(problem, state, agent)


@dataclass(frozen=True, eq=False)
class _ByIdentity(Method):
    made: DpSgd
    init, step = _Plain.init, _Plain.step


@dataclass(frozen=True)
class _Blind(Method):
    made: DpSgd = field(compare=False)
    init, step = _Plain.init, _Plain.step


class _Heir(DpSgd):
    """Inherits the equality of a dataclass, and holds more than it looks at."""

    def __init__(self, noise):
        super().__init__(rate=0.1, sampling=sv.Full(), gradient=Release(clip=1.0, noise=1.0))
        object.__setattr__(self, "louder", Release(clip=1.0, noise=noise, name="gradient"))

    def step(self, problem, state, agent):
        return DpSgd(rate=0.1, sampling=sv.Full(), gradient=self.louder).step(problem, state, agent)


def _holding(kind):
    return lambda noise: kind(_Plain(noise).made)


@pytest.mark.parametrize("make", [_Plain, _holding(_ByIdentity), _holding(_Blind), _Heir])
def test_methods_that_only_look_equal_state_their_own_epsilons(make):
    epsilons = [sv.account(make(noise), PARTS, steps=3, problem=PROBLEM).epsilon for noise in (1.0, 50.0)]
    assert epsilons[0] > 10 * epsilons[1]


class FromHalf(sv.methods.DpSgd):
    """Start at half of the problem's x0: with NumPy's own product this would be a captured array."""

    def init(self, problem, agent):
        return super().init(replace(problem, x0=problem.x0 * 0.5), agent)


def test_starts_given_as_numpy_arrays_are_traced():
    method = FromHalf(rate=0.1, gradient=sv.Release(1.0, 1.0), sampling=sv.Full())
    runs = [
        sv.run(sv.Minimize(lambda x, r: jnp.sum((x - r) ** 2), x0=x0), [jnp.ones((9, 2))], method, steps=2, seed=1).x
        for x0 in (np.ones(2), jnp.ones(2))
    ]
    np.testing.assert_array_equal(*runs)
