"""Seal records, so that only the gate can read them.

A record set is *sealed* before a run: its arrays sit in an object with one accessor, `unseal`. Example: the gate asks a
sealed set for the rows of a batch, clips their gradients and adds noise; no other part of a step can see a row. A test
(`tests/data/test_sealed.py`) lists every caller of `unseal` in this package, so that a new one does not go unnoticed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from sottovoce.trees import Tree

RecordLoss = Callable[[Tree, Any], jax.Array]  # (variables, one record) -> one number


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["_pool", "_order", "_filled", "_starts", "_share"],
    meta_fields=["_in_turn"],
)
@dataclass(frozen=True, repr=False)
class Sealed:
    """Seal the records of one level, for a group of agents: one pool of rows, and per agent the rows that are its own.

    `order` lists pool rows, agent after agent. With a privacy unit, each entry of `order` is the list of a unit's rows,
    padded, and `filled` says which of them are real. `starts` holds each agent's first entry. `in_turn` says that
    `order` is 0, 1, 2, and so on, so that nothing must be looked up there. `share` is one agent's records as an array
    of their own, for batches of all records.

    >>> both = Sealed(jnp.asarray([5.0, 6.0, 7.0]), jnp.asarray([2, 0, 1]), None, jnp.asarray([0, 1]))
    >>> both.of(1).unseal(jnp.asarray([0, 1])).tolist()    # the second agent holds the rows 0 and 1 of the pool
    [5.0, 6.0]
    """

    _pool: Tree
    _order: jax.Array
    _filled: jax.Array | None
    _starts: jax.Array
    _in_turn: bool = False
    _share: Tree | None = None

    def unseal(self, rows: jax.Array | None = None, whole: bool = False) -> Tree:
        """Return an agent's records (or units) at local rows; without `rows`, the whole pool.

        Rows beyond the end return some record: the caller must mask them. Units come as `(records, filled)`. `whole`
        says that the rows are all of the agent's, in order: then its share is returned, if there is one.
        """
        if rows is None:
            return self._pool
        if whole and self._share is not None:
            return self._share
        entries = jnp.minimum(self._starts + rows, self._order.shape[0] - 1)
        # In bounds by construction: not to be checked again for each number of a record.
        found = entries if self._in_turn else self._order.at[entries].get(mode="promise_in_bounds")
        records = jax.tree.map(lambda leaf: leaf.at[found].get(mode="promise_in_bounds"), self._pool)
        return records if self._filled is None else (records, self._filled[entries])

    def of(self, agent: Any) -> "Sealed":
        """Return the same set as one agent sees it: local row 0 is its first record."""
        return self.starting(self._starts[agent])

    def starting(self, start: jax.Array, share: Tree | None = None) -> "Sealed":
        """Return the same set for the agent whose first entry is `start`, and whose records are `share` if given."""
        return Sealed(self._pool, self._order, self._filled, start, self._in_turn, share)

    def shares(self, agents: int, each: int) -> Tree | None:
        """Return the pool cut into one share per agent, who has `each` records; None unless they stand there in turn.

        >>> Sealed(jnp.arange(6.0), jnp.arange(6), None, jnp.asarray([0, 3]), _in_turn=True).shares(2, 3).shape
        (2, 3)
        """
        if not self._in_turn or len(jax.tree.leaves(self._pool)[0]) != agents * each:
            return None
        return jax.tree.map(lambda leaf: leaf.reshape(agents, each, *leaf.shape[1:]), self._pool)

    def with_pool(self, pool: Tree) -> "Sealed":
        """Return the same rows of another pool, for an audit that changes one record."""
        return Sealed(pool, self._order, self._filled, self._starts, self._in_turn)

    @property
    def starts(self) -> jax.Array:
        """Return the first entry of each agent: public, because sizes are public."""
        return self._starts

    @property
    def order(self) -> jax.Array:
        """Return the pool rows of all agents, one agent after the other."""
        return self._order

    @property
    def in_turn(self) -> bool:
        """Say whether the pool itself lists the agents' records, one agent after the other."""
        return self._in_turn

    @property
    def share(self) -> Tree | None:
        """Return one agent's records where they are an array of their own: still sealed, to be passed on."""
        return self._share

    @property
    def filled(self) -> jax.Array | None:
        """Say which rows of a padded unit are real; None if a record is its own unit."""
        return self._filled

    @property
    def record_bytes(self) -> int:
        """Return the size of one record (or padded unit) in bytes."""
        leaves = jax.tree.leaves(self._pool)
        return sum(leaf.nbytes // leaf.shape[0] for leaf in leaves) * math.prod(self._order.shape[1:])

    def lift(self, loss: RecordLoss) -> RecordLoss:
        """Turn a function of one record into a function of what `unseal` returns.

        For units it is the mean over the unit's records, so that a unit is clipped as a whole.
        """
        if self._filled is None:
            return loss

        def of_unit(at: Tree, unit: tuple[Tree, jax.Array]) -> jax.Array:
            records, filled = unit
            values = jax.vmap(loss, (None, 0))(at, records)
            return jnp.sum(jnp.where(filled, values, 0.0)) / jnp.sum(filled)

        return of_unit
