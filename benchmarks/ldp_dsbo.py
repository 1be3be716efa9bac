"""LDP-DSBO measured: a step's cost and memory, bias and rate on quadratics. The figures stand in docs/ldp-dsbo.md.

    python -m benchmarks.ldp_dsbo [cost] [bias] [rate] [gradient]

Each name prints its table (`cost` if there is none); `bias` and `rate` also draw a picture into docs/pictures. The
comparisons on data are run files: `sottovoce reproduce ldp-dsbo/...`.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from benchmarks import measure
from benchmarks.programs import program
from sottovoce.accounting.account import account_of
from sottovoce.methods import DpSgd, LdpDsbo
from sottovoce.papers.ldp_dsbo.budget import nonconvex_exponents
from sottovoce.papers.ldp_dsbo.theory import predict
from sottovoce.problems import tasks
from sottovoce.runtime import array
from sottovoce.runtime.array import ArrayPlace
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import lay_out

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
RING = sv.networks.ring(10, weight=0.3)
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
    options = {"network": network, "steps": steps, "evaluate": evaluate, "every": every}
    options["performance"] = sv.Performance(chunk)
    found = [sv.run(problem, parts, method, seed=seed, **options).history for seed in seeds]
    return {name: np.stack([one[name] for one in found]) for name in found[0]}


# Convergence on quadratics with a known solution.


def quadratic(
    curvature: np.ndarray, records: int, seed: int = 0, spread: float = 1.0
) -> tuple[Any, list[Any], np.ndarray]:
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
        method = LdpDsbo(size, size, size, free, free, sv.Full(), release_x=free)
        steps = round(150 / size)
        got = repeat(problem, parts, method, RING, steps, [0], lambda x, y: {"x": x}, steps)["x"][0, -1]
        off.append(float(np.linalg.norm(got - best)))
        print(f"{size:9.4f}   {off[-1]:.5f}")
    with picture("ldp-dsbo-bias") as axes:
        axes.loglog(sizes, off, "o-")
        axes.set(xlabel="step size", ylabel="distance from x*", title="Bias without noise, curvatures .5 to 2")


def rate() -> None:
    """Strongly convex, streaming data, the paper's decaying noise: the fitted rate against Theorem 4.1's."""
    steps, every, seeds = 1000, 50, range(10)
    problem, parts, best = quadratic(np.ones(10), records=steps, spread=1.0)
    lines = {}
    for design in ("sound", "printed"):
        method = LdpDsbo.paper(
            step=(0.5, 0.5, 0.5), v=(0.66, 0.64, 0.43), sigma=1.0, s=(0.65, 0.63, 0.42), clip=50.0, design=design
        )
        predicted = predict(method.dynamics, RING, "strongly convex").rate
        error = repeat(
            problem, parts, method, RING, steps, seeds, lambda x, y: {"e": jnp.sum((x - best) ** 2)}, every, chunk=steps
        )["e"].mean(axis=0)
        t = np.arange(0, steps + 1, every)
        late = t >= steps // 10
        fitted = -np.polyfit(np.log(t[late]), np.log(error[late]), 1)[0]
        print(f"{design}: mean squared error {error[1]:.4f} at {every}, {error[-1]:.5f} at {steps}; "
              f"fitted rate {fitted:.2f}, Theorem 4.1 {predicted:.2f}")  # fmt: skip
        lines[design] = (t[1:], error[1:])
    with picture("ldp-dsbo-rate") as axes:
        for design, (t, error) in lines.items():
            axes.loglog(t, error, label=f"{design}, {len(seeds)} seeds")
        axes.loglog(t, error[0] * (t / t[0]) ** -predicted, "k--", label=f"T^-{predicted:g} (Theorem 4.1)")
        axes.set(xlabel="step", ylabel="mean |x - x*|^2")
        axes.legend()


def gradient() -> None:
    """Nonconvex, streaming data: the average of |grad F|^2 over the run, which Theorem 4.1 (iii) bounds.

    Lower: |y - sin(x) - a|^2 / 2. Upper: |y - b|^2 / 2 + |x|^2 / 20. So y* = sin(x) + mean(a), and grad F is known.
    """
    steps, every, seeds, (v, s) = 1000, 20, range(10), nonconvex_exponents(0.015)
    _, parts, _ = quadratic(np.ones(10), records=steps, spread=1.0)
    a, b = (np.mean([part[name].mean(axis=0) for part in parts], axis=0) for name in "ab")
    problem = sv.Bilevel(
        upper=lambda x, y, r: 0.5 * jnp.sum((y - r["b"]) ** 2),
        lower=lambda x, y, r: 0.5 * jnp.sum((y - jnp.sin(x) - r["a"]) ** 2),
        x0=jnp.full(3, 2.0),
        y0=jnp.zeros(3),
        public_upper=lambda x, y: 0.05 * jnp.sum(x**2),
    )

    def squared(x: Any, y: Any) -> Mapping[str, Any]:
        return {"g": jnp.sum((jnp.cos(x) * (jnp.sin(x) + a - b) + 0.1 * x) ** 2)}

    for design in ("sound", "printed"):
        method = LdpDsbo.paper(step=0.5, v=v, sigma=1.0, s=s, clip=50.0, design=design)
        found = repeat(problem, parts, method, RING, steps, seeds, squared, every, chunk=steps)["g"].mean(axis=0)
        average = np.cumsum(found) / np.arange(1, len(found) + 1)
        t = np.arange(0, steps + 1, every)
        late = t >= steps // 10
        fitted = -np.polyfit(np.log(t[late]), np.log(average[late]), 1)[0]
        print(f"{design}: |grad F|^2 {found[0]:.3f} at the start, its average {average[-1]:.4f} after {steps} steps, "
              f"the last {found[-1]:.5f}; fitted rate {fitted:.2f}, Theorem 4.1 {1 - v[0]:.3f}")  # fmt: skip


# What a step costs.


def cost() -> None:
    """One agent, batch 256: a sound step of three second-order releases against one clipped and noised gradient.

    Tuning (784 x 10 weights, q = 7850), and representation learning, where records meet x as well (784 x 64 below the
    head), against DP-SGD on all weights of the same model.
    """
    rng = np.random.default_rng(0)
    features = rng.random((6000, 784), dtype=np.float32) / 16
    parts = [{"features": features, "label": rng.integers(0, 10, 6000).astype(np.int32)}]
    shape, noisy, drawn = tasks.Shape((784,), 10, 1), sv.Release(1.0, 0.01), sv.Poisson(256)
    body, head = jnp.asarray(rng.normal(size=(784, 64)) / 28, jnp.float32), jnp.zeros((64, 10))

    def loss(x: Any, y: Any, r: Any) -> Any:
        return -jax.nn.log_softmax(jnp.tanh(r["features"] @ x) @ y)[r["label"]]

    deep = sv.Bilevel(loss, loss, body, head, public_lower=lambda x, y: 0.01 * jnp.sum(y**2))
    flat = sv.Minimize(lambda w, r: loss(*w, r), (body, head))
    tuned, plain = tasks.get("tuned-softmax")(shape).problem, tasks.get("softmax")(shape).problem
    both = {"z_radius": 10.0, "release_x": noisy}
    for title, contenders in {
        "tuning": {
            "one noisy gradient (DP-SGD)": (plain, DpSgd(0.1, noisy, drawn)),
            "LDP-DSBO, three releases": (tuned, LdpDsbo(0.1, 0.1, 0.1, noisy, noisy, drawn, **both)),
            "LDP-DSBO, x from public terms": (tuned, LdpDsbo(0.1, 0.1, 0.1, noisy, noisy, drawn, z_radius=10.0)),
        },
        "representation": {
            "one noisy gradient (DP-SGD)": (flat, DpSgd(0.1, noisy, drawn)),
            "LDP-DSBO, three releases": (deep, LdpDsbo(0.1, 0.1, 0.1, noisy, noisy, drawn, **both)),
        },
    }.items():
        print(title)
        _time_in_turn(parts, contenders)
    print(f"a q x q Hessian at q = 7850 would take {4 * 7850**2 / 2**20:.0f} MiB, the p x q Jacobian "
          f"{4 * 784 * 7850 / 2**20:.0f} MiB")  # fmt: skip


def mnist() -> None:
    """Time a step of MNIST's shape: 10 agents, 7 850 weights, 784 penalties, Poisson 50 of 6 000, all noised."""
    rng = np.random.default_rng(0)
    features = rng.random((10, 6000, 784), dtype=np.float32) / 16
    parts = [{"features": own, "label": rng.integers(0, 10, 6000).astype(np.int32)} for own in features]
    problem = tasks.get("tuned-softmax")(tasks.Shape((784,), 10, 1)).problem
    noisy, network, steps = sv.Release(1.0, 0.01), sv.networks.ring(10), 20
    given = (0.1, 0.1, 0.1, noisy, noisy)
    methods = {
        "three releases": LdpDsbo(*given, sv.Poisson(50), z_radius=10.0, release_x=noisy),
        "fixed batches": LdpDsbo(*given, sv.FixedSize(50), z_radius=10.0, release_x=noisy),
    }
    programs = {name: program(problem, parts, method, steps, network) for name, method in methods.items()}
    seen = measure.compare("LDP-DSBO", {name: measure.Turns(run, steps) for name, run in programs.items()}, turns=21)
    seen.show()
    seen.limit("three releases", at_most_ms=4.5)


def _time_in_turn(
    parts: list[Any], contenders: Mapping[str, tuple[Any, Any]], count: int = 40, rounds: int = 8
) -> None:
    """Best time of a step inside a compiled loop; in turn, so that a busy machine is fair to all."""
    layout, ready = lay_out(parts), {}
    for name, (problem, method) in contenders.items():
        trace = account_of(method, parts, 10_000, sv.networks.single(), problem=problem).trace
        compiled = ArrayPlace(trace, problem, layout, root_key(0), 1024)
        state = jax.block_until_ready(compiled.advance(compiled.begin(), 0, count)[0])
        given = (compiled.indices, compiled.starts, compiled.records, compiled.roots)
        one = jax.jit(lambda s, c=compiled, g=given: array.advance(c.spec, 1, s, jnp.int32(0), *g))
        memory = one.lower(state).compile().memory_analysis()
        ready[name] = [compiled, state, memory.temp_size_in_bytes, math.inf]
    for _ in range(rounds):
        for held in ready.values():
            began = time.perf_counter()
            held[1] = jax.block_until_ready(held[0].advance(held[1], 0, count)[0])
            held[3] = min(held[3], (time.perf_counter() - began) / count)
    base = next(iter(ready.values()))[3]
    for name, (_, _, memory, best) in ready.items():
        print(f"{name:32s} {1e3 * best:7.2f} ms  x {best / base:.2f}  working memory {memory / 2**20:.1f} MiB")


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


MEASUREMENTS = {fn.__name__: fn for fn in (mnist, cost, bias, rate, gradient)}

if __name__ == "__main__":
    if any(name not in MEASUREMENTS for name in sys.argv[1:]):
        sys.exit(f"usage: python -m benchmarks.ldp_dsbo {' '.join(f'[{name}]' for name in MEASUREMENTS)}")
    for name in sys.argv[1:] or ["mnist", "cost"]:
        print(f"## {name}: {MEASUREMENTS[name].__doc__}")
        began = time.perf_counter()
        MEASUREMENTS[name]()
        print(f"({time.perf_counter() - began:.0f} s)\n", flush=True)
