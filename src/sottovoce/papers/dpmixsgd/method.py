"""Run DPMixSGD: private decentralised min-max with variance-reduced, tracked gradients.

Quan, Wang, Zhai, Fang and Liu, "Enhancing privacy in decentralized min-max optimization: a differentially private
approach", Algorithm 1: the hybrid estimator of STORM (Cutkosky and Orabona, NeurIPS 2019) and the gradient tracking of
DM-HSGD (Xian et al., NeurIPS 2021), with Gaussian noise on what neighbours see. Its theory: `theory.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, get_args

import jax

from sottovoce.methods.agent import Agent
from sottovoce.methods.base import Method, Setting
from sottovoce.methods.design import Design, check_design
from sottovoce.optimisers import require_plain
from sottovoce.papers.dpmixsgd import theory
from sottovoce.papers.dpmixsgd.storm import XY, gradients, increments, noised, storm
from sottovoce.privacy import published
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import FixedSize, Full, Poisson, Sampling
from sottovoce.problems import MinMax
from sottovoce.schedules import Schedule, schedule
from sottovoce.trees import descend, zeros_like


class MixState(NamedTuple):
    """Hold the state: public by induction, except for `estimate` in the printed design."""

    x: Any
    y: Any
    before: XY  # x and y of the step before
    estimate: XY  # the estimators g and h that the next ones are built on
    sent: XY  # g* and h*: what was released of them
    tracked: XY  # v and u: their averages over the network, as far as known


@dataclass(frozen=True)
class DpMixSgd(Method):
    """Solve min-max problems privately over a graph: noised, tracked STORM estimators of both gradients (DPMixSGD).

    One step of an agent, with a batch that x and y share::

        g' = grad_x F(x, y; batch) + (1 - beta_x) (g - grad_x F(x_before, y_before; batch))      h' likewise
        v' = W (v + g*' - g*),   x' = project(W (x - rate_x v'))                                 g* = g + noise
        u' = W (u + h*' - h*),   y' = project(W (y + rate_y u'))

    The first iteration takes its estimators from the batch `first` alone and belongs to `init`: a run of `steps` makes
    ``steps + 1`` releases of each estimator, and ``T = steps + 1`` in the bounds.

    Guarantee, design "sound": the next estimator is built on the *released* one, so that each message is a function of
    earlier messages plus one clipped mean plus noise, whatever the neighbours do; both variables' releases of a batch
    are one mechanism. With Poisson batches and one clip C for x and y this is `sound.storm_released`.

    Design "printed": the estimators stay un-noised with the agent, each gradient is clipped to C at both points, and
    the account is `sound.storm_printed` for the worst record of the sampler's schedule. A sampler that draws anew has
    no schedule in advance: it is charged for the worst one, without amplification. With replacement nothing is proved.

    Args:
        rate_x, rate_y: step sizes of x and y.
        sampling: how batches are drawn.
        release_x, release_y: clip of one record's gradient in x or y, and noise of the released estimator.
        beta_x, beta_y: weight of the new gradient in each estimator; 1 forgets the past.
        first: the first batch, usually larger; ``Poisson(b0, cut=True)`` takes min(b0, n). As `sampling` if not given.
        increment: sound design: clip of what one record adds to an estimator after the first, as a multiple of `clip`.
            By default ``2 - beta``, which two gradients within `clip` never exceed. A record adds
            ``beta grad + (1 - beta) (grad - grad_before)``: with short steps that is little more than beta, and
            an increment near beta needs less noise by a factor of 2 / beta.
        design: "sound" or "printed".

    >>> import sottovoce as sv
    >>> message, first = sv.Release(clip=1.0, noise=0.2), Poisson(10_000, cut=True)
    >>> method = DpMixSgd(0.1, 0.1, sampling=Poisson(20), release_x=message, release_y=message, first=first)
    >>> round(sv.account(method, sv.Population([2000] * 4), steps=999, network=sv.networks.ring(4)).epsilon, 2)
    0.93
    """

    rate_x: Schedule | float
    rate_y: Schedule | float
    sampling: Sampling
    release_x: Release
    release_y: Release
    beta_x: float = 0.1
    beta_y: float = 0.1
    first: Sampling | None = None
    increment: float | None = None
    design: Design = "sound"

    solves: ClassVar[tuple[type, ...]] = (MinMax,)

    def __post_init__(self) -> None:
        require_plain("estimators correct for plain steps", rate_x=self.rate_x, rate_y=self.rate_y)
        super().__post_init__()
        for name in ("beta_x", "beta_y"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must lie in (0, 1]")
        check_design(self.design)
        if self.increment is not None and (self.design == "printed" or not self.increment > 0):
            raise ValueError(f"increment is {self.increment}: give a positive number, and only to the sound design")

    @classmethod
    def paper(
        cls, *, theta: float, gamma: float, steps: int, agents: int, clip: float, rate: float = 0.1, beta: float = 0.1
    ) -> Self:
        """Build Algorithm 1 as printed, with the noise of Theorem 2, (18), for its privacy (theta, gamma).

        The constant that (18) hides is 1. The clip is L_g of Assumption 7, so that it never acts where the assumption
        holds. Batches of 20 and b_0 = 10 000 (cut to the data) are those of Table 2, whose rates and betas come from
        sets; `theory.theorem_1` has those of the convergence theorem. The account tells the true epsilon,
        which covers each agent and both variables.

        >>> method = DpMixSgd.paper(theta=1.0, gamma=1e-5, steps=9, agents=5, clip=1.0)
        >>> round(method.release_x.scale(0), 6), method.design
        (59.741166, 'printed')
        """
        message = Release(clip, published.dpmixsgd_sigma(theta, steps + 1, agents, clip, gamma))
        return cls(rate, rate, FixedSize(20), message, message, beta, beta, Poisson(10_000, cut=True), design="printed")

    def init(self, problem: MinMax, agent: Agent) -> MixState:
        """Run iteration 0: g_0 and h_0 from a batch of b_0 records (Initialize), then lines 5 to 13."""
        batch = agent.sample(self.first or self.sampling, "first")
        here, messages = (problem.x0, problem.y0), (self.release_x, self.release_y)
        if self.design == "printed":
            estimate = gradients(agent.mean, messages, problem, here, batch)
            sent = noised(agent, messages, estimate)
        else:
            sent = estimate = gradients(agent.release, messages, problem, here, batch)
        nothing = (zeros_like(problem.x0), zeros_like(problem.y0))
        return self._move(problem, MixState(*here, here, nothing, nothing, nothing), estimate, sent, 0, agent)

    def step(self, problem: MinMax, state: MixState, agent: Agent) -> MixState:
        """Estimate, release, track; then one step down in x and up in y."""
        batch, messages = agent.sample(self.sampling), (self.release_x, self.release_y)
        here, before, keep = (state.x, state.y), state.before, (1 - self.beta_x, 1 - self.beta_y)
        if self.design == "printed":
            now, then = (gradients(agent.mean, messages, problem, at, batch) for at in (here, before))
            estimate = storm(now, keep, state.estimate, then)  # lines 2 and 3
            sent = noised(agent, messages, estimate)  # lines 5 to 7
        else:  # lines 2 to 7 in one: the estimators continue from what was released
            added = self._added(self.release_x, keep[0]), self._added(self.release_y, keep[1])
            g, h = increments(agent.release, added, problem, here, before, keep, batch)
            sent = estimate = descend(g, -keep[0], state.estimate[0]), descend(h, -keep[1], state.estimate[1])
        return self._move(problem, state, estimate, sent, agent.t + 1, agent)

    def _move(self, problem: MinMax, state: MixState, estimate: XY, sent: XY, k: Any, agent: Agent) -> MixState:
        """Track the network's average of what was sent, and follow it, in iteration k."""
        v, u = (  # lines 9 and 10
            agent.mix(jax.tree.map(lambda mine, new, old: mine + new - old, mine, new, old))
            for mine, new, old in zip(state.tracked, sent, state.sent)
        )
        down, up = (schedule(rate)(k, agent.index) for rate in (self.rate_x, self.rate_y))
        x = problem.project_x(agent.mix(descend(state.x, down, v)))  # line 12
        y = problem.project_y(agent.mix(descend(state.y, -up, u)))  # line 13
        return MixState(x, y, (state.x, state.y), estimate, sent, (v, u))

    def _added(self, release: Release, keep: float) -> Release:
        """Return the release of an estimator's increment: the same noise, a clip of its own."""
        return replace(release, clip=release.clip * (1 + keep if self.increment is None else self.increment))

    def published(self, setting: Setting) -> float | None:
        """Return Theorem 2 with its unspecified constant set to 1 and the clip for its Lipschitz constant."""
        return theory.printed_epsilon(self.releases(), setting.steps, setting.network.size, setting.delta)

    def proved(self, setting: Setting, agent: int) -> float | None:
        """Return `sound.storm_printed` for the record that takes part in the worst steps."""
        draws = self.first or self.sampling, self.sampling
        n, betas = int(setting.sizes["records"][agent]), (self.beta_x, self.beta_y)
        return theory.proved_epsilon(self.releases(), betas, *draws, n, setting.steps, setting.delta, agent)

    def caveats(self, setting: Setting) -> Sequence[str]:
        """List where the first batch is cut, and what the published figure leaves out."""
        return theory.caveats(self.first, setting.sizes["records"])

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return full batches, both designs."""
        free = Release.open()
        return {d: cls(0.1, 0.1, Full(), free, free, 0.5, 0.3, design=d) for d in get_args(Design)}
