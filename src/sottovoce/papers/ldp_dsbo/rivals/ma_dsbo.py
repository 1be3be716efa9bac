"""Run MA-DSBO: decentralised bilevel optimisation with inner loops and a moving average of hypergradients.

Chen, Huang, Ma and Balasubramanian, "Decentralized stochastic bilevel optimization with improved per-iteration
complexity", ICML 2023. With noise on every message it is Algorithm 3 of Chen and Wang, ICML 2024, whose line numbers
are quoted here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax

from sottovoce.methods.agent import Agent
from sottovoce.methods.base import Method
from sottovoce.methods.bilevel import toward_x, toward_y, toward_z
from sottovoce.methods.design import Design, channels, check_design
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling
from sottovoce.problems import Bilevel
from sottovoce.schedules import Schedule, schedule
from sottovoce.trees import Tree, descend, zeros_like


class MaState(NamedTuple):
    """Hold x, y, and the moving average `r` of hypergradients."""

    x: Tree
    y: Tree
    r: Tree


class _Solve(NamedTuple):
    """Hold the loop for z: its iterate, the tracked residual, and the agent's own last residual."""

    z: Tree
    d: Tree
    s: Tree


@dataclass(frozen=True)
class MaDsbo(Method):
    """Run MA-DSBO: every step has `inner_y` exchanges for y, `inner_z` tracked ones for z, then one for x.

    Each of them is charged: a step makes ``inner_y + inner_z + 2`` releases (sound), or sends
    ``inner_y + 2 inner_z + 1`` messages of private state (printed). The text reuses one noise for z and its tracker d;
    here each has its own, because one shared draw would reveal z - d.

    H.1 of the paper considers noise that decays with the inner turn k. ``within=Decay(1.0, s)`` multiplies the noise of
    y and z by (k+1)^-s, beside a release that decays with the step t (its design 1) or does not (design 2). Each turn
    is then written out and charged by itself, so that a step takes longer to compile.

    Args:
        step_x: step size of x, and the weight of the newest hypergradient in the average (both are alpha in the text).
        step_y, step_z: step sizes of the inner loops.
        release_x, release_y, release_z: clip and noise of the directions (sound), noise of the messages (printed).
        sampling: how a batch is drawn; every turn of a loop draws its own.
        inner_y, inner_z: turns of the inner loops.
        design: "sound" or "printed".
        within: factor of the noise of y and z in turn k of their loops, a schedule of k.

    >>> import sottovoce as sv
    >>> method = MaDsbo(0.1, 0.1, 0.1, *[Release(1.0, 0.1)] * 3, sampling=Full(), inner_y=2, inner_z=3)
    >>> report = sv.account(method, sv.Population([50] * 4), steps=1, network=sv.networks.ring(4))
    >>> for event in report.events: print(event)
    release_y: ... 2 times
    release_z: ... once
    release_z: ... 3 times
    release_x: ... once
    >>> from sottovoce.schedules import Decay
    >>> growing = replace(method, within=Decay(2.0, -1.0))  # 2, 4 for y and 2, 4, 6 for z
    >>> report = sv.account(growing, sv.Population([50] * 4), steps=1, network=sv.networks.ring(4))
    >>> [event.split()[3] for event in report.events]
    ['0.2', '0.4', '0.1', '0.2', '0.4', '0.6', '0.1']
    """

    step_x: Schedule | float
    step_y: Schedule | float
    step_z: Schedule | float
    release_x: Release
    release_y: Release
    release_z: Release
    sampling: Sampling
    inner_y: int = 10
    inner_z: int = 10
    design: Design = "sound"
    within: Schedule | float = 1.0

    solves: ClassVar[tuple[type, ...]] = (Bilevel,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_design(self.design)

    def init(self, problem: Bilevel, agent: Agent) -> MaState:
        """Start at x0 and y0 with an empty average (line 1)."""
        return MaState(problem.x0, problem.y0, zeros_like(problem.x0))

    def step(self, problem: Bilevel, state: MaState, agent: Agent) -> MaState:
        """Approach y*(x), then z, then move x along the averaged hypergradient (lines 3 to 19)."""
        alpha, beta, gamma = (schedule(s)(agent.t, agent.index) for s in (self.step_x, self.step_y, self.step_z))
        x = state.x

        # Lines 3 to 8: y' = y + sum_j w_ij (sent_j - y) - beta grad_y g(x, y), from the y of the step before.
        def follow(y: Tree, agent: Agent, release: Release) -> Tree:
            read, average = channels(agent, self.design)
            slope = toward_y(read, release, problem, x, y, agent.sample(self.sampling))
            return descend(average(release, y), beta, slope)

        y = self._turns(agent, self.inner_y, follow, state.y, self.release_y)

        # Line 12: s = H z - b.
        def residual(z: Tree, agent: Agent, release: Release) -> Tree:
            read, _ = channels(agent, self.design)
            return toward_z(read, release, problem, x, y, z, agent.sample(self.sampling))

        def solve(last: _Solve, agent: Agent, release: Release) -> _Solve:
            _, average = channels(agent, self.design)
            z = descend(average(release, last.z), gamma, last.d)  # line 11
            s = residual(z, agent, release)  # line 12
            d = jax.tree.map(lambda d, new, old: d + new - old, average(release, last.d), s, last.s)  # line 13
            return _Solve(z, d, s)

        start = zeros_like(problem.y0)
        first = residual(start, agent, self.release_z)  # line 1: at z = 0 both s and d are -b
        z = self._turns(agent, self.inner_z, solve, _Solve(start, first, first), self.release_z).z

        read, average = channels(agent, self.design)
        # Line 16: u = grad_x f - hess_xy g z.
        u = toward_x(read, self.release_x, problem, x, y, z, agent.sample(self.sampling, "x"))
        moved = descend(average(self.release_x, state.x), alpha, state.r)  # line 18
        return MaState(
            x=problem.project_x(moved),
            y=y,
            r=jax.tree.map(lambda r, new: (1 - alpha) * r + alpha * new, state.r, u),  # line 19
        )

    def _turns(
        self, agent: Agent, times: int, body: Callable[[Any, Agent, Release], Any], carry: Any, release: Release
    ) -> Any:
        """Repeat `body`, with the noise of each turn; turns that differ in their noise are written out."""
        within = schedule(self.within)
        if within == schedule(1.0):
            return agent.loop(times, lambda carry, agent: body(carry, agent, release), carry, release.name)
        for turn in range(times):
            count = within.agents
            own = within(turn) if count is None else tuple(within(turn, each) for each in range(count))
            carry = body(carry, agent, release.louder(own))
        return carry

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return short inner loops, both designs."""
        free = Release.open()
        sound = cls(0.2, 0.15, 0.15, free, free, free, Full(), inner_y=4, inner_z=40)
        return {"sound": sound, "printed": replace(sound, design="printed")}
