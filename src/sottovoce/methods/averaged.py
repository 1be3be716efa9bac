"""Average iterates: output the average of another method's iterates, or a random one of them.

Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", SIAM Journal on Control and Optimization
30(4), 1992. Averaging works on what the method has released, so it is post-processing and costs no privacy. (In a
printed design the iterates are private, and so is their average: the trace follows that.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.methods.agent import Agent
from sottovoce.methods.base import Method, Setting, State
from sottovoce.methods.dp_sgd import DpSgd
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full
from sottovoce.problems import Bilevel, Minimize, MinMax
from sottovoce.trees import Tree


class AveragedState(NamedTuple):
    """Hold the averages `x` and `y` that would be output now, and the method's own state, `inside`."""

    x: Tree
    y: Tree
    inside: State


@dataclass(frozen=True)
class Averaged(Method):
    """Run any other method, and output the average of its iterates.

    Args:
        of: the method whose iterates are averaged.
        weight: of the past in an exponential moving average, in (0, 1); None gives all iterates equal weight.
        drawn: a public seed. The output is then no average, but one iterate: that of a step drawn uniformly with this
            seed, the same for all agents, as Algorithm 1 of DPMixSGD outputs it.

    >>> import sottovoce as sv
    >>> inside = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(1.0, 0.01), sampling=sv.Poisson(50))
    >>> clinics = sv.Population([1000])
    >>> averaged = Averaged(inside, weight=0.9)
    >>> sv.account(averaged, clinics, steps=9).epsilon == sv.account(inside, clinics, steps=9).epsilon
    True
    """

    of: Method
    weight: float | None = None
    drawn: int | None = None

    solves: ClassVar[tuple[type, ...]] = (Minimize, MinMax, Bilevel)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.of, Method):
            raise TypeError(f"of is of type {type(self.of).__name__}: give the method whose output is averaged")
        if self.weight is not None and not 0 < self.weight < 1:
            raise ValueError(f"weight is {self.weight}: it must lie in (0, 1), or be None for a plain average")
        if self.weight is not None and self.drawn is not None:
            raise ValueError("give weight or drawn: the output is an average, or one iterate")
        if not set(self.of.solves) <= {Minimize, MinMax, Bilevel}:
            raise TypeError(f"{type(self.of).__name__} is for parties with columns: its blocks are not averaged")
        object.__setattr__(self, "solves", self.of.solves)
        object.__setattr__(self, "over", self.of.over)

    def init(self, problem: Any, agent: Agent) -> AveragedState:
        """Start at the method's own start."""
        inside = self.of.init(problem, agent)
        return AveragedState(inside.x, getattr(inside, "y", ()), inside)

    def step(self, problem: Any, state: AveragedState, agent: Agent) -> AveragedState:
        """Take the method's step, and mix its iterate into the average."""
        inside = self.of.step(problem, state.inside, agent)
        past = self._past(agent)

        def mean(before: jax.Array, now: jax.Array) -> jax.Array:
            return past * before + (1 - past) * now

        x = jax.tree.map(mean, state.x, inside.x)
        return AveragedState(x, jax.tree.map(mean, state.y, getattr(inside, "y", ())), inside)

    def _past(self, agent: Agent) -> jax.Array:
        """Return the weight of what would be output before this step."""
        if self.drawn is not None:
            return jnp.where(agent.t == np.random.default_rng(self.drawn).integers(agent.steps), 0.0, 1.0)
        plain = agent.t / (agent.t + 1.0)
        return plain if self.weight is None else jnp.minimum(self.weight, plain)

    @property
    def design_name(self) -> str:
        """Return the design of the method inside."""
        return self.of.design_name

    def published(self, setting: Setting) -> float | None:
        """Return what the paper of the method inside prints."""
        return self.of.published(setting)

    def proved(self, setting: Setting, agent: int) -> float | None:
        """Return what is proved for the messages of the method inside."""
        return self.of.message_bound(setting, agent)

    def caveats(self, setting: Setting) -> Sequence[str]:
        """Return the caveats of the method inside."""
        return self.of.caveats(setting)

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return plain and exponential averages of gradient descent."""
        inside = DpSgd(rate=0.2, gradient=Release.open(), sampling=Full())
        return {"exponential": cls(inside, weight=0.9)}
