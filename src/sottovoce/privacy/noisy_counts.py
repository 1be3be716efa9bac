"""Buy what must be known about a table's columns with noisy counts, where nobody can declare it.

Example: nobody knows the range of a laboratory value. Each party counts its records in bins that were fixed in advance,
adds noise to each count, and publishes the counts. The range is the span of the bins that are clearly not empty.

Counts that are drawn again cost again. With a `path`, what was bought is kept and used again; with a `ledger`, its cost
is written down before a row is counted, once.
"""

import hashlib
import json
import math
import random
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.files import read_facts, write_facts
from sottovoce.privacy.discrete import GridRelease
from sottovoce.privacy.gdp import gdp_mu
from sottovoce.privacy.ledger import Budget, Ledger
from sottovoce.privacy.ledger_line import Entry, Group
from sottovoce.privacy.mechanisms import Mechanism, Spent, check_delta, check_epsilon
from sottovoce.privacy.noise import law_of

_KIND, _VERSION = "what was bought with noisy counts", 2
_REMEDY = "give another path, which costs again"
_PARTS = 1024  # parts of a record: noise is drawn in whole parts, so that its scale can be close to what is wanted
_OF_LISTS = 2e-4  # of delta: what lists of categories may cost
_OF_NOISE = 0.99  # of delta: what the noise may cost; the accountant keeps a hundredth for lists


@dataclass(frozen=True, eq=False)
class Purchase:
    """Hold what was bought at once: the `name` of its ledger entry, and the answers, stored if there is a path."""

    name: str
    answers: dict[str, Any]
    path: Path | None
    asked: Mapping[str, Any]

    def keep(self) -> None:
        """Write the answers to the file."""
        if self.path is not None:
            facts = {"name": self.name, "asked": self.asked, "answers": self.answers}
            write_facts(self.path, _KIND, _VERSION, facts, private=True)


@dataclass(frozen=True)
class NoisyCounts:
    """Say how much may be spent on reading ranges, categories and shares off a table (`sottovoce.data.table`).

    Guarantee. All counts of all questions together are one release with discrete Gaussian noise, drawn exactly. It
    costs at most `epsilon` at `delta` by itself, under zero-out adjacency, whatever the rows are. An account composes
    it with the run, which is far cheaper than to add the two epsilons.

    Proof. A unit is counted by one of its rows, which is chosen without looking at other units, and that row is in at
    most one bin of each question. So without the unit the vector of all counts moves by at most sqrt(questions), in L2;
    in another unit's place it moves by at most twice that, which is what an account takes under replace-one. The noise
    is that of `Gaussian` in `sottovoce.privacy.noise`: at least as private as N(0, scale^2 - 9) in whole parts of a
    record. So the cost is a Gaussian term of questions / (scale^2 - 9), in the same parts (`cost`). Lists of categories
    cost a share of delta more: see `shows_nobody`.

    Args:
        epsilon, delta: what all questions together may cost, per party, if nothing else is released.
        seed: None draws the noise from the operating system; a number makes it a simulation that can be repeated.
        path: a file that keeps what was bought. The same questions with the same path draw nothing, and do not look at
            the rows; other questions are refused.
        ledger: where the cost is written before anything is drawn: one for all parties, or one for each, as `sv.run`
            takes it. A run with the same ledger does not charge it again. A run with another ledger, or without one
            here, charges it with its first step.
        budget: refuse to buy what would exceed this, counting what `ledger` has already.
        draws: False only plans: nothing is drawn or charged, and stand-ins take the place of ranges and lists.

    >>> NoisyCounts(epsilon=1.0, seed=0).noised(np.array([100, 0, 50]), questions=2).shape
    (3,)
    """

    epsilon: float
    delta: float = 1e-5
    seed: int | None = None
    path: str | Path | None = None
    ledger: Ledger | Sequence[Ledger] | None = None
    budget: Budget | None = None
    draws: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        object.__setattr__(self, "delta", check_delta(self.delta))
        if self.delta == 0:
            raise ValueError("delta is 0, where noisy counts have no finite epsilon: give more, such as 1e-5")
        if self.path is not None:  # the same file, wherever the process goes
            object.__setattr__(self, "path", Path(self.path).resolve())
        if self.seed is not None and not isinstance(self.seed, Integral):
            raise TypeError(f"seed is of type {type(self.seed).__name__}: give a whole number, or None")
        each = [self.ledger] if isinstance(self.ledger, Ledger | None) else self.ledger
        if not isinstance(each, list | tuple) or not all(isinstance(one, Ledger | None) for one in each):
            raise TypeError(
                "ledger is neither a ledger nor a list of them: give sv.Ledger(path), or one for each party"
            )
        if not isinstance(self.draws, bool):
            raise TypeError(f"draws is of type {type(self.draws).__name__}: give True or False")
        if self.budget is not None and self.ledger is None:
            raise ValueError("a budget counts what a ledger holds: give ledger=sv.Ledger(path) too")

    def buy(self, questions: Mapping[str, Any], lists: int, parties: Sequence[str], unit: str) -> Purchase:
        """Charge all questions, before a row is counted, and return the purchase; a kept one has its answers."""
        path = Path(self.path) if self.path is not None and self.draws else None
        said = {"epsilon": self.epsilon, "delta": self.delta, "seed": self.seed, "questions": dict(questions),
                "parties": list(parties), "unit": unit}  # fmt: skip
        asked = json.loads(json.dumps(said))
        name, answers = f"counts {secrets.token_hex(8)}", dict[str, Any]()
        if path is not None and path.exists():
            kept = read_facts(path, _KIND, _VERSION, _REMEDY)
            for key, value in asked.items():
                if kept["asked"][key] != value:
                    raise ValueError(f"{path} keeps what was bought with other {key}: {_REMEDY}, or ask the same again")
            name, answers = kept["name"], kept["answers"]
        if self.ledger is None or not self.draws:
            return Purchase(name, answers, path, asked)
        gaussian, shown = self.cost(len(questions), lists)
        self._charge(name, ((Mechanism(gaussian=gaussian), 1),), shown, parties, unit)
        return Purchase(name, answers, path, asked)

    def _charge(self, name: str, spent: Spent, shown: float, parties: Sequence[str], unit: str) -> None:
        shared = isinstance(self.ledger, Ledger)
        ledgers = [self.ledger] if isinstance(self.ledger, Ledger) else list(self.ledger or ())
        if not shared and len(ledgers) != len(parties):
            raise ValueError(f"there are {len(ledgers)} ledgers for {len(parties)} parties: give one ledger per party")
        each = [tuple(parties)] if shared else [(party,) for party in parties]
        entries = [
            Entry(name, 0, 1, (Group("records", who, spent, shown),), unit, adjacency="zero-out", owned=not shared)
            for who in each
        ]
        for ledger, entry in zip(ledgers, entries):  # all of them first: a refusal leaves nothing behind
            ledger.check(entry)
            if self.budget is not None:
                ledger.require(self.budget, name, entry.groups, f"party {entry.groups[0].agents[0]}")
        for ledger, entry in zip(ledgers, entries):
            ledger.charge(entry)

    def grid(self, questions: int) -> GridRelease:
        """Return the release of one question out of `questions`: noise on counts, in whole parts of a record."""
        return _grid(self.epsilon, self.delta, questions)

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

    def cost(self, questions: int, lists: int) -> tuple[float, float]:
        """Return what an account takes: the Gaussian term of all questions, and the chance that a list shows a unit.

        >>> gaussian, shown = NoisyCounts(epsilon=0.1).cost(questions=5, lists=0)
        >>> round(math.sqrt(gaussian), 4), shown
        (0.0325, 0.0)
        """
        return questions * self.grid(questions).inverse_multiplier ** 2, self._shown if lists else 0.0

    @property
    def _shown(self) -> float:
        """Return the chance of all lists, so small that it costs `_OF_LISTS` of delta at this epsilon."""
        return _OF_LISTS * self.delta / (1 + math.exp(min(self.epsilon, 300.0)))

    def surely_not_empty(self, questions: int, parties: int, bins: int) -> float:
        """Return what the sum of the parties' counts must exceed: with chance 0.99, no empty bin does.

        >>> 100 < NoisyCounts(epsilon=0.1).surely_not_empty(1, parties=1, bins=50) < 120
        True
        """
        return _reached(self.grid(questions).scale, parties, 0.01 / bins) / _PARTS

    def shows_nobody(self, questions: int, lists: int) -> int:
        """Return the noisy count from which a party may name a category, when `lists` lists are bought.

        A category with one record reaches it with chance at most shown / (2 lists), where `shown` is what `cost`
        returns.

        Proof that an account which charges `shown` as the chance of another mechanism covers the lists (see
        `accountant.epsilon`). Take D with a unit and D' without it, or with another one in its place. Change what is
        released: a category that only this unit holds is never named. By the threshold this changes anything with
        chance at most shown / 2, in D, and the same in D' for the other unit. The changed releases name categories that
        D and D' share, by counts with Gaussian noise; so the noise alone covers them.
        """
        return 1 + math.ceil(_reached(self.grid(questions).scale, 1, self._shown / (2 * lists)) / _PARTS)


@lru_cache(maxsize=64)
def _grid(epsilon: float, delta: float, questions: int) -> GridRelease:
    """Return the least noise by which all questions cost at most this much."""
    mu = gdp_mu(epsilon, _OF_NOISE * delta) * (1 - 1e-9)
    law = law_of("gaussian")
    scale = law.whole_scale(Fraction(_PARTS * math.sqrt(questions) / mu), _PARTS)
    return GridRelease(_PARTS, scale, 1 / _PARTS, 1, law.kind)


def _reached(scale: int, draws: int, chance: float) -> int:
    """Return a whole number that the sum of some draws of discrete Gaussian noise reaches with at most this chance.

    Proof. One draw: for m >= 1 the sum of exp(-z^2 / 2s^2) over z >= m is at most its integral from m - 1, and the sum
    over all z is at least s sqrt(2 pi), by Poisson summation, whose terms are positive. So it reaches m with at most
    the chance that N(0, s^2) exceeds m - 1. The sum of several draws has the same law with the scale s sqrt(draws), but
    for a factor within 1 +- 10^-60 (as in the proof of `Gaussian`, for scales above 4): too little to be seen here.

    >>> _reached(scale=100, draws=1, chance=1e-9), _reached(scale=100, draws=4, chance=1e-9)
    (601, 1201)
    """
    from scipy.special import ndtri  # slow to load

    return 1 + math.ceil(-float(ndtri(chance)) * scale * math.sqrt(draws) * (1 + 1e-12))
