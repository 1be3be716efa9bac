"""Run a method on the parties' data: `run` returns a model with its privacy statement.

It checks what it is given, makes a job of it (`sottovoce.runtime.jobs`) and drives the job to its last step
(`sottovoce.runtime.loop`). Example: ``sv.run(problem, parts, method, steps=100, epsilon=2.0)`` calibrates the noise,
runs 100 steps, and returns a `Result` whose `privacy` is the statement.
"""

import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from sottovoce.accounting import advice
from sottovoce.accounting.account import Account, account_for, known_of
from sottovoce.accounting.calibrate import calibrated, check_target
from sottovoce.data.parties import Parties
from sottovoce.methods.agent import Known
from sottovoce.methods.base import Method
from sottovoce.naming import check_count
from sottovoce.networks import Network
from sottovoce.privacy.accountant import Adjacency
from sottovoce.privacy.ledger import Budget, Ledger
from sottovoce.privacy.mechanisms import check_delta, check_epsilon
from sottovoce.privacy.table import Table
from sottovoce.privacy.trust import Sum
from sottovoce.problems import Minimize
from sottovoce.problems.vertical import Vertical
from sottovoce.runtime import checks, jobs, peers
from sottovoce.runtime.compiler import require_right_sums
from sottovoce.runtime.keys import check_seed
from sottovoce.runtime.loop import Job, Run, drive_all
from sottovoce.runtime.members import form, held_by, most_of
from sottovoce.runtime.performance import Performance
from sottovoce.runtime.place import Metrics
from sottovoce.runtime.result import Result
from sottovoce.runtime.run_state import RunFolder, RunState, keep_for_one_run
from sottovoce.schedules import same_for_all

EVALUATED = (
    "figures of `evaluate` are computed without noise, and nothing checks what it reads: they may leave only if it "
    "reads no private record and no private label"
)
_HELD, _WAITING = 2**31, 128  # bytes of records, and runs, that wait for others of their form, at most

DECLARED = "figures of `evaluate` are computed without noise, on rows that were declared public"


def run(
    problem: Any,
    data: Sequence[Any] | Table,
    method: Method,
    *,
    steps: int,
    network: Network | None = None,
    trust: Sum | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    adjacency: Adjacency | None = None,
    budget: Budget | None = None,
    ledger: Ledger | Sequence[Ledger] | None = None,
    noise: Literal["simulated", "discrete"] = "simulated",
    seed: int | None = 0,
    evaluate: Metrics | None = None,
    public_test: bool = False,
    every: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    performance: Performance = Performance(),  # noqa: B008  (a frozen value)
) -> Result:
    """Run a method on all parties.

    Args:
        problem: `Minimize`, `MinMax` or `Bilevel`; `Vertical` for a table split by columns.
        data: one record set per agent: a pytree of arrays that share their first axis, a `Part`, or `Levels`; or a
            `Table` of columns and labels.
        method: a configured method.
        steps: how many steps.
        network: who talks to whom; needed for more than one agent.
        trust: ``sv.Sum(colluding=1)``: all parties together run the method of one curator, without one. Everybody sees
            sums over the parties alone, so one noise is enough for all (`sottovoce.privacy.trust`). Leave `network` out
            then. By default each party's noise protects it from everybody.
        epsilon: calibrate the method's noise for this epsilon first. Without it the method runs with the noise it has.
        delta: of the privacy statement; 1e-5 by default, 0 for a table, whose memoised labels need none.
        adjacency: "zero-out" or "replace-one"; by default the one natural to the method's sampling.
        budget: refuse to start when an agent would spend more than this, counting what `ledger` has already.
        ledger: where it is written down what is spent: one for all agents, or a list with one per agent, which discrete
            noise asks for. By default `ledger.jsonl` in `out`, and for discrete noise `ledger-0.jsonl` and so on.
        noise: "simulated", or "discrete" as deployed: exact noise and coins from the operating system, one thread per
            agent. A resumed run keeps what was stored; steps that must be drawn anew are new releases, and are charged
            again under the next attempt number.
        seed: same seed, same bytes. For simulation: a seed is no secret. None takes a secret key of 64 bits from the
            operating system instead (kept in `out`, so that the run can be resumed). Discrete noise does not use it.
        evaluate: ``evaluate(x)`` or ``evaluate(x, y)`` returning named numbers, in JAX; recorded for the agents'
            average and, with up to 64 agents, for each agent (``name/agents``). For a table: ``evaluate(x, y)`` of
            the parties' blocks, from test records it brings along. No statement covers these figures.
        public_test: declare that `evaluate` reads public rows alone: neither the parties' records nor their labels.
            Without it, the card of a model that may leave has no figures.
        every: evaluate (and checkpoint) every n steps; a tenth of the run by default.
        out: folder for the checkpoint, the ledger and the result; `resume` continues what is there.
        performance: chunk, devices and progress bar: nothing that could affect privacy.

    >>> import jax.numpy as jnp, numpy as np, sottovoce as sv
    >>> problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), x0=jnp.zeros(2))
    >>> parts = [np.full((50, 2), i, np.float32) for i in range(4)]
    >>> method = sv.methods.DpSgd(rate=0.2, gradient=sv.Release(clip=5.0, noise=0.001), sampling=sv.Full())
    >>> result = sv.run(problem, parts, method, network=sv.networks.ring(4), steps=50)
    >>> np.round(result.x, 1).tolist()
    [1.5, 1.5]
    """
    given = locals()
    with _prepared(**given) as ready:
        ((_, end),) = _ended([(0, ready)])
    if isinstance(end, FloatingPointError):
        raise end
    return end


def run_many(runs: Iterable[Mapping[str, Any]]) -> list[Result | FloatingPointError]:
    """Run several runs, each with the arguments of `run`; those that differ in numbers alone as one program.

    Such numbers are seeds, epsilons, rates, starts, the weights of a small network, and the records themselves. Each
    run keeps its own account, ledger, folder, checkpoints and history, and its result is that of the run by itself, up
    to the last bits. A run that diverges gives its FloatingPointError, and the others go on.

    Runs over tables of columns, with discrete noise, or over several devices, are run one by one. A run with a `ledger`
    of another run begins when that one is done: what is left is known then.

    >>> import jax.numpy as jnp, numpy as np, sottovoce as sv
    >>> problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), x0=jnp.zeros(2))
    >>> method = sv.methods.DpSgd(rate=0.2, gradient=sv.Release(clip=5.0, noise=0.001), sampling=sv.Full())
    >>> common = {"problem": problem, "data": [np.ones((50, 2), np.float32)], "method": method, "steps": 3}
    >>> first, second = sv.run_many([{**common, "seed": seed} for seed in (0, 1)])
    >>> first.privacy.epsilon == second.privacy.epsilon, bool((first.x == second.x).all())
    (True, False)
    """
    ends = dict(as_they_end(runs))
    return [ends[number] for number in range(len(ends))]


def as_they_end(runs: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, Result | FloatingPointError]]:
    """Yield the number and the end of each run of `run_many`, as they end; runs are taken up one after the other."""
    waiting: dict[Hashable, list[tuple[int, _Ready]]] = {}
    books = set[Hashable]()  # the ledgers of the runs that wait
    with ExitStack() as kept:
        held = count = 0
        for number, given in enumerate(runs):
            arguments = signature(run).bind(**given)
            arguments.apply_defaults()
            own = _ledgers(arguments.arguments["ledger"])
            if own & books:
                yield from _in_pieces(waiting)
                books, held, count = set(), 0, 0
            ready = kept.enter_context(_prepared(**arguments.arguments))
            kind = form(ready.run.job.place)
            if kind is None:
                yield from _ended([(number, ready)])
                continue
            waiting.setdefault(kind, []).append((number, ready))
            books, held, count = books | own, held + held_by(ready.run.job.place), count + 1
            if held > _HELD or count == _WAITING:
                yield from _in_pieces(waiting)
                books, held, count = set(), 0, 0
        yield from _in_pieces(waiting)


def _ledgers(given: Any) -> set[Hashable]:
    """Return what the ledgers of a run go by: two objects of one file are one ledger."""
    some = given if isinstance(given, list | tuple) else [given]
    return {one.path or id(one) for one in some if isinstance(one, Ledger)}


def _in_pieces(
    waiting: dict[Hashable, list[tuple[int, "_Ready"]]],
) -> Iterator[tuple[int, Result | FloatingPointError]]:
    """Run all that wait, as many of one form together as memory allows; pieces are of one size, as far as possible."""
    while waiting:
        group = waiting.pop(next(iter(waiting)))
        pieces = math.ceil(len(group) / most_of(group[0][1].run.job.place))
        size = math.ceil(len(group) / pieces)
        for start in range(0, len(group), size):
            yield from _ended(group[start : start + size])


@dataclass(frozen=True, eq=False)
class _Ready(AbstractContextManager["_Ready"]):
    """Hold a run that is checked and ready to start; its folder is kept for it until it ends."""

    run: Run
    problem: Any
    public_test: bool
    kept: ExitStack

    def __exit__(self, *error: Any) -> None:
        self.kept.close()


def _prepared(
    problem: Any,
    data: Any,
    method: Method,
    steps: int,
    network: Network | None,
    trust: Sum | None,
    epsilon: float | None,
    delta: float | None,
    adjacency: Adjacency | None,
    budget: Budget | None,
    ledger: Ledger | Sequence[Ledger] | None,
    noise: str,
    seed: int | None,
    evaluate: Metrics | None,
    public_test: bool,
    every: int | None,
    out: str | Path | None,
    resume: bool,
    performance: Performance,
) -> _Ready:
    """Check the arguments of `run`, and make its job."""
    if noise not in ("simulated", "discrete"):
        raise ValueError(f"noise is {noise!r}: choose 'simulated' or 'discrete'")
    if isinstance(data, Table):
        jobs.one_process("a table split by columns")
        _refuse_for_tables(network=network, trust=trust, adjacency=adjacency, budget=budget, ledger=ledger)
        if noise == "discrete":
            raise ValueError("noise='discrete' is for records; memoised labels of a Table are exact without it")
    require_right_sums()
    check_count("steps", steps)
    check_seed(seed)
    every = max(1, math.ceil(steps / 10)) if every is None else every
    check_count("every", every)
    checks.metrics(problem, evaluate)
    if isinstance(data, Table):
        job_for: Callable[[RunFolder], Job] = jobs.columns(
            problem, data, method, steps, epsilon, delta or 0.0, _seed_of_table(seed), every, performance.share
        )
    else:
        if isinstance(problem, Vertical):
            raise TypeError("a Vertical problem is for a table split by columns: give sv.Table(columns, labels)")
        parties = Parties.of(data)
        account = _account(problem, method, known_of(parties, steps, network, trust), epsilon, delta, adjacency)
        if noise == "discrete":
            job_for = jobs.deployed(parties, account, budget, ledger, every, performance)
        else:
            job_for = jobs.simulated(parties, account, budget, ledger, seed, every, performance)
    company = peers.current()
    with ExitStack() as kept:
        kept.enter_context(keep_for_one_run(out if company.leads else None))
        folder = RunFolder.shared(out, resume, company)
        job = job_for(folder)
        job = replace(job, identity={**job.identity, "public_test": public_test})  # a resumed run has earlier figures
        if evaluate is not None:
            words = DECLARED if public_test else EVALUATED
            job = replace(job, report=replace(job.report, caveats=(*job.report.caveats, words)))
        progress = performance.progress if company.leads else False
        made = Run(job, folder, resume, steps, every, evaluate, type(method).__name__, progress)
        return _Ready(made, problem, public_test, kept.pop_all())


def _ended(numbered: Sequence[tuple[int, _Ready]]) -> Iterator[tuple[int, Result | FloatingPointError]]:
    """Run what is of one form to the end, and yield each number with its result, which is stored, or its error."""
    company = peers.current()
    try:
        ends = drive_all([ready.run for _, ready in numbered])
        for (number, ready), last in zip(numbered, ends):
            with ready:
                yield number, last if isinstance(last, FloatingPointError) else _result(ready, last)
    except jax.errors.JaxRuntimeError as error:
        company.lost(error)


def _result(ready: _Ready, last: RunState) -> Result:
    """Return the result of a run from its last state, and store it in the run's folder."""
    job, folder = ready.run.job, ready.run.folder
    made = job.place.result(last.leaves, last.stacked(), job.report)
    result = replace(made, about=job.about(), public_test=ready.public_test)
    _advise(ready.problem, result)
    if folder.path is not None and peers.current().leads:
        result.save(folder.path)
    return result


def _advise(problem: Any, result: Result) -> None:
    """Warn of an x that never moved or ran away; other variables may stay where they are on purpose."""
    if not isinstance(problem, Minimize):
        return
    ends = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(x)]) for x in (problem.x0, result.x)]
    for line in advice.after(["x"], ends[:1], ends[1:]):
        warnings.warn(line, stacklevel=5)


def _account(
    problem: Any, method: Method, known: Known, epsilon: float | None, delta: float | None, adjacency: Adjacency | None
) -> Account:
    """Return the run's account, with everything that belongs to it checked, and calibrated if an epsilon is wanted."""
    checks.fitting(problem, method, known)
    epsilon = None if epsilon is None else check_epsilon(epsilon)
    account = account_for(method, known, 1e-5 if delta is None else check_delta(delta), adjacency, problem)
    if epsilon is None:
        check_target(account)
    else:
        account = calibrated(account, epsilon)
    for line in advice.before(known.population, account.delta, shared_noise=_is_shared(account)):
        warnings.warn(line, stacklevel=4)
    return account


def _is_shared(account: Account) -> bool:
    """Say whether all parties draw noise of one scale."""
    return all(same_for_all(charge.release.scale) for charge in account.charges)


def _seed_of_table(seed: int | None) -> int:
    """Return the seed of batches and directions, which all parties know."""
    if seed is None:
        raise ValueError("seed is None: batches and directions of a Table are public, so give their seed")
    return seed


def _refuse_for_tables(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{name}= is for parties with records; a Table has a server between its parties, and its Labels keep "
                "their own costs and budget (sv.Labels(..., path=..., budget=...))"
            )
