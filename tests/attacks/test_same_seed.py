"""Runs that differ do not draw the same noise, although their seeds are equal: who sees both could subtract it."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv

RECORDS = np.ones((20, 8), np.float32)


def flat(x, r):
    return 0.0 * jnp.sum(x * r)


def drawn(*, records=RECORDS, noise=1.0, loss=flat, agents=2, steps=1, seed=0, chunk=None):
    """The noise of agent 0's first step, at scale 1: losses without a slope leave nothing else."""
    method = sv.methods.DpSgd(rate=1.0, gradient=sv.Release(1.0, noise), sampling=sv.Full())
    performance = sv.Performance() if chunk is None else sv.Performance(chunk=chunk)
    network = sv.networks.isolated(agents)
    parts = [records, *[RECORDS.copy()] * (agents - 1)]
    problem = sv.Minimize(loss, jnp.zeros(8))
    result = sv.run(problem, parts, method, network=network, steps=steps, seed=seed, performance=performance)
    return np.asarray(result.agents.x[0]) / noise


@functools.cache
def usual():
    return drawn()


OTHER = {
    "noise": {"noise": 2.0},
    "loss": {"loss": lambda x, r: 0.0 * jnp.sum(x * x * r)},
    "one record more": {"records": np.ones((21, 8), np.float32)},
    "one value": {"records": np.where(np.arange(160).reshape(20, 8) == 7, 2, RECORDS).astype(np.float32)},
    "network": {"agents": 3},
    "seed": {"seed": 1},
}


FAST = ("noise", "one value")


@pytest.mark.parametrize("what", [pytest.param(w, marks=[] if w in FAST else pytest.mark.slow) for w in OTHER])
def test_a_run_that_differs_draws_other_noise(what):
    assert not np.any(np.isclose(usual(), drawn(**OTHER[what]), rtol=1e-4))


@pytest.mark.slow
def test_the_same_run_draws_the_same_noise_however_it_is_computed():
    np.testing.assert_array_equal(usual(), drawn())
    np.testing.assert_array_equal(usual(), drawn(chunk=7))
