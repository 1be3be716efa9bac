"""Exchange states and trackers over a pull and a push graph, by the equations of Chen, Wang and Zhang.

With R the pull and C the push weights, L1 is the in-Laplacian of R (rows sum to 0), L2 the out-Laplacian of C (columns
sum to 0). Example: an agent at 1 that hears a weighted sum of 6 with weights that sum to 2 moves, at rate 0.5, to
1 + 0.5 (6 - 2 * 1) = 3.

>>> toward(1.0, 0.5, 2.0, heard=6.0)
3.0
"""

from typing import Any, Literal

import jax

from sottovoce.methods.agent import Agent
from sottovoce.trees import Tree

Form = Literal["box", "compact"]


def toward(own: Tree, rate: Any, weight: Any, heard: Tree, sent: Tree | None = None) -> Tree:
    """Move toward what was heard: own + rate * (heard - weight * sent), where an agent sends its own by default.

    >>> toward(1.0, 0.5, 2.0, heard=6.0, sent=2.0)
    2.0
    """
    return jax.tree.map(lambda o, h, t: o + rate * (h - weight * t), own, heard, own if sent is None else sent)


def push(agent: Agent, beta: jax.Array, y: Tree) -> Tree:
    """Return (I - beta L2) y: what an agent sends leaves its own tracker, so the sum of all trackers is kept."""
    return toward(y, beta, agent.sent("push"), agent.mix(y, over="push"))


def pull(agent: Agent, alpha: jax.Array, x: Tree) -> Tree:
    """Return (I - alpha L1) x."""
    return toward(x, alpha, agent.heard("pull"), agent.mix(x, over="pull"))


def box(agent: Agent, alpha: Any, beta: Any, x: Tree, y: Tree, sent_x: Tree, sent_y: Tree) -> tuple[Tree, Tree]:
    """Return the averages of (4) and (6): row sums for both, and the own noise stays out of the own state."""
    heard_x, heard_y = agent.mix(sent_x, over="pull"), agent.mix(sent_y, over="push")
    return toward(x, alpha, agent.heard("pull"), heard_x), toward(y, beta, agent.heard("push"), heard_y)


def compact(agent: Agent, alpha: Any, beta: Any, x: Tree, y: Tree, sent_x: Tree, sent_y: Tree) -> tuple[Tree, Tree]:
    """Return the averages of (7) and (8): column sums for trackers, and the own noise enters."""
    heard_x, heard_y = agent.mix(sent_x, over="pull"), agent.mix(sent_y, over="push")
    return toward(x, alpha, agent.heard("pull"), heard_x, sent_x), toward(y, beta, agent.sent("push"), heard_y, sent_y)
