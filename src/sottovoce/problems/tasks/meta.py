"""Learn a shared body (upper level) and one linear head for each of many small tasks (lower level): meta-learning.

A task is to tell a few of the classes apart, for example the digits 3, 5 and 8. Its classes are drawn from a seed and
are public. A record takes part in every task that has its class, and its gradient over all heads is clipped as one.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.problems.objectives import Bilevel
from sottovoce.problems.tasks.base import Evaluate, Shape, Task, task
from sottovoce.trees import Tree, inner


@task("meta-heads")
def meta_heads(
    shape: Shape,
    count: int = 32,
    ways: int = 5,
    width: int = 16,
    blocks: int = 4,
    penalty: float = 1e-2,
    seed: int = 0,
) -> Task:
    """Learn a convolutional body (x) under `count` linear heads (y), each for `ways` of the classes.

    The body follows MAML's network: blocks of a 3 x 3 convolution with stride 2, a normalisation and a ReLU. MAML
    normalises over the batch, which would mix records; here each record is normalised separately.

    Args:
        count: number of tasks.
        ways: number of classes per task.
        width: filters of each block (MAML: 64).
        blocks: number of blocks.
        penalty: weight of half the squared norm of the heads, which keeps the lower level strongly convex.
        seed: draws the tasks' classes and the starting body, both public.

    >>> meta = meta_heads(Shape((32, 32, 3), classes=10, agents=1), count=8, width=4)
    >>> meta.problem.y0["weights"].shape
    (8, 16, 5)
    """
    if len(shape.features) != 3:
        raise ValueError(f"meta-heads needs pictures (height, width, channels), the features have {shape.features}")
    if not 2 <= ways <= shape.classes:
        raise ValueError(f"ways is {ways}: tasks have between 2 and {shape.classes} classes")
    rng = np.random.default_rng(seed)
    classes = jnp.asarray(np.stack([rng.permutation(shape.classes)[:ways] for _ in range(count)]))
    channels = [shape.features[2], *[width] * blocks]
    body = [
        jnp.asarray(rng.normal(size=(3, 3, a, b)) * np.sqrt(2 / (9 * a)), jnp.float32)
        for a, b in itertools.pairwise(channels)
    ]
    embedded = jax.eval_shape(lambda: _embed(body, jnp.zeros((1, *shape.features)))).shape[1]
    heads = {"weights": jnp.zeros((count, embedded, ways)), "bias": jnp.zeros((count, ways))}
    share = ways / shape.classes  # the share of tasks that a class takes part in

    def loss(x: Tree, y: Tree, record: Any) -> jax.Array:
        scores = _scores(y, _embed(x, record["features"][None]))[:, 0]
        asked = classes == record["label"]  # a row per task: where its class stands, or nowhere
        return -jnp.sum(jax.nn.log_softmax(scores) * asked) / (count * share)

    def predict(x: Tree, y: Tree, features: Any) -> jax.Array:
        """Return each task's probabilities: (tasks, records, ways)."""
        return jax.nn.softmax(_scores(y, _embed(x, jnp.asarray(features))))

    def metrics(test: Any) -> Evaluate:
        features, label = jnp.asarray(test["features"]), np.asarray(test["label"])
        asked = np.asarray(classes)[:, None, :] == label[None, :, None]
        present, place = asked.any(axis=2), asked.argmax(axis=2)

        def evaluate(x: Tree, y: Tree) -> Mapping[str, jax.Array]:
            scores = _scores(y, _embed(x, features))
            right = jnp.take_along_axis(jax.nn.log_softmax(scores), place[..., None], axis=2)[..., 0]
            hit = jnp.argmax(scores, axis=2) == place
            return {name: jnp.mean(value, where=present) for name, value in (("accuracy", hit), ("loss", -right))}

        return evaluate

    problem = Bilevel(
        loss,
        loss,
        x0=body,
        y0=heads,
        public_lower=lambda x, y: 0.5 * penalty * inner(y, y),
        predict=predict,
        public_constants=True,  # the tasks' classes are public
    )
    return Task(problem, metrics)


def _embed(body: Tree, pictures: jax.Array) -> jax.Array:
    """Return the last block's values, flattened: (records, features)."""
    for kernel in body:
        pictures = jax.lax.conv_general_dilated(
            pictures, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        middle = jnp.mean(pictures, axis=(1, 2, 3), keepdims=True)
        pictures = (pictures - middle) * jax.lax.rsqrt(jnp.var(pictures, axis=(1, 2, 3), keepdims=True) + 1e-5)
        pictures = jax.nn.relu(pictures)
    return pictures.reshape(len(pictures), -1)


def _scores(heads: Tree, embedded: jax.Array) -> jax.Array:
    """Return scores: (tasks, records, ways)."""
    return jnp.einsum("rd,tdw->trw", embedded, heads["weights"]) + heads["bias"][:, None, :]
