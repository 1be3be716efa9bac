"""Show an object in a notebook or at a prompt in a few public words: no row, and no number that was read off rows."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from typing import Any

_LONGEST = 80  # letters of a value that are shown
_STYLE = (
    "border-collapse:collapse;font-size:inherit;margin:.3em 0",
    "text-align:left;vertical-align:top;padding:.25em 1.2em .25em 0;font-weight:normal;opacity:.7;white-space:nowrap",
    "text-align:left;vertical-align:top;padding:.25em 0;max-width:46em",
)


class Shown:
    """Give a dataclass that may hold records a short `repr`, and a table of facts for notebooks.

    Subclasses are declared with ``@dataclass(repr=False)``; `_told` says what is shown.

    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> @dataclass(repr=False)
    ... class Rows(Shown):
    ...     name: str
    ...     values: np.ndarray
    >>> Rows("north", np.ones((400, 3)))
    Rows(name: 'north', values: float64 array of shape (400, 3))
    """

    def _told(self) -> Sequence[tuple[str, str]]:
        """Return what is shown, as names and words: by default the fields, with the shapes of arrays."""
        told: Sequence[Any] = fields(self) if is_dataclass(self) else ()
        return [(one.name, summary(getattr(self, one.name))) for one in told if one.repr]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}: {words}' for name, words in self._told())})"

    def _repr_html_(self) -> str:
        return glance(type(self).__name__, self._told())


def summary(value: Any) -> str:
    """Describe a value without what it holds: arrays by their shape, collections by their size.

    >>> summary({"ids": ["Ann", "Bob"]}), summary(3), summary(None)
    ("{'ids': 2 of type str}", '3', 'None')
    """
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype} array of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{str(key)[:_LONGEST]!r}: {summary(held)}" for key, held in value.items()) + "}"
    if isinstance(value, (list, tuple, set, frozenset)):
        kinds = sorted({type(one).__name__ for one in value})
        return f"{len(value)} of type {' or '.join(kinds)}" if kinds else "none"
    if isinstance(value, (str, bool, int, float)) or value is None or isinstance(value, Shown):
        return repr(value) if isinstance(value, Shown) else repr(value)[:_LONGEST]
    return type(value).__name__


def glance(title: str, facts: Sequence[tuple[str, str]], first: str = "") -> str:
    """Return facts as a small table in HTML, with its style in it; `first` stands above in bold.

    >>> glance("Part", [("rows", "<400>")]).count("&lt;400&gt;")
    1
    """
    table, name, words = _STYLE
    rows = "".join(
        f'<tr><th scope="row" style="{name}">{escape(one)}</th><td style="{words}">{escape(said)}</td></tr>'
        for one, said in facts
    )
    bold = f'<p style="font-weight:600;margin:.3em 0;max-width:52em">{escape(first)}</p>' if first else ""
    return f'<div><div style="opacity:.7">{escape(title)}</div>{bold}<table style="{table}">{rows}</table></div>'
