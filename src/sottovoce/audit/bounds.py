"""Turn counts of right and wrong guesses into a lower bound on epsilon.

An attack looks at a transcript and says "the record was there". Differential privacy limits how often it can be right:
for every event, P[event | D] <= e^epsilon P[event | D'] + delta. So counts of right and wrong guesses over independent
trials give a lower bound on epsilon that holds with the stated confidence, whatever the attack and however weak it is.

Example: an attack that is right in 900 of 1000 trials under D, and wrong in 100 of 1000 under D', shows that epsilon is
not below about ln(0.9 / 0.1), less a margin for the confidence:

>>> bool(1.9 < epsilon_bound(900, 100, 1000, delta=0.0, confidence=0.95) < math.log(9))
True
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

_CANDIDATES = 2000  # thresholds tried; more would not change the choice


@dataclass(frozen=True)
class Finding:
    """State what an audit measured, and what was claimed.

    Guarantee: if the mechanism is (claimed, delta)-differentially private, `lower` exceeds `claimed` with probability
    at most 1 - confidence. A low value proves nothing: a better attack might find more.
    """

    lower: float
    claimed: float
    delta: float
    confidence: float
    trials: int  # runs whose guesses were counted, both hypotheses together; canaries for a one-run audit
    adversary: str
    what: str = ""
    each: tuple[float, ...] = ()  # the bounds of repeated audits, of which `lower` is the largest

    @property
    def passed(self) -> bool:
        """Tell whether the measurement is compatible with the claim."""
        return self.lower <= self.claimed

    @property
    def ratio(self) -> float:
        """Return the measured bound over the claim.

        Near 1 the claim is tight and the attack strong; above 1 the claim is false.
        """
        return self.lower / self.claimed if self.claimed > 0 else math.inf

    def __str__(self) -> str:
        verdict = "compatible with the claim" if self.passed else "THE CLAIM IS FALSE"
        return (
            f"{self.what + ': ' if self.what else ''}epsilon >= {self.lower:.3f} measured, {self.claimed:.3f} claimed "
            f"(delta {self.delta:g}, {self.adversary} adversary, {self.trials} trials, "
            f"{100 * self.confidence:g} % confidence): {verdict}"
        )


@dataclass(frozen=True)
class Event:
    """Guess from a score which data set was used.

    `above` says whether scores above the threshold, or below it, mean D.
    """

    threshold: float
    above: bool

    def count(self, scores: np.ndarray) -> int:
        """Count the trials in which the event happens."""
        return int(np.sum(scores >= self.threshold if self.above else scores <= self.threshold))


def limits(hits: Any, trials: Any, risk: float) -> tuple[np.ndarray, np.ndarray]:
    """Return Clopper-Pearson limits of a probability.

    Each limit is on the wrong side of the truth with probability at most `risk`.

    >>> low, high = limits(0, 200_000, 0.025)
    >>> float(low), round(float(-np.log(high)), 2)
    (0.0, 10.9)
    """
    hits, trials = np.asarray(hits, float), np.asarray(trials, float)
    with np.errstate(invalid="ignore"):
        low = np.where(hits > 0, stats.beta.ppf(risk, np.maximum(hits, 1e-9), trials - hits + 1), 0.0)
        high = np.where(hits < trials, stats.beta.isf(risk, hits + 1, np.maximum(trials - hits, 1e-9)), 1.0)
    return low, high


def epsilon_bound(
    right: Any, wrong: Any, trials: int, delta: float, confidence: float, trials_wrong: int | None = None
) -> np.ndarray:
    """Return the largest epsilon that the counts rule out: ln((TPR_low - delta) / FPR_high), and 0 if it is negative.

    `right` counts the event under the truth it names, out of `trials`; `wrong` under the other one. Each of the two
    limits may fail with half of 1 - confidence. It never exceeds about ln(trials / 3.7) at 95 %.

    >>> round(float(epsilon_bound(200_000, 0, 200_000, delta=0.0, confidence=0.95)), 2)
    10.9
    """
    risk = (1 - confidence) / 2
    low, _ = limits(right, trials, risk)
    _, high = limits(wrong, trials if trials_wrong is None else trials_wrong, risk)
    return np.log(np.maximum((low - delta) / high, 1.0))


def delta_bound(right: int, wrong: int, trials: int, epsilon: float, confidence: float) -> float:
    """Return the largest delta that the counts rule out at a given epsilon: TPR_low - e^epsilon FPR_high.

    >>> round(delta_bound(500, 0, 1000, epsilon=1.0, confidence=0.95), 2)
    0.46
    """
    risk = (1 - confidence) / 2
    low, high = limits(right, trials, risk)[0], limits(wrong, trials, risk)[1]
    return max(float(low) - math.exp(epsilon) * float(high), 0.0)


def choose(under_d: np.ndarray, under_other: np.ndarray, delta: float, confidence: float = 0.95) -> Event:
    """Choose the event whose bound is largest on these trials.

    Measure it on other trials: on these it was chosen because it did well, so its bound here is too good.

    >>> scores = np.arange(100.0)
    >>> choose(scores + 90, scores, delta=0.0).above
    True
    """
    pooled = np.unique(np.concatenate([under_d, under_other]))
    if pooled.size > _CANDIDATES:  # dense in both tails, where the best events lie
        tail = np.unique(np.geomspace(1, pooled.size - 1, _CANDIDATES // 2).astype(int))
        pooled = pooled[np.unique(np.concatenate([tail, pooled.size - 1 - tail]))]
    d, other = np.sort(under_d), np.sort(under_other)
    best, event = -1.0, Event(float(pooled[0]), above=True)
    for above in (True, False):
        if above:
            right, wrong = (len(s) - np.searchsorted(s, pooled, side="left") for s in (d, other))
        else:
            right, wrong = (np.searchsorted(s, pooled, side="right") for s in (other, d))
        found = epsilon_bound(right, wrong, len(d), delta, confidence, len(other))
        where = int(np.argmax(found))
        if found[where] > best:
            best, event = float(found[where]), Event(float(pooled[where]), above)
    return event


def measure(event: Event, under_d: np.ndarray, under_other: np.ndarray, delta: float, confidence: float) -> float:
    """Return the bound that an event gives on these trials; the event must have been chosen on others.

    >>> measure(Event(0.5, above=True), np.ones(1000), np.zeros(1000), delta=0.0, confidence=0.95) > 5
    True
    """
    right, wrong = event.count(under_d), event.count(under_other)
    if not event.above:
        right, wrong = wrong, right
    trials, others = (len(under_d), len(under_other)) if event.above else (len(under_other), len(under_d))
    return float(epsilon_bound(right, wrong, trials, delta, confidence, others))


def halves(under_d: np.ndarray, under_other: np.ndarray, delta: float, confidence: float) -> float:
    """Choose on the first fifth of the trials, measure on the rest.

    >>> rng = np.random.default_rng(0)
    >>> 0.5 < halves(rng.laplace(1, 1, 50_000), rng.laplace(0, 1, 50_000), delta=0.0, confidence=0.95) <= 1.0
    True
    """
    cut_d, cut_other = len(under_d) // 5, len(under_other) // 5
    event = choose(under_d[:cut_d], under_other[:cut_other], delta, confidence)
    return measure(event, under_d[cut_d:], under_other[cut_other:], delta, confidence)


def one_run_bound(scores: np.ndarray, included: np.ndarray, delta: float, confidence: float) -> float:
    """Return a lower bound on epsilon from one run with many canaries, each put in by its own fair coin.

    The canaries with the highest scores are guessed to be in, those with the lowest to be out; no guess is made for the
    others.
    If the run is (epsilon, delta)-private for adding or removing one canary, the number of right guesses among r is
    little more than Binomial(r, 1 / (1 + e^-epsilon)): Steinke, Nasr and Jagielski, "Privacy auditing with one (1)
    training run", NeurIPS 2023, whose delta term is used here. Scores may depend on each other: only the coins must be
    independent. Several numbers of guesses are tried, and the risk is divided among them.

    >>> rng = np.random.default_rng(0)
    >>> coins = rng.random(2000) < 0.5
    >>> 1.0 < one_run_bound(coins + rng.laplace(0, 0.5, 2000), coins, delta=0.0, confidence=0.95) < 2.0
    True
    """
    m = len(scores)
    order = np.argsort(scores)
    guesses = sorted({max(1, int(m * share / 2)) for share in (0.02, 0.05, 0.1, 0.2, 0.5)})
    risk = (1 - confidence) / len(guesses)
    best = 0.0
    for half in guesses:
        right = int(np.sum(included[order[-half:]]) + np.sum(~included[order[:half]]))
        best = max(best, _one_run_epsilon(m, 2 * half, right, delta, risk))
    return best


def _one_run_epsilon(canaries: int, guesses: int, right: int, delta: float, risk: float) -> float:
    """Return the largest epsilon under which this number of right guesses has a probability of at most `risk`."""

    def chance(epsilon: float) -> float:
        accuracy = 1 / (1 + math.exp(-epsilon))
        plain = float(stats.binom.sf(right - 1, guesses, accuracy))
        if delta == 0:
            return plain
        short = np.arange(1, right + 1)  # how far below the count, per unit of delta
        mass = np.cumsum(stats.binom.pmf(right - short, guesses, accuracy))
        return plain + 2 * canaries * delta * float(np.max(mass / short, initial=0.0))

    if chance(0.0) > risk:
        return 0.0
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) <= risk else (low, middle)
    return low
