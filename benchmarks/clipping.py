"""What clipping costs: book-keeping beside the plain (non-private) sum and `vmap(grad)`.

Every contender is a step inside one compiled loop, as in a training run, unless it is called "one by one".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.measure import Turns, compare
from sottovoce.clipping import clipped_sum

PyTree = Any
Loss = Callable[[PyTree, PyTree], jax.Array]
Gradient = Callable[[PyTree, PyTree], PyTree]


def mlp(key: jax.Array, sizes: tuple[int, ...] = (784, 256, 10)) -> PyTree:
    keys = jax.random.split(key, len(sizes))
    return [(jax.random.normal(k, (m, n)) / m**0.5, jnp.zeros(n)) for k, m, n in zip(keys, sizes, sizes[1:])]


def mlp_loss(layers: PyTree, record: tuple[jax.Array, jax.Array]) -> jax.Array:
    x, label = record
    *hidden, (weight, bias) = layers
    for w, b in hidden:
        x = jax.nn.relu(x @ w + b)
    return -jax.nn.log_softmax(x @ weight + bias)[label]


def cnn(key: jax.Array) -> PyTree:
    k1, k2, k3 = jax.random.split(key, 3)
    return {
        "conv1": (jax.random.normal(k1, (5, 5, 1, 8)) / 5, jnp.zeros(8)),
        "conv2": (jax.random.normal(k2, (3, 3, 8, 16)) / 72**0.5, jnp.zeros(16)),
        "dense": (jax.random.normal(k3, (784, 10)) / 28, jnp.zeros(10)),
    }


def cnn_loss(layers: PyTree, record: tuple[jax.Array, jax.Array]) -> jax.Array:
    image, label = record
    x = image[None]
    for name in ("conv1", "conv2"):
        w, b = layers[name]
        x = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + b)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    w, b = layers["dense"]
    return -jax.nn.log_softmax(x.reshape(-1) @ w + b)[label]


def plain(loss: Loss) -> Gradient:
    return jax.grad(lambda at, batch: jnp.sum(jax.vmap(loss, (None, 0))(at, batch)))


def booked(loss: Loss) -> Gradient:
    return lambda at, batch: clipped_sum(loss, at, batch, jnp.ones(len(batch[0])), 1.0)


def per_record(loss: Loss) -> Gradient:
    def gradient(at: PyTree, batch: PyTree) -> PyTree:
        each = jax.vmap(jax.grad(loss), (None, 0))(at, batch)
        squares = sum(jnp.sum(g.reshape(len(g), -1) ** 2, 1) for g in jax.tree.leaves(each))
        factor = jnp.minimum(1.0, 1.0 / jnp.sqrt(squares))
        return jax.tree.map(lambda g: jnp.tensordot(factor, g, 1), each)

    return gradient


def descend(gradient: Gradient, at: PyTree, batch: PyTree) -> PyTree:
    return jax.tree.map(lambda p, g: p - 1e-4 * g, at, gradient(at, batch))


def loop(gradient: Gradient, start: PyTree, batch: PyTree, steps: int) -> Turns:
    """Steps in one compiled loop. The batch is an argument: as a constant, XLA would compute with it beforehand."""
    run = jax.jit(lambda at, batch: jax.lax.fori_loop(0, steps, lambda _, at: descend(gradient, at, batch), at))
    return Turns(lambda: run(start, batch), steps)


def one_by_one(gradient: Gradient, start: PyTree, batch: PyTree, steps: int) -> Turns:
    """Calls of one compiled step."""
    step = jax.jit(lambda at, batch: descend(gradient, at, batch))

    def run() -> PyTree:
        at = start
        for _ in range(steps):
            at = step(at, batch)
        return at

    return Turns(run, steps)


def main() -> None:
    keys = jax.random.split(jax.random.key(0), 6)
    layers, direction = mlp(keys[0]), mlp(keys[1])
    batch = jax.random.normal(keys[2], (256, 784)), jax.random.randint(keys[3], (256,), 0, 10)
    images = jax.random.normal(keys[4], (64, 28, 28, 1)), batch[1][:64]
    kernels = cnn(keys[5])

    def along(at: PyTree, record: PyTree) -> jax.Array:
        """Its gradient is a Hessian-vector product minus a gradient, the second-order surrogate of bilevel methods."""
        return jax.jvp(lambda at: mlp_loss(at, record), (at,), (direction,))[1] - mlp_loss(at, record)

    seen = compare(
        "MLP 784-256-10, batch 256: gradients (MLP) and Hessian-vector products (HVP)",
        {
            "MLP plain": loop(plain(mlp_loss), layers, batch, 30),
            "MLP book-keeping": loop(booked(mlp_loss), layers, batch, 30),
            "HVP plain": loop(plain(along), layers, batch, 30),
            "HVP book-keeping": loop(booked(along), layers, batch, 30),
            "MLP vmap(grad)": loop(per_record(mlp_loss), layers, batch, 1),
        },
        turns=7,
    )
    seen.show()
    compare(
        "CNN, two convolutions, batch 64",
        {
            "plain, one by one": one_by_one(plain(cnn_loss), kernels, images, 10),
            "plain": loop(plain(cnn_loss), kernels, images, 2),
            "book-keeping, one by one": one_by_one(booked(cnn_loss), kernels, images, 10),
            "book-keeping": loop(booked(cnn_loss), kernels, images, 10),
        },
        turns=7,
    ).show()


if __name__ == "__main__":
    main()
