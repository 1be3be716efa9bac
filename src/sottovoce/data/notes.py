"""Tell the holder of the rows what did not fit its declaration, and nobody else.

On a terminal the holder reads exact counts, and the numbers of some rows. What a pipe, a notebook or a batch system
shows is often kept or copied. There the same is a Python warning (`DeclarationWarning`), without counts, and only where
so many values do not fit that the declaration is probably wrong. At a site of a federation, whose logs travel, nothing
is told. ``SOTTOVOCE_NOTES=off`` in the environment turns both off.
"""

import os
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sottovoce.data.values import Reading
from sottovoce.defused import visible

SWITCH = "SOTTOVOCE_NOTES"
_PACKAGE = str(Path(__file__).parents[1])
_SHOWN = 5  # rows named in a note
MANY = 0.1  # share of a column's values from which on its declaration is in doubt
_NUMBERS = "numbers are written as 1234.5, without a unit or a comma (1,234.5), dates as 2020-12-31"
_at_a_site = False


class DeclarationWarning(UserWarning):
    """Warn the holder of the rows that many values do not fit their declaration."""


@dataclass(frozen=True)
class Note:
    """Hold one thing to tell the holder: `exact` for a terminal, `rough` for a warning (empty: no warning).

    `hopeless` says that nothing of a column fits, so that its declaration is surely wrong.
    """

    exact: str = field(repr=False)
    rough: str = ""
    hopeless: bool = False


def holder_notes(source: str, readings: Mapping[str, Reading], extra: Iterable[str] = ()) -> list[Note]:
    """Write what did not fit in each column, with rows (counted from 1).

    >>> from sottovoce.data.values import read_categories, read_numbers
    >>> for note in holder_notes("a.csv", {"age": read_numbers([200, 3, None], 0, 120)}): print(note.exact)
    a.csv, column 'age': 1 of 3 values are outside of the range (row 1): is its range right, and the unit of the values?
    a.csv, column 'age': 1 of 3 values are missing (row 3)
    >>> [note] = holder_notes("a.csv", {"age": read_numbers(["63 years", "7 years"], 0, 120)})
    >>> note.rough
    "a.csv, column 'age': none of its values can be read: numbers are written as 1234.5, without a unit or a comma ..."
    >>> [note] = holder_notes("a.csv", {"ill": read_categories([0, 1], ["no", "yes"])})
    >>> print(note.rough)
    a.csv, column 'ill': none of its values is one of the declared categories (no, yes): write them as the table has
    them; a name may stand beside, as in {categories = {0 = "no", 1 = "yes"}}
    """
    notes = [Note(f"{source}: {line}") for line in extra]
    return notes + [note for name, reading in readings.items() for note in _of_column(source, name, reading)]


def absent_classes(source: str, label: str, answer: Reading) -> list[Note]:
    """Tell that no row has some of the declared classes; nothing where not even one is there, which is told already.

    >>> from sottovoce.data.values import read_categories
    >>> [note] = absent_classes("a.csv", "ill", read_categories(["no", "no", "?"], ["no", "yes"]))
    >>> print(note.rough)
    a.csv, column 'ill': no row has the class yes: does the table hold all rows, and is the class written so?
    """
    present = set(np.unique(answer.values).tolist())
    absent = [name for number, name in enumerate(answer.known) if number not in present]
    if not absent or len(absent) == len(answer.known):
        return []
    listed = ", ".join(absent[:_SHOWN]) + ", ..." * (len(absent) > _SHOWN)
    question = "does the table hold all rows, and is the class written so?"
    told = f"{source}, column {label!r}: no row has the class {listed}: {question}"
    return [Note(told, told)]


def tell_holder(notes: Sequence[Note]) -> None:
    """Tell the holder of the rows: on its terminal everything, elsewhere a warning where much does not fit."""
    if not notes or _at_a_site or os.environ.get(SWITCH, "").lower() == "off":
        return
    if sys.stderr.isatty():
        for line in ("For your eyes only (this is not covered by any guarantee):", *(note.exact for note in notes)):
            print(visible(line), file=sys.stderr)
        return
    for note in notes:
        if note.rough:
            warnings.warn(f"{note.rough} (for the holder of the rows only)", DeclarationWarning, _frames_to_caller())


def be_silent() -> None:
    """Tell nothing in this process from now on: it is that of a federation's site, and others read its logs."""
    global _at_a_site
    _at_a_site = True


def _of_column(source: str, name: str, reading: Reading) -> Iterable[Note]:
    where, size = f"{source}, column {name!r}", len(reading.values)
    blank = np.setdiff1d(reading.missing, reading.unreadable)
    nothing = len(reading.misfits) + len(reading.missing) == size
    if reading.known:
        listed = ", ".join(reading.known[:_SHOWN]) + ", ..." * (len(reading.known) > _SHOWN)
        misfit = f"one of the declared categories ({listed})"
        remedy = 'write them as the table has them; a name may stand beside, as in {categories = {0 = "no", 1 = "yes"}}'
        kinds = [(reading.misfits, f"are not {misfit}", f"is {misfit}", remedy)]
    else:
        remedy = "is its range right, and the unit of the values?"
        kinds = [(reading.misfits, "are outside of the range", "is within the declared range", remedy)]
    kinds.append((reading.unreadable, "cannot be read", "can be read", _NUMBERS))
    kinds.append((blank, "are missing", "is there", "remove its line, or say where its values are"))
    for rows, fault, virtue, hint in kinds:
        if not len(rows):
            continue
        every, doubt = len(rows) == size, len(rows) > MANY * size and rows is not blank
        listed = ", ".join(str(row + 1) for row in rows[:_SHOWN]) + ", ..." * (len(rows) > _SHOWN)
        exact = f"{where}: {len(rows)} of {size} values {fault} (row{'s' * (len(rows) > 1)} {listed})"
        rough = f"none of its values {virtue}" if every else f"{_share(len(rows) / size)} of its values {fault}"
        doubt |= every
        yield Note(exact + f": {hint}" * doubt, f"{where}: {rough}: {hint}" * doubt, nothing)


def _share(part: float) -> str:
    return "most" if part > 0.5 else "many"


def _frames_to_caller() -> int:
    """Return the stack level of the first frame outside of this package: that is where a warning should point."""
    frame, level = sys._getframe(1), 1
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1  # type: ignore[assignment]
    return level
