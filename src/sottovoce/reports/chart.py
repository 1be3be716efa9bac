"""Draw one chart as SVG text: lines with bands, and a name at the end of each line.

A chart has no colours of its own. Each line has a slot from 0 to 5, and the page gives slots their colours, so that a
chart suits light and dark pages and never shows more than six colours. A line without a slot is hidden at first; the
page's script can give it one. Every point has a text for people who point at it, or walk along it by keyboard.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

SLOTS = 6
WIDTH, HEIGHT = 500, 280
_LEFT, _TOP, _BOTTOM = 66, 16, 44
_DOWN = HEIGHT - _TOP - _BOTTOM
_MOST_POINTS = 60  # points per line that can be pointed at
_LETTERS = 24  # letters of a name beside its line
_LETTER = 7.4  # the width of a letter, at the size of narrow screens
_APART = 15.0  # distance between two names
_DASHES = {"-": "", "--": ' stroke-dasharray="7 4"', ":": ' stroke-dasharray="2 4"'}


@dataclass(frozen=True, eq=False)
class Line:
    """Describe a named line. `key` joins what belongs together on a page; `low` and `high` bound its band, if any."""

    name: str
    key: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    slot: int | None = 0
    style: str = "-"
    dots: bool = False
    ink: bool = False  # in the colour of the text: a line to compare with


@dataclass(frozen=True)
class Axis:
    """Say what an axis shows, from where to where.

    >>> Axis("epsilon", 0.5, 8.0, log=True).place(2.0)
    0.5
    """

    label: str
    low: float
    high: float
    log: bool = False
    ticks: tuple[float, ...] = ()

    def place(self, value: float) -> float:
        """Return where a value lies, from 0 to 1; a value outside of the axis is put just outside."""
        low, high, at = (math.log(max(v, 1e-300)) if self.log else v for v in (self.low, self.high, value))
        return min(1.5, max(-0.5, (at - low) / (high - low))) if high > low else 0.5

    @property
    def marks(self) -> tuple[float, ...]:
        """Return the values that are written beside the axis."""
        return self.ticks or (_decades(self.low, self.high) if self.log else nice(self.low, self.high))


def nice(low: float, high: float) -> tuple[float, ...]:
    """Return about five round numbers from low to high.

    >>> nice(0.0, 1.0)
    (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    """
    if not high > low:
        return (low,)
    rough = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * m for m in (1, 2, 5, 10) if unit * m >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return tuple(float(f"{number * step:.12g}") for number in range(first, math.floor(high / step + 1e-9) + 1))


def _decades(low: float, high: float) -> tuple[float, ...]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for within in ((1,), (1, 3), (1, 2, 5)):
        found = tuple(m * 10.0**p for p in powers for m in within if low <= m * 10.0**p <= high)
        if len(found) > 2:
            break
    return found or nice(low, high)


def apart(wanted: Sequence[float], low: float, high: float) -> list[float]:
    """Return places near the wanted ones, at least a line of text apart.

    >>> apart([10.0, 12.0, 50.0], 0.0, 100.0)
    [10.0, 25.0, 50.0]
    """
    order = np.argsort(np.asarray(wanted, float), kind="stable")
    found = [0.0] * len(order)
    at = low - _APART
    for number in order:
        at = found[number] = max(wanted[number], at + _APART)
    at = high + _APART
    for number in order[::-1]:  # pushed back from the end
        at = found[number] = min(found[number], at - _APART)
    return found


def chart(lines: Sequence[Line], x: Axis, y: Axis, words: str, points: Sequence[tuple[float, float, str]] = ()) -> str:
    """Return the SVG. `words` say what is to be seen, for those who do not see it; `points` stand alone.

    >>> line = Line("a", "0", np.array([0.0, 1.0]), np.array([0.5, 0.7]))
    >>> chart([line], Axis("step", 0, 1), Axis("accuracy", 0, 1), "accuracy over the steps")[:4]
    '<svg'
    """
    longest = max((len(_short(line.name)) for line in lines), default=0)
    across = WIDTH - _LEFT - 12 - math.ceil(_LETTER * longest)  # short names leave more room to the lines
    inner = "".join(_line(line, x, y, across) for line in lines)
    inner += "".join(_point(x, y, across, *point) for point in points)
    cut = any(not 0 <= y.place(float(line.y[0])) <= 1 for line in lines if len(line.y) and line.slot is not None)
    plot = (
        f'<svg class="plot{" cut" if cut else ""}" x="{_LEFT}" y="{_TOP}" width="{across}" height="{_DOWN}" '
        f'viewBox="0 0 {across} {_DOWN}">{inner}</svg>'
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(words)}" tabindex="0">'
        f"<title>{escape(words)}</title>{_axes(x, y, across)}{plot}{_names(lines, y, across)}</svg>"
    )


def _axes(x: Axis, y: Axis, across: int) -> str:
    bottom, right = HEIGHT - _BOTTOM, _LEFT + across
    found = [f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>']
    for mark in y.marks:
        at = _TOP + _DOWN * (1 - y.place(mark))
        found.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{right}"/>')
        found.append(f'<text x="{_LEFT - 7}" y="{at + 4:.1f}" text-anchor="end">{_number(mark)}</text>')
    for mark in x.marks:
        at = _LEFT + across * x.place(mark)
        found.append(f'<text x="{at:.1f}" y="{bottom + 17}" text-anchor="middle">{_number(mark)}</text>')
    middle = _LEFT + across / 2
    found.append(f'<text class="what" x="{middle}" y="{HEIGHT - 7}" text-anchor="middle">{escape(x.label)}</text>')
    found.append(
        f'<text class="what" x="11" y="{_TOP + _DOWN / 2}" text-anchor="middle" '
        f'transform="rotate(-90 11 {_TOP + _DOWN / 2})">{escape(y.label)}</text>'
    )
    return "".join(found)


def _line(line: Line, x: Axis, y: Axis, across: int) -> str:
    spots = [(across * x.place(float(a)), _DOWN * (1 - y.place(float(b)))) for a, b in zip(line.x, line.y)]
    fine = [spot for spot, value in zip(spots, line.y) if math.isfinite(value)]
    path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in fine) if fine else ""
    band = ""
    if line.low is not None and line.high is not None and np.any(line.high > line.low):
        edge = [(a, b) for a, b in zip(line.x, line.high)] + [(a, b) for a, b in zip(line.x[::-1], line.low[::-1])]
        around = (f"{across * x.place(float(a)):.1f} {_DOWN * (1 - y.place(float(b))):.1f}" for a, b in edge)
        band = f'<path class="band" d="M{"L".join(around)}Z"/>'
    chosen = np.unique(np.linspace(0, len(spots) - 1, min(len(spots), _MOST_POINTS)).round().astype(int))
    dots = "".join(
        f'<circle class="{"dot" if line.dots else "spot"}" cx="{spots[k][0]:.1f}" cy="{spots[k][1]:.1f}" r="3.5" '
        f'data-tip="{escape(_tip(line, k, x, y))}"/>'
        for k in chosen
        if math.isfinite(line.y[k])
    )
    curve = f'<path class="line" d="{path}"{_DASHES[line.style]}/>' if path else ""
    return f'<g class="series {_slot(line)}" data-key="{escape(line.key)}">{band}{curve}{dots}</g>'


def _point(x: Axis, y: Axis, across: int, at: float, value: float, tip: str) -> str:
    a, b = across * x.place(at), _DOWN * (1 - y.place(value))
    return (
        f'<path class="mark" d="M{a:.1f} {b - 6:.1f}L{a + 6:.1f} {b:.1f}L{a:.1f} {b + 6:.1f}L{a - 6:.1f} {b:.1f}Z" '
        f'data-tip="{escape(tip)}"/>'
    )


def _names(lines: Sequence[Line], y: Axis, across: int) -> str:
    """Write each line's name at its end; hidden ones too, because the page's script may show them."""
    wanted = [_TOP + _DOWN * (1 - y.place(float(_last(line)))) for line in lines]
    wanted = [min(HEIGHT - _BOTTOM, max(_TOP, at)) for at in wanted]
    shown = [number for number, line in enumerate(lines) if line.slot is not None]
    placed = dict(zip(shown, apart([wanted[number] for number in shown], _TOP, HEIGHT - _BOTTOM)))
    return "".join(
        f'<text class="name {_slot(line)}" data-key="{escape(line.key)}" data-at="{wanted[number]:.1f}" '
        f'x="{_LEFT + across + 8}" y="{placed.get(number, wanted[number]) + 4:.1f}">{escape(_short(line.name))}</text>'
        for number, line in enumerate(lines)
    )


def _last(line: Line) -> float:
    finite = line.y[np.isfinite(line.y)]
    return float(finite[-1]) if finite.size else 0.0


def _slot(line: Line) -> str:
    return "ink" if line.ink else "off" if line.slot is None else f"s{line.slot % SLOTS}"


def _tip(line: Line, k: int, x: Axis, y: Axis) -> str:
    band = ""
    if line.low is not None and line.high is not None and line.high[k] > line.low[k]:
        band = f" (from {_number(float(line.low[k]))} to {_number(float(line.high[k]))})"
    return f"{line.name}: {y.label} {_number(float(line.y[k]))}{band} at {x.label} {_number(float(line.x[k]))}"


def _short(name: str) -> str:
    return name if len(name) <= _LETTERS else name[: _LETTERS - 1].rstrip(" ,") + "…"


def _number(value: float) -> str:
    return f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e")
