"""Run LDP-DSBO: locally private decentralised bilevel optimisation without inner loops.

Chen and Wang, "Locally differentially private decentralized stochastic bilevel optimization with guaranteed
convergence accuracy", ICML 2024, Algorithms 1 and 2. Beside x and y every agent keeps z, its estimate of the
Hessian-inverse-vector product, and moves all three at once. Second derivatives appear only as products with z. What
the paper proves is in `sottovoce.papers.ldp_dsbo.theory`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp

from sottovoce.methods.agent import Agent
from sottovoce.methods.base import Method, Setting
from sottovoce.methods.bilevel import confined, public_x, toward_x, toward_y, toward_z, without_x
from sottovoce.methods.design import Design, channels, check_design
from sottovoce.optimisers import Momentum, Rate, is_plain, memory, require_plain, update
from sottovoce.papers.ldp_dsbo import theory
from sottovoce.papers.ldp_dsbo.theory import L1Constants, PerVariableAndAgent
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import FixedSize, Full, Poisson, Sampling, Stream
from sottovoce.problems import Bilevel, sets
from sottovoce.schedules import schedule
from sottovoce.trees import Tree, zeros_like


class DsboState(NamedTuple):
    """Hold the agent's own broadcasts (sound design, public), or what it keeps un-noised (printed, private)."""

    x: Tree
    y: Tree
    z: Tree
    memory: tuple[Any, Any, Any]  # of the optimisers; empty for plain step sizes


@dataclass(frozen=True)
class LdpDsbo(Method):
    """Tune privately across peers (LDP-DSBO): x, y and z move together, with one exchange per step.

    ``design="sound"``: gradients are taken at the agent's own broadcasts, clipped per record and noised at the gate, so
    that every message is post-processing of releases. The noise is that of the released mean; a message then carries
    the step size times it. ``design="printed"``: the paper's text. The agent's own state stays un-noised and private,
    and the noise is that of the message. Its epsilon is proved only where `constants` are declared (and then only for
    its messages).

    Args:
        step_x, step_y, step_z: step sizes, numbers or schedules; in the sound design also optimisers (`Momentum`,
            `Adam`, optax), which work on released directions and cost nothing.
        release_y, release_z: clip and noise of the directions of y and z.
        sampling: `Stream()` is the paper's running average over all records that have arrived, `Poisson` a mini-batch.
        release_x: clip and noise of the direction of x. None (sound only) is for problems whose records never meet x,
            such as a regulariser with tuned coefficients: the direction then follows from y and z, costs no privacy and
            carries no noise of its own. A loss that reads x is refused.
        z_radius: z is kept in a ball of this radius (sound: Euclidean; printed: a box inside the L1 ball), which bounds
            the second-order directions. It costs no privacy.
        design: "sound" or "printed".
        constants: constants of the losses for the printed design's bound.

    >>> method = LdpDsbo.paper(step=(.05, .05, .02), v=(.66, .64, .43), sigma=1.0, s=(.65, .63, .42), clip=1.0)
    >>> import sottovoce as sv; clinics = sv.Population([20] * 10)
    >>> round(sv.account(method, clinics, steps=20, network=sv.networks.ring(10, 0.3), delta=0.0).epsilon, 8)
    1.49699492
    """

    step_x: Rate
    step_y: Rate
    step_z: Rate
    release_y: Release
    release_z: Release
    sampling: Sampling
    release_x: Release | None = None
    z_radius: float = math.inf
    design: Design = "sound"
    constants: L1Constants | None = None

    solves: ClassVar[tuple[type, ...]] = (Bilevel,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_design(self.design)
        if not self.z_radius > 0:
            raise ValueError(f"z_radius is {self.z_radius}: it must be positive (math.inf leaves z free)")
        if self.design == "printed":
            steps = {"step_x": self.step_x, "step_y": self.step_y, "step_z": self.step_z}
            require_plain("the paper's design and its proof have plain step sizes", **steps)
            if self.release_x is None:
                raise ValueError(
                    "the printed design sends x with noise: give x a release (None is for the sound design)"
                )

    @classmethod
    def paper(
        cls, *, step: PerVariableAndAgent, v: PerVariableAndAgent, sigma: PerVariableAndAgent, s: PerVariableAndAgent,
        clip: float | Sequence[float] = math.inf, noise: str = "laplace", batch: int = 50,
        data: Literal["stream", "batch"] = "stream", arrivals: int = 1, design: Design = "sound",
        z_radius: float = math.inf, constants: L1Constants | None = None,
    ) -> Self:  # fmt: skip
        """Build Assumption 3.1's schedules: step sizes step/(t+1)^v, message noise of deviation sigma/(t+1)^s.

        Each setting is one value, or three for x, y and z. A value is a number, or a tuple with one number per agent.
        ``data="stream"`` reads all records that have arrived, `arrivals` per step. ``data="batch"`` draws Poisson
        batches (printed: batches of fixed size, as the paper's experiments do).

        >>> own = LdpDsbo.paper(step=1.2, v=(.95, .87, .75), sigma=1.0, s=((.81, .82), .77, .61), design="printed")
        >>> own.release_x.scale.agents, own.release_x.mechanism
        (2, 'laplace')
        """
        if data not in ("stream", "batch"):
            raise ValueError(f"data is {data!r}: choose 'stream' or 'batch'")
        moves = theory.paper_dynamics(step, v, sigma, s, clip, noise, design)
        drawn: Sampling = Stream(arrivals)
        if data == "batch":
            drawn = Poisson(batch) if design == "sound" else FixedSize(batch)
        x, y, z = moves.releases
        return cls(*moves.steps, y, z, drawn, x, z_radius, design, constants)

    def init(self, problem: Bilevel, agent: Agent) -> DsboState:
        """Start at x0 and y0 with z = 0 (Algorithm 2, line 1, where the paper starts at random)."""
        private = self.design == "printed" and self.constants is not None
        if private and not (problem.project_x is Bilevel.project_x or type(problem.project_x) is sets.Box):
            raise ValueError(
                "the printed design's bound is for x that is free or in a box (sottovoce.problems.sets.box), because "
                "other projections may stretch differences in L1: leave project_x or constants out"
            )
        x, y, z = problem.x0, problem.y0, zeros_like(problem.y0)
        return DsboState(x, y, z, (memory(self.step_x, x), memory(self.step_y, y), memory(self.step_z, z)))

    def step(self, problem: Bilevel, state: DsboState, agent: Agent) -> DsboState:
        """Read three directions from one batch, average with the neighbours, descend."""
        read, average = channels(agent, self.design)
        batch = agent.sample(self.sampling)  # Algorithm 2, line 3
        x, y = state.x, state.y
        z = confined(state.z, self.z_radius, self.design)  # not in the paper

        if self.release_x is None:
            problem = without_x(problem)
            slope_x = jax.grad(lambda x: jnp.asarray(public_x(problem, x, y, z), float))(x)
        else:
            slope_x = toward_x(read, self.release_x, problem, x, y, z, batch)  # line 6: u of (9)
        slope_y = toward_y(read, self.release_y, problem, x, y, batch)  # line 4: grad_y g
        slope_z = toward_z(read, self.release_z, problem, x, y, z, batch)  # Algorithm 1, lines 2 to 4: H z - b

        def move(release: Release | None, value: Tree, step: Rate, slope: Tree, memory: Any) -> tuple[Tree, Any]:
            # value + sum_j w_ij (sent_j - value) - step slope
            return update(step, average(release, value), memory, slope, agent.t, agent.index)

        mx, my, mz = state.memory
        x, mx = move(self.release_x, x, self.step_x, slope_x, mx)  # Algorithm 2, line 7
        y, my = move(self.release_y, y, self.step_y, slope_y, my)  # Algorithm 2, line 4
        z, mz = move(self.release_z, z, self.step_z, slope_z, mz)  # Algorithm 1, line 5
        return DsboState(problem.project_x(x), y, z, (mx, my, mz))  # the projection is not in the paper

    @property
    def dynamics(self) -> theory.Dynamics:
        """Return step sizes (NaN for an optimiser), releases and design, as the paper's theory takes them."""
        x, y, z = (schedule(s if is_plain(s) else math.nan) for s in (self.step_x, self.step_y, self.step_z))  # type: ignore[arg-type]
        return theory.Dynamics((x, y, z), (self.release_x, self.release_y, self.release_z), self.design)

    def published(self, setting: Setting) -> float | None:
        """Return Theorem 4.5 for the worst agent; only for its Laplace noise and schedules."""
        return theory.printed_epsilon(self.dynamics, setting.network, setting.steps)

    def proved(self, setting: Setting, agent: int) -> float | None:
        """Return the printed design's recursion, where constants are declared and the clip never acts."""
        given = self.dynamics, self.constants, self.z_radius, self.sampling
        return theory.proved_epsilon(*given, setting.network, setting.sizes, setting.steps, agent)

    def caveats(self, setting: Setting) -> Sequence[str]:
        """List where the paper's theorem and this configuration differ."""
        return theory.caveats(self.dynamics, self.sampling, setting.network, setting.steps)

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return both designs without noise; the sound one with z confined as well."""
        free = Release.open()
        sound = cls(0.1, 0.2, 0.2, free, free, Full(), release_x=free, z_radius=100.0)
        printed, ball = replace(sound, z_radius=math.inf, design="printed"), Momentum(0.05, 0.5)
        moving = replace(sound, step_x=ball, step_y=ball, step_z=ball)
        return {"sound": sound, "printed": printed, "optimisers": moving}
