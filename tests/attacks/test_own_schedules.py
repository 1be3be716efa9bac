"""Noise by a schedule of the user's own: what is drawn is what is charged, whatever the schedule prints or compares."""

import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv

PARTS = [np.zeros((50, 400), np.float32)]
PROBLEM = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), x0=jnp.zeros(400))


class Level(sv.schedules.Schedule):
    """Prints nothing of itself, is compared by identity, and may change."""

    def __init__(self, value):
        self.value = value

    def __call__(self, t, agent=0):
        return self.value + 0.0 * t

    @property
    def agents(self):
        return None


def noisy(method, share=False):
    how = {"steps": 1, "seed": 0, "performance": sv.Performance(share=share)}
    result = sv.run(PROBLEM, PARTS, method, **how)
    return result.privacy.epsilon, np.asarray(result.x)


def sgd(noise):
    return sv.methods.DpSgd(rate=1.0, gradient=sv.Release(1.0, noise), sampling=sv.Full())


@pytest.mark.parametrize("share", [False, True])
def test_two_schedules_that_print_alike_draw_their_own_noise(share):
    (high, quiet), (low, loud) = (noisy(sgd(Level(value)), share) for value in (0.001, 1.0))
    assert high > 100 * low
    np.testing.assert_allclose([np.std(quiet), np.std(loud)], [0.001, 1.0], rtol=0.2)
    assert abs(np.corrcoef(quiet, loud)[0, 1]) < 0.3  # who sees both cannot subtract the noise


def test_a_schedule_that_is_changed_between_two_runs_draws_what_is_charged():
    level = Level(0.001)
    method = sgd(level)
    noisy(method)
    level.value = 1.0
    epsilon, x = noisy(method)
    assert epsilon == noisy(sgd(1.0))[0]
    np.testing.assert_allclose(np.std(x), 1.0, rtol=0.2)


class Fading(sv.schedules.Schedule):
    """Much noise while an account asks, and little when a run does."""

    def __init__(self):
        self.asked = 0

    def __call__(self, t, agent=0):
        self.asked += 1
        return (1.0 if self.asked < 12 else 1e-3) + 1e-6 * self.asked + 0.0 * t

    @property
    def agents(self):
        return None


def test_noise_that_differs_each_time_it_is_asked_for_is_refused():
    """Stated by the noise of one answer, drawn with another one: 0.7 of noise 1 against 20 852 of noise 0.001."""
    problem = sv.Minimize(lambda x, r: jnp.sum(x * r), x0=jnp.zeros(2))
    method = sv.methods.DpSgd(0.1, sv.Release(1.0, Fading()), sv.Full())
    with pytest.raises(ValueError, match=r"noise by Fading differs each time.*function of the step and the agent"):
        sv.run(problem, [np.ones((10, 2), np.float32)], method, steps=1)
