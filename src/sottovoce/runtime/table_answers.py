"""Answer the equations of a run over columns: a party's features and keys, the server's gradients.

Example: to `features` a party answers with its own columns of the rows. To `ask` the server answers with the gradient
of its loss at the sum of all parties' outputs, with the labels behind their gate. The place with all parties
(`sottovoce.runtime.columns`) and a party by itself (`sottovoce.runtime.lone_party`) give these answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from sottovoce.accounting.identity import identity
from sottovoce.accounting.table import TableAccount
from sottovoce.data.columns import gather
from sottovoce.privacy.labels import LabelGate, Labels
from sottovoce.runtime.keys import agent_keys
from sottovoce.runtime.run_state import digest


@dataclass(frozen=True)
class PartyMoment:
    """Describe one party at one step, or at one turn of a loop, with the keys that belong to it."""

    alter: ClosedJaxpr | None  # how features are altered, as it was traced
    block: Any
    own: jax.Array  # the party's key
    shared: jax.Array  # the key that all parties know

    def features(self, rows: jax.Array, number: int) -> list[Any]:
        """Return the party's columns of some rows, altered as all parties agreed to."""
        found, alter = jax.tree.leaves(gather(self.block, rows)), self.alter
        key = jax.random.fold_in(self.shared, number)
        return found if alter is None else jax.core.eval_jaxpr(alter.jaxpr, alter.consts, key, *found)

    def key(self, number: int) -> jax.Array:
        """Return the key of one equation."""
        return jax.random.fold_in(self.own, number)

    def inside(self, loop: int, turn: Any) -> "PartyMoment":
        """Return the same moment inside one turn of a loop."""
        return replace(self, own=_inside(self.own, loop, turn), shared=_inside(self.shared, loop, turn))


@dataclass(frozen=True)
class ServerMoment:
    """Describe the label holder at one step or turn of a loop: its labels behind the gate, and its noise's key.

    `losses` are the problem's, as they were traced: one for each shape of scores that a step asks with.
    """

    losses: Sequence[ClosedJaxpr]
    gate: LabelGate
    vectors: jax.Array
    key: jax.Array

    def slopes(self, rows: jax.Array, outputs: Sequence[jax.Array], number: int) -> jax.Array:
        """Return the gradient of the mean loss over the rows at the sum of the parties' outputs."""
        key = jax.random.fold_in(self.key, number)

        def loss(scores: jax.Array) -> jax.Array:
            """Return the mean over rows, summed over copies: labels come through their gate."""
            weights = self.gate.weights(self.vectors[rows], scores.shape[:-2], key)
            (candidates,) = jax.core.eval_jaxpr(traced.jaxpr, traced.consts, scores)
            return jnp.sum(jnp.mean(self.gate.loss(candidates, weights), axis=-1))

        asked = in_order(outputs)
        traced = next(one for one in self.losses if one.in_avals[0].shape == asked.shape)
        return jax.grad(loss)(asked)

    def inside(self, loop: int, turn: Any) -> "ServerMoment":
        """Return the same moment inside one turn of a loop."""
        return replace(self, key=_inside(self.key, loop, turn))


def _inside(key: jax.Array, loop: int, turn: Any) -> jax.Array:
    return jax.random.fold_in(jax.random.fold_in(key, loop), turn)


def in_order(values: Sequence[jax.Array]) -> jax.Array:
    """Return the sum, in the parties' order.

    >>> in_order([jnp.ones(2), jnp.ones(2)]).tolist()
    [2.0, 2.0]
    """
    return sum(values[1:], values[0])


def party_root(account: TableAccount, number: int, seed: int | str) -> jax.Array:
    """Return a party's root key: made of the seed, what the party computes, and its own columns."""
    columns = account.columns
    own = [columns.blocks[account.trace.numbers.index(number)], columns.upper, columns.lower]
    return _root(seed, identity("party", number, *_programs(account, number)), own)


def shared_root(account: TableAccount) -> jax.Array:
    """Return the root key that all parties know: made of public facts."""
    public = identity("all", *account.trace.losses, [list(crossing) for crossing in account.trace.crossings])
    return _root(account.seed, public, [account.columns.upper, account.columns.lower])


def server_root(
    account: TableAccount, holder: int, labels: Labels, places: Any, vectors: Any, secret: str | None
) -> jax.Array:
    """Return the root key of the label gate's noise, which follows from all that says which label meets which noise.

    That is what is asked (losses, the gate with its scale, and the program of the party that holds the labels, which
    says of which rows and how often), the batches (the public seed, also where there is a `secret`, and the rows of
    each level), and whose labels they are: their vectors, the store's rows, and the `places` of the run's rows in it.
    With a secret, a store has noise of its own, even if another holds equal labels.

    The parties' columns are no part of it. With other columns the same labels meet the same noise, so both runs
    together tell no more about a label than one.
    """
    whose, store = labels.identity
    method, columns = account.method, account.columns
    batches = [account.seed, method.draw, method.batch, dict(method.batches)]
    asked = identity("server", *account.trace.losses, method.labels, batches, *_programs(account, holder))
    drawn = f"{account.seed}" if secret is None else f"{account.seed}|{store}|{secret}"
    return _root(drawn, f"{asked}|{whose}", [vectors, places, columns.upper, columns.lower])


def _programs(account: TableAccount, number: int) -> list[Any]:
    party = account.trace.parties[account.trace.numbers.index(number)]
    return [party.init, party.step]


def _root(seed: int | str, program: str, held: Any) -> jax.Array:
    (root,) = agent_keys(seed, program, [digest(held).encode()])
    return root
