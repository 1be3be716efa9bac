"""Run stochastic gradient descent ascent over a graph, with and without privacy.

Beznosikov et al., "Stochastic gradient descent-ascent: unified theory and new efficient methods", AISTATS 2023; with
noise: Yang et al., "Differentially private SGDA for minimax problems", UAI 2022. Over a graph, each agent averages with
its neighbours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from sottovoce.methods.agent import Agent
from sottovoce.methods.base import Method
from sottovoce.optimisers import Momentum, Rate, memory, update
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling
from sottovoce.problems import MinMax
from sottovoce.trees import Tree


class SgdaState(NamedTuple):
    """Hold the state: public by induction, because it is a function of released gradients."""

    x: Tree
    y: Tree
    memory: tuple[Any, Any]  # of the optimisers; empty for plain step sizes


@dataclass(frozen=True)
class DpSgda(Method):
    """Run private descent ascent: ``x' = mix(x) - rate_x * g``, ``y' = mix(y) + rate_y * h``, projected.

    Both gradients are read from one batch and charged as one mechanism.

    Args:
        rate_x: step size of x, a number or a schedule, or an optimiser (`Momentum`, `Adam`, optax), which works on
            released gradients and costs nothing.
        rate_y: the same for y, which takes ascent steps.
        sampling: how batches are drawn.
        release_x: clip and noise of the gradient in x.
        release_y: clip and noise of the gradient in y.

    >>> from sottovoce.privacy.release import Release
    >>> from sottovoce.privacy.sampling import Poisson
    >>> DpSgda(0.1, 0.01, Poisson(20), release_x=Release(1.0, 0.1), release_y=Release(1.0, 0.1)).design_name
    'sound'
    """

    rate_x: Rate
    rate_y: Rate
    sampling: Sampling
    release_x: Release
    release_y: Release

    solves: ClassVar[tuple[type, ...]] = (MinMax,)

    def init(self, problem: MinMax, agent: Agent) -> SgdaState:
        """Start at x0 and y0."""
        return SgdaState(problem.x0, problem.y0, (memory(self.rate_x, problem.x0), memory(self.rate_y, problem.y0)))

    def step(self, problem: MinMax, state: SgdaState, agent: Agent) -> SgdaState:
        """Release both gradients, average with the neighbours, go down in x and up in y."""
        x, y, batch = state.x, state.y, agent.sample(self.sampling)
        # g = grad_x F(x, y; batch) + noise, h = grad_y F(x, y; batch) + noise.
        g = agent.release(
            self.release_x,
            lambda x, r: problem.loss(x, y, r),
            at=x,
            batch=batch,
            public=lambda x: problem.public(x, y),
        )
        h = agent.release(
            self.release_y,
            lambda y, r: problem.loss(x, y, r),
            at=y,
            batch=batch,
            public=lambda y: problem.public(x, y),
        )
        # x' = project(W x - rate_x g), y' = project(W y + rate_y h).
        up = jax.tree.map(jnp.negative, h)
        x, kept_x = update(self.rate_x, agent.mix(x), state.memory[0], g, agent.t, agent.index)
        y, kept_y = update(self.rate_y, agent.mix(y), state.memory[1], up, agent.t, agent.index)
        return SgdaState(problem.project_x(x), problem.project_y(y), (kept_x, kept_y))

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return full batches with step sizes, momentum and an optax transformation.

        Adam is left out: it does not settle at a saddle that the two variables circle around.
        """
        rates: dict[str, Rate] = {"full": 0.1, "momentum": Momentum(0.05, 0.5), "optax": optax.sgd(0.05, momentum=0.3)}
        free = Release.open()
        return {name: cls(rate, rate, Full(), release_x=free, release_y=free) for name, rate in rates.items()}


@dataclass(frozen=True)
class Sgda(DpSgda):
    """Run gradient descent ascent without privacy: `DpSgda` with open releases.

    >>> from sottovoce.privacy.sampling import Poisson
    >>> Sgda(0.1, 0.01, Poisson(20)).design_name
    'non-private'
    """

    release_x: Release = field(default_factory=Release.open)
    release_y: Release = field(default_factory=Release.open)
