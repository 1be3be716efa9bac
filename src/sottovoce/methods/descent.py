"""Localised noisy gradient descent: how the inner problems of `DpBilevel` are solved.

Kornowski, "Differentially private bilevel optimization", 2024: DP-Loc-GD (Algorithm 2) and DP-Loc-SGD (Algorithm 4),
whose line numbers are quoted. Example: two rounds of 20 steps, first in a ball of radius 2, then of radius 0.5.

>>> Descent(steps=20, rate=0.5, radii=(2.0, 0.5)).releases
40
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from sottovoce.problems import sets
from sottovoce.schedules import Schedule, schedule
from sottovoce.trees import Tree, add, combine, descend, zeros_like

if TYPE_CHECKING:
    from sottovoce.runtime.agent import Agent

Slope = Callable[[Tree, "Agent"], Tree]


@dataclass(frozen=True)
class Descent:
    """DP-Loc-(S)GD, Algorithms 2 and 4: each round takes noisy steps in a ball around its start.

    The next round starts at the average of these steps. The average is over y_1 to y_T; the text prints y_0 to y_{T-1}.

    Args:
        steps: steps per round; every one is a release with a batch of its own.
        rate: step size, a schedule of the step within the round (the paper's is ``Decay(1 / mu, 1)``).
        radii: a ball's radius for each round; one round without a ball by default.
        averaged: whether a round gives its average iterate (the paper) or its last one.
        momentum: weight of a round's past steps in the next one (post-processing: it costs no privacy).

    >>> Descent(steps=20, rate=0.5, radii=(2.0, 0.5)).releases
    40
    """

    steps: int
    rate: Schedule | float
    radii: tuple[float, ...] = (math.inf,)
    averaged: bool = True
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}: it must lie in [0, 1)")
        if self.steps < 1 or not self.radii or not min(self.radii) > 0:
            raise ValueError(
                f"a descent of {self.steps} steps in balls of radii {self.radii}: it needs at least one step, and one "
                "positive radius per round (math.inf for no ball)"
            )

    @property
    def releases(self) -> int:
        """The number of releases that one solve makes."""
        return self.steps * len(self.radii)

    def solve(self, slope: Slope, start: Tree, agent: "Agent", name: str) -> Tree:
        """Return the point reached from `start` by descending `slope(point, agent)`."""
        for number, radius in enumerate(self.radii):  # line 3
            start = self._round(slope, start, radius, agent, f"{name} {number}")
        return start

    def _round(self, slope: Slope, start: Tree, radius: float, agent: "Agent", name: str) -> Tree:
        keep = sets.ball(radius, centre=start) if math.isfinite(radius) else lambda point: point

        def turn(carry: tuple[Tree, Tree, Tree, jax.Array], agent: "Agent") -> tuple[Tree, Tree, Tree, jax.Array]:
            point, velocity, total, k = carry
            velocity = combine(lambda v, g: self.momentum * v + g, velocity, slope(point, agent))
            point = keep(descend(agent.mix(point), schedule(self.rate)(k, agent.index), velocity))  # line 5
            return point, velocity, add(total, point), k + 1

        rest = zeros_like(start)
        point, _, total, _ = agent.loop(self.steps, turn, (start, rest, rest, jnp.zeros((), jnp.int32)), name)
        return combine(lambda leaf: leaf / self.steps, total) if self.averaged else point  # line 7
