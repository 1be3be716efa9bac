"""DP bilevel measured: bias, noise against the penalty, error against n, a9a. The figures stand in docs/dp-bilevel.md.

    python benchmarks/dp_bilevel.py bias rate a9a weights

Each name prints its table; `bias`, `rate` and `weights` also draw a picture into docs/pictures. Real data come from
SOTTOVOCE_DATA. `weights` reads what `sottovoce reproduce dp-bilevel/cleaning --out runs/cleaning` has left.
"""

import dataclasses
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from sottovoce.estimators import TunedLogisticRegression
from sottovoce.methods.dp_bilevel import Descent, DpBilevel
from sottovoce.methods.planning import planned
from sottovoce.problems import tasks
from sottovoce.problems.tasks.reweighting import rates
from sottovoce.schedules import Constant
from sottovoce.theory.bilevel_plan import plan
from sottovoce.theory.dp_bilevel import Facts

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


# Error against n at a fixed epsilon.


def rate(seeds: int = 6, epsilon: float = 1.0, budget: int = 450) -> None:
    """The planner's configuration for each n on a quadratic with known hypergradient, both ways to solve."""
    dim = 10
    curvature = jnp.linspace(0.5, 1.0, dim)
    facts = Facts(dx=dim, dy=dim, ell=1.0, kappa=2.0, drop=0.2)
    problem = sv.Bilevel(
        upper=lambda x, y, r: 0.5 * jnp.sum((y - r["b"]) ** 2),
        lower=lambda x, y, r: 0.5 * jnp.sum(curvature * (y - x - r["a"]) ** 2),
        x0=jnp.zeros(dim),
        y0=jnp.zeros(dim),
        public_upper=lambda x, y: 0.5 * jnp.sum(x**2),
        public_constants=True,
    )
    sizes = [1000, 4000, 16000, 64000]
    errors: dict[str, list[float]] = {"gap": [], "apart": []}
    for n in sizes:
        rng = np.random.default_rng(n)
        records = {
            name: (centre + rng.uniform(-0.15, 0.15, size=(n, dim))).astype(np.float32)
            for name, centre in (("a", 0.1), ("b", -0.1))
        }
        wanted = records["b"].mean(axis=0) - records["a"].mean(axis=0)
        for solve in ("gap", "apart"):
            chosen = plan(facts, n, epsilon, budget=budget, solve=solve)  # type: ignore[arg-type]
            method = planned(chosen)
            result = sv.run(
                problem,
                [records] * seeds,
                method,
                network=sv.networks.isolated(seeds),
                steps=chosen.steps,
                every=chosen.steps,
                performance=sv.Performance(chunk=16384),
            )
            error = np.linalg.norm(2 * np.asarray(result.agents.x) - wanted, axis=1)
            errors[solve].append(float(error.mean()))
            print(
                f"n {n:6d} {solve:5s}: error {error.mean():.4f} +- {error.std() / math.sqrt(seeds):.4f}, predicted "
                f"{chosen.predicted:.3g}; {chosen.steps} steps, {chosen.inner_steps} inner, penalty "
                f"{chosen.penalty:g}, epsilon {result.privacy.epsilon:.4f}",
                flush=True,
            )
    axes, save = _axes("dp-bilevel-rate", "records", "hypergradient at the output")
    for solve, values in errors.items():
        fitted = slope(sizes, values)
        promised = "1/3 (Theorem 3.1)" if solve == "apart" else "1/2 (argued)"
        print(f"{solve}: error falls as n^{fitted:.2f}; at least {promised} is asked for")
        axes.loglog(sizes, values, "o-", label=f"{solve}: $n^{{{fitted:.2f}}}$")
    first = errors["apart"][0]
    axes.loglog(sizes, [first * (n / sizes[0]) ** (-1 / 3) for n in sizes], "k:", label="$n^{-1/3}$")
    save()


def a9a(seeds: Sequence[int] = (0, 1, 2)) -> None:
    """The estimator on a9a, tuned and untuned."""
    from sklearn.metrics import roc_auc_score

    train, test = sv.data.load("a9a")
    for epsilon, tuning in ((1.0, 0.05), (1.0, 0.0)):
        scores, took = [], []
        for seed in seeds:
            began = time.perf_counter()
            model = TunedLogisticRegression(epsilon=epsilon, tuning_rate=tuning, random_state=seed)
            model.fit(train["features"], train["label"])
            took.append(time.perf_counter() - began)
            scores.append(roc_auc_score(test["label"], model.decision_function(test["features"])))
        print(
            f"epsilon {epsilon:g}, {'tuned' if tuning else 'untuned'}: AUROC {np.mean(scores):.4f} "
            f"({min(scores):.4f} to {max(scores):.4f}), slowest fit {max(took):.0f} s",
            flush=True,
        )


def weights(folder: str = "runs/cleaning") -> None:
    """The weights that the bilevel runs of dp-bilevel/cleaning have found, against the true rates of wrong labels."""
    task = tasks.get("cleaning")(tasks.Shape((784,), 10, 1))
    found = []
    for path in sorted(Path(folder).glob("DP-bilevel*/*/model.npz")):
        found.append(1 / (1 + np.exp(-np.asarray(sv.Model.load(path, task.problem).x))))
    if not found:
        raise SystemExit(f"{folder} holds no run: sottovoce reproduce dp-bilevel/cleaning --out {folder}")
    truth, mean = rates(20, 0.55), np.mean(found, axis=0)
    print("wrong  weight")
    for rate_, weight in zip(truth, mean):
        print(f"{rate_:5.2f}  {weight:.2f}")
    axes, save = _axes("dp-bilevel-weights", "share of wrong labels in the source", "learned weight")
    for one in found:
        axes.plot(truth, one, "o", color="0.7", markersize=3)
    axes.plot(truth, mean, "o-", label=f"mean of {len(found)} seeds")
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
    for name in sys.argv[1:] or ["bias", "rate"]:
        {"bias": bias, "rate": rate, "a9a": a9a, "weights": weights}[name]()
