"""DP-SGD with jax-privacy, as its examples write it: ``python -m benchmarks.peers.jax_privacy_step WORK``."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
from jax_privacy import batch_selection, noise_addition

from benchmarks import measure
from benchmarks.peers import work
from benchmarks.peers.pace import paced


def start(name: str) -> Any:
    def dense(*shape: int) -> jax.Array:
        return jnp.asarray(np.random.default_rng(0).normal(size=shape) / np.prod(shape[:-1]) ** 0.5, jnp.float32)

    if name == "logistic":
        return [(dense(124, 2), jnp.zeros(2))]
    if name == "mlp":
        return [(dense(784, 256), jnp.zeros(256)), (dense(256, 10), jnp.zeros(10))]
    shapes = (8, 8, 1, 16), (4, 4, 16, 32), (512, 32), (32, 10)
    return [(dense(*shape), jnp.zeros(shape[-1])) for shape in shapes]


def loss(layers: Any, batch: Any) -> jax.Array:
    """Return the loss of a batch of one record, as `clipped_grad` calls it."""
    x, label = batch
    for at, (w, b) in enumerate(layers):
        if w.ndim == 4:
            padding = "SAME" if at == 0 else "VALID"
            x = jax.lax.conv_general_dilated(x, w, (2, 2), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
            x = jnp.tanh(x + b)
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID")
        else:
            x = x.reshape(len(x), -1) @ w + b
            x = jnp.tanh(x) if at + 1 < len(layers) else x
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), label[:, None], 1))


def contender(name: str) -> measure.Turns:
    job = work.TRAINING[name]
    features, label = work.records(name)
    gradient = jax_privacy.clipped_grad(loss, l2_clip_norm=job.clip, normalize_by=job.batch)
    privatizer = noise_addition.gaussian_privatizer(stddev=job.noise, prng_key=0)

    @jax.jit
    def move(layers: Any, memory: Any, rows: Any, features: Any, label: Any) -> Any:
        clipped = gradient(layers, (features[rows], label[rows]), is_padding_example=rows < 0)
        noisy, memory = privatizer.update(clipped, memory)
        return jax.tree.map(lambda p, g: p - job.rate * g, layers, noisy), memory

    layers = start(name)
    memory, data = privatizer.init(layers), (jnp.asarray(features), jnp.asarray(label))
    draws = batch_selection.CyclicPoissonSampling(job.batch / job.records, 10**9).batch_iterator(job.records, 0)
    size = job.batch + 8 * round(job.batch**0.5)  # one shape, hence one compilation

    def step() -> Any:
        nonlocal layers, memory
        rows = batch_selection.pad_to_multiple_of(next(draws).astype(np.int32), size)
        layers, memory = move(layers, memory, rows, *data)
        return layers

    return paced(step)


if __name__ == "__main__":
    measure.serve(contender(sys.argv[1]))
