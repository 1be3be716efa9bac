"""How the error of DP bilevel falls with the number of records, for three kinds of problems.

    python -m benchmarks.bilevel_rate --write docs/results/dp-bilevel/measured

The measure is that of Theorems 3.1 and 4.1: the projected hypergradient (`gradient_mapping`) at the output, whose exact
value has a closed form here, and its square. Every case is run with the settings of the planner (`solve` "gap" and
"apart") and as printed (`DpBilevel.paper`, with fewer steps than the theorems ask for). Five draws of the records and
of the noise each. Nothing is searched: all settings follow from epsilon, n and the constants.
"""

import argparse
import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from sottovoce.papers.dp_bilevel.lemmas import gradient_mapping
from sottovoce.papers.dp_bilevel.method import DpBilevel
from sottovoce.papers.dp_bilevel.plan import plan
from sottovoce.papers.dp_bilevel.planning import planned
from sottovoce.papers.dp_bilevel.theory import Facts
from sottovoce.problems import sets

DIM, EPSILON, DELTA, BUDGET = 10, 1.0, 1e-5, 300
SIZES, SEEDS = (1000, 4000, 16000), 5
TITLE = (
    "Size of the gradient mapping at the output against the number of records n; five draws. Epsilon is what is "
    "proved; as printed, the paper's own is 1."
)
PRINTED = {"steps": 20, "inner_steps": 20}
Records = dict[str, np.ndarray]


@dataclass(frozen=True)
class Family:
    """A family of problems, its constants, how records are drawn, and the exact hypergradient of F at x."""

    problem: sv.Bilevel
    facts: Facts
    draw: Callable[[np.random.Generator, int], Records]
    exact: Callable[[np.ndarray, Records], np.ndarray]


def _around(rng: np.random.Generator, n: int, centre: float) -> np.ndarray:
    return (centre + rng.uniform(-0.15, 0.15, size=(n, DIM))).astype(np.float32)


def convex() -> Family:
    """F is a quadratic: the lower level moves y to x plus a mean, the upper one wants another mean."""
    return Family(
        sv.Bilevel(
            upper=lambda x, y, r: 0.5 * jnp.sum((y - r["b"]) ** 2),
            lower=lambda x, y, r: 0.5 * jnp.sum((y - x - r["a"]) ** 2),
            x0=jnp.zeros(DIM),
            y0=jnp.zeros(DIM),
            public_upper=lambda x, y: 0.5 * jnp.sum(x**2),
        ),
        Facts(dx=DIM, dy=DIM, kappa=2.0, drop=0.2),
        lambda rng, n: {"a": _around(rng, n, 0.1), "b": _around(rng, n, -0.1)},
        lambda x, held: 2 * x + held["a"].mean(0) - held["b"].mean(0),
    )


def nonconvex() -> Family:
    """The upper loss of a record is bounded, z^2 / (1 + z^2) with z = 3 (y - b), so F is not convex in x."""

    def slope(z: np.ndarray) -> np.ndarray:
        return 3 * 2 * z / (1 + z**2) ** 2

    return Family(
        sv.Bilevel(
            upper=lambda x, y, r: 0.1 * jnp.sum((3 * (y - r["b"])) ** 2 / (1 + (3 * (y - r["b"])) ** 2)),
            lower=lambda x, y, r: 0.5 * jnp.sum((y - x - r["a"]) ** 2),
            x0=jnp.zeros(DIM),
            y0=jnp.zeros(DIM),
        ),
        Facts(dx=DIM, dy=DIM, kappa=2.0, drop=0.5),
        lambda rng, n: {"a": _around(rng, n, 0.1), "b": _around(rng, n, -0.3)},
        lambda x, held: 0.1 * slope(3 * (x + held["a"].mean(0) - held["b"])).mean(0),
    )


def heterogeneous() -> Family:
    """Records come from four sources with other curvatures and centres; the box of x binds some coordinates."""

    def draw(rng: np.random.Generator, n: int) -> Records:
        source = rng.integers(4, size=n)
        curved = np.array([0.5, 0.7, 0.9, 1.0])[source, None]
        moved = np.array([-0.3, 0.1, 0.2, 0.4])[source, None]
        ones = np.ones((n, DIM))
        return {
            "c": (curved * ones).astype(np.float32),
            "a": (moved + _around(rng, n, 0.0)).astype(np.float32),
            "b": _around(rng, n, 0.0) + np.linspace(-0.2, 0.4, DIM, dtype=np.float32),
        }

    def exact(x: np.ndarray, held: Records) -> np.ndarray:
        curved = held["c"].astype(float)
        y = x + (curved * held["a"]).mean(0) / curved.mean(0)
        return y - held["b"].mean(0) + x

    return Family(
        sv.Bilevel(
            upper=lambda x, y, r: 0.5 * jnp.sum((y - r["b"]) ** 2),
            lower=lambda x, y, r: 0.5 * jnp.sum(r["c"] * (y - x - r["a"]) ** 2),
            x0=jnp.zeros(DIM),
            y0=jnp.zeros(DIM),
            public_upper=lambda x, y: 0.5 * jnp.sum(x**2),
            project_x=sets.box(-0.1, 0.1),
        ),
        Facts(dx=DIM, dy=DIM, kappa=2.0, drop=0.2),
        draw,
        exact,
    )


def measured(family: Family, solve: str, n: int) -> tuple[np.ndarray, float, int]:
    """Return the size of the gradient mapping at the output for each draw, the epsilon, and the number of steps."""
    records = [family.draw(np.random.default_rng([n, seed]), n) for seed in range(SEEDS)]
    if solve == "as printed":
        method = DpBilevel.paper(family.facts, n=n, epsilon=EPSILON, delta=DELTA, **PRINTED)
        steps = PRINTED["steps"]
    else:
        best = plan(family.facts, n, EPSILON, budget=BUDGET, solve=solve)  # type: ignore[arg-type]
        method, steps = planned(best), best.steps
    result = sv.run(
        family.problem, records, method, network=sv.networks.isolated(SEEDS), steps=steps, every=steps,
        performance=sv.Performance(chunk=16384), delta=DELTA,
    )  # fmt: skip
    found = [
        np.linalg.norm(gradient_mapping(x, family.exact(x, held), 0.1, family.problem.project_x))
        for x, held in zip(np.asarray(result.agents.x), records)
    ]
    return np.array(found), result.privacy.epsilon, steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="folder for rate.csv")
    folder = parser.parse_args().write
    head = ["case", "solve", "n", "mean", "lowest", "highest", "mean square", "epsilon", "steps", "fitted power of n"]
    lines: list[list[object]] = []
    for family in (convex, nonconvex, heterogeneous):
        for solve in ("gap", "apart", "as printed"):
            means = []
            for n in SIZES:
                error, epsilon, steps = measured(family(), solve, n)
                means.append(error.mean())
                figures = [error.mean(), error.min(), error.max(), (error**2).mean(), epsilon]
                lines.append([family.__name__, solve, n, *(f"{value:.4g}" for value in figures), steps])
                print(*lines[-1], sep="  ", flush=True)
            power = np.polyfit(np.log(SIZES), np.log(means), 1)[0]
            print(f"{family.__name__}, {solve}: falls as n^{power:.2f}", flush=True)
            lines[-len(SIZES) :] = [[*line, f"{power:.2f}"] for line in lines[-len(SIZES) :]]
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "rate.csv").open("w", newline="") as file:
            print("# python -m benchmarks.bilevel_rate --write docs/results/dp-bilevel/measured", file=file)
            print("# " + TITLE, file=file)
            csv.writer(file, lineterminator="\n").writerows([head, *lines])


if __name__ == "__main__":
    main()
