"""BAMBI and BAMBI-DP: vertical federated bilevel optimisation.

Anonymous authors, "BAMBI: vertical federated bilevel optimization with privacy-preserving and computation efficiency".
Here are Algorithm 1 and equation (5); Algorithms 2 and 3 are label gates (`sottovoce.privacy.labels`).
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce import rates
from sottovoce.privacy.labels import LabelGate
from sottovoce.privacy.release import Release
from sottovoce.problems.vertical import Vertical
from sottovoce.rates import Rate
from sottovoce.trees import Tree, add, inner

if TYPE_CHECKING:
    from sottovoce.runtime.exchange import Party, Server

_SMALLEST = 1e-5  # below this, float32 leaves less than two digits of a perturbed parameter


class BambiState(NamedTuple):
    """One party's own blocks, and what its optimisers remember."""

    x: Tree
    y: Tree
    memory_x: Any
    memory_y: Any


@dataclass(frozen=True)
class Bambi:
    """Vertical bilevel optimisation in which only head outputs and gradients at them leave a party.

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
        smoothing: mu. `theory.bambi.smoothing` is what the convergence proof asks for; in float32 it must not vanish.
        cross_terms: sum s_j over all parties, for which one number per direction crosses the boundary. False is
            equation (5) as printed: each party takes its own term only, which leaves out how its embedding moves the
            other parties' heads, a bias that no Q removes.

    Line 13 of the printed algorithm updates a copy with a gradient that the text evaluates at y^{k,t}; the copy's own
    iterate is meant (otherwise the copies do not approach the minimiser at x + mu u_j), and is taken here.

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

    def __post_init__(self) -> None:
        for name in ("inner_steps", "batch", "directions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if not self.smoothing >= _SMALLEST:
            raise ValueError(f"smoothing is {self.smoothing}: below {_SMALLEST} it is lost in float32")

    @property
    def batches(self) -> dict[str, int]:
        """How many batches a step reads at each level."""
        return {"lower": self.inner_steps, "upper": 1}

    def releases(self) -> list[Release]:
        """There are none: what is noised are labels, and nothing about that needs calibration."""
        raise ValueError("the epsilon of memoised labels is that of the whole run: there is no noise to calibrate")

    def init(self, problem: Vertical, m: int) -> BambiState:
        """Where party m starts."""
        # through NumPy, for Python numbers have no type of their own, and steps would be compiled twice
        x, y = (
            jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), block) for block in (problem.x0[m], problem.y0[m])
        )
        return BambiState(x, y, rates.memory(self.rate_x, x), rates.memory(self.rate_y, y))

    def step(self, problem: Vertical, state: BambiState, party: "Party") -> Generator[Any, Any, BambiState]:
        """Algorithm 1 on one party. Where it says ``yield from``, it waits for the server."""
        m, mu, x = party.index, self.smoothing, state.x
        u = party.normal("direction", x, self.directions)
        points = jax.tree.map(lambda x, u: jnp.concatenate([x[None], x + mu * u]), x, u)
        heads, memory = _repeated((state.y, state.memory_y), self.directions + 1)

        def fit(carry: Tree, rows: jax.Array) -> Generator[Any, Any, Tree]:
            heads, memory = carry
            embedded = jax.vmap(problem.embedded, (None, 0, None))(m, points, party.features(rows))
            outputs, back = jax.vjp(lambda y: jax.vmap(problem.outputs, (None, 0, 0))(m, y, embedded), heads)
            (slope,) = back((yield from party.ask("lower", rows, outputs)))
            slope = add(slope, jax.vmap(jax.grad(problem.penalty_of, 1))(points, heads))
            return jax.vmap(self._update_y, (0, 0, 0, None))(heads, memory, slope, party.t)

        heads, memory = yield from party.loop(fit, (heads, memory), over=party.rows["lower"])
        y, memory = jax.tree.map(lambda leaf: leaf[0], (heads, memory))

        rows = party.rows["upper"][0]
        features = party.features(rows)
        outputs, back = jax.vjp(lambda x, y: problem.outputs(m, y, problem.embedded(m, x, features)), x, y)
        slope_x, slope_y = back((yield from party.ask("upper", rows, outputs)))
        through_heads = _along(heads, y, slope_y, mu)
        if self.cross_terms:
            through_heads = yield from party.total(through_heads)
        x, memory_x = rates.update(self.rate_x, x, state.memory_x, add(slope_x, _weighted(through_heads, u)), party.t)
        return BambiState(x, y, memory_x, memory)

    def step_in_one_place(
        self, problem: Vertical, states: Sequence[BambiState], parties: Sequence["Party"], server: "Server"
    ) -> list[BambiState]:
        """The non-federated twin of `step`: all columns in one place, gradients by differentiating the whole loss."""
        mu, t, rows = self.smoothing, parties[0].t, parties[0].rows
        x, y = [s.x for s in states], [s.y for s in states]
        u = [party.normal("direction", s.x, self.directions) for party, s in zip(parties, states)]
        points = jax.tree.map(lambda x, u: jnp.concatenate([x[None], x + mu * u]), x, u)

        def lower(y: Tree, rows: jax.Array, turn: jax.Array) -> jax.Array:
            features = [party.features(rows) for party in parties]
            scores = jax.vmap(lambda x, y: problem.scores(x, y, features))(points, y)
            penalty = jax.vmap(lambda x, y: sum(map(problem.penalty_of, x, y)))(points, y)
            return server.loss(rows, scores, server.key("lower", t, turn)) + jnp.sum(penalty)

        def fit(carry: Tree, item: Tree) -> tuple[Tree, None]:
            heads, memory = carry
            slope = jax.grad(lower)(heads, *item)
            moved = [
                jax.vmap(self._update_y, (0, 0, 0, None))(h, o, s, t)
                for h, o, s in zip(heads, memory, slope, strict=True)
            ]
            return ([h for h, _ in moved], [o for _, o in moved]), None

        def upper(x: Tree, y: Tree) -> jax.Array:
            features = [party.features(rows["upper"][0]) for party in parties]
            key = server.key("upper", t, 0)
            return server.loss(rows["upper"][0], problem.scores(x, y, features), key)

        start = _repeated((y, [s.memory_y for s in states]), self.directions + 1)
        (heads, memory), _ = jax.lax.scan(fit, start, (rows["lower"], jnp.arange(self.inner_steps)))
        y, memory = jax.tree.map(lambda leaf: leaf[0], (heads, memory))
        slope_x, slope_y = jax.grad(upper, (0, 1))(x, y)
        along = [_along(h, y, s, mu) for h, y, s in zip(heads, y, slope_y, strict=True)]
        if self.cross_terms:
            along = [sum(along[1:], along[0])] * len(along)
        slope_x = add(slope_x, [_weighted(a, d) for a, d in zip(along, u, strict=True)])
        moved = [rates.update(self.rate_x, s.x, s.memory_x, slope, t) for s, slope in zip(states, slope_x, strict=True)]
        return [BambiState(x, y, mx, my) for (x, mx), y, my in zip(moved, y, memory, strict=True)]

    def _update_y(self, at: Tree, memory: Any, slope: Tree, t: jax.Array) -> tuple[Tree, Any]:
        return rates.update(self.rate_y, at, memory, slope, t)


def _repeated(tree: Tree, times: int) -> Tree:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (times, *jnp.shape(leaf))), tree)


def _along(heads: Tree, y: Tree, slope: Tree, mu: float) -> jax.Array:
    """<(y_j - y) / mu, slope> for each copy j."""
    return jax.vmap(lambda copy: inner(jax.tree.map(lambda c, y: (c - y) / mu, copy, y), slope))(
        jax.tree.map(lambda leaf: leaf[1:], heads)
    )


def _weighted(weights: jax.Array, directions: Tree) -> Tree:
    """The mean of the directions, each times its weight."""
    return jax.tree.map(lambda u: jnp.tensordot(weights, u, axes=1) / weights.shape[0], directions)
