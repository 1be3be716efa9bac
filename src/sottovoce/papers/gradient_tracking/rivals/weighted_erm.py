"""Perturb gradients of distributed clients, and weigh the clients by their numbers of records.

Kang, Liu, Niu and Wang, "Weighted distributed differential privacy ERM: convex and non-convex", Computers and Security
106, 2021. Written from its abstract, because the paper itself was not at hand: clients perturb their gradients with
Gaussian noise, and each counts with a weight of its own, which pays if the clients' sizes differ. Weights are shares of
the records here. Not verifiable: its rule for the weights, its noise bound, and its printed epsilon. Its theory assumes
bounded gradients; here they are clipped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from sottovoce.methods.agent import Agent
from sottovoce.methods.base import Method
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling
from sottovoce.problems import Minimize
from sottovoce.schedules import Schedule, schedule
from sottovoce.trees import Tree, descend


class WeightedState(NamedTuple):
    """Hold x: public by induction, because it is a function of released gradients."""

    x: Tree


@dataclass(frozen=True)
class WeightedErm(Method):
    """Weigh clients by their n records: ``x' = mix(n (x - rate * gradient)) / mix(n)``, with perturbed gradients.

    Over a complete graph, which stands for a server, all agents hold the same x, and the step is
    ``x - rate * sum_i n_i gradient_i / sum_i n_i``. With equal sizes this is `DpSgd` over that graph.

    Args:
        rate: step size.
        gradient: clip and noise of the released gradient.
        sampling: how batches are drawn.

    >>> import sottovoce as sv
    >>> WeightedErm(rate=0.1, gradient=sv.Release(1.0, 0.01), sampling=sv.Full()).design_name
    'sound'
    """

    rate: Schedule | float
    gradient: Release
    sampling: Sampling

    solves: ClassVar[tuple[type, ...]] = (Minimize,)

    def init(self, problem: Minimize, agent: Agent) -> WeightedState:
        """Start at x0."""
        return WeightedState(problem.x0)

    def step(self, problem: Minimize, state: WeightedState, agent: Agent) -> WeightedState:
        """Release a gradient, descend, average by weights."""
        batch = agent.sample(self.sampling)
        slope = agent.release(self.gradient, problem.loss, at=state.x, batch=batch, public=problem.public)
        x = problem.project_x(descend(state.x, schedule(self.rate)(agent.t, agent.index), slope))
        weight = agent.size().astype(jnp.float32)
        heard, total = agent.mix((jax.tree.map(lambda leaf: weight * leaf, x), weight))
        return WeightedState(jax.tree.map(lambda leaf: leaf / total, heard))

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return full batches."""
        return {"full": cls(rate=0.2, gradient=Release.open(), sampling=Full())}
