"""Run decentralised SGD with ternary quantisation of the messages.

Wang and Basar, "Quantization enabled privacy protection in decentralized stochastic optimization", IEEE Transactions on
Automatic Control 68(7), 2023: each coordinate is sent as -threshold, 0 or threshold, at random, with the right mean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from sottovoce.methods.agent import Agent
from sottovoce.methods.base import Method, Setting
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling
from sottovoce.problems import Minimize
from sottovoce.schedules import Schedule, schedule
from sottovoce.trees import Tree, descend


class TernaryState(NamedTuple):
    """Hold the un-noised state."""

    x: Tree


@dataclass(frozen=True)
class TernarySgd(Method):
    """Run SGD with messages quantised to three values: ``x' = x + weight (mix(q) - q) - rate gradient``.

    No epsilon is proved. Its paper claims (0, delta) for each message, where delta is the distance of two neighbouring
    states over the threshold, in L1: that adds up over messages, passes 1 soon, and is no bound on a likelihood ratio
    (a coordinate at the threshold is sent without any noise).

    Args:
        rate: step size.
        message: what else is done to a message: `Release.open()` adds no noise.
        sampling: how batches are drawn.
        threshold: of the quantiser; states are cut to it. None sends them as they are, for comparison.
        weight: of the neighbours, decaying in the paper so that quantisation noise dies out.

    >>> method = TernarySgd(rate=0.1, message=Release.open(), sampling=Full(), threshold=1.0)
    >>> method.design_name
    'non-private'
    """

    rate: Schedule | float
    message: Release
    sampling: Sampling
    threshold: float | None = 1.0
    weight: Schedule | float = 1.0

    solves: ClassVar[tuple[type, ...]] = (Minimize,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None and not self.threshold > 0:
            raise ValueError(f"threshold is {self.threshold}: it must be positive, or None to send states as they are")

    def init(self, problem: Minimize, agent: Agent) -> TernaryState:
        """Start at x0."""
        return TernaryState(problem.x0)

    def step(self, problem: Minimize, state: TernaryState, agent: Agent) -> TernaryState:
        """Send the quantised state, move toward what is heard, descend."""
        sent = agent.tell(self.message, state.x)
        if self.threshold is not None:
            sent = ternary(agent.key("quantiser"), sent, self.threshold)
        slope = agent.mean(
            self.message, problem.loss, at=state.x, batch=agent.sample(self.sampling), public=problem.public
        )
        weight = schedule(self.weight)(agent.t, agent.index)
        # x' = project(x + weight * (sum_j w_ij q_j - q) - rate * gradient), with q the quantised state
        x = jax.tree.map(lambda x, heard, q: x + weight * (heard - q), state.x, agent.mix(sent), sent)
        x = descend(x, schedule(self.rate)(agent.t, agent.index), slope)
        return TernaryState(problem.project_x(x))

    def caveats(self, setting: Setting) -> Sequence[str]:
        """Say why there is no epsilon."""
        return ("ternary messages have no finite epsilon: at the threshold a coordinate is sent without noise",)

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return it without the quantiser, whose noise is the method's own."""
        return {"unquantised": cls(rate=0.2, message=Release.open(), sampling=Full(), threshold=None)}


def ternary(key: jax.Array, tree: Tree, threshold: float) -> Tree:
    """Cut each value to [-threshold, threshold] and return -threshold, 0 or threshold, with the cut value as mean.

    >>> sent = ternary(jax.random.key(0), jnp.full(1000, 0.25), 1.0)
    >>> sorted(set(sent.tolist())), bool(abs(sent.mean() - 0.25) < 0.05)
    ([0.0, 1.0], True)
    """
    leaves, structure = jax.tree.flatten(tree)

    def quantise(number: int, leaf: Any) -> jax.Array:
        share = jnp.clip(jnp.abs(leaf) / threshold, 0.0, 1.0)
        coin = jax.random.uniform(jax.random.fold_in(key, number), jnp.shape(leaf))
        return jnp.where(coin < share, jnp.sign(leaf) * threshold, 0.0)

    return jax.tree.unflatten(structure, [quantise(number, leaf) for number, leaf in enumerate(leaves)])
