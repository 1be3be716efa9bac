"""One schedule object serves the compiled run and the accountant."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.schedules import Constant, Decay, Linear, Ratio, Scaled, schedule

SCHEDULES = [
    Constant(0.3),
    Constant((0.1, 0.2, 0.3)),
    Decay(2.0, 0.5),
    Decay((1.0, 2.0, 3.0), (0.5, 0.6, 0.7), offset=2),
    Linear((1.0, 2.0, 3.0), 0.5, steps=4),
    Scaled(Decay(1.0, -0.25), 3.0),
    Ratio(Decay(1.0, 0.9, offset=2), Decay(0.05, 0.4)),
]


@pytest.mark.parametrize("made", SCHEDULES, ids=str)
def test_drawn_and_charged_values_agree(made):
    steps = np.arange(7)
    for agent in range(3):
        charged = np.broadcast_to(made(steps, agent), 7)
        drawn = jax.jit(jax.vmap(lambda t, agent=agent: jnp.asarray(made(t, jnp.int32(agent)), jnp.float32)))(steps)
        np.testing.assert_allclose(drawn, charged, rtol=1e-6)


def test_numbers_lists_and_schedules_become_schedules():
    assert schedule(2) == Constant(2.0)
    assert schedule([1, 2]) == Constant((1.0, 2.0))
    assert schedule(Decay(1.0, 1.0)) == Decay(1.0, 1.0)
    assert hash(schedule(2.0)) == hash(Constant(2.0))


def test_agents_are_counted_and_must_agree():
    assert Decay((1.0, 2.0), 0.5).agents == 2
    assert Ratio(Constant(1.0), Constant((1.0, 2.0))).agents == 2
    with pytest.raises(ValueError, match=r"\[2, 3\] agents"):
        _ = Decay((1.0, 2.0), (0.1, 0.2, 0.3)).agents
