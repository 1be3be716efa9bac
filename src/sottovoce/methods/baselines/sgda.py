"""Stochastic gradient descent ascent over a graph, with and without privacy.

Beznosikov et al., "Stochastic gradient descent-ascent: unified theory and new efficient methods", AISTATS 2023; with
noise: Yang et al., "Differentially private SGDA for minimax problems", UAI 2022. Over a graph, each agent averages with
its neighbours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from sottovoce.methods.base import Method
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling
from sottovoce.problems import MinMax
from sottovoce.schedules import Schedule, schedule
from sottovoce.trees import Tree, combine, descend, zeros_like

if TYPE_CHECKING:
    from sottovoce.runtime.agent import Agent


class SgdaState(NamedTuple):
    """Public by induction: functions of released gradients."""

    x: Tree
    y: Tree
    velocity_x: Tree
    velocity_y: Tree


@dataclass(frozen=True)
class DpSgda(Method):
    """Private gradient descent ascent: ``x' = mix(x) - rate_x * g``, ``y' = mix(y) + rate_y * h``, projected.

    Both gradients are read from one batch and charged as one mechanism.

    Args:
        rate_x: step size of x.
        rate_y: step size of y.
        sampling: how batches are drawn.
        release_x: clip and noise of the gradient in x.
        release_y: clip and noise of the gradient in y.
        momentum: weight of the past in both directions (post-processing: it costs no privacy).

    >>> from sottovoce.privacy.release import Release
    >>> from sottovoce.privacy.sampling import Poisson
    >>> DpSgda(0.1, 0.01, Poisson(20), release_x=Release(1.0, 0.1), release_y=Release(1.0, 0.1)).design_name
    'sound'
    """

    rate_x: Schedule | float
    rate_y: Schedule | float
    sampling: Sampling
    release_x: Release
    release_y: Release
    momentum: float = 0.0

    solves: ClassVar[tuple[type, ...]] = (MinMax,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}: it must lie in [0, 1)")

    def init(self, problem: MinMax, agent: "Agent") -> SgdaState:
        """Start at x0 and y0."""
        return SgdaState(problem.x0, problem.y0, zeros_like(problem.x0), zeros_like(problem.y0))

    def step(self, problem: MinMax, state: SgdaState, agent: "Agent") -> SgdaState:
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
        # velocity' = momentum velocity + gradient, then x' = project(W x - rate_x velocity'), y' = project(W y + ...).
        down = combine(lambda v, new: self.momentum * v + new, state.velocity_x, g)
        up = combine(lambda v, new: self.momentum * v + new, state.velocity_y, h)
        return SgdaState(
            problem.project_x(descend(agent.mix(x), schedule(self.rate_x)(agent.t, agent.index), down)),
            problem.project_y(descend(agent.mix(y), -schedule(self.rate_y)(agent.t, agent.index), up)),
            down,
            up,
        )

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return full batches."""
        return {
            "full": cls(0.1, 0.1, Full(), release_x=Release.open(), release_y=Release.open()),
            "momentum": cls(0.05, 0.05, Full(), release_x=Release.open(), release_y=Release.open(), momentum=0.5),
        }


@dataclass(frozen=True)
class Sgda(DpSgda):
    """Gradient descent ascent without privacy: `DpSgda` with open releases.

    >>> from sottovoce.privacy.sampling import Poisson
    >>> Sgda(0.1, 0.01, Poisson(20)).design_name
    'non-private'
    """

    release_x: Release = field(default_factory=Release.open)
    release_y: Release = field(default_factory=Release.open)
