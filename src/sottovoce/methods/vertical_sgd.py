"""Train one model on the columns of several parties, all parameters by one loss: split learning with a label gate."""

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
from sottovoce.optimisers import Adam, Momentum, Rate
from sottovoce.privacy.labels import LabelGate, Open
from sottovoce.problems.vertical import Vertical
from sottovoce.trees import Tree, add


class VerticalState(NamedTuple):
    """Hold one party's own blocks, and what its optimisers remember."""

    x: Tree
    y: Tree
    memory_x: Any
    memory_y: Any


@dataclass(frozen=True)
class VerticalSgd(ColumnMethod):
    """Train across parties with columns, with one level: x and y descend on the same loss, over batches of all rows.

    A step reads one batch of the rows of both levels. Party m sends its head outputs, hears the gradient g at their
    sum, and moves both its blocks: ``(x_m', y_m') = (x_m, y_m) - rates * (J_m^T g + grad penalty(x_m, y_m))``, where
    J_m is the Jacobian of its outputs. So it is minibatch descent on the mean loss plus penalties, on all columns.

    It is the rival of a method with two levels: the same model, rows and gate, and nothing is tuned. With a penalty
    whose coefficient is x, descent makes the coefficient vanish: freeze it (``rate_x=0.0``).

    Args:
        batch: the rows of each batch.
        rate_x, rate_y: step sizes (numbers, or schedules of the step), or optimisers (`Adam`, optax), which each party
            applies to its own blocks.
        labels: the label gate: `Memoised(epsilon)`, `Fresh(scale)`, `Printed(scale)` or `Open()`.
        draw: batches are slices of "passes" over all rows in random order, or "uniform", each drawn anew.

    What is guaranteed is what the gate guarantees, for labels. Features are not covered: head outputs travel in clear.

    >>> from sottovoce.privacy.labels import Memoised
    >>> VerticalSgd(batch=100, rate_x=0.01, rate_y=0.1, labels=Memoised(1.0)).batches
    {'all': 1}
    """

    batch: int
    rate_x: Rate
    rate_y: Rate
    labels: LabelGate
    draw: Literal["passes", "uniform"] = "passes"

    @property
    def batches(self) -> dict[str, int]:
        """Return that a step reads one batch of all rows."""
        return {"all": 1}

    def init(self, problem: Vertical, party: Party) -> VerticalState:
        """Start party m at its own blocks of x0 and y0."""
        x, y = (
            jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), block[party.index])
            for block in (problem.x0, problem.y0)
        )
        return VerticalState(x, y, optimisers.memory(self.rate_x, x), optimisers.memory(self.rate_y, y))

    def step(self, problem: Vertical, state: VerticalState, party: Party) -> VerticalState:
        """Send the head outputs of a batch, and move both blocks along the gradient that comes back."""
        m, rows = party.index, party.rows["all"][0]
        features = party.features(rows)
        outputs, back = jax.vjp(lambda x, y: problem.outputs(m, y, problem.embedded(m, x, features)), state.x, state.y)
        slopes = back(party.ask("all", rows, outputs))
        slope_x, slope_y = map(add, slopes, jax.grad(problem.penalty_of, (0, 1))(state.x, state.y))
        x, memory_x = optimisers.update(self.rate_x, state.x, state.memory_x, slope_x, party.t)
        y, memory_y = optimisers.update(self.rate_y, state.y, state.memory_y, slope_y, party.t)
        return VerticalState(x, y, memory_x, memory_y)

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return full batches of 48 rows with true labels, with step sizes and with optimisers."""
        plain = cls(48, 0.3, 0.3, Open())
        return {"open": plain, "optimisers": replace(plain, rate_x=Adam(0.05), rate_y=Momentum(0.15, 0.5))}
