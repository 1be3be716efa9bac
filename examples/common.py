"""What the examples share: made rows of two parties, a private method, and a check that the saved model opens."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sottovoce as sv


def rings(rows: int = 800, seed: int = 0) -> dict[str, np.ndarray]:
    """Return points in the plane; the label says whether a point lies outside a circle, so no line separates them."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(rows, 2)).astype(np.float32)
    return {"features": points, "label": (np.linalg.norm(points, axis=1) > 1.18).astype(np.int32)}


def train(predict: Any, start: Any, steps: int = 150) -> sv.Result:
    """Fit `predict(x, features)`, which returns one logit per row, with epsilon 8 for each of two parties."""

    def loss(x: Any, record: Any) -> jax.Array:
        logit = predict(x, record["features"][None])[0]
        return jax.nn.softplus(logit) - record["label"] * logit

    test = rings(seed=1)

    def evaluate(x: Any) -> dict[str, jax.Array]:
        return {"accuracy": jnp.mean((predict(x, test["features"]) > 0) == test["label"])}

    method = sv.methods.DpSgd(rate=1.0, gradient=sv.Release(clip=1.0, noise=1.0), sampling=sv.Full())
    return sv.run(
        sv.Minimize(loss, start, predict=predict), sv.data.split(rings(), agents=2), method, steps=steps, epsilon=8.0,
        network=sv.networks.complete(2), evaluate=evaluate, every=steps, seed=0,
    )  # fmt: skip


def finish(result: sv.Result, path: Path) -> None:
    """Save the model, open it again, and print how good it is."""
    rows = rings(seed=1)["features"]
    opened = sv.load(sv.save(result, path, features=rows))
    np.testing.assert_allclose(opened.predict(rows), result.predict(rows), rtol=1e-4, atol=1e-5)
    print(f"accuracy {result.history['accuracy'][-1]:.3f}, epsilon {opened.privacy.epsilon:.3g}: {path.name}")
