"""Learn online over a graph with local privacy: Laplace noise that decays.

Chen and Wang, "Locally differentially private distributed online learning with guaranteed optimality": each agent
averages with its neighbours' noisy states and descends along the running average of all gradients it has seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from sottovoce.methods.agent import Agent
from sottovoce.methods.base import Method, Setting
from sottovoce.methods.design import Design, channels, check_design, unproved
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling, Stream
from sottovoce.problems import Minimize
from sottovoce.schedules import Decay, Ratio, Schedule, schedule
from sottovoce.trees import Tree, descend


class OnlineState(NamedTuple):
    """Hold the state: public in the sound design, private in the printed one."""

    x: Tree


@dataclass(frozen=True)
class LdpOnline(Method):
    """Learn online with local privacy: ``x' = mix(x) - rate * gradient``, with Laplace noise on the messages.

    Args:
        rate: step size, decaying in the paper.
        gradient: sound: clip and noise of the released gradient (noise of the message over the rate, see `laplace`).
            Printed: clip of the gradients and noise of the message itself.
        sampling: `Stream` (all records that have arrived, the paper's) or a batch.
        design: "sound" continues from the own noisy state, "printed" from the un-noised one, with no proved epsilon.

    >>> round(LdpOnline.laplace(clip=1.0, sigma=2.0, s=0.5, rate=Decay(0.1, 0.5)).scale(0), 6)
    10.0
    """

    rate: Schedule | float
    gradient: Release
    sampling: Sampling = field(default_factory=Stream)
    design: Design = "sound"

    solves: ClassVar[tuple[type, ...]] = (Minimize,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_design(self.design)

    @staticmethod
    def laplace(clip: float, sigma: float, s: float, rate: Schedule | float) -> Release:
        """Return the release after which the message of step t carries Laplace noise of variance sigma^2 / (t+2)^2s."""
        message = Decay(sigma / 2**0.5, s, offset=2.0)
        return Release(clip, Ratio(message, schedule(rate)), mechanism="laplace")

    def init(self, problem: Minimize, agent: Agent) -> OnlineState:
        """Start at x0."""
        return OnlineState(problem.x0)

    def step(self, problem: Minimize, state: OnlineState, agent: Agent) -> OnlineState:
        """Average with the neighbours, descend."""
        read, average = channels(agent, self.design)
        batch = agent.sample(self.sampling)
        # x' = project(x + sum_j w_ij (sent_j - x) - rate * mean gradient of all records so far)
        slope = read(self.gradient, problem.loss, at=state.x, batch=batch, public=problem.public)
        x = descend(average(self.gradient, state.x), schedule(self.rate)(agent.t, agent.index), slope)
        return OnlineState(problem.project_x(x))

    def caveats(self, setting: Setting) -> Sequence[str]:
        """List what the printed design leaves open."""
        return unproved(self.design)

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return both designs on full batches."""
        common = {"rate": 0.2, "gradient": Release.open(), "sampling": Full()}
        return {"sound": cls(**common), "printed": cls(**common, design="printed")}  # type: ignore[arg-type]
