"""DP-SGD, for one curator and over a graph.

One curator: Abadi et al., "Deep learning with differential privacy", CCS 2016. Over a graph: each agent releases its
own clipped and noised gradient and averages with its neighbours (Lian et al., NeurIPS 2017, with local noise).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from sottovoce.methods.base import Method
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling
from sottovoce.problems import Minimize
from sottovoce.schedules import Schedule, schedule
from sottovoce.trees import Tree, combine, descend, zeros_like

if TYPE_CHECKING:
    from sottovoce.runtime.agent import Agent


class SgdState(NamedTuple):
    """Public by induction: both are functions of released gradients."""

    x: Tree
    velocity: Tree


@dataclass(frozen=True)
class DpSgd(Method):
    """Private stochastic gradient descent: ``x' = mix(x - rate * velocity)``.

    Args:
        rate: step size, a number or a schedule.
        gradient: clip and noise of the released gradient.
        sampling: how batches are drawn.
        momentum: weight of the past in the velocity (post-processing: it costs no privacy).

    >>> import sottovoce as sv
    >>> DpSgd(rate=0.1, gradient=sv.Release(1.0, 0.01), sampling=sv.Poisson(50)).gradient.name
    'gradient'
    """

    rate: Schedule | float
    gradient: Release
    sampling: Sampling
    momentum: float = 0.0

    solves: ClassVar[tuple[type, ...]] = (Minimize,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}: it must lie in [0, 1)")

    def init(self, problem: Minimize, agent: "Agent") -> SgdState:
        """Start at x0."""
        return SgdState(problem.x0, zeros_like(problem.x0))

    def step(self, problem: Minimize, state: SgdState, agent: "Agent") -> SgdState:
        """Release a gradient, descend, then average with the neighbours, which also reduces the noise."""
        batch = agent.sample(self.sampling)
        # Clip each record's gradient, average, add noise (Abadi et al., Algorithm 1), then x' = W (x - rate velocity).
        slope = agent.release(self.gradient, problem.loss, at=state.x, batch=batch, public=problem.public)
        velocity = combine(lambda v, g: self.momentum * v + g, state.velocity, slope)
        x = descend(state.x, schedule(self.rate)(agent.t, agent.index), velocity)
        return SgdState(agent.mix(problem.project_x(x)), velocity)

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return full batches, without and with momentum."""
        return {
            "full": cls(rate=0.2, gradient=Release.open(), sampling=Full()),
            "momentum": cls(rate=0.05, gradient=Release.open(), sampling=Full(), momentum=0.8),
        }
