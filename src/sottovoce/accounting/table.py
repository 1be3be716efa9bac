"""Account for a run over columns, where labels are private: which labels are used how often, in which messages.

Example: with memoised labels each label is randomised once, and the whole run costs that one epsilon; with fresh noise
every use is charged, in each perturbed copy. As for rows, what a step sends is read off its trace.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from sottovoce.accounting.content import KEPT, seen_by_equality
from sottovoce.accounting.identity import identity
from sottovoce.accounting.trace import DECLARED
from sottovoce.accounting.traced import OF_COLUMNS, Locks, Program, locks, participant, slope, traced
from sottovoce.closed import exact
from sottovoce.data.columns import Columns, device_block, gather
from sottovoce.methods import equations
from sottovoce.methods.base import Method
from sottovoce.methods.column_method import ColumnMethod
from sottovoce.methods.party import KnownTable, Party
from sottovoce.naming import check_count, how_often
from sottovoce.privacy.accountant import library
from sottovoce.privacy.labels import GATES, LabelGate, Labels
from sottovoce.privacy.report import PrivacyReport
from sottovoce.privacy.table import Table
from sottovoce.problems.programs import Refused
from sottovoce.problems.vertical import Vertical
from sottovoce.registry import over_columns
from sottovoce.tracing import one_at_a_time

TAKEN = (
    "taken as public: which rows there are and their batches, settings, starting values, and plain numbers inside "
    "losses and methods (texts and shapes too)"
)
FEATURES = "features are not covered: each party's head outputs travel in the clear to the server"
SIMULATED = (
    "simulated noise, do not deploy: whoever knows its seed can subtract it. A floating-point sampler draws it, so "
    "epsilon is that of the ideal mechanism"
)
SECRET = "noise comes from a secret key. A floating-point sampler draws it, so epsilon is that of the ideal mechanism"


class Crossing(NamedTuple):
    """Describe what one step sends: `times` messages, each with `size` bytes up and down per passive party."""

    level: str | None
    copies: int
    size: int
    times: int


@dataclass(frozen=True, eq=False)
class TableTrace:
    """Hold the programs of all parties (or of one party by itself), what a step sends, and the server's programs.

    A party's `step` takes t, the rows by level (sorted), and the leaves of its state.
    """

    numbers: tuple[int, ...]  # the numbers of the parties
    parties: tuple[Program, ...]
    crossings: tuple[Crossing, ...]
    losses: tuple[ClosedJaxpr, ...]  # the server's losses, one per question
    slopes: tuple[ClosedJaxpr, ...]  # their gradients: two losses with the same values may have rules of their own
    alterations: tuple[ClosedJaxpr, ...]  # how features are altered, one program per party; empty if they are not
    locks: Locks  # what else is computed for the run must pass them too

    @property
    def programs(self) -> list[ClosedJaxpr]:
        """Return everything that is computed."""
        own = (closed for party in self.parties for closed in (party.init, party.step))
        return [*own, *self.losses, *self.alterations]

    @cached_property
    def identity(self) -> str:
        """Return a digest of everything that is computed."""
        return identity(*self.programs)

    def states(self, leaves: Sequence[Any]) -> list[Any]:
        """Return a flat list of leaves as the parties' own states."""
        found, at = [], 0
        for party in self.parties:
            found.append(jax.tree.unflatten(party.structure, leaves[at : at + len(party.shapes)]))
            at += len(party.shapes)
        return found

    @property
    def names(self) -> list[str]:
        """Return the names of all leaves."""
        states = self.states(range(sum(len(party.shapes) for party in self.parties)))
        return [
            f"party {number}: {jax.tree_util.keystr(path).lstrip('.')}"
            for number, state in zip(self.numbers, states)
            for path, _ in jax.tree_util.tree_leaves_with_path(state)
        ]


def trace_table(
    method: ColumnMethod, problem: Vertical, columns: Columns, numbers: Sequence[int], steps: int, classes: int
) -> TableTrace:
    """Trace `init` and `step` of the parties with these numbers, whose blocks are the columns.

    ValueError says where the problem does not fit the columns. Equal arguments (of the columns: equal shapes) share one
    trace, and so one compiled program, where `==` sees everything (`seen_by_equality`).
    """
    blocks = [jax.eval_shape(lambda b=block: device_block(b, method.batch)) for block in columns.blocks]
    leaves, structure = jax.tree.flatten(blocks)
    made = remembered_tables if seen_by_equality(method) else _traced
    return made(method, problem, tuple(numbers), tuple(leaves), structure, steps, classes)


@one_at_a_time
def _traced(
    method: ColumnMethod, problem: Vertical, numbers: tuple[int, ...], leaves: tuple[jax.ShapeDtypeStruct, ...],
    structure: Any, steps: int, classes: int,
) -> TableTrace:  # fmt: skip
    blocks = dict(zip(numbers, jax.tree.unflatten(structure, leaves), strict=True))

    def features(m: int, count: int) -> Any:
        def one(block: Any, rows: Any) -> Any:
            found = gather(block, rows)
            return found if problem.alter is None else problem.alter(jax.random.key(0), found)

        return jax.eval_shape(one, blocks[m], jax.ShapeDtypeStruct((count,), jnp.int32))

    starts = jax.tree.leaves((problem.x0, problem.y0))
    held = locks(method, problem, starts, method.public_constants or problem.public_constants, OF_COLUMNS)
    known = KnownTable(steps, classes, features)
    rows = {
        level: jax.ShapeDtypeStruct((count, method.batch), jnp.int32) for level, count in sorted(method.batches.items())
    }
    try:
        parties = tuple(_trace_party(method, problem, known, m, rows, held) for m in numbers)
    except Refused:
        raise
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the problem does not fit the columns ({error}): embed is called with x0[m] and (rows, features) of "
            f"party m, head with y0[m] and embed's result, losses with (..., rows, outputs) for {classes} classes"
        ) from error
    crossings = [_crossings(party.step.jaxpr, 1) for party in parties]
    if any(found != crossings[0] for found in crossings):
        raise ValueError("parties send different messages: every head must have the same number of outputs")
    losses = tuple(_losses(problem, parties[0].step.jaxpr, classes, held))
    slopes = tuple(slope("losses", loss, held) for loss in losses)
    alterations = tuple(_altered(problem, list(blocks.values()), method.batch, held))
    asked: dict[str, int] = {}
    for crossing in crossings[0]:
        if crossing.level:
            asked[crossing.level] = asked.get(crossing.level, 0) + crossing.times
    if asked != method.batches:
        raise RuntimeError(f"a step asks for {asked} batches, the method says {method.batches}")
    return TableTrace(numbers, parties, tuple(crossings[0]), losses, slopes, alterations, held)


remembered_tables = lru_cache(maxsize=KEPT)(_traced)


def _trace_party(
    method: ColumnMethod, problem: Vertical, known: KnownTable, m: int, rows: Mapping[str, Any], held: Locks
) -> Program:
    def begin() -> Any:
        return method.init(problem, Party(known, m, jnp.int32(0), {}))

    def step(state: Any, t: jax.Array, rows: Mapping[str, jax.Array]) -> Any:
        return method.step(problem, state, Party(known, m, t, rows))

    return participant(method, begin, step, (), (jax.ShapeDtypeStruct((), jnp.int32), dict(rows)), held)


def _crossings(jaxpr: Jaxpr, times: int) -> list[Crossing]:
    """Return what a step sends, in the order of its code."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive is equations.loop_p:
            found += _crossings(equation.params["body"], times * equation.params["times"])
        elif equation.primitive in (equations.ask_p, equations.total_p):
            sent = equations.shape_of(equation.outvars[0])
            size = sent.size * sent.dtype.itemsize
            found.append(Crossing(equation.params.get("level"), math.prod(sent.shape[:-2]), size, times))
    return found


def _losses(problem: Vertical, jaxpr: Jaxpr, classes: int, held: Locks) -> list[ClosedJaxpr]:
    """Trace the server's loss on the shapes of the summed outputs; refuse one that does not fit."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive is equations.loop_p:
            found += _losses(problem, equation.params["body"], classes, held)
        elif equation.primitive is equations.ask_p:
            sent = equations.shape_of(equation.outvars[0])
            closed = traced("losses", problem.losses, sent, locks=held)
            shape = closed.out_avals[0].shape
            if shape != (*sent.shape[:-1], classes):
                raise ValueError(
                    f"the problem does not fit the columns: losses gave shape {shape} for outputs of shape "
                    f"{sent.shape}; its last axis must have one entry for each of the {classes} classes"
                )
            found.append(closed)
    return found


def _altered(problem: Vertical, blocks: Sequence[Any], batch: int, held: Locks) -> list[ClosedJaxpr]:
    if problem.alter is None:
        return []
    rows, alter = jax.ShapeDtypeStruct((batch,), jnp.int32), problem.alter

    def altered(key: jax.Array, found: Any) -> list[Any]:
        return jax.tree.leaves(alter(key, found))

    given = [(jax.random.key(0), jax.eval_shape(gather, block, rows)) for block in blocks]
    return [traced("alter", altered, *each, locks=held) for each in given]


def schedule(columns: Columns, method: ColumnMethod, seed: int, first: int, count: int) -> dict[str, np.ndarray]:
    """Return the rows of every batch of `count` steps: (count, batches, rows) by level. Public: made from the seed."""
    return {
        level: _batches[method.draw](
            columns.rows_of(level),
            method.batch,
            range(first * each, (first + count) * each),
            [seed, crc32(level.encode())],
        ).reshape(count, each, -1)
        for level, each in method.batches.items()
    }


def _in_passes(rows: np.ndarray, batch: int, numbers: range, seed: list[int]) -> np.ndarray:
    """Return the batches of these numbers: slices of a new random order of the rows in each pass."""
    a_pass = len(rows) // batch
    found, order, at = [], np.empty(0, int), -1
    for number in numbers:
        if number // a_pass != at:
            at = number // a_pass
            order = np.random.default_rng([*seed, at]).permutation(rows)
        start = number % a_pass * batch
        found.append(order[start : start + batch])
    return np.stack(found).astype(np.int32)


def _uniform(rows: np.ndarray, batch: int, numbers: range, seed: list[int]) -> np.ndarray:
    """Return the batches of these numbers: each is drawn anew, without replacement."""
    drawn = [np.random.default_rng([*seed, number]).choice(rows, batch, replace=False) for number in numbers]
    return np.stack(drawn).astype(np.int32)


_batches = {"passes": _in_passes, "uniform": _uniform}


@dataclass(frozen=True, eq=False)
class TableAccount:
    """Compute how often a run over columns uses each label, and charge it."""

    method: ColumnMethod
    problem: Vertical
    columns: Columns
    trace: TableTrace
    steps: int
    delta: float
    seed: int

    def charge(
        self, labels: Labels, run: Callable[[], str | None] = lambda: None, places: np.ndarray | None = None
    ) -> None:
        """Charge each label for its uses in the whole run, before anything is drawn; once for a run with a name.

        `places` are those of the rows in the store, where it holds others too; by default the store holds these rows.
        """
        places = np.arange(len(self.columns)) if places is None else places
        self.method.labels.charge(labels, places[self.rows], lambda: self._uses(places, len(labels)), run)

    def _uses(self, places: np.ndarray, count: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield in how many copies a question is answered, and how often each label of the store is used for it."""
        uses = {level: np.zeros(len(self.columns), np.int64) for level in self.method.batches}
        for step in range(self.steps):
            for level, rows in schedule(self.columns, self.method, self.seed, step, 1).items():
                uses[level] += np.bincount(rows.ravel(), minlength=len(self.columns))
        for crossing in self.trace.crossings:
            if crossing.level:
                found = np.zeros(count, np.int64)
                # Where several questions share a level's batches, any of them may have been asked about a label's.
                found[places] = np.minimum(uses[crossing.level], crossing.times * self.steps)
                yield crossing.copies, found

    @property
    def rows(self) -> np.ndarray:
        """Return all rows that some level reads."""
        return np.unique(np.concatenate([self.columns.rows_of(level) for level in self.method.batches]))

    def simulated(self, labels: Labels) -> bool:
        """Say whether some noise comes from a seed."""
        return labels.simulated or self.method.labels.per_use(labels.classes, 1) is not None

    def report(self, labels: Labels) -> PrivacyReport:
        """Return the statement: it covers everything ever drawn from these labels, in this run and before."""
        epsilon, gate = labels.epsilon(self.delta), self.method.labels
        declares = self.problem.public_constants or self.method.public_constants
        caveats = [FEATURES, TAKEN] + [DECLARED] * declares + list(gate.caveats(float(epsilon)))
        if self.simulated(labels) and math.isfinite(epsilon):
            caveats.append(SIMULATED)
        events = tuple(
            f"{gate}: at {_level(c.level)}, {how_often(c.times)} per step, {c.copies} "
            f"{'copy' if c.copies == 1 else 'copies'} of the head outputs"
            for c in self.trace.crossings
            if c.level
        )
        return PrivacyReport(
            epsilon=float(epsilon),
            delta=self.delta,
            per_agent=(float(epsilon),),
            per_level={},
            published=gate.published(),
            design=gate.design,
            adjacency=epsilon.adjacency,
            unit="label",
            accountant=epsilon.accountant,
            library=library(),
            method=type(self.method).__name__,
            steps=self.steps,
            events=events,
            caveats=(*caveats, *self.columns.facts.words),
        )


def _level(name: str) -> str:
    return "all rows" if name == "all" else f"the {name} level"


def table_account(method: Method, table: Table, problem: Any, steps: int, delta: float, seed: int = 0) -> TableAccount:
    """Return the account of a run over columns, all arguments checked; no label is read."""
    if isinstance(problem, Vertical) and table.parties != problem.parties:
        raise ValueError(f"the problem has {problem.parties} parties and the table {table.parties} blocks")
    numbers = range(table.parties)
    return account_of_parties(method, table.columns, numbers, problem, table.labels.classes, steps, delta, seed)


def account_of_parties(
    method: Method, columns: Columns, numbers: Sequence[int], problem: Any, classes: int, steps: int, delta: float,
    seed: int,
) -> TableAccount:  # fmt: skip
    """Return the account of a run over columns by those who hold some of its blocks, such as one party by itself."""
    if not isinstance(method, ColumnMethod):
        known = ", ".join(over_columns)
        raise TypeError(f"{type(method).__name__} is for parties with records: a Table takes one of {known}")
    if type(problem) is not Vertical:
        raise TypeError(f"problem is of type {type(problem).__name__}: a Table takes a Vertical problem (problem=...)")
    exact("labels", method.labels, GATES)
    if type(method) is not over_columns.get(type(method).__name__) and method.labels.per_use(classes, 1) is not None:
        # Its steps may ask about any row, as often as they like: uses are counted by the batches of our own methods.
        raise TypeError(
            f"{type(method).__name__} is a method of one's own, and nobody counts how often it asks about a label: "
            "give it labels=Memoised(epsilon), whose one draw covers all questions"
        )
    check_count("steps", steps)
    for level in method.batches:
        held = len(columns.rows_of(level))
        if held < method.batch:
            raise ValueError(f"batch is {method.batch}, but {_level(level)} has {held} rows: lower it")
    trace = trace_table(method, problem, columns, numbers, steps, classes)
    return TableAccount(method, problem, columns, trace, steps, delta, seed)


def blank(labels: Labels) -> Labels:
    """Return labels of which nothing was released: an account is made with them, because no label may be read.

    >>> float(blank(Labels(np.array([1, 0]), classes=2)).epsilon())
    0.0
    """
    return Labels(np.zeros(len(labels), int), labels.classes, seed=0)


def calibrate_labels(
    method: ColumnMethod, table: Table, problem: Any, epsilon: float, steps: int, delta: float, seed: int = 0
) -> ColumnMethod:
    """Return the method with the label noise for a wanted epsilon.

    Memoised labels are simply drawn at that epsilon; the scale of fresh noise is found by its account. How often the
    dearest label is used depends on the batches, and so on the seed of the run. Other gates have no noise that could be
    scaled.

    >>> from sottovoce.privacy.labels import Memoised
    >>> import jax.numpy as jnp
    >>> from sottovoce.problems.vertical import logistic
    >>> problem = Vertical(lambda x, a: a, lambda y, a: a @ y, logistic, [jnp.zeros(())], [jnp.zeros((2, 1))])
    >>> table = Table(Columns([np.ones((40, 2))]), Labels(np.arange(40) % 2, classes=2))
    >>> from sottovoce.methods import VerticalSgd
    >>> method = VerticalSgd(batch=20, rate_x=0.1, rate_y=0.1, labels=Memoised(9.0))
    >>> calibrate_labels(method, table, problem, epsilon=2.0, steps=1, delta=0.0).labels
    Memoised(epsilon=2.0, correction='forward')
    """
    account = table_account(method, table, problem, steps, delta, seed)

    def reached(gate: LabelGate) -> float:
        labels = blank(table.labels)
        replace(account, method=method.behind(gate)).charge(labels)
        return float(labels.epsilon(delta))

    return method.behind(method.labels.calibrated(epsilon, reached))
