"""Define what an exhibit is: an attack on a claim of a paper; or, as a control, the same attack on a sound design.

>>> @exhibit("my-claim", "a paper", "noise of scale 1 has epsilon 1")
... def my_claim(rng, quick):
...     return [Measurement("one message", claimed=1.0, measured=0.4, exact=1.0, trials=sized(1e5, quick))]
>>> run("my-claim", quick=True)[0].verdict
'holds'
>>> del available["my-claim"]
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sottovoce.audit import bounds

CONFIDENCE = 0.95
Scores = Callable[[np.random.Generator, int, bool], np.ndarray]  # (rng, trials, is D the truth) -> one score per trial


@dataclass(frozen=True)
class Measurement:
    """Hold one row of the table: what is claimed, what an attack proves, and what is exact (or soundly bounded)."""

    case: str
    claimed: float
    measured: float
    exact: float
    trials: int  # under each hypothesis
    control: bool = False
    quantity: Literal["epsilon", "delta"] = "epsilon"

    @property
    def refuted(self) -> bool:
        """Tell whether the measurement contradicts the claim."""
        return self.measured > self.claimed

    @property
    def verdict(self) -> str:
        """Return the result in words."""
        if self.refuted:
            return "the claim is false"
        return "not detected" if self.exact > self.claimed else "holds"


@dataclass(frozen=True)
class Exhibit:
    """Describe a demonstration that can be run; `says` is the claim in plain words."""

    name: str
    paper: str
    says: str
    rows: Callable[[np.random.Generator, bool], list[Measurement]]


available: dict[str, Exhibit] = {}
HEADS = ("case", "claimed", "measured >=", "share", "exact", "trials", "verdict")


def exhibit(
    name: str, paper: str, says: str
) -> Callable[[Callable[..., list[Measurement]]], Callable[..., list[Measurement]]]:
    """Register ``rows(rng, quick)`` under a name."""

    def register(rows: Callable[..., list[Measurement]]) -> Callable[..., list[Measurement]]:
        available[name] = Exhibit(name, paper, says, rows)
        return rows

    return register


def run(name: str, quick: bool = False, seed: int = 0) -> list[Measurement]:
    """Run an exhibit and return its rows; `quick` takes a fiftieth of the trials.

    >>> from sottovoce.laboratory import exhibits
    >>> row = exhibits.run("bambi-multiclass", quick=True)[0]
    >>> row.claimed, row.measured > 5, row.exact
    (1.0, True, inf)
    """
    if name not in available:
        raise ValueError(f"there is no exhibit {name!r}; choose one of {', '.join(sorted(available))}")
    return available[name].rows(np.random.default_rng([seed, *name.encode()]), quick)


def table(rows: list[Measurement]) -> str:
    """Format rows as text.

    >>> print(table([Measurement("a case", 1.0, 2.5, 3.0, 1000)]))
    case        claimed  measured >=  share      exact   trials  verdict
    a case            1          2.5   2.50          3     1000  the claim is false
    """
    width = max(10, *(len(row.case) for row in rows))
    return "\n".join(
        f"{case:{width}}  {claimed:>7}  {measured:>11}  {share:>5}  {exact:>9}  {trials:>7}  {verdict}"
        for case, claimed, measured, share, exact, trials, verdict in (HEADS, *map(cells, rows))
    )


def cells(row: Measurement) -> tuple[str, ...]:
    """Return a row as text, in the order of `HEADS`."""
    claimed, measured, exact = (f"{value:.3g}" for value in (row.claimed, row.measured, row.exact))
    verdict = row.verdict + (" (control)" if row.control else "") + ("" if row.quantity == "epsilon" else " (delta)")
    return row.case, claimed, measured, f"{row.measured / row.claimed:.2f}", exact, f"{row.trials}", verdict


def attack(scores: Scores, rng: np.random.Generator, trials: int, delta: float = 0.0, digits: int = 9) -> float:
    """Return a lower bound on epsilon.

    The event is chosen on a pilot of a quarter as many trials, then counted on `trials` under each hypothesis.

    Scores are rounded to 1e-`digits`: the audit is of the ideal mechanism, and the last bits of floating-point noise
    have their own leak (see the exhibit "last-bit").

    >>> laplace = lambda rng, trials, truth: rng.laplace(size=trials) + (1.0 if truth else 0.0)
    >>> 0.8 < attack(laplace, np.random.default_rng(1), trials=50_000) < 1.0
    True
    """

    def draw(count: int, truth: bool) -> np.ndarray:
        pieces = [scores(rng, min(_AT_ONCE, count - done), truth) for done in range(0, count, _AT_ONCE)]
        return np.round(np.concatenate(pieces), digits)

    pilot = max(trials // 4, 1000)
    event = bounds.choose(draw(pilot, True), draw(pilot, False), delta, CONFIDENCE)
    return bounds.measure(event, draw(trials, True), draw(trials, False), delta, CONFIDENCE)


def sized(trials: float, quick: bool) -> int:
    """Return the number of trials of the full or the quick exhibit.

    >>> sized(2e5, quick=True)
    4000
    """
    return math.ceil(trials / (50 if quick else 1))


_AT_ONCE = 100_000
