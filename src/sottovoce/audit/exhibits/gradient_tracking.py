"""DP gradient tracking: Laplace noise on private states and trackers; noise set so that the paper prints .5 or 2."""

import numpy as np

from sottovoce.audit.exhibits.base import Row, attack, exhibit, sized
from sottovoce.privacy import published, sound

PAPER = "DP gradient tracking"
CONSTANT = ("S1", 0.0)


def _printed(K: int, a: float, b: float, gamma: float) -> float:
    """What Lemmas 4 and 5 print for C / m = 1 and noise of scale 1."""
    return published.gradient_tracking(K, 1.0, 1, a, b, gamma, CONSTANT, CONSTANT)


@exhibit("tracking-norm", PAPER, "a Euclidean bound C on a gradient's change is used as if it bounded the L1 norm")
def norm(rng: np.random.Generator, quick: bool) -> list[Row]:
    """The first message alone, in 100 dimensions: a change of length 1/2 is 5 in L1."""
    change = np.full(100, 0.5 / 10)

    def scores(rng: np.random.Generator, trials: int, truth: bool) -> np.ndarray:
        pieces = []
        for done in range(0, trials, 10_000):
            seen = rng.laplace(size=(min(10_000, trials - done), change.size)) + (change if truth else 0.0)
            pieces.append(np.sum(np.abs(seen) - np.abs(seen - change), axis=1))
        return np.concatenate(pieces)

    trials = sized(4e5, quick)
    claimed = published.gradient_tracking(0, 0.5, 1, 0.5, 0.5, 0.1, CONSTANT, CONSTANT)
    return [Row("100 dimensions", claimed, attack(scores, rng, trials), float(change.sum()), trials)]


@exhibit("tracking-drift", PAPER, "gradients differ in one sample only: but they are taken at states that differ too")
def drift(rng: np.random.Generator, quick: bool) -> list[Row]:
    """One agent's loss is concave (only the average need not be): the two histories run apart exponentially."""
    trials, claimed = sized(1e5, quick), 0.5
    setting = dict(K=100, a=0.04, b=0.04, gamma=0.1)
    scale = _printed(**setting) / claimed
    x, y = _apart(curvature=-3.0, **setting)
    measured = attack(_replay(curvature=-3.0, scale=scale, **setting), rng, trials)
    return [Row("concave f_1, 100 rounds", claimed, measured, float((x + y).sum()) / scale, trials)]


@exhibit("tracking-compact", PAPER, "forms (4), (6) and (7), (8) are one algorithm: in the latter nothing contracts")
def compact(rng: np.random.Generator, quick: bool) -> list[Row]:
    """Linear loss, so no drift: the printed sum holds for the box form, and fails for the compact one in the long run."""
    trials, claimed = sized(1e5, quick), 2.0
    long = dict(K=200, a=0.5, b=0.5, gamma=1.0)
    scale = _printed(**long) / claimed
    exact = float(
        sound.gradient_tracking_printed(c=1.0 / scale, L1=0.0, zeta=CONSTANT, eta=CONSTANT, form="compact", **long)
    )
    measured = attack(_replay(scale=scale, compact=True, **long), rng, trials)
    short = {**long, "K": 100}
    box_scale = _printed(**short) / claimed
    x, y = _apart(**short)
    box = attack(_replay(scale=box_scale, **short), rng, trials)
    return [
        Row("compact form, 200 rounds", claimed, measured, exact, trials),
        Row("box form, 100 rounds", claimed, box, float((x + y).sum()) / box_scale, trials, control=True),
    ]


def _apart(
    K: int, a: float, b: float, gamma: float, curvature: float = 0.0, compact: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """How far x and y are apart in rounds 0..K when a record in every batch moves all gradients by 1."""
    x, y = np.zeros(K + 1), np.ones(K + 1)
    keep_x, keep_y = (1.0, 1.0) if compact else (1 - a, 1 - b)
    for k in range(K):
        x[k + 1] = keep_x * x[k] - gamma * y[k]
        y[k + 1] = keep_y * y[k] + curvature * (x[k + 1] - x[k])
    return np.abs(x), np.abs(y)


def _replay(K: int, a: float, b: float, gamma: float, scale: float, curvature: float = 0.0, compact: bool = False):
    """The private x and y of one agent under both hypotheses, replayed from its messages; gradients are
    curvature * x + xi with xi = 1 or 0. What the others say is the same in both and left out.
    """

    def scores(rng: np.random.Generator, trials: int, truth: bool) -> np.ndarray:
        guesses = {xi: (np.zeros(trials), np.full(trials, xi)) for xi in (0.0, 1.0)}
        real = guesses[1.0 if truth else 0.0]
        llr = np.zeros(trials)
        for _ in range(K + 1):
            told_x = real[0] + rng.laplace(scale=scale, size=trials)
            told_y = real[1] + rng.laplace(scale=scale, size=trials)
            for sign, xi in ((-1.0, 1.0), (+1.0, 0.0)):
                x, y = guesses[xi]
                llr += sign * (np.abs(told_x - x) + np.abs(told_y - y)) / scale
                # box: the own un-noised value is pulled back; compact: the own noisy message is
                next_x = x - a * (told_x if compact else x) - gamma * y
                guesses[xi] = (next_x, y - b * (told_y if compact else y) + curvature * (next_x - x))
            real = guesses[1.0 if truth else 0.0]
        return llr

    return scores
