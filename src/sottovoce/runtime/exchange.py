"""Parties and their server: what a party may do, what crosses its boundary, and who answers.

A method is written for one party as a generator: ``yield from party.ask(...)`` sends head outputs up and waits for the
gradients at them. The exchange moves all parties from one wait to the next. So the same code runs compiled as one
program, message by message with everything that crosses a boundary written down, or for one party alone against a
recorded inbox.
"""

import math
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.data.columns import gather
from sottovoce.privacy.labels import LabelGate
from sottovoce.problems.vertical import Vertical
from sottovoce.trees import Tree

Talk = Generator[Any, Any, Any]


class Ask(NamedTuple):
    """Head outputs for some rows: (copies..., rows, outputs). The answer are the loss's gradients at them."""

    level: str
    rows: jax.Array
    outputs: jax.Array


class Total(NamedTuple):
    """Numbers to be summed over the parties."""

    values: jax.Array


class Loop(NamedTuple):
    """A repeated exchange: `body(carry, item)` for each item of `over`."""

    body: Callable[[Tree, Any], Talk]
    carry: Tree
    over: jax.Array


class Message(NamedTuple):
    """Something that crossed a party's boundary; `party` is the one that is not the server."""

    step: int
    turn: int | None
    party: int
    up: bool
    what: str
    level: str | None
    rows: Any  # of the batch it is about, which all parties know
    value: Any


@dataclass(frozen=True)
class Party:
    """One party at one step: its own block, the public batches, and randomness by name."""

    index: int
    t: jax.Array
    block: Any
    rows: Mapping[str, jax.Array]  # the rows of this step's batches by level: (batches, rows)
    seed: int
    alter: Callable[[jax.Array, Any], Any] | None = None

    def features(self, rows: jax.Array) -> Any:
        """The party's features of some rows, altered as all parties agreed to: they share the key of a batch."""
        found = gather(self.block, rows)
        if self.alter is None:
            return found
        key = jax.random.fold_in(_key(self.seed, "alter"), self.t)
        return self.alter(jax.random.fold_in(key, rows[0]), found)

    def normal(self, name: str, like: Tree, count: int) -> Tree:
        """So many independent standard normal copies of a tree."""
        key = jax.random.fold_in(_key(self.seed, f"party {self.index}/{name}"), self.t)
        leaves, structure = jax.tree.flatten(like)
        keys = jax.random.split(key, len(leaves))
        drawn = [jax.random.normal(k, (count, *jnp.shape(leaf))) for k, leaf in zip(keys, leaves)]
        return jax.tree.unflatten(structure, drawn)

    def ask(self, level: str, rows: jax.Array, outputs: jax.Array) -> Talk:
        """Send head outputs up, receive the gradient of the level's loss at them."""
        return (yield Ask(level, rows, outputs))

    def total(self, values: jax.Array) -> Talk:
        """Send numbers up, receive their sums over all parties."""
        return (yield Total(values))

    def loop(self, body: Callable[[Tree, Any], Talk], carry: Tree, over: jax.Array) -> Talk:
        """Repeat an exchange."""
        return (yield Loop(body, carry, over))


@dataclass(frozen=True)
class Server:
    """Who has the labels, behind their gate."""

    problem: Vertical
    gate: LabelGate
    vectors: jax.Array
    seed: int

    def key(self, level: str, t: jax.Array, turn: jax.Array | int) -> jax.Array:
        """The key of one answer's noise."""
        return jax.random.fold_in(jax.random.fold_in(_key(self.seed, f"server/{level}"), t), turn)

    def loss(self, rows: jax.Array, scores: jax.Array, key: jax.Array) -> jax.Array:
        """The mean loss over the rows, summed over copies."""
        weights = self.gate.weights(self.vectors[rows], scores.shape[:-2], key)
        return jnp.sum(jnp.mean(self.gate.loss(self.problem.losses(scores), weights), axis=-1))


class Crossing(NamedTuple):
    """What one step sends: `times` such messages, of `size` bytes up and as many down for each passive party."""

    level: str | None
    copies: int
    size: int
    times: int


class Exchange:
    """Moves the parties of one step together from wait to wait, and answers for the server."""

    def __init__(
        self, server: Server, t: jax.Array, active: int | None, log: list[Message] | None = None, turn: Any = None
    ) -> None:
        self.server, self.t, self.active, self.log = server, t, active, log
        self.turn = turn  # of the loop that it is in, if it is in one
        self.crossings: list[Crossing] = []

    def together(self, talks: Sequence[Talk]) -> list[Any]:
        """Run all to their end."""
        answers: list[Any] = [None] * len(talks)
        while True:
            requests, results = [], []
            for talk, answer in zip(talks, answers, strict=True):
                try:
                    requests.append(talk.send(answer))
                except StopIteration as stop:
                    results.append(stop.value)
            if results and requests:
                raise RuntimeError("some parties ended while others were waiting: a step must not depend on the party")
            if results:
                return results
            answers = self._answers(requests)

    def _answers(self, requests: list[Any]) -> list[Any]:
        first = requests[0]
        if isinstance(first, Loop):
            return self._loop(requests)
        if isinstance(first, Total):
            sums = _in_order([request.values for request in requests])
            self._note("scalars", None, None, [request.values for request in requests], sums)
            return [sums] * len(requests)
        key = self.server.key(first.level, self.t, 0 if self.turn is None else self.turn)
        scores = _in_order([request.outputs for request in requests])
        slopes = jax.grad(lambda s: self.server.loss(first.rows, s, key))(scores)
        self._note("outputs", first.level, first.rows, [request.outputs for request in requests], slopes)
        return [slopes] * len(requests)

    def _loop(self, loops: list[Loop]) -> list[Any]:
        over, noted = loops[0].over, list[Crossing]()

        def turn(carries: list[Tree], item: tuple[Any, Any]) -> tuple[list[Tree], None]:
            number, rows = item
            inside = Exchange(self.server, self.t, self.active, self.log, number)
            carries = inside.together([loop.body(carry, rows) for loop, carry in zip(loops, carries)])
            noted[:] = inside.crossings
            return carries, None

        carries = [loop.carry for loop in loops]
        if self.log is None:
            carries, _ = jax.lax.scan(turn, carries, (jnp.arange(len(over)), over))
        else:
            for number, rows in enumerate(over):
                carries, _ = turn(carries, (number, rows))
        for crossing in noted:
            self._cross(crossing._replace(times=len(over) * crossing.times))
        return carries

    def _cross(self, crossing: Crossing) -> None:
        if crossing.level and any(crossing.level == earlier.level for earlier in self.crossings):
            raise RuntimeError(f"the {crossing.level} level was asked in two places: its noise would be used twice")
        self.crossings.append(crossing)

    def _note(self, what: str, level: str | None, rows: Any, up: list[jax.Array], down: jax.Array) -> None:
        self._cross(Crossing(level, math.prod(down.shape[:-2]), down.size * down.dtype.itemsize, 1))
        if self.log is not None:
            turn = None if self.turn is None else int(self.turn)
            answer = "gradients" if what == "outputs" else what
            passive = [m for m in range(len(up)) if m != self.active]
            rows = None if rows is None else np.asarray(rows)
            self.log += [Message(int(self.t), turn, m, True, what, level, rows, np.asarray(up[m])) for m in passive]
            self.log += [Message(int(self.t), turn, m, False, answer, level, rows, np.asarray(down)) for m in passive]


def _in_order(values: Sequence[jax.Array]) -> jax.Array:
    """The sum, in the parties' order."""
    return sum(values[1:], values[0])


def _key(seed: int, name: str) -> jax.Array:
    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), zlib.crc32(name.encode()))
