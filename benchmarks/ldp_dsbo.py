"""LDP-DSBO measured: convergence, rivals, topologies, cost and memory. The figures stand in docs/ldp-dsbo.md.

    python benchmarks/ldp_dsbo.py bias rate synthetic mnist useless topology cost memory meta

Each name prints its table; those with curves also write a picture into docs/pictures. Real data come from
SOTTOVOCE_DATA. Everything is sized for two cores.
"""

import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from sottovoce.methods import DpSgd, GbDsbo, LdpDsbo, MaDsbo
from sottovoce.methods.ldp_dsbo_theory import predict
from sottovoce.problems import tasks
from sottovoce.schedules import Decay

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
RING = sv.networks.ring(10, weight=0.3)
AGENTS = range(1, 11)
Curves = dict[str, np.ndarray]  # metric -> (seeds, times)


def repeat(
    problem: Any,
    parts: Sequence[Any],
    method: Any,
    network: Any,
    steps: int,
    seeds: Sequence[int],
    evaluate: Callable[..., Mapping[str, Any]],
    every: int,
    chunk: int = 1024,
) -> Curves:
    """The agents' average evaluated along the run, for several seeds."""
    options = {"network": network, "steps": steps, "evaluate": evaluate, "every": every, "chunk": chunk}
    found = [sv.run(problem, parts, method, seed=seed, progress=False, **options).history for seed in seeds]
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


# Convergence on quadratics with a known solution.


def quadratic(curvature: np.ndarray, records: int, seed: int = 0, spread: float = 1.0) -> tuple[Any, list[Any], np.ndarray]:
    """Lower: c_i |y - x - a|^2 / 2. Upper: |y - b|^2 / 2 + |x|^2 / 2. Returns also x*, for the means of a and b."""
    rng = np.random.default_rng(seed)
    agents, dim = len(curvature), 3
    a, b = rng.normal(size=(2, agents, dim))
    parts = [
        {
            "a": (a[i] + spread * rng.normal(size=(records, dim))).astype(np.float32),
            "b": (b[i] + spread * rng.normal(size=(records, dim))).astype(np.float32),
            "c": np.full(records, curvature[i], np.float32),
        }
        for i in range(agents)
    ]
    problem = sv.Bilevel(
        upper=lambda x, y, r: 0.5 * jnp.sum((y - r["b"]) ** 2),
        lower=lambda x, y, r: 0.5 * r["c"] * jnp.sum((y - x - r["a"]) ** 2),
        x0=jnp.zeros(dim),
        y0=jnp.zeros(dim),
        public_upper=lambda x, y: 0.5 * jnp.sum(x**2),
    )
    return problem, parts, (b.mean(axis=0) - curvature @ a / curvature.sum()) / 2


def bias() -> None:
    """Different curvatures: the noise-free run stops near x*, at a distance that falls with the step size."""
    problem, parts, best = quadratic(np.linspace(0.5, 2.0, 10), records=2, spread=0.0)
    sizes, off = [0.2, 0.1, 0.05, 0.025, 0.0125], []
    print("step size   |x - x*|")
    for size in sizes:
        free = sv.Release.open()
        method = LdpDsbo(size, size, size, free, free, sv.Full(), x=free)
        steps = round(150 / size)
        got = repeat(problem, parts, method, RING, steps, [0], lambda x, y: {"x": x}, steps)["x"][0, -1]
        off.append(float(np.linalg.norm(got - best)))
        print(f"{size:9.4f}   {off[-1]:.5f}")
    with picture("ldp-dsbo-bias") as axes:
        axes.loglog(sizes, off, "o-")
        axes.set(xlabel="step size", ylabel="distance from x*", title="Bias without noise, curvatures .5 to 2")


def rate() -> None:
    """Strongly convex, streaming data, the paper's decaying noise: the fitted rate against Theorem 4.1's."""
    steps, every, seeds = 4000, 100, range(20)
    problem, parts, best = quadratic(np.ones(10), records=steps, spread=1.0)
    lines = {}
    for design in ("sound", "printed"):
        method = LdpDsbo.paper(
            step=(0.5, 0.5, 0.5), v=(0.66, 0.64, 0.43), sigma=1.0, s=(0.65, 0.63, 0.42), clip=50.0, design=design
        )
        predicted = predict(method, RING, "strongly convex").rate
        error = repeat(
            problem, parts, method, RING, steps, seeds, lambda x, y: {"e": jnp.sum((x - best) ** 2)}, every, chunk=steps
        )["e"].mean(axis=0)
        t = np.arange(0, steps + 1, every)
        late = t >= steps // 10
        fitted = -np.polyfit(np.log(t[late]), np.log(error[late]), 1)[0]
        print(f"{design}: mean squared error {error[1]:.4f} at {every}, {error[-1]:.5f} at {steps}; "
              f"fitted rate {fitted:.2f}, Theorem 4.1 {predicted:.2f}")  # fmt: skip
        lines[design] = (t[1:], error[1:], predicted)
    with picture("ldp-dsbo-rate") as axes:
        for design, (t, error, predicted) in lines.items():
            axes.loglog(t, error, label=f"{design}, 20 seeds")
        axes.loglog(t, error[0] * (t / t[0]) ** -predicted, "k--", label=f"T^-{predicted:g} (Theorem 4.1)")
        axes.set(xlabel="step", ylabel="mean |x - x*|^2")
        axes.legend()


# Pictures and the way in.


class picture:
    """A small figure, written when the block ends."""

    def __init__(self, name: str, columns: int = 1) -> None:
        self.name, self.columns = name, columns

    def __enter__(self) -> Any:
        import matplotlib

        matplotlib.use("svg")
        from matplotlib import pyplot

        self.figure, axes = pyplot.subplots(1, self.columns, figsize=(4.2 * self.columns, 3.0), squeeze=False)
        return axes[0, 0] if self.columns == 1 else axes[0]

    def __exit__(self, *_: Any) -> None:
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.figure.tight_layout()
        self.figure.savefig(PICTURES / f"{self.name}.png", dpi=80)


MEASUREMENTS = {fn.__name__: fn for fn in (bias, rate)}

if __name__ == "__main__":
    unknown = [name for name in sys.argv[1:] if name not in MEASUREMENTS]
    if unknown or not sys.argv[1:]:
        sys.exit(f"usage: python {sys.argv[0]} {' '.join(MEASUREMENTS)}")
    for name in sys.argv[1:]:
        print(f"## {name}: {MEASUREMENTS[name].__doc__}")
        began = time.perf_counter()
        MEASUREMENTS[name]()
        print(f"({time.perf_counter() - began:.0f} s)\n", flush=True)
