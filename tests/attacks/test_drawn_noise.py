"""Noise is charged in float64 and drawn in float32: what is charged is never above what is drawn (a12)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.privacy import gate, threefry
from sottovoce.schedules import RAISED, Constant, Decay, Linear, Ratio, Scaled, charged

DATA = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
PROBLEM = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(3))


def sgd(noise):
    return sv.methods.DpSgd(rate=1.0, gradient=sv.Release(clip=5.0, noise=noise), sampling=sv.Full())


@pytest.mark.parametrize(
    "noise",
    [
        1e-46,
        Constant((1e-46,)),
        Decay(1e37, 9.7, offset=1e4),
        Decay(1e30, 8.0, offset=7e4),
        Ratio(Constant(1e-10), Decay(1e10, -8.0, offset=1e4)),
    ],
)
def test_noise_that_underflows_is_no_noise(noise):
    report = sv.account(sgd(noise), sv.Population([100]), steps=1)
    assert report.epsilon == np.inf
    assert "infinite" in " ".join(report.caveats)


@pytest.mark.parametrize("noise", [1e39, Scaled(Constant(1e30), 1e30), Decay(1.0, -10.0, offset=1e4)])
def test_noise_that_overflows_is_refused_before_work(noise):
    with pytest.raises(ValueError, match="cannot compute in float32"):
        sv.run(PROBLEM, [DATA], sgd(noise), steps=1)


def test_an_intermediate_that_is_not_a_number_is_refused_or_none():
    noise = Ratio(Decay(1.0, 2.0, offset=1e20), Decay(1.0, 2.0, offset=1e20))  # 0 / 0 in float32
    with pytest.raises(ValueError, match="cannot compute in float32"):
        sv.account(sgd(noise), sv.Population([100]), steps=1)


@pytest.mark.parametrize("noise", [Decay(1e38, 10.0, offset=7e3), Scaled(Scaled(Constant(1e-30), 1e-30), 1e60)])
def test_a_compiler_does_not_rewrite_noise_away(noise):
    """x**-10 underflows where 1e38 / x**10 does not: the run drew nothing at epsilon 1.06."""
    result = sv.run(PROBLEM, [DATA], sgd(noise), steps=1)
    moved = np.asarray(result.x, np.float64) - DATA.mean(0)
    assert np.isfinite(result.privacy.epsilon)
    assert np.abs(moved).max() > 0.1 * float(noise(0, 0))


values = st.floats(1e-6, 1e6)
plain = st.one_of(
    st.builds(Constant, values),
    st.builds(Decay, values, st.floats(-3, 3), st.floats(1, 1e4)),
    st.builds(Linear, values, values, st.integers(1, 10**7)),
)
schedules = st.one_of(plain, st.builds(Scaled, plain, values), st.builds(Ratio, plain, plain))


@settings(max_examples=150, deadline=None)
@given(schedule=schedules, start=st.integers(0, 10**7))
@pytest.mark.slow
def test_every_step_draws_at_least_what_is_charged(schedule, start):
    times = np.arange(start, start + 5)
    stated = charged(schedule, times, 0)
    drawn = jax.jit(lambda t, agent: jnp.asarray(schedule(t, agent) * (1 + RAISED), jnp.float32))
    found = np.array([drawn(jnp.int32(t), jnp.int32(0)) for t in times], np.float64)
    assert (found >= stated * (1 - 1e-6)).all()  # another order of rounding in the compiled run
    exact = np.broadcast_to(schedule(times, 0), times.shape)
    assert (stated <= exact).all()


def test_the_last_steps_of_a_line_do_not_cancel():
    line, times = Linear(1.0, 1e-9, 10**7), np.arange(10**7 - 3, 10**7)
    np.testing.assert_allclose(charged(line, times, 0), line(times, 0), rtol=1e-12)
    found = np.asarray(line(jnp.asarray(times, jnp.int32), jnp.int32(0)), np.float64)
    np.testing.assert_allclose(found, line(times, 0), rtol=1e-6)


def test_the_gate_draws_the_raised_scale():
    release, zeros = sv.Release(1.0, 0.1), jnp.zeros(4000)
    drawn = gate.noised(zeros, release, jax.random.key(0), jnp.int32(0), jnp.int32(0))
    unit = threefry.normal(jax.random.key(0), (4000,))
    ratio = np.asarray(drawn, np.float64) / np.asarray(unit, np.float64) / 0.1
    assert ratio.min() >= 1 + RAISED / 2
    assert ratio.max() <= 1 + 2 * RAISED
