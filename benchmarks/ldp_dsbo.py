"""LDP-DSBO measured: convergence, rivals, topologies, cost and memory. The figures stand in docs/ldp-dsbo.md.

    python benchmarks/ldp_dsbo.py bias rate synthetic mnist private useless topology cost meta

Each name prints its table; those with curves also write a picture into docs/pictures. Real data come from
SOTTOVOCE_DATA. Everything is sized for two cores.
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
from sottovoce.methods import DpSgd, GbDsbo, LdpDsbo, MaDsbo
from sottovoce.methods.ldp_dsbo_theory import predict
from sottovoce.problems import tasks
from sottovoce.runtime.store import lay_out
from sottovoce.runtime.vectorised import program
from sottovoce.schedules import Decay, Linear

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
        lines[design] = (t[1:], error[1:])
    with picture("ldp-dsbo-rate") as axes:
        for design, (t, error) in lines.items():
            axes.loglog(t, error, label=f"{design}, 20 seeds")
        axes.loglog(t, error[0] * (t / t[0]) ** -predicted, "k--", label=f"T^-{predicted:g} (Theorem 4.1)")
        axes.set(xlabel="step", ylabel="mean |x - x*|^2")
        axes.legend()


# The paper's comparisons: noise on messages, as printed.


def printed_noise(powers: float, sigma: float = 1.0) -> sv.Release:
    """Laplace noise sigma / (sqrt(2) (t+1)^(powers + 0.01 i)) on agent i's messages, nothing clipped."""
    decay = Decay(sigma / math.sqrt(2), tuple(powers + 0.01 * i for i in AGENTS))
    return sv.Release(math.inf, decay, "laplace")


def printed_ldp_dsbo(steps: tuple[float, float, float], batch: int) -> LdpDsbo:
    """The paper's schedules, for the three step sizes at t = 0."""
    powers = tuple(tuple(base + 0.01 * i for i in AGENTS) for base in (0.8, 0.76, 0.6))
    return LdpDsbo.paper(
        step=steps, v=(0.95, 0.87, 0.75), sigma=1.0, s=powers, data="batch", batch=batch, design="printed"
    )


def compare(title: str, contenders: Mapping[str, tuple[Any, Any, list[Any], int, Any]], seeds: Sequence[int]) -> None:
    """Train loss, test loss and accuracy of (method, problem, parts, steps, evaluate), mean and band over seeds."""
    with picture(title, columns=3) as axes:
        for name, (method, problem, parts, steps, evaluate) in contenders.items():
            found: list[dict[str, np.ndarray]] = []
            for seed in seeds:
                try:
                    found.append(repeat(problem, parts, method, RING, steps, [seed], evaluate, max(1, steps // 10)))
                except FloatingPointError as error:
                    print(f"{name:24s} seed {seed}: {str(error).split(':')[0]}")
            if not found:
                continue
            print(f"{name:24s}", end="")
            for axis, metric in zip(axes, ("train loss", "loss", "accuracy")):
                curves = np.concatenate([one[metric] for one in found])
                share = np.linspace(0, 1, curves.shape[1])
                axis.plot(share, curves.mean(axis=0), label=name)
                axis.fill_between(share, curves.min(axis=0), curves.max(axis=0), alpha=0.2)
                axis.set(xlabel="share of the run", title=metric)
                print(f"  {metric} {curves[:, -1].mean():.4f} +- {curves[:, -1].std():.4f}", end="")
            print(flush=True)
        axes[1].set_yscale("log")
        axes[0].set_yscale("log")
        axes[2].legend(fontsize=7)


def with_train_loss(task: Any, train: Any, test: Any) -> Callable[..., Mapping[str, Any]]:
    on_test, on_train = task.metrics(test), task.metrics(train)
    return lambda x, y: {**on_test(x, y), "train loss": on_train(x, y)["loss"]}


def thin(records: Mapping[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """Evenly spaced records: a quick estimate of a metric."""
    keep = np.linspace(0, len(records["label"]) - 1, min(count, len(records["label"]))).astype(int)
    return {name: column[keep] for name, column in records.items()}


def gathered(parts: Sequence[Any], count: int) -> dict[str, np.ndarray]:
    """A few training records of every party."""
    held = [thin(part.gather(), count // len(parts)) for part in parts]
    return {name: np.concatenate([one[name] for one in held]) for name in held[0]}


FACTORS = (1.0, 1 / 4, 1 / 16, 1 / 64, 1 / 256)


def best_steps(make: Callable[[float], Any], problem: Any, parts: list[Any], steps: int, evaluate: Any) -> Any:
    """A rival with the step sizes, out of five, that end with the least training loss (the paper tunes them too)."""
    reached = {}
    for factor in FACTORS:
        try:
            got = repeat(problem, parts, make(factor), RING, steps, [100], evaluate, steps)
            reached[factor] = float(np.nan_to_num(got["train loss"][0, -1], nan=np.inf))
        except FloatingPointError:
            reached[factor] = math.inf
    best = min(reached, key=lambda factor: reached[factor])
    print("   step sizes times", {f"{factor:.3g}": f"{loss:.3g}" for factor, loss in reached.items()}, flush=True)
    return make(best)


def rivals(steps_ma: tuple[float, ...], steps_gb: tuple[float, ...], batch: int, smoothness: float) -> Any:
    """MA-DSBO and GBDSBO with the fastest decaying noise on their messages, for a factor on their step sizes."""
    noise, drawn = printed_noise(0.8), sv.FixedSize(batch)

    def ma(factor: float) -> MaDsbo:
        x, y, z = (factor * step for step in steps_ma)
        return MaDsbo(x, y, z, noise, noise, noise, drawn, design="printed")

    def gb(factor: float) -> GbDsbo:
        x, y = (factor * step for step in steps_gb)
        return GbDsbo(x, y, 0.05, noise, noise, noise, noise, drawn, smoothness=smoothness, design="printed")

    return ma, gb


def synthetic() -> None:
    """The paper's synthetic setting, noise on messages: LDP-DSBO, MA-DSBO and GBDSBO on three distributions."""
    batch = 50  # the text adds the losses of a batch up: here each counts 50 times in a mean
    ours = printed_ldp_dsbo((0.05, 0.05, 0.02), batch)
    ma, gb = rivals((0.03, 0.03, 0.01), (0.05, 0.02), batch, smoothness=1250.0)
    for kind in ("normal", "chi-squared", "mixed"):
        parts, test = sv.data.synthetic.heterogeneous(records=1000, test=2000, kind=kind)
        tuned = tasks.get("tuned-logistic")(tasks.Shape((200,), 2, 10), penalty=0.5, bias=False, weight=batch)
        evaluate = with_train_loss(tuned, gathered(parts, 2000), test)
        print(kind)
        contenders = {"LDP-DSBO": (ours, 100)}
        if kind == "normal":
            contenders["MA-DSBO"] = (best_steps(ma, tuned.problem, parts, 10, evaluate), 10)
            contenders["GBDSBO"] = (best_steps(gb, tuned.problem, parts, 10, evaluate), 10)
        compare(
            f"ldp-dsbo-synthetic-{kind}",
            {name: (method, tuned.problem, parts, steps, evaluate) for name, (method, steps) in contenders.items()},
            seeds=range(5),
        )


def digits(side: int = 28, classes: int = 10, skew: float = 0.5) -> tuple[Any, list[Any], Any]:
    """MNIST by label skew, pictures averaged down to side x side, and the paper's task on it."""

    def small(records: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        kept = records["label"] < classes
        pictures = records["features"][kept].reshape(-1, side, 28 // side, side, 28 // side).mean(axis=(2, 4))
        return {"features": pictures.reshape(-1, side * side), "label": records["label"][kept]}

    train, test = map(small, sv.data.load("mnist"))
    parts = sv.data.split(train, 10, "label", skew=skew) if classes == 10 else sv.data.split(train, 10)
    tuned = tasks.get("tuned-softmax")(tasks.Shape((side * side,), classes, 10), bias=False)
    return tuned, parts, test


def mnist() -> None:
    """The paper's MNIST setting, noise on messages; GBDSBO's matrices need smaller pictures and fewer classes."""
    ours = printed_ldp_dsbo((1.2, 1.2, 1.2), 50)
    ma, gb = rivals((0.1, 0.1, 0.1), (0.1, 0.1), 50, smoothness=10.0)
    for skew in (0.3, 0.5, 1.0):
        tuned, parts, test = digits(skew=skew)
        evaluate = with_train_loss(tuned, gathered(parts, 2000), thin(test, 2000))
        print(f"28 x 28, ten classes, q = {skew:.0%}")
        contenders = {"LDP-DSBO": (ours, tuned.problem, parts, 720, evaluate)}
        if skew == 0.5:
            nested = best_steps(ma, tuned.problem, parts, 72, evaluate)
            contenders["MA-DSBO"] = (nested, tuned.problem, parts, 72, evaluate)
        compare(f"ldp-dsbo-mnist-q{skew * 100:.0f}", contenders, seeds=range(5))
    tuned, parts, test = digits(side=7, classes=5)
    evaluate = with_train_loss(tuned, gathered(parts, 2000), thin(test, 2000))
    print("7 x 7, five classes")
    small = {"LDP-DSBO": (ours, 360)}
    for name, make in (("MA-DSBO", ma), ("GBDSBO", gb)):
        small[name] = (best_steps(make, tuned.problem, parts, 36, evaluate), 36)
    compare(
        "ldp-dsbo-mnist-small",
        {name: (method, tuned.problem, parts, steps, evaluate) for name, (method, steps) in small.items()},
        seeds=range(3),
    )


def topology() -> None:
    """MNIST as printed on other graphs: ring and random regular ones, Metropolis weights."""
    tuned, parts, test = digits()
    evaluate = with_train_loss(tuned, gathered(parts, 2000), thin(test, 2000))
    graphs = {"ring": sv.networks.ring(10), **{f"r = {r}": sv.networks.regular(10, r) for r in (2, 3, 5, 8)}}
    for name, graph in graphs.items():
        got = repeat(tuned.problem, parts, printed_ldp_dsbo((1.2,) * 3, 50), graph, 360, range(5), evaluate, 360)
        accuracy, loss, apart = (got[metric][:, -1] for metric in ("accuracy", "loss", "consensus"))
        print(f"{name:8s}  accuracy {accuracy.mean():.4f} +- {accuracy.std():.4f}  test loss {loss.mean():.4f}"
              f"  consensus {apart.mean():.3g}", flush=True)  # fmt: skip


# Private for good: sound, at a stated epsilon.


def private() -> None:
    """MNIST, sound, epsilon 2 per agent (delta 1e-5), q = 50 %: a tuned penalty a pixel, test accuracy."""
    train, test = sv.data.load("mnist")
    parts = sv.data.split(train, 10, "label", skew=0.5)
    tuned = tasks.get("tuned-softmax")(tasks.Shape((784,), 10, 10), limit=5.0)
    steps = 300
    place = {"sizes": [len(part) for part in parts], "steps": steps, "network": RING}
    falling = Linear(4.5, 0.1, steps)  # the decay brings the agents together
    rough = LdpDsbo(300.0, falling, 0.2, sv.Release(1.0, 0.01), sv.Release(1.0, 0.03), sv.Poisson(500), z_radius=10.0)
    method = sv.calibrate(rough, epsilon=2.0, **place)
    report = sv.account(method, **place)

    def evaluate(x: Any, y: Any) -> Mapping[str, Any]:
        return {**tuned.metrics(test)(x, y), "x spread": jnp.std(x)}

    got = repeat(tuned.problem, parts, method, RING, steps, range(3), evaluate, steps)
    accuracy, each = got["accuracy"][:, -1], got["accuracy/agents"][:, -1]
    print(f"epsilon {report.epsilon:.4f} ({report.adjacency}), test accuracy of the average {accuracy.mean():.4f} "
          f"+- {accuracy.std():.4f}, of the agents {each.mean():.4f}, of the worst {each.min():.4f}; "
          f"spread of x {got['x spread'][:, -1].mean():.2f}")  # fmt: skip


def useless() -> None:
    """5 telling features among 200, 300 patients a party, epsilon 2: tuned penalties against DP-SGD without tuning."""
    table = sv.data.synthetic.patients(count=6000, informative=5, useless=195)
    table["features"] = sv.data.bounded_norm(table["features"], 4.0) / 4  # the same for all contenders
    late = table["patient_id"] >= 3000
    train, test = ({name: column[rows] for name, column in table.items()} for rows in (~late, late))
    parts = sv.data.split(train, 10, unit="patient_id")
    shape, drawn, steps = tasks.Shape((200,), 2, 10), sv.Poisson(150), 100
    place = {"sizes": [300] * 10, "steps": steps, "network": RING}
    show = "{:34s} accuracy {:.4f} +- {:.4f}  AUROC {:.4f} +- {:.4f}".format

    def measure(name: str, task: Any, method: Any, epsilon: float | None = 2.0) -> None:
        method = sv.calibrate(method, epsilon=epsilon, **place) if epsilon else method.without_privacy()
        got = repeat(task.problem, parts, method, RING, steps, range(5), task.metrics(test), steps)
        last = [got[metric][:, -1] for metric in ("accuracy", "auroc")]
        print(show(name, *(figure for values in last for figure in (values.mean(), values.std()))), flush=True)

    tuned = tasks.get("tuned-logistic")(shape, penalty=0.01, start=2.0, limit=2.5, groups=40)
    tuning = LdpDsbo(15.0, 4.0, 2.0, sv.Release(1.0, 0.01), sv.Release(1.0, 0.02), drawn, z_radius=20.0)
    for epsilon in (1.0, 2.0, 4.0):
        measure(f"tuned by group, epsilon {epsilon:g}", tuned, tuning, epsilon)
    measure("tuned by group, no privacy", tuned, tuning, None)
    for rate, penalty in ((0.5, 0.0), (1.0, 0.0), (2.0, 0.0), (4.0, 0.0), (1.0, 0.02), (4.0, 0.05)):
        plain = tasks.get("logistic")(shape, penalty=penalty)
        measure(f"DP-SGD, rate {rate:g}, penalty {penalty:g}", plain, DpSgd(rate, sv.Release(1.0, 0.01), drawn))
    plain = tasks.get("logistic")(shape)
    measure("DP-SGD, rate 4, no privacy", plain, DpSgd(4.0, sv.Release(1.0, 0.01), drawn), None)


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
    both = {"z_radius": 10.0, "x": noisy}
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


def _time_in_turn(
    parts: list[Any], contenders: Mapping[str, tuple[Any, Any]], count: int = 40, rounds: int = 8
) -> None:
    """Best time of a step inside a compiled loop; in turn, so that a busy machine is fair to all."""
    layout, ready = lay_out(parts), {}
    for name, (problem, method) in contenders.items():
        compiled = program(problem, method, layout, sv.networks.single(), 10_000, 0, 1024)
        state = jax.block_until_ready(compiled.advance(compiled.init(), 0, count)[0])
        memory = jax.jit(lambda s, c=compiled: c.advance(s, 0, 1)).lower(state).compile().memory_analysis()
        ready[name] = [compiled, state, memory.temp_size_in_bytes, math.inf]
    for _ in range(rounds):
        for held in ready.values():
            began = time.perf_counter()
            held[1] = jax.block_until_ready(held[0].advance(held[1], 0, count)[0])
            held[3] = min(held[3], (time.perf_counter() - began) / count)
    base = next(iter(ready.values()))[3]
    for name, (_, _, memory, best) in ready.items():
        print(f"{name:32s} {1e3 * best:7.2f} ms  x {best / base:.2f}  working memory {memory / 2**20:.1f} MiB")


def meta() -> None:
    """CIFAR-10 meta-learning end to end: 32 five-way tasks, a narrow network, sound, 10 agents, 30 % label skew."""
    train, test = sv.data.load("cifar10", image=True)
    train, test = ({**r, "features": (r["features"] - 0.45) * 4} for r in (train, test))
    parts = sv.data.split(train, 10, "label", skew=0.3)
    learner = tasks.get("meta-heads")(tasks.Shape((32, 32, 3), 10, 10), width=8, penalty=0.01)
    on_train, on_test = (learner.metrics(thin(records, 1000)) for records in (train, test))
    steps = 200
    rough = LdpDsbo(
        0.3,
        1.0,
        0.3,
        sv.Release(1.0, 0.01),
        sv.Release(1.0, 0.02),
        sv.Poisson(200),
        x=sv.Release(1.0, 0.01),
        z_radius=10.0,
    )
    place = {"sizes": [len(part) for part in parts], "steps": steps, "network": RING}
    for epsilon in (8.0, None):
        method = sv.calibrate(rough, epsilon=epsilon, **place) if epsilon else rough.without_privacy()
        got = repeat(
            learner.problem, parts, method, RING, steps, [0],
            lambda x, y: {"train": on_train(x, y)["accuracy"], "test": on_test(x, y)["accuracy"]}, steps // 4,
        )  # fmt: skip
        print(f"epsilon {epsilon or math.inf:g}: training accuracy {got['train'][0].round(3).tolist()}, "
              f"test {got['test'][0].round(3).tolist()} (chance 0.2)", flush=True)  # fmt: skip


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


MEASUREMENTS = {fn.__name__: fn for fn in (bias, rate, synthetic, mnist, private, useless, topology, cost, meta)}

if __name__ == "__main__":
    unknown = [name for name in sys.argv[1:] if name not in MEASUREMENTS]
    if unknown or not sys.argv[1:]:
        sys.exit(f"usage: python {sys.argv[0]} {' '.join(MEASUREMENTS)}")
    for name in sys.argv[1:]:
        print(f"## {name}: {MEASUREMENTS[name].__doc__}")
        began = time.perf_counter()
        MEASUREMENTS[name]()
        print(f"({time.perf_counter() - began:.0f} s)\n", flush=True)
