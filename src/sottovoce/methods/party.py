"""Define the handle of a party that holds columns of a table: it reads its own features and asks the server.

Example: ``party.ask("lower", rows, outputs)`` sends the party's head outputs for a batch to the server, which has the
labels, and returns the gradient of the loss at the summed outputs. Apart from the numbers of `total`, nothing else
leaves a party.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from sottovoce.methods import equations
from sottovoce.methods.handle import Handle
from sottovoce.shown import Shown
from sottovoce.trees import Tree


@dataclass(frozen=True, eq=False, repr=False)
class KnownTable(Shown):
    """Hold what every party knows of a run over columns: all of it is public."""

    steps: int
    classes: int
    features: Callable[[int, int], Any]  # the shapes of party m's features for a number of rows


class Party(Handle):
    """Act as one party at one step: `index` is its number; `rows` holds the rows of this step's batches by level."""

    def __init__(
        self, known: KnownTable, index: int, t: jax.Array, rows: Mapping[str, jax.Array], loops: tuple[int, ...] = ()
    ) -> None:
        super().__init__(t, loops)
        self.index, self.rows, self._known = index, rows, known

    def features(self, rows: jax.Array) -> Any:
        """Return the party's features of some rows, altered as all parties agreed to (`Vertical.alter`)."""
        shapes = self._known.features(self.index, rows.shape[0])
        leaves, structure = jax.tree.flatten(shapes)
        found = self._bind(equations.features_p, "the features", rows, shapes=tuple(leaves))
        return jax.tree.unflatten(structure, found)

    def normal(self, name: str, like: Tree, count: int) -> Tree:
        """Return `count` independent standard normal copies of a tree."""
        leaves, structure = jax.tree.flatten(like)
        keys = jax.random.split(self.key(name), len(leaves))
        drawn = [jax.random.normal(key, (count, *jnp.shape(leaf))) for key, leaf in zip(keys, leaves)]
        return jax.tree.unflatten(structure, drawn)

    def ask(self, level: str, rows: jax.Array, outputs: jax.Array) -> jax.Array:
        """Send head outputs for some rows, (copies..., rows, outputs); return the gradient of the loss at them."""
        (slopes,) = self._bind(equations.ask_p, f"the question to the {level} level", rows, outputs, level=level)
        return slopes

    def total(self, values: jax.Array) -> jax.Array:
        """Send numbers; return their sums over all parties."""
        (sums,) = self._bind(equations.total_p, "the sum over parties", values)
        return sums

    def over(
        self, batches: jax.Array, body: Callable[[Tree, jax.Array, "Party"], Tree], carry: Tree, name: str
    ) -> Tree:
        """Return `carry` after `body(carry, rows, party)` has run for each of the batches."""

        def turn(both: tuple[Tree, jax.Array], party: "Party") -> tuple[Tree, jax.Array]:
            carry, k = both
            return body(carry, batches[k], party), k + 1

        return self.loop(batches.shape[0], turn, (carry, jnp.zeros((), jnp.int32)), name)[0]

    def _inside(self, loops: tuple[int, ...]) -> "Party":
        return Party(self._known, self.index, self.t, self.rows, loops)
