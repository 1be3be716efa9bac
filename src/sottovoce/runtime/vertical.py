"""`run_vertical`: a problem, a table split by columns, labels behind their gate, a method; out comes a model."""

import math
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.data.columns import Columns, device_block
from sottovoce.methods.bambi import Bambi
from sottovoce.naming import check_count
from sottovoce.privacy.accountant import Mechanism, library
from sottovoce.privacy.labels import Labels
from sottovoce.privacy.report import PrivacyReport
from sottovoce.problems.vertical import Vertical
from sottovoce.runtime import checks
from sottovoce.runtime.exchange import Crossing, Message
from sottovoce.runtime.journey import CHECKPOINT, Journey, digest
from sottovoce.runtime.progress import Progress
from sottovoce.runtime.result import Result
from sottovoce.runtime.run import SIMULATION
from sottovoce.runtime.vertical_plan import Plan
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
    out: str | Path | None = None,
    resume: bool = False,
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
        out: folder for the checkpoint and the result; `resume` continues what is there, to the same bytes. What a
            resumed run uses of the labels is charged anew.

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
    every = max(1, math.ceil(steps / 10)) if every is None else every
    check_count("every", every)
    folder = checks.ready(out, resume)
    plan = Plan(problem, columns, method, seed, active)
    crossings = plan.crossings(labels.classes)
    rows = np.union1d(columns.upper, columns.lower)
    vectors = jnp.asarray(method.labels.vectors(labels, rows))
    charge(method, labels, crossings, plan.uses(steps))
    report = _report(method, labels, steps, delta, crossings)
    advance = plan.program(in_one_place, log)
    passive = problem.parties - (active is not None)
    traffic = float(passive * sum(c.size * c.times for c in crossings))

    blocks = [device_block(block, method.batch) for block in columns.blocks]
    journey = Journey([method.init(problem, m) for m in range(problem.parties)])
    if folder is not None:
        functions = (problem.embed, problem.head, problem.losses, problem.penalty, problem.alter)
        facts = {"method": _plainly(method), "problem": _plainly(functions), "in one place": in_one_place}
        facts |= {"steps": steps, "every": every, "seed": seed}
        arrays = {"start": [problem.x0, problem.y0], "columns": [columns.blocks, columns.upper, columns.lower]}
        journey.identity = facts | {name: digest(tree) for name, tree in {**arrays, "labels": vectors}.items()}
        if resume and (folder / CHECKPOINT).exists():
            journey.restore(folder, like=journey.state)
    judge = jax.jit(evaluate) if evaluate is not None else None
    with Progress(f"{type(method).__name__}, {problem.parties} parties", steps, journey.step, progress) as bar:
        try:
            while journey.step < steps:
                began = time.monotonic()
                count = min(every - journey.step % every, steps - journey.step, plan.at_once)
                schedule = plan.schedule(journey.step, count)
                states = jax.block_until_ready(advance(journey.state, journey.step, schedule, blocks, vectors))
                journey.move(states, count, time.monotonic() - began)
                if journey.step % every and journey.step < steps:
                    continue
                figures = {} if judge is None else judge([s.x for s in states], [s.y for s in states])
                sent = journey.step * traffic
                journey.note({"bytes up": sent, "bytes down": sent, **figures})
                bar.show(journey.step, journey.latest())
                if folder is not None:
                    journey.save(folder)
        except KeyboardInterrupt:
            if folder is not None:
                journey.save(folder)
                print(f"stopped at step {journey.step}; resume=True (--resume) goes on from there", file=sys.stderr)
            raise
    states = journey.state
    x, y = ([jax.tree.map(np.asarray, getattr(s, name)) for s in states] for name in ("x", "y"))
    result = Result(x, y, states, journey.stacked(), report, report.private, problem.predict)
    if folder is not None:
        result.save(folder)
    return result


def _plainly(thing: Any) -> str:
    """Something in words, without the addresses of functions, which another process would not repeat."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(thing))


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
    plan = Plan(problem, columns, method, 0, None)
    crossings = plan.crossings(classes)
    method.labels.vectors(blank, np.union1d(columns.upper, columns.lower))
    charge(method, blank, crossings, plan.uses(steps))
    return _report(method, blank, steps, delta, crossings)


def charge(method: Bambi, labels: Labels, crossings: Sequence[Crossing], uses: Mapping[str, np.ndarray]) -> None:
    """Charge each label for its uses: `uses[level]` counts, for each row, the batches it was in."""
    costs: dict[Mechanism, np.ndarray] = {}
    for crossing in crossings:
        cost = method.labels.per_use(labels.classes, crossing.copies) if crossing.level else None
        if cost is not None:
            costs[cost[0]] = costs.get(cost[0], 0) + cost[1] * uses[str(crossing.level)]
    if costs:
        labels.charge(costs)


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
    for name, value, kind in (
        ("problem", problem, Vertical),
        ("columns", columns, Columns),
        ("labels", labels, Labels),
        ("method", method, Bambi),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{name} is of type {type(value).__name__}: run_vertical takes a {kind.__name__} there")
    if len(columns.blocks) != problem.parties:
        raise ValueError(f"the problem has {problem.parties} parties and the table {len(columns.blocks)} blocks")
    if len(labels) != len(columns):
        raise ValueError(f"there are {len(labels)} labels for {len(columns)} rows: align them first (see align)")
    check_count("steps", steps)
    if active is not None and not 0 <= active < problem.parties:
        raise ValueError(f"active is {active}: give the number of a party, 0 to {problem.parties - 1}")
    for level in method.batches:
        if len(getattr(columns, level)) < method.batch:
            raise ValueError(
                f"batch is {method.batch}, but the {level} level has {len(getattr(columns, level))} rows: lower it"
            )
