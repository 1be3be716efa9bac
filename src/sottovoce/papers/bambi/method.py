"""Run BAMBI and BAMBI-DP: vertical federated bilevel optimisation.

Anonymous authors, "BAMBI: vertical federated bilevel optimization with privacy-preserving and computation efficiency".
Here are Algorithm 1 and equation (5); Algorithms 2 and 3 are label gates (`sottovoce.privacy.labels`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce import optimisers
from sottovoce.methods.base import Method
from sottovoce.methods.column_method import ColumnMethod
from sottovoce.methods.party import Party
from sottovoce.naming import check_choice
from sottovoce.optimisers import Adam, Momentum, Rate
from sottovoce.privacy.labels import LabelGate, Open
from sottovoce.problems.vertical import Vertical
from sottovoce.trees import Tree, add, inner

_SMALLEST = 1e-5  # below this, float32 leaves less than two digits of a perturbed parameter


class BambiState(NamedTuple):
    """Hold one party's own blocks, and what its optimisers remember."""

    x: Tree
    y: Tree
    memory_x: Any
    memory_y: Any


@dataclass(frozen=True)
class Bambi(ColumnMethod):
    """Tune and train across parties with columns (BAMBI): head outputs, gradients and a few numbers leave a party.

    Each step, N inner steps fit the heads y at x, and Q copies of them at x + mu u_j; then
    ``x_m' = x_m - rate (grad_{x_m} f + (1/Q) sum_j s_j u_{j,m})``, where s_j estimates how f changes through the heads,
    ``s_j = sum_m <(y_{j,m} - y_m) / mu, grad_{y_m} f>``.

    Args:
        inner_steps: N, the steps of the lower level.
        batch: B, the rows of each batch, at both levels.
        rate_x, rate_y: step sizes (numbers, or schedules of the outer step), or optimisers (`Adam`, optax), which each
            party applies to its own blocks.
        labels: the label gate: `Memoised(epsilon)`, `Fresh(scale)`, `Printed(scale)` or `Open()`.
        directions: Q. The estimate's variance falls as 1/Q and grows with the number of parameters.
        smoothing: mu. `theory.smoothing` is what the convergence proof asks for; in float32 it must not vanish.
        cross_terms: sum s_j over all parties, for which one number per direction crosses the boundary. False is
            equation (5) as printed: each party takes its own term only, which leaves out how its embedding moves the
            other parties' heads, a bias that no Q removes.
        copies: where the gradient of a copy is taken: at the copy's "own" iterate, or at "y", as line 13 prints. With
            "y" the copies do not approach the minimiser at x + mu u_j.
        draw: batches are "uniform", each drawn anew, as lines 6 and 17 print; or slices of "passes" over all rows in
            random order, which read every label equally often. The account counts what is drawn.

    What is guaranteed is what the gate guarantees, for labels. Features are not covered: head outputs travel in clear.

    >>> from sottovoce.privacy.labels import Memoised
    >>> Bambi(inner_steps=5, batch=100, rate_x=0.01, rate_y=0.1, labels=Memoised(1.0)).batches
    {'lower': 5, 'upper': 1}
    """

    inner_steps: int
    batch: int
    rate_x: Rate
    rate_y: Rate
    labels: LabelGate
    directions: int = 1
    smoothing: float = 1e-2
    cross_terms: bool = True
    copies: Literal["own", "y"] = "own"
    draw: Literal["passes", "uniform"] = "passes"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("inner_steps", "directions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        check_choice("copies", self.copies, ("own", "y"))
        if not self.smoothing >= _SMALLEST:
            raise ValueError(f"smoothing is {self.smoothing}: below {_SMALLEST} it is lost in float32")

    @property
    def batches(self) -> dict[str, int]:
        """Return how many batches a step reads at each level."""
        return {"lower": self.inner_steps, "upper": 1}

    @classmethod
    def usual(cls, rows: int) -> Mapping[str, Any]:
        """Return settings for tables of people: batches of 500 rows, and Adam, which adapts its steps."""
        return {
            "inner_steps": 20, "directions": 2, "rate_x": Adam(0.1), "rate_y": Adam(0.02), "batch": min(500, rows),
        }  # fmt: skip

    def why(self, steps: int) -> tuple[str, ...]:
        """Say in three lines why this was chosen."""
        return (
            "Bambi: parties hold columns; head outputs, gradients and a number per direction leave a party",
            f"{steps} steps of {self.inner_steps} inner ones: each label is drawn once, so that more cost no privacy",
            f"batches of {self.batch} rows; one coefficient per party is tuned with {self.directions} directions",
        )

    def init(self, problem: Vertical, party: Party) -> BambiState:
        """Start party m at its own blocks of x0 and y0."""
        # through NumPy, because Python numbers have no type of their own
        x, y = (
            jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), block[party.index])
            for block in (problem.x0, problem.y0)
        )
        return BambiState(x, y, optimisers.memory(self.rate_x, x), optimisers.memory(self.rate_y, y))

    def step(self, problem: Vertical, state: BambiState, party: Party) -> BambiState:
        """Run one outer iteration k of Algorithm 1 on one party m."""
        m, mu, x = party.index, self.smoothing, state.x
        u = party.normal("direction", x, self.directions)  # line 4: u_j ~ N(0, I)
        points = jax.tree.map(lambda x, u: jnp.concatenate([x[None], x + mu * u]), x, u)  # x, and x + mu u_j
        start = _repeated((state.y, state.memory_y), self.directions + 1)  # line 3

        def fit(carry: Tree, rows: jax.Array, party: Party) -> Tree:
            """Take one inner step of y at x, and of its copies at x + mu u_j (lines 5 to 13)."""
            heads, memory = carry
            at = heads if self.copies == "own" else _repeated(_first(heads), self.directions + 1)  # of v-hat
            embedded = jax.vmap(problem.embedded, (None, 0, None))(m, points, party.features(rows))
            outputs, back = jax.vjp(lambda y: jax.vmap(problem.outputs, (None, 0, 0))(m, y, embedded), at)
            (slope,) = back(party.ask("lower", rows, outputs))  # lines 7 to 12: h up, theta down
            slope = add(slope, jax.vmap(jax.grad(problem.penalty_of, 1))(points, at))
            return jax.vmap(lambda at, kept, slope: optimisers.update(self.rate_y, at, kept, slope, party.t))(
                heads, memory, slope
            )  # line 13

        heads, memory = party.over(party.rows["lower"], fit, start, "lower")
        y, memory = _first((heads, memory))

        rows = party.rows["upper"][0]  # line 17
        features = party.features(rows)
        outputs, back = jax.vjp(lambda x, y: problem.outputs(m, y, problem.embedded(m, x, features)), x, y)
        slope_x, slope_y = back(party.ask("upper", rows, outputs))  # lines 18 to 24: H up, vartheta down
        through_heads = _along(heads, y, slope_y, mu)  # line 16, equation (5): <(y_j - y) / mu, grad_y f>
        if self.cross_terms:
            through_heads = party.total(through_heads)
        hypergradient = add(slope_x, _weighted(through_heads, u))  # line 25
        x, memory_x = optimisers.update(self.rate_x, x, state.memory_x, hypergradient, party.t)
        return BambiState(x, y, memory_x, memory)

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return full batches of 24 rows with true labels, with step sizes and with optimisers."""
        plain = cls(30, 24, 4.0, 0.3, Open(), directions=4)
        return {"open": plain, "optimisers": replace(plain, rate_x=Adam(0.05), rate_y=Momentum(0.15, 0.5))}


def _first(tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: leaf[0], tree)


def _repeated(tree: Tree, times: int) -> Tree:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (times, *jnp.shape(leaf))), tree)


def _along(heads: Tree, y: Tree, slope: Tree, mu: float) -> jax.Array:
    """Return <(y_j - y) / mu, slope> for each copy j."""
    return jax.vmap(lambda copy: inner(jax.tree.map(lambda c, y: (c - y) / mu, copy, y), slope))(
        jax.tree.map(lambda leaf: leaf[1:], heads)
    )


def _weighted(weights: jax.Array, directions: Tree) -> Tree:
    """Return the mean of the directions, each times its weight."""
    return jax.tree.map(lambda u: jnp.tensordot(weights, u, axes=1) / weights.shape[0], directions)
