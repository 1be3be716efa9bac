"""Run VRDSBO: single-loop decentralised bilevel optimisation with variance reduction and gradient tracking.

Gao, Gu and Thai, "On the convergence of distributed stochastic bilevel optimization algorithms over a network",
AISTATS 2023. Each agent inverts its own lower Hessian by a Neumann series, so the method is meant for lower levels that
are alike across agents. Two differences from Gao et al.: they estimate the sum of the series by one product of random
length, times the number of terms, with a new batch per factor. Here all terms are added, from one batch: the same mean
over the random length, without its variance.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from sottovoce.methods.agent import Agent
from sottovoce.methods.base import Method
from sottovoce.methods.bilevel import toward_z
from sottovoce.methods.design import Design, channels, check_design
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling
from sottovoce.problems import Bilevel, along, public_along
from sottovoce.schedules import Schedule, schedule
from sottovoce.trees import Tree, add, descend, zeros_like


class VrState(NamedTuple):
    """Hold the estimators u (hypergradient) and v (lower gradient), their trackers, and their last points."""

    x: Tree
    y: Tree
    u: Tree
    v: Tree
    track_u: Tree
    track_v: Tree
    last_x: Tree
    last_y: Tree


@dataclass(frozen=True)
class VrDsbo(Method):
    """Run VRDSBO: estimate both levels' gradients by STORM, and track them over the network.

    ``u' = d(t) - (1 - a) d(t-1) + (1 - a) u`` with the same batch in d(t) and d(t-1) and a = min(1, alpha rate^2)
    (1 at the first step); ``track' = W track + u' - u``; ``x' = x + rate (W x - beta track' - x)``.
    A step makes ``2 terms + 2`` releases from one batch (sound; a record's two terms of an estimator are clipped as
    one), or sends four messages of private state (printed).

    Args:
        rate: eta, the step size of both levels.
        alpha_x, alpha_y: weights of the estimators, times rate squared.
        beta_x, beta_y: how far x and y follow their trackers.
        release_x, release_y: clip and noise of the estimators' increments (printed: noise of the messages).
        release_z: clip and noise of a term of the Neumann series (printed: its clip; nothing of it is sent).
        sampling: how a batch is drawn.
        smoothness: an upper bound on the lower Hessian; below it the series diverges.
        terms: the length of the series.
        design: "sound" or "printed".

    >>> import sottovoce as sv
    >>> method = VrDsbo(0.5, *[Release(1.0, 0.1)] * 3, sampling=Full(), terms=5)
    >>> report = sv.account(method, sv.Population([50] * 4), steps=1, network=sv.networks.ring(4))
    >>> [event.rsplit(", ", 1)[1] for event in report.events]
    ['5 times', '5 times', 'once', 'once']
    """

    rate: Schedule | float
    release_x: Release
    release_y: Release
    release_z: Release
    sampling: Sampling
    alpha_x: float = 3.0
    alpha_y: float = 3.0
    beta_x: float = 1.0
    beta_y: float = 1.0
    smoothness: float = 1.0
    terms: int = 10
    design: Design = "sound"

    solves: ClassVar[tuple[type, ...]] = (Bilevel,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_design(self.design)
        if not self.smoothness > 0:
            raise ValueError(f"smoothness is {self.smoothness}: give a positive bound on the lower Hessian")

    def init(self, problem: Bilevel, agent: Agent) -> VrState:
        """Start at x0 and y0 with empty estimators."""
        x, y = problem.x0, problem.y0
        zero_x, zero_y = zeros_like(x), zeros_like(y)
        return VrState(x, y, zero_x, zero_y, zero_x, zero_y, x, y)

    def step(self, problem: Bilevel, state: VrState, agent: Agent) -> VrState:
        """Renew both estimators from one batch, track them, move both levels."""
        read, average = channels(agent, self.design)
        rate = schedule(self.rate)(agent.t, agent.index)
        batch = agent.sample(self.sampling)
        now, last = (state.x, state.y), (state.last_x, state.last_y)
        keep_u, keep_v = (
            1 - jnp.where(agent.t == 0, 1.0, jnp.minimum(1.0, alpha * rate**2))
            for alpha in (self.alpha_x, self.alpha_y)
        )

        def inverse(point: tuple[Tree, Tree]) -> Tree:
            """Return the agent's own Hessian-inverse-vector product, by `terms` steps of size 1 / smoothness."""

            def turn(z: Tree, agent: Agent) -> Tree:
                own, _ = channels(agent, self.design)
                return descend(z, 1 / self.smoothness, toward_z(own, self.release_z, problem, *point, z, batch))

            return agent.loop(self.terms, turn, zeros_like(problem.y0), "inverse")

        z_now, z_last = inverse(now), inverse(last)
        # Both points move by the same offset, so that the gradient at offset 0 is the increment of the estimator.
        # u' - (1 - a) u = d(t) - (1 - a) d(t-1), with d = grad_x f - hess_xy g z the local hypergradient.
        increment_u = read(
            self.release_x,
            upper=lambda o, r: (
                problem.upper(add(now[0], o), now[1], r) - keep_u * problem.upper(add(last[0], o), last[1], r)
            ),
            lower=lambda o, r: (
                keep_u * along(problem.lower, add(last[0], o), last[1], r, z_last)
                - along(problem.lower, add(now[0], o), now[1], r, z_now)
            ),
            at=zeros_like(problem.x0),
            batch=batch,
            public=lambda o: (
                problem.public_upper(add(now[0], o), now[1])
                - public_along(problem.public_lower, add(now[0], o), now[1], z_now)
                - keep_u * problem.public_upper(add(last[0], o), last[1])
                + keep_u * public_along(problem.public_lower, add(last[0], o), last[1], z_last)
            ),
        )
        # v' - (1 - a) v = grad_y g(t) - (1 - a) grad_y g(t-1).
        increment_v = read(
            self.release_y,
            lower=lambda o, r: (
                problem.lower(now[0], add(now[1], o), r) - keep_v * problem.lower(last[0], add(last[1], o), r)
            ),
            at=zeros_like(problem.y0),
            batch=batch,
            public=lambda o: (
                problem.public_lower(now[0], add(now[1], o)) - keep_v * problem.public_lower(last[0], add(last[1], o))
            ),
        )
        u = jax.tree.map(lambda new, old: new + keep_u * old, increment_u, state.u)
        v = jax.tree.map(lambda new, old: new + keep_v * old, increment_v, state.v)
        # track' = W track + u' - u.
        track_u = jax.tree.map(lambda t, new, old: t + new - old, average(self.release_x, state.track_u), u, state.u)
        track_v = jax.tree.map(lambda t, new, old: t + new - old, average(self.release_y, state.track_v), v, state.v)

        # x' = x + rate (W x - beta track' - x), and y likewise.
        def moved(release: Release, value: Tree, beta: float, track: Tree) -> Tree:
            return jax.tree.map(
                lambda a, heard, t: a + rate * (heard - beta * t - a), value, average(release, value), track
            )

        x = moved(self.release_x, state.x, self.beta_x, track_u)
        y = moved(self.release_y, state.y, self.beta_y, track_v)
        x = problem.project_x(x)
        return VrState(x, y, u, v, track_u, track_v, state.x, state.y)

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return both designs with a short series."""
        free = Release.open()
        sound = cls(0.5, free, free, free, Full(), beta_x=0.2, beta_y=0.4, smoothness=1.25, terms=6)
        return {"sound": sound, "printed": replace(sound, design="printed")}
