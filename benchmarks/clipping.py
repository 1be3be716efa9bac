"""What clipping costs: book-keeping beside the plain (non-private) sum and `vmap(grad)`, measured in one run.

    python benchmarks/clipping.py

Every figure is a step inside one compiled loop, as in a training run. The ratios matter, not the milliseconds: all
contenders are timed in turn, several rounds over, and the best round of each counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sottovoce.privacy.bookkeeping import clipped_sum

PyTree = Any
Gradient = Callable[[PyTree], PyTree]


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


def plain(loss: Callable[[PyTree, PyTree], jax.Array], batch: PyTree) -> Gradient:
    return jax.grad(lambda at: jnp.sum(jax.vmap(loss, (None, 0))(at, batch)))


def booked(loss: Callable[[PyTree, PyTree], jax.Array], batch: PyTree) -> Gradient:
    weights = jnp.ones(len(jax.tree.leaves(batch)[0]))
    return lambda at: clipped_sum(loss, at, batch, weights, 1.0)


def per_record(loss: Callable[[PyTree, PyTree], jax.Array], batch: PyTree) -> Gradient:
    def gradient(at: PyTree) -> PyTree:
        each = jax.vmap(jax.grad(loss), (None, 0))(at, batch)
        squares = sum(jnp.sum(g.reshape(len(g), -1) ** 2, 1) for g in jax.tree.leaves(each))
        factor = jnp.minimum(1.0, 1.0 / jnp.sqrt(squares))
        return jax.tree.map(lambda g: jnp.tensordot(factor, g, 1), each)

    return gradient


def loop(gradient: Gradient, start: PyTree, steps: int) -> Callable[[], PyTree]:
    """`steps` descent steps in one compiled loop."""

    def step(_: int, at: PyTree) -> PyTree:
        return jax.tree.map(lambda p, g: p - 1e-4 * g, at, gradient(at))

    run = jax.jit(lambda at: jax.lax.fori_loop(0, steps, step, at))
    return lambda: run(start)


def one_by_one(gradient: Gradient, start: PyTree, steps: int) -> Callable[[], PyTree]:
    """`steps` calls of a compiled step."""
    step = jax.jit(lambda at: jax.tree.map(lambda p, g: p - 1e-4 * g, at, gradient(at)))

    def run() -> PyTree:
        at = start
        for _ in range(steps):
            at = step(at)
        return at

    return run


def seconds(contenders: dict[str, tuple[Callable[[], PyTree], int]], rounds: int = 5) -> dict[str, float]:
    """Best seconds per step of each contender, all taking turns."""
    for run, _ in contenders.values():
        jax.block_until_ready(run())
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, (run, steps) in contenders.items():
            begin = time.perf_counter()
            jax.block_until_ready(run())
            best[name] = min(best[name], (time.perf_counter() - begin) / steps)
    return best


def main() -> None:
    keys = jax.random.split(jax.random.key(0), 6)
    layers, direction = mlp(keys[0]), mlp(keys[1])
    batch = jax.random.normal(keys[2], (256, 784)), jax.random.randint(keys[3], (256,), 0, 10)
    images = jax.random.normal(keys[4], (64, 28, 28, 1)), batch[1][:64]
    kernels = cnn(keys[5])

    def along(at: PyTree, record: PyTree) -> jax.Array:
        """Its gradient is a Hessian-vector product minus a gradient, the second-order surrogate of bilevel methods."""
        return jax.jvp(lambda at: mlp_loss(at, record), (at,), (direction,))[1] - mlp_loss(at, record)

    def timed(loss: Any, batch: PyTree, at: PyTree, kind: Any, steps: int) -> tuple[Callable[[], PyTree], int]:
        return loop(kind(loss, batch), at, steps), steps

    best = seconds(
        {
            "MLP plain": timed(mlp_loss, batch, layers, plain, 50),
            "MLP book-keeping": timed(mlp_loss, batch, layers, booked, 50),
            "HVP plain": timed(along, batch, layers, plain, 50),
            "HVP book-keeping": timed(along, batch, layers, booked, 50),
            "CNN plain, one by one": (one_by_one(plain(cnn_loss, images), kernels, 20), 20),
            "CNN book-keeping, one by one": (one_by_one(booked(cnn_loss, images), kernels, 20), 20),
            "CNN book-keeping": timed(cnn_loss, images, kernels, booked, 20),
        }
    )
    best |= seconds({"CNN plain": timed(cnn_loss, images, kernels, plain, 3)}, rounds=2)
    best |= seconds({"MLP vmap(grad)": timed(mlp_loss, batch, layers, per_record, 2)}, rounds=2)

    print("milliseconds per step inside a compiled loop, unless 'one by one'")
    for name, each in best.items():
        print(f"  {name:30s} {1e3 * each:9.2f}")
    print("ratios")
    for top, bottom in (
        ("MLP plain", "MLP book-keeping"),
        ("MLP vmap(grad)", "MLP book-keeping"),
        ("HVP plain", "HVP book-keeping"),
        ("CNN plain", "CNN plain, one by one"),
        ("CNN book-keeping", "CNN book-keeping, one by one"),
        ("CNN book-keeping", "CNN plain, one by one"),
    ):
        print(f"  {top + ' / ' + bottom:62s} {best[top] / best[bottom]:8.2f}")


if __name__ == "__main__":
    main()
