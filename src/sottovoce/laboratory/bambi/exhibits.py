"""Attack BAMBI-DP: one label, Laplace noise of scale c = 1, claimed epsilon 1 for the whole run."""

import math

import numpy as np

from sottovoce.laboratory.exhibit import Measurement, Scores, attack, exhibit, sized
from sottovoce.privacy import published, sound

PAPER = "BAMBI-DP"
CLAIMED = published.bambi_dp(1.0)


@exhibit(
    "bambi-multiclass",
    PAPER,
    "the multi-class perturbation theta_b + u sum(theta) hides the label: but its noise moves along one line per "
    "class, and these lines are parallel and do not meet",
)
def multiclass(rng: np.random.Generator, quick: bool) -> list[Measurement]:
    """Find the label from the offset: the noise has one direction, which follows from the prediction."""
    rows = []
    for case, p in [
        ("3 classes, p = .5 .3 .2", np.array([0.5, 0.3, 0.2])),
        ("10 classes, uniform p", np.full(10, 0.1)),
    ]:
        trials = sized(2e5, quick)
        rows.append(Measurement(case, CLAIMED, attack(_offsets(p), rng, trials), math.inf, trials))
    trials, p = sized(1e6, quick), np.array([0.55, 0.45])
    exact = 1 / abs(2 * p[0] - 1)  # the noise is u (2p - 1) along the label's direction
    rows.append(Measurement("2 classes, p = .55", CLAIMED, attack(_along_the_line(p), rng, trials), exact, trials))
    return rows


def _directions(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradient for each class, and the direction of the noise."""
    theta = p - np.eye(len(p))
    return theta, theta.sum(axis=0)


def _offsets(p: np.ndarray) -> Scores:
    theta, noise = _directions(p)
    unit = noise / np.linalg.norm(noise) if np.linalg.norm(noise) > 1e-12 else np.zeros_like(noise)

    def residual(seen: np.ndarray, label: int) -> np.ndarray:
        gap = seen - theta[label]
        return np.linalg.norm(gap - np.outer(gap @ unit, unit), axis=1)

    def scores(rng: np.random.Generator, trials: int, truth: bool) -> np.ndarray:
        seen = theta[0 if truth else 1] + rng.laplace(size=(trials, 1)) * noise
        return residual(seen, 1) - residual(seen, 0)

    return scores


def _along_the_line(p: np.ndarray) -> Scores:
    """Return scores for two classes: both labels lie on one line, so the log-likelihood ratio is that of a scalar."""
    theta, noise = _directions(p)
    apart = (theta[1] - theta[0]) @ noise / (noise @ noise)

    def scores(rng: np.random.Generator, trials: int, truth: bool) -> np.ndarray:
        u = rng.laplace(size=trials) + (0.0 if truth else apart)
        return np.abs(u - apart) - np.abs(u)

    return scores


@exhibit(
    "bambi-reuse",
    PAPER,
    "epsilon 1/c for the whole run: but every use of a label, and every zeroth-order copy of a use, draws fresh noise",
)
def reuse(rng: np.random.Generator, quick: bool) -> list[Measurement]:
    """Average the messages: averages of fresh noise converge to the label."""
    rows = []
    for case, uses, copies, size in [("20 uses, one copy each", 20, 1, 2e5), ("one use, one copy", 1, 1, 2e6)]:
        trials = sized(size, quick)
        exact = sound.label_fresh(1.0, uses, copies)
        measured = attack(_shifts(np.ones(uses * (copies + 1))), rng, trials)
        rows.append(Measurement(case, CLAIMED, measured, exact, trials))
    return rows


def _shifts(shift: np.ndarray, scale: float = 1.0) -> Scores:
    """Return scores for independent Laplace noise on each coordinate; the two hypotheses are `shift` apart."""

    def scores(rng: np.random.Generator, trials: int, truth: bool) -> np.ndarray:
        seen = rng.laplace(scale=scale, size=(trials, shift.size)) + (shift if truth else 0.0)
        return np.sum(np.abs(seen) - np.abs(seen - shift), axis=1) / scale

    return scores


@exhibit("bambi-controls", PAPER, "what holds: noise in every coordinate, or a label randomised once and remembered")
def controls(rng: np.random.Generator, quick: bool) -> list[Measurement]:
    """Make the same attack on sound label mechanisms at epsilon 1."""
    trials = sized(2e6, quick)
    vector = attack(_shifts(np.array([1.0, -1.0, 0.0]), scale=2.0), rng, trials)
    remembered = sound.label_randomized_response(1.0, classes=3)
    return [
        Measurement(
            "vector Laplace, c = 2", sound.label_fresh(2.0, 1, 0, multiclass=True), vector, 1.0, trials, control=True
        ),
        Measurement(
            "3-ary response, drawn once", remembered, attack(_response(1.0, 3), rng, trials), 1.0, trials, control=True
        ),
    ]


def _response(epsilon: float, classes: int) -> Scores:
    keep = math.exp(epsilon) / (math.exp(epsilon) + classes - 1)

    def scores(rng: np.random.Generator, trials: int, truth: bool) -> np.ndarray:
        label = 0 if truth else 1
        other = (label + rng.integers(1, classes, size=trials)) % classes
        said = np.where(rng.random(trials) < keep, label, other)
        return np.select([said == 0, said == 1], [epsilon, -epsilon], 0.0)

    return scores


@exhibit(
    "bambi-hessian",
    PAPER,
    "second derivatives across parties would need features of others (Appendix B): they do, and a party that gets such "
    "a block reads what another computes from its features; no epsilon is claimed for features",
)
def hessian(rng: np.random.Generator, quick: bool) -> list[Measurement]:
    """Read another party's embedding of a record from one block of the Hessian, without and with noise on the block."""
    trials = sized(2e5, quick)
    rows = []
    for case, scale in [("block of one record", 0.0), ("block with Laplace noise of scale 1", 1.0)]:
        measured = attack(_embeddings(scale), rng, trials)
        exact = math.inf if scale == 0 else _APART / scale
        rows.append(Measurement(case, math.inf, measured, exact, trials))
    return rows


_OWN, _OTHER, _CURVED = np.array([0.6, -0.8]), {True: np.array([1.0, 0.5]), False: np.array([0.2, 1.5])}, 0.25
_APART = float(np.abs(_CURVED * np.outer(_OWN, _OTHER[True] - _OTHER[False])).sum())


def _embeddings(scale: float) -> Scores:
    """Return scores of a party that has its own embedding s_m and sees sigma'(h) s_m s_m'^T for one record.

    With a logistic loss the block of y_m and y_m' is this product (equation 13), so a row of it over the party's own
    entry is the other embedding.
    """

    def scores(rng: np.random.Generator, trials: int, truth: bool) -> np.ndarray:
        seen = _CURVED * np.outer(_OWN, _OTHER[truth]) + rng.laplace(scale=scale, size=(trials, 2, 2))
        away = [np.abs(seen - _CURVED * np.outer(_OWN, _OTHER[side])).sum(axis=(1, 2)) for side in (False, True)]
        return away[0] - away[1]

    return scores
