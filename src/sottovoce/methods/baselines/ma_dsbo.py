"""MA-DSBO: decentralised bilevel optimisation with inner loops and a moving average of hypergradients.

Chen, Huang, Ma and Balasubramanian, "Decentralized stochastic bilevel optimization with improved per-iteration
complexity", ICML 2023; with noise on every message it is Algorithm 3 of Chen and Wang, ICML 2024.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from sottovoce.methods.base import Method
from sottovoce.methods.dsbo_parts import Design, check_design, keeper, toward_x, toward_y, toward_z, voice
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling
from sottovoce.problems import Bilevel
from sottovoce.schedules import Schedule, schedule
from sottovoce.trees import Tree, combine, descend, reveal, zeros_like

if TYPE_CHECKING:
    from sottovoce.runtime.agent import Agent


class MaState(NamedTuple):
    """`r` is the moving average of hypergradients."""

    x: Tree
    y: Tree
    r: Tree


class _Solve(NamedTuple):
    """The loop for z: its iterate, the tracked residual, and the agent's own last residual."""

    z: Tree
    d: Tree
    s: Tree


@dataclass(frozen=True)
class MaDsbo(Method):
    """MA-DSBO: in every step `inner_y` exchanges for y and `inner_z` tracked ones for z, then one for x.

    Each of them is charged: a step makes ``inner_y + inner_z + 2`` releases (sound), or sends
    ``inner_y + 2 inner_z + 1`` messages of private state (printed). The text reuses one noise for z and its tracker d;
    here each has its own, for one shared draw would reveal z - d.

    Args:
        step_x: step size of x, and the weight of the newest hypergradient in the average (both are alpha in the text).
        step_y, step_z: step sizes of the inner loops.
        x, y, z: clip and noise of the directions (sound), noise of the messages (printed).
        sampling: how a batch is drawn; every turn of a loop draws its own.
        inner_y, inner_z: turns of the inner loops.
        design: "sound" or "printed".

    >>> import sottovoce as sv
    >>> method = MaDsbo(0.1, 0.1, 0.1, *[Release(1.0, 0.1)] * 3, sampling=Full(), inner_y=2, inner_z=3)
    >>> for event in sv.account(method, sizes=[50] * 4, steps=1, network=sv.networks.ring(4)).events: print(event)
    y: ... 2 times
    z: ... 1 times
    z: ... 3 times
    x: ... 1 times
    """

    step_x: Schedule | float
    step_y: Schedule | float
    step_z: Schedule | float
    x: Release
    y: Release
    z: Release
    sampling: Sampling
    inner_y: int = 10
    inner_z: int = 10
    design: Design = "sound"

    solves: ClassVar[tuple[type, ...]] = (Bilevel,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_design(self.design)

    def init(self, problem: Bilevel, agent: "Agent") -> MaState:
        """Start at x0 and y0 with an empty average."""
        keep = keeper(self.design)
        return MaState(keep(problem.x0), keep(problem.y0), keep(zeros_like(problem.x0)))

    def step(self, problem: Bilevel, state: MaState, agent: "Agent") -> MaState:
        """Approach y*(x), then z, then move x along the averaged hypergradient."""
        alpha, beta, gamma = (schedule(s)(agent.t, agent.index) for s in (self.step_x, self.step_y, self.step_z))
        x, keep = reveal(state.x), keeper(self.design)

        def follow(y: Tree, agent: "Agent") -> Tree:
            read, mix = voice(agent, self.design)
            slope = toward_y(read, self.y, problem, x, reveal(y), agent.sample(self.sampling))
            return descend(mix(self.y, y), beta, slope)

        y = agent.loop(self.inner_y, follow, state.y, "y")

        def residual(z: Tree, agent: "Agent") -> Tree:
            read, _ = voice(agent, self.design)
            return toward_z(read, self.z, problem, x, reveal(y), reveal(z), agent.sample(self.sampling))

        def solve(last: _Solve, agent: "Agent") -> _Solve:
            _, mix = voice(agent, self.design)
            z = descend(mix(self.z, last.z), gamma, last.d)
            s = residual(z, agent)
            return _Solve(z, combine(lambda d, new, old: d + new - old, mix(self.z, last.d), s, last.s), s)

        start = keep(zeros_like(problem.y0))
        first = residual(start, agent)
        z = agent.loop(self.inner_z, solve, _Solve(start, first, first), "z").z

        read, mix = voice(agent, self.design)
        u = toward_x(read, self.x, problem, x, reveal(y), reveal(z), agent.sample(self.sampling, "x"))
        moved = descend(mix(self.x, state.x), alpha, state.r)
        return MaState(
            x=keep(problem.project_x(reveal(moved))),
            y=y,
            r=combine(lambda r, new: (1 - alpha) * r + alpha * new, state.r, u),
        )

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Short inner loops, both designs."""
        free = Release.open()
        sound = cls(0.2, 0.15, 0.15, free, free, free, Full(), inner_y=4, inner_z=40)
        return {"sound": sound, "printed": replace(sound, design="printed")}
