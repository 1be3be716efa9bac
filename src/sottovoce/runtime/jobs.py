"""Make the job of a run: a simulation, agents on threads with exact noise, or a table split by columns.

A job says where a run is computed, what it charges before a stretch of steps, how its noise is drawn, and what makes it
the same run when it is resumed. Example: `simulated` puts all agents into one array and charges one ledger; `deployed`
gives each agent a thread and a ledger of its own.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np

from sottovoce.accounting.account import Account
from sottovoce.accounting.charging import Charging, own_ledgers
from sottovoce.accounting.table import SECRET, SIMULATED, calibrate_labels, table_account
from sottovoce.accounting.trace import Charge
from sottovoce.data.parties import Parties
from sottovoce.methods.base import Method
from sottovoce.naming import how_often
from sottovoce.privacy import discrete, exact_gate
from sottovoce.privacy.ledger import Budget, Ledger
from sottovoce.privacy.report import PrivacyReport
from sottovoce.privacy.table import Table
from sottovoce.runtime import checks, peers
from sottovoce.runtime.about import About, about_rows, about_table
from sottovoce.runtime.array import ArrayPlace
from sottovoce.runtime.columns import ColumnsPlace, table_roots
from sottovoce.runtime.keys import agent_keys, described
from sottovoce.runtime.layout import lay_out, own_digests
from sottovoce.runtime.loop import Job
from sottovoce.runtime.mesh import Grid, MeshPlace, check_devices
from sottovoce.runtime.performance import Performance
from sottovoce.runtime.place import Place
from sottovoce.runtime.run_state import RunFolder
from sottovoce.runtime.sums.session import Question
from sottovoce.runtime.threads import ThreadPlace

EXACT = (
    "noise is discrete and exact, and all random bits come from the operating system: the guarantee holds to the bit, "
    "as long as a compiled program gives the same bits for the same input"
)
MASKED = (
    "noise is discrete and exact, and parties draw it in shares. Coins, noise and masks are streams of ChaCha20, by "
    "keys from the operating system and by secrets that pairs of parties agree on: the guarantee is computational, and "
    "holds as long as a compiled program gives the same bits for the same input"
)
TIMED = (
    "the time that a round takes is not protected. It does not show the size of a drawn batch, because batches are "
    "padded. But exact noise and clipping take a time that depends on what is drawn and read"
)
THREADS = "one machine, a thread per party"


def simulated(
    parties: Parties, account: Account, budget: Budget | None, ledger: Any, seed: int | None, every: int,
    performance: Performance,
) -> Callable[[RunFolder], Job]:  # fmt: skip
    """Return how to make the job of a simulation: all agents as one array, or spread over devices and processes."""
    company, devices = peers.current(), performance.devices
    check_devices(devices)
    spread, known = company.count * devices > 1, account.trace.known
    own = Grid(devices).held(known.population.parties) if spread else None
    layout = lay_out(parties if known.summed is None else parties.together(), own, known.population)
    checks.finite(layout)
    program = account.trace.identity
    report = as_simulated(account, secret=seed is None and not account.population.facts.simulated)
    _require_same("program", program, company)

    def job(folder: RunFolder) -> Job:
        begin_with = folder.secret.hex() if seed is None else seed
        digests = own_digests(layout)
        given = (account.trace, account.problem, layout, agent_keys(begin_with, program, digests), performance.chunk)
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
                None if budget is None else company.lead(lambda: charging[0].bound(budget)),
                None if budget is None else company.lead(lambda: charging[0].spent(budget)),
            ),
        )

    return job


def deployed(
    parties: Parties, account: Account, budget: Budget | None, ledger: Any, every: int, performance: Performance
) -> Callable[[RunFolder], Job]:
    """Return how to make the job of a run with exact noise: a thread and a ledger per agent."""
    one_process("noise='discrete'")
    if isinstance(ledger, Ledger):
        raise ValueError("deployed agents keep a ledger each: give a list, ledger=[sv.Ledger(path), ...]")
    if performance.devices > 1:
        raise ValueError("discrete noise runs on threads: leave out devices")
    check_exact(account)
    layout = lay_out(parties, None, account.trace.known.holders)
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

        def pay(agent: int, t: int) -> None:
            charging.charge_own(agent, t, t + 1)

        given = (account.trace, account.problem, layout, performance.chunk, pay, folder.name)
        by_itself = account.trace.known.summed is None
        place = ThreadPlace.deployed(*given) if by_itself else ThreadPlace.summed(*given, charging.attempt)
        identity = _identity(account, own_digests(layout), folder, every, noise="discrete")

        def about() -> About:
            if budget is None:
                return about_rows(account, THREADS)
            return about_rows(account, THREADS, charging.bound(budget), charging.spent(budget))

        return Job(place, as_drawn(account), identity, lambda start, stop: None, starting, about)  # agents charge

    return job


def columns(
    problem: Any, table: Table, method: Method, steps: int, epsilon: float | None, delta: float, seed: int, every: int,
    share: bool,
) -> Callable[[RunFolder], Job]:  # fmt: skip
    """Return how to make the job of a table: its labels are charged for the whole run before it starts."""
    if epsilon is not None:
        method = calibrate_labels(method, table, problem, epsilon, steps, delta, seed)  # type: ignore[arg-type]
    account = table_account(method, table, problem, steps, delta, seed)

    def job(folder: RunFolder) -> Job:
        roots = cache(lambda: table_roots(account, table))  # made of labels that were drawn
        account.charge(table.labels, run=lambda: _name_of_noise(folder, roots(), steps))
        place = ColumnsPlace(account, table, roots(), share=share)
        split = table.columns
        identity = {"method": described(method), "steps": steps, "every": every, "seed": seed}
        if folder.path is not None:
            identity["program"] = account.trace.identity
            identity["columns"] = folder.seal([split.blocks, split.upper, split.lower])
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
        "network": network.name,
        "program": account.trace.identity,
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


def one_process(what: str) -> None:
    """Refuse what runs in one process only, if there are several."""
    if (count := peers.current().count) > 1:
        raise ValueError(f"{what} runs in one process, and there are {count}: leave out --processes")


def check_exact(account: Account) -> None:
    """Refuse a run that exact noise cannot serve: printed designs, and releases without clip or noise."""
    for charge in account.charges:
        if charge.sampling is None:
            raise ValueError(exact_gate.PRINTED.format(charge.release.name))
        if not charge.release.private:
            raise ValueError(f"release {charge.release.name!r} has no clip or no noise: discrete noise needs both")
        discrete.on_grid(charge.release, 1)  # a law that is not drawn exactly says so, before anything is charged
        if account.trace.known.summed is not None:
            for t in (0, account.steps - 1):
                _shared(account, charge, t)  # shares that are too small, and totals that are too large
    if account.population.facts.simulated:
        raise ValueError(
            "ranges or lists of the table were bought with a seed, which simulates: leave seed out of sv.NoisyCounts"
        )
    if not account.report.private:
        raise ValueError(f"discrete noise is for runs that guarantee something: {account.report.statement()}")


def as_simulated(account: Account, secret: bool = False) -> PrivacyReport:
    """Return the statement with how noise is drawn in floating point: from a seed, or from a secret key."""
    report, said = account.statement, f"{SECRET if secret else SIMULATED} (noise='discrete' is exact)"
    if not report.private:
        return report
    return replace(report, caveats=(*report.caveats, said), drawn="secret" if secret else "simulated")


def as_drawn(account: Account) -> PrivacyReport:
    """Return the report with each release as it is drawn, for the first agent at the first step."""
    events, summed = [], account.trace.known.summed
    for charge in account.charges:
        grid, _ = _on_grid(account, charge, 0)
        drawn = str(grid)
        if summed is not None:
            drawn += f", of which each party draws a share of scale {_shared(account, charge, 0).share}"
        often = charge.batches * charge.times * (1 if charge.phase == "init" else account.steps)
        events.append(f"{charge.release.name}: {drawn}, {charge.sampling}, {how_often(often)}")
    caveats = (*account.report.caveats, EXACT if summed is None else MASKED, TIMED)
    return replace(account.statement, events=tuple(events), caveats=caveats, drawn="exact")


def _on_grid(account: Account, charge: Charge, t: int) -> tuple[discrete.GridRelease, int]:
    """Return a release in whole numbers, and how many records its sum has at most, in units of its denominator."""
    assert charge.sampling is not None
    sizes = [int(account.population.counts[level][0]) for level in charge.levels]
    means = [int(charge.sampling.denominator(n, t)) for n in sizes]
    common = math.lcm(*means)
    return discrete.on_grid(charge.release, common, t), sum(n * (common // mean) for n, mean in zip(sizes, means))


def _shared(account: Account, charge: Charge, t: int) -> Question:
    """Return what the parties of a sum are asked for, or refuse what their shares cannot serve."""
    summed, (grid, rows) = account.trace.known.summed, _on_grid(account, charge, t)
    assert summed is not None
    try:
        return Question(charge.release.name, 1, grid, rows, summed.holders.parties, summed.trust.colluding)
    except ValueError as error:
        raise ValueError(f"release {charge.release.name!r}: {error}") from None
