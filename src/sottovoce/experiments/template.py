"""Write a commented run file for a table, from the names of its columns: ``sottovoce init patients.csv``.

A text file is not read beyond its first line, so the run file tells nothing about the rows. Parquet and Arrow files
have a schema, which says the types too. With a public sample, ranges and categories are read off its rows, and the run
file lists them as public.
"""

from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from sottovoce.data.declared import looks_like_id
from sottovoce.data.frames import TEXTS, Frame, as_frame, text_schema
from sottovoce.data.values import is_missing, read_numbers, texts_of

_LABEL = "the label"  # a number or classes, whatever its type
_MOST = 20  # categories; a column of text with more of them is left out
_WHOLE = 10  # a column of whole numbers with at most this many different values holds categories
_TO_FILL = {
    "number": "{range = [LOW, HIGH]}",
    "bool": "{categories = [false, true]}",
    "date": "{range = [2000-01-01, 2020-12-31]}",
    "text": '{categories = ["A", "B"]}',
}


def template(path: Path, label: str | None = None, party: str | None = None, sample: bool = False) -> str:
    """Return the text of a run file for a table; with `sample`, its rows are public and are read.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "a.csv"
    ...     _ = file.write_text("age,sick\\n40,1\\n")
    ...     print(template(file, label="sick").split("[data.columns]")[1].split("\\n")[1])
    # age = {range = [LOW, HIGH]}  # or {categories = ["A", "B"]}
    """
    frame = as_frame(path) if sample or path.suffix.lower() not in TEXTS else text_schema(path)
    for name in (label, party):
        if name is not None:
            frame.require(name)
    lines = [
        f"title = {_toml(path.stem)}",
        'method = "auto"              # chosen from public facts: sizes, ranges, epsilon',
        "",
        "[privacy]",
        "epsilon = 1.0                # smaller is more private",
        "",
        "[data]",
        f"file = {_toml(path.name)}",
        f"label = {_toml(label)}" if label else '# label = "..."             # the column to predict',
        f"party = {_toml(party)}" if party else '# party = "..."             # the column that says who holds a row',
        '# unit = "..."              # the column that says whose row it is, such as a patient',
        "test = 0.2                   # rows to measure on: not protected, because figures have no noise",
        "",
        "# One line per column. Write what is publicly known; columns without a line are not used.",
        '# Numbers: {range = [0, 120]}. Classes: {categories = ["F", "M"]}. See: sottovoce run --help',
        "# Amounts that differ by orders of magnitude (money): {range = [100, 100000], log = true}",
        "# Never read a range off your rows here: that is a statistic of private rows.",
        "[data.columns]",
    ]
    if sample:
        lines[-2] = "# Read off a public sample, and therefore public: check each line."
    for name in frame.names:
        lines.append(_line(frame, name, {label: _LABEL, party: "the parties"}.get(name), sample))
    return "\n".join(lines) + "\n"


def _line(frame: Frame, name: str, role: str | None, sample: bool) -> str:
    key = _toml_key(name)
    remark = f"  # {role}" if role else ""
    if role is None and looks_like_id(name):
        return f"# {key}: looks like an id, left out"
    if not sample:
        kind = "unread" if role == _LABEL else frame.kind(name)
        fill = _TO_FILL.get(kind, f"{_TO_FILL['number']}  # or {_TO_FILL['text']}")
        return f"# {key} = {fill}{remark}"
    found = _inferred(frame, name)
    return f"# {key}: many different texts, left out{remark}" if found is None else f"{key} = {found}{remark}"


def _inferred(frame: Frame, name: str) -> str | None:
    """Return the declaration that fits a public sample; None for texts with many values."""
    texts = texts_of(frame[name])
    there = ~is_missing(texts)
    held, distinct = texts[there], np.unique(texts[there])
    numbers = read_numbers(frame.numbers(name)[there], -np.inf, np.inf).values
    if len(held) and not np.isnan(numbers).any():
        low, high = float(numbers.min()), float(numbers.max())
        if len(distinct) > _WHOLE or low == high:
            missing = ', missing = "flag"' if len(held) < len(texts) else ""
            return f"{{range = [{low:g}, {high if high > low else low + 1:g}]{missing}}}"
    days = read_numbers(held, -np.inf, np.inf, dates=True).values
    if len(distinct) > 1 and np.isnan(numbers).any() and not np.isnan(days).any():
        first, last = (np.datetime64(int(day), "D") for day in (days.min(), days.max()))
        return f"{{range = [{first}, {last}]}}"
    return f"{{categories = {_toml(distinct.tolist())}}}" if 0 < len(distinct) <= _MOST else None


def _toml(value: Any) -> str:
    text = tomli_w.dumps({"value": value}, multiline_strings=False).removeprefix("value = ").strip()
    return " ".join(text.split()).replace("[ ", "[").replace(", ]", "]") if isinstance(value, list) else text


def _toml_key(name: str) -> str:
    return tomli_w.dumps({name: 0}).removesuffix(" = 0\n")
