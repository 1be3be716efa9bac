"""Networks as pytrees: shapes, that records do not mix, and that clipping without per-record gradients is right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.marks import few

import sottovoce as sv
from sottovoce.clipping import clipped_sum
from sottovoce.papers.gradient_tracking.method import DpGradientTracking
from sottovoce.papers.gradient_tracking.theory import Rates
from sottovoce.problems import models
from sottovoce.problems.tasks import Shape, get
from sottovoce.problems.tasks.vision import classification

DIRECTED = sv.networks.directed([(0, 1), (1, 0), (1, 2), (0, 3), (3, 4)], [(1, 0), (0, 1), (2, 0), (3, 1), (4, 3)])
PICTURE = (12, 12, 2)
NETWORKS = {
    "mlp": models.mlp(PICTURE, 4, hidden=(7, 5)),
    "cnn": models.cnn(PICTURE, 4, channels=(3,), hidden=6),
    "resnet18": models.resnet18(PICTURE, 4, width=4, groups=2),
}


def pictures(count: int, seed: int = 0) -> dict[str, jax.Array]:
    key, other = jax.random.split(jax.random.key(seed))
    return {
        "features": jax.random.normal(key, (count, *PICTURE)),
        "label": jax.random.randint(other, (count,), 0, 4),
    }


@pytest.mark.parametrize("name", few(["mlp", "cnn", "resnet18"], ["cnn"]))
@pytest.mark.slow
def test_many_records_are_many_times_one(name: str) -> None:
    model = NETWORKS[name]
    apply = jax.jit(model.apply)
    params, features = jax.jit(model.init)(jax.random.key(1)), pictures(3)["features"]
    together = apply(params, features)
    assert together.shape == (3, 4)
    for one, alone in zip(together, features):
        np.testing.assert_allclose(one, apply(params, alone), atol=1e-5)


@pytest.mark.parametrize("name", few(["mlp", "cnn", "resnet18"], ["cnn"]))
def test_clipped_sum_equals_explicit_gradients(name: str) -> None:
    """Also through group norm, strides and shortcuts: the sum that the gate takes, against one gradient a record."""
    problem = classification(NETWORKS[name]).problem
    records, clip = pictures(4), 0.5
    got = jax.jit(lambda at: clipped_sum(problem.loss, at, records, jnp.ones(4), clip))(problem.x0)
    each = jax.jit(jax.vmap(jax.grad(problem.loss), (None, 0)))(problem.x0, records)
    norms = jnp.sqrt(sum(jnp.sum(leaf.reshape(4, -1) ** 2, axis=1) for leaf in jax.tree.leaves(each)))
    factor = jnp.minimum(1.0, clip / norms)
    assert (factor < 1).any()
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(each), strict=True):
        np.testing.assert_allclose(a, jnp.tensordot(factor, b, 1), atol=2e-4 * clip)


@pytest.mark.slow
def test_group_norm_ignores_the_scale_of_what_it_normalises() -> None:
    model = NETWORKS["resnet18"]
    apply = jax.jit(model.apply)
    params, features = jax.jit(model.init)(jax.random.key(0)), pictures(1)["features"][0]
    louder = {**params, "stem": {**params["stem"], "kernel": 10 * params["stem"]["kernel"]}}
    np.testing.assert_allclose(apply(louder, features), apply(params, features), atol=1e-3)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="image=True"):
        models.cnn((784,), 10)
    with pytest.raises(ValueError, match="too small"):
        models.cnn((4, 4, 1), 10)
    with pytest.raises(ValueError, match="multiple of 8"):
        models.resnet18((28, 28, 1), 10, width=12)


@pytest.mark.slow
def test_a_perceptron_learns_over_directed_graphs() -> None:
    train, test = sv.data.load("digits")
    parts = sv.data.split(train, agents=5)
    task = get("mlp")(Shape((64,), 10, 5), hidden=(32,))
    method = DpGradientTracking(Rates(0.5, 0.5, 0.3), sv.Release(1.0, 0.003), sampling=sv.Poisson(60))
    result = sv.run(task.problem, parts, method, network=DIRECTED, steps=150, every=150, evaluate=task.metrics(test))
    assert result.history["accuracy"][-1] > 0.9
    assert result.predict(test["features"][:3]).shape == (3, 10)
