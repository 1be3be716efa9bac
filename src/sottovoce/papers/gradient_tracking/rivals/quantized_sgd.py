"""Run decentralised SGD whose noisy states are quantised before they are sent.

Chen, Wang and Zhang, "Differentially private distributed stochastic nonconvex optimization with quantized
communication", arXiv 2403.18254, 2024. Written from its abstract and from what later papers of the authors say of it,
because the paper itself was not at hand: each node adds noise to its state, quantises the sum at random with the right
mean, sends it, and takes a step with two rates on different time scales along the mean gradient of a large batch. Not
verifiable: its rates, noise, quantiser and batch in the comparison, and its printed epsilon and delta.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax

from sottovoce.methods.agent import Agent
from sottovoce.methods.base import Method, Setting
from sottovoce.methods.design import Design, check_design, unproved
from sottovoce.privacy.binomial_noise import rounded
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling
from sottovoce.problems import Minimize
from sottovoce.schedules import Schedule, schedule
from sottovoce.trees import Tree, descend


class QuantizedState(NamedTuple):
    """Hold the state: public in the sound design, private in the printed one."""

    x: Tree


@dataclass(frozen=True)
class QuantizedSgd(Method):
    """Run SGD with quantised messages q: ``x' = x + weight * sum_j w_ij (q_j - x) - rate * gradient``.

    Args:
        rate: step size along the gradient, the slower one in the paper.
        gradient: sound: clip and noise of the released gradient. Printed: clip of the gradients, and noise of the
            message, which is a state.
        sampling: how batches are drawn; the paper's batch grows with the number of steps.
        weight: step size toward the neighbours.
        resolution: step of the quantiser, which rounds at random. None sends numbers as they are, for comparison.
        design: "sound" quantises a public state, so that rounding is post-processing. "printed" adds the noise to an
            un-noised state and quantises after that, with no proved epsilon.

    >>> import sottovoce as sv
    >>> QuantizedSgd(0.1, sv.Release(1.0, 0.01), sv.Full(), design="printed").resolution
    0.01
    """

    rate: Schedule | float
    gradient: Release
    sampling: Sampling
    weight: Schedule | float = 1.0
    resolution: float | None = 0.01
    design: Design = "sound"

    solves: ClassVar[tuple[type, ...]] = (Minimize,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_design(self.design)
        if self.resolution is not None and not 0 < self.resolution < math.inf:
            raise ValueError(
                f"resolution is {self.resolution}: it must be positive, or None to send numbers as they are"
            )

    def init(self, problem: Minimize, agent: Agent) -> QuantizedState:
        """Start at x0."""
        return QuantizedState(problem.x0)

    def step(self, problem: Minimize, state: QuantizedState, agent: Agent) -> QuantizedState:
        """Send the quantised state, move toward what is heard, descend."""
        x, sound = state.x, self.design == "sound"
        sent = x if sound else agent.tell(self.gradient, x)
        if self.resolution is not None:
            leaves, structure = jax.tree.flatten(sent)
            keys = jax.random.split(agent.key("quantiser"), len(leaves))
            quantised = [rounded(key, leaf, self.resolution) for key, leaf in zip(keys, leaves)]
            sent = jax.tree.unflatten(structure, quantised)
        read = agent.release if sound else agent.mean
        slope = read(self.gradient, problem.loss, at=x, batch=agent.sample(self.sampling), public=problem.public)
        weight = schedule(self.weight)(agent.t, agent.index)
        x = jax.tree.map(lambda own, heard: own + weight * (heard - own), x, agent.mix(sent, own=x))
        return QuantizedState(problem.project_x(descend(x, schedule(self.rate)(agent.t, agent.index), slope)))

    def caveats(self, setting: Setting) -> Sequence[str]:
        """List what the printed design leaves open."""
        return unproved(self.design)

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return both designs without the quantiser, whose noise is the method's own."""
        common = {"rate": 0.2, "gradient": Release.open(), "sampling": Full(), "resolution": None}
        return {"sound": cls(**common), "printed": cls(**common, design="printed")}  # type: ignore[arg-type]
