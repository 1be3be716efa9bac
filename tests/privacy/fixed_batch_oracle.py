"""Compute epsilons of batches of a fixed size on another way than the package, and print the tests' golden values.

    python -m tests.privacy.fixed_batch_oracle

Nothing of the package is used. The profile of one step is computed at forty digits, its dots are connected by second
differences, and the masses are composed at once. That gives an upper bound, which tends to the truth of the profile.
The real pair (record at +1, all others at -1) is composed with losses rounded down: no bound can be below that.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

Case = tuple[int, int, float, int, float]  # batch, places, noise over clip, steps, delta

CASES: tuple[Case, ...] = (
    (100, 1000, 10.0, 500, 1e-5),
    (55, 12_000, 1.65, 2000, 1e-5),
    (64, 3000, 2.0, 1000, 1e-5),
    (256, 3000, 4.0, 300, 1e-5),
    (1, 2, 1.0, 1, 1e-5),
    (1, 1000, 1.0, 1, 1e-7),
    (999, 1000, 2.0, 1, 1e-5),
    (999, 1000, 6.0, 20, 1e-9),
    (500, 1000, 3.0, 10, 1e-3),
    (10, 100_000, 0.8, 200, 1e-9),
    (50, 1000, 8.0, 10_000, 1e-6),
)


def profile(mu: float, q: float, digits: int = 40) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return a -> sup of H_a(with | without), and of H_a(without | with), over others and record, for all a > 0."""
    import mpmath

    context = mpmath.mp.clone()
    context.dps = digits
    mu, q = context.mpf(mu), context.mpf(q)

    def above(z: Any) -> Any:
        return context.erfc(z / context.sqrt(2)) / 2

    def forth(a: Any) -> Any:  # others opposite: q e^(mu x - mu^2/2) - a q - c e^(-mu x - mu^2/2) > 0 for x > z
        c, half = (1 - q) * (a - 1), context.exp(-(mu**2) / 2)
        z = context.log((a * q + context.sqrt((a * q) ** 2 + 4 * q * c * half**2)) / (2 * q * half)) / mu
        return q * (above(z - mu) - a * above(z)) - c * above(z + mu)

    def back(a: Any) -> Any:  # others alike: q - a q e^(mu x - mu^2/2) - c e^(mu x - mu^2/2) > 0 for x < z
        c = (1 - q) * (a - 1)
        z = context.log(q / (a * q + c)) / mu + mu / 2
        return q * above(-z) - (a * q + c) * above(mu - z)

    def whole(one: Callable[[Any], Any], other: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def curve(a: Any) -> Any:
            a = context.mpf(a)
            return one(a) if a >= 1 else 1 - a + a * other(1 / a)

        return curve

    return whole(forth, back), whole(back, forth)


def dots(curve: Callable[[Any], Any], h: float, count: int) -> np.ndarray:
    """Return the masses at losses h * (-count .. count) and beyond, whose curve connects the dots of `curve`."""
    import mpmath

    context = mpmath.mp.clone()
    context.dps = 40
    points = [context.exp(context.mpf(h) * i) for i in range(-count, count + 1)]
    values = [curve(a) for a in points]
    slopes = [(values[0] - 1) / points[0]]
    slopes += [(v - u) / (b - a) for u, v, a, b in zip(values, values[1:], points, points[1:])] + [context.mpf(0)]
    masses = [float((t - s) * a) for s, t, a in zip(slopes, slopes[1:], points)]
    return np.array([*masses, float(values[-1])])


def composed(mass: np.ndarray, lowest: int, h: float, steps: int, infinite: float, delta: float) -> float:
    """Return the smallest epsilon of `steps` independent losses h * (lowest, lowest + 1, ...)."""
    losses = h * (lowest + np.arange(len(mass)))
    mean, square = float(mass @ losses), float(mass @ losses**2)
    spread = 24 * math.sqrt(steps * square) + 3 * float(losses[-1])  # beyond it is next to nothing
    size = 1 << math.ceil(math.log2(max(4 * len(mass), spread / h)))
    summed = np.maximum(np.fft.irfft(np.fft.rfft(mass, size) ** steps, size), 0.0)
    at = lowest * steps + np.arange(size, dtype=float)
    at += size * np.round((steps * mean / h - at) / size)
    total, spent = h * at, -math.expm1(steps * math.log1p(-infinite))
    low, high = 0.0, 200.0
    for _ in range(40):
        middle = (low + high) / 2
        over = spent + float(np.sum(summed * np.maximum(0.0, -np.expm1(np.minimum(middle - total, 0.0)))))
        low, high = (middle, high) if over > delta else (low, middle)
    return high


def upper(case: Case, points: int = 3000) -> float:
    """Return the epsilon of the profile, composed."""
    batch, places, noise, steps, delta = case
    mu, reach = 1 / noise, -float(ndtri(1e-4 * delta / steps))
    most = mu * reach + mu * mu / 2 + 1e-12
    h = most / points
    found = []
    for curve in profile(mu, batch / places):
        mass = dots(curve, h, points)
        found.append(composed(mass[:-1], -points, h, steps, float(mass[-1]), delta))
    return max(found)


def lower(case: Case) -> float:
    """Return an epsilon that the real pair has at least, in the direction from with to without."""
    batch, places, noise, steps, delta = case
    q, mu = batch / places, 1 / noise
    x = np.linspace(-mu - 9, mu + 9, 400_001)

    def cells(shift: float) -> np.ndarray:
        z = x - shift
        return np.where(z[:-1] > 0, ndtr(-z[:-1]) - ndtr(-z[1:]), ndtr(z[1:]) - ndtr(z[:-1]))

    p = (1 - q) * cells(-mu) + q * cells(mu)
    without = (1 - q) * cells(-mu) + q * cells(0.0)
    loss = np.log(p / without)  # of a cell: told only the cell, nobody knows more than before
    h = min(float(loss.max()) / 40_000, 5e-3 / steps)  # rounding down takes half of h per step
    below = np.floor(loss / h).astype(int)
    mass = np.bincount(below - below.min(), p)
    return composed(mass, int(below.min()), h, steps, 0.0, delta)


def main() -> None:
    """Print a line per case."""
    for case in CASES:
        print(f"({', '.join(map(repr, case))}, {lower(case):.5f}, {upper(case):.5f}),", flush=True)


if __name__ == "__main__":
    main()
