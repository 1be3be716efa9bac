"""Draw the pictures of a report as SVG text: usefulness against epsilon, metrics over time, parties, and the graph."""

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from sottovoce.reports import chart
from sottovoce.reports.chart import SLOTS, Axis, Line
from sottovoce.reports.comparison import ALONE, Comparison, Row, lower_is_better
from sottovoce.runtime.about import DRAWN

COLOURS = {  # six that can be read as text and told apart, also by people who see few colours
    "light": ("#0b62a0", "#b3361b", "#1f7a4d", "#8a5a00", "#7a4aa0", "#4d5a66"),
    "dark": ("#6cb6f0", "#ff9a7d", "#6fcf97", "#e3b84d", "#c9a4ee", "#aab7c4"),
}
_STYLES = {"together": "-", "alone": "--", "pooled": ":"}
_PANELS = 3
_APART = "distance between the parties"
_FEW = 6  # points of a line up to which its first one is always shown
_FLAT = 2.5  # times as wide: a range that shows the start of lines and still their course
_SAME = 1e-9  # parties that are nearer to each other agree, up to rounding
_ALONE_STYLE = """
text{font:11px system-ui,sans-serif;fill:#767676}.axis,.grid,.link{stroke:#767676;fill:none}.grid{opacity:.25}
.line{fill:none;stroke-width:2}.band{opacity:.16}.spot{fill:none}.name{font-weight:600}.off{display:none}
.ink .line{stroke:#767676}.mark{fill:#767676}.node{fill:#767676}
"""


def curves(made: Comparison) -> list[str]:
    """Draw up to three metrics over the steps, the main one first, then losses; then how far the parties are apart.

    Bands go from the lowest to the highest seed. Six rows are shown at first; the page lets others be chosen.
    """
    known = [name for name in made.metrics if not name.startswith("bytes")]
    known = [name for name in known if name != "base rate"]  # a level line
    metrics = [*known[:1], *sorted(known[1:], key=lambda name: "loss" not in name)][:_PANELS]
    together = [run for row in made.rows if _has(row, "consensus") for run in row.runs]
    if any(np.any(run.history["consensus"] > _SAME) for run in together):
        metrics.append("consensus")
    return [panel for metric in metrics if (panel := _over_time(made, metric)) is not None]


def shown_first(made: Comparison) -> list[int]:
    """Return the rows that pictures show at first: the main one and its comparisons, then others in order."""
    main = made.main

    def order(number: int) -> tuple[bool, bool, int]:
        row = made.rows[number]
        return row is not main, row.name.removesuffix(ALONE) != main.name and row.kind == "together", number

    return sorted(range(len(made.rows)), key=order)[:SLOTS]


def _over_time(made: Comparison, metric: str) -> str | None:
    slots = {number: slot for slot, number in enumerate(sorted(shown_first(made)))}
    told = [(number, row) for number, row in enumerate(made.rows) if _has(row, metric)]
    if not told:
        return None
    several = len({int(row.runs[0].history["step"][-1]) for _, row in told}) > 1
    lines = []
    for number, row in told:
        steps, values = row.runs[0].history["step"].astype(float), _values(row, metric)
        if several:  # methods with inner steps take fewer outer ones
            steps = 100 * steps / steps[-1]
        low, high = (values.min(axis=0), values.max(axis=0)) if len(values) > 1 else (None, None)
        slot, style = slots.get(number), _STYLES[row.kind]
        lines.append(Line(row.name, str(number), steps, values.mean(axis=0), low, high, slot, style))
    label = _APART if metric == "consensus" else metric
    x = Axis("per cent of the run" if several else "step", *_range(np.concatenate([line.x for line in lines])))
    words = f"{label} over the run, {len(lines)} rows; at the end " + "; ".join(
        f"{line.name} {line.y[-1]:.4g}" for line in lines
    )
    return chart.chart(lines, x, focused(label, lines), words)


def parties_first(made: Comparison) -> list[int]:
    """Return the parties that are drawn at first: six, spread from the worst to the best."""
    each = made.main.runs[0].history[f"{made.metric}/agents"]
    ranked = np.argsort(each[-1], kind="stable")
    spread = np.unique(np.linspace(0, len(ranked) - 1, min(SLOTS, len(ranked))).round().astype(int))
    return sorted(int(party) for party in ranked[spread])


def parties(made: Comparison) -> str | None:
    """Draw the main metric of each party of the main row over time; None where one line would cover all others."""
    row, metric = made.main, made.metric
    each = row.runs[0].history.get(f"{metric}/agents")
    names = row.called
    if each is None or len(names) < 2 or each.shape[0] < 2 or each.shape[1] != len(names) or agree(each):
        return None
    slots = {party: slot for slot, party in enumerate(parties_first(made))}
    steps = row.runs[0].history["step"].astype(float)
    lines = [
        Line(name, str(number), steps, each[:, number], slot=slots.get(number)) for number, name in enumerate(names)
    ]
    words = f"{metric} of each of {len(lines)} parties over the run of {row.name}: at the end from "
    words += f"{each[-1].min():.4g} to {each[-1].max():.4g}"
    return chart.chart(lines, Axis("step", *_range(steps)), focused(str(metric), lines), words)


def agree(each: np.ndarray) -> bool:
    """Say whether all parties (columns) have the same figures at all times, up to rounding.

    >>> agree(np.array([[0.5, 0.5], [0.8, 0.8]])), agree(np.array([[0.5, 0.5], [0.8, 0.7]]))
    (True, False)
    """
    return bool(np.allclose(each, each[:, :1], atol=1e-6, equal_nan=True))


def tradeoff(made: Comparison) -> str | None:
    """Draw the main metric against epsilon, one line per family; None unless private rows have three epsilons."""
    metric = made.metric
    rows = [row for row in made.rows if metric in row.metrics]
    private = [row for row in rows if row.privacy.private]
    if metric is None or len({round(row.privacy.epsilon, 6) for row in private if row.kind == "together"}) < 3:
        return None
    lines = []
    for slot, family in enumerate(list(dict.fromkeys(row.family for row in private))[:SLOTS]):
        members = [row for row in private if row.family == family]
        epsilon, mean, deviation = np.array(sorted((row.privacy.epsilon, *row.final(metric)) for row in members)).T
        band = np.nan_to_num(deviation)
        style = _STYLES[members[0].kind]
        name = family or "together"
        lines.append(Line(name, name, epsilon, mean, mean - band, mean + band, slot, style, dots=True))
    ticks = sorted({float(f"{row.privacy.epsilon:.2g}") for row in private})
    paper = [(entry.epsilon, entry.value, f"printed: {entry.what} {entry.value:g}, {entry.source}") for entry in
             made.printed if entry.epsilon]  # fmt: skip
    every = [line.x for line in lines] + [np.array([epsilon for epsilon, _, _ in paper])]
    least, most = _range(np.concatenate(every))
    low, high = least / 1.15, most * 1.15
    edge = np.array([low, high])
    for row in [row for row in rows if not row.privacy.private][:3]:
        level = np.full(2, row.final(metric)[0])
        lines.append(Line(row.name, row.name, edge, level, style=":", ink=True))
    y = focused(metric, lines, [value for _, value, _ in paper], first=0)
    words = f"{metric} against epsilon: " + "; ".join(
        f"{line.name} " + ", ".join(f"{b:.4g} at {a:.2g}" for a, b in zip(line.x, line.y)) for line in lines
    )
    return chart.chart(lines, Axis("epsilon per party", low, high, log=True, ticks=tuple(ticks)), y, words, paper)


def graph(names: Sequence[str], links: Sequence[tuple[int, int]], title: str) -> str:
    """Draw who sends to whom: parties on a circle, with their names; arrows where a link is one-way.

    >>> graph(["north", "south"], [(0, 1), (1, 0)], "ring of 2")[:4]
    '<svg'
    """
    count = min(len(names), DRAWN)
    angle = 2 * np.pi * np.arange(count) / count - np.pi / 2
    spots = np.stack([190 + 105 * np.cos(angle), 150 + 105 * np.sin(angle)], axis=1)
    known = {(a, b) for a, b in links if a < count and b < count}
    one_way = any((b, a) not in known for a, b in known)
    head = (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="14" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path class="node" d="M0 0L8 4L0 8Z"/></marker></defs>'
    )
    drawn = [
        f'<path class="link" d="M{spots[a][0]:.1f} {spots[a][1]:.1f}L{spots[b][0]:.1f} {spots[b][1]:.1f}"'
        + (' marker-end="url(#arrow)"/>' if one_way else "/>")
        for a, b in sorted(known)
        if one_way or a < b
    ]
    for number in range(count):
        a, b = spots[number]
        hears = sorted(names[sender] for sender, hearer in known if hearer == number)
        tip = f"{names[number]} hears {', '.join(hears) or 'nobody'}"
        drawn.append(f'<circle class="node" cx="{a:.1f}" cy="{b:.1f}" r="6" data-tip="{escape(tip)}"/>')
        if count <= 30:
            side = "middle" if abs(math.cos(angle[number])) < 0.2 else "start" if math.cos(angle[number]) > 0 else "end"
            x, y = 190 + 119 * math.cos(angle[number]), 154 + 121 * math.sin(angle[number])
            drawn.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{side}">{escape(names[number][:14])}</text>')
    if count < len(names):
        drawn.append(f'<text x="190" y="296" text-anchor="middle">the first {count} of {len(names)} parties</text>')
    words = f"{title}: {len(names)} parties, {len(known)} links from a sender to a hearer"
    return (
        f'<svg viewBox="0 0 380 300" role="img" aria-label="{escape(words)}" tabindex="0"><title>{escape(words)}'
        f"</title>{head if one_way else ''}{''.join(drawn)}</svg>"
    )


def by_itself(panels: Sequence[str]) -> str:
    """Return panels side by side as one SVG file, with colours of its own that suit light and dark pages.

    >>> by_itself([graph(["a", "b"], [(0, 1), (1, 0)], "two")]).startswith("<svg xmlns=")
    True
    """
    slots = "".join(
        f".s{slot} .line,.s{slot} .dot{{stroke:{colour}}}.s{slot} .band,.s{slot} .dot,.name.s{slot}{{fill:{colour}}}"
        for slot, colour in enumerate(COLOURS["light"])
    )
    placed = "".join(
        panel.replace("<svg ", f'<svg x="{number * (chart.WIDTH + 20)}" width="{chart.WIDTH}" ', 1)
        for number, panel in enumerate(panels)
    )
    width, height = len(panels) * (chart.WIDTH + 20) - 20, max(chart.HEIGHT, 300)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f"<style>{_ALONE_STYLE}{slots}</style>{placed}</svg>\n"
    )


def _has(row: Row, metric: str) -> bool:
    return metric in row.runs[0].history and (metric != "consensus" or row.kind == "together")


def _values(row: Row, metric: str) -> np.ndarray:
    if metric == "consensus":
        return np.stack([run.history[metric] for run in row.runs])
    return row.values(metric)


def _range(values: np.ndarray) -> tuple[float, float]:
    return float(values.min()), float(values.max())


def focused(label: str, lines: Sequence[Line], more: Sequence[float] = (), first: int = 1) -> Axis:
    """Return an axis that leaves out what is before `first` if that would flatten the rest; logarithmic if wide.

    Lines of a few points are shown whole.

    >>> line = Line("a", "0", np.arange(9.0), np.array([9.0, *[1.0] * 7, 2.0]))
    >>> axis = focused("accuracy", [line])
    >>> round(axis.low, 2), round(axis.high, 2)
    (0.92, 2.08)
    """
    sides = [side for line in lines for side in (line.y, line.low, line.high) if side is not None]

    def known(start: int) -> np.ndarray:
        kept = [side[start:] if len(side) > _FEW else side for side in sides]
        values = np.concatenate([*kept, np.asarray(more, float)])
        values = values[np.isfinite(values)]
        return values[values > 0] if label == _APART else values  # all start at 0, far below everything else

    if not known(first).size:
        return Axis(label, 0.0, 1.0)
    low, high = _range(known(first))
    least, most = _range(known(0))
    if most - least <= _FLAT * (high - low):
        low, high = least, most
    if low > 0 and high > 30 * low and (lower_is_better(label) or label == _APART):
        return Axis(label, low / 1.3, high * 1.3, log=True)
    margin = 0.08 * (high - low) or 0.1 * max(abs(high), 1e-9)
    return Axis(label, low - margin, high + margin)
