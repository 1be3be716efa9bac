"""Descend with noise in shrinking balls (localisation): how the inner problems of `DpBilevel` are solved.

Kornowski, "Differentially private bilevel optimization", 2024: DP-Loc-GD (Algorithm 2) and DP-Loc-SGD (Algorithm 4),
whose line numbers are quoted. Example: two rounds of 20 steps, first in a ball of radius 2, then of radius 0.5.

>>> Descent(steps=20, rate=0.5, radii=(2.0, 0.5)).releases
40
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from sottovoce.methods.agent import Agent
from sottovoce.optimisers import Rate, memory, update
from sottovoce.problems import sets
from sottovoce.trees import Tree, add, zeros_like

Slope = Callable[[Tree, Agent], Tree]


@dataclass(frozen=True)
class Descent:
    """Solve by DP-Loc-(S)GD, Algorithms 2 and 4: each round takes noisy steps in a ball around its start.

    The next round starts at the average of y_0 to y_{T-1} (line 7): the last step is charged, and not averaged.

    Args:
        steps: steps per round; every one is a release with a batch of its own.
        rate: step size, a schedule of the step within the round (the paper's is ``Decay(1 / mu, 1)``), or an optimiser
            (`Momentum`, `Adam`, optax), whose memory starts anew in each round. It costs nothing.
        radii: a ball's radius for each round; one round without a ball by default.
        averaged: whether a round gives its average iterate (the paper) or its last one.

    >>> Descent(steps=20, rate=0.5, radii=(2.0, 0.5)).releases
    40
    """

    steps: int
    rate: Rate
    radii: tuple[float, ...] = (math.inf,)
    averaged: bool = True

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.radii or not min(self.radii) > 0:
            raise ValueError(
                f"a descent of {self.steps} steps in balls of radii {self.radii}: it needs at least one step, and one "
                "positive radius per round (math.inf for no ball)"
            )
        if self.averaged and self.steps == 1:
            raise ValueError(
                "a round of one step gives the average of y_0 alone, its start: take more steps, or averaged=False"
            )

    @property
    def releases(self) -> int:
        """Return the number of releases that one solve makes."""
        return self.steps * len(self.radii)

    def solve(self, slope: Slope, start: Tree, agent: Agent, name: str) -> Tree:
        """Return the point reached from `start` by descending `slope(point, agent)`."""
        for number, radius in enumerate(self.radii):  # line 3
            start = self._round(slope, start, radius, agent, f"{name} {number}")
        return start

    def _round(self, slope: Slope, start: Tree, radius: float, agent: Agent, name: str) -> Tree:
        keep = sets.ball(radius, centre=start) if math.isfinite(radius) else lambda point: point

        def turn(carry: tuple[Tree, Any, Tree, jax.Array], agent: Agent) -> tuple[Tree, Any, Tree, jax.Array]:
            point, kept, total, k = carry
            moved, kept = update(self.rate, agent.mix(point), kept, slope(point, agent), k, agent.index)
            return keep(moved), kept, add(total, point), k + 1  # line 5

        begin = (start, memory(self.rate, start), zeros_like(start), jnp.zeros((), jnp.int32))
        point, _, total, _ = agent.loop(self.steps, turn, begin, name)
        return jax.tree.map(lambda leaf: leaf / self.steps, total) if self.averaged else point  # line 7
