"""Draw bound (9) of the paper on DP gradient tracking beside runs: how far the average is from the best model.

    python -m benchmarks.tracking_bound [--write]

Four agents on a cycle hold one record each, f_i = h_i |x - c_i|^2 / 2 in three coordinates. The printed design (7), (8)
runs with step sizes 1e-3, 2e-3 and 1e-4, and Laplace noise 0.1 on both messages; 20 seeds draw the noise. Beside it
are Lemma 2's bound with u_k as printed and with u_k as mended (`lemmas.disturbance`). `--write` makes
docs/results/gradient-tracking/bound-curves.csv and docs/pictures/gradient-tracking-bound.svg.
"""

import argparse
import csv
import io
from datetime import date
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from sottovoce.methods import DpGradientTracking
from sottovoce.papers.gradient_tracking.lemmas import Problem, error_curve, spreads
from sottovoce.papers.gradient_tracking.theory import Rates
from sottovoce.reports import chart, pictures

DOCS = Path(__file__).parent.parent / "docs"
COMMAND = "python -m benchmarks.tracking_bound --write"
CYCLE = [(i, (i + 1) % 4) for i in range(4)]
NETWORK = sv.networks.directed(CYCLE, CYCLE)
H, C = np.array([0.5, 1.0, 0.8, 0.7]), np.random.default_rng(1).normal(size=(4, 3))
BEST = (H[:, None] * C).sum(0) / H.sum()
STEPS, EVERY, SEEDS, NOISE = 60_000, 1500, 20, 0.1
RATES = Rates(1e-3, 2e-3, 1e-4)


def gap(x: jnp.ndarray) -> jnp.ndarray:
    """Return F(x) - F*, where F is the mean of the agents' losses."""
    return H.mean() / 2 * jnp.sum((x - BEST) ** 2)


def runs() -> np.ndarray:
    """Return the gap of the agents' average in each seed, every `EVERY` steps."""
    problem = sv.Minimize(lambda x, r: 0.5 * r["h"] * jnp.sum((x - r["c"]) ** 2), jnp.zeros(3))
    parts = [{"h": np.float32([h]), "c": np.float32(c)[None]} for h, c in zip(H, C)]
    release = sv.Release(np.inf, NOISE, "laplace")
    method = DpGradientTracking(RATES, release, sampling=sv.Full(), design="printed", form="compact")
    quiet = sv.Performance(progress=False)

    def one(seed: int) -> np.ndarray:
        done = sv.run(
            problem, parts, method, network=NETWORK, steps=STEPS, every=EVERY, seed=seed, performance=quiet,
            evaluate=lambda x: {"gap": gap(x)},
        )  # fmt: skip
        return np.asarray(done.history["gap"])

    return np.stack([one(seed) for seed in range(SEEDS)])


def bound(printed: bool) -> np.ndarray:
    """Return bound (9) on the gap, every `EVERY` steps, from the start that the runs have."""
    first = -H[:, None] * C  # the trackers start as the gradients at 0, and all agents at the same place
    _, push = spreads(NETWORK, RATES.alpha, RATES.beta)
    lost = first - push.weights[:, None] * first.mean(0)
    start = [0.0, float(np.sum(lost**2)), float(gap(jnp.zeros(3)))]
    problem = Problem(L=H.max(), mu=H.mean(), d=3, noise_x=NOISE, noise_y=NOISE)
    return error_curve(NETWORK, problem, RATES, start, STEPS, printed)[::EVERY, 2]


def main() -> None:
    """Print the curves, or write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    seen, steps = runs(), np.arange(0, STEPS + 1, EVERY)
    curves = {
        "runs, mean": seen.mean(0), "runs, lowest": seen.min(0), "runs, highest": seen.max(0),
        "bound (9)": bound(printed=False), "bound (9), u_k as printed": bound(printed=True),
    }  # fmt: skip
    text = io.StringIO()
    text.write(f"# {COMMAND}\n# sottovoce {sv.__version__}, {date.today()}\n# {SEEDS} seeds of the noise\n")
    lines = [("k", *curves), *zip(steps, *([f"{value:.6g}" for value in curve] for curve in curves.values()))]
    csv.writer(text, lineterminator="\n").writerows(lines)
    if not asked.write:
        print(text.getvalue(), end="")
        return
    drawn = [
        chart.Line("20 runs", "runs", steps, seen.mean(0), seen.min(0), seen.max(0), slot=0),
        chart.Line("bound (9)", "bound", steps, curves["bound (9)"], slot=1),
        chart.Line("u_k as printed", "printed", steps, curves["bound (9), u_k as printed"], slot=2, style="--"),
    ]
    x = chart.Axis("iterations", 0, STEPS)
    y = chart.Axis("F(average) - F*", float(seen.min()), float(max(line.y.max() for line in drawn)), log=True)
    (DOCS / "results" / "gradient-tracking" / "bound-curves.csv").write_text(text.getvalue())
    picture = pictures.by_itself([chart.chart(drawn, x, y, "gap of the average over iterations")])
    (DOCS / "pictures" / "gradient-tracking-bound.svg").write_text(picture)


if __name__ == "__main__":
    main()
