"""Work out by hand what a sum guarantees: a script that shares no code with the package.

Run it, and put what it prints into `GOLDEN` of `test_against.py`.

    python tests/privacy/sum_oracle.py
"""

import math

from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm


def delta_of(eps: float, mu: float) -> float:
    """Delta of N(mu, 1) against N(0, 1)."""
    return float(norm.sf(eps / mu - mu / 2) - math.exp(eps) * norm.sf(eps / mu + mu / 2))


def epsilon_of(mu: float, delta: float) -> float:
    return float(brentq(lambda eps: delta_of(eps, mu) - delta, 0.0, 200.0, xtol=1e-12))


def mixture_delta(eps: float, mu: float, rate: float, held: int, swapped: bool) -> float:
    """Delta of one release on a Poisson batch, for a person with `held` units, by integration."""
    weights = [math.comb(held, j) * rate**j * (1 - rate) ** (held - j) for j in range(held + 1)]

    def with_them(x: float) -> float:
        return sum(w * norm.pdf(x, j * mu) for j, w in enumerate(weights))

    def gap(x: float) -> float:
        one, other = (norm.pdf(x), with_them(x)) if swapped else (with_them(x), norm.pdf(x))
        return max(one - math.exp(eps) * other, 0.0)

    return sum(quad(gap, low, low + 1, epsabs=1e-13, limit=200)[0] for low in range(-12, 12 + math.ceil(held * mu)))


def mixture_epsilon(mu: float, rate: float, held: int, delta: float) -> float:
    def excess(eps: float) -> float:
        return max(mixture_delta(eps, mu, rate, held, swapped) for swapped in (False, True)) - delta

    return float(brentq(excess, 0.0, 30.0, xtol=1e-8))


def main() -> None:
    delta, mu = 1e-5, brentq(lambda mu: delta_of(1.0, mu) - 1e-5, 0.01, 1.0)
    for parties, colluding in [(3, 1), (5, 1), (6, 3), (20, 1)]:
        for colluders in range(colluding, parties):
            left = math.sqrt((parties - colluders) / (parties - colluding))
            print(("colluders", parties, colluding, colluders), round(epsilon_of(mu / left, delta), 4))
    for held in (2, 3):
        print(("all records", held), round(epsilon_of(held * mu, delta), 4))
    for rate, held in [(0.01, 1), (0.01, 2), (0.01, 3), (0.2, 2)]:
        print(("one batch", rate, held), round(mixture_epsilon(1.43, rate, held, delta), 3))


if __name__ == "__main__":
    main()
