"""Read the values of a column as a declaration says. No value is an error: what does not fit is counted, and replaced.

A run that stopped because of a value would tell everybody that this value is there. So a number outside the declared
range is set to the nearest end, an unknown category counts as "other", and what cannot be read is missing. The rows
concerned are told to the holder of the rows only (`sottovoce.data.notes`), never in a report or a message.
"""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sottovoce.shown import Shown

_GONE = frozenset({"", "na", "n/a", "nan", "none", "null", "nat", "<na>", "?", "."})  # how files write a missing value
_NOBODY = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class Reading(Shown):
    """Hold a column as numbers, and the rows whose values did not fit.

    `misfits` are rows outside the range or with an unknown category; `missing` are rows without a readable value, and
    those of them with a text that stands for no missing value are `unreadable`. `known` are declared categories.
    """

    values: np.ndarray
    misfits: np.ndarray
    missing: np.ndarray
    unreadable: np.ndarray = field(default_factory=_NOBODY.copy)
    known: tuple[str, ...] = ()


def read_numbers(values: Any, low: float, high: float, dates: bool = False) -> Reading:
    """Read numbers, or dates as days since 1970, clamped to [low, high]; NaN where there is none.

    >>> read_numbers(["1.5", " 7 ", "x"], 0.0, 5.0).values.tolist()
    [1.5, 5.0, nan]
    """
    array = _as_array(values)
    numbers = _days(array) if dates else _floats(array)
    missing = np.flatnonzero(np.isnan(numbers))
    with np.errstate(invalid="ignore"):
        outside = (numbers < low) | (numbers > high)
    unreadable = missing[~is_missing(texts_of(array[missing]))] if len(missing) else _NOBODY
    return Reading(np.clip(numbers, low, high), np.flatnonzero(outside), missing, unreadable)


def read_categories(values: Any, known: Sequence[str]) -> Reading:
    """Read categories as positions in `known`; `len(known)` is an unknown one, -1 a missing one.

    >>> read_categories([True, False, "true"], ["false", "true"]).values.tolist()
    [1, 0, 1]
    >>> read_categories(["3.0", "NA", "4"], ["3"]).values.tolist()
    [0, -1, 1]
    """
    texts = texts_of(values)
    place = {value: number for number, value in enumerate(known)}
    folded = {value.casefold(): number for value, number in place.items() if value in ("true", "false")}

    def position(text: str) -> int:
        found = place.get(text, folded.get(text.casefold()))
        if found is None:
            found = place.get(as_text(_float(text)))  # files write the category 3 as 3.0, too
        if found is not None:
            return found
        return -1 if text.casefold() in _GONE else len(known)

    distinct, each = np.unique(texts, return_inverse=True)
    placed = np.array([position(str(text)) for text in distinct], np.int32)[each.reshape(-1)]
    return Reading(placed, np.flatnonzero(placed == len(known)), np.flatnonzero(placed < 0), known=tuple(known))


def texts_of(values: Any) -> np.ndarray:
    """Return a column's values as text in one spelling; a missing value is an empty text.

    >>> texts_of(np.array([1.0, np.nan, 2.5])).tolist()
    ['1', '', '2.5']
    """
    array = _as_array(values)
    if array.dtype.kind == "U":
        return np.char.strip(array)
    return np.array([as_text(value) for value in array.tolist()], dtype=str)


def as_text(value: Any) -> str:
    """Write a value as text, so that 1, 1.0, "1" and " 1 " are one category.

    >>> as_text(1.0), as_text(True), as_text(None), as_text(" F ")
    ('1', 'true', '', 'F')
    """
    if is_nothing(value):
        return ""
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (float, np.floating)) and float(value).is_integer() and abs(float(value)) < 2**53:
        return str(int(value))
    try:
        return str(value).strip()
    except ValueError:  # a whole number of more digits than Python writes
        return "-inf" if value < 0 else "inf"


def is_nothing(value: Any) -> bool:
    """Say whether a value is None, NaN, or a library's own word for nothing (NaT, NA)."""
    if isinstance(value, int):  # it may have more digits than Python writes
        return False
    return value is None or (isinstance(value, (float, datetime.datetime)) and value != value) or str(value) == "<NA>"


def is_missing(texts: np.ndarray) -> np.ndarray:
    """Say which texts stand for a missing value.

    >>> is_missing(np.array(["NA", "x", ""])).tolist()
    [True, False, True]
    """
    distinct, each = np.unique(texts, return_inverse=True)
    return np.array([str(text).casefold() in _GONE for text in distinct], bool)[each.reshape(-1)]


def _as_array(values: Any) -> np.ndarray:
    array = values if isinstance(values, np.ndarray) else np.asarray(values, dtype=_object_if_mixed(values))
    return array.reshape(-1)


def _object_if_mixed(values: Any) -> Any:
    """Return `object` for a plain sequence of different types: NumPy would turn its numbers into text."""
    if not isinstance(values, (list, tuple)):
        return None
    kinds = {type(value) for value in values}
    return None if len(kinds) <= 1 and type(None) not in kinds else object


def _floats(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "M":
        return np.full(len(array), np.nan)
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_float(value) for value in array.tolist()], np.float64)


def _float(value: Any) -> float:
    if isinstance(value, datetime.date) or is_nothing(value):
        return np.nan
    text = as_text(value).casefold()
    if text in ("true", "false"):
        return float(text == "true")
    try:
        return float(text)
    except ValueError:
        return np.nan


def _days(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "M":
        days = array.astype("datetime64[D]")
        return np.where(np.isnat(days), np.nan, days.astype(np.int64).astype(np.float64))
    return np.array([_day(value) for value in array.tolist()], np.float64)


def _day(value: Any) -> float:
    if is_nothing(value):
        return np.nan
    if isinstance(value, str):
        try:
            value = datetime.datetime.fromisoformat(value.strip())
        except ValueError:
            return np.nan
    if isinstance(value, datetime.datetime):
        value = value.date()
    return float((value - datetime.date(1970, 1, 1)).days) if isinstance(value, datetime.date) else np.nan


WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def part_of_dates(values: Any, part: str) -> np.ndarray:
    """Return the weekday of dates as text, or the hour of times as a number; what is no date or time stays as it is.

    >>> part_of_dates(["2024-02-29 13:45", "soon"], "weekday").tolist()
    ['Thursday', 'soon']
    >>> part_of_dates(np.array(["2024-02-29T13:45"], "datetime64[m]"), "hour").tolist()
    [13.0]
    """
    array = _as_array(values)
    if array.dtype.kind == "M":
        array = array.astype("datetime64[us]").astype(object)
    return np.array([_part(value, part) for value in array.tolist()], object)


def _part(value: Any, part: str) -> Any:
    when = value
    if isinstance(value, str):
        try:
            when = datetime.datetime.fromisoformat(value.strip())
        except ValueError:
            return value
        if part == "hour" and len(value.strip()) <= len("2024-02-29"):
            return None  # a date without a time
    if part == "weekday" and isinstance(when, datetime.date) and not is_nothing(when):
        return WEEKDAYS[when.weekday()]
    if part == "hour" and isinstance(when, datetime.datetime) and not is_nothing(when):
        return float(when.hour)
    return None if isinstance(when, datetime.date) else value
