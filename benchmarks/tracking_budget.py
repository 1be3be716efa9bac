"""Compute the privacy curves of the paper on DP gradient tracking: Figures 2(e), 3(e), 4(e) and 6.

    python -m benchmarks.tracking_budget [--write]

Printed schemes have the published epsilon (Lemmas 4 and 5) after k of 2001 iterations, at C = 1, unit row sums, and the
paper's step sizes, batches and noise; it is proportional to C. The same with the number of iterations that a scheme is
made for. Rivals have the epsilon that is proved after k steps, with the noise of the run file `rivals`: as much as
epsilon 2 needs after its last step. [36] has no finite epsilon; its own claim is a delta per message, added up here.
`--write` makes docs/results/gradient-tracking/budget-curves.csv and docs/pictures/gradient-tracking-budget.svg, and a
picture of the graphs that the run files use.
"""

import argparse
import csv
import io
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import sottovoce as sv
from sottovoce.papers.gradient_tracking.theory import S1, S2, PaperScheme
from sottovoce.privacy import published
from sottovoce.reports import chart, pictures

DOCS = Path(__file__).parent.parent / "docs"
COMMAND = "python -m benchmarks.tracking_budget --write"
NOISE: dict[type, tuple[float, ...]] = {S1: (-0.1, 0.1, 0.2), S2: (0.9994, 0.9996, 0.9998)}
ITERATIONS = (1, 10, 50, 100, 200, 500, 1000, 1500, 2000)
LENGTHS = (500, 1000, 2000, 4000)  # for how many iterations a scheme is made
STEPS, FULL_STEPS, BATCH = 501, 200, 57
PARTIES = sv.Population([12_000] * 5)


class Point(NamedTuple):
    """One value of a curve."""

    curve: str
    quantity: str
    k: int
    value: float


def printed(scheme: PaperScheme, p: float, k: int) -> float:
    """Return the published epsilon after iterations 0 to k of a scheme, at C = 1.

    >>> round(printed(S2(K=2000), 0.9996, 2000))
    30701
    """
    scale = scheme.noise(p)
    return published.gradient_tracking(
        k, 1.0, scheme.batch, scheme.alpha, scheme.beta, scheme.gamma, lambda t: scale(t), lambda t: scale(t)
    )


def schemes() -> Iterator[Point]:
    """Yield Figures 2(e), 3(e) and 4(e), and the budget of whole runs of other lengths."""
    for kind, levels in NOISE.items():
        for p in levels:
            for k in ITERATIONS:
                yield Point(f"{kind.__name__}, p = {p}", "epsilon as published", k, printed(kind(2000), p, k))
            for length in LENGTHS:
                whole = printed(kind(length), p, length)
                yield Point(f"{kind.__name__}, p = {p}", "epsilon of a run of K", length, whole)


def rivals() -> dict[str, tuple[Any, Any, int]]:
    """Return the sound contenders: method, network, and after how many steps epsilon is 2."""
    release, ring, server = sv.Release(1.0, 1.0), sv.networks.ring(5), sv.networks.complete(5)
    poisson = sv.Poisson(BATCH)
    laplace = sv.Release(1.0, 1.0, mechanism="laplace")
    return {
        "[33], [41], DP-SGD, sound tracking": (sv.methods.WeightedErm(0.3, release, poisson), server, STEPS),
        "[37] binomial noise, full batches": (
            sv.methods.BinomialSgd(0.3, release, sv.Full(), dimension=1970),
            server,
            FULL_STEPS,
        ),
        "[39] online learning": (sv.methods.LdpOnline(0.3, laplace, poisson), ring, STEPS),
    }


def of_rivals() -> Iterator[Point]:
    """Yield Figure 6 for the rivals: proved epsilons at delta 1e-5, and the delta that [36] claims at C = 1."""
    for name, (method, network, steps) in rivals().items():
        loud = sv.calibrate(method, PARTIES, epsilon=2.0, steps=steps, network=network)
        for k in (1, 10, 50, 100, 200, 500):
            if k <= steps:
                epsilon = sv.account(loud, PARTIES, steps=k, network=network).epsilon
                yield Point(name, "epsilon proved", k, epsilon)
    rate, threshold = 0.3, 1.0
    for k in (1, 10, 20, 50):
        apart = rate * np.arange(k) / BATCH  # two neighbouring states, once one record's gradients differ by C = 1
        yield Point("[36] ternary messages", "delta as claimed, added up", k, float(np.sum(apart) / threshold))


def picture(points: Sequence[Point]) -> str:
    """Draw Figures 2(e), 3(e) and 4(e) in one panel, and the rivals of Figure 6 in another."""
    schemes = [f"{kind.__name__}, p = {p}" for kind, levels in NOISE.items() for p in levels]
    panels = {"epsilon as published": schemes, "epsilon proved": list(rivals())}
    drawn = []
    for quantity, names in panels.items():
        lines = []
        for slot, name in enumerate(names):
            own = [point for point in points if (point.curve, point.quantity) == (name, quantity)]
            k, value = (np.array([getattr(point, axis) for point in own], float) for axis in ("k", "value"))
            lines.append(chart.Line(name, str(slot), k, value, slot=slot))
        highest, last = max(line.y.max() for line in lines), max(line.x.max() for line in lines)
        x, y = chart.Axis("iterations", 0, last), chart.Axis(quantity, 0, highest)
        drawn.append(chart.chart(lines, x, y, f"{quantity} over iterations"))
    return pictures.by_itself(drawn)


def graphs() -> str:
    """Draw the pull and the push graph of the run files."""
    pull, push = [(0, 1), (1, 0), (1, 2), (0, 3), (3, 4)], [(1, 0), (0, 1), (2, 0), (3, 1), (4, 3)]
    names = [str(agent) for agent in range(5)]
    return pictures.by_itself(
        [
            pictures.graph(names, pull, "states are pulled along R"),
            pictures.graph(names, push, "trackers are pushed along C"),
        ]
    )


def main() -> None:
    """Print the curves, or write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    points = [*schemes(), *of_rivals()]
    text = io.StringIO()
    text.write(f"# {COMMAND}\n# sottovoce {sv.__version__}, {date.today()}\n# delta of proved epsilons: 1e-5\n")
    lines = [(*point[:3], f"{point.value:.6g}") for point in points]
    csv.writer(text, lineterminator="\n").writerows([("curve", "quantity", "k", "value"), *lines])
    if not parser.parse_args().write:
        print(text.getvalue(), end="")
        return
    (DOCS / "results" / "gradient-tracking").mkdir(parents=True, exist_ok=True)
    (DOCS / "results" / "gradient-tracking" / "budget-curves.csv").write_text(text.getvalue())
    (DOCS / "pictures" / "gradient-tracking-budget.svg").write_text(picture(points))
    (DOCS / "pictures" / "gradient-tracking-graphs.svg").write_text(graphs())


if __name__ == "__main__":
    main()
