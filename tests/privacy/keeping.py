"""A method that keeps what it releases, so that tests can look at it."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import sottovoce as sv


class Kept(NamedTuple):
    x: Any
    gradient: Any


@dataclass(frozen=True)
class Keeping(sv.methods.Method):
    """Releases a gradient at x0 in each step, and keeps it."""

    gradient: sv.Release
    sampling: Any

    def init(self, problem, agent):
        return Kept(problem.x0, problem.x0)

    def step(self, problem, state, agent):
        batch = agent.sample(self.sampling)
        return Kept(state.x, agent.release(self.gradient, problem.loss, at=state.x, batch=batch))
