"""How fast DP gradient tracking converges over graphs that are not strongly connected, and what a naive method does.

    python benchmarks/gradient_tracking.py [--out docs/pictures/gradient-tracking.svg]

Two problems with known optimum, 5 agents: quadratics of different curvature, and the Polyak-Lojasiewicz but nonconvex
x^2 + 3 sin^2 x, tilted on each agent. Errors are F(x_i) - F* a coordinate, averaged over agents and 200 coordinates, so
that one seed is enough. Slopes are least-squares fits.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from sottovoce.papers.gradient_tracking import theory
from sottovoce.papers.gradient_tracking.method import DpGradientTracking
from sottovoce.papers.gradient_tracking.theory import S1, S2, Rates

PULL = [(0, 1), (1, 0), (1, 2), (0, 3), (3, 4)]  # agents 2, 3, 4 only listen
PUSH = [(1, 0), (0, 1), (2, 0), (3, 1), (4, 3)]  # and only speak
NETWORK = sv.networks.directed(PULL, PUSH)
COORDINATES, RECORDS = 200, 1000


@dataclass(frozen=True)
class Case:
    name: str
    problem: sv.Minimize
    parts: list[Any]
    gap: Any  # F - F*, a coordinate


def convex() -> Case:
    rng = np.random.default_rng(0)
    h = np.array([0.5, 1.0, 1.5, 2.0, 0.8], np.float32)
    c = np.array([3.0, 2.0, -1.0, 0.0, -2.0], np.float32)
    parts = []
    for curvature, centre in zip(h, c):
        scatter = rng.normal(size=(RECORDS, COORDINATES)).astype(np.float32)
        scatter -= scatter.mean(axis=0)
        parts.append({"h": np.full(RECORDS, curvature), "c": centre + scatter})
    best = float(h @ c / h.sum())
    problem = sv.Minimize(lambda x, r: 0.5 * r["h"] * jnp.sum((x - r["c"]) ** 2), jnp.full(COORDINATES, 10.0))
    return Case("strongly convex", problem, parts, lambda x: 0.5 * float(h.mean()) * jnp.mean((x - best) ** 2))


def nonconvex() -> Case:
    rng = np.random.default_rng(1)
    tilt = rng.normal(size=(5, RECORDS, COORDINATES)).astype(np.float32) + 2 * rng.normal(size=(5, 1, COORDINATES))
    tilt = (tilt - tilt.mean(axis=(0, 1))).astype(np.float32)
    problem = sv.Minimize(lambda x, r: jnp.sum(x**2 + 3 * jnp.sin(x) ** 2 + r * x), jnp.full(COORDINATES, 3.0))
    return Case("PL, nonconvex", problem, list(tilt), lambda x: jnp.mean(x**2 + 3 * jnp.sin(x) ** 2))


@dataclass(frozen=True)
class _Naive(DpGradientTracking):
    """Averages along pull as if its weights were symmetric, and descends along its own gradient."""

    def step(self, problem: Any, state: Any, agent: Any) -> Any:
        slope = agent.release(self.gradient, problem.loss, at=state.x, batch=agent.sample(self._sampling))
        alpha, _, gamma = (rate(agent.t, agent.index) for rate in theory.step_sizes(self.scheme))
        pull, heard = agent.heard("pull"), agent.mix(state.x, over="pull")
        x = jax.tree.map(lambda x, h, g: x + alpha * (h - pull * x) - gamma * g, state.x, heard, slope)
        return state._replace(x=x)


def errors(case: Case, method: Any, steps: int, every: int) -> tuple[np.ndarray, np.ndarray]:
    result = sv.run(
        case.problem, case.parts, method, network=NETWORK, steps=steps, every=every,
        evaluate=lambda x: {"gap": case.gap(x)},
    )  # fmt: skip
    return result.history["step"], result.history["gap/agents"].mean(axis=1)


def within_a_run(case: Case) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Constant steps (S2's), sound: exponential down to a floor that the noise sets; the naive method beside it."""
    rates = Rates(0.5, 0.4, 0.02)
    curves = {}
    for noise in (1.0, 0.1, 0.01):
        method = DpGradientTracking(rates, sv.Release(100.0, noise), sampling=sv.Full())
        curves[f"noise {noise:g}"] = errors(case, method, 600, 10)
    tracking = DpGradientTracking(rates, sv.Release(100.0, 0.01), sampling=sv.Full())
    naive = _Naive(**{field.name: getattr(tracking, field.name) for field in fields(tracking)})
    return {**curves, "naive, noise 0.01": errors(case, naive, 600, 10)}


EXPONENTS = {"p_alpha": 0.8, "p_beta": 0.6, "p_gamma": 0.8, "p_m": 1.0}  # theta = 1: predicted K^-0.2 at p = 0


def over_runs(case: Case, scheme: str) -> tuple[list[int], list[float]]:
    """The paper's own statement: the error at the end of runs of different length K; printed, compact form."""
    ends = []
    lengths = [100, 200, 400, 800, 1600] if scheme == "S1" else [100, 150, 200, 250, 300]
    for K in lengths:
        if scheme == "S1":
            made: S1 | S2 = S1(K, a1=10.0, a2=5.0, a3=4.0, a4=0.5, **EXPONENTS)
            noise = made.noise(0.0)
        else:
            made = S2(K, alpha=0.5, beta=0.4, gamma=0.05, p_m=1.02)
            noise = made.noise(0.98)
        release = sv.Release(1e6, noise, mechanism="laplace")
        method = DpGradientTracking(made, release, design="printed", form="compact")
        ends.append(float(errors(case, method, K + 1, K + 1)[1][-1]))
    return lengths, ends


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    cases = [convex(), nonconvex()]
    runs = {case.name: within_a_run(case) for case in cases}
    ends = {(case.name, scheme): over_runs(case, scheme) for case in cases for scheme in ("S1", "S2")}
    for name, curves in runs.items():
        for label, (steps, gap) in curves.items():
            print(f"{name:16} {label:18} start {gap[0]:.3g}, floor {np.mean(gap[-10:]):.3g}", end="")
            falling = (gap < gap[0] / 3) & (gap > 20 * np.mean(gap[-10:]))
            if falling.sum() > 3:
                print(f", falls like {np.exp(np.polyfit(steps[falling], np.log(gap[falling]), 1)[0]):.4f}^k", end="")
            print()
    for (name, scheme), (lengths, gap) in ends.items():
        if scheme == "S1":
            fit = f"K^{np.polyfit(np.log(lengths), np.log(gap), 1)[0]:.2f} (theorem 1: at most K^-0.20)"
        else:
            fit = (
                f"{np.exp(np.polyfit(lengths, np.log(gap), 1)[0]):.4f}^K (p^2 = {0.98**2:.4f}, 1/p_m = {1 / 1.02:.4f})"
            )
        print(f"{name:16} {scheme} ends {', '.join(f'{e:.2g}' for e in gap)} at K = {lengths}: {fit}")
    if out is not None:
        draw(out, runs, ends)


def draw(out: Path, runs: Any, ends: Any) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(14, 3.4), sharey=False, layout="constrained")
    for axis, (name, curves) in zip(axes, runs.items()):
        for label, (steps, gap) in curves.items():
            axis.semilogy(steps, gap, label=label, linestyle="--" if "naive" in label else "-")
        axis.set(title=f"{name}: constant steps, sound", xlabel="step", ylabel="F(x) - F*")
        axis.legend(fontsize=7)
    for (name, scheme), (lengths, gap) in ends.items():
        axis = axes[2] if scheme == "S1" else axes[3]
        (axis.loglog if scheme == "S1" else axis.semilogy)(lengths, gap, "o", label=name)
        at = np.log(lengths) if scheme == "S1" else np.asarray(lengths, float)
        axis.plot(lengths, np.exp(np.polyval(np.polyfit(at, np.log(gap), 1), at)), color="0.5", linewidth=1)
        axis.set(title=f"{scheme}, printed: error at the end", xlabel="K")
        axis.legend(fontsize=7)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)


if __name__ == "__main__":
    main()
