"""Declare what is publicly known about the columns of a table, and turn rows into bounded numbers with it.

Example: "age is between 0 and 120" and "sex is F or M" are declarations. Everything that is computed from a row uses
declarations and this row only, so nothing is learned from the other rows, and no privacy is spent:

>>> declared = Declarations({"age": Column(range=(0, 120)), "sex": Column(categories=["F", "M"])})
>>> declared.names
('age', 'sex=F', 'sex=M', 'sex=other')
>>> declared.encode({"age": [60, 150], "sex": ["M", "?"]}).tolist()
[[0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0]]
"""

import datetime
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from sottovoce.data import curves
from sottovoce.data.frames import Frame, as_frame
from sottovoce.data.values import Reading, as_text, is_nothing, read_categories, read_numbers
from sottovoce.naming import unknown

FLAG = "flag"  # missing = "flag": a missing value gets a column of its own
OTHER, MISSING = "other", "missing"  # names of the columns of unknown categories, and of missing values
Source = Literal["public", "private"]  # a range or a list that is read off the data: who pays for it
_SOURCES = ("public", "private")


@dataclass(frozen=True)
class Column:
    """Declare what is known about one column: its range if it holds numbers or dates, its categories otherwise.

    Args:
        range: the lowest and the highest value, numbers or dates; values outside are set to the nearest end. In a
            table, "public" reads it off the rows and lists it as public, and "private" buys it with a charged release.
        categories: the possible values; or a mapping from values to names. A value that is not listed counts as
            "other". "public" and "private" are as for the range.
        missing: what stands for a missing or unreadable value: a number (or date) of the range, a category, or "flag",
            which gives missing values a column of their own. Default: the middle of the range; "other".
        log: scale the logarithm of the value; for ranges that span several powers of ten, and start above zero.
        curve: give a feature of numbers a curve beside its straight line (`sottovoce.data.curves`): "private" buys the
            ranks of its values, "public" reads them off openly, and 33 bins that were bought before stand for them.

    >>> Column(range=(0.1, 30), log=True).width, Column(categories={0: "alive", 1: "dead"}).names
    (1, ('alive', 'dead'))
    """

    range: Any = None
    categories: Any = None
    missing: Any = None
    log: bool = False
    curve: Any = None

    def __post_init__(self) -> None:
        if (self.range is None) == (self.categories is None):
            raise ValueError(
                "a column has a range (numbers, dates) or categories, one of them: "
                "Column(range=(0, 120)) or Column(categories=['F', 'M'])"
            )
        if self.categories is None:
            object.__setattr__(self, "range", _checked_range(self.range))
        else:
            object.__setattr__(self, "categories", _checked_categories(self.categories))
        if self.log:
            self._check_log()
        if self.curve is not None:
            object.__setattr__(self, "curve", _checked_curve(self.curve, self.numeric))
        self._check_missing()

    @property
    def numeric(self) -> bool:
        """Say whether it holds numbers or dates."""
        return self.range is not None

    @property
    def source(self) -> Source | None:
        """Say "public" or "private" if the range or the list is to be read off the data; None if it stands here."""
        told = self.range if self.numeric else self.categories
        return told if isinstance(told, str) else None  # type: ignore[return-value]

    @property
    def dates(self) -> bool:
        """Say whether the range is one of dates."""
        return self.numeric and self.source is None and isinstance(self.range[0], datetime.date)

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the ends of the range as numbers; a date is its number of days."""
        low, high = self.range
        return _number(low), _number(high)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the categories, in the order in which they were declared."""
        self._require_settled()
        return tuple(self.categories.values())

    @property
    def width(self) -> int:
        """Return the number of encoded columns."""
        self._require_settled()
        flagged = int(self.missing == FLAG)
        own = len(self._coded) if not self.numeric else 1 if self.curve is None else curves.WIDTH
        return own + flagged

    @property
    def _coded(self) -> tuple[str, ...]:
        """Return the names of the categories, and "other" for values that are not listed (unless it is a category)."""
        return self.names if OTHER in self.names else (*self.names, OTHER)

    def encoded_names(self, name: str) -> tuple[str, ...]:
        """Return the names of the encoded columns of the column called `name`.

        >>> Column(range=(0, 1), missing="flag").encoded_names("mgus")
        ('mgus', 'mgus missing')
        """
        self._require_settled()
        flagged = self.missing == FLAG
        if self.numeric:
            curve = () if self.curve is None else (f"{name} rank", *(f"{name} hat {k}" for k in range(curves.HATS)))
            return (name, *curve, *([f"{name} {MISSING}"] if flagged else []))
        return tuple(f"{name}={value}" for value in (*self._coded, *([MISSING] if flagged else [])))

    def read(self, values: Any) -> Reading:
        """Return a column's values as numbers in the range, or as positions of categories; and what did not fit.

        A number outside the range is set to the nearest end, a missing one is NaN. An unknown category has the position
        after the last, a missing one has -1.

        >>> Column(range=(0, 10)).read(["3", "99", "n/a"]).values.tolist()
        [3.0, 10.0, nan]
        >>> Column(categories=["a", "b"]).read(["b", "x", None]).values.tolist()
        [1, 2, -1]
        """
        self._require_settled()
        if self.numeric:
            return read_numbers(values, *self.bounds, self.dates)
        return read_categories(values, list(self.categories))

    def scale(self, numbers: np.ndarray) -> np.ndarray:
        """Map the range to [-1, 1]; a missing number becomes what `missing` says, by default the middle, 0.

        >>> Column(range=(1, 100), log=True).scale(np.array([1.0, 10.0, 100.0, np.nan])).tolist()
        [-1.0, 0.0, 1.0, 0.0]
        """
        low, high = self.bounds
        instead = np.nan if self.missing in (None, FLAG) else _number(self.missing)
        filled = np.where(np.isnan(numbers), instead, numbers)
        if self.log:
            low, high, filled = math.log(low), math.log(high), np.log(filled)
        return np.where(np.isnan(filled), 0.0, np.clip(2.0 * (filled - low) / (high - low) - 1.0, -1.0, 1.0))

    def encode(self, read: np.ndarray) -> np.ndarray:
        """Return one to several float32 columns for what `read` returned: each row's norm is at most 1."""
        rows = np.arange(len(read))
        made = np.zeros((len(read), self.width), np.float32)
        gone = np.isnan(read) if self.numeric else read < 0
        if self.numeric and self.curve is not None:
            made[:, : curves.WIDTH] = curves.basis(self.scale(read), self.curve)
            if self.missing is None:
                made[gone] = 0.0
        elif self.numeric:
            made[:, 0] = self.scale(read)
        else:
            other = self._coded.index(OTHER)
            instead = other if self.missing in (None, FLAG) else list(self.categories).index(as_text(self.missing))
            known = np.where(read < len(self.categories), read, other)
            made[rows, np.where(gone, instead, known)] = 1.0
        if self.missing == FLAG:
            made[gone] = 0.0
            made[gone, -1] = 1.0
        return made

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON and TOML.

        >>> Column(categories=["F", "M"]).to_dict()
        {'categories': {'F': 'F', 'M': 'M'}}
        """
        told = {field.name: getattr(self, field.name) for field in fields(self)}
        plain = {key: _plain(value) for key, value in told.items() if value is not None and value is not False}
        return plain

    @classmethod
    def of(cls, declared: Any, where: str = "the column") -> "Column":
        """Return a column as it is, and make one from plain data; an error names the place `where` it stands.

        >>> Column.of({"rnge": [0, 1]}, "patients.csv, column 'age'")
        Traceback (most recent call last):
        ...
        ValueError: patients.csv, column 'age': there is no key 'rnge'; did you mean 'range'? (categories, curve, ...)
        >>> Column.of({"yr": {"range": [0, 1]}}, "column 'sample'")
        Traceback (most recent call last):
        ...
        ValueError: column 'sample': there is no key 'yr'; choose from ...; a name with a dot stands in quotes
        """
        if isinstance(declared, Column):
            return declared
        if not isinstance(declared, Mapping):
            raise ValueError(f"{where} is {declared!r}: write {{range = [0, 120]}} or {{categories = ['F', 'M']}}")
        known = [field.name for field in fields(cls)]
        for key, value in declared.items():
            if key not in known:
                dotted = isinstance(value, Mapping)  # TOML reads sample.yr = {...} as a table in a table
                remedy = "; a name with a dot stands in quotes" if dotted else ""
                raise ValueError(f"{where}: {unknown('key', str(key), known)}{remedy}")
        try:
            return cls(**declared)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: {error}") from None

    def _require_settled(self) -> None:
        if self.source is not None:
            what = "range" if self.numeric else "categories"
            raise ValueError(f'{what} = "{self.source}" is read off a table first: see sv.data.table')
        if isinstance(self.curve, str):
            raise ValueError(f'curve = "{self.curve}" is read off a table first: see sv.data.table')

    def _check_log(self) -> None:
        if self.log is not True:
            raise ValueError(f"log is {self.log!r}: give true or false")
        if not self.numeric or self.dates:
            raise ValueError("log is for numbers with a range: leave log out")
        if self.source is None and self.range[0] <= 0:
            raise ValueError(
                f"log needs a range above zero, this one starts at {self.range[0]:g}: raise it, or drop log"
            )

    def _check_missing(self) -> None:
        if self.missing == FLAG and not self.numeric and MISSING in self.categories:
            raise ValueError('a category is called "missing" already: write missing = "missing" in place of "flag"')
        if self.missing is None or self.missing == FLAG or self.source is not None:
            return
        if not self.numeric:
            if as_text(self.missing) not in self.categories:
                listed = ", ".join(self.categories)
                raise ValueError(f"missing is {self.missing!r}: give 'flag' or one of the categories ({listed})")
            return
        low, high = self.bounds
        given = self.missing if isinstance(self.missing, datetime.date) else _end(self.missing)
        if given is None or not low <= _number(given) <= high:
            raise ValueError(f"missing is {self.missing!r}: give 'flag' or a value within the range {self.range}")
        object.__setattr__(self, "missing", given)


class Declarations(Mapping[str, Column]):
    """Hold the declared columns of a table, by name and in order; an encoded row has a norm of at most `norm`.

    >>> declared = Declarations({"age": {"range": [0, 120]}, "weight": {"range": [30, 200]}})
    >>> round(declared.norm, 3), Declarations(declared.to_dict()) == declared
    (1.414, True)
    """

    def __init__(self, columns: Mapping[str, Any], where: str = "") -> None:
        prefix = f"{where}, " if where else ""
        if not isinstance(columns, Mapping):
            raise ValueError(
                f"{prefix}columns is a {type(columns).__name__}: give a mapping from names to declarations, such as "
                '{"age": {"range": [0, 120]}}'
            )
        self._columns = {str(name): Column.of(held, f"{prefix}column {name!r}") for name, held in columns.items()}

    def __getitem__(self, name: str) -> Column:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"Declarations({self.to_dict()})"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the encoded columns."""
        return tuple(made for name, column in self.items() for made in column.encoded_names(name))

    @property
    def norm(self) -> float:
        """Return the largest L2 norm that an encoded row can have; public, because it depends on declarations alone."""
        return math.sqrt(len(self))

    def held_by(self, holders: Mapping[str, Sequence[str]]) -> list[np.ndarray]:
        """Return, per holder, the positions of its encoded columns.

        >>> declared = Declarations({"age": Column(range=(0, 120)), "sex": Column(categories=["F", "M"])})
        >>> [own.tolist() for own in declared.held_by({"clinic": ["sex"], "bank": ["age"]})]
        [[1, 2, 3], [0]]
        """
        ends = np.cumsum([0, *(column.width for column in self.values())])
        place = {name: np.arange(ends[number], ends[number + 1]) for number, name in enumerate(self)}
        return [np.concatenate([place[name] for name in own]) for own in holders.values()]

    def only(self, names: Sequence[str]) -> "Declarations":
        """Return the declarations of some columns, in this order."""
        return Declarations({name: self[name] for name in names})

    def curved(self, names: Sequence[str], how: str | None) -> "Declarations":
        """Return the declarations in which each number among these columns has a curve, if one is asked for.

        >>> Declarations({"age": Column(range=(0, 120))}).curved(["age"], "private")["age"].curve
        'private'
        """
        if how is None:
            return self
        if not (isinstance(how, str) and how in _SOURCES):
            raise ValueError(f"curves is {how!r}: choose 'public' or 'private', or leave it out")
        plain = [name for name in names if self[name].numeric and self[name].curve is None]
        return Declarations({**self, **{name: replace(self[name], curve=how) for name in plain}})

    def read(self, frame: Any) -> dict[str, Reading]:
        """Read the declared columns of a frame (see `as_frame`); a column that is not there is an error."""
        held = as_frame(frame)
        self.check(held)
        return {
            name: column.read(held.numbers(name) if column.numeric else held[name]) for name, column in self.items()
        }

    def encode(self, frame: Any) -> np.ndarray:
        """Return the rows of a frame as float32 numbers, with columns `names`.

        `frame` is any DataFrame, a mapping from names to columns, or the path of a CSV, Parquet or Arrow file.
        """
        return self.encode_read(self.read(frame))

    def encode_read(self, read: Mapping[str, Reading]) -> np.ndarray:
        """Return the encoded rows of what `read` returned."""
        blocks = [column.encode(read[name].values) for name, column in self.items()]
        return np.concatenate(blocks, axis=1) if blocks else np.zeros((0, 0), np.float32)

    def check(self, frame: Frame) -> None:
        """Refuse declarations of columns that a frame lacks, or that do not fit the type of its column."""
        for name, column in self.items():
            frame.require(name)
            if misfit := _misfit(column, frame.kind(name)):
                raise ValueError(f"{frame.source}, column {name!r}: {misfit}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON and TOML; `Declarations(plain)` makes the same declarations."""
        return {name: column.to_dict() for name, column in self.items()}


def _misfit(column: Column, kind: str) -> str | None:
    """Say why a declaration does not fit a column of this type, if so. The type is schema: no value is looked at."""
    if kind == "nested":
        return "it holds neither numbers nor texts nor dates (but lists, bytes or the like): make a plain column of it"
    if column.numeric and column.source is None:
        if kind == "date" and not column.dates:
            return (
                'it holds dates, but its range has numbers: write dates, such as range = ["2000-01-01", "2020-12-31"]'
            )
        if kind in ("number", "bool") and column.dates:
            return "it holds numbers, but its range has dates: write numbers, such as range = [0, 120]"
    return None


def _checked_range(given: Any) -> Any:
    if isinstance(given, str):
        if given not in _SOURCES:
            raise ValueError(f'range is {given!r}: give two numbers or dates, "public" or "private"')
        return given
    if not isinstance(given, Sequence) or len(given) != 2:
        raise ValueError(f"range is {given!r}: give the lowest and the highest value, such as (0, 120)")
    low, high = (_end(end) for end in given)
    if low is None or high is None or isinstance(low, float) != isinstance(high, float):
        raise ValueError(f"range is {given!r}: give two finite numbers, or two dates such as 2000-01-31")
    if not _number(low) < _number(high):
        raise ValueError(f"range is {given!r}: the first end must be below the second")
    return low, high


def _checked_curve(given: Any, numeric: bool) -> Any:
    if not numeric:
        raise ValueError("curve is for numbers with a range: leave curve out")
    if isinstance(given, str) and given in _SOURCES:
        return given
    wrong = ValueError(
        f'curve is {given!r}: give "private" or "public", or {curves.STEPS + 1} bins that were bought before, rising '
        f"from 0 or more to {curves.BINS} at most"
    )
    if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != curves.STEPS + 1:
        raise wrong
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in given):
        raise wrong
    if list(given) != sorted(given) or given[0] < 0 or given[-1] > curves.BINS or given[0] == given[-1]:
        raise wrong
    return tuple(given)


def _end(given: Any) -> float | datetime.date | None:
    """Return one end of a range as a number or a date; None if it is neither."""
    if isinstance(given, datetime.datetime):
        return given.date()
    if isinstance(given, datetime.date):
        return given
    if isinstance(given, str):
        try:
            return datetime.date.fromisoformat(given)
        except ValueError:
            return None
    if isinstance(given, bool) or not isinstance(given, (int, float, np.number)) or not math.isfinite(given):
        return None
    return float(given)


def _number(end: Any) -> float:
    return float((end - datetime.date(1970, 1, 1)).days) if isinstance(end, datetime.date) else float(end)


def _checked_categories(given: Any) -> Any:
    """Return a mapping from the values (as text) to their names."""
    if isinstance(given, str):
        if given not in _SOURCES:
            raise ValueError(f'categories is {given!r}: give a list such as ["F", "M"], "public" or "private"')
        return given
    if isinstance(given, Mapping):
        pairs = [(as_text(value), str(name)) for value, name in given.items()]
    elif isinstance(given, (Sequence, np.ndarray)):
        pairs = [(as_text(value), as_text(value)) for value in given]
    else:
        raise ValueError(f"categories is {given!r}: give a list such as ['F', 'M']")
    if any(is_nothing(value) for value in given):
        raise ValueError('categories list a missing value: leave it out, and write missing = "flag"')
    if not pairs:
        raise ValueError("categories is empty: list at least one value")
    for number, what in enumerate(("value", "name")):
        said = [pair[number] for pair in pairs]
        twice = sorted({one for one in said if said.count(one) > 1})
        if twice:
            raise ValueError(f"categories list the {what} {twice[0]!r} twice: list each once")
    return dict(pairs)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.date):
        return value.isoformat()
    return [_plain(one) for one in value] if isinstance(value, tuple) else value
