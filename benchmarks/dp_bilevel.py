"""DP bilevel measured: bias and noise of the penalised hypergradient against the penalty.

    python benchmarks/dp_bilevel.py

It prints a table and draws docs/pictures/dp-bilevel-bias.png. `benchmarks.bilevel_rate` measures the error against n.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from sottovoce.papers.dp_bilevel.method import Descent, DpBilevel
from sottovoce.problems import tasks
from sottovoce.schedules import Constant

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
OPEN = sv.Release.open()


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


# Ridge with a penalty for each feature: the hypergradient is a closed form.


def bias() -> None:
    """Distance of the penalised hypergradient from the exact one, and its spread under noise, against the penalty."""
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(400, 5)) / math.sqrt(5)).astype(np.float32)
    label = (rows @ np.array([1.5, -1.0, 0.5, 0.0, 0.0]) + 0.5 * rng.normal(size=400)).astype(np.float32)
    upper, lower = ({"features": rows[half], "label": label[half]} for half in (slice(200), slice(200, None)))
    point = jnp.asarray([-2.0, -1.0, 0.0, -1.5, -0.5])

    def outer(x: jax.Array) -> jax.Array:
        a, b = lower["features"], lower["label"]
        y = jnp.linalg.solve(a.T @ a / len(b) + jnp.diag(jnp.exp(x)), a.T @ b / len(b))
        return 0.5 * jnp.mean((upper["features"] @ y - upper["label"]) ** 2)

    exact = jax.grad(outer)(point)
    problem = dataclasses.replace(
        tasks.get("tuned-ridge")(tasks.Shape((5,), 2, 1)).problem, x0=point, project_x=lambda x: x
    )
    penalties, repeats = [1.0, 3.0, 10.0, 30.0, 100.0, 300.0], 16
    found = {}
    for solve in ("gap", "apart"):
        for name, noise, times in (("bias", OPEN, 1), ("spread", sv.Release(10.0, 0.001), repeats)):
            agents = len(penalties) * times
            method = DpBilevel(
                1.0, Descent(300, 0.8, averaged=False), noise, noise, sv.Full(), solve=solve,
                penalty=Constant(tuple(np.repeat(penalties, times).tolist())),
            )  # fmt: skip
            parts = [sv.data.Levels(upper, lower)] * agents
            result = sv.run(problem, parts, method, network=sv.networks.isolated(agents), steps=1)
            away = (point - result.agents.x - exact).reshape(len(penalties), times, -1)
            found[solve, name] = np.linalg.norm(away[:, 0] if name == "bias" else away.std(axis=1), axis=-1)
    print(f"|exact hypergradient| = {float(jnp.linalg.norm(exact)):.3g}; inner noise 0.001 on means of 200 records")
    print("penalty      bias, gap  bias, apart  spread, gap  spread, apart")
    for k, penalty in enumerate(penalties):
        row = [found[s, name][k] for name in ("bias", "spread") for s in ("gap", "apart")]
        print(f"{penalty:7g}  " + "".join(f"{value:13.2e}" for value in row))
    for key, values in found.items():
        print(f"fitted exponent of the penalty, {key[1]}, {key[0]}: {slope(penalties, values):.2f}")
    axes, save = _axes("dp-bilevel-bias", "penalty", "distance from the exact hypergradient")
    for (solve, name), values in found.items():
        axes.loglog(penalties, values, "o-" if name == "bias" else "s--", label=f"{name}, {solve}")
    save()


def _axes(name: str, x: str, y: str) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5.5, 3.6))
    axes.set_xlabel(x)
    axes.set_ylabel(y)

    def save() -> None:
        axes.legend(fontsize=8)
        axes.grid(alpha=0.3)
        PICTURES.mkdir(exist_ok=True)
        figure.savefig(PICTURES / f"{name}.png", dpi=90, bbox_inches="tight")

    return axes, save


if __name__ == "__main__":
    bias()
