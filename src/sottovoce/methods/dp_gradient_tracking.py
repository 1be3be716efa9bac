"""DP gradient tracking over directed graphs.

Chen, Wang and Zhang, "Differentially private gradient-tracking-based distributed stochastic optimization over directed
graphs": states travel along a pull graph R, trackers of the average gradient along a push graph C. The two may differ,
and need no more than spanning trees with a common root.

`design="sound"` releases each agent's clipped noisy gradient and tracks by post-processing. `design="printed"` is the
paper's Algorithm 1: un-noised states, Laplace noise on the messages, in two forms that the paper takes for one. Its
privacy proof is about equations (4) and (6), `form="box"`; its convergence proof is about (7) and (8),
`form="compact"`. The box weighs trackers by row sums, which does not keep their sum equal to the sum of the gradients:
unless the push graph is balanced it converges to a biased point. What the paper proves is in
`sottovoce.theory.gradient_tracking`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import jax

from sottovoce.methods.base import Method, Setting
from sottovoce.methods.design import Design, check_design
from sottovoce.naming import check_count
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import FixedSize, Full, Sampling
from sottovoce.problems import Minimize
from sottovoce.schedules import schedule
from sottovoce.theory import gradient_tracking as theory
from sottovoce.theory.gradient_tracking import S1, S2, Rates
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
    """Gradient tracking over directed pull and push graphs, with released gradients (or as its paper prints it).

    Args:
        scheme: step sizes: `S1`, `S2`, or plain `Rates`. A run has at most K+1 steps under `S1` and `S2`.
        gradient: sound: clip and noise of the released gradient. Printed: clip of the gradients and noise of the
            trackers' messages.
        sampling: how batches are drawn; by default ``FixedSize(scheme.batch)``.
        design: "sound" or "printed".
        form: of the printed design, "box" or "compact".
        state: printed only: noise of the states' messages; by default that of `gradient`.
        rounds: sound only: exchanges of trackers and states for each released gradient. All but the first come after
            the step, so that a gradient reaches agents far down a tree before the next is taken. They cost messages
            but no privacy, because they are post-processing; the paper has one.
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
    design: Design = "sound"
    form: Literal["box", "compact"] = "box"
    state: Release | None = None
    lipschitz: float | None = None
    rounds: int = 1

    solves: ClassVar[tuple[type, ...]] = (Minimize,)
    over: ClassVar[tuple[str, ...]] = ("pull", "push")

    def __post_init__(self) -> None:
        check_design(self.design)
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

    @classmethod
    def paper(
        cls,
        scheme: S1 | S2,
        *,
        p_zeta: float,
        p_eta: float,
        clip: float,
        form: Literal["box", "compact"] = "box",
        lipschitz: float | None = None,
    ) -> Self:
        """Build Algorithm 1 as printed: the step sizes and batch of scheme S1 or S2, and its Laplace noise.

        The noise of Assumption 5 is (k+1)^p on message k (S1), that of Assumption 6 is p^K on every message (S2), with
        p_zeta for states and p_eta for trackers. The defaults of `S1` and `S2` are the paper's experiment, which takes
        both exponents from -0.1, 0.1, 0.2 (S1) or 0.9994, 0.9996, 0.9998 (S2). The paper bounds differences of
        gradients by a constant C and does not clip; here C is ``2 clip``.

        >>> method = DpGradientTracking.paper(S2(K=2000), p_zeta=0.9996, p_eta=0.9996, clip=1.0)
        >>> method.sampling, round(method.state.scale(0), 3)
        (FixedSize(batch=55), 0.449)
        """
        state, gradient = (Release(clip, scheme.noise(p), "laplace") for p in (p_zeta, p_eta))
        return cls(scheme, gradient, design="printed", form=form, state=state, lipschitz=lipschitz)

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
        slope = self._mean(problem, Private(problem.x0), agent)  # Initialization: y_0 = g_0
        return TrackingState(Private(problem.x0), slope, slope)

    def step(self, problem: Minimize, state: TrackingState, agent: "Agent") -> TrackingState:
        """Run one iteration of the chosen design."""
        given = (self.scheme.alpha, self.scheme.beta, self.scheme.gamma)
        rates = tuple(schedule(rate)(agent.t, agent.index) for rate in given)
        if self.design == "sound":
            return self._sound(problem, state, agent, *rates)
        return self._printed(problem, state, agent, *rates)

    def _sound(
        self, problem: Minimize, state: TrackingState, agent: "Agent", alpha: Any, beta: Any, gamma: Any
    ) -> TrackingState:
        x, y, g = state
        batch = agent.sample(self._sampling)  # line 5
        slope = agent.release(self.gradient, problem.loss, at=x, batch=batch, public=problem.public)  # line 6, noised

        def push(y: Tree) -> Tree:  # (I - beta L2) y: what an agent sends leaves its own tracker, so sums are kept
            return _toward(y, beta, agent.sent("push"), agent.mix(y, over="push"))

        def pull(x: Tree) -> Tree:  # (I - alpha L1) x
            return _toward(x, alpha, agent.heard("pull"), agent.mix(x, over="pull"))

        y = combine(lambda y, new, old: y + new - old, push(y), slope, g)  # (8)
        for _ in range(self.rounds - 1):
            y = push(y)
        x = combine(lambda x, y: x - gamma * y, pull(x), y)  # (7), with the new y
        for _ in range(self.rounds - 1):
            x = pull(x)
        return TrackingState(problem.project_x(x), y, slope)

    def _printed(
        self, problem: Minimize, state: TrackingState, agent: "Agent", alpha: Any, beta: Any, gamma: Any
    ) -> TrackingState:
        x, y, g = state
        assert self.state is not None
        sent_x, sent_y = agent.tell(self.state, x), agent.tell(self.gradient, y)  # line 1
        heard_x, heard_y = agent.mix(sent_x, over="pull"), agent.mix(sent_y, over="push")  # lines 2 and 3
        if self.form == "box":  # (4), (6): rows, and the own noise stays out of the own state
            x_next = _toward(x, alpha, agent.heard("pull"), heard_x)
            y_next = _toward(y, beta, agent.heard("push"), heard_y)
        else:  # (7), (8): columns, and the own noise enters
            x_next = _toward(x, alpha, agent.heard("pull"), heard_x, sent_x)
            y_next = _toward(y, beta, agent.sent("push"), heard_y, sent_y)
        x_next = combine(lambda x, y: x - gamma * y, x_next, y)  # line 4
        slope = self._mean(problem, x_next, agent)  # lines 5 and 6
        return TrackingState(x_next, combine(lambda y, new, old: y + new - old, y_next, slope, g), slope)  # line 7

    def _mean(self, problem: Minimize, at: Private, agent: "Agent") -> Private:
        batch = agent.sample(self._sampling)
        return agent.mean(self.gradient, problem.loss, at=at, batch=batch, public=problem.public)

    @property
    def _sampling(self) -> Sampling:
        assert self.sampling is not None
        return self.sampling

    @property
    def _as_printed(self) -> theory.PrintedTracking | None:
        if self.state is None:
            return None
        return theory.PrintedTracking(self.scheme, self.state, self.gradient, self._sampling, self.form, self.lipschitz)

    def published(self, setting: Setting) -> float | None:
        """Return Lemmas 4 and 5 for the worst agent, with C = 2 clip: proved for the box form, printed for both."""
        given = self._as_printed
        return theory.printed_epsilon(given, setting.network, setting.sizes, setting.steps) if given else None

    def proved(self, setting: Setting, agent: int) -> float | None:
        """Return the bound of `sound.gradient_tracking_printed`, where `lipschitz` is given and noise is Laplace."""
        given = self._as_printed
        where = setting.network, setting.sizes, setting.steps, agent
        return theory.proved_epsilon(given, *where) if given else None

    def caveats(self, setting: Setting) -> Sequence[str]:
        """List what the printed design leaves open."""
        return () if self.design == "sound" else theory.caveats(self.lipschitz, self.form, setting.network)

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


def _toward(own: Tree, rate: Any, weight: jax.Array, heard: Tree, sent: Tree | None = None) -> Tree:
    """Move toward what was heard: own + rate * (heard - weight * sent), where an agent sends its own by default."""
    return combine(lambda o, h, t: o + rate * (h - weight * t), own, heard, own if sent is None else sent)
