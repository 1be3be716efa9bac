"""DP gradient tracking over directed graphs.

Chen, Wang and Zhang, "Differentially private gradient-tracking-based distributed stochastic optimization over directed
graphs": states travel along a pull graph R, trackers of the average gradient along a push graph C. The two may differ,
and need no more than spanning trees with a common root.

`design="sound"` releases each agent's clipped noisy gradient and tracks by post-processing. `design="printed"` is the
paper's: un-noised states, Laplace noise on the messages, in two forms that the paper takes for one. Its equations (4)
and (6), `form="box"`, are what its privacy proof reads; (7) and (8), `form="compact"`, what its convergence proof
reads. The box weighs trackers by row sums, which does not keep their sum equal to the gradients': unless the
push graph is balanced it converges to a biased point.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import jax
import numpy as np

from sottovoce.methods.base import Method, Setting
from sottovoce.methods.gradient_tracking_schemes import S1, S2, Rates
from sottovoce.naming import check_count
from sottovoce.privacy import published, sound
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import FixedSize, Full, Poisson, Sampling
from sottovoce.problems import Minimize
from sottovoce.schedules import Constant, Schedule, schedule
from sottovoce.trees import Private, Tree, combine, zeros_like

if TYPE_CHECKING:
    from sottovoce.runtime.agent import Agent


class TrackingState(NamedTuple):
    """The state, the tracker of the average gradient, the last gradient: in the sound design public, by induction."""

    x: Tree
    y: Tree
    g: Tree


@dataclass(frozen=True)
class DpGradientTracking(Method):
    """Gradient tracking over directed pull and push graphs, private by released gradients (or as its paper prints it).

    Args:
        scheme: step sizes: `S1`, `S2`, or plain `Rates`. A run has at most K+1 steps under `S1` and `S2`.
        gradient: sound: clip and noise of the released gradient. Printed: clip of the gradients and noise of the
            trackers' messages.
        sampling: how batches are drawn; by default ``FixedSize(scheme.batch)``.
        design: "sound" or "printed".
        form: of the printed design, "box" or "compact".
        state: printed only: noise of the states' messages; by default that of `gradient`.
        rounds: sound only: exchanges of trackers and states for each released gradient. All but the first come after
            the step, so that a gradient reaches those far down a tree before the next is taken. They cost messages
            and no privacy, being post-processing; the paper has one.
        lipschitz: printed only: a constant by which the clipped batch gradient, public terms included, is Lipschitz
            from L1 to L1. With it the printed messages have a proved epsilon; clipping alone proves none.

    >>> rates = Rates(alpha=0.5, beta=0.5, gamma=0.1)
    >>> method = DpGradientTracking(rates, gradient=Release(1.0, 0.1), sampling=Poisson(100))
    >>> import sottovoce as sv
    >>> network = sv.networks.directed(pull=[(0, 1), (0, 2)], push=[(1, 0), (2, 0)])
    >>> round(sv.account(method, sizes=[1000] * 3, steps=501, network=network).epsilon, 3)
    0.829
    """

    scheme: Rates | S1 | S2
    gradient: Release
    sampling: Sampling | None = None
    design: Literal["sound", "printed"] = "sound"
    form: Literal["box", "compact"] = "box"
    state: Release | None = None
    lipschitz: float | None = None
    rounds: int = 1

    solves: ClassVar[tuple[type, ...]] = (Minimize,)
    over: ClassVar[tuple[str, ...]] = ("pull", "push")

    def __post_init__(self) -> None:
        if self.design not in ("sound", "printed"):
            raise ValueError(f"design is {self.design!r}: choose 'sound' or 'printed'")
        if self.form not in ("box", "compact"):
            raise ValueError(f"form is {self.form!r}: choose 'box', equations (4) and (6), or 'compact', (7) and (8)")
        if self.design == "sound" and not (self.state is None and self.lipschitz is None):
            raise ValueError("state= and lipschitz= are for design='printed': the sound one needs neither")
        check_count("rounds", self.rounds)
        if self.design == "printed" and self.rounds > 1:
            raise ValueError("rounds= is for design='sound': a printed message is a release, and costs privacy")
        if self.sampling is None:
            if isinstance(self.scheme, Rates):
                raise ValueError("plain Rates say nothing of the batch: give sampling=, for example Poisson(100)")
            object.__setattr__(self, "sampling", FixedSize(self.scheme.batch))
        if self.design == "printed" and self.state is None:
            object.__setattr__(self, "state", replace(self.gradient, name="state"))
        super().__post_init__()

    def init(self, problem: Minimize, agent: "Agent") -> TrackingState:
        """Start at x0; the tracker starts as the first gradient, which the sound design takes in its first step."""
        if not isinstance(self.scheme, Rates) and agent.steps > self.scheme.K + 1:
            raise ValueError(
                f"the scheme is made for iterations 0 to {self.scheme.K}, the run has {agent.steps} steps: "
                f"set K={agent.steps - 1}, or run at most {self.scheme.K + 1} steps"
            )
        if self.design == "sound":
            return TrackingState(problem.x0, zeros_like(problem.x0), zeros_like(problem.x0))
        if problem.project_x is not Minimize.project_x:
            raise ValueError("the printed design has no constraint set: leave project_x out, or use design='sound'")
        slope = self._mean(problem, Private(problem.x0), agent)
        return TrackingState(Private(problem.x0), slope, slope)

    def step(self, problem: Minimize, state: TrackingState, agent: "Agent") -> TrackingState:
        """One iteration."""
        rates = tuple(schedule(rate)(agent.t, agent.index) for rate in self._rates)
        if self.design == "sound":
            return self._sound(problem, state, agent, *rates)
        return self._printed(problem, state, agent, *rates)

    def _sound(
        self, problem: Minimize, state: TrackingState, agent: "Agent", alpha: Any, beta: Any, gamma: Any
    ) -> TrackingState:
        x, y, g = state
        batch = agent.sample(self._sampling)
        slope = agent.release(self.gradient, problem.loss, at=x, batch=batch, public=problem.public)

        # What an agent sends leaves its own tracker, so that trackers always add up to the released gradients.
        def push(y: Tree) -> Tree:
            return _toward(y, beta, agent.sent("push"), agent.mix(y, over="push"))

        def pull(x: Tree) -> Tree:
            return _toward(x, alpha, agent.heard("pull"), agent.mix(x, over="pull"))

        y = combine(lambda y, new, old: y + new - old, push(y), slope, g)
        for _ in range(self.rounds - 1):
            y = push(y)
        x = combine(lambda x, y: x - gamma * y, pull(x), y)
        for _ in range(self.rounds - 1):
            x = pull(x)
        return TrackingState(problem.project_x(x), y, slope)

    def _printed(
        self, problem: Minimize, state: TrackingState, agent: "Agent", alpha: Any, beta: Any, gamma: Any
    ) -> TrackingState:
        x, y, g = state
        assert self.state is not None
        told_x, told_y = agent.tell(self.state, x), agent.tell(self.gradient, y)
        heard_x, heard_y = agent.mix(told_x, over="pull"), agent.mix(told_y, over="push")
        if self.form == "box":  # (4), (6): rows, and the own noise stays out of the own state
            x_next = _toward(x, alpha, agent.heard("pull"), heard_x)
            y_next = _toward(y, beta, agent.heard("push"), heard_y)
        else:  # (7), (8): columns, and the own noise enters
            x_next = _toward(x, alpha, agent.heard("pull"), heard_x, told_x)
            y_next = _toward(y, beta, agent.sent("push"), heard_y, told_y)
        x_next = combine(lambda x, y: x - gamma * y, x_next, y)
        slope = self._mean(problem, x_next, agent)
        return TrackingState(x_next, combine(lambda y, new, old: y + new - old, y_next, slope, g), slope)

    def _mean(self, problem: Minimize, at: Private, agent: "Agent") -> Private:
        batch = agent.sample(self._sampling)
        return agent.mean(self.gradient, problem.loss, at=at, batch=batch, public=problem.public)

    @property
    def _rates(self) -> tuple[float | Schedule, float | Schedule, float | Schedule]:
        return self.scheme.alpha, self.scheme.beta, self.scheme.gamma

    @property
    def _sampling(self) -> Sampling:
        assert self.sampling is not None
        return self.sampling

    # What the paper prints for its design, and what is proved of it.

    def published(self, setting: Setting) -> float | None:
        """Lemmas 4 and 5 for the worst agent, with C = 2 clip: proved for the box form, printed for both."""
        if not self._is_bounded(setting):
            return None
        return max(
            published.gradient_tracking(K=setting.steps - 1, C=2 * self.gradient.clip, m=m, **weights)
            for m, weights in (self._constants(setting, agent) for agent in range(setting.network.size))
        )

    def proved(self, setting: Setting, agent: int) -> float | None:
        """The bound of `sound.gradient_tracking_printed`, where `lipschitz` is given and noise is Laplace."""
        if self.lipschitz is None or not self._is_bounded(setting):
            return None
        m, weights = self._constants(setting, agent)
        form: Literal["tight", "compact"] = "tight" if self.form == "box" else "compact"
        return float(
            sound.gradient_tracking_printed(
                K=setting.steps - 1, c=2 * self.gradient.clip / m, L1=self.lipschitz, form=form, **weights
            )
        )

    def caveats(self, setting: Setting) -> Sequence[str]:
        """What the printed design leaves open."""
        if self.design == "sound":
            return ()
        notes = ["the final states are un-noised and may not be published: only messages are covered"]
        if self.lipschitz is None:
            notes.append("gradients at private states drift apart: without lipschitz= no epsilon is proved")
        else:
            notes.append(f"epsilon assumes clipped gradients that are {self.lipschitz:g}-Lipschitz from L1 to L1")
        push = setting.network.push
        imbalance = np.abs(np.asarray(push.sum(axis=0) - push.sum(axis=1))).max()
        if self.form == "box" and imbalance > 1e-8:
            notes.append("the push graph is not balanced: the box form, (4) and (6), converges to a biased point")
        return notes

    def _is_bounded(self, setting: Setting) -> bool:
        """Whether the bounds for printed messages apply: Laplace noise, fixed step sizes, a fixed share per record."""
        fixed = all(isinstance(schedule(rate), Constant) for rate in self._rates)
        once = isinstance(self.sampling, (Full, Poisson, FixedSize))  # a record counts once in a batch
        laplace = all(release.private and release.mechanism == "laplace" for release in self.releases())
        return self.design == "printed" and fixed and once and laplace

    def _constants(self, setting: Setting, agent: int) -> tuple[int, dict[str, Any]]:
        """The batch and what else the recursions take, of one agent."""
        assert self.state is not None
        alpha, beta, gamma = (float(schedule(rate)(0, agent)) for rate in self._rates)
        (size,) = (sizes[agent] for sizes in setting.sizes.values())
        network = setting.network
        return int(self._sampling.denominator(size, 0)), {
            "a": alpha * float(network.pull[[agent], :].sum()),
            "b": beta * float(network.push[[agent], :].sum()),
            "gamma": gamma,
            "zeta": _Of(self.state.scale, agent),
            "eta": _Of(self.gradient.scale, agent),
        }

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """The sound design, and both forms of the printed one."""
        common: dict[str, Any] = {"scheme": Rates(0.4, 0.4, 0.1), "gradient": Release.open(), "sampling": Full()}
        return {
            "sound": cls(**common),
            "rounds": cls(**common, rounds=3),
            "box": cls(**common, design="printed"),
            "compact": cls(**common, design="printed", form="compact"),
        }


@dataclass(frozen=True)
class _Of:
    """One agent's noise as a function of the step."""

    scale: Schedule
    agent: int

    def __call__(self, t: np.ndarray) -> Any:
        return self.scale(t, self.agent)


def _toward(own: Tree, rate: Any, weight: jax.Array, heard: Tree, told: Tree | None = None) -> Tree:
    """Move toward what was heard: own + rate * (heard - weight * told), where an agent tells its own by default."""
    return combine(lambda o, h, t: o + rate * (h - weight * t), own, heard, own if told is None else told)
