"""Draw a network."""

from typing import Any

import numpy as np

from sottovoce.naming import optional
from sottovoce.networks.graphs import Network

_SHOWN = 200  # more agents than this cannot be told apart: show the first ones, whose links are mostly among themselves


def draw(network: Network, ax: Any = None) -> Any:
    """Draw the agents on a circle with an edge or arrow for each link, and return the matplotlib axes.

    Arrows appear when some link is one-way. Of more than 200 agents the first 200 are drawn, and a note says so.

    >>> import matplotlib; matplotlib.use("Agg")
    >>> from sottovoce.networks.graphs import ring
    >>> draw(ring(5)).get_title()
    'ring of 5'
    """
    plt = optional("matplotlib.pyplot", "pictures", "a drawing of a network")  # slow to import
    from matplotlib.collections import LineCollection

    if ax is None:
        _, ax = plt.subplots(figsize=(5, 5))
    chosen = np.arange(min(network.size, _SHOWN))
    angle = np.pi / 2 - 2 * np.pi * np.arange(len(chosen)) / len(chosen)
    spot = np.stack([np.cos(angle), np.sin(angle)], axis=1) * (len(chosen) > 1)

    edges = network.edges
    links = [(sender, hearer) for sender, hearer in edges[(edges < len(chosen)).all(axis=1)].tolist()]
    known = set(links)
    one_way = any((hearer, sender) not in known for sender, hearer in links)
    size = float(np.clip(2200 / len(chosen), 12, 420))
    if one_way:
        for sender, hearer in links:
            ax.annotate(
                "",
                xy=spot[hearer],
                xytext=spot[sender],
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": "#8a94a6",
                    "alpha": 0.8,
                    "lw": 1.0,
                    "shrinkA": np.sqrt(size) / 2,
                    "shrinkB": np.sqrt(size) / 2,
                    "connectionstyle": "arc3,rad=0.08",
                },
            )
    else:
        lines = [(spot[a], spot[b]) for a, b in links if a < b]
        ax.add_collection(LineCollection(lines, colors="#8a94a6", linewidths=1.2, alpha=0.8, zorder=1))
    ax.scatter(*spot.T, s=size, color="#2a6f97", edgecolors="white", linewidths=1.0, zorder=2)
    if len(chosen) <= 40:
        for agent, where in zip(chosen, spot):
            ax.text(*where, str(agent), color="white", ha="center", va="center", fontsize=8, zorder=3)
    if len(chosen) < network.size:
        note = f"the first {len(chosen)} of {network.size} agents, with the links among them"
        ax.text(0, -1.22, note, ha="center", fontsize=8, color="#5c677d")
    ax.set_title(network.name, fontsize=11)
    ax.set_xlim(-1.3, 1.3)
    ax.set_ylim(-1.3, 1.3)
    ax.set_aspect("equal")
    ax.set_axis_off()
    return ax
