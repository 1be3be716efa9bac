"""Run DP bilevel optimisation with one curator: any epsilon, gradients only.

Kornowski, "Differentially private bilevel optimization", 2024: Algorithms 1 and 3 here, 2 and 4 in `descent.py`. A
penalty takes the place of second derivatives (`penalty.py`). What the paper proves is in `theory.py`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp

from sottovoce.methods.agent import Agent
from sottovoce.methods.base import Method, Setting
from sottovoce.methods.bilevel import without_x
from sottovoce.naming import check_choice
from sottovoce.optimisers import Momentum, Rate, memory, update
from sottovoce.papers.dp_bilevel import theory
from sottovoce.papers.dp_bilevel.descent import Descent
from sottovoce.papers.dp_bilevel.penalty import beside, gap_slope, hypergradient, lower_slope, penalised_slope
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling, WithReplacement
from sottovoce.problems import Bilevel, sets
from sottovoce.schedules import Schedule, schedule
from sottovoce.trees import Tree, norm, zeros_like


class BilevelState(NamedTuple):
    """Hold the state: public by induction, because it is a function of releases. `x` and `y` would be output now."""

    x: Tree
    y: Tree
    at: Tree  # the current x
    near: Tree  # the last yg
    gap: Tree  # the last penalty * (yl - yg)
    least: Tree  # the shortest step of x so far
    memory: Any  # of the optimiser of x; empty for a plain step size


@dataclass(frozen=True)
class DpBilevel(Method):
    """Solve a bilevel problem privately by a penalty: two private inner solves, then one private step of x.

    Guarantee: everything that is computed from records is a release with its own clip and noise, the rest is
    post-processing; so the account needs no Lipschitz constant, no exact inner solution and no convexity.

    ``solve="gap"`` finds w = penalty * (yl - yg) itself: its direction (`penalty.gap_slope`), and so its noise, is
    bounded for any penalty. ``solve="apart"`` is the paper's: yl by a descent of its own on f/penalty + g, whose noise
    enters x multiplied by the penalty. Over a network agents also average with neighbours; the theory is for a curator.

    Args:
        step_x, inner: step size of x; how the inner problems are solved.
        release_y, release_penalised: clip and noise of the lower level's direction, and that of w (gap) or yl (apart).
        sampling: how every inner step draws its batch, and the step of x unless `sampling_x` is given.
        release_x: clip and noise of the hypergradient. None is for problems whose records never meet x, such as tuned
            regularisers: its direction then follows from yg and yl and costs nothing.
        penalty: a number or a schedule; the bias falls as 1/penalty.
        radius: w is projected on a ball of this radius (L0f/mu is enough for the exact one): free post-processing that
            keeps the hypergradient of one record within L0f (1 + L1g/mu).
        inner_penalised: how the penalised problem is solved, if not as `inner` says. With levels only this one reads
            upper records, which are few: fewer and larger steps may serve them better.
        solve, output: as above; "last" outputs the last x, "smallest step" the one after which x moves least.
        warm: start inner solves where the last ones ended (it changes nothing in the account).
        conditioning: if it is declared, reports show the paper's epsilon too.

    >>> import sottovoce as sv
    >>> inner = Release(clip=1.0, noise=0.05)
    >>> method = DpBilevel(0.1, Descent(30, 0.5), inner, inner, Full(), release_x=Release(clip=2.0, noise=0.02))
    >>> round(sv.account(method, sv.Population([5000]), steps=50, delta=1e-5).epsilon, 8)
    2.08927027
    """

    step_x: Rate
    inner: Descent
    release_y: Release
    release_penalised: Release
    sampling: Sampling
    release_x: Release | None = None
    penalty: Schedule | float = 10.0
    radius: float = math.inf
    sampling_x: Sampling | None = None
    inner_penalised: Descent | None = None
    solve: Literal["gap", "apart"] = "gap"
    output: Literal["last", "smallest step"] = "last"
    warm: bool = True
    conditioning: theory.Conditioning | None = None

    solves: ClassVar[tuple[type, ...]] = (Bilevel,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("solve", self.solve, ("gap", "apart"))
        check_choice("output", self.output, ("last", "smallest step"))
        if not self.radius > 0:
            raise ValueError(f"radius is {self.radius}: it must be positive (math.inf leaves w free)")
        if not schedule(self.penalty)(0) > 0:
            raise ValueError(f"penalty is {self.penalty}: it must be positive")

    @classmethod
    def paper(
        cls, facts: theory.Facts, *, n: int, epsilon: float, delta: float, steps: int | None = None,
        inner_steps: int | None = None, batches: tuple[int, int] | None = None,
    ) -> Self:  # fmt: skip
        """Build Algorithms 1 and 2 as printed for a target (epsilon, delta) on n records; 3 and 4 with `batches`.

        All numbers are those of Theorems 3.1 and B.1 and Lemma A.1, in `theory.paper_numbers`, which says
        how factors are read that the paper hides. `steps` and `inner_steps` take the place of T and n^2, which are
        beyond any budget; `batches` are the inner and the outer batch size. The account tells the true epsilon.

        >>> import sottovoce as sv; facts = theory.Facts(dx=5, dy=5)
        >>> method = DpBilevel.paper(facts, n=1000, epsilon=1.0, delta=1e-5, steps=20, inner_steps=50)
        >>> report = sv.account(method, sv.Population([1000]), steps=20, delta=1e-5)
        >>> round(report.published, 6), round(report.epsilon, 2)
        (1.0, 4.09)
        """
        paper = theory.paper_numbers(facts, n, epsilon, delta, steps, inner_steps)
        inner, beyond = (Descent(solve.steps, solve.rate, solve.radii) for solve in (paper.y, paper.penalised))
        drawn, drawn_x = map(WithReplacement, batches) if batches else (Full(), Full())
        return cls(
            paper.step_x, inner, paper.y.release, paper.penalised.release, drawn, paper.release_x, paper.penalty,
            sampling_x=drawn_x, inner_penalised=beyond, solve="apart", output="smallest step", warm=False,
            conditioning=theory.Conditioning(facts.ell, facts.kappa),
        )  # fmt: skip

    def init(self, problem: Bilevel, agent: Agent) -> BilevelState:
        """Start at x0 and y0 with no gap (Algorithm 1, line 1)."""
        x, y, none = problem.x0, problem.y0, zeros_like(problem.y0)
        return BilevelState(x, y, x, y, none, jnp.full((), jnp.finfo(jnp.float32).max), memory(self.step_x, x))

    def step(self, problem: Bilevel, state: BilevelState, agent: Agent) -> BilevelState:
        """Solve below twice, move x by a prox step, keep the best."""
        penalty = schedule(self.penalty)(agent.t, agent.index)
        x, problem = state.at, problem if self.release_x is not None else without_x(problem)
        start, gap = (state.near, state.gap) if self.warm else (problem.y0, zeros_like(state.gap))
        # Line 3: yg = argmin_y g(x, y), then yl = argmin_y f(x, y) + penalty * g(x, y), each by Algorithm 2 or 4.
        y = self.inner.solve(lower_slope(self.release_y, self.sampling, problem, x), start, agent, "y")
        beyond, reads = self.inner_penalised or self.inner, (self.release_penalised, self.sampling, problem, x)
        if self.solve == "gap":
            gap = beyond.solve(gap_slope(*reads, y, penalty), gap, agent, "penalised")
        else:
            # From the last yl (near it, if the penalty changes), not from y: both then lag behind x alike.
            last = beside(start, gap, penalty)
            yl = beyond.solve(penalised_slope(*reads, penalty), last, agent, "penalised")
            gap = jax.tree.map(lambda a, b: penalty * (a - b), yl, y)
        if math.isfinite(self.radius):
            gap = sets.ball(self.radius)(gap)  # not in the paper
        # Line 4: the noisy hypergradient. Line 5: the prox step, which is a projected gradient step.
        reads_x = self.release_x, self.sampling_x or self.sampling, problem, x
        slope = hypergradient(*reads_x, y, beside(y, gap, penalty), penalty, agent)
        moved, kept = update(self.step_x, agent.mix(x), state.memory, slope, agent.t, agent.index)
        moved = problem.project_x(moved)
        if self.output == "last":
            return BilevelState(moved, y, moved, y, gap, state.least, kept)
        # Lines 7 and 8: output the x_t with the smallest |x_{t+1} - x_t|.
        length = norm(jax.tree.map(lambda a, b: a - b, moved, x))
        best_x, best_y = jax.tree.map(lambda n, o: jnp.where(length < state.least, n, o), (x, y), (state.x, state.y))
        return BilevelState(best_x, best_y, moved, y, gap, jnp.minimum(length, state.least), kept)

    def published(self, setting: Setting) -> float | None:
        """Return Theorem 3.1 with the constant of its own lemmas; for the paper's two solves and declared constants."""
        given = self.release_x, self.sampling_x or self.sampling, setting.sizes, setting.steps, setting.delta
        return theory.printed_epsilon(self.conditioning if self.solve == "apart" else None, *given)

    def caveats(self, setting: Setting) -> Sequence[str]:
        """List what the account relies on, and what the paper's does not cover."""
        return theory.caveats(self.release_x is not None, self.published(setting) is not None)

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return both ways to solve; the paper's with rounds, averages and its output rule."""
        free, rounds = Release.open(), Descent(4, 0.3, radii=(50.0,))
        gap = cls(0.2, Descent(4, 0.3, averaged=False), free, free, Full(), release_x=free, penalty=100.0, radius=100.0)
        apart = replace(gap, inner=rounds, solve="apart", output="smallest step")
        quick = replace(gap, step_x=Momentum(0.1, 0.5), inner=Descent(4, Momentum(0.2, 0.3), averaged=False))
        return {"gap": gap, "apart": apart, "optimisers": quick}
