"""Compute what LDP-DSBO's theory asks of a configuration, the rate it predicts, and its messages' privacy bounds.

Chen and Wang, "Locally differentially private decentralized stochastic bilevel optimization with guaranteed
convergence accuracy", ICML 2024: Assumption 2.1 (weights), Assumption 3.1 (noise decays more slowly than step sizes),
Theorem 4.1 in its three cases (convergence) and Theorem 4.5 (privacy). Theorem 4.1 is about the printed design. The
sound design keeps the orders of all step sizes and noises, so its exponents are expected to carry over; this is argued,
not proved.

>>> paper = paper_dynamics(step=1.0, v=(.66, .64, .43), sigma=1.0, s=(.65, .63, .42))
>>> from sottovoce.networks import ring
>>> round(predict(paper, ring(10, weight=0.3), "strongly convex").rate, 10)
0.4
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from sottovoce.networks import Condition, Network
from sottovoce.privacy import published, sound
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Sampling, Stream
from sottovoce.schedules import Constant, Decay, PerAgent, Ratio, Scaled, Schedule, told_by_fields

Convexity = Literal["strongly convex", "convex", "nonconvex"]
CASES: tuple[Convexity, ...] = ("strongly convex", "convex", "nonconvex")
VARIABLES = ("x", "y", "z")
PerVariableAndAgent = PerAgent | Sequence[PerAgent]  # for x, y and z at once or apart; for all agents or one by one
_STRICT = "stricter reading: eigenvalues of -W below 1"


@dataclass(frozen=True)
class L1Constants:
    """Declare constants of the losses that hold in L1 for every record: the printed design's proof needs them.

    `c_h` and `c_l` bound the gradients of the upper and the lower loss. `L_h1` and `L_l1` are the Lipschitz constants
    of these gradients, `L_l2` is that of the lower loss's Hessians, `H1` bounds the lower Hessian in y. Public terms
    are included. The proof is for x that is free or in a box: another projection may stretch differences in L1, and is
    refused.
    """

    c_h: float
    c_l: float
    L_h1: float
    L_l1: float
    L_l2: float
    H1: float

    def __post_init__(self) -> None:
        if min(self.c_h, self.c_l, self.L_h1, self.L_l1, self.L_l2, self.H1) < 0:
            raise ValueError(f"{self}: constants are not negative")
        if self.L_l1 < self.H1:  # the record term of z bounds its Hessian-vector product by L_l1
            raise ValueError(f"H1 is {self.H1} and L_l1 is {self.L_l1}: L_l1 bounds the whole Hessian, so H1 <= L_l1")


@dataclass(frozen=True)
class PowerLaw:
    """Describe value / t^power for large t: one entry per agent, or one entry for all."""

    value: tuple[float, ...]
    power: tuple[float, ...]

    def of(self, agent: int) -> tuple[float, float]:
        """Return the value and the power of one agent."""
        return self.value[agent if len(self.value) > 1 else 0], self.power[agent if len(self.power) > 1 else 0]


def power_law(schedule: Schedule) -> PowerLaw | None:
    """Return how a schedule behaves for large t; None if no theorem here covers its kind.

    >>> power_law(Ratio(Decay(1.0, 0.65, offset=2), Decay(0.05, 0.66)))
    PowerLaw(value=(20.0,), power=(-0.01...,))
    """
    if not told_by_fields(schedule):
        return None
    if isinstance(schedule, Constant):
        return _law(schedule.value, 0.0)
    if isinstance(schedule, Decay):
        return _law(schedule.value, schedule.power)
    if isinstance(schedule, Scaled):
        return _product(power_law(schedule.of), _law(schedule.factor, 0.0))
    if isinstance(schedule, Ratio):
        return _product(power_law(schedule.top), power_law(schedule.bottom), inverse=True)
    return None


def message_noise(release: Release, step: Schedule, design: str) -> PowerLaw | None:
    """Return the standard deviation of the noise in a message.

    A printed design adds the noise to the message itself. A sound design adds it to the direction, so the message
    carries the step size times it.

    >>> message_noise(Release(1.0, 0.5), Decay(0.1, 0.9), "sound").power
    (0.9,)
    """
    deviation = _law(np.sqrt(2.0) if release.mechanism == "laplace" else 1.0, 0.0)
    law = _product(power_law(release.scale), deviation)
    return law if design == "printed" else _product(law, power_law(step))


def follows(values: np.ndarray, law: PowerLaw, agent: int, first: int = 1) -> bool:
    """Tell whether the values of one agent are value / t^power exactly, for t = first, first + 1, ...

    >>> slower = Decay(1.0, 0.5, offset=3)
    >>> [follows(np.asarray(given), power_law(slower), agent=0) for given in ([1.0, 2**-0.5], slower(np.arange(2)))]
    [True, False]
    """
    value, power = law.of(agent)
    return np.allclose(values, value / np.arange(first, first + len(values)) ** power, rtol=1e-9, atol=0)


class Laws(NamedTuple):
    """Describe step sizes and message noise of x, y and z, in this order, as power laws of the step."""

    steps: tuple[PowerLaw, ...]
    noise: tuple[PowerLaw, ...]

    def numbers(self, agent: int) -> tuple[list[float], list[float], list[float], list[float]]:
        """Return v, s, sigma and lam0 of one agent, each for x, y and z."""
        steps, noise = ([law.of(agent) for law in three] for three in self)
        return [p for _, p in steps], [p for _, p in noise], [a for a, _ in noise], [a for a, _ in steps]


@dataclass(frozen=True)
class Dynamics:
    """Say how x, y and z move, in this order: step sizes, releases, and the design ("sound" or "printed").

    The release of x may be None, for problems in which no record's loss reads x.

    >>> fixed = Dynamics((Constant(0.1),) * 3, (Release(1.0, 0.1),) * 3, "sound")
    >>> fixed.laws.steps[0], fixed.follows_the_paper(steps=10, agents=[0])
    (PowerLaw(value=(0.1,), power=(0.0,)), False)
    """

    steps: tuple[Schedule, Schedule, Schedule]
    releases: tuple[Release | None, Release, Release]
    design: str

    @property
    def laws(self) -> Laws | None:
        """Return all six power laws; None if one of the schedules is no power of the step, or x has no release."""
        steps = [power_law(step) for step in self.steps]
        noise = [
            message_noise(release, step, self.design) if release else None
            for step, release in zip(self.steps, self.releases)
        ]
        known = [law for law in (*steps, *noise) if law is not None]
        return Laws(tuple(known[:3]), tuple(known[3:])) if len(known) == 6 else None

    def follows_the_paper(self, steps: int, agents: Iterable[int]) -> bool:
        """Say whether step sizes and message noise of these agents are powers of the step exactly, the noise Laplace.

        Every step is looked at, because `power_law` says only what a schedule tends to.
        """
        if self.laws is None or any(release is None or release.mechanism != "laplace" for release in self.releases):
            return False
        times, first = np.arange(steps), 1 if self.design == "printed" else 2  # a sound start is public, without noise
        for agent in agents:
            sizes = [np.broadcast_to(step(times, agent), steps) for step in self.steps]
            sent = [np.sqrt(2.0) * release.scale(times, agent) for release in self.releases if release is not None]
            carried = sent if self.design == "printed" else [size * noise for size, noise in zip(sizes, sent)]
            noise = [np.broadcast_to(one, steps) for one in carried]
            exact = [follows(given, law, agent) for given, law in zip(sizes, self.laws.steps)]
            exact += [follows(given, law, agent, first) for given, law in zip(noise, self.laws.noise)]
            if not all(exact) or not all(law.of(agent)[0] > 0 for law in self.laws.noise):
                return False
        return True


def paper_dynamics(
    step: PerVariableAndAgent,
    v: PerVariableAndAgent,
    sigma: PerVariableAndAgent,
    s: PerVariableAndAgent,
    clip: float | Sequence[float] = math.inf,
    noise: str = "laplace",
    design: str = "sound",
) -> Dynamics:
    """Return Assumption 3.1's schedules: step sizes step/(t+1)^v, message noise of deviation sigma/(t+1)^s.

    Each setting is one value, or three for x, y and z. A value is a number, or a tuple with one number per agent.

    >>> paper_dynamics(step=1.2, v=.9, sigma=1.0, s=(.8, .7, .6), design="printed").steps[0]
    Decay(value=1.2, power=0.9, offset=1.0)
    """
    one = 1 / math.sqrt(2) if noise == "laplace" else 1.0  # a Laplace scale b has standard deviation sqrt(2) b

    def variable(which: int) -> tuple[Decay, Release]:
        value, power = _triple("step", step)[which], _triple("v", v)[which]
        deviation, decay = _triple("sigma", sigma)[which], _triple("s", s)[which]
        rate = Decay(value, power)
        scale = tuple(one * d for d in deviation) if isinstance(deviation, tuple) else one * deviation
        # The direction of step t ends up in message t + 1, multiplied by the step size.
        sent = Decay(scale, decay) if design == "printed" else Ratio(Decay(scale, decay, offset=2), rate)
        return rate, Release(_triple("clip", clip)[which], sent, noise)

    (step_x, x), (step_y, y), (step_z, z) = map(variable, range(3))
    return Dynamics((step_x, step_y, step_z), (x, y, z), design)


def _triple(name: str, value: Any) -> tuple[Any, Any, Any]:
    if isinstance(value, (int, float)):
        return value, value, value
    if len(value) != 3:
        raise ValueError(f"{name} has {len(value)} values: give one number, or three for x, y and z")
    first, second, third = value
    return first, second, third


def printed_epsilon(dynamics: Dynamics, network: Network, steps: int) -> float | None:
    """Return the epsilon of Theorem 4.5 for the worst agent; None unless noise and schedules are the paper's.

    Where agents' noise decays differently, the theorem prints one exponent for all, the smallest. What this number
    leaves out is said in `caveats` and in `sottovoce.privacy.published.ldp_dsbo`.

    >>> from sottovoce.networks import ring
    >>> paper = paper_dynamics(step=(.05, .05, .02), v=(.66, .64, .43), sigma=1.0, s=(.65, .63, .42))
    >>> round(printed_epsilon(paper, ring(10, 0.3), steps=20), 8)
    132.57462913
    """
    found = _theorem_4_5(dynamics, network, steps)
    return None if found is None else found[0]


def _theorem_4_5(dynamics: Dynamics, network: Network, steps: int) -> tuple[float, float] | None:
    """Return the worst agent's epsilon with the smallest exponents of all agents, and with each agent's own."""
    laws = dynamics.laws
    if laws is None or not dynamics.follows_the_paper(steps, range(network.size)):
        return None
    own_weight = float((1 - network.matrices["mix"].diagonal()).min())
    if not 0 < own_weight < 1:
        return None
    settings = [laws.numbers(agent) for agent in range(network.size)]
    least = [min(powers) for powers in zip(*(s for _, s, _, _ in settings))]
    printed = max(published.ldp_dsbo(steps, v, least, sigma, own_weight) for v, _, sigma, _ in settings)
    own = max(published.ldp_dsbo(steps, v, s, sigma, own_weight) for v, s, sigma, _ in settings)
    return printed, own


def proved_epsilon(
    dynamics: Dynamics,
    constants: L1Constants | None,
    z_radius: float,
    sampling: Sampling,
    network: Network,
    sizes: Mapping[str, Sequence[int]],
    steps: int,
    agent: int,
) -> float | None:
    """Return the epsilon that `sottovoce.privacy.sound.ldp_dsbo_printed` proves for the printed design's messages.

    Assumptions: the paper's noise and schedules, declared `constants`, clips so large that they never act, z in the L1
    ball of radius `z_radius`, a stream with one arrival per step that does not run dry. None where one of them fails.

    >>> from sottovoce.networks import ring
    >>> linear = L1Constants(c_h=1.0, c_l=1.0, L_h1=0.0, L_l1=0.0, L_l2=0.0, H1=0.0)
    >>> paper = paper_dynamics((.05, .05, .02), (.66, .64, .43), 1.0, (.65, .63, .42), clip=1.0, design="printed")
    >>> sizes = {"records": [20] * 10}
    >>> round(proved_epsilon(paper, linear, 1.0, Stream(), ring(10, 0.3), sizes, steps=20, agent=0), 4)
    2.7347
    """
    laws, (x, y, z) = dynamics.laws, dynamics.releases
    if laws is None or constants is None or not isinstance(sampling, Stream):
        return None
    if not dynamics.follows_the_paper(steps, [agent]):
        return None
    if sampling.arrivals != 1 or math.isinf(z_radius) or x is None:
        return None
    if min(own[agent] for own in sizes.values()) < steps:
        return None  # the recursion divides by all records that have arrived: the stream must not run dry
    second_order = constants.c_h + z_radius * constants.L_l1
    if y.clip < constants.c_l or min(x.clip, z.clip) < second_order:
        return None
    v, s, sigma, lam0 = laws.numbers(agent)
    return sound.ldp_dsbo_printed(
        steps, v, s, sigma, lam0, w=float(1 - network.matrices["mix"].diagonal()[agent]),
        c_h=constants.c_h, c_l=constants.c_l, c_z=z_radius,
        L_h1=constants.L_h1, L_l1=constants.L_l1, L_l2=constants.L_l2, H1=constants.H1,
    )  # fmt: skip


def caveats(dynamics: Dynamics, sampling: Sampling, network: Network, steps: int) -> list[str]:
    """List where the paper's theorem and a configuration differ.

    >>> from sottovoce.networks import ring
    >>> no_x = Dynamics((Constant(0.1),) * 3, (None, Release(1.0, 0.1), Release(1.0, 0.1)), "sound")
    >>> caveats(no_x, Stream(), ring(4), steps=5)
    ['x costs nothing: its direction is computed from released values alone, and never from records']
    """
    notes = []
    if dynamics.releases[0] is None:
        notes.append("x costs nothing: its direction is computed from released values alone, and never from records")
    if dynamics.design == "printed":
        notes.append("only the messages are covered: an agent's final state is un-noised and may not leave it")
    found = _theorem_4_5(dynamics, network, steps)
    if found is not None:
        printed, own = found
        if own > printed:
            notes.append(
                f"the published epsilon ({printed:.1f}) takes the smallest exponent of all agents' noise, as Theorem "
                f"4.5 prints it; its sum with each agent's own exponent is {own:.1f} for the worst agent"
            )
        notes.append(
            "the published epsilon (Theorem 4.5) leaves out the size of gradients and step sizes, and no finite "
            "epsilon exists for its z messages when the lower Hessian depends on records"
        )
        if not isinstance(sampling, Stream):
            notes.append("the published epsilon is for a running average over all records, not for mini-batches")
    return notes


@dataclass(frozen=True)
class Prediction:
    """State what was checked, and the exponent r of the predicted error O(T^-r): None when a condition fails."""

    case: Convexity
    findings: tuple[Condition, ...]
    rate: float | None

    @property
    def failed(self) -> tuple[Condition, ...]:
        """Return the conditions that do not hold."""
        return tuple(finding for finding in self.findings if not finding.holds)

    def __str__(self) -> str:
        head = f"{self.case}: " + ("no rate is predicted" if self.rate is None else f"error O(T^-{self.rate:g})")
        return "\n".join([head, *map(str, self.findings)])


def predict(dynamics: Dynamics, network: Network, case: Convexity = "nonconvex") -> Prediction:
    """Check Assumptions 2.1 and 3.1 and Theorem 4.1 for given step sizes and noise on a network.

    The paper's stricter reading of Assumption 2.1 (eigenvalues of -W below 1) is listed but not required: its own
    ring with weight 0.3 fails it, and averaging converges without it.

    >>> from sottovoce.networks import ring
    >>> mnist = paper_dynamics(step=1.2, v=(.95, .87, .75), sigma=1.0, s=(.81, .77, .61), design="printed")
    >>> prediction = predict(mnist, ring(10, weight=0.3))
    >>> [finding.name for finding in prediction.failed]
    ['2 s_x > v_z + v_y', '2 s_y > v_z + v_y', '2 s_y > 2 v_z + 1 - v_x', 'stricter reading: eigenvalues of -W below 1']
    """
    laws = dynamics.laws
    if laws is None:
        raise ValueError("step sizes and noise of x, y and z must be powers of the step: Constant, Decay, Ratio")
    steps, noise = laws
    weights = tuple(network.check())
    per_agent = [[law.power for law in three] for three in (steps, noise)]
    silent = [name for name, law in zip(VARIABLES, noise) if not min(law.value) > 0]
    checked = conditions([max(p) for p in per_agent[0]], per_agent[1], case)
    positive = Condition(
        "noise is positive", not silent, f"no noise on {', '.join(silent)}" if silent else "on x, y and z"
    )
    findings = (positive, *checked, *weights)
    required = [finding.holds for finding in findings if finding.name != _STRICT]
    lowest = [min(p) for p in per_agent[1]]
    return Prediction(case, findings, rate([max(p) for p in per_agent[0]], lowest, case) if all(required) else None)


def conditions(v: Sequence[float], s: Sequence[Any], case: Convexity) -> list[Condition]:
    """List the conditions of Assumption 3.1 and Theorem 4.1 on step-size exponents v and noise exponents s.

    Both have one entry for each of x, y and z. An entry of s is a number, or one number per agent: Assumption 3.1 looks
    at the largest, Theorem 4.1 at the smallest.

    >>> all(c.holds for c in conditions((.66, .64, .43), (.65, .63, .42), "strongly convex"))
    True
    """
    check_case(case)
    vx, vy, vz = v
    fastest, (sx, sy, sz) = [float(np.max(p)) for p in s], [float(np.min(p)) for p in s]
    asked: list[tuple[str, float, float]] = [  # left side must exceed right side
        *((f"s_{name} < v_{name}", power, fast) for name, power, fast in zip(VARIABLES, v, fastest)),
        ("v_z > 0", vz, 0.0),
        ("v_y > v_z", vy, vz),
        ("v_x > v_y", vx, vy),
        ("v_x < 1", 1.0, vx),
        ("2 s_x > v_z + v_y", 2 * sx, vz + vy),
        ("2 s_y > v_z + v_y", 2 * sy, vz + vy),
        ("2 s_z > v_y", 2 * sz, vy),
    ]
    if case == "strongly convex":
        asked.append(("2 s_x > v_x", 2 * sx, vx))
    else:
        slack, name = (2 - 2 * vx, "2 - 2 v_x") if case == "convex" else (1 - vx, "1 - v_x")
        asked += [
            ("s_x > 1/2", sx, 0.5),
            (f"2 s_x > 2 v_z + {name}", 2 * sx, 2 * vz + slack),
            (f"2 s_y > 2 v_z + {name}", 2 * sy, 2 * vz + slack),
            (f"2 s_y > v_y + {name}", 2 * sy, vy + slack),
            (f"2 s_z > v_z + {name}", 2 * sz, vz + slack),
        ]
    # Exponents are decimals: a tie, which fails, must not turn on the last bit of a sum.
    return [Condition(name, left > right + 1e-9, f"{left:.6g} against {right:.6g}") for name, left, right in asked]


def rate(v: Sequence[float], s: Sequence[float], case: Convexity) -> float:
    """Return the exponent of Theorem 4.1, whether or not its conditions hold.

    The error is |x - x*|^2 at the last step (strongly convex), the average of F - F* (convex), or the average of the
    squared hypergradient (nonconvex).

    >>> round(rate((.66, .64, .43), (.65, .63, .42), "strongly convex"), 10)
    0.4
    """
    check_case(case)
    (vx, vy, vz), (sx, sy, sz) = v, s
    if case != "strongly convex":
        return 1 - vx
    return min(2 * sx - vx, 2 * sx - 2 * vz, 2 * sy - 2 * vz, 2 * sz - vz, 2 * sy - vy, 2 - 2 * vy)


def check_case(case: str) -> None:
    """Raise ValueError unless Theorem 4.1 has this case.

    >>> check_case("convex")
    """
    if case not in CASES:
        raise ValueError(f"case is {case!r}: choose one of {', '.join(CASES)}")


def _law(value: Any, power: Any) -> PowerLaw:
    return PowerLaw(*(tuple(np.atleast_1d(np.asarray(entry, float)).tolist()) for entry in (value, power)))


def _product(first: PowerLaw | None, second: PowerLaw | None, inverse: bool = False) -> PowerLaw | None:
    if first is None or second is None:
        return None
    (a, p), (b, q) = ((np.array(law.value), np.array(law.power)) for law in (first, second))
    with np.errstate(divide="ignore", invalid="ignore"):
        return _law(a / b, p - q) if inverse else _law(a * b, p + q)
