"""DPMixSGD: private decentralised min-max with variance-reduced, tracked gradients.

"Differentially private decentralised min-max optimisation": the hybrid estimator of STORM (Cutkosky and Orabona, NeurIPS
2019) and the gradient tracking of DM-HSGD (Xian et al., NeurIPS 2021), with Gaussian noise on what neighbours see.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
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
    earlier messages plus one clipped mean plus noise; both variables' releases of a batch are one mechanism. With a clip
    C this is `sound.storm_released`, in any number of dimensions and whatever the neighbours do.

    Design "printed": the estimators stay un-noised with the agent, each gradient is clipped to C at both points, and
    the account is `sound.storm_printed` for the worst record of the sampler's schedule. A sampler that draws anew has no
    schedule in advance: it is charged for the worst one, without amplification. With replacement nothing is proved.

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

    >>> from sottovoce.privacy.release import Release
    >>> method = DpMixSgd(0.1, 0.1, Poisson(20), x=Release(1.0, 0.2), y=Release(1.0, 0.2), first=Poisson(10_000, cut=True))
    >>> import sottovoce as sv
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
                agent.release(self.x, *_slope(problem, here, 0), batch=batch),
                agent.release(self.y, *_slope(problem, here, 1), batch=batch),
            )
        nothing = (zeros_like(problem.x0), zeros_like(problem.y0))
        start = MixState(*here, before=here, estimate=estimate, told=nothing, tracked=nothing)
        return self._move(problem, start, estimate, told, 0, agent)

    def step(self, problem: MinMax, state: MixState, agent: "Agent") -> MixState:
        """Estimate, release, track, and take a step down in x and up in y."""
        batch = agent.sample(self.sampling)
        here = (state.x, state.y)
        if self.design == "printed":
            now, then = (self._means(problem, at, batch, agent) for at in (here, state.before))
            estimate = tuple(
                combine(lambda a, g, b, beta=beta: a + (1 - beta) * (g - b), a, g, b)
                for a, g, b, beta in zip(now, state.estimate, then, (self.beta_x, self.beta_y))
            )
            told = self._tell(estimate, agent)
        else:
            told = estimate = tuple(
                combine(
                    lambda g, change, beta=beta: (1 - beta) * g + change,
                    state.estimate[which],
                    agent.release(
                        self._of_increments(release, beta), *_change(problem, here, state.before, which, beta), batch=batch
                    ),
                )
                for which, (release, beta) in enumerate(((self.x, self.beta_x), (self.y, self.beta_y)))
            )
        return self._move(problem, state, estimate, told, agent.t + 1, agent)
