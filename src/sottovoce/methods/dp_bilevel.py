"""DP bilevel optimisation with one curator: any epsilon, gradients only.

Kornowski, "Differentially private bilevel optimization", 2024: Algorithms 1-4. A penalty takes the place of second
derivatives: with yg the minimiser of g(x, .) and yl that of f + penalty * g, the hypergradient is, up to O(1/penalty),
grad_x f(x, yl) + penalty * (grad_x g(x, yl) - grad_x g(x, yg)).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from sottovoce.methods.base import Method, Setting
from sottovoce.methods.dsbo_parts import toward_y, without_x
from sottovoce.privacy import published
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling, WithReplacement
from sottovoce.problems import Bilevel, along, public_along, sets
from sottovoce.schedules import Schedule, schedule
from sottovoce.trees import Tree, add, combine, descend, norm, zeros_like

if TYPE_CHECKING:
    from sottovoce.runtime.agent import Agent

Slope = Callable[[Tree, "Agent"], Tree]


class BilevelState(NamedTuple):
    """Public by induction: all are functions of releases. `x` and `y` are what would be output now."""

    x: Tree
    y: Tree
    at: Tree  # the current x
    near: Tree  # the last yg
    gap: Tree  # the last penalty * (yl - yg)
    least: jax.Array  # the shortest step of x so far


@dataclass(frozen=True)
class Descent:
    """DP-Loc-(S)GD: in each round, noisy steps within a ball around its start; the next starts at their average.

    Args:
        steps: steps in a round; every one is a release with a batch of its own.
        rate: step size, a schedule of the step within the round (the paper's is ``Decay(1 / mu, 1)``).
        radii: a ball's radius for each round; one round without a ball by default.
        averaged: whether a round gives its average iterate (the paper) or its last one.
        momentum: weight of a round's past steps in the next one (post-processing: it costs no privacy).

    >>> Descent(steps=20, rate=0.5, radii=(2.0, 0.5)).releases
    40
    """

    steps: int
    rate: Schedule | float
    radii: tuple[float, ...] = (math.inf,)
    averaged: bool = True
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}: it must lie in [0, 1)")
        if self.steps < 1 or not self.radii or not min(self.radii) > 0:
            raise ValueError(
                f"a descent of {self.steps} steps in balls of radii {self.radii}: it needs at least one step, and one "
                "positive radius a round (math.inf for no ball)"
            )

    @property
    def releases(self) -> int:
        """How many releases one solve makes."""
        return self.steps * len(self.radii)

    def solve(self, slope: Slope, start: Tree, agent: "Agent", name: str) -> Tree:
        """The point reached from `start` by descending `slope(point, agent)`."""
        for number, radius in enumerate(self.radii):
            start = self._round(slope, start, radius, agent, f"{name} {number}")
        return start

    def _round(self, slope: Slope, start: Tree, radius: float, agent: "Agent", name: str) -> Tree:
        keep = sets.ball(radius, centre=start) if math.isfinite(radius) else lambda point: point

        def turn(carry: tuple[Tree, Tree, Tree, jax.Array], agent: "Agent") -> tuple[Tree, Tree, Tree, jax.Array]:
            point, velocity, total, k = carry
            velocity = combine(lambda v, g: self.momentum * v + g, velocity, slope(point, agent))
            point = keep(descend(agent.mix(point), schedule(self.rate)(k, agent.index), velocity))
            return point, velocity, add(total, point), k + 1

        rest = zeros_like(start)
        point, _, total, _ = agent.loop(self.steps, turn, (start, rest, rest, jnp.zeros((), jnp.int32)), name)
        return combine(lambda leaf: leaf / self.steps, total) if self.averaged else point


@dataclass(frozen=True)
class Smoothness:
    """The paper's constants: ell bounds all gradients and Lipschitz constants, kappa is ell over g's convexity."""

    ell: float
    kappa: float


@dataclass(frozen=True)
class DpBilevel(Method):
    """Private bilevel optimisation by a penalty: two private inner solves, then one private step of x.

    Guarantee: everything that is computed from records is a release with its own clip and noise, the rest is
    post-processing; so the account needs no Lipschitz constant, no exact inner solution and no convexity.

    ``solve="gap"`` finds w = penalty * (yl - yg) itself: its direction, grad f(yg + w/penalty) + penalty *
    (grad g(yg + w/penalty) - grad g(yg)), is bounded for any penalty, and so is its noise. ``solve="apart"`` is the
    paper's: yl by a descent of its own on f/penalty + g; the inner noise then enters x multiplied by the penalty.
    Over a network each agent also averages with its neighbours; the theory is for one curator.

    Args:
        step_x: step size of x.
        inner: how the inner problems are solved.
        y: clip and noise of the lower level's direction.
        penalised: clip and noise of the direction of w (gap) or of yl (apart).
        sampling: how every inner step draws its batch, and the step of x unless `sampling_x` is given.
        x: clip and noise of the hypergradient. None is for problems whose records never meet x, such as tuned
            regularisers: its direction then follows from yg and yl and costs nothing.
        penalty: a number or a schedule; the bias falls as 1/penalty.
        radius: w is projected on a ball of this radius (L0f/mu is enough for the exact one): free post-processing that
            keeps the hypergradient of one record within L0f (1 + L1g/mu).
        sampling_x: the batch of the step of x.
        inner_penalised: how the penalised problem is solved, if not as `inner` says. With levels only this one reads
            upper records, which are few: fewer and larger steps may serve them better.
        solve: "gap" or "apart".
        output: "last" gives the last x; "smallest step" the x_t with the smallest |x_{t+1} - x_t|, as the paper does.
        warm: start inner solves where the last ones ended (it changes nothing in the account).
        smoothness: declare it to have the paper's epsilon shown beside.

    >>> import sottovoce as sv
    >>> inner = Release(clip=1.0, noise=0.05)
    >>> method = DpBilevel(0.1, Descent(30, 0.5), inner, inner, Full(), x=Release(clip=2.0, noise=0.02))
    >>> round(sv.account(method, sizes=[5000], steps=50, delta=1e-5).epsilon, 8)
    2.08927027
    """

    step_x: Schedule | float
    inner: Descent
    y: Release
    penalised: Release
    sampling: Sampling
    x: Release | None = None
    penalty: Schedule | float = 10.0
    radius: float = math.inf
    sampling_x: Sampling | None = None
    inner_penalised: Descent | None = None
    solve: Literal["gap", "apart"] = "gap"
    output: Literal["last", "smallest step"] = "last"
    warm: bool = True
    smoothness: Smoothness | None = None

    solves: ClassVar[tuple[type, ...]] = (Bilevel,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.solve not in ("gap", "apart"):
            raise ValueError(f"solve is {self.solve!r}: choose 'gap' or 'apart'")
        if self.output not in ("last", "smallest step"):
            raise ValueError(f"output is {self.output!r}: choose 'last' or 'smallest step'")
        if not self.radius > 0:
            raise ValueError(f"radius is {self.radius}: it must be positive (math.inf leaves w free)")
        if not schedule(self.penalty)(0) > 0:
            raise ValueError(f"penalty is {self.penalty}: it must be positive")

    def init(self, problem: Bilevel, agent: "Agent") -> BilevelState:
        """Start at x0 and y0 with no gap."""
        x, y, none = problem.x0, problem.y0, zeros_like(problem.y0)
        return BilevelState(x, y, x, y, none, jnp.full((), jnp.finfo(jnp.float32).max))

    def step(self, problem: Bilevel, state: BilevelState, agent: "Agent") -> BilevelState:
        """Solve below twice, move x by a prox step, keep the best."""
        penalty = schedule(self.penalty)(agent.t, agent.index)
        x, problem = state.at, problem if self.x is not None else without_x(problem)
        start, gap = (state.near, state.gap) if self.warm else (problem.y0, zeros_like(state.gap))

        below, beyond = self.inner, self.inner_penalised or self.inner
        y = below.solve(self._lower_slope(problem, x), start, agent, "y")
        if self.solve == "gap":
            gap = beyond.solve(self._gap_slope(problem, x, y, penalty), gap, agent, "penalised")
        else:
            # From where the last yl ended, not from y: then both lag behind x alike, and the lag cancels.
            last = beside(start, gap, penalty)
            yl = beyond.solve(self._penalised_slope(problem, x, penalty), last, agent, "penalised")
            gap = combine(lambda a, b: penalty * (a - b), yl, y)
        if math.isfinite(self.radius):
            gap = sets.ball(self.radius)(gap)

        slope = self._hypergradient(problem, x, y, beside(y, gap, penalty), penalty, agent)
        moved = problem.project_x(descend(agent.mix(x), schedule(self.step_x)(agent.t, agent.index), slope))
        if self.output == "last":
            return BilevelState(moved, y, moved, y, gap, state.least)
        length = norm(combine(lambda a, b: a - b, moved, x))
        shorter = length < state.least
        best_x, best_y = combine(lambda new, old: jnp.where(shorter, new, old), (x, y), (state.x, state.y))
        return BilevelState(best_x, best_y, moved, y, gap, jnp.minimum(length, state.least))

    # The directions: gradients of a scalar per record, and of the public terms beside.

    def _lower_slope(self, problem: Bilevel, x: Tree) -> Slope:
        return lambda y, agent: toward_y(agent.release, self.y, problem, x, y, agent.sample(self.sampling))

    def _penalised_slope(self, problem: Bilevel, x: Tree, penalty: Any) -> Slope:
        """Of f/penalty + g: the paper's penalised problem, scaled so that its noise compares with that of g."""
        return lambda y, agent: agent.release(
            self.penalised,
            upper=lambda y, r: problem.upper(x, y, r) / penalty,
            lower=lambda y, r: problem.lower(x, y, r),
            at=y,
            batch=agent.sample(self.sampling),
            public=lambda y: problem.public_upper(x, y) / penalty + problem.public_lower(x, y),
        )

    def _gap_slope(self, problem: Bilevel, x: Tree, y: Tree, penalty: Any) -> Slope:
        """Of the penalised problem as a function of w, less what is linear in g at y, times penalty^2."""

        def upper(w: Tree, r: Any) -> jax.Array:
            return penalty * problem.upper(x, beside(y, w, penalty), r)

        def lower(w: Tree, r: Any) -> jax.Array:
            return penalty**2 * problem.lower(x, beside(y, w, penalty), r) - penalty * along(problem.lower, x, y, r, w)

        def public(w: Tree) -> Any:
            z = beside(y, w, penalty)
            curved = penalty**2 * problem.public_lower(x, z) - penalty * public_along(problem.public_lower, x, y, w)
            return curved + penalty * problem.public_upper(x, z)

        return lambda w, agent: agent.release(
            self.penalised, upper=upper, lower=lower, at=w, batch=agent.sample(self.sampling), public=public
        )

    def _hypergradient(self, problem: Bilevel, x: Tree, y: Tree, z: Tree, penalty: Any, agent: "Agent") -> Tree:
        def public(x: Tree) -> Any:
            return problem.public_upper(x, z) + penalty * (problem.public_lower(x, z) - problem.public_lower(x, y))

        if self.x is None:
            return jax.grad(lambda x: jnp.asarray(public(x), float))(x)
        return agent.release(
            self.x,
            upper=lambda x, r: problem.upper(x, z, r),
            lower=lambda x, r: penalty * (problem.lower(x, z, r) - problem.lower(x, y, r)),
            at=x,
            batch=agent.sample(self.sampling_x or self.sampling, "x"),
            public=public,
        )

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Both ways to solve; the paper's with rounds, averages and its output rule."""
        free = Release.open()
        gap = cls(0.2, Descent(4, 0.3, averaged=False), free, free, Full(), x=free, penalty=100.0, radius=100.0)
        rounds = Descent(4, 0.3, radii=(50.0,))
        return {"gap": gap, "apart": replace(gap, inner=rounds, solve="apart", output="smallest step")}

    # What the paper claims.

    def published(self, setting: Setting) -> float | None:
        """Theorem 3.1 with the constant of its own lemmas; for the paper's two solves and declared constants."""
        drawn = isinstance(self.sampling_x or self.sampling, (Full, WithReplacement))
        if self.smoothness is None or self.x is None or self.solve != "apart" or not drawn or len(setting.sizes) > 1:
            return None
        n, sigma = min(min(sizes) for sizes in setting.sizes.values()), float(self.x.scale(0, 0))
        if not sigma > 0:
            return None
        ell, kappa = self.smoothness.ell, self.smoothness.kappa
        return published.dp_bilevel(sigma, ell, kappa, setting.steps, n, setting.delta, 3600.0)

    def caveats(self, setting: Setting) -> Sequence[str]:
        """What the account leans on, and what the paper's does not cover."""
        notes = []
        if self.x is None:
            notes.append("records never meet x: its direction is computed from released values and costs nothing")
        if self.published(setting) is not None:
            notes.append(
                "the published epsilon (Theorem 3.1) is for the noise of x alone, drops a logarithm in composition and "
                "bounds the sensitivity at exact inner minimisers"
            )
        return notes


def beside(y: Tree, gap: Tree, penalty: Any) -> Tree:
    """yl from yg and w: ``y + gap / penalty``.

    >>> beside(1.0, 4.0, 2.0)
    3.0
    """
    return combine(lambda a, w: a + w / penalty, y, gap)
