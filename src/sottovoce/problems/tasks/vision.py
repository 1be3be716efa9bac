"""Classify images with neural networks: a perceptron, a small convolutional network, ResNet-18."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sottovoce.problems import models
from sottovoce.problems.objectives import Minimize
from sottovoce.problems.tasks.base import Evaluate, Shape, Task, check_classes, task
from sottovoce.problems.tasks.metrics import accuracy
from sottovoce.trees import Tree

_TEST_CHUNK = 500  # test records at a time: activations of a deep network are large


@task("mlp")
def mlp(shape: Shape, hidden: Sequence[int] = (64,), centre: float = 0.0, seed: int = 0) -> Task:
    """Train a perceptron with tanh units; `seed` draws its first parameters, which are public.

    `centre`, here and below, is a public constant that is subtracted from every pixel.

    >>> mlp(Shape((784,), classes=10, agents=5)).problem.x0[0]["weights"].shape
    (784, 64)
    """
    check_classes("mlp", shape)
    return classification(models.mlp(shape.features, shape.classes, hidden), centre, seed)


@task("cnn")
def cnn(shape: Shape, channels: Sequence[int] = (16, 32), hidden: int = 32, centre: float = 0.0, seed: int = 0) -> Task:
    """Train the small convolutional network of private image classification (features must be pictures).

    >>> len(cnn(Shape((28, 28, 1), classes=10, agents=5)).problem.x0["convolutions"])
    2
    """
    return classification(models.cnn(shape.features, shape.classes, channels, hidden), centre, seed)


@task("resnet18")
def resnet18(shape: Shape, width: int = 64, groups: int = 8, centre: float = 0.0, seed: int = 0) -> Task:
    """Train ResNet-18 with group norm; `width` 64 is the full network (features must be pictures).

    >>> models.size(jax.eval_shape(lambda: resnet18(Shape((28, 28, 1), classes=10, agents=5), width=8).problem.x0))
    176258
    """
    return classification(models.resnet18(shape.features, shape.classes, width, groups), centre, seed)


def classification(model: models.Architecture, centre: float = 0.0, seed: int = 0) -> Task:
    """Minimise the cross entropy of a model's class scores, and report its accuracy on test records.

    >>> task = classification(models.mlp((4,), classes=3))
    >>> round(float(task.problem.loss(task.problem.x0, {"features": jnp.zeros(4), "label": 1})), 4)
    1.0986
    """

    def score(x: Tree, features: Any) -> jax.Array:
        return model.apply(x, features - centre if centre else features)

    def loss(x: Tree, record: Any) -> jax.Array:
        return -jax.nn.log_softmax(score(x, record["features"]))[record["label"]]

    def predict(x: Tree, features: Any) -> jax.Array:
        return jax.nn.softmax(score(x, features))

    def metrics(test: Any) -> Evaluate:
        features, label = jnp.asarray(test["features"]), jnp.asarray(test["label"])

        def evaluate(x: Tree) -> Mapping[str, jax.Array]:
            scores = jax.lax.map(lambda one: score(x, one), features, batch_size=_TEST_CHUNK)
            right = jnp.take_along_axis(jax.nn.log_softmax(scores), label[:, None], axis=1)
            return {"accuracy": accuracy(jnp.argmax(scores, axis=1), label), "loss": -jnp.mean(right)}

        return evaluate

    return Task(Minimize(loss, jax.jit(model.init)(jax.random.key(seed)), predict=predict), metrics)
