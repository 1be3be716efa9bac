"""Read ranges and categories off a table where the user asks for it, openly ("public") or for a price ("private").

A range that is read off the rows is a statistic of private rows. The user either declares it public, or buys it with
noisy counts, which the account charges. Both are listed in the report. What was bought and kept in a file is used
again, and the rows are not looked at.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from sottovoce.data import curves
from sottovoce.data.declarations import Column, Declarations
from sottovoce.data.frames import Frame
from sottovoce.data.parts import Bought, Facts
from sottovoce.data.values import is_missing, read_numbers, texts_of
from sottovoce.shown import Shown

_OCTAVES = range(-20, 41)  # ends of the bins are +-2^k and +-1.5 2^k: fixed in advance for every column
_ENDS = np.array([sign * part * 2.0**k for k in _OCTAVES for part in (1.0, 1.5) for sign in (-1.0, 1.0)] + [0.0])
_ENDS.sort()


_STAND_INS = ["A", "B"]  # categories of a list that is not bought yet
_SHARE = "share of class 1"


class Purchase(Protocol):
    """Describe a charged release of noisy counts: its name, and the answers that it has so far."""

    @property
    def name(self) -> str:
        """Return its name, which no other purchase has; an entry in a ledger goes by it."""

    @property
    def answers(self) -> dict[str, Any]:
        """Return what was made of the counts, by question."""

    def keep(self) -> None:
        """Store the answers, if they are to be kept."""


class Counter(Protocol):
    """State what an object must offer to sell noisy counts; `sottovoce.privacy.NoisyCounts` does."""

    @property
    def seed(self) -> int | None:
        """Return the seed of a simulation."""

    @property
    def draws(self) -> bool:
        """Say whether anything is drawn; otherwise stand-ins take the place of ranges and lists."""

    def buy(self, questions: Mapping[str, Any], lists: int, parties: Sequence[str], unit: str) -> Purchase:
        """Charge all questions, before a row is counted."""

    def noised(self, counts: np.ndarray, questions: int, place: tuple[int, ...]) -> np.ndarray:
        """Return a party's counts with the noise of one question out of `questions`."""

    def cost(self, questions: int, lists: int) -> tuple[float, float]:
        """Return the Gaussian term of all questions together, and the chance that a list shows a unit."""

    def scale(self, questions: int) -> float:
        """Return the scale of the noise on a count of one question out of `questions`."""

    def surely_not_empty(self, questions: int, parties: int, bins: int) -> float:
        """Return what the parties' noisy counts of a bin must exceed together."""

    def shows_nobody(self, questions: int, lists: int) -> int:
        """Return the noisy count from which a party may name a category."""


@dataclass(frozen=True, eq=False, repr=False)
class Whose(Shown):
    """Say which party each row belongs to, which rows stand for a unit, and what the parties are called."""

    owners: np.ndarray
    counted: np.ndarray  # one row per unit and party: so a unit is in at most one bin of each question
    names: tuple[str, ...] = ()
    unit: str = "record"


@dataclass(frozen=True, eq=False, repr=False)
class Asked(Shown):
    """Ask a table questions that are answered by counts of rows.

    `owners` has the number of each row's party, and `counted` the rows that stand for a unit.
    """

    frame: Frame
    owners: np.ndarray
    counted: np.ndarray
    counter: Counter | None
    questions: int
    lists: int
    purchase: Purchase | None = None

    @property
    def own_rows(self) -> list[np.ndarray]:
        """Return the rows that each party counts."""
        return [self.counted[self.owners[self.counted] == party] for party in range(self.owners.max() + 1)]

    def answer(self, question: str, find: Callable[[], Any]) -> Any:
        """Return the answer that was kept, or find it and keep it."""
        assert self.purchase is not None
        if question not in self.purchase.answers:
            self.purchase.answers[question] = find()
        return self.purchase.answers[question]

    def each(self, question: int, count: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
        """Return every party's noisy counts; `count` takes rows and returns counts."""
        assert self.counter is not None
        ask, number = self.counter, self.questions
        return [ask.noised(count(rows), number, (party, question)) for party, rows in enumerate(self.own_rows)]


def settle(
    frame: Frame, columns: Declarations, whose: Whose, counter: Counter | None, share_of: str | None = None
) -> tuple[Declarations, Facts, Asked]:
    """Return the declarations with nothing left open, and the facts that were read off the rows.

    `share_of` is the label whose share of class 1 the caller will ask for, if it is to be bought.
    """
    bought = [name for name, column in columns.items() if column.source == "private"]
    lists = sum(not columns[name].numeric for name in bought)
    curved = [name for name, column in columns.items() if column.curve == "private"]
    questions: dict[str, Any] = {_of_column(name): columns[name].to_dict() for name in bought}
    for name in curved:  # a row is in one bin of each level
        questions |= {
            f"{_of_curve(name)}, level {level + 1}": columns[name].to_dict() for level in range(curves.LEVELS)
        }
    if share_of is not None:
        questions[_SHARE] = share_of
    if questions and counter is None:
        first = (bought or curved or ["label"])[0]
        raise ValueError(
            f"{frame.source}, column {first!r}: a private range, list, curve or share is bought with noisy counts; say "
            "what they may cost: private=sv.NoisyCounts(epsilon=0.1), or data.private = 0.1 in a run file"
        )
    purchase = counter.buy(questions, lists, whose.names or ("0",), whose.unit) if counter and questions else None
    asked = Asked(frame, whose.owners, whose.counted, counter, len(questions), lists, purchase)
    made, words = dict(columns), []
    for name, column in columns.items():
        if column.source == "public":
            made[name] = _openly(frame, name, column)
            words.append(f"read off the rows and declared public: {_said(name, made[name])}")
        elif column.source == "private":
            made[name] = _bought(asked, name, column, bought.index(name))
            words.append(_bought_words(asked, name, made[name]))
    for number, name in enumerate(curved):
        made[name] = _bought_curve(asked, name, made[name], len(bought) + number * curves.LEVELS)
    openly = [name for name, column in columns.items() if column.curve == "public"]
    for name in openly:
        made[name] = replace(made[name], curve=curves.knots(curves.tree(_bins(asked, name, made[name], None)), 0.0))
    if openly:
        words.append(f"read off the rows and declared public: ranks of {', '.join(openly)}")
    if curved:
        how = "bought with noisy counts, charged"
        if counter is not None and not counter.draws:
            how = "to be bought with noisy counts, charged, nothing is drawn before a run"
        words.append(f"{how}: ranks of {', '.join(curved)}")
    cost: tuple[Bought, ...] = ()
    if counter is not None and purchase is not None:
        cost = (Bought(purchase.name, *counter.cost(asked.questions, lists), whose.unit, counter.seed is not None),)
    return Declarations(made), Facts(words=tuple(words), bought=cost), asked


def _of_column(name: str) -> str:
    return f"column {name}"


def _of_curve(name: str) -> str:
    return f"curve of {name}"


def _bought_curve(asked: Asked, name: str, column: Column, question: int) -> Column:
    """Return the column with the knots of its curve; `question` is the number of the first of its levels."""
    assert asked.counter is not None
    if not asked.counter.draws:
        return replace(column, curve=curves.EVEN)

    def find() -> list[int]:
        assert asked.counter is not None
        each = asked.each(question, lambda rows: curves.tree(_bins(asked, name, column, rows)))
        return list(curves.knots(np.sum(each, axis=0), asked.counter.scale(asked.questions) * math.sqrt(len(each))))

    return replace(column, curve=tuple(asked.answer(_of_curve(name), find)))


def _bins(asked: Asked, name: str, column: Column, rows: np.ndarray | None) -> np.ndarray:
    """Return the bins of some rows' values (of all, if none are given); a missing value is in none."""
    read = replace(column, curve=None).read(asked.frame.numbers(name)).values
    read = read if rows is None else read[rows]
    return curves.bins((column.scale(read[~np.isnan(read)]) + 1) / 2)


def _bought(asked: Asked, name: str, column: Column, question: int) -> Column:
    assert asked.counter is not None
    if not asked.counter.draws:
        stand_in = (1.0, 2.0) if column.log else (-1.0, 1.0)
        return replace(column, range=stand_in) if column.numeric else replace(column, categories=_STAND_INS)
    if column.numeric:
        return replace(
            column, range=asked.answer(_of_column(name), lambda: _bought_range(asked, name, column, question))
        )
    return replace(column, categories=asked.answer(_of_column(name), lambda: _bought_list(asked, name, question)))


def _bought_words(asked: Asked, name: str, column: Column) -> str:
    assert asked.counter is not None
    if asked.counter.draws:
        return f"bought with noisy counts, charged: {_said(name, column)}"
    what = "range" if column.numeric else f"categories, here taken to be {len(_STAND_INS)},"
    return f"to be bought with noisy counts, charged, nothing is drawn before a run: {what} of {name}"


def _said(name: str, column: Column) -> str:
    if column.numeric:
        return f"range of {name} ({column.range[0]:g} to {column.range[1]:g})"
    return f"categories of {name} ({', '.join(column.names)})"


def _openly(frame: Frame, name: str, column: Column) -> Column:
    if frame.kind(name) == "date":
        raise ValueError(
            f"{frame.source}, column {name!r}: dates need a declared range, such as [2000-01-01, 2020-12-31]"
        )
    if not column.numeric:
        texts = texts_of(frame[name])
        return replace(column, categories=np.unique(texts[~is_missing(texts)]).tolist() or [""])
    numbers = _numbers(frame.numbers(name))
    low, high = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 1.0)
    low = max(low, 1e-9) if column.log else low
    return replace(column, range=(low, high if high > low else low + 1.0))


def _numbers(values: np.ndarray) -> np.ndarray:
    numbers = read_numbers(values, -np.inf, np.inf).values
    return numbers[np.isfinite(numbers)]


def _bought_range(asked: Asked, name: str, column: Column, question: int) -> tuple[float, float]:
    """Return the span of the bins whose noisy counts show that they are not empty; [-1, 1] if there are none."""
    numbers = read_numbers(asked.frame.numbers(name), _ENDS[0], _ENDS[-1]).values
    bins = len(_ENDS) - 1
    inner = np.clip(np.searchsorted(_ENDS, numbers, side="right") - 1, 0, bins - 1)

    def count(rows: np.ndarray) -> np.ndarray:
        return np.bincount(inner[rows][~np.isnan(numbers[rows])], minlength=bins)

    each = asked.each(question, count)
    assert asked.counter is not None
    found = np.flatnonzero(sum(each) > asked.counter.surely_not_empty(asked.questions, len(each), bins))
    low, high = (float(_ENDS[found[0]]), float(_ENDS[found[-1] + 1])) if len(found) else (-1.0, 1.0)
    if column.log:
        low = max(low, float(2.0 ** _OCTAVES[0]))
    return low, max(high, 2 * low) if column.log else high


def _bought_list(asked: Asked, name: str, question: int) -> list[str]:
    """Return the categories that some party holds so often that its noisy count may show them."""
    texts = texts_of(asked.frame[name])
    known, place = np.unique(texts, return_inverse=True)
    place = place.reshape(-1)
    assert asked.counter is not None
    threshold = asked.counter.shows_nobody(asked.questions, asked.lists)
    shown: set[str] = set()

    def count(rows: np.ndarray) -> np.ndarray:
        return np.bincount(place[rows], minlength=len(known))

    held = [
        np.unique(place[asked.counted[asked.owners[asked.counted] == party]]) for party in range(asked.owners.max() + 1)
    ]
    for own, noisy in zip(held, asked.each(question, count)):
        shown |= {str(known[number]) for number in own if noisy[number] >= threshold}
    return sorted(text for text in shown if not is_missing(np.array([text]))[0]) or [""]


def share_of(asked: Asked, label: np.ndarray, question: int, source: str) -> float:
    """Return the share of class 1 among two classes, counted openly or with noise.

    The result lies between 0.01 and 0.99.
    """
    if source == "public":
        positive, total = float(np.sum(label == 1)), float(len(label))
    elif asked.counter is not None and not asked.counter.draws:
        return 0.5
    else:

        def count() -> list[float]:
            each = asked.each(question, lambda rows: np.bincount(np.clip(label[rows], 0, 1), minlength=2))
            counts: Sequence[float] = np.sum(each, axis=0).clip(1.0)
            return [float(counts[1]), float(counts[0] + counts[1])]

        positive, total = asked.answer(_SHARE, count)
    return float(np.clip(positive / total, 0.01, 0.99))
