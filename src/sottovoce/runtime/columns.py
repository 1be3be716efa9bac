"""Run parties with columns and their server in one place: all take their steps together, from question to answer.

Example: in a step of BAMBI every party stops at `ask` with its head outputs; the server adds them up, computes the
gradient of its loss through the label gate, and all parties go on with it. The whole run is one compiled program; with
`record_messages` the same walk is made message by message, and everything that crosses a boundary is written down.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from sottovoce.accounting.content import KEPT, first_alike, program, seen_by_equality
from sottovoce.accounting.table import TableAccount, TableTrace, schedule
from sottovoce.data.columns import device_block
from sottovoce.methods import equations
from sottovoce.methods.column_method import ColumnMethod
from sottovoce.privacy.labels import LabelGate
from sottovoce.privacy.report import PrivacyReport
from sottovoce.privacy.table import Table
from sottovoce.runtime.interpreter import Walk, walk
from sottovoce.runtime.keys import step_key
from sottovoce.runtime.place import NEVER, Place
from sottovoce.runtime.result import Result, evaluated
from sottovoce.runtime.shared_program import lifted
from sottovoce.runtime.table_answers import (
    PartyMoment,
    ServerMoment,
    in_order,
    party_root,
    server_root,
    shared_root,
)

_ROWS_AT_ONCE = 4_000_000  # rows of batches that are listed at a time


class Message(NamedTuple):
    """Record something that crossed a party's boundary; `party` is the side that is not the server."""

    step: int
    turn: int | None
    party: int
    up: bool
    what: str
    level: str | None
    rows: Any  # the rows of its batch, which all parties know
    value: Any


@dataclass(frozen=True)
class TableSpec:
    """State what the compiled run depends on besides arrays."""

    trace: TableTrace
    gate: LabelGate


@dataclass(frozen=True)
class Exchange:
    """Compute one step (or one turn of a loop) of all parties and their server."""

    t: Any
    parties: Sequence[PartyMoment]
    server: ServerMoment
    log: list[Message] | None = None
    active: int | None = None
    turn: Any = None

    def together(self, walks: Sequence[Walk]) -> list[list[Any]]:
        """Run all walks to their ends."""
        replies: list[Any] = [None] * len(walks)
        while True:
            stops, ends = [], []
            for walking, reply in zip(walks, replies, strict=True):
                try:
                    stops.append(walking.send(reply))
                except StopIteration as end:
                    ends.append(end.value)
            if ends and stops:
                raise RuntimeError("some parties ended while others were waiting: a step must not depend on the party")
            if ends:
                return ends
            kinds = {(equation.primitive, equation.params["number"]) for equation, _ in stops}
            if len(kinds) > 1:
                raise RuntimeError("parties stopped at different places: a step must not depend on the party")
            replies = self._answers([equation for equation, _ in stops], [values for _, values in stops])

    def _answers(self, stops: list[JaxprEqn], values: list[list[Any]]) -> list[list[Any]]:
        kind, number = stops[0].primitive, stops[0].params["number"]
        if kind is equations.features_p:
            return [party.features(given[0], number) for party, given in zip(self.parties, values)]
        if kind is equations.key_p:
            return [[party.key(number)] for party in self.parties]
        if kind is equations.loop_p:
            return self._loop(stops, values)
        if kind is equations.total_p:
            sums = in_order([given[0] for given in values])
            self._note("scalars", None, None, [given[0] for given in values], sums)
            return [[sums]] * len(values)
        rows, outputs = values[0][0], [given[1] for given in values]
        slopes = self.server.slopes(rows, outputs, number)
        self._note("outputs", stops[0].params["level"], rows, outputs, slopes)
        return [[slopes]] * len(values)

    def _loop(self, loops: list[JaxprEqn], values: list[list[Any]]) -> list[list[Any]]:
        number, times = loops[0].params["number"], loops[0].params["times"]
        consts = [loop.params["consts"] for loop in loops]

        def turn(k: Any, carries: list[list[Any]]) -> list[list[Any]]:
            inside = self._inside(number, k)
            bodies = zip(loops, values, consts, carries, strict=True)
            return inside.together(
                [walk(loop.params["body"], (), [*given[:c], *carry], self.log is not None)
                 for loop, given, c, carry in bodies]
            )  # fmt: skip

        carries = [list(given[c:]) for given, c in zip(values, consts)]
        if self.log is None:
            return jax.lax.fori_loop(0, times, turn, carries)
        for k in range(times):
            carries = turn(k, carries)
        return carries

    def _inside(self, number: int, k: Any) -> "Exchange":
        parties = [party.inside(number, k) for party in self.parties]
        return replace(self, parties=parties, server=self.server.inside(number, k), turn=k)

    def _note(self, what: str, level: str | None, rows: Any, up: list[jax.Array], down: jax.Array) -> None:
        if self.log is None:
            return
        turn = None if self.turn is None else int(self.turn)
        answer = "gradients" if what == "outputs" else what
        passive = [m for m in range(len(up)) if m != self.active]
        rows = None if rows is None else np.asarray(rows)
        self.log.extend([Message(int(self.t), turn, m, True, what, level, rows, np.asarray(up[m])) for m in passive])
        self.log.extend([Message(int(self.t), turn, m, False, answer, level, rows, np.asarray(down)) for m in passive])


def _step(
    spec: TableSpec, t: Any, rows: Mapping[str, Any], leaves: Sequence[Any], blocks: Any, vectors: Any, roots: Any,
    log: list[Message] | None = None, active: int | None = None, numbers: Sequence[list[Any]] | None = None,
) -> list[Any]:  # fmt: skip
    """Return the leaves of all parties after one step; `numbers` replace the constants of the traced steps."""
    *keys, shared, server = [step_key(roots[number], number, "step", t) for number in range(len(blocks) + 2)]
    altered = spec.trace.alterations or [None] * len(blocks)
    parties = [PartyMoment(alter, block, key, shared) for alter, block, key in zip(altered, blocks, keys)]
    exchange = Exchange(t, parties, ServerMoment(spec.trace.losses, spec.gate, vectors, server), log, active)
    walks, at = [], 0
    consts = [party.step.consts for party in spec.trace.parties] if numbers is None else numbers
    for party, known in zip(spec.trace.parties, consts, strict=True):
        own = leaves[at : at + len(party.shapes)]
        at += len(party.shapes)
        given = [t, *(rows[level] for level in sorted(rows)), *own]
        walks.append(walk(party.step.jaxpr, known, given, compiled=log is not None))
    return [leaf for state in exchange.together(walks) for leaf in state]


def _advance(
    spec: TableSpec,
    leaves: list[Any],
    first: Any,
    batches: Mapping[str, Any],
    blocks: Any,
    vectors: Any,
    roots: Any,
    numbers: Sequence[list[Any]] | None = None,
) -> tuple[list[Any], jax.Array]:
    def one(carry: Any, rows: Mapping[str, Any]) -> tuple[Any, None]:
        leaves, t, broken = carry
        leaves = _step(spec, t, rows, leaves, blocks, vectors, roots, numbers=numbers)
        fine = jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in leaves], bool)
        return (leaves, t + 1, jnp.where(fine, broken, jnp.minimum(broken, t))), None

    broken = jnp.full(len(leaves), NEVER, jnp.int32)
    (leaves, _, broken), _ = jax.lax.scan(one, (leaves, first, broken), dict(batches))
    return leaves, broken


@lru_cache(maxsize=KEPT)
def compiled(spec: TableSpec) -> Callable[..., tuple[list[Any], jax.Array]]:
    """Return `_advance` of a spec, compiled; the programs of old specs are forgotten (see `KEPT`)."""
    return jax.jit(partial(_advance, spec))


@dataclass(eq=False)
class ColumnsPlace(Place):
    """Run all parties and the server as one compiled program."""

    account: TableAccount
    table: Table
    roots: jax.Array  # one key for all, or one per party, one that all parties know, and the server's
    log: list[Message] | None = None
    share: bool = False  # whether runs that differ in numbers alone share its compiled program
    blocks: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        method, columns = self.account.method, self.table.columns
        self.trace = self.account.trace
        self.blocks = [device_block(block, method.batch) for block in columns.blocks]
        self.vectors = jnp.asarray(method.labels.vectors(self.table.labels, self.account.rows))
        self.spec, self.numbers = TableSpec(self.trace, method.labels), None
        if self.share:
            self.spec, self.numbers = _shared(self.spec)
        self.roots = jnp.broadcast_to(self.roots, (len(self.blocks) + 2,))
        self.at_once = steps_at_once(method)

    @property
    def names(self) -> list[str]:
        """Return the names of the leaves that are looked at for divergence: all of them.

        None depends on a label without noise.
        """
        return self.account.trace.names

    @property
    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        """Return the shapes of all parties' leaves, one party after the other."""
        return [shape for party in self.account.trace.parties for shape in party.shapes]

    def begin(self) -> list[Any]:
        """Return all parties' first states."""
        made = [jax.core.eval_jaxpr(p.init.jaxpr, p.init.consts) for p in self.account.trace.parties]
        return [leaf for state in made for leaf in state]

    def advance(self, state: list[Any], first: int, count: int) -> tuple[list[Any], np.ndarray]:
        """Run `count` steps, with the batches of some steps listed at a time."""
        broken = np.full(len(state), NEVER, np.int32)
        for start in range(first, first + count, self.at_once):
            some = min(self.at_once, first + count - start)
            batches = schedule(self.table.columns, self.account.method, self.account.seed, start, some)
            state, now = self._advance(list(state), start, batches)
            broken = np.minimum(broken, np.asarray(now))
        return state, broken

    def _advance(self, state: list[Any], first: int, batches: Mapping[str, np.ndarray]) -> tuple[list[Any], Any]:
        if self.log is None:
            given = (jnp.int32(first), batches, self.blocks, self.vectors, self.roots, self.numbers)
            return compiled(self.spec)(state, *given)
        for number in range(len(next(iter(batches.values())))):
            rows = {level: jnp.asarray(listed[number]) for level, listed in batches.items()}
            arguments = (jnp.int32(first + number), rows, state, self.blocks, self.vectors, self.roots)
            state = _step(self.spec, *arguments, log=self.log, active=self.table.active)
        return state, np.full(len(state), NEVER, np.int32)

    def measure(self, state: list[Any], step: int, evaluate: Callable[..., Mapping[str, Any]] | None) -> dict[str, Any]:
        """Return the bytes that passive parties have sent and received, and the user's metrics."""
        passive = self.table.parties - (self.table.active is not None)
        sent = float(step * passive * sum(c.size * c.times for c in self.account.trace.crossings))
        figures = {} if evaluate is None else dict(evaluated(evaluate, *self._variables(state)))
        return {"bytes up": sent, "bytes down": sent, **figures}

    def result(self, state: list[Any], history: dict[str, np.ndarray], report: PrivacyReport) -> Result:
        """Return the parties' blocks; their columns and labels stay where they are."""
        x, y = (jax.tree.map(np.asarray, blocks) for blocks in self._variables(state))
        deployed = report.covered and not self.account.simulated(self.table.labels)
        problem = self.account.problem
        return Result(
            x, y, self.account.trace.states(state), history, report, deployed, problem.predict,
            public_constants=problem.public_constants,
        )  # fmt: skip

    def _variables(self, state: list[Any]) -> tuple[list[Any], list[Any]]:
        states = self.account.trace.states(state)
        return [one.x for one in states], [one.y for one in states]


def _shared(spec: TableSpec) -> tuple[TableSpec, list[list[Any]]]:
    """Return what all runs of this form share, and the numbers of this one."""
    steps = [lifted(party.step) for party in spec.trace.parties]
    parties = tuple(replace(party, step=step) for party, step in zip(spec.trace.parties, steps))
    own = replace(spec, trace=replace(spec.trace, parties=parties))
    numbers = [list(step.consts) for step in steps]
    if not seen_by_equality(spec.gate):  # runs must not share the noise of labels
        return own, numbers
    public = tuple(map(program, (*spec.trace.losses, *spec.trace.slopes, *spec.trace.alterations)))
    forms = tuple(program(step, constants=False) for step in steps)
    return first_alike((spec.gate, forms, public), own), numbers


def steps_at_once(method: ColumnMethod) -> int:
    """Return of how many steps the batches are listed at a time."""
    return max(1, _ROWS_AT_ONCE // (method.batch * sum(method.batches.values())))


def table_roots(account: TableAccount, table: Table) -> jax.Array:
    """Return the root keys of a run: each party's, the one that all know, and the server's, which holds the labels.

    Each is made of what its owner knows, so that a party by itself finds its own.
    """
    vectors, seed = account.method.labels.vectors(table.labels, account.rows), account.seed
    parties = [party_root(account, number, seed) for number in account.trace.numbers]
    holder = account.trace.numbers[0] if table.active is None else table.active
    server = server_root(account, holder, table.labels, np.arange(len(vectors)), vectors, None)
    return jnp.stack([*parties, shared_root(account), server])


def record_messages(account: TableAccount, table: Table) -> tuple[list[Any], list[Message]]:
    """Run message by message; return the parties' final states, and everything that crossed a boundary."""
    log: list[Message] = []
    place = ColumnsPlace(account, table, table_roots(account, table), log)
    state, _ = place.advance(place.begin(), 0, account.steps)
    return account.trace.states(state), log
