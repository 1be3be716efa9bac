"""Run a method on the parties' data: `run` returns a model with its privacy statement.

There is one loop, `drive`, for every place to run. Example: a simulation of a thousand agents, a run on threads with
exact noise, and a table split by columns are resumed, measured, stopped and checked for divergence by the same lines.
"""

import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from sottovoce.accounting import advice
from sottovoce.accounting.account import Account, account_of, check_network
from sottovoce.accounting.calibrate import calibrate, check_target
from sottovoce.accounting.charging import Charging, own_ledgers
from sottovoce.accounting.fingerprint import fingerprint
from sottovoce.accounting.table import SECRET, SIMULATED, calibrate_labels, table_account
from sottovoce.data.population import Population, parts_by_level, record_shapes
from sottovoce.methods.base import Method
from sottovoce.naming import check_count, how_often
from sottovoce.networks import Network
from sottovoce.privacy import discrete, exact_gate
from sottovoce.privacy.accountant import Adjacency
from sottovoce.privacy.ledger import Budget, Ledger
from sottovoce.privacy.report import PrivacyReport
from sottovoce.privacy.table import Table
from sottovoce.problems import Minimize
from sottovoce.problems.vertical import Vertical
from sottovoce.runtime import checks, generations, peers
from sottovoce.runtime.about import About, about_rows, about_table
from sottovoce.runtime.array import ArrayPlace
from sottovoce.runtime.columns import ColumnsPlace, table_roots
from sottovoce.runtime.compiler import require_right_sums
from sottovoce.runtime.keys import agent_keys, check_seed, described
from sottovoce.runtime.layout import lay_out, own_digests
from sottovoce.runtime.mesh import Grid, MeshPlace, check_devices
from sottovoce.runtime.performance import Performance
from sottovoce.runtime.place import NEVER, Metrics, Place
from sottovoce.runtime.progress import Progress
from sottovoce.runtime.result import Result
from sottovoce.runtime.run_state import RunFolder, RunState, digest, keep_for_one_run
from sottovoce.runtime.threads import ThreadPlace
from sottovoce.schedules import same_for_all

EXACT = (
    "noise is discrete and exact, and all random bits come from the operating system: the guarantee holds to the bit, "
    "as long as a compiled program gives the same bits for the same input"
)
TIMED = (
    "the time that a round takes is not protected. It does not show the size of a drawn batch, because batches are "
    "padded. But exact noise and clipping take a time that depends on what is drawn and read"
)
EVALUATED = "figures of `evaluate` are computed without noise: they may leave only if it reads no private record"
THREADS = "one machine, a thread per party"
_SAVE_SECONDS = 2.0  # between checkpoints, so that small runs do not spend their time on the disk


@dataclass(frozen=True, eq=False)
class Job:
    """Hold all that the loop needs: a place, what to charge before a stretch, and what makes this run the same run."""

    place: Place
    report: PrivacyReport
    identity: Mapping[str, Any]
    charge: Callable[[int, int], None]  # before steps `start` to `stop` - 1 are run
    starting: Callable[[int], None]  # once, before the run starts at step 0 or goes on from a later one
    about: Callable[[], About]  # once, after the last step


def run(
    problem: Any,
    data: Sequence[Any] | Table,
    method: Method,
    *,
    steps: int,
    network: Network | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    adjacency: Adjacency | None = None,
    budget: Budget | None = None,
    ledger: Ledger | Sequence[Ledger] | None = None,
    noise: Literal["simulated", "discrete"] = "simulated",
    seed: int | None = 0,
    evaluate: Metrics | None = None,
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
            the parties' blocks, from public test records it brings along.
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
    if noise not in ("simulated", "discrete"):
        raise ValueError(f"noise is {noise!r}: choose 'simulated' or 'discrete'")
    if isinstance(data, Table):
        _one_process("a table split by columns")
        _refuse_for_tables(network=network, adjacency=adjacency, budget=budget, ledger=ledger)
        if noise == "discrete":
            raise ValueError("noise='discrete' is for records; memoised labels of a Table are exact without it")
    require_right_sums()
    check_count("steps", steps)
    check_seed(seed)
    every = max(1, math.ceil(steps / 10)) if every is None else every
    check_count("every", every)
    checks.metrics(problem, evaluate)
    if isinstance(data, Table):
        job_for: Callable[[RunFolder], Job] = _columns(
            problem, data, method, steps, epsilon, delta or 0.0, _seed_of_table(seed), every, performance.share
        )
    else:
        account = _account(problem, data, method, steps, network, epsilon, 1e-5 if delta is None else delta, adjacency)
        if noise == "discrete":
            job_for = _deployed(problem, data, account, budget, ledger, every, performance)
        else:
            job_for = _simulated(problem, data, account, budget, ledger, seed, every, performance)
    company = peers.current()
    with keep_for_one_run(out if company.leads else None):
        folder = RunFolder.shared(out, resume, company)
        job = job_for(folder)
        if evaluate is not None and not isinstance(data, Table):
            job = replace(job, report=replace(job.report, caveats=(*job.report.caveats, EVALUATED)))
        progress = performance.progress if company.leads else False
        try:
            last = drive(job, folder, resume, steps, evaluate, every, f"{type(method).__name__}", progress)
            result = replace(job.place.result(last.leaves, last.stacked(), job.report), about=job.about())
        except jax.errors.JaxRuntimeError as error:
            company.lost(error)
        _advise(problem, result)
        if folder.path is not None and company.leads:
            result.save(folder.path)
    return result


def _advise(problem: Any, result: Result) -> None:
    """Warn of an x that never moved or ran away; other variables may stay where they are on purpose."""
    if not isinstance(problem, Minimize):
        return
    ends = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(x)]) for x in (problem.x0, result.x)]
    for line in advice.after(["x"], ends[:1], ends[1:]):
        warnings.warn(line, stacklevel=3)


def drive(
    job: Job, folder: RunFolder, resume: bool, steps: int, evaluate: Metrics | None, every: int, title: str,
    progress: bool | None,
) -> RunState:  # fmt: skip
    """Run a job to its last step: the one loop.

    What a stretch will spend is charged before it runs. After each stretch the state is measured and, if it is time,
    stored. An interrupt stores the last complete stretch.
    """
    place, company, path = job.place, peers.current(), folder.path
    stored = generations.latest(path, company) if resume and path is not None else None
    if stored is not None:
        assert path is not None
        now = RunState.restore(path, stored, job.identity, place, company)
        job.starting(now.step)
    else:
        job.starting(0)
        job.charge(0, min(every, steps))  # what `init` releases is charged with the first stretch
        now = RunState(place.begin())
        now = now.noted(place.measure(now.leaves, 0, evaluate))
    saved = time.monotonic()

    def keep() -> str:
        """Store the last complete stretch."""
        if path is None:
            return "Nothing is stored, because the run has no folder"
        now.save(path, job.identity, place, company)
        return f"Stored at step {now.step}; resume=True (--resume) goes on from the last step that all have stored"

    with Progress(title, steps, now.step, progress) as bar, company.guard(keep):
        try:
            while now.step < steps:
                count = min(every - now.step % every, steps - now.step)
                job.charge(now.step, now.step + count)
                began = time.perf_counter()
                leaves, broken = place.advance(now.leaves, now.step, count)
                _require_finite(place.names, broken, now.step)
                after = now.moved(leaves, count, time.perf_counter() - began)
                now = after.noted(place.measure(leaves, after.step, evaluate))
                bar.show(now.step, now.latest())
                due = time.monotonic() - saved > _SAVE_SECONDS or now.step == steps
                if path is not None and company.lead(partial(bool, due)):
                    now.save(path, job.identity, place, company)
                    generations.tidy(path, now.step, company)
                    saved = time.monotonic()
        except KeyboardInterrupt:
            if path is not None:
                now.save(path, job.identity, place, company)
                print(f"stopped at step {now.step}; resume=True (--resume) goes on from there", file=sys.stderr)
            raise
    return now


def _require_finite(names: Sequence[str], broken: np.ndarray, good: int) -> None:
    if broken.size and broken.min() < NEVER:
        raise FloatingPointError(
            f"{names[int(broken.argmin())]} is no longer finite after step {int(broken.min())}: the run diverges. "
            f"Lower the step size or the noise; the last good state is that of step {good}."
        )


def _account(
    problem: Any, data: Any, method: Method, steps: int, network: Network | None, epsilon: float | None, delta: float,
    adjacency: Adjacency | None,
) -> Account:  # fmt: skip
    """Return the run's account, with everything that belongs to it checked, and calibrated if an epsilon is wanted."""
    if isinstance(problem, Vertical):
        raise TypeError("a Vertical problem is for a table split by columns: give sv.Table(columns, labels) as data")
    population, by_level = Population.of(data), parts_by_level(data)
    checks.fitting(problem, method, check_network(network, population.parties), population, record_shapes(by_level))
    given = {"steps": steps, "network": network, "delta": delta, "adjacency": adjacency, "problem": problem}
    if epsilon is not None:
        method = calibrate(method, data, epsilon=epsilon, **given)
    account = account_of(method, data, **given)
    check_target(account)
    for line in advice.before(population, delta, shared_noise=_is_shared(account)):
        warnings.warn(line, stacklevel=3)
    return account


def _is_shared(account: Account) -> bool:
    """Say whether all parties draw noise of one scale."""
    return all(same_for_all(charge.release.scale) for charge in account.charges)


def _simulated(
    problem: Any, data: Any, account: Account, budget: Budget | None, ledger: Any, seed: int | None, every: int,
    performance: Performance,
) -> Callable[[RunFolder], Job]:  # fmt: skip
    """Return how to make the job of a simulation: all agents as one array, or spread over devices and processes."""
    company, devices = peers.current(), performance.devices
    check_devices(devices)
    spread = company.count * devices > 1
    layout = lay_out(data, Grid(devices).held(account.population.parties) if spread else None)
    checks.finite(layout)
    program = program_of(account)
    report = as_simulated(account, secret=seed is None)
    _require_same("program", program, company)

    def job(folder: RunFolder) -> Job:
        begin_with = folder.secret.hex() if seed is None else seed
        digests = own_digests(layout)
        given = (account.trace, problem, layout, agent_keys(begin_with, program, digests), performance.chunk)
        place: Place = MeshPlace(*given, devices) if spread else ArrayPlace(*given, performance.share)
        charging = list[Charging]()  # one ledger per run: the leader's

        def open_ledger() -> None:
            kept = ledger if ledger is not None else Ledger(folder.path / "ledger.jsonl" if folder.path else None)
            charging.append(Charging(kept, folder.name, account))
            if budget is not None:
                charging[0].require(budget)

        company.lead(open_ledger)
        identity = _identity(account, digests, folder, every, seed=seed)
        return Job(
            place,
            report,
            identity,
            lambda start, stop: company.lead(lambda: charging[0].charge(start, stop)),
            lambda step: company.lead(lambda: charging[0].ensure(step, every)),
            lambda: about_rows(
                account,
                "one simulation" if company.count == 1 else f"one simulation in {company.count} processes",
                budget,
                None if budget is None else company.lead(lambda: charging[0].spent(budget)),
            ),
        )

    return job


def _deployed(
    problem: Any, data: Any, account: Account, budget: Budget | None, ledger: Any, every: int, performance: Performance
) -> Callable[[RunFolder], Job]:
    """Return how to make the job of a run with exact noise: a thread and a ledger per agent."""
    _one_process("noise='discrete'")
    if isinstance(ledger, Ledger):
        raise ValueError("deployed agents keep a ledger each: give a list, ledger=[sv.Ledger(path), ...]")
    if performance.devices > 1:
        raise ValueError("discrete noise runs on threads: leave out devices")
    check_exact(account)
    layout = lay_out(data)
    checks.finite(layout)

    def job(folder: RunFolder) -> Job:
        agents = account.population.parties
        charging = Charging(own_ledgers(folder.path, agents) if ledger is None else ledger, folder.name, account)
        charging.next_attempt()

        def starting(step: int) -> None:
            charging.ensure(step, every)
            charging.first = step
            if budget is not None:
                charging.require(budget, step)

        place = ThreadPlace.deployed(
            account.trace,
            problem,
            layout,
            performance.chunk,
            lambda agent, t: charging.charge_own(agent, t, t + 1),
            folder.name,
        )
        identity = _identity(account, own_digests(layout), folder, every, noise="discrete")

        def about() -> About:
            return about_rows(account, THREADS, budget, None if budget is None else charging.spent(budget))

        return Job(place, as_drawn(account), identity, lambda start, stop: None, starting, about)  # agents pay

    return job


def _columns(
    problem: Any, table: Table, method: Method, steps: int, epsilon: float | None, delta: float, seed: int, every: int,
    share: bool,
) -> Callable[[RunFolder], Job]:  # fmt: skip
    """Return how to make the job of a table: its labels are charged for the whole run before it starts."""
    if epsilon is not None:
        method = calibrate_labels(method, table, problem, epsilon, steps, delta)  # type: ignore[arg-type]
    account = table_account(method, table, problem, steps, delta, seed)

    def job(folder: RunFolder) -> Job:
        roots = table_roots(account, table)
        account.charge(table.labels, run=_name_of_noise(folder, roots, steps))
        place = ColumnsPlace(account, table, roots, share=share)
        columns = table.columns
        identity = {"method": described(method), "steps": steps, "every": every, "seed": seed}
        if folder.path is not None:
            identity["program"] = fingerprint(account.trace.programs)
            identity["columns"] = folder.seal([columns.blocks, columns.upper, columns.lower])
            identity["labels"] = folder.seal(place.vectors)
        report = account.report(table.labels)
        if report.private:
            report = replace(report, drawn="simulated" if account.simulated(table.labels) else "exact")

        def about() -> About:
            return about_table(account, table, "one place that stands for all parties")

        return Job(place, report, identity, lambda start, stop: None, lambda step: None, about)

    return job


def _name_of_noise(folder: RunFolder, roots: Any, steps: int) -> str | None:
    """Return a name for what a table's run draws: a resumed run draws the same again, which is paid for once."""
    return None if folder.path is None else folder.seal([jax.random.key_data(roots), steps])


def _identity(account: Account, digests: Sequence[bytes], folder: RunFolder, every: int, **how: Any) -> dict[str, Any]:
    """Return what must agree for a run to be continued; nothing where there is no folder to continue from.

    Each agent's records are sealed by themselves, so that it does not matter which process holds them.
    """
    if folder.path is None:
        return {}
    network = account.network
    sealed = peers.current().gather([folder.seal([np.frombuffer(own, np.uint8)]) for own in digests])
    return {
        "method": described(account.method),
        "steps": account.steps,
        "every": every,
        "network": f"{network.name}/{network_digest(network)}",
        "program": account.trace.fingerprint,
        "records": folder.seal([np.frombuffer("".join(one for own in sealed for one in own).encode(), np.uint8)]),
        **how,
    }


def _require_same(what: str, mine: str, company: peers.Peers) -> None:
    """Refuse to start where processes would run different things."""
    said = company.gather(mine)
    others = [rank for rank, theirs in enumerate(said) if theirs != said[0]]
    if others:
        raise ValueError(
            f"process {others[0]} would run another {what} than process 0: all processes need the same code, run file "
            "and settings"
        )


def _one_process(what: str) -> None:
    if (count := peers.current().count) > 1:
        raise ValueError(f"{what} runs in one process, and there are {count}: leave out --processes")


def _seed_of_table(seed: int | None) -> int:
    """Return the seed of batches and directions, which all parties know."""
    if seed is None:
        raise ValueError("seed is None: batches and directions of a Table are public, so give their seed")
    return seed


def program_of(account: Account) -> str:
    """Return what is computed, as text: the same in every process and on every machine."""
    return f"{account.trace.fingerprint}|{described(account.method)}|{network_digest(account.network)}"


def check_exact(account: Account) -> None:
    """Refuse a run that exact noise cannot serve: printed designs, and releases without clip or noise."""
    for charge in account.charges:
        if charge.sampling is None:
            raise ValueError(exact_gate.PRINTED.format(charge.release.name))
        if not charge.release.private:
            raise ValueError(f"release {charge.release.name!r} has no clip or no noise: discrete noise needs both")
    if account.population.facts.simulated:
        raise ValueError(
            "ranges or lists of the table were bought with a seed, which simulates: leave seed out of sv.NoisyCounts"
        )
    if not account.report.private:
        raise ValueError(f"discrete noise is for runs that guarantee something: {account.report.statement()}")


def network_digest(network: Network) -> str:
    """Return a digest of all weights."""
    return digest([matrix.tocsr() for _, matrix in sorted(network.matrices.items())])[:16]


def as_simulated(account: Account, secret: bool = False) -> PrivacyReport:
    """Return the statement with how noise is drawn in floating point: from a seed, or from a secret key."""
    report, said = account.statement, f"{SECRET if secret else SIMULATED} (noise='discrete' is exact)"
    if not report.private:
        return report
    return replace(report, caveats=(*report.caveats, said), drawn="secret" if secret else "simulated")


def as_drawn(account: Account) -> PrivacyReport:
    """Return the report with each release as it is drawn, for the first agent at the first step."""
    events = []
    for charge in account.charges:
        assert charge.sampling is not None
        sizes = [int(account.population.counts[level][0]) for level in charge.levels]
        grid = discrete.on_grid(charge.release, math.lcm(*(int(charge.sampling.denominator(n, 0)) for n in sizes)))
        often = charge.batches * charge.times * (1 if charge.phase == "init" else account.steps)
        events.append(f"{charge.release.name}: {grid}, {charge.sampling}, {how_often(often)}")
    caveats = (*account.report.caveats, EXACT, TIMED)
    return replace(account.statement, events=tuple(events), caveats=caveats, drawn="exact")


def _refuse_for_tables(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(
                f"{name}= is for parties with records; a Table has a server between its parties, and its Labels keep "
                "their own costs and budget (sv.Labels(..., path=..., budget=...))"
            )
