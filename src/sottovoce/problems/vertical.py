"""State a problem on one table that is split by columns: parties hold features, and a server holds the labels.

Example: a bank and a shop know different facts about the same customers, and an insurer knows who had a claim.

Party m embeds its features and applies a head to the embedding. The sum of the heads' outputs are the scores from which
the server computes its loss. The upper level chooses the embeddings x (or the coefficients of the penalty), the lower
level the heads y. `scores` and `predict` compute the same in one place.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp

from sottovoce.closed import Closed
from sottovoce.trees import Tree

Embed = Callable[[Tree, Any], Any]
Head = Callable[[Tree, Any], jax.Array]


@final
@dataclass(frozen=True, eq=False)
class Vertical(Closed):
    """Minimise over x the mean loss on upper rows, at heads y*(x) that minimise loss plus penalty on lower rows.

    Args:
        embed: ``embed(x_m, features)`` maps a batch of a party's features to embeddings; one function, or one per
            party.
        head: ``head(y_m, embedded)`` gives the party's share of the scores, (rows, outputs); one, or one per party.
        losses: ``losses(scores)[..., b]`` is the loss of a record if its label is b. It must be a negative
            log-likelihood where the forward correction is used: `cross_entropy`, `logistic`.
        x0, y0: where the parties' blocks start, one per party.
        penalty: ``penalty(x_m, y_m)``, added to the lower level by each party for its own blocks; it reads no record.
        alter: ``alter(key, features)`` changes each party's features of a training batch, for example shifts pictures.
            All get the same key, which is public, so that a record is altered in the same way everywhere.
        public_constants: set it to True to declare that arrays captured by the functions are public. Weights that were
            computed from the labels are not: by default a captured array is an error.

    >>> problem = Vertical(
    ...     embed=lambda x, a: jnp.tanh(a @ x), head=lambda y, e: e @ y, losses=cross_entropy,
    ...     x0=[jnp.ones((2, 3)), jnp.ones((4, 3))], y0=[jnp.zeros((3, 5))] * 2,
    ... )
    >>> problem.parties, problem.scores(problem.x0, problem.y0, [jnp.ones((7, 2)), jnp.ones((7, 4))]).shape
    (2, (7, 5))
    """

    embed: Embed | Sequence[Embed]
    head: Head | Sequence[Head]
    losses: Callable[[jax.Array], jax.Array]
    x0: Sequence[Tree]
    y0: Sequence[Tree]
    penalty: Callable[[Tree, Tree], jax.Array] | None = None
    alter: Callable[[jax.Array, Any], Any] | None = None
    public_constants: bool = False
    variables: ClassVar[tuple[str, ...]] = ("x", "y")

    def __post_init__(self) -> None:
        if not len(self.x0) or len(self.x0) != len(self.y0):
            raise ValueError(f"x0 has {len(self.x0)} blocks and y0 {len(self.y0)}: give one of each for every party")
        for name in ("embed", "head"):
            given = getattr(self, name)
            each = (given,) * self.parties if callable(given) else tuple(given)
            if len(each) != self.parties:
                raise ValueError(f"{name} has {len(each)} functions for {self.parties} parties: give one, or one each")
            object.__setattr__(self, name, each)

    @property
    def parties(self) -> int:
        """Return the number of parties."""
        return len(self.x0)

    def embedded(self, m: int, x: Tree, features: Any) -> Any:
        """Return party m's embeddings."""
        return self.embed[m](x, features)  # type: ignore[index]

    def outputs(self, m: int, y: Tree, embedded: Any) -> jax.Array:
        """Return party m's share of the scores."""
        return self.head[m](y, embedded)  # type: ignore[index]

    def penalty_of(self, x: Tree, y: Tree) -> jax.Array:
        """Return one party's penalty, zero if there is none."""
        return jnp.zeros(()) if self.penalty is None else self.penalty(x, y)

    def scores(self, x: Sequence[Tree], y: Sequence[Tree], features: Sequence[Any]) -> jax.Array:
        """Return the sum of all parties' outputs."""
        each = [self.outputs(m, y[m], self.embedded(m, x[m], features[m])) for m in range(self.parties)]
        return sum(each[1:], each[0])

    def predict(self, x: Sequence[Tree], y: Sequence[Tree], features: Sequence[Any]) -> jax.Array:
        """Return class probabilities, for losses that are negative log-likelihoods."""
        return jnp.exp(-self.losses(self.scores(x, y, features)))


def cross_entropy(scores: jax.Array) -> jax.Array:
    """Return the losses of softmax classification: one score per class.

    >>> print(cross_entropy(jnp.zeros(4)).round(3))
    [1.386 1.386 1.386 1.386]
    """
    return -jax.nn.log_softmax(scores)


def logistic(scores: jax.Array) -> jax.Array:
    """Return the losses of logistic regression: one score per record, two classes.

    >>> print(logistic(jnp.asarray([2.0])).round(3))
    [2.127 0.127]
    """
    return jnp.concatenate([jax.nn.softplus(scores), jax.nn.softplus(-scores)], axis=-1)
