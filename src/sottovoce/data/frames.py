"""Open a table: a CSV, Parquet or Arrow file, any DataFrame, or a mapping from names to columns.

Only names and types are looked at here (the *schema*). The values of a CSV file stay text until a declaration says how
to read them, so its schema is its header:

>>> frame = as_frame({"age": [30, 41], "sex": ["F", "M"]})
>>> frame.names, len(frame)
(('age', 'sex'), 2)
"""

import codecs
import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from sottovoce.data.values import part_of_dates
from sottovoce.naming import unknown
from sottovoce.shown import Shown

ENDINGS = (".csv", ".tsv", ".txt", ".parquet", ".arrow", ".feather", ".ipc")
TEXTS = (".csv", ".tsv", ".txt")
_DELIMITERS = (",", ";", "\t", "|")
_UNSEPARATED = ": there is one column only, so separate columns by commas, semicolons, tabs or bars"
_NO_NAMES = "its first line looks like a row, so write the names of the columns above it"
_VALUE = re.compile(r"[+-]?\d[\d.,:/eE+-]*")
_QUOTED = re.compile(r'"[^"]*"')
_PARTED = re.compile(r"(weekday|hour) of (.+)")
_COMMA = re.compile(r"\s*([+-]?\d+),(\d+)\s*")  # a number with a decimal comma


def _as_western(error: UnicodeError) -> tuple[str, int]:
    """Read bytes that are not UTF-8 as Windows-1252, byte by byte: so no row changes how another one is read."""
    assert isinstance(error, UnicodeDecodeError)
    return error.object[error.start : error.end].decode("cp1252", "replace"), error.end


_END = "\0"
_WESTERN = "sottovoce-western"
codecs.register_error(_WESTERN, _as_western)


@dataclass(frozen=True, eq=False, repr=False)
class Frame(Shown):
    """Give access to a table with named columns, read from a file, a DataFrame or a mapping.

    `kind(name)` returns the type of a column, and `frame[name]` its values as an array. Of a column of dates called
    `when` there are also "weekday of when" and "hour of when".

    `source` names it in messages. `notes` are for the holder of the rows only. `decimal` is how texts write numbers: a
    file that is separated by semicolons may write 3,5 for 3.5. A kind is "number", "bool", "date",
    "text", "nested" (lists, bytes), or "unread" where the schema does not tell.
    """

    source: str
    kinds: Mapping[str, str]
    rows: int
    column: Callable[[str], np.ndarray]
    notes: tuple[str, ...] = ()
    decimal: str = "."

    @property
    def names(self) -> tuple[str, ...]:
        """Return the columns' names."""
        return tuple(self.kinds)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, name: str) -> np.ndarray:
        self.require(name)
        part, whole = self._parted(name)
        return part_of_dates(self.column(whole), part) if part else self.column(name)

    def _parted(self, name: str) -> tuple[str, str]:
        """Return which part of the dates of which column a name stands for; no part for a column of its own."""
        found = _PARTED.fullmatch(name)
        if found is None or name in self.kinds or found[2] not in self.kinds:
            return "", name
        return found[1], found[2]

    def numbers(self, name: str) -> np.ndarray:
        """Return a column that is to be read as numbers, with a point in place of a decimal comma."""
        values = self[name]
        if self.decimal == "." or values.dtype.kind != "U":
            return values
        return np.array([_COMMA.sub(r"\1.\2", text) if _COMMA.fullmatch(text) else text for text in values.tolist()])

    def kind(self, name: str) -> str:
        """Return the type of a column, as far as the schema tells."""
        part, whole = self._parted(self.require(name))
        return {"weekday": "text", "hour": "number"}.get(part) or self.kinds[whole]

    def require(self, name: str) -> str:
        """Return the name; if there is no such column, the ValueError names the file and the nearest column."""
        if self._parted(name)[1] not in self.kinds:
            if _like_values(self.names):  # then they may be private values, and must not be shown
                raise ValueError(f"{self.source}: there is no column {str(name)!r}: {_NO_NAMES}")
            alone = len(self.kinds) == 1 and "unread" in self.kinds.values()
            raise ValueError(f"{self.source}: {unknown('column', str(name), self.names)}{_UNSEPARATED * alone}")
        return name


def as_frame(table: Any) -> Frame:
    """Return a frame as it is, and open everything else; nothing but the schema is looked at.

    >>> as_frame("patients.xlsx")
    Traceback (most recent call last):
    ...
    ValueError: patients.xlsx: sottovoce reads .csv, .tsv, .txt, .parquet, .arrow, .feather, .ipc: save the table as CSV
    """
    if isinstance(table, Frame):
        return table
    if isinstance(table, (str, Path)):
        return _read_file(Path(table))
    if isinstance(table, Mapping):
        return _of_columns("the table", {str(name): values for name, values in table.items()})
    return _of_dataframe("the table", table)


def header(path: Path) -> list[str]:
    """Return the column names of a text file: its first line, and nothing else of it."""
    with _opened(path) as file:
        first = file.readline()
    if "\0" in first:
        raise ValueError(f"{path.name} is no text in UTF-8, or in UTF-16 with its mark: save it as CSV in UTF-8")
    return next(csv.reader([first], delimiter=_delimiter(first)), [])


def _opened(path: Path) -> TextIO:
    """Open a text file; its first two bytes tell whether it is UTF-16."""
    with path.open("rb") as file:
        wide = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    encoding, errors = ("utf-16", "replace") if wide else ("utf-8-sig", _WESTERN)
    return path.open(newline="", encoding=encoding, errors=errors)


def _existing(path: Path) -> Path:
    if path.suffix.lower() not in ENDINGS:
        raise ValueError(f"{path}: sottovoce reads {', '.join(ENDINGS)}: save the table as CSV")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give a file with a table")
    if not path.is_file():
        near = [other.name for other in path.parent.glob("*") if other.suffix.lower() in ENDINGS]
        what = f"in {path.parent.resolve()}" if near or path.parent.is_dir() else f"{path.parent} is no folder"
        raise ValueError(f"{unknown('file', path.name, near)} ({what})")
    return path


def _read_file(path: Path) -> Frame:
    _existing(path)
    if path.suffix.lower() in TEXTS:
        return _read_text(path)
    return _of_dataframe(path.name, _arrow(path))


def text_schema(path: Path) -> Frame:
    """Return a text file's names as a frame without rows: nothing beyond the first line is read."""
    names = _names(_existing(path))
    return Frame(path.name, {name: "unread" for name in names if name}, 0, lambda name: np.zeros(0))


def _names(path: Path) -> list[str]:
    names = [name.strip() for name in header(path)]
    if names[:1] == ["sep="] or (len(names) == 1 and names[0].startswith("sep=")):
        raise ValueError(f"{path.name}: its first line is a hint for spreadsheets (sep=): remove this line")
    if not any(names):
        raise ValueError(f"{path.name} has no header: its first line must hold the names of the columns")
    if _like_values(names) and len(set(names)) < len(names):
        raise ValueError(f"{path.name} has no header: {_NO_NAMES}")
    _refuse_twice(path.name, [name for name in names if name])
    return names


def _read_text(path: Path) -> Frame:
    names = _names(path)
    with _opened(path) as file:
        delimiter = _delimiter(file.readline())
        csv.field_size_limit(2**31 - 1)  # a long text is no error
        held = [row for row in csv.reader(_lines(file), delimiter=delimiter) if row]
    if held.pop() != [_END]:
        raise ValueError(
            f'{path.name}: a quotation mark (") is opened and never closed, so it cannot be told where rows end: '
            f"close it, or write it twice (the last row that ends is row {len(held)})"
        )
    if not held:
        raise ValueError(f"{path.name} has a header, but no rows: give a file with one line per record")
    # A line that is too short or too long is a value that cannot be read, not an error.
    ragged = [number for number, row in enumerate(held) if len(row) != len(names)]
    for number in ragged:
        held[number] = (held[number] + [""] * len(names))[: len(names)]
    place = {name: number for number, name in enumerate(names) if name}  # a column without a name cannot be asked for
    notes = [
        f"{len(ragged)} rows have another number of fields than the header (first: row {row + 1})" for row in ragged
    ]
    return Frame(
        path.name,
        dict.fromkeys(place, "unread"),
        len(held),
        lambda name: np.array([row[place[name]] for row in held], dtype=str),
        tuple(notes[:1]),
        "," if delimiter == ";" else ".",
    )


def _like_values(names: Sequence[str]) -> bool:
    """Say whether names of columns look like a row of a table: half of them are numbers or dates.

    >>> _like_values(["71", "F", "2020-01-31", "0"]), _like_values(["id", "sex", "2019"])
    (True, False)
    """
    return 2 * sum(_VALUE.fullmatch(name) is not None for name in names) >= max(len(names), 1)


def _lines(file: TextIO) -> Iterator[str]:
    """Yield the lines without null characters, then a last line that only holds one: it marks the end."""
    yield from (line.replace("\0", "") for line in file)
    yield _END


def _delimiter(first: str) -> str:
    """Return the delimiter that the header has most often; what stands in quotation marks belongs to a name.

    >>> _delimiter('"age, in years, at entry";sex;death')
    ';'
    """
    return max(_DELIMITERS, key=_QUOTED.sub("", first).count)


def _arrow(path: Path) -> Any:
    try:
        import pyarrow.feather as feather
        import pyarrow.parquet as parquet
    except ImportError:
        raise ValueError(
            f"{path.name} needs the package pyarrow: pip install 'sottovoce[parquet]', or save the table as CSV"
        ) from None
    import pyarrow as pa

    try:
        return parquet.read_table(path) if path.suffix.lower() == ".parquet" else feather.read_table(path)
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"{path.name} cannot be read as {path.suffix[1:]} ({error}): write it again, or save the table as CSV"
        ) from None


def _of_columns(source: str, columns: Mapping[str, Any]) -> Frame:
    arrays = {name: held if isinstance(held, np.ndarray) else _plain_array(held) for name, held in columns.items()}
    lengths = {name: len(held) if held.ndim else 0 for name, held in arrays.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise ValueError(f"{source} has columns of {lengths} rows: give all columns the same number, and at least one")
    kinds = {name: _kind_of_array(held) for name, held in arrays.items()}
    return Frame(source, kinds, next(iter(lengths.values())), arrays.__getitem__)


def _plain_array(held: Any) -> np.ndarray:
    values = list(held) if isinstance(held, Sequence) else held
    same = isinstance(values, list) and len({type(value) for value in values}) == 1
    return np.asarray(values) if same or not isinstance(values, list) else np.array(values, dtype=object)


def _kind_of_array(held: np.ndarray) -> str:
    if held.ndim != 1:
        return "nested"
    return {"b": "bool", "i": "number", "u": "number", "f": "number", "M": "date", "U": "text", "O": "unread"}.get(
        held.dtype.kind, "nested"
    )


def _of_dataframe(source: str, table: Any) -> Frame:
    import narwhals.stable.v2 as nw

    names_of = "column_names" if hasattr(table, "column_names") else "columns"  # in pyarrow, `columns` are the values
    _refuse_twice(source, [str(name) for name in getattr(table, names_of, [])])
    try:
        frame = nw.from_native(table, eager_only=True)
    except TypeError:
        raise ValueError(
            f"{type(table).__name__} is no table: give a DataFrame (pandas, polars, ...), a mapping from names "
            "to columns, or the path of a CSV, Parquet or Arrow file"
        ) from None
    if not len(frame):
        raise ValueError(f"{source} has no rows: give one row per record")
    names = {str(name): name for name in frame.columns}
    kinds = {name: _kind_of_type(frame.schema[own], nw) for name, own in names.items()}

    def column(name: str) -> np.ndarray:
        series = frame[names[name]]
        if kinds[name] == "date" or series.null_count():
            return np.array(_listed(series), dtype=object)
        return np.asarray(series.to_numpy())

    return Frame(source, kinds, len(frame), column)


def _listed(series: Any) -> list[Any]:
    """Return the values of a series; a date that Python has not (the year 10000) is missing, and stops nothing."""
    try:
        return list(series.to_list())
    except (OverflowError, ValueError):
        return [_one(series, row) for row in range(len(series))]


def _one(series: Any, row: int) -> Any:
    try:
        return series[row]
    except (OverflowError, ValueError):
        return None


def _kind_of_type(dtype: Any, nw: Any) -> str:
    if dtype.is_numeric():
        return "number"
    if dtype == nw.Boolean:
        return "bool"
    if dtype == nw.Date or isinstance(dtype, nw.Datetime) or dtype == nw.Datetime:
        return "date"
    if dtype.is_nested() or dtype == nw.Binary:
        return "nested"
    return "text" if dtype in (nw.String, nw.Categorical) or isinstance(dtype, nw.Enum) else "unread"


def _refuse_twice(source: str, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise ValueError(f"{source} has {list(names).count(twice[0])} columns called {twice[0]!r}: rename them")
