"""Tune by a grid of DP-SGD runs, without bilevel optimisation: every trial and the selection are charged.

Each candidate is trained by DP-SGD (Abadi et al., CCS 2016) on the lower level; the validation loss of all of them is
released with noise, and the smallest wins (the Gaussian form of report-noisy-max).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from sottovoce.methods.agent import Agent
from sottovoce.methods.base import Method
from sottovoce.methods.bilevel import toward_y
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling
from sottovoce.problems import Bilevel
from sottovoce.trees import Tree, descend


class GridState(NamedTuple):
    """Hold `x` and `y` of the candidate that leads, all `models`, and the running averages of their `losses`."""

    x: Tree
    y: Tree
    models: tuple[Tree, ...]
    losses: jax.Array


@dataclass(frozen=True)
class DpGrid(Method):
    """Train with several settings of x and of the step size at once; noisy validation losses choose among them.

    All candidates learn from the same batches, so that a step of training is one mechanism with as many releases as
    there are candidates. The losses of a step are one release of a vector, clipped as a whole: with levels it is
    charged to the validation records alone. A grid of one candidate is DP-SGD with one guess: nothing is selected.

    Guarantee: epsilon holds against everybody who sees all candidates, their messages and their losses, at every step,
    because all of these are releases and are composed. `sv.select` has another guarantee: only the best trial is seen,
    so it fits one curator, not parties who see each other's messages. What each candidate's training may spend of
    epsilon 1 at delta 1e-5, as mu of Gaussian differential privacy: a grid of 2 leaves more than `select` (with twice
    as many trials as candidates on average), larger ones leave less.

    >>> from sottovoce.privacy.gdp import gdp_mu
    >>> from sottovoce.privacy.selection import PoissonTrials, mu_for
    >>> for n in (2, 4, 10):
    ...     print(n, f"grid {gdp_mu(1.0, 1e-5) / n ** 0.5:.3f}, select {mu_for(1.0, PoissonTrials(2 * n), 1e-5):.3f}")
    2 grid 0.190, select 0.183
    4 grid 0.134, select 0.148
    10 grid 0.085, select 0.099

    Args:
        grid: pairs (value of every coordinate of x, step size).
        gradient: clip and noise of a candidate's gradient.
        sampling: how batches are drawn.
        validation: clip and noise of the vector of losses; not needed for one candidate.
        memory: weight of the past in the running average of the losses (post-processing: it costs no privacy).

    >>> import sottovoce as sv
    >>> method = DpGrid(((0.0, 0.5), (2.0, 0.5)), Release(1.0, 0.1), sv.Full(), Release(2.0, 0.1))
    >>> for event in sv.account(method, sv.Population([sv.data.Levels(100, 900)]), steps=10).events: print(event)
    gradient: ... 10 times
    gradient: ... 10 times
    validation: ... 10 times
    """

    grid: tuple[tuple[float, float], ...]
    gradient: Release
    sampling: Sampling
    validation: Release | None = None
    memory: float = 0.9

    solves: ClassVar[tuple[type, ...]] = (Bilevel,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.grid or (len(self.grid) > 1) != (self.validation is not None):
            raise ValueError(
                f"a grid of {len(self.grid)} candidates with validation={self.validation}: several candidates need a "
                "release for their validation losses, a single one must not have it"
            )
        if not 0 <= self.memory < 1:
            raise ValueError(f"memory is {self.memory}: it must lie in [0, 1)")

    def init(self, problem: Bilevel, agent: Agent) -> GridState:
        """Start every candidate at y0."""
        models = (problem.y0,) * len(self.grid)
        return GridState(self._x(problem, 0), problem.y0, models, jnp.zeros(len(self.grid)))

    def step(self, problem: Bilevel, state: GridState, agent: Agent) -> GridState:
        """Train every candidate on one batch, then choose the one with the smallest validation loss."""
        batch = agent.sample(self.sampling)
        models = []
        for number, ((_, rate), y) in enumerate(zip(self.grid, state.models)):
            # One step of DP-SGD on the lower level: y' = W y - rate (clipped mean of grad_y g + noise).
            slope = toward_y(agent.release, self.gradient, problem, self._x(problem, number), y, batch)
            models.append(descend(agent.mix(y), rate, slope))
        if self.validation is None:
            return GridState(state.x, models[0], (models[0],), state.losses)

        # Report-noisy-max: all losses in one release, then the smallest running average.
        def all_losses(weights: jax.Array, record: Any) -> jax.Array:
            losses = [problem.upper(self._x(problem, number), y, record) for number, y in enumerate(models)]
            return weights @ jnp.stack(losses)

        at = jnp.zeros(len(models))  # the gradient in the weights is the vector of losses
        seen = agent.release(self.validation, upper=all_losses, at=at, batch=agent.sample(self.sampling, "validation"))
        losses = agent.mix(self.memory * state.losses + (1 - self.memory) * seen)
        best = jnp.argmin(losses)
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *models)
        xs = jax.tree.map(
            lambda *leaves: jnp.stack(leaves), *(self._x(problem, number) for number in range(len(models)))
        )
        x, y = jax.tree.map(lambda leaf: leaf[best], (xs, stacked))
        return GridState(x, y, tuple(models), losses)

    def _x(self, problem: Bilevel, number: int) -> Tree:
        value = self.grid[number][0]
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, value), problem.x0)

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return a grid of two candidates; it reaches an optimum that is one of them."""
        free = Release.open()
        return {"two": cls(((-0.5, 0.2), (0.5, 0.2)), free, Full(), free)}
