"""Attack DPMixSGD as a neighbour: the noise is what Theorem 2 prints for theta = 1."""

import math
from functools import partial

import numpy as np

from sottovoce.laboratory.exhibit import Measurement, attack, exhibit, sized
from sottovoce.privacy import published, sound

PAPER = "DPMixSGD"
DELTA, BETA = 1e-5, 0.5


@exhibit(
    "dpmixsgd-neighbour",
    PAPER,
    "noise may shrink with the number of agents: true of their average, but a neighbour sees each agent's message",
)
def neighbour(rng: np.random.Generator, quick: bool) -> list[Measurement]:
    """Attack both estimators of one agent: two steps, the record in the first batch, a linear data term of slope 1."""
    rows = []
    for case, agents, c in [("20 agents, c = 1", 20, 1.0), ("100 agents, c = 1", 100, 1.0),
                            ("1000 agents, c = 4 sqrt 2", 1000, 4 * math.sqrt(2))]:  # fmt: skip
        sigma = published.dpmixsgd_sigma(1.0, 2, agents, 1.0, DELTA, c)
        trials = sized(1e6, quick)
        exact = sound.storm_printed(2, BETA, BETA, 1.0, 1, 1, sigma, sigma, {0}, DELTA)
        measured = attack(partial(_replay, sigma=sigma), rng, trials, DELTA)
        rows.append(Measurement(case, 1.0, measured, exact, trials))
    return rows


def _replay(rng: np.random.Generator, trials: int, truth: bool, sigma: float) -> np.ndarray:
    """Replay the estimators g_0, g_1 and h_0, h_1 under both hypotheses.

    The record's gradient is +1 or -1 in the first step, and is forgotten afterwards.
    """
    llr = np.zeros(trials)
    estimate = {+1.0: 1.0, -1.0: -1.0}
    for _ in range(2):
        real = estimate[1.0 if truth else -1.0]
        for _ in ("g", "h"):
            seen = real + sigma * rng.normal(size=trials)
            llr += ((seen - estimate[-1.0]) ** 2 - (seen - estimate[+1.0]) ** 2) / (2 * sigma**2)
        estimate = {guess: (1 - BETA) * value for guess, value in estimate.items()}
    return llr
