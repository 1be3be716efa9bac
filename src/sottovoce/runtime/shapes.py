"""Draw the curves of a model: how the score changes along each column, with the band that noise leaves.

A shape is post-processing of what was released, as coefficients are (`sottovoce.runtime.coefficients`), so it may leave
wherever the model may. It is the difference from the middle value, the one of rank one half.
"""

import datetime
import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sottovoce.data import Column, curves
from sottovoce.defused import markdown
from sottovoce.shown import Shown

_ERRORS = 1.645  # of a band that covers 90 %
_WIDE, _HIGH, _EDGE, _ACROSS = 230, 150, 34, 3  # of a panel, of its margin; panels in a line
_TOLD = (0.1, 0.25, 0.75, 0.9)  # ranks whose values stand in the table of coefficients


@dataclass(frozen=True, eq=False, repr=False)
class Shape(Shown):
    """Hold the curve of a column: its effect on the score at some values, and the standard error that noise causes."""

    column: str
    values: tuple[float, ...]
    effects: tuple[float, ...]
    errors: tuple[float, ...]
    ends: tuple[str, str]  # the lowest and the highest of these values, as a reader writes them

    def times(self, factor: float) -> "Shape":
        """Return the shape of a label that is `factor` times the one that was trained for."""
        effects, errors = (tuple(factor * one for one in held) for held in (self.effects, self.errors))
        return Shape(self.column, self.values, effects, errors, self.ends)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {name: getattr(self, name) for name in ("column", "values", "effects", "errors", "ends")}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> "Shape":
        """Read what `to_dict` gave."""
        values, effects, errors = numbers = [tuple(map(float, told[name])) for name in ("values", "effects", "errors")]
        low, high = told["ends"]
        if not values or len({len(held) for held in numbers}) > 1 or not np.isfinite(numbers).all():
            raise ValueError("a curve has not as many effects as values, or some are no numbers: save the model again")
        return cls(str(told["column"]), values, effects, errors, (str(low), str(high)))

    def _told(self) -> list[tuple[str, str]]:
        return [(f"{value:.4g}", f"{effect:+.3g}") for value, effect in zip(self.values, self.effects)]


def lines(column: Column) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of a curve's knots, and per value the sum of the curve's columns that is its effect.

    >>> values, sums = lines(Column(range=(0, 10), curve=curves.EVEN))
    >>> len(values), sums.shape, values[:2].round(2).tolist(), bool(sums[16].any())
    (33, (33, 7), [0.0, 0.31], False)
    """
    knots = np.unique(np.asarray(column.curve)) / curves.BINS
    return _values(column, knots), _basis(column, knots) - middle(column)


def middle(column: Column) -> np.ndarray:
    """Return the curve's columns at the middle value."""
    return _basis(column, _at_rank(column, 0.5))[0]


def told(column: Column) -> tuple[list[str], np.ndarray]:
    """Return the names and sums of some values' effects, for a table of coefficients."""
    places = np.concatenate([_at_rank(column, rank) for rank in _TOLD])
    base = _text(column, float(_values(column, _at_rank(column, 0.5))[0]))
    names = [f"{_text(column, float(value))}, not {base}" for value in _values(column, places)]
    return names, _basis(column, places) - middle(column)


def ends(column: Column, values: Sequence[float]) -> tuple[str, str]:
    """Return the first and the last value as a reader writes them."""
    return _text(column, float(values[0])), _text(column, float(values[-1]))


def picture(shapes: Sequence[Shape]) -> str:
    """Return an SVG with a panel per curve: the effect, and the band that noise leaves in 90 of 100 runs."""
    count = -(-len(shapes) // _ACROSS)
    width, height = _ACROSS * _WIDE, count * (_HIGH + _EDGE)
    drawn = "".join(
        f'<g transform="translate({number % _ACROSS * _WIDE} {number // _ACROSS * (_HIGH + _EDGE)})">{_panel(one)}</g>'
        for number, one in enumerate(shapes)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>{drawn}</svg>\n'
    )


def section(shapes: Sequence[Shape], file: str) -> list[str]:
    """Return the lines of a model card about curves; `file` is the picture beside it."""
    if not shapes:
        return []
    words = (
        "How the score changes along a column, as a difference from the middle value, with the band that noise "
        "leaves in 90 of 100 runs. Values lie where a thirty-second part of the rows is between neighbours."
    )
    named = ", ".join(markdown(one.column) for one in shapes)
    return ["## Curves", "", words, "", f"![Curves of {named}]({file})", ""]


def _panel(one: Shape) -> str:
    effects, reach = np.array(one.effects), _ERRORS * np.array(one.errors)
    most = float(np.quantile(np.abs(effects) + reach, 0.9)) or 1.0
    left, right = one.values[0], one.values[-1]

    def x(value: float) -> float:
        return _EDGE + (value - left) / ((right - left) or 1.0) * (_WIDE - _EDGE - 12)

    def y(effect: float) -> float:
        return _EDGE / 2 + _HIGH / 2 - max(min(effect / most, 1.0), -1.0) * (_HIGH / 2 - 8)

    across = [x(value) for value in one.values]
    upper = [f"{a:.1f},{y(e + r):.1f}" for a, e, r in zip(across, effects, reach)]
    lower = [f"{a:.1f},{y(e - r):.1f}" for a, e, r in zip(across, effects, reach)]
    line = " ".join(f"{a:.1f},{y(e):.1f}" for a, e in zip(across, effects))
    bottom = _EDGE / 2 + _HIGH
    return (
        f'<text x="{_EDGE}" y="12" font-weight="bold">{html.escape(one.column)}</text>'
        f'<line x1="{_EDGE}" x2="{_WIDE - 12}" y1="{y(0.0):.1f}" y2="{y(0.0):.1f}" stroke="#999" stroke-dasharray="3"/>'
        f'<polygon points="{" ".join(upper + lower[::-1])}" fill="#2a6f97" fill-opacity="0.2"/>'
        f'<polyline points="{line}" fill="none" stroke="#2a6f97" stroke-width="1.5"/>'
        f'<text x="{_EDGE - 3}" y="{y(most) + 4:.1f}" text-anchor="end">{most:+.2g}</text>'
        f'<text x="{_EDGE - 3}" y="{y(-most) + 4:.1f}" text-anchor="end">{-most:+.2g}</text>'
        f'<text x="{_EDGE}" y="{bottom}">{html.escape(one.ends[0])}</text>'
        f'<text x="{_WIDE - 12}" y="{bottom}" text-anchor="end">{html.escape(one.ends[1])}</text>'
    )


def _basis(column: Column, unit: np.ndarray) -> np.ndarray:
    return curves.basis(2 * unit - 1, column.curve)


def _at_rank(column: Column, rank: float) -> np.ndarray:
    """Return where in [0, 1] a rank is reached."""
    return np.array([column.curve[round(rank * curves.STEPS)] / curves.BINS])


def _values(column: Column, unit: np.ndarray) -> np.ndarray:
    """Return positions in [0, 1] as values of the column."""
    low, high = map(math.log, column.bounds) if column.log else column.bounds
    found = low + np.minimum(unit, 1.0) * (high - low)
    return np.exp(found) if column.log else found


def _text(column: Column, value: float) -> str:
    if column.dates:
        return (datetime.date(1970, 1, 1) + datetime.timedelta(days=round(value))).isoformat()
    return f"{value:.3g}"
