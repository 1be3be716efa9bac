"""LDP-DSBO: locally private decentralised bilevel optimisation without inner loops.

Chen and Wang, "Locally differentially private decentralized stochastic bilevel optimization with guaranteed
convergence accuracy", ICML 2024. Beside x and y every agent keeps z, its guess of the Hessian-inverse-vector product,
and moves all three at once; second derivatives only ever appear as products with z.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp

from sottovoce.methods.base import Method, Setting
from sottovoce.methods.dsbo_parts import (
    Design,
    check_design,
    keeper,
    public_x,
    toward_x,
    toward_y,
    toward_z,
    voice,
    without_x,
)
from sottovoce.methods.ldp_dsbo_theory import PowerLaw, is_power_law, message_noise, power_law
from sottovoce.privacy import published, sound
from sottovoce.privacy.release import NoiseKind, Release
from sottovoce.privacy.sampling import FixedSize, Full, Poisson, Sampling, Stream
from sottovoce.problems import Bilevel, sets
from sottovoce.schedules import Decay, PerAgent, Ratio, Schedule, schedule
from sottovoce.trees import Private, Tree, descend, reveal, zeros_like

if TYPE_CHECKING:
    from sottovoce.runtime.agent import Agent

PerVariable = PerAgent | Sequence[PerAgent]  # one setting for x, y and z, or three; each for all agents or one by one


class DsboState(NamedTuple):
    """Sound: an agent's own broadcasts, public. Printed: what it keeps un-noised, private."""

    x: Tree
    y: Tree
    z: Tree


@dataclass(frozen=True)
class Smoothness:
    """Constants of the losses, true in L1 for every record: what a proof for the printed design asks for.

    `c_h` and `c_l` bound the gradients of the upper and the lower loss, `L_h1` and `L_l1` are their Lipschitz
    constants, `L_l2` that of the lower loss's Hessians, `H1` bounds its Hessian in y. Public terms count in. The proof
    is for x that is free or in a box: another projection may stretch differences in L1.
    """

    c_h: float
    c_l: float
    L_h1: float
    L_l1: float
    L_l2: float
    H1: float


@dataclass(frozen=True)
class LdpDsbo(Method):
    """LDP-DSBO: private tuning across peers; x, y and z move together, one exchange a step.

    ``design="sound"``: gradients are taken at the agent's own broadcasts, clipped per record and noised at the gate, so
    that every message is post-processing of releases. Noise is that of the released mean; a message then carries the
    step size times it. ``design="printed"``: the paper's text; own state stays un-noised and private, and noise is that
    of the message. Its epsilon is proved only where `smoothness` is declared (and then only for its messages).

    Args:
        step_x, step_y, step_z: step sizes, numbers or schedules.
        y, z: clip and noise of the directions of y and z.
        sampling: `Stream()` is the paper's running average over all records that have arrived, `Poisson` a mini-batch.
        x: clip and noise of the direction of x. None (sound only) is for problems whose records never meet x, such as
            a regulariser with tuned coefficients: the direction then follows from y and z, costs no privacy and
            carries no noise of its own. A loss that reads x is refused.
        z_radius: z is kept in a ball of this radius (sound: Euclidean; printed: a box inside the L1 ball), which bounds
            the second-order directions; free of privacy cost.
        design: "sound" or "printed".
        smoothness: constants for the printed design's bound.

    >>> method = LdpDsbo.paper(step=(.05, .05, .02), v=(.66, .64, .43), sigma=1.0, s=(.65, .63, .42), clip=1.0)
    >>> import sottovoce as sv
    >>> round(sv.account(method, sizes=[20] * 10, steps=20, network=sv.networks.ring(10, 0.3), delta=0.0).epsilon, 8)
    1.49699492
    """

    step_x: Schedule | float
    step_y: Schedule | float
    step_z: Schedule | float
    y: Release
    z: Release
    sampling: Sampling
    x: Release | None = None
    z_radius: float = math.inf
    design: Design = "sound"
    smoothness: Smoothness | None = None

    solves: ClassVar[tuple[type, ...]] = (Bilevel,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_design(self.design)
        if not self.z_radius > 0:
            raise ValueError(f"z_radius is {self.z_radius}: it must be positive (math.inf leaves z free)")
        if self.x is None and self.design == "printed":
            raise ValueError("the printed design tells x with noise: give x a release (x=None is for the sound design)")

    @classmethod
    def paper(
        cls,
        *,
        step: PerVariable,
        v: PerVariable,
        sigma: PerVariable,
        s: PerVariable,
        clip: float | Sequence[float] = math.inf,
        noise: NoiseKind = "laplace",
        data: Literal["stream", "batch"] = "stream",
        batch: int = 50,
        design: Design = "sound",
        z_radius: float = math.inf,
        smoothness: Smoothness | None = None,
    ) -> Self:
        """The paper's schedules: step sizes step/(t+1)^v, messages with noise of standard deviation sigma/(t+1)^s.

        Each setting is one value, or three for x, y and z; a value is a number, or a tuple with one number an agent.
        ``data="batch"`` draws Poisson batches (printed: batches of fixed size, as the paper's experiments do).

        >>> own = LdpDsbo.paper(step=1.2, v=(.95, .87, .75), sigma=1.0, s=((.81, .82), .77, .61), design="printed")
        >>> own.x.scale.agents, own.x.mechanism
        (2, 'laplace')
        """
        if data not in ("stream", "batch"):
            raise ValueError(f"data is {data!r}: choose 'stream' or 'batch'")
        one = 1 / math.sqrt(2) if noise == "laplace" else 1.0  # a Laplace scale b has standard deviation sqrt(2) b

        def variable(which: int) -> tuple[Decay, Release]:
            value, power = _triple("step", step)[which], _triple("v", v)[which]
            deviation, decay = _triple("sigma", sigma)[which], _triple("s", s)[which]
            rate = Decay(value, power)
            scale = tuple(one * d for d in deviation) if isinstance(deviation, tuple) else one * deviation
            # The direction of step t ends up in message t + 1, multiplied by the step size.
            told = Decay(scale, decay) if design == "printed" else Ratio(Decay(scale, decay, offset=2), rate)
            return rate, Release(_triple("clip", clip)[which], told, noise)

        (step_x, x), (step_y, y), (step_z, z) = map(variable, range(3))
        drawn: Sampling = Stream()
        if data == "batch":
            drawn = Poisson(batch) if design == "sound" else FixedSize(batch)
        return cls(step_x, step_y, step_z, y, z, drawn, x, z_radius, design, smoothness)

    def init(self, problem: Bilevel, agent: "Agent") -> DsboState:
        """Start at x0 and y0 with z = 0."""
        keep = keeper(self.design)
        return DsboState(keep(problem.x0), keep(problem.y0), keep(zeros_like(problem.y0)))

    def step(self, problem: Bilevel, state: DsboState, agent: "Agent") -> DsboState:
        """Three directions from one batch; average with the neighbours; descend."""
        read, mix = voice(agent, self.design)
        batch = agent.sample(self.sampling)
        state = state._replace(z=self._confined(state.z))
        x, y, z = (reveal(value) for value in state)

        if self.x is None:
            problem = without_x(problem)
            slope_x = jax.grad(lambda x: jnp.asarray(public_x(problem, x, y, z), float))(x)
        else:
            slope_x = toward_x(read, self.x, problem, x, y, z, batch)
        slope_y = toward_y(read, self.y, problem, x, y, batch)
        slope_z = toward_z(read, self.z, problem, x, y, z, batch)

        def move(release: Release | None, value: Tree, step: Schedule | float, slope: Tree) -> Tree:
            return descend(mix(release, value), schedule(step)(agent.t, agent.index), slope)

        x = move(self.x, state.x, self.step_x, slope_x)
        return DsboState(
            x=keeper(self.design)(problem.project_x(reveal(x))),
            y=move(self.y, state.y, self.step_y, slope_y),
            z=move(self.z, state.z, self.step_z, slope_z),
        )

    def _confined(self, z: Tree) -> Tree:
        if math.isinf(self.z_radius):
            return z
        if self.design == "sound":
            return sets.ball(self.z_radius)(z)
        # z is private here: only a coordinate-wise clamp leaves differences in L1 no larger than they are.
        side = self.z_radius / sum(leaf.size for leaf in jax.tree.leaves(z))
        return Private(sets.box(-side, side)(reveal(z)))

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Both designs without noise; the sound one with z confined as well."""
        free = Release.open()
        sound = cls(0.1, 0.2, 0.2, free, free, Full(), x=free, z_radius=100.0)
        return {"sound": sound, "printed": replace(sound, z_radius=math.inf, design="printed")}

    # What the paper claims, and what is proved for its own design.

    def laws(self) -> tuple[list[PowerLaw], list[PowerLaw]] | None:
        """Step sizes and message noise of x, y and z as power laws of the step, if they are such."""
        pairs = [(self.step_x, self.x), (self.step_y, self.y), (self.step_z, self.z)]
        steps = [power_law(schedule(step)) for step, _ in pairs]
        noise = [message_noise(release, schedule(step), self.design) if release else None for step, release in pairs]
        known = [law for law in (*steps, *noise) if law is not None]
        return (known[:3], known[3:]) if len(known) == 6 else None

    def published(self, setting: Setting) -> float | None:
        """Theorem 4.5 for the worst agent; only for its Laplace noise and schedules."""
        laws = self.laws()
        if laws is None or not self._as_in_the_paper():
            return None
        own_weight = float((1 - setting.network.matrix("mix").diagonal()).min())
        if not 0 < own_weight < 1:
            return None
        agents = setting.network.size
        settings = [_numbers(laws, agent) for agent in range(agents)]
        return max(published.ldp_dsbo(setting.steps, v, s, sigma, own_weight) for v, s, sigma, _ in settings)

    def proved(self, setting: Setting, agent: int) -> float | None:
        """The printed design's recursion, where constants are declared and the clip never acts."""
        laws, known = self.laws(), self.smoothness
        if laws is None or known is None or not self._as_in_the_paper() or not isinstance(self.sampling, Stream):
            return None
        if self.sampling.arrivals != 1 or math.isinf(self.z_radius) or self.x is None:
            return None
        if min(own[agent] for own in setting.sizes.values()) < setting.steps:
            return None  # the recursion divides by all records that have arrived: the stream must not run dry
        second_order = known.c_h + self.z_radius * known.L_l1
        if self.y.clip < known.c_l or min(self.x.clip, self.z.clip) < second_order:
            return None
        v, s, sigma, lam0 = _numbers(laws, agent)
        return sound.ldp_dsbo_printed(
            setting.steps, v, s, sigma, lam0, w=float(1 - setting.network.matrix("mix").diagonal()[agent]),
            c_h=known.c_h, c_l=known.c_l, c_z=self.z_radius,
            L_h1=known.L_h1, L_l1=known.L_l1, L_l2=known.L_l2, H1=known.H1,
        )  # fmt: skip

    def caveats(self, setting: Setting) -> Sequence[str]:
        """Where the paper's theorem and this configuration part."""
        notes = []
        if self.x is None:
            notes.append("records never meet x: its direction is computed from released values and costs nothing")
        if self.design == "printed":
            notes.append("only the messages are covered: an agent's final state is un-noised and may not leave it")
        if self.published(setting) is not None:
            notes.append(
                "the published epsilon (Theorem 4.5) leaves out the size of gradients and step sizes, and no finite "
                "epsilon exists for its z messages when the lower Hessian depends on records"
            )
            if not isinstance(self.sampling, Stream):
                notes.append("the published epsilon is for a running average over all records, not for mini-batches")
        return notes

    def _as_in_the_paper(self) -> bool:
        """Laplace noise whose scale follows a power of the message's number exactly."""
        pairs = [(self.step_x, self.x), (self.step_y, self.y), (self.step_z, self.z)]
        return all(
            release is not None
            and release.mechanism == "laplace"
            and is_power_law(release, schedule(step), self.design)
            for step, release in pairs
        )


def _triple(name: str, value: Any) -> tuple[Any, Any, Any]:
    if isinstance(value, (int, float)):
        return value, value, value
    if len(value) != 3:
        raise ValueError(f"{name} has {len(value)} values: give one number, or three for x, y and z")
    first, second, third = value
    return first, second, third


def _numbers(
    laws: tuple[list[PowerLaw], list[PowerLaw]], agent: int
) -> tuple[list[float], list[float], list[float], list[float]]:
    """v, s, sigma and lam0 of one agent, each for x, y and z."""
    steps, noise = ([law.of(agent) for law in three] for three in laws)
    return [p for _, p in steps], [p for _, p in noise], [a for a, _ in noise], [a for a, _ in steps]
