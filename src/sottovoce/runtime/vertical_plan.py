"""What a vertical run is made of before anything is computed: its batches, its messages, its compiled steps."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.data.columns import Columns, device_block
from sottovoce.methods.bambi import Bambi
from sottovoce.problems.vertical import Vertical
from sottovoce.runtime.exchange import Crossing, Exchange, Message, Party, Server


@dataclass(frozen=True)
class Plan:
    """Everything that a run does, as functions of its arguments."""

    problem: Vertical
    columns: Columns
    method: Bambi
    seed: int
    active: int | None

    @property
    def at_once(self) -> int:
        """How many steps' batches are listed at a time: a few million rows."""
        return max(1, 4_000_000 // (self.method.batch * sum(self.method.batches.values())))

    def schedule(self, first: int, count: int) -> dict[str, np.ndarray]:
        """The rows of every batch of `count` steps: (count, batches, rows) by level. Public: a function of the seed."""
        return {
            level: _batches(
                getattr(self.columns, level), self.method.batch, first * each, count * each, self.seed, level
            ).reshape(count, each, -1)
            for level, each in self.method.batches.items()
        }

    def uses(self, steps: int) -> dict[str, np.ndarray]:
        """In how many batches each row is, over the whole run."""
        if self.method.labels.per_use(2, 1) is None:
            return {}
        counts = {level: np.zeros(len(self.columns), np.int64) for level in self.method.batches}
        for step in range(steps):
            for level, rows in self.schedule(step, 1).items():
                counts[level] += np.bincount(rows.ravel(), minlength=len(self.columns))
        return counts

    def parties(self, t: jax.Array, rows: Mapping[str, jax.Array], blocks: Sequence[Any]) -> list[Party]:
        """All parties at a step."""
        return [Party(m, t, block, rows, self.seed, self.problem.alter) for m, block in enumerate(blocks)]

    def step(
        self, states: list[Any], t: Any, rows: Any, blocks: Any, vectors: Any, log: list[Message] | None = None
    ) -> tuple[list[Any], list[Crossing]]:
        """One step of all parties, and what crossed their boundaries."""
        exchange = Exchange(Server(self.problem, self.method.labels, vectors, self.seed), t, self.active, log)
        parties = self.parties(t, rows, blocks)
        talks = [self.method.step(self.problem, s, party) for s, party in zip(states, parties)]
        return exchange.together(talks), exchange.crossings

    def crossings(self, classes: int) -> list[Crossing]:
        """Trace one step to see what it sends; nothing is computed."""
        found: list[Crossing] = []

        def trace(rows: Any, vectors: Any, blocks: Any) -> Any:
            states = [self.method.init(self.problem, m) for m in range(self.problem.parties)]
            states, crossings = self.step(states, jnp.zeros((), jnp.int32), rows, blocks, vectors)
            found[:] = crossings
            return states

        rows = {level: jnp.asarray(r[0]) for level, r in self.schedule(0, 1).items()}
        blocks = [device_block(block[:1], 1) for block in self.columns.blocks]
        try:
            jax.eval_shape(trace, rows, jnp.zeros((1, classes)), blocks)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"the problem does not fit the columns ({error}): embed is called with x0[m] and (rows, features) of "
                f"party m, head with y0[m] and embed's result, losses with (..., rows, outputs) for {classes} classes"
            ) from error
        asked = {crossing.level: crossing.times for crossing in found if crossing.level}
        if asked != self.method.batches:
            raise RuntimeError(f"a step asks for {asked} batches, the method says {self.method.batches}")
        return found

    def program(self, in_one_place: bool, log: list[Message] | None) -> Callable[..., list[Any]]:
        """The steps of a schedule, compiled; or one after the other, logged."""

        def one(plan: "Plan", states: list[Any], t: Any, rows: Any, blocks: Any, vectors: Any) -> list[Any]:
            if in_one_place:
                server = Server(plan.problem, plan.method.labels, vectors, plan.seed)
                return plan.method.step_in_one_place(plan.problem, states, plan.parties(t, rows, blocks), server)
            return plan.step(states, t, rows, blocks, vectors, log)[0]

        @jax.jit
        def compiled(states: list[Any], first: Any, seed: Any, schedule: Any, blocks: Any, vectors: Any) -> list[Any]:
            plan = replace(self, seed=seed)  # an argument, so that the models of an ensemble are one program

            def body(carry: Any, rows: Any) -> tuple[Any, None]:
                states, t = carry
                return (one(plan, states, t, rows, blocks, vectors), t + 1), None

            return jax.lax.scan(body, (states, first), schedule)[0][0]

        def advance(states: list[Any], first: int, schedule: Any, blocks: Any, vectors: Any) -> list[Any]:
            if log is None:
                return compiled(states, jnp.asarray(first, jnp.int32), self.seed, schedule, blocks, vectors)
            for number in range(len(schedule["upper"])):
                rows = {level: jnp.asarray(batches[number]) for level, batches in schedule.items()}
                states = one(self, states, jnp.asarray(first + number, jnp.int32), rows, blocks, vectors)
            return states

        return advance


def _batches(rows: np.ndarray, batch: int, first: int, count: int, seed: int, level: str) -> np.ndarray:
    """Batches number `first` to `first + count` - 1: slices of a new random order of the rows in each pass."""
    a_pass = len(rows) // batch
    found, order, at = [], np.empty(0, int), -1
    for number in range(first, first + count):
        if number // a_pass != at:
            at = number // a_pass
            order = np.random.default_rng([seed, zlib.crc32(level.encode()), at]).permutation(rows)
        start = number % a_pass * batch
        found.append(order[start : start + batch])
    return np.stack(found).astype(np.int32)
