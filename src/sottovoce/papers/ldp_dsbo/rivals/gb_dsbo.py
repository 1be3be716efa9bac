"""Run GBDSBO: gossip-based decentralised bilevel optimisation with full second derivatives.

Yang, Zhang and Wang, "Decentralized gossip-based stochastic bilevel optimization over communication networks",
NeurIPS 2022. Agents gossip moving averages of gradients and of whole Hessian and Jacobian matrices: q x q and p x q
numbers per message, which LDP-DSBO does without.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from sottovoce.methods.agent import Agent
from sottovoce.methods.base import Method
from sottovoce.methods.bilevel import SecondDerivatives, toward_y
from sottovoce.methods.design import Design, channels, check_design
from sottovoce.naming import check_choice
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling
from sottovoce.problems import Bilevel
from sottovoce.schedules import Schedule, schedule
from sottovoce.trees import Tree, descend, zeros_like


class GbState(NamedTuple):
    """Hold moving averages: `s` of grad_x f, `h` of grad_y f, `jacobian` of hess_xy g, `hessians` of hess_yy g."""

    x: Tree
    y: Tree
    s: Tree
    h: Tree
    jacobian: Tree
    hessians: Tree


@dataclass(frozen=True)
class GbDsbo(Method):
    """Run GBDSBO: agents gossip averages of gradients, a Jacobian and `terms` Hessians; a Neumann series inverts.

    ``x_{t+1} = W x_t - step_x (s_t - U_t Q_t h_t)`` with ``Q = Q_terms / smoothness``, ``Q_0 = I``,
    ``Q_i = I + (I - V_i / smoothness) Q_{i-1}``; each V_i is averaged from batches of its own. Every gossiped matrix is
    charged: a step makes ``4 + terms`` releases (sound), or sends ``5 + terms`` messages of private state (printed).

    Args:
        step_x, step_y: step sizes.
        average: weight of the newest value in the moving averages, in (0, 1].
        release_x, release_h: clip and noise of the upper gradient in x and in y (printed: noise of the messages x, s
            and h).
        release_y: clip and noise of the lower gradient (printed: noise of the message y).
        release_matrices: the same for Jacobian and Hessians; the clip acts on all entries of a matrix together.
        sampling: how each batch is drawn.
        smoothness: an upper bound on the lower Hessian; below it the series diverges.
        terms: the length of the series.
        along: which averages x moves along: those from "before" the step (s_t, the paper), or the "new" ones (s_{t+1}).
        design: "sound" or "printed".

    >>> import sottovoce as sv
    >>> method = GbDsbo(0.1, 0.1, 0.5, *[Release(1.0, 0.1)] * 4, sampling=Full(), terms=7)
    >>> report = sv.account(method, sv.Population([50] * 4), steps=1, network=sv.networks.ring(4))
    >>> [event.rsplit(", ", 1)[1] for event in report.events]
    ['once', 'once', 'once', 'once', '7 times']
    """

    step_x: Schedule | float
    step_y: Schedule | float
    average: Schedule | float
    release_x: Release
    release_h: Release
    release_y: Release
    release_matrices: Release
    sampling: Sampling
    smoothness: float = 1.0
    terms: int = 10
    along: Literal["before", "new"] = "before"
    design: Design = "sound"

    solves: ClassVar[tuple[type, ...]] = (Bilevel,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_design(self.design)
        check_choice("along", self.along, ("before", "new"))
        if not self.smoothness > 0:
            raise ValueError(f"smoothness is {self.smoothness}: give a positive bound on the lower Hessian")

    def init(self, problem: Bilevel, agent: Agent) -> GbState:
        """Start averages at zero, and Hessians at `smoothness` times I, for which the series is exact."""
        p, q = (ravel_pytree(value)[0].size for value in (problem.x0, problem.y0))
        hessians = jnp.tile(self.smoothness * jnp.eye(q), (self.terms, 1, 1))
        averages = (jnp.zeros(p), jnp.zeros(q), jnp.zeros((p, q)), hessians)
        return GbState(problem.x0, problem.y0, *averages)

    def step(self, problem: Bilevel, state: GbState, agent: Agent) -> GbState:
        """Read gradients and matrices, gossip the averages, move along the assembled hypergradient."""
        read, mix = channels(agent, self.design)
        rate_x, rate_y, beta = (schedule(s)(agent.t, agent.index) for s in (self.step_x, self.step_y, self.average))
        x, y = state.x, state.y
        (flat_x, shape_x), (flat_y, shape_y) = ravel_pytree(x), ravel_pytree(y)
        second = SecondDerivatives(problem, shape_x, shape_y, flat_x, flat_y)

        def averaged(release: Release, old: Tree, new: Tree) -> Tree:
            return jax.tree.map(lambda a, b: (1 - beta) * a + beta * b, mix(release, old), new)

        # s' = (1 - beta) W s + beta grad_x f; h, U and V likewise with grad_y f, hess_xy g and hess_yy g.
        batch = agent.sample(self.sampling)
        grad_x = read(
            self.release_x,
            upper=lambda x, r: problem.upper(shape_x(x), y, r),
            at=flat_x,
            batch=batch,
            public=lambda x: problem.public_upper(shape_x(x), y),
        )
        grad_y = read(
            self.release_h,
            upper=lambda y, r: problem.upper(x, shape_y(y), r),
            at=flat_y,
            batch=batch,
            public=lambda y: problem.public_upper(x, shape_y(y)),
        )
        slope = toward_y(read, self.release_y, problem, x, y, batch)
        cross = read(
            self.release_matrices,
            lower=second.jacobian,
            at=zeros_like(state.jacobian),
            batch=batch,
            public=second.jacobian,
        )

        def next_hessian(stack: Tree, agent: Agent) -> Tree:
            read, mix = channels(agent, self.design)
            first = jax.tree.map(lambda v: v[0], stack)
            new = read(
                self.release_matrices,
                lower=second.hessian,
                at=zeros_like(first),
                batch=agent.sample(self.sampling),
                public=second.hessian,
            )
            fresh = jax.tree.map(lambda a, b: (1 - beta) * a + beta * b, mix(self.release_matrices, first), new)
            return jax.tree.map(
                lambda v, f: jnp.concatenate([v[1:], f[None]]), stack, fresh
            )  # a full round keeps the order

        hessians = agent.loop(self.terms, next_hessian, state.hessians, "hessians")
        averages = (
            averaged(self.release_x, state.s, grad_x),
            averaged(self.release_h, state.h, grad_y),
            averaged(self.release_matrices, state.jacobian, cross),
        )
        # x' = W x - step_x (s - U Q h), y' = W y - step_y grad_y g.
        before = (state.s, state.h, state.jacobian, state.hessians)
        hyper = jax.tree.map(self._hypergradient, *(before if self.along == "before" else (*averages, hessians)))
        moved = descend(mix(self.release_x, state.x), rate_x, shape_x(hyper))
        return GbState(
            problem.project_x(moved),
            descend(mix(self.release_y, state.y), rate_y, slope),
            *averages,
            hessians,
        )

    def _hypergradient(self, s: jax.Array, h: jax.Array, jacobian: jax.Array, hessians: jax.Array) -> jax.Array:
        """Return s - U Q h, computed from the right: only matrix-vector products."""

        def term(direction: jax.Array, hessian: jax.Array) -> tuple[jax.Array, None]:
            return h + direction - hessian @ direction / self.smoothness, None

        direction, _ = jax.lax.scan(term, h, hessians)
        return s - jacobian @ direction / self.smoothness

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return both designs on three unknowns."""
        free = Release.open()
        sound = cls(0.1, 0.2, 0.4, free, free, free, free, Full(), smoothness=1.25, terms=6)
        return {"sound": sound, "printed": replace(sound, design="printed")}
