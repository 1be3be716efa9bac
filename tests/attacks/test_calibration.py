"""Calibration at the ends of its range: no library error reaches the user, what cannot be reached is said (b7)."""

import math
import warnings

import numpy as np
import pytest

import sottovoce as sv

PEOPLE = sv.Population([1000])


def sgd(sampling, mechanism="gaussian", noise=0.1):
    return sv.methods.DpSgd(rate=0.1, gradient=sv.Release(1.0, noise, mechanism), sampling=sampling)


@pytest.mark.parametrize(
    ("method", "epsilon", "steps", "delta"),
    [
        (sgd(sv.FixedSize(900)), 0.04, 100, 1e-6),
        pytest.param(sgd(sv.FixedSize(500)), 0.1, 100, 1e-6, marks=pytest.mark.slow),
        (sgd(sv.FixedSize(10)), 0.04, 10, 1e-5),
        pytest.param(sgd(sv.WithReplacement(10)), 0.3, 10, 1e-5, marks=pytest.mark.slow),
        pytest.param(sgd(sv.WithReplacement(10), "laplace"), 0.3, 10, 1e-5, marks=pytest.mark.slow),
        (sgd(sv.Poisson(900), "laplace"), 0.19, 200, 1e-6),
    ],
)
def test_much_noise_is_reached(method, epsilon, steps, delta):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sv.calibrate(method, PEOPLE, epsilon=epsilon, steps=steps, delta=delta)
    assert 0.998 * epsilon <= sv.account(found, PEOPLE, steps=steps, delta=delta).epsilon <= epsilon


@pytest.mark.parametrize("noise", [1e-3, 1e3, 1e5, 1e6, 1e8, 1e12])
@pytest.mark.parametrize("sampling", [sv.FixedSize(900), sv.Poisson(900), sv.WithReplacement(900), sv.Full()])
def test_every_noise_has_an_epsilon(noise, sampling):
    for mechanism in ("gaussian", "laplace"):
        found = sv.account(sgd(sampling, mechanism, noise), PEOPLE, steps=100, delta=1e-6).epsilon
        assert found >= 0
        assert noise < 1 or found < 1e-3


@pytest.mark.slow
def test_an_epsilon_that_cannot_be_reached_is_named_beside_the_one_that_is():
    with pytest.warns(UserWarning, match=r"epsilon 1000 was wanted, and 27\.\d+ is the largest"):
        found = sv.calibrate(sgd(sv.Poisson(100)), PEOPLE, epsilon=1000.0, steps=10)
    assert 20 < sv.account(found, PEOPLE, steps=10).epsilon < 1000


@pytest.mark.parametrize("epsilon", ["1", True, None, 0.0, -1.0, math.nan, math.inf, [1.0]])
def test_an_epsilon_that_is_no_epsilon_is_named(epsilon):
    with pytest.raises((TypeError, ValueError), match="epsilon is"):
        sv.calibrate(sgd(sv.Full()), PEOPLE, epsilon=epsilon, steps=1)
    with pytest.raises((TypeError, ValueError), match="epsilon is"):
        sv.Budget(epsilon, 1e-5)


@pytest.mark.parametrize("delta", ["1e-5", True, -1e-5, 0.5, 1.0, math.nan, [1e-5]])
def test_a_delta_that_is_no_delta_is_named(delta):
    for door in (
        lambda: sv.calibrate(sgd(sv.Full()), PEOPLE, epsilon=1.0, steps=1, delta=delta),
        lambda: sv.account(sgd(sv.Full()), PEOPLE, steps=1, delta=delta),
        lambda: sv.Budget(1.0, delta),
        lambda: sv.Labels([0, 1], classes=2).epsilon(delta),
    ):
        with pytest.raises((TypeError, ValueError), match="delta is"):
            door()


def test_numbers_of_numpy_are_numbers():
    assert sv.Budget(np.float32(2.0), np.float64(1e-5)).epsilon == 2.0
    assert sv.account(sgd(sv.Full()), PEOPLE, steps=1, delta=np.float64(1e-5)).epsilon > 0
    found = sv.calibrate(sgd(sv.Full()), PEOPLE, epsilon=np.int64(1), steps=1)
    assert sv.account(found, PEOPLE, steps=1).epsilon <= 1
