"""Predict the noisy base rate: one release of how the labels are shared out, and no slopes.

Example: of 150 patients with 40 numbers each, at epsilon 0.1, noise leaves nothing of a slope. That 20 % of them died
can still be learned, and a model that says 20 % of everybody has a lower loss than one with slopes of noise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from sottovoce.methods.agent import Agent
from sottovoce.methods.base import Method
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full
from sottovoce.problems import Minimize
from sottovoce.trees import Tree


class BaseRateState(NamedTuple):
    """Hold the state: public, because it is a function of releases."""

    x: Tree
    slope: Tree  # the average of what was released


@dataclass(frozen=True)
class BaseRate(Method):
    """Fit the intercept alone: the constant scores that the loss's mean slope at zero scores asks for.

    The slope of a record's loss in its scores is largest at `LinearModel.residual` where the scores are zero, so this
    clip cuts nothing. All agents average what is released, in proportion to their records. A share of a class is kept
    above the size of the noise: no class is called impossible because of noise. For a problem without a `LinearModel`
    the step is one of gradient descent in all of x.

    Args:
        slope: clip and noise of the mean slope.
        mixing: how many times neighbours average it.

    >>> import numpy as np, sottovoce as sv
    >>> from sottovoce.problems.tasks import Shape, get
    >>> problem = get("logistic")(Shape((2,), classes=2, agents=1)).problem
    >>> rows = {"features": np.ones((400, 2), np.float32), "label": (np.arange(400) < 100).astype(np.int32)}
    >>> method = BaseRate(sv.Release(0.5, 0.01))
    >>> found = sv.run(problem, [rows], method, steps=1, seed=0, performance=sv.Performance(progress=False))
    >>> 0.2 < float(problem.predict(found.x, np.zeros((1, 2)))[0]) < 0.3
    True
    """

    slope: Release
    mixing: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mixing < 1:
            raise ValueError(f"mixing is {self.mixing}: give at least one round of mixing")

    def init(self, problem: Minimize, agent: Agent) -> BaseRateState:
        """Start where x starts."""
        start = problem.x0 if problem.linear is None else problem.x0["bias"]
        return BaseRateState(problem.x0, jax.tree.map(jnp.zeros_like, start))

    def step(self, problem: Minimize, state: BaseRateState, agent: Agent) -> BaseRateState:
        """Release the mean slope once more, and move the intercept to where the average of all releases is zero."""
        known, batch = problem.linear, agent.sample(Full())
        if known is None:
            here = agent.release(self.slope, problem.loss, at=problem.x0, batch=batch, public=problem.public)
        else:
            zero = jnp.zeros_like(problem.x0["bias"])
            here = agent.release(self.slope, known.loss, at=zero, batch=batch)
        size = jnp.asarray(agent.size(), jnp.float32)
        # Noise fits each party's size: that of the average has this deviation.
        noise = (size * self.slope.scale(agent.t, agent.index)) ** 2
        total, squares, records = self._average(agent, (jax.tree.map(lambda g: size * g, here), noise, size))
        past = agent.t / (agent.t + 1.0)
        slope = jax.tree.map(lambda old, new: past * old + (1 - past) * new / records, state.slope, total)
        if known is None:
            return BaseRateState(jax.tree.map(jnp.subtract, problem.x0, slope), slope)
        deviation = jnp.sqrt(squares / agent.parties / (agent.t + 1.0)) / records
        return BaseRateState({**problem.x0, "bias": known.constant(slope, deviation)}, slope)

    def _average(self, agent: Agent, value: Tree) -> Tree:
        if self.mixing == 1:
            return agent.mix(value)
        return agent.loop(self.mixing, lambda value, agent: agent.mix(value), value, "mixing")

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return a step without noise: for a quadratic of curvature 1 it ends at the minimum."""
        return {"plain": cls(Release.open(), mixing=20)}
