"""`VerticalSgd` without parties: all columns in one place, and the gradient of the whole loss."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from sottovoce import optimisers
from sottovoce.accounting.table import schedule
from sottovoce.methods.vertical_sgd import VerticalSgd


class VerticalTwin:
    """A run whose parties and server are one; for gates without noise at each use."""

    def __init__(self, problem: sv.Vertical, table: sv.Table, method: VerticalSgd, seed: int = 0) -> None:
        self.problem, self.columns, self.method, self.seed = problem, table.columns, method, seed
        self.vectors = jnp.asarray(method.labels.vectors(table.labels))

    def path(self, steps: int) -> np.ndarray:
        """Return all parameters after each step."""
        problem, method = self.problem, self.method
        at: Any = [jax.tree.map(lambda leaf: jnp.asarray(leaf, float), list(part)) for part in (problem.x0, problem.y0)]
        rates = method.rate_x, method.rate_y
        kept = [[optimisers.memory(rate, own) for own in part] for rate, part in zip(rates, at)]
        found = []
        for t in range(steps):
            (rows,) = schedule(self.columns, method, self.seed, t, 1)["all"][0]
            slopes = jax.grad(self._loss, (0, 1))(*at, rows)
            moved = [
                [optimisers.update(rate, *own, t) for own in zip(*parts)]
                for rate, *parts in zip(rates, at, kept, slopes)
            ]
            at, kept = ([[pair[which] for pair in part] for part in moved] for which in (0, 1))
            found.append(jax.flatten_util.ravel_pytree(tuple(at))[0])
        return np.stack(found)

    def _loss(self, x: Any, y: Any, rows: np.ndarray) -> jax.Array:
        gate, features = self.method.labels, [jnp.asarray(block)[rows] for block in self.columns.blocks]
        weights = gate.weights(self.vectors[rows], (), jax.random.key(0))
        scores = self.problem.scores(x, y, features)
        penalties = sum(map(self.problem.penalty_of, x, y))
        return jnp.mean(gate.loss(self.problem.losses(scores), weights)) + penalties
