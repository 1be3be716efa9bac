"""Make other people's texts harmless where they are shown: names of parties, columns and classes, titles, errors.

There is one function per place: `visible` for a terminal or a log, `markdown` for a card, `cell` for a CSV file that a
spreadsheet may open. HTML is written with `html.escape`.
"""

import re
import unicodedata
from typing import Any

_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")  # the last four: the first four in full width


def visible(text: str) -> str:
    r"""Return a text whose control characters are written out, lines and tabs apart: a terminal obeys none of it.

    Letters that change the direction of reading are written out too.

    >>> print(visible("north \x1b[2J"))
    north \u001b[2J
    """
    return "".join(_written(one) if _controls(one) else one for one in text)


def _controls(one: str) -> bool:
    return one not in "\n\t" and (unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp") or one in _DIRECTIONS)


def _written(one: str) -> str:
    return f"\\u{ord(one):04x}"  # as in JSON, which stays JSON


def markdown(text: str) -> str:
    r"""Return a text as one line that Markdown shows as it is: no tag, link, heading or column of a table comes of it.

    >>> print(markdown("[north](https://a.b)\n# <b>"))
    \[north](https\://a.b) # \<b>
    """
    line = re.sub(r"([\\`\[<|&*_~]|@(?=\w))", r"\\\1", visible(" ".join(text.split())))
    return re.sub(r"(?i)(?<=\w)(:)(?=//)|(?<=www)(\.)", r"\\\1\2", line)


def cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula; a number stays one.

    >>> cell("=1+1"), cell("-1"), cell(0.5), cell(None)
    ("'=1+1", '-1', 0.5, '')
    """
    if value is None or not isinstance(value, str):
        return "" if value is None else value
    text = visible(value)
    try:
        float(text)
    except ValueError:
        return f"'{text}" if text.startswith(_FORMULA) or text.lstrip().startswith(_FORMULA) else text
    return text
