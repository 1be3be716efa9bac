"""`run_vertical`: a problem, a table split by columns, labels behind their gate, a method; out comes a model."""

import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.methods.bambi import Bambi
from sottovoce.privacy.accountant import library
from sottovoce.privacy.labels import Labels
from sottovoce.privacy.report import PrivacyReport
from sottovoce.problems.columns import Columns, device_block
from sottovoce.problems.vertical import Vertical
from sottovoce.runtime.exchange import Crossing, Exchange, Message, Party, Server
from sottovoce.runtime.progress import Progress
from sottovoce.runtime.result import Result
from sottovoce.runtime.run import SIMULATION
from sottovoce.trees import Tree

FEATURES = "features are not covered: each party's head outputs travel in the clear to the server"
TEST = (
    "figures of `evaluate` come from records that it brings along, public by declaration: no label of the run is read"
)
REVEALED = "the printed noise for more than two classes reveals every label: see docs/bambi.md"


def run_vertical(
    problem: Vertical,
    columns: Columns,
    labels: Labels,
    method: Bambi,
    *,
    steps: int,
    seed: int = 0,
    evaluate: Callable[[Sequence[Tree], Sequence[Tree]], Mapping[str, Any]] | None = None,
    every: int | None = None,
    delta: float = 0.0,
    active: int | None = None,
    in_one_place: bool = False,
    log: list[Message] | None = None,
    progress: bool | None = None,
) -> Result:
    """Run a method on a table that is split by columns, compiled as one program.

    Args:
        problem: what is optimised.
        columns: the parties' blocks, aligned row by row, and the rows of each level.
        labels: the label holder's store; what the run uses of it is charged to it before the run.
        method: a configured `Bambi`.
        steps: K, the outer steps.
        seed: of batches, directions and fresh label noise. For simulation: a seed is no secret.
        evaluate: ``evaluate(x, y)`` giving named numbers, in JAX, from public test records it brings along. For figures
            on the run's own labels see `Labels.accuracy`, which charges for them.
        every: evaluate each so many steps; a tenth of the run by default.
        delta: of the privacy statement; memoised labels need none.
        active: the party that sits with the server, whose messages do not travel. It learns no more of the labels
            than the others: its gradients come through the same gate.
        in_one_place: the non-federated twin.
        log: a list that receives every message that crosses a boundary. Slow: nothing is compiled.

    The result's x and y are lists of the parties' blocks; its history has, beside the figures of `evaluate`, `bytes up`
    and `bytes down`, sent and received by all passive parties since the start. The privacy statement covers everything
    ever drawn from `labels`, in this run and before.

    >>> from sottovoce.privacy.labels import Memoised
    >>> from sottovoce.problems.vertical import cross_entropy
    >>> rng = np.random.default_rng(0)
    >>> blocks = [rng.normal(size=(60, 2)).astype(np.float32) for _ in range(2)]
    >>> label = (blocks[0][:, 0] + blocks[1][:, 0] > 0).astype(int)
    >>> problem = Vertical(
    ...     lambda x, a: jnp.tanh(a @ x), lambda y, e: e @ y, cross_entropy, [jnp.eye(2)] * 2, [jnp.zeros((2, 2))] * 2
    ... )
    >>> method = Bambi(inner_steps=3, batch=20, rate_x=0.1, rate_y=1.0, labels=Memoised(2.0))
    >>> result = run_vertical(problem, Columns(blocks), Labels(label, classes=2, seed=0), method, steps=10)
    >>> result.privacy.epsilon, result.history["bytes up"].tolist()[-1]
    (2.0, 22480.0)
    """
    _check(problem, columns, labels, method, steps, active)
    every = every or max(1, math.ceil(steps / 10))
    made = _Made(problem, columns, method, seed, active)
    crossings = made.crossings(labels.classes)
    rows = np.union1d(columns.upper, columns.lower)
    vectors = jnp.asarray(method.labels.vectors(labels, rows))
    charge(method, labels, crossings, made.uses(steps))
    report = _report(method, labels, steps, delta, crossings)
    advance = made.program(in_one_place, log)
    passive = problem.parties - (active is not None)
    traffic = float(passive * sum(c.size * c.times for c in crossings))

    blocks = [device_block(block, method.batch) for block in columns.blocks]
    states = [method.init(problem, m) for m in range(problem.parties)]
    judge = jax.jit(evaluate) if evaluate is not None else None
    history: dict[str, list[Any]] = {"step": [], "seconds": [], "bytes up": [], "bytes down": []}
    began, done = time.monotonic(), 0
    with Progress(f"{type(method).__name__}, {problem.parties} parties", steps, 0, progress) as bar:
        while done < steps:
            count = min(every - done % every, steps - done, made.at_once)
            states = advance(states, done, made.schedule(done, count), blocks, vectors)
            done += count
            if done % every and done < steps:
                continue
            figures = {} if judge is None else judge([s.x for s in states], [s.y for s in states])
            latest: dict[str, Any] = {"step": done, "seconds": time.monotonic() - began, "bytes up": done * traffic}
            latest |= {"bytes down": done * traffic, **{name: np.asarray(value) for name, value in figures.items()}}
            for name, value in latest.items():
                history.setdefault(name, []).append(value)
            bar.show(done, {name: float(value) for name, value in figures.items() if np.ndim(value) == 0})
    x, y = ([jax.tree.map(np.asarray, getattr(s, name)) for s in states] for name in ("x", "y"))
    told = {name: np.asarray(values) for name, values in history.items()}
    return Result(x, y, states, told, report, report.private, problem.predict)


def account_vertical(
    problem: Vertical, columns: Columns, method: Bambi, *, steps: int, classes: int, delta: float = 0.0
) -> PrivacyReport:
    """The privacy statement of a run, for labels of which nothing was released before; no label is read.

    >>> from sottovoce.privacy.labels import Fresh
    >>> from sottovoce.problems.vertical import logistic
    >>> problem = Vertical(lambda x, a: a, lambda y, a: a @ y, logistic, [jnp.zeros(())], [jnp.zeros((2, 1))])
    >>> columns = Columns([np.ones((40, 2))], upper=np.arange(20), lower=np.arange(20, 40))
    >>> method = Bambi(inner_steps=20, batch=20, rate_x=0.1, rate_y=0.1, labels=Fresh(1.0))
    >>> account_vertical(problem, columns, method, steps=1, classes=2).epsilon    # 20 uses, each in 2 copies
    40.0
    """
    blank = Labels(np.zeros(len(columns), int), classes, seed=0)
    _check(problem, columns, blank, method, steps, None)
    made = _Made(problem, columns, method, 0, None)
    crossings = made.crossings(classes)
    method.labels.vectors(blank, np.union1d(columns.upper, columns.lower))
    charge(method, blank, crossings, made.uses(steps))
    return _report(method, blank, steps, delta, crossings)


def charge(method: Bambi, labels: Labels, crossings: Sequence[Crossing], uses: Mapping[str, np.ndarray]) -> None:
    """Charge each label for its uses: `uses[level]` counts, for each row, the batches it was in."""
    for crossing in crossings:
        cost = method.labels.per_use(labels.classes, crossing.copies) if crossing.level else None
        if cost is not None:
            labels.charge(cost[0], cost[1] * uses[str(crossing.level)])


@dataclass(frozen=True)
class _Made:
    """What a run is made of, before anything is computed."""

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
        return [Party(m, t, block, rows, self.seed, self.problem.alter) for m, block in enumerate(blocks)]

    def step(
        self, states: list[Any], t: Any, rows: Any, blocks: Any, vectors: Any, log: list[Message] | None = None
    ) -> tuple[list[Any], list[Crossing]]:
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

        def one(states: list[Any], t: Any, rows: Any, blocks: Any, vectors: Any) -> list[Any]:
            if in_one_place:
                server = Server(self.problem, self.method.labels, vectors, self.seed)
                return self.method.step_in_one_place(self.problem, states, self.parties(t, rows, blocks), server)
            return self.step(states, t, rows, blocks, vectors, log)[0]

        @jax.jit
        def compiled(states: list[Any], first: Any, schedule: Any, blocks: Any, vectors: Any) -> list[Any]:
            def body(carry: Any, rows: Any) -> tuple[Any, None]:
                states, t = carry
                return (one(states, t, rows, blocks, vectors), t + 1), None

            return jax.lax.scan(body, (states, first), schedule)[0][0]

        def advance(states: list[Any], first: int, schedule: Any, blocks: Any, vectors: Any) -> list[Any]:
            if log is None:
                return compiled(states, jnp.asarray(first, jnp.int32), schedule, blocks, vectors)
            for number in range(len(schedule["upper"])):
                rows = {level: jnp.asarray(batches[number]) for level, batches in schedule.items()}
                states = one(states, jnp.asarray(first + number, jnp.int32), rows, blocks, vectors)
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


def _report(method: Bambi, labels: Labels, steps: int, delta: float, crossings: Sequence[Crossing]) -> PrivacyReport:
    epsilon = labels.epsilon(delta)
    gate = method.labels
    caveats = [FEATURES, TEST] + [REVEALED] * (gate.design == "printed" and math.isinf(epsilon))
    if (labels.simulated or gate.per_use(labels.classes, 1)) and math.isfinite(epsilon):
        caveats.append(SIMULATION)
    events = tuple(
        f"{gate}, {c.times} x {c.copies} copies at the {c.level} level each step" for c in crossings if c.level
    )
    return PrivacyReport(
        epsilon=float(epsilon),
        delta=delta,
        per_agent=(float(epsilon),),
        per_level={},
        published=gate.published(),
        design=gate.design,
        adjacency=epsilon.adjacency,
        unit="label",
        accountant=epsilon.accountant,
        library=library(),
        method=type(method).__name__,
        steps=steps,
        events=events,
        caveats=tuple(caveats),
    )


def _check(problem: Vertical, columns: Columns, labels: Labels, method: Bambi, steps: int, active: int | None) -> None:
    if len(columns.blocks) != problem.parties:
        raise ValueError(f"the problem has {problem.parties} parties and the table {len(columns.blocks)} blocks")
    if len(labels) != len(columns):
        raise ValueError(f"there are {len(labels)} labels for {len(columns)} rows: align them first (see align)")
    if steps < 1:
        raise ValueError(f"steps is {steps}: it must be at least 1")
    if active is not None and not 0 <= active < problem.parties:
        raise ValueError(f"active is {active}: give the number of a party, 0 to {problem.parties - 1}")
    for level in method.batches:
        if len(getattr(columns, level)) < method.batch:
            raise ValueError(
                f"batch is {method.batch}, but the {level} level has {len(getattr(columns, level))} rows: lower it"
            )
