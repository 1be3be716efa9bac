"""Run DP-SGD, for one curator and over a graph.

One curator: Abadi et al., "Deep learning with differential privacy", CCS 2016. Over a graph: each agent releases its
own clipped and noised gradient and averages with its neighbours (Lian et al., NeurIPS 2017, with local noise).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import optax

from sottovoce.methods.agent import Agent
from sottovoce.methods.base import Method
from sottovoce.optimisers import Adam, Momentum, Rate, memory, update
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling
from sottovoce.problems import Minimize
from sottovoce.schedules import Linear
from sottovoce.trees import Tree


class SgdState(NamedTuple):
    """Hold the state: public by induction, because it is a function of released gradients."""

    x: Tree
    memory: Any  # of the optimiser; empty for a plain step size


@dataclass(frozen=True)
class DpSgd(Method):
    """Run private stochastic gradient descent: ``x' = mix(x - rate * gradient)``.

    Args:
        rate: step size, a number or a schedule, or an optimiser (`Momentum`, `Adam`, optax), which works on released
            gradients and costs nothing.
        gradient: clip and noise of the released gradient.
        sampling: how batches are drawn.

    >>> import sottovoce as sv
    >>> DpSgd(rate=0.1, gradient=sv.Release(1.0, 0.01), sampling=sv.Poisson(50)).gradient.name
    'gradient'
    """

    rate: Rate
    gradient: Release
    sampling: Sampling

    solves: ClassVar[tuple[type, ...]] = (Minimize,)

    def init(self, problem: Minimize, agent: Agent) -> SgdState:
        """Start at x0."""
        return SgdState(problem.x0, memory(self.rate, problem.x0))

    def step(self, problem: Minimize, state: SgdState, agent: Agent) -> SgdState:
        """Release a gradient, descend, then average with the neighbours, which also averages out noise."""
        # Clip each record's gradient, average, add noise (Abadi et al., Algorithm 1), then x' = W (x - rate gradient).
        batch = agent.sample(self.sampling)
        slope = agent.release(self.gradient, problem.loss, at=state.x, batch=batch, public=problem.public)
        x, kept = update(self.rate, state.x, state.memory, slope, agent.t, agent.index)
        return SgdState(agent.mix(problem.project_x(x)), kept)

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return full batches with a step size, momentum, Adam and an optax chain."""
        rates: dict[str, Rate] = {
            "full": 0.2,
            "momentum": Momentum(0.05, 0.8),
            "adam": Adam(Linear(0.05, 0.0, 500)),
            "optax": optax.sgd(0.1, momentum=0.5, nesterov=True),
        }
        return {name: cls(rate, Release.open(), Full()) for name, rate in rates.items()}
