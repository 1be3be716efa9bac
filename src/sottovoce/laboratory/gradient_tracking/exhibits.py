"""Attack DP gradient tracking: Laplace noise on private states and trackers.

The noise is chosen so that the paper prints epsilon 0.5 or 2.
"""

from dataclasses import dataclass, replace

import numpy as np

from sottovoce.laboratory.exhibit import Measurement, Scores, attack, exhibit, sized
from sottovoce.privacy import published, sound
from sottovoce.privacy.published import NoiseScheme

PAPER = "DP gradient tracking"
CONSTANT: NoiseScheme = ("S1", 0.0)


@dataclass(frozen=True)
class Rounds:
    """Simulate the rounds 0 to K of one agent whose gradients are curvature * x + xi.

    The attacked record moves xi by 1 in every batch.
    """

    K: int
    a: float
    b: float
    gamma: float
    curvature: float = 0.0
    compact: bool = False

    def printed(self) -> float:
        """Return what Lemmas 4 and 5 print for C / m = 1 and noise of scale 1."""
        return published.gradient_tracking(self.K, 1.0, 1, self.a, self.b, self.gamma, CONSTANT, CONSTANT)

    def exact(self) -> float:
        """Return epsilon at noise of scale 1: the distances of the two histories, summed over all messages."""
        x, y, total = 0.0, 1.0, 0.0
        keep_x, keep_y = (1.0, 1.0) if self.compact else (1 - self.a, 1 - self.b)
        for _ in range(self.K + 1):
            total += abs(x) + abs(y)
            moved = keep_x * x - self.gamma * y
            x, y = moved, keep_y * y + self.curvature * (moved - x)
        return total

    def replay(self, scale: float) -> Scores:
        """Replay private x and y from the messages under both hypotheses; the others' messages are the same in both."""

        def scores(rng: np.random.Generator, trials: int, truth: bool) -> np.ndarray:
            guesses = {xi: (np.zeros(trials), np.full(trials, xi)) for xi in (0.0, 1.0)}
            llr = np.zeros(trials)
            for _ in range(self.K + 1):
                told_x, told_y = (v + rng.laplace(scale=scale, size=trials) for v in guesses[float(truth)])
                for sign, xi in ((-1.0, 1.0), (+1.0, 0.0)):
                    x, y = guesses[xi]
                    llr += sign * (np.abs(told_x - x) + np.abs(told_y - y)) / scale
                    # box: the own un-noised value is pulled back; compact: the own noisy message is
                    moved = x - self.a * (told_x if self.compact else x) - self.gamma * y
                    tracked = y - self.b * (told_y if self.compact else y) + self.curvature * (moved - x)
                    guesses[xi] = (moved, tracked)
            return llr

        return scores


@exhibit("tracking-norm", PAPER, "a Euclidean bound C on a gradient's change is used as if it bounded the L1 norm")
def norm(rng: np.random.Generator, quick: bool) -> list[Measurement]:
    """Attack the first message alone, in 100 dimensions: a change of length 1/2 is 5 in L1."""
    change = np.full(100, 0.5 / 10)

    def scores(rng: np.random.Generator, trials: int, truth: bool) -> np.ndarray:
        llr = np.zeros(trials)
        for shift in change:
            seen = rng.laplace(size=trials) + (shift if truth else 0.0)
            llr += np.abs(seen) - np.abs(seen - shift)
        return llr

    trials = sized(4e5, quick)
    claimed = published.gradient_tracking(0, 0.5, 1, 0.5, 0.5, 0.1, CONSTANT, CONSTANT)
    return [Measurement("100 dimensions", claimed, attack(scores, rng, trials), float(change.sum()), trials)]


@exhibit("tracking-drift", PAPER, "gradients differ in one sample only: but they are taken at states that differ too")
def drift(rng: np.random.Generator, quick: bool) -> list[Measurement]:
    """Attack an agent whose loss is concave, so that the two histories move apart exponentially.

    The paper allows this: what it assumes of convexity is about the average of the losses only.
    """
    trials, claimed = sized(1e5, quick), 0.5
    rounds = Rounds(K=100, a=0.04, b=0.04, gamma=0.1, curvature=-3.0)
    scale = rounds.printed() / claimed
    measured = attack(rounds.replay(scale), rng, trials)
    return [Measurement("concave f_1, 100 rounds", claimed, measured, rounds.exact() / scale, trials)]


@exhibit("tracking-compact", PAPER, "forms (4), (6) and (7), (8) are one algorithm: in the latter nothing contracts")
def compact(rng: np.random.Generator, quick: bool) -> list[Measurement]:
    """Attack both forms on a linear loss, which has no drift.

    The printed sum holds for the box form; for the compact form it does not hold in the long run.
    """
    trials, claimed = sized(1e5, quick), 2.0
    long = Rounds(K=200, a=0.5, b=0.5, gamma=1.0, compact=True)
    scale = long.printed() / claimed
    exact = sound.gradient_tracking_printed(
        long.K, 1.0 / scale, long.a, long.b, long.gamma, 0.0, CONSTANT, CONSTANT, form="compact"
    )
    short = replace(long, K=100, compact=False)
    box = short.printed() / claimed
    return [
        Measurement("compact form, 200 rounds", claimed, attack(long.replay(scale), rng, trials), exact, trials),
        Measurement(
            "box form, 100 rounds",
            claimed,
            attack(short.replay(box), rng, trials),
            short.exact() / box,
            trials,
            control=True,
        ),
    ]
