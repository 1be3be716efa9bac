"""Buy what must be known about a table's columns with noisy counts, where nobody can declare it.

Example: nobody knows the range of a laboratory value. Each party counts its records in bins that were fixed in advance,
adds noise to each count, and publishes the counts. The range is the span of the bins that are clearly not empty.
"""

import hashlib
import math
import random
from dataclasses import dataclass

import numpy as np

from sottovoce.privacy.discrete import GridRelease
from sottovoce.privacy.mechanisms import check_delta, check_epsilon

_PARTS = 1024  # of a record: noise is drawn in whole parts, so that its scale can be close to what is wanted


@dataclass(frozen=True)
class NoisyCounts:
    """Say how much may be spent on reading ranges, categories and shares off a table (`sottovoce.data.table`).

    Guarantee: one unit is in one bin of each question, so a question costs what a Laplace release with the stated
    inverse scale costs. The noise is discrete and exact. Together all questions cost at most `epsilon`, and `delta` if
    lists of categories are among them, under zero-out adjacency. An account composes them with the run.

    Args:
        epsilon: for all questions together, per party.
        delta: for lists of categories: the chance that a category with a single record is shown.
        seed: None draws the noise from the operating system; a number makes it a simulation that can be repeated.

    >>> NoisyCounts(epsilon=1.0, seed=0).noised(np.array([100, 0, 50]), questions=2).shape
    (3,)
    """

    epsilon: float
    delta: float = 1e-6
    seed: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        object.__setattr__(self, "delta", check_delta(self.delta))

    def grid(self, questions: int) -> GridRelease:
        """Return the release of one of so many questions: noise on counts, in whole parts of a record."""
        scale = math.ceil(_PARTS * questions / self.epsilon)
        while (
            made := GridRelease(_PARTS, scale, 1 / _PARTS, 1, "laplace")
        ).inverse_multiplier * questions > self.epsilon:
            scale += 1
        return made

    def noised(self, counts: np.ndarray, questions: int, place: tuple[int, ...] = ()) -> np.ndarray:
        """Return the counts of one party with noise; `place` (party, question) tells the draws of one seed apart.

        Everything that the release depends on is part of a seed's draws. So two tables, or two scales, never share
        noise that could be subtracted.
        """
        grid, counted = self.grid(questions), np.asarray(counts, np.int64)
        held = hashlib.sha256(counted.tobytes()).hexdigest()
        source = None if self.seed is None else random.Random(repr((self.seed, place, grid, held)))
        return grid.noised(counted * _PARTS, source)

    def scale(self, questions: int) -> float:
        """Return the scale of the noise on a count."""
        return self.grid(questions).scale / _PARTS

    def cost(self, questions: int) -> tuple[float, ...]:
        """Return 1 / scale of each question, as an account takes it."""
        return (self.grid(questions).inverse_multiplier,) * questions

    def surely_not_empty(self, questions: int, parties: int, bins: int) -> float:
        """Return what the sum of the parties' counts must exceed: with chance 0.99, no empty bin does.

        The bound is Chernoff's for a sum of Laplace variables.

        >>> 80 < NoisyCounts(epsilon=0.1).surely_not_empty(1, parties=1, bins=50) < 130
        True
        """
        scale, odds = self.scale(questions), math.log(100.0 * bins)
        steps = np.linspace(0.01, 0.99, 99)
        return float(np.min((odds - parties * np.log1p(-(steps**2))) / steps) * scale)

    def shows_nobody(self, questions: int, lists: int) -> int:
        """Return the noisy count from which a party may name a category, when `lists` lists share delta.

        A category with one record reaches it with chance at most delta / 2, so that replacing a record costs delta.
        """
        return 1 + math.ceil(self.scale(questions) * math.log(2 * lists / self.delta))
