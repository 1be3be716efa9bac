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
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.files import read_facts, write_facts
from sottovoce.privacy.discrete import GridRelease
from sottovoce.privacy.ledger import Budget, Ledger
from sottovoce.privacy.ledger_line import Entry, Group
from sottovoce.privacy.mechanisms import Mechanism, check_delta, check_epsilon

_KIND, _VERSION = "what was bought with noisy counts", 1
_REMEDY = "give another path, which costs again"
_PARTS = 1024  # parts of a record: noise is drawn in whole parts, so that its scale can be close to what is wanted


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

    Guarantee: one unit is in one bin of each question, so a question costs what a Laplace release with the stated
    inverse scale costs. The noise is discrete and exact. Together all questions cost at most `epsilon`, and `delta` if
    lists of categories are among them, under zero-out adjacency. An account composes them with the run.

    Args:
        epsilon: for all questions together, per party.
        delta: for lists of categories: the chance that a category with a single record is shown.
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
    delta: float = 1e-9
    seed: int | None = None
    path: str | Path | None = None
    ledger: Ledger | Sequence[Ledger] | None = None
    budget: Budget | None = None
    draws: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        object.__setattr__(self, "delta", check_delta(self.delta))
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
        spent = ((Mechanism(laplace=self.cost(len(questions))), 1),)
        self._charge(name, spent, self.delta if lists else 0.0, parties, unit)
        return Purchase(name, answers, path, asked)

    def _charge(self, name: str, spent: Any, delta: float, parties: Sequence[str], unit: str) -> None:
        shared = isinstance(self.ledger, Ledger)
        ledgers = [self.ledger] if isinstance(self.ledger, Ledger) else list(self.ledger or ())
        if not shared and len(ledgers) != len(parties):
            raise ValueError(f"there are {len(ledgers)} ledgers for {len(parties)} parties: give one ledger per party")
        each = [tuple(parties)] if shared else [(party,) for party in parties]
        entries = [
            Entry(name, 0, 1, (Group("records", who, spent, delta),), unit, adjacency="zero-out", owned=not shared)
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
