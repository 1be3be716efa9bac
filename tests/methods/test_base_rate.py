"""The base rate against closed forms, and its noise against what is charged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.privacy.gdp import gdp_mu
from sottovoce.problems.tasks import Shape, get
from sottovoce.schedules import Constant

QUIET = sv.Performance(progress=False)
ALL = sv.networks.complete(3)
SIZES = (600, 300, 100)


def fitted(task: str, classes: int, label: np.ndarray, method, seed: int = 0):
    problem = get(task)(Shape((2,), classes=classes, agents=3)).problem
    rows = {"features": np.ones((len(label), 2), np.float32), "label": label}
    parts = sv.data.split(rows, 3, "sizes", sizes=SIZES)
    result = sv.run(problem, parts, method, steps=1, network=ALL, seed=seed, every=1, performance=QUIET)
    assert not np.any(result.x["weights"])
    return np.asarray(problem.predict(result.x, np.zeros((1, 2), np.float32)))[0]


PLAIN = sv.methods.BaseRate(sv.Release.open())


def test_without_noise_unequal_parties_predict_the_pooled_shares() -> None:
    label = np.random.default_rng(0).choice(3, 1000, p=[0.7, 0.25, 0.05]).astype(np.int32)
    np.testing.assert_allclose(fitted("softmax", 3, label, PLAIN), np.bincount(label) / 1000, atol=1e-3)


@pytest.mark.slow
def test_without_noise_unequal_parties_predict_the_share_of_two_classes_and_the_mean_of_numbers() -> None:
    rng = np.random.default_rng(0)
    two, number = (rng.integers(0, 5, 1000) > 3).astype(np.int32), rng.uniform(-0.2, 0.9, 1000).astype(np.float32)
    assert fitted("logistic", 2, two, PLAIN) == pytest.approx(two.mean(), abs=1e-3)
    assert fitted("ridge", 1, number, PLAIN) == pytest.approx(number.mean(), abs=1e-3)


def test_noise_has_the_size_that_is_charged() -> None:
    many = 400  # numbers, each with noise of its own
    problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(many))
    parts = [np.zeros((size, many), np.float32) for size in SIZES]
    rough = sv.methods.BaseRate(sv.Release(0.5, Constant(tuple(0.5 / size for size in SIZES))))
    given = {"steps": 1, "network": ALL, "problem": problem, "adjacency": "zero-out"}
    method = sv.calibrate(rough, parts, epsilon=0.2, delta=1e-4, **given)
    result = sv.run(data=parts, method=method, seed=0, delta=1e-4, every=1, performance=QUIET, **given)
    deviation = 0.5 * np.sqrt(3) / (gdp_mu(0.2, 1e-4) * sum(SIZES))
    assert 0.85 < np.std(result.x) / deviation < 1.15  # four deviations of 400 draws
    assert all(0.199 < epsilon <= 0.2 for epsilon in result.privacy.per_agent)


def test_the_slope_of_a_linear_loss_at_zero_scores_is_within_the_clip() -> None:
    for task, classes, label in (("logistic", 2, 1), ("softmax", 5, 3), ("ridge", 1, -1.0)):
        known = get(task)(Shape((2,), classes=classes, agents=1)).problem.linear
        zero = jnp.zeros(classes if task == "softmax" else ())
        slope = jax.grad(known.loss)(zero, {"features": jnp.ones(2), "label": label})
        assert float(jnp.linalg.norm(jnp.ravel(slope))) == pytest.approx(known.residual, rel=1e-5)


@pytest.mark.slow
def test_noise_calls_no_class_impossible() -> None:
    label = np.zeros(1000, np.int32)
    loud = sv.methods.BaseRate(sv.Release(0.5, 0.2))
    shares = [float(fitted("logistic", 2, label, loud, seed)) for seed in range(4)]
    assert all(0.05 < share < 0.95 for share in shares)
