"""Attack LDP-DSBO: ten agents on a ring of weight 0.3, 20 rounds; the record of round 1 differs."""

import math
from functools import partial

import numpy as np

from sottovoce.laboratory.exhibit import Measurement, attack, exhibit, sized
from sottovoce.privacy import published

PAPER = "LDP-DSBO"
ROUNDS, AGENTS, WEIGHT, SIGMA, RATE = 20, 10, 0.3, 200.0, 1.2
V, S = (0.66, 0.64, 0.43), (0.65, 0.63, 0.42)
RECORD = 1  # the round in which the record arrives
CLAIMED = published.ldp_dsbo(ROUNDS, V, S, SIGMA, wbar=2 * WEIGHT)


def _noise(t: int, power: float) -> float:
    """Return the Laplace scale of the message of round t."""
    return SIGMA / (math.sqrt(2) * (t + 1) ** power)


def _push(t: int, size: float) -> float:
    """Return how far the record moves y in the step from round t: the loss is size * xi * y, and xi = +1 or -1."""
    return RATE / (t + 1) ** V[1] * size / (t + 1) if t >= RECORD else 0.0


@exhibit(
    "ldp-dsbo-constant",
    PAPER,
    "Theorem 4.5 needs no gradient bound: the same epsilon for losses of every size, because a constant got lost",
)
def constant(rng: np.random.Generator, quick: bool) -> list[Measurement]:
    """Attack a linear loss: all of the theorem's assumptions hold, and its size is not in the printed epsilon."""
    rows = []
    for size in (1.0, 10.0, 100.0, 300.0):
        apart, exact = 0.0, 0.0
        for t in range(ROUNDS):
            apart = (1 - 2 * WEIGHT) * apart + 2 * _push(t, size)
            exact += apart / _noise(t + 1, S[1])
        trials = sized(2e5, quick)
        measured = attack(partial(_replay, size=size, noisy_state=False), rng, trials)
        rows.append(Measurement(f"gradients of size {size:g}", CLAIMED, measured, exact, trials))
    return rows


@exhibit("ldp-dsbo-control", PAPER, "what holds: gradients at the own broadcast, clipped; epsilon sums over the rounds")
def control(rng: np.random.Generator, quick: bool) -> list[Measurement]:
    """Attack the sound design in the same way; the bound is tight for this loss, and measured over 19 rounds."""
    exact = sum(2 * _push(t, 100.0) / _noise(t + 1, S[1]) for t in range(ROUNDS))
    trials = sized(2e5, quick)
    measured = attack(partial(_replay, size=100.0, noisy_state=True), rng, trials)
    return [Measurement("noisy own state, clip 100", exact, measured, exact, trials, control=True)]


def _replay(rng: np.random.Generator, trials: int, truth: bool, size: float, noisy_state: bool) -> np.ndarray:
    """Return the log-likelihood ratio of agent 0's messages; its state is replayed under both hypotheses."""
    sign = 1.0 if truth else -1.0
    kept = np.zeros((AGENTS, trials))  # what each agent computes with: un-noised, or its own broadcasts
    told = np.zeros((AGENTS, trials))
    replayed = {+1.0: np.zeros(trials), -1.0: np.zeros(trials)}
    llr = np.zeros(trials)
    for t in range(ROUNDS):
        heard = WEIGHT * (np.roll(told, 1, axis=0) + np.roll(told, -1, axis=0))
        own = told if noisy_state else kept
        kept = (1 - 2 * WEIGHT) * own + heard
        kept[0] -= sign * _push(t, size)
        scale = _noise(t + 1, S[1])
        for guess in replayed:
            start = told[0] if noisy_state else replayed[guess]
            replayed[guess] = (1 - 2 * WEIGHT) * start + heard[0] - guess * _push(t, size)
        told = kept + rng.laplace(scale=scale, size=kept.shape)
        llr += (np.abs(told[0] - replayed[-1.0]) - np.abs(told[0] - replayed[+1.0])) / scale
    return llr


@exhibit(
    "ldp-dsbo-z",
    PAPER,
    "the z channel is covered too: but z is multiplied by a Hessian that depends on the record, and a neighbour can "
    "make z as large as it wants",
)
def z_channel(rng: np.random.Generator, quick: bool) -> list[Measurement]:
    """Attack the lower loss ln cosh(xi y) at y = 0: the Hessian is xi^2, here 1 or 0; a neighbour sends Z once."""
    step = 0.02 / 2 ** V[2]
    scale = _noise(2, S[2])
    rows = []
    for sent in (1e3, 1e5, 1e6):
        apart = step * 0.5 * WEIGHT * sent  # the record is one of two, and weighs a half

        def scores(rng: np.random.Generator, trials: int, truth: bool, apart: float = apart) -> np.ndarray:
            seen = rng.laplace(scale=scale, size=trials) + (apart if truth else 0.0)
            return (np.abs(seen) - np.abs(seen - apart)) / scale

        trials = sized(4e5, quick)
        rows.append(
            Measurement(f"a neighbour sends {sent:g}", CLAIMED, attack(scores, rng, trials), apart / scale, trials)
        )
    return rows
