"""Draw the pictures of a report as SVG text in the page's own text colour, so that they suit light and dark pages."""

import io
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from sottovoce.networks import Network, draw
from sottovoce.reports.comparison import ALONE, Comparison, Row, lower_is_better

_INK = "#010203"  # placeholder for the page's own text colour
_COLOURS = (
    "#2a6f97",
    "#d1495b",
    "#66a182",
    "#edae49",
    "#8d6a9f",
    "#a0623f",
    "#c77dba",
    "#7f8c8d",
    "#1b998b",
    "#b5651d",
    "#5f6caf",
    "#9aa33b",
)
_STYLES = {"together": "-", "alone": "--", "pooled": ":"}
_MOST = 12  # curves in one picture
_PANELS = 3


def curves(comparison: Comparison) -> str | None:
    """Draw up to three metrics over the steps, the main one first, then losses.

    Bands go from the lowest to the highest seed.
    """
    rows = comparison.rows[:_MOST]
    known = [name for name in comparison.metrics if any(name in row.metrics for row in rows)]
    if not known:
        return None
    metrics = [known[0], *sorted(known[1:], key=lambda name: "loss" not in name)][:_PANELS]
    lengths = {int(row.runs[0].history["step"][-1]) for row in rows}
    bases = list(dict.fromkeys(_base(row) for row in rows if row.kind != "pooled"))

    def paint(figure: Any) -> None:
        panels = figure.subplots(1, len(metrics), squeeze=False)[0]
        for ax, metric in zip(panels, metrics):
            told = [row for row in rows if metric in row.metrics]
            for row in told:
                steps, values = row.runs[0].history["step"], row.values(metric)
                if len(lengths) > 1:  # methods with inner steps take fewer outer ones
                    steps = 100 * steps / steps[-1]
                colour = _INK if row.kind == "pooled" else _COLOURS[bases.index(_base(row)) % len(_COLOURS)]
                ax.plot(steps, values.mean(axis=0), _STYLES[row.kind], color=colour, label=row.name, lw=1.6)
                if len(values) > 1:
                    ax.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, lw=0)
            _focus(ax, told, metric)
            ax.set_xlabel("per cent of the run" if len(lengths) > 1 else "step")
            ax.set_ylabel(metric)
        lines, names = panels[0].get_legend_handles_labels()
        figure.legend(lines, names, fontsize=8, frameon=False, loc="outside lower center", ncols=3)

    return _svg(paint, (3.6 + 2.4 * len(metrics), 3.2 + 0.18 * math.ceil(len(rows) / 3)))


def tradeoff(comparison: Comparison) -> str | None:
    """Draw the main metric against epsilon, one line per family; None unless private rows have three epsilons."""
    metric = comparison.metric
    rows = [row for row in comparison.rows if metric in row.metrics]
    private = [row for row in rows if row.privacy.private]
    if metric is None or len({round(row.privacy.epsilon, 6) for row in private if row.kind == "together"}) < 3:
        return None
    families = list(dict.fromkeys(row.family for row in private))

    def paint(figure: Any) -> None:
        ax = figure.subplots()
        for number, family in enumerate(families):
            members = [row for row in private if row.family == family]
            epsilon, mean, deviation = np.array(sorted((row.privacy.epsilon, *row.final(metric)) for row in members)).T
            style, colour = _STYLES[members[0].kind], _COLOURS[number % len(_COLOURS)]
            ax.plot(epsilon, mean, "o" + style, color=colour, label=family or "together", lw=1.6, ms=4)
            band = np.nan_to_num(deviation)
            ax.fill_between(epsilon, mean - band, mean + band, color=colour, alpha=0.15, lw=0)
        for row, style in zip([row for row in rows if not row.privacy.private], (":", "-.", "--")):
            ax.axhline(row.final(metric)[0], ls=style, color=_INK, lw=1.2, label=row.name)
        paper = [(entry.epsilon, entry.value) for entry in comparison.printed if entry.epsilon]
        if paper:
            ax.scatter(*zip(*paper), marker="D", s=18, color=_COLOURS[3], label="printed in the paper", zorder=3)
        ticks = sorted({float(f"{row.privacy.epsilon:.2g}") for row in private})
        ax.set_xscale("log")
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
        ax.set_xlabel("epsilon per party")
        ax.set_ylabel(metric)
        ax.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))

    return _svg(paint, (8.4, 3.2))


def network_picture(network: Network) -> str:
    """Draw who sends to whom.

    >>> from sottovoce.networks import ring
    >>> network_picture(ring(3))[:4]
    '<svg'
    """
    return _svg(lambda figure: draw(network, figure.subplots()), (3.4, 3.4))


def by_itself(svg: str) -> str:
    """Prepare a picture for its own file: no page gives it a colour, so its ink is a grey for light and dark pages.

    >>> by_itself('<svg width="10"></svg>')
    '<svg color="#808080" width="10"></svg>'
    """
    return svg.replace("<svg", '<svg color="#808080"', 1)


def _base(row: Row) -> str:
    """Return the variant that a row belongs to: its comparisons share its colour."""
    return row.name.removesuffix(ALONE)


def _focus(ax: Any, rows: list[Row], metric: str) -> None:
    """Leave the first steps out of the frame when they would flatten the rest."""
    later = np.concatenate([row.values(metric)[:, 1:].ravel() for row in rows])
    later = later[np.isfinite(later)]
    if later.size and lower_is_better(metric) and later.min() > 0 and later.max() > 30 * later.min():
        ax.set_yscale("log")
    elif later.size and math.isfinite(np.ptp(later)) and np.ptp(later) > 0:
        margin = 0.08 * np.ptp(later)
        ax.set_ylim(later.min() - margin, later.max() + margin)


def _svg(paint: Callable[[Any], Any], size: tuple[float, float]) -> str:
    from matplotlib import rc_context  # slow to import, and only pictures need it
    from matplotlib.figure import Figure

    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    style: Any = {
        **dict.fromkeys(inked, _INK),
        **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
        "svg.hashsalt": "sottovoce",  # the same figures give the same bytes
        "svg.fonttype": "none",
    }
    with rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', "", text[text.index("<svg") :], count=1)
    return text.replace(_INK, "currentColor")
