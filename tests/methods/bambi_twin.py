"""BAMBI without federation: all columns in one place, gradients by differentiating the whole loss.

An oracle for the federated run. It takes the same batches and the same randomness, and shares no code with the
exchange of messages.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from sottovoce import optimisers
from sottovoce.accounting.table import schedule, table_account
from sottovoce.papers.bambi.method import Bambi, BambiState
from sottovoce.runtime.columns import table_roots
from sottovoce.runtime.keys import step_key
from sottovoce.trees import add, inner

# The numbers of a step's equations, by which their keys differ: the directions, the loop, and after it the features
# and the question to the upper level; inside the loop, the features and the question to the lower level.
DIRECTION, LOOP, UPPER_FEATURES, UPPER = 0, 1, 2, 3
LOWER_FEATURES, LOWER = 0, 1


class Twin:
    """A run whose parties and server are one."""

    def __init__(self, problem: sv.Vertical, table: sv.Table, method: Bambi, seed: int = 0) -> None:
        self.problem, self.columns, self.method, self.seed = problem, table.columns, method, seed
        self.roots = table_roots(table_account(method, table, problem, steps=1, delta=0.0, seed=seed), table)
        used = np.union1d(table.columns.upper, table.columns.lower)
        self.vectors = jnp.asarray(method.labels.vectors(table.labels, used))
        self.blocks = [jnp.asarray(block) for block in table.columns.blocks]
        self.step = jax.jit(self._step)

    def path(self, steps: int) -> np.ndarray:
        """Return all parameters after each step."""
        states = [self._start(x, y) for x, y in zip(self.problem.x0, self.problem.y0)]
        found = []
        for t in range(steps):
            rows = {level: listed[0] for level, listed in schedule(self.columns, self.method, self.seed, t, 1).items()}
            states = self.step(states, jnp.int32(t), rows)
            found.append(jax.flatten_util.ravel_pytree(([s.x for s in states], [s.y for s in states]))[0])
        return np.stack(found)

    def _start(self, x: Any, y: Any) -> BambiState:
        x, y = (jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), block) for block in (x, y))
        return BambiState(x, y, optimisers.memory(self.method.rate_x, x), optimisers.memory(self.method.rate_y, y))

    def _features(self, rows: jax.Array, key: jax.Array) -> list[jax.Array]:
        found, alter = [block[rows] for block in self.blocks], self.problem.alter
        return found if alter is None else [alter(key, features) for features in found]

    def _loss(self, rows: jax.Array, scores: jax.Array, key: jax.Array) -> jax.Array:
        """The mean over rows, summed over copies."""
        gate = self.method.labels
        weights = gate.weights(self.vectors[rows], scores.shape[:-2], key)
        return jnp.sum(jnp.mean(gate.loss(self.problem.losses(scores), weights), axis=-1))

    def _step(self, states: list[BambiState], t: jax.Array, rows: Any) -> list[BambiState]:
        problem, method, parties = self.problem, self.method, len(states)
        mu, copies = method.smoothing, method.directions + 1
        keys = [step_key(self.roots[number], number, "step", t) for number in range(parties + 2)]
        shared, server = keys[-2:]
        fold = jax.random.fold_in
        x, y = [s.x for s in states], [s.y for s in states]
        u = [self._directions(fold(key, DIRECTION), one) for key, one in zip(keys, x)]
        points = jax.tree.map(lambda x, u: jnp.concatenate([x[None], x + mu * u]), x, u)

        def lower(heads: Any, rows: jax.Array, k: Any) -> jax.Array:
            features = self._features(rows, fold(fold(fold(shared, LOOP), k), LOWER_FEATURES))
            scores = jax.vmap(lambda x, y: problem.scores(x, y, features))(points, heads)
            penalty = jax.vmap(lambda x, y: sum(map(problem.penalty_of, x, y)))(points, heads)
            return self._loss(rows, scores, fold(fold(fold(server, LOOP), k), LOWER)) + jnp.sum(penalty)

        def repeated(tree: Any) -> Any:
            return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (copies, *jnp.shape(leaf))), tree)

        heads, memory = repeated(y), [repeated(s.memory_y) for s in states]
        for k in range(method.inner_steps):
            at = heads if method.copies == "own" else repeated(jax.tree.map(lambda leaf: leaf[0], heads))
            slope = jax.grad(lower)(at, rows["lower"][k], k)
            moved = [
                jax.vmap(lambda at, kept, slope: optimisers.update(method.rate_y, at, kept, slope, t))(*own)
                for own in zip(heads, memory, slope, strict=True)
            ]
            heads, memory = [at for at, _ in moved], [kept for _, kept in moved]
        y, memory = jax.tree.map(lambda leaf: leaf[0], (heads, memory))

        def upper(x: Any, y: Any) -> jax.Array:
            features = self._features(rows["upper"][0], fold(shared, UPPER_FEATURES))
            return self._loss(rows["upper"][0], problem.scores(x, y, features), fold(server, UPPER))

        slope_x, slope_y = jax.grad(upper, (0, 1))(x, y)
        along = [
            jnp.stack(
                [
                    inner(jax.tree.map(lambda copy, y, j=j: (copy[j] - y) / mu, heads[m], y[m]), slope_y[m])
                    for j in range(1, copies)
                ]
            )
            for m in range(parties)
        ]
        if method.cross_terms:
            along = [sum(along)] * parties
        after = []
        for m, state in enumerate(states):
            through = jax.tree.map(lambda u, m=m: jnp.tensordot(along[m], u, axes=1) / method.directions, u[m])
            moved_x, memory_x = optimisers.update(method.rate_x, state.x, state.memory_x, add(slope_x[m], through), t)
            after.append(BambiState(moved_x, y[m], memory_x, memory[m]))
        return after

    def _directions(self, key: jax.Array, like: Any) -> Any:
        leaves, structure = jax.tree.flatten(like)
        count = self.method.directions
        drawn = [
            jax.random.normal(own, (count, *jnp.shape(leaf)))
            for own, leaf in zip(jax.random.split(key, len(leaves)), leaves)
        ]
        return jax.tree.unflatten(structure, drawn)
