"""Draw randomised responses: one question about a label, answered at random with integer coins.

For example, at epsilon 1 and ten classes, the answer is the true class with probability 0.232, and each other class
with probability 0.0853.

The question is which of a few groups of classes the label is in. Without a prior every class is a group of its own.
With a prior the groups are chosen so that the answer carries most information: at epsilon 1 and ten equally likely
classes, three groups of about equal weight give 0.12 nats, ten single classes 0.07.
"""

import math
import random
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

ONE = 2**60  # coins are integers below this: nothing is rounded, so nothing leaks through the last bits


@dataclass(frozen=True)
class Response:
    """Draw one of `answers` answers: the true one with probability `truth`, each other one with probability `other`.

    Guarantee: for any two true answers, the probabilities of what is drawn differ by a factor of at most e^epsilon.

    >>> response = Response(1.0, answers=10)
    >>> round(float(response.truth), 4), round(float(response.other), 4), round(response.noise, 11)
    (0.232, 0.0853, 0.85336742591)
    """

    epsilon: float
    answers: int

    @property
    def truth(self) -> Fraction:
        """Return the probability of the true answer, rounded down to a multiple of 1 / `ONE`.

        It is never below that of an untrue answer, because then their ratio could exceed e^epsilon the other way round.
        """
        exact = 1 / (1 + (self.answers - 1) * math.exp(-self.epsilon))
        return max(Fraction(math.floor(exact * (1 - 2**-50) * ONE), ONE), Fraction(1, self.answers))

    @property
    def other(self) -> Fraction:
        """Return the probability of each untrue answer."""
        return (1 - self.truth) / (self.answers - 1) if self.answers > 1 else Fraction(0)

    @property
    def noise(self) -> float:
        """Return the probability that the answer is replaced by a uniform one, the parameter that libraries take."""
        return self.answers * float(self.other)

    def answer(self, truth: int, coins: random.Random) -> int:
        """Draw the answer. The same coins are tossed for every true answer."""
        sides = ONE if ONE % self.truth.denominator == 0 else self.truth.denominator
        honest = coins.randrange(sides) < self.truth.numerator * (sides // self.truth.denominator)
        lie = coins.randrange(max(self.answers - 1, 1))
        return truth if honest or self.answers == 1 else lie + (lie >= truth)

    def information(self, chances: np.ndarray) -> np.ndarray:
        """Return how many nats the answer tells about the truth, if true answers have these probabilities (last axis).

        >>> print(Response(1.0, answers=3).information(np.full(3, 1 / 3)).round(3))
        0.123
        """
        from scipy.special import entr

        truth, other = float(self.truth), float(self.other)
        said = entr(other + (truth - other) * chances).sum(axis=-1)
        return said - entr(truth) - (self.answers - 1) * entr(other)


def groups(prior: np.ndarray, epsilon: float, ties: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the group of each class, per row of a prior, and the number of groups per row.

    For every number of groups, classes are assigned in order of falling prior, each to the group with the smallest
    weight so far. The number of groups that tells most is taken. `ties` puts classes of equal prior in a random order.

    >>> number, count = groups(np.array([[0.9, 0.05, 0.05], [0.4, 0.3, 0.3]]), 1.0, np.random.default_rng(0))
    >>> count.tolist(), number[0].tolist()
    ([2, 3], [0, 1, 1])
    """
    rows, classes = prior.shape
    order = np.lexsort((ties.random(prior.shape), -prior), axis=-1)
    every, most = np.arange(rows), np.full(rows, -np.inf)
    chosen, count = np.zeros(prior.shape, np.int32), np.ones(rows, np.int32)
    for k in range(2, classes + 1):
        number, weight = np.zeros_like(chosen), np.zeros((rows, k))
        for dealt in order.T:
            lightest = weight.argmin(axis=1)
            number[every, dealt] = lightest
            weight[every, lightest] += prior[every, dealt]
        tells = Response(epsilon, k).information(weight)
        better = tells > most
        most, count = np.where(better, tells, most), np.where(better, k, count)
        chosen[better] = number[better]
    chosen[count == classes] = np.arange(classes)
    return chosen, count
