"""Run DP gradient tracking over directed graphs.

Chen, Wang and Zhang, "Differentially private gradient-tracking-based distributed stochastic optimization over directed
graphs": states travel along a pull graph R, trackers of the average gradient along a push graph C. The two may differ,
and need no more than spanning trees with a common root.

`design="sound"` releases each agent's clipped noisy gradient and tracks by post-processing. `design="printed"` is the
paper's Algorithm 1: un-noised states, Laplace noise on the messages, in two forms that the paper takes for one. Its
privacy proof is about equations (4) and (6), `form="box"`; its convergence proof is about (7) and (8),
`form="compact"`. The box weighs trackers by row sums, which does not keep their sum equal to the sum of the gradients:
unless the push graph is balanced it converges to a biased point. The paper's theory: `theory.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, get_args

import jax

from sottovoce.methods.agent import Agent
from sottovoce.methods.base import Method, Setting
from sottovoce.methods.design import Design, check_design
from sottovoce.naming import check_choice, check_count
from sottovoce.optimisers import require_plain
from sottovoce.papers.gradient_tracking import theory
from sottovoce.papers.gradient_tracking.theory import S1, S2, Rates
from sottovoce.papers.gradient_tracking.tracking import Form, box, compact, pull, push
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import FixedSize, Full, Sampling
from sottovoce.problems import Minimize
from sottovoce.trees import Tree, zeros_like


class TrackingState(NamedTuple):
    """Hold x, the tracker of the average gradient, and the last gradient: public by induction in the sound design."""

    x: Tree
    y: Tree
    g: Tree


@dataclass(frozen=True)
class DpGradientTracking(Method):
    """Track gradients over directed pull and push graphs, with released gradients (or as its paper prints it).

    Args:
        scheme: step sizes: `S1`, `S2`, or plain `Rates`. A run has at most K+1 steps under `S1` and `S2`.
        gradient: sound: clip and noise of the released gradient. Printed: clip of the gradients and noise of the
            trackers' messages.
        sampling: how batches are drawn; by default ``FixedSize(scheme.batch)``.
        design, form: "sound" or "printed"; for the printed design "box" or "compact".
        state: printed only: noise of the states' messages; by default that of `gradient`.
        rounds: sound only: exchanges of trackers and states for each released gradient. All but the first come after
            the step, so that a gradient reaches agents far down a tree before the next is taken. They cost messages
            but no privacy, because they are post-processing; the paper has one.
        lipschitz: printed only: a constant by which the clipped batch gradient, public terms included, is Lipschitz
            from L1 to L1. With it the printed messages have a proved epsilon; clipping alone proves none.

    >>> import sottovoce as sv
    >>> rates = Rates(alpha=0.5, beta=0.5, gamma=0.1)
    >>> method = DpGradientTracking(rates, gradient=sv.Release(1.0, 0.1), sampling=sv.Poisson(100))
    >>> network = sv.networks.directed(pull=[(0, 1), (0, 2)], push=[(1, 0), (2, 0)])
    >>> round(sv.account(method, sv.Population([1000] * 3), steps=501, network=network).epsilon, 3)
    0.829
    """

    scheme: Rates | S1 | S2
    gradient: Release
    sampling: Sampling | None = None
    design: Design = "sound"
    form: Form = "box"
    state: Release | None = None
    lipschitz: float | None = None
    rounds: int = 1

    solves: ClassVar[tuple[type, ...]] = (Minimize,)
    over: ClassVar[tuple[str, ...]] = ("pull", "push")

    def __post_init__(self) -> None:
        if isinstance(self.scheme, Rates):
            require_plain("trackers add up only if all agents follow plain gradients", **vars(self.scheme))
        check_design(self.design)
        check_choice("form", self.form, get_args(Form))
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
    def paper(cls, scheme: S1 | S2, *, p_zeta: float, p_eta: float, clip: float, form: Form = "box") -> Self:
        """Build Algorithm 1 as printed: the step sizes and batch of scheme S1 or S2, and its Laplace noise.

        The noise is (k+1)^p on message k (S1, Assumption 5) or p^K on every message (S2, Assumption 6), with p_zeta for
        states and p_eta for trackers. The defaults of `S1` and `S2` are the paper's experiment, which takes both from
        -0.1, 0.1, 0.2 (S1) or 0.9994, 0.9996, 0.9998 (S2). Its bound C on differences of gradients is ``2 clip`` here.

        >>> method = DpGradientTracking.paper(S2(K=2000), p_zeta=0.9996, p_eta=0.9996, clip=1.0)
        >>> method.sampling, round(method.state.scale(0), 3)
        (FixedSize(batch=55), 0.449)
        """
        state, gradient = (Release(clip, scheme.noise(p), "laplace") for p in (p_zeta, p_eta))
        return cls(scheme, gradient, design="printed", form=form, state=state)

    def init(self, problem: Minimize, agent: Agent) -> TrackingState:
        """Start at x0; the tracker starts as the first gradient, which the sound design takes in its first step."""
        theory.check_steps(self.scheme, agent.steps)
        if self.design == "sound":
            return TrackingState(problem.x0, zeros_like(problem.x0), zeros_like(problem.x0))
        if problem.project_x is not Minimize.project_x:
            raise ValueError("the printed design has no constraint set: leave project_x out, or use design='sound'")
        slope = self._mean(problem, problem.x0, agent)  # Initialization: y_0 = g_0
        return TrackingState(problem.x0, slope, slope)

    def step(self, problem: Minimize, state: TrackingState, agent: Agent) -> TrackingState:
        """Run one iteration of the chosen design."""
        rates = (rate(agent.t, agent.index) for rate in theory.step_sizes(self.scheme))
        return (self._sound if self.design == "sound" else self._printed)(problem, state, agent, *rates)

    def _sound(self, problem: Minimize, state: TrackingState, agent: Agent, *rates: Any) -> TrackingState:
        (x, y, g), (alpha, beta, gamma) = state, rates
        batch = agent.sample(self._sampling)  # line 5
        slope = agent.release(self.gradient, problem.loss, at=x, batch=batch, public=problem.public)  # line 6, noised
        y = jax.tree.map(lambda y, new, old: y + new - old, push(agent, beta, y), slope, g)  # (8)
        for _ in range(self.rounds - 1):
            y = push(agent, beta, y)
        x = jax.tree.map(lambda x, y: x - gamma * y, pull(agent, alpha, x), y)  # (7), with the new y
        for _ in range(self.rounds - 1):
            x = pull(agent, alpha, x)
        return TrackingState(problem.project_x(x), y, slope)

    def _printed(self, problem: Minimize, state: TrackingState, agent: Agent, *rates: Any) -> TrackingState:
        (x, y, g), (alpha, beta, gamma) = state, rates
        sent_x, sent_y = agent.tell(self.state or self.gradient, x), agent.tell(self.gradient, y)  # line 1
        exchange = box if self.form == "box" else compact
        x, y_next = exchange(agent, alpha, beta, x, y, sent_x, sent_y)  # lines 2 and 3
        x = jax.tree.map(lambda x, y: x - gamma * y, x, y)  # line 4
        slope = self._mean(problem, x, agent)  # lines 5 and 6
        return TrackingState(x, jax.tree.map(lambda y, new, old: y + new - old, y_next, slope, g), slope)  # line 7

    def _mean(self, problem: Minimize, at: Tree, agent: Agent) -> Tree:
        return agent.mean(self.gradient, problem.loss, at=at, batch=agent.sample(self._sampling), public=problem.public)

    @property
    def _sampling(self) -> Sampling:
        return self.sampling or Full()  # `__post_init__` has set it

    @property
    def _as_printed(self) -> theory.PrintedTracking:
        noise = self.state or self.gradient, self.gradient
        return theory.PrintedTracking(self.scheme, *noise, self._sampling, self.form, self.lipschitz)

    def published(self, setting: Setting) -> float | None:
        """Return Lemmas 4 and 5 for the worst agent, with C = 2 clip: proved for the box form, printed for both."""
        where = setting.network, setting.sizes, setting.steps
        return theory.printed_epsilon(self._as_printed, *where) if self.design == "printed" else None

    def proved(self, setting: Setting, agent: int) -> float | None:
        """Return the bound of `sound.gradient_tracking_printed`, where `lipschitz` is given and noise is Laplace."""
        where = setting.network, setting.sizes, setting.steps, agent
        return theory.proved_epsilon(self._as_printed, *where) if self.design == "printed" else None

    def caveats(self, setting: Setting) -> Sequence[str]:
        """List what the printed design leaves open."""
        return () if self.design == "sound" else theory.caveats(self.lipschitz, self.form, setting.network)

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return the sound design, and both forms of the printed one."""
        common: dict[str, Any] = {"scheme": Rates(0.4, 0.4, 0.1), "gradient": Release.open(), "sampling": Full()}
        printed = {form: cls(**common, design="printed", form=form) for form in get_args(Form)}
        return {"sound": cls(**common), "rounds": cls(**common, rounds=3), **printed}
