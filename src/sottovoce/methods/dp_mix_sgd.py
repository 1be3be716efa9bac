"""DPMixSGD: private decentralised min-max with variance-reduced, tracked gradients.

Quan, Wang, Zhai, Fang and Liu, "Enhancing privacy in decentralized min-max optimization: a differentially private
approach": the hybrid estimator of STORM (Cutkosky and Orabona, NeurIPS 2019) and the gradient tracking of DM-HSGD (Xian
et al., NeurIPS 2021), with Gaussian noise on what neighbours see.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from sottovoce.methods.base import Method, Setting
from sottovoce.privacy import published, sound
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import FixedSize, Full, OnePass, Poisson, Sampling
from sottovoce.problems import MinMax
from sottovoce.schedules import Schedule, schedule
from sottovoce.trees import Tree, add, combine, descend, zeros_like

if TYPE_CHECKING:
    from sottovoce.runtime.agent import Agent, Batch

Pair = tuple[Tree, Tree]  # something for x and the same for y
Design = Literal["sound", "printed"]


class MixState(NamedTuple):
    """Public by induction, but for `estimate` in the printed design."""

    x: Tree
    y: Tree
    before: Pair  # x and y of the step before
    estimate: Pair  # the estimators g and h that the next ones are built on
    told: Pair  # g* and h*: what was released of them
    tracked: Pair  # v and u: their averages over the network, as far as known


@dataclass(frozen=True)
class DpMixSgd(Method):
    """Private decentralised min-max: noised STORM estimators of both gradients, tracked over the graph (DPMixSGD).

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
        rate_x: step size of x.
        rate_y: step size of y.
        sampling: how batches are drawn.
        x: clip of one record's gradient in x, and noise of the released estimator.
        y: the same for y.
        beta_x: weight of the new in the estimator; 1 forgets the past.
        beta_y: the same for y.
        first: the first batch, usually larger; ``Poisson(b0, cut=True)`` takes min(b0, n). As `sampling` if not given.
        increment: sound design: clip of what one record adds to an estimator after the first, as a multiple of `clip`.
            By default ``2 - beta``, which two gradients within `clip` never exceed. A record adds
            ``beta grad + (1 - beta) (grad - grad_before)``: with short steps that is little more than beta, and
            an increment near beta needs less noise by a factor of 2 / beta.
        design: "sound" or "printed".

    >>> import sottovoce as sv
    >>> message, first = sv.Release(clip=1.0, noise=0.2), Poisson(10_000, cut=True)
    >>> method = DpMixSgd(rate_x=0.1, rate_y=0.1, sampling=Poisson(20), x=message, y=message, first=first)
    >>> round(sv.account(method, sizes=[2000] * 4, steps=999, network=sv.networks.ring(4)).epsilon, 2)
    0.93
    """

    rate_x: Schedule | float
    rate_y: Schedule | float
    sampling: Sampling
    x: Release
    y: Release
    beta_x: float = 0.1
    beta_y: float = 0.1
    first: Sampling | None = None
    increment: float | None = None
    design: Design = "sound"

    solves: ClassVar[tuple[type, ...]] = (MinMax,)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta_x", "beta_y"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must lie in (0, 1]")
        if self.design not in ("sound", "printed"):
            raise ValueError(f"design is {self.design!r}: choose 'sound' or 'printed'")
        if self.increment is not None and (self.design == "printed" or not self.increment > 0):
            raise ValueError(f"increment is {self.increment}: give a positive number, and only to the sound design")

    def init(self, problem: MinMax, agent: "Agent") -> MixState:
        """The first iteration, from a batch of its own."""
        batch = agent.sample(self.first or self.sampling, "first")
        here = (problem.x0, problem.y0)
        if self.design == "printed":
            estimate = self._means(problem, here, batch, agent)
            told = self._tell(estimate, agent)
        else:
            told = estimate = (
                agent.release(self.x, **_slope(problem, here, 0), batch=batch),
                agent.release(self.y, **_slope(problem, here, 1), batch=batch),
            )
        nothing = (zeros_like(problem.x0), zeros_like(problem.y0))
        return self._move(problem, MixState(*here, here, nothing, nothing, nothing), estimate, told, 0, agent)

    def step(self, problem: MinMax, state: MixState, agent: "Agent") -> MixState:
        """Estimate, release, track; then one step down in x and up in y."""
        batch = agent.sample(self.sampling)
        here, before = (state.x, state.y), state.before
        (g, h), (keep_x, keep_y) = state.estimate, (1 - self.beta_x, 1 - self.beta_y)
        if self.design == "printed":
            now, then = self._means(problem, here, batch, agent), self._means(problem, before, batch, agent)
            estimate = (_storm(now[0], keep_x, g, then[0]), _storm(now[1], keep_y, h, then[1]))
            told = self._tell(estimate, agent)
        else:
            more_x = agent.release(
                self._added(self.x, keep_x), **_change(problem, here, before, 0, keep_x), batch=batch
            )
            more_y = agent.release(
                self._added(self.y, keep_y), **_change(problem, here, before, 1, keep_y), batch=batch
            )
            told = estimate = (descend(more_x, -keep_x, g), descend(more_y, -keep_y, h))
        return self._move(problem, state, estimate, told, agent.t + 1, agent)

    def _move(
        self, problem: MinMax, state: MixState, estimate: Pair, told: Pair, iteration: Any, agent: "Agent"
    ) -> MixState:
        """Track the network's average of what was told, and follow it."""
        v, u = (
            agent.mix(combine(lambda mine, new, old: mine + new - old, mine, new, old))
            for mine, new, old in zip(state.tracked, told, state.told)
        )
        down = schedule(self.rate_x)(iteration, agent.index)
        up = schedule(self.rate_y)(iteration, agent.index)
        x = problem.project_x(agent.mix(descend(state.x, down, v)))
        y = problem.project_y(agent.mix(descend(state.y, -up, u)))
        return MixState(x, y, (state.x, state.y), estimate, told, (v, u))

    def _added(self, release: Release, keep: float) -> Release:
        """The release of an estimator's increment: the same noise, a clip of its own."""
        return replace(release, clip=release.clip * (1 + keep if self.increment is None else self.increment))

    def _means(self, problem: MinMax, at: Pair, batch: "Batch", agent: "Agent") -> Pair:
        return (
            agent.mean(self.x, **_slope(problem, at, 0), batch=batch),
            agent.mean(self.y, **_slope(problem, at, 1), batch=batch),
        )

    def _tell(self, estimate: Pair, agent: "Agent") -> Pair:
        return agent.tell(self.x, estimate[0]), agent.tell(self.y, estimate[1])

    # The account.

    def published(self, setting: Setting) -> float | None:
        """Theorem 2 of the paper with its unspecified constant set to 1 and the clip for its Lipschitz constant."""
        lowest = self._relative_noise(setting, 0)
        if self.design_name == "non-private" or setting.delta <= 0 or not min(lowest) > 0:
            return None
        ratio = max(1 / noise for noise in lowest)
        return published.dpmixsgd(1.0, setting.steps + 1, setting.network.size, ratio, setting.delta)

    def proved(self, setting: Setting, agent: int) -> float | None:
        """`sound.storm_printed` for the record that takes part in the worst steps."""
        gaussian = all(release.mechanism == "gaussian" for release in (self.x, self.y))
        if self.design_name == "non-private" or not gaussian or setting.delta <= 0:
            return None
        first, later, n = self.first or self.sampling, self.sampling, int(setting.sizes["records"][agent])
        if not all(isinstance(s, (Full, Poisson, FixedSize, OnePass)) for s in (first, later)):
            return None
        total = setting.steps + 1
        sigma_x, sigma_y = self._relative_noise(setting, agent)
        if not min(sigma_x, sigma_y) > 0:
            return None  # some step has no noise
        batch, b0 = int(later.denominator(n, 0)), int(first.denominator(n, 0))
        return max(
            sound.storm_printed(total, self.beta_x, self.beta_y, 1.0, batch, b0, sigma_x, sigma_y, steps, setting.delta)
            for steps in participations(first, later, n, total)
        )

    def caveats(self, setting: Setting) -> Sequence[str]:
        """Where the first batch is cut; what the published figure leaves out."""
        notes = [
            "the published figure is for the network's average and one variable: a neighbour sees each agent, and both"
        ]
        wanted = getattr(self.first, "batch", 0)
        short = [i for i, n in enumerate(setting.sizes["records"]) if n < wanted]
        if short:
            notes.append(f"the first batch of {wanted} is cut to the records there are, for {len(short)} agents")
        return notes

    def _relative_noise(self, setting: Setting, agent: int) -> tuple[float, float]:
        """The lowest noise of each estimator over its clip."""
        t = np.arange(setting.steps)
        x, y = (float(np.min(release.scale(t, agent))) / release.clip for release in (self.x, self.y))
        return x, y

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Full batches, both designs."""
        made = [
            cls(0.1, 0.1, Full(), x=Release.open(), y=Release.open(), beta_x=0.5, beta_y=0.3, design=design)
            for design in get_args(Design)
        ]
        return {method.design: method for method in made}


def participations(first: Sampling, later: Sampling, n: int, total: int) -> list[Iterable[int] | None]:
    """Every set of iterations that some record takes part in; ``[None]`` (any set) if the draw is random.

    Iteration 0 draws from `first`, iteration k from `later` at its step k - 1.

    >>> participations(OnePass(2), OnePass(2), n=6, total=4)
    [[0, 1], [2], [3]]
    """
    if not (_is_planned(first, n) and _is_planned(later, n)):
        return [None]
    table = np.stack([_batch(first, n, 0), *(_batch(later, n, t) for t in range(total - 1))], axis=1)
    sets = {tuple(np.flatnonzero(row).tolist()) for row in np.unique(table, axis=0)}
    return [list(steps) for steps in sorted(sets)]


def _is_planned(sampling: Sampling, n: int) -> bool:
    """Whether it is known in advance who takes part."""
    return isinstance(sampling, (Full, OnePass)) or (isinstance(sampling, Poisson) and sampling.batch >= n)


def _batch(sampling: Sampling, n: int, t: int) -> np.ndarray:
    """Which rows are in the planned batch of step t."""
    return np.arange(n) // sampling.batch == t if isinstance(sampling, OnePass) else np.ones(n, bool)


def _toward(fn: Callable[..., Any], at: Pair, which: int) -> Callable[..., Any]:
    """`fn(x, y, ...)` as a function of one of the two, the other held at `at`."""
    return lambda own, *record: fn(own, at[1], *record) if which == 0 else fn(at[0], own, *record)


def _slope(problem: MinMax, at: Pair, which: int) -> dict[str, Any]:
    """What to read for the gradient in x (0) or y (1)."""
    return {
        "records": _toward(problem.loss, at, which),
        "public": _toward(problem.public, at, which),
        "at": at[which],
    }


def _change(problem: MinMax, here: Pair, before: Pair, which: int, keep: float) -> dict[str, Any]:
    """What to read for the gradient here minus `keep` times the one before: as one function, so with one clip.

    It is the derivative by a common shift of both points, at zero.
    """
    if keep == 0:
        return _slope(problem, here, which)

    def difference(fn: Callable[..., Any]) -> Callable[..., Any]:
        now, then = _toward(fn, here, which), _toward(fn, before, which)
        return lambda shift, *record: (
            now(add(here[which], shift), *record) - keep * then(add(before[which], shift), *record)
        )

    return {
        "records": difference(problem.loss),
        "public": difference(problem.public),
        "at": zeros_like(here[which]),
    }


def _storm(now: Tree, keep: float, estimate: Tree, then: Tree) -> Tree:
    return combine(lambda a, g, b: a + keep * (g - b), now, estimate, then)
