"""Run a method many times under D and under D', and measure how well the two can be told apart."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.accounting import sums
from sottovoce.accounting.account import account_of
from sottovoce.accounting.table import table_account
from sottovoce.audit import adversaries, bounds
from sottovoce.audit.adversaries import Instance, SealedRecords, Target
from sottovoce.audit.bounds import Finding
from sottovoce.audit.labels import audit_labels
from sottovoce.data.parties import Parties
from sottovoce.data.population import Population
from sottovoce.methods.base import Method
from sottovoce.networks import Network
from sottovoce.privacy.accountant import Adjacency
from sottovoce.privacy.table import Table
from sottovoce.privacy.trust import Sum
from sottovoce.runtime.layout import lay_out
from sottovoce.runtime.progress import Progress
from sottovoce.runtime.threads import NoiseSource
from sottovoce.trees import Tree

Adversary = Literal["canary", "replay", "one-run"]
Runtime = Literal["vectorised", "threads"]
Score = Callable[[jax.Array, SealedRecords], Any]  # for each seed the scores of a run on the data

_LOOKS = (0.125, 0.25, 0.5, 1.0)  # shares of the trials after which the verdict is checked; the checks share the risk
_DIGITS = 3  # scores are float32: finer differences are rounding, and the audit is of the ideal mechanism
_ROOM = 4_000_000  # records held at once by trials that run side by side


def audit(
    method: Method,
    data: Any,
    *,
    steps: int,
    problem: Any = None,
    network: Network | None = None,
    adversary: Adversary = "canary",
    runtime: Runtime = "vectorised",
    noise: NoiseSource = "simulated",
    trust: Sum | None = None,
    agent: int = 0,
    level: str | None = None,
    row: int = 0,
    replacement: Tree | None = None,
    delta: float | None = None,
    adjacency: Adjacency | None = None,
    claimed: float | None = None,
    trials: int = 20_000,
    confidence: float = 0.95,
    repeat: int = 1,
    seed: int = 0,
    progress: bool | None = None,
) -> Finding:
    """Measure a lower bound on the epsilon of one agent's messages, and compare it with the claimed epsilon.

    The adversary sees everything that the agent releases and knows all data but one record. It has two scores, and a
    few runs beforehand (a pilot) decide which one is used. The first score computes how likely the messages are with
    the record and without it, if the noise is as stated; then no other attack on this instance does better. The second
    score does not rely on the stated noise. No number of trials can show an epsilon above about ln(trials / 3.7).

    - "canary": the worst-case instance for the method, network, sampling and sizes at hand: a record whose gradient is
      the whole clip in a coordinate nobody else uses. A sound and tight account is nearly reached.
    - "replay": your own `problem` and parts; the record at (`agent`, `level`, `row`) is removed, or replaced by
      `replacement`. It shows the risk of a usual record.
    - "one-run": one run in which every record of the agent is a canary with its own coordinate, put in by a fair
      coin; zero-out only. It is cheaper and weaker.

    Args:
        data: the parties' parts, or a `Population`; or a `Table`, whose label gate is audited: the adversary then sees
            every weight that the gate makes of one label, which is at least as much as any party sees.
        runtime: "vectorised", or "threads": one thread per agent, one run after the other. It is slow: a few hundred
            trials take minutes.
        noise: "simulated", or, on threads, "discrete": exact, as deployed.
        trust: ``sv.Sum(...)`` audits a run by secure sums: the adversary then is as many parties as may collude. They
            have subtracted their own records and noise from each total, so that the noise which is charged is left.
        claimed: what to compare with; by default what `account` says of the agent.
        trials: runs counted under each hypothesis. A pilot of a quarter as many, on which the event is chosen, comes in
            addition. A claim that is found false early ends the audit; the early checks are paid for in confidence.
        repeat: number of audits, of which the largest bound counts; they share the risk, 1 - confidence, equally.

    >>> import sottovoce as sv
    >>> method = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(clip=1.0, noise=0.2), sampling=sv.Full())
    >>> finding = audit(method, sv.Population([10]), steps=3, delta=1e-2, trials=4000)
    >>> finding.passed, finding.ratio > 0.5
    (True, True)
    """
    if trials < 100 or repeat < 1 or not 0 < confidence < 1:
        raise ValueError(
            f"{trials} trials, repeated {repeat} times, at confidence {confidence}: give at least 100 trials, at least "
            "one repetition, and a confidence in (0, 1)"
        )
    if adversary not in ("canary", "replay", "one-run"):
        raise ValueError(f"adversary is {adversary!r}: choose 'canary', 'replay' or 'one-run'")
    if isinstance(data, Table):
        sums.refuse_for_tables(trust)
        return _labels(method, data, problem, steps, delta or 0.0, claimed, trials, confidence, seed)
    delta = 1e-5 if delta is None else delta
    if adversary == "replay" and (problem is None or isinstance(data, Population)):
        raise ValueError("the replay adversary needs problem= and the parties' parts; 'canary' makes its own")
    if runtime not in ("vectorised", "threads") or noise not in ("simulated", "discrete"):
        raise ValueError(
            f"runtime {runtime!r}, noise {noise!r}: choose 'vectorised' or 'threads', and 'simulated' or 'discrete'"
        )
    if noise == "discrete" and runtime != "threads":
        raise ValueError("discrete noise is drawn by agents on threads: add runtime='threads'")
    if adversary == "one-run":
        if adjacency == "replace-one":
            raise ValueError("a one-run audit puts canaries in or leaves them out: its adjacency is 'zero-out'")
        adjacency = "zero-out"
    population = Population.of(data)
    replayed = problem if adversary == "replay" else None
    account = account_of(method, data, steps, network, delta, adjacency, replayed, trust)
    network, report, holder = account.network, account.report, agent
    if trust is not None:
        if runtime == "threads":
            raise ValueError("an audit of secure sums simulates them: leave runtime out")
        data, agent, row = _seen_by_colluders(account.trace.known.holders, data, agent, level, row)
        population = account.trace.known.population
    by_level = population.counts
    relation: Adjacency = report.adjacency  # type: ignore[assignment]
    if claimed is None:
        claimed = report.per_agent[holder]
    if not math.isfinite(claimed):
        raise ValueError(f"there is no claim to audit: {report.statement()}")
    dearest = max(report.per_level, key=lambda name: report.per_level[name]) if report.per_level else "records"
    target = Target(agent, level or (dearest if dearest in by_level else next(iter(by_level))), row)
    what = type(method).__name__ + ("" if runtime == "vectorised" else f" on threads, {noise} noise")

    def scoring(instance: Instance, each: int = 0) -> Score:
        if runtime == "threads":
            return adversaries.thread_scores(instance, method, network, steps, noise, each=each)
        return adversaries.scores(instance, method, network, steps, each=each)

    risk = (1 - confidence) / repeat
    once: Callable[[int], tuple[float, int]]
    if adversary == "one-run":
        once = partial(_one_run, scoring, method, by_level, target, delta, 1 - risk)
    else:
        if adversary == "canary":
            instance = adversaries.worst_case(method, by_level, target, relation)
        else:
            instance = adversaries.neighbours(problem, lay_out(data), target, relation, replacement)
        once = partial(_many_runs, scoring(instance), instance, delta, 1 - risk, claimed, trials, progress, what)
    found = [once(seed + number) for number in range(repeat)]
    each, counts = zip(*found)
    return Finding(max(each), claimed, delta, confidence, sum(counts), adversary, what, each)


def _seen_by_colluders(holders: Population, data: Any, agent: int, level: str | None, row: int) -> tuple[Any, int, int]:
    """Return the data as one table, and where in it the record of a party is."""
    sizes = holders.sizes[level or next(iter(holders.sizes))]
    if not 0 <= agent < holders.parties or not 0 <= row < sizes[agent]:
        raise ValueError(f"there is no record {row} of party {agent}: give an agent and a row that exist")
    together = data if isinstance(data, Population) else Parties.of(data).together()
    return together, 0, sum(sizes[:agent]) + row


def _labels(
    method: Method, table: Table, problem: Any, steps: int, delta: float, claimed: float | None, trials: int,
    confidence: float, seed: int,
) -> Finding:  # fmt: skip
    """Audit the label gate of a run over columns: the label that is used most, in as many copies as the run makes."""
    account = table_account(method, table, problem, steps, delta)
    asked = [crossing for crossing in account.trace.crossings if crossing.level]
    copies = max(crossing.copies for crossing in asked)
    uses = sum(crossing.times for crossing in asked) * steps
    given = {"classes": table.labels.classes, "uses": uses, "copies": copies, "delta": delta, "claimed": claimed}
    return audit_labels(account.method.labels, **given, trials=trials, confidence=confidence, seed=seed)  # type: ignore[arg-type]


def _many_runs(
    score: Score,
    instance: Instance,
    delta: float,
    confidence: float,
    claimed: float,
    trials: int,
    progress: bool | None,
    what: str,
    seed: int,
) -> tuple[float, int]:
    """Run a pilot, then the trials in stretches, and check the verdict after some of them."""
    held = sum(int(counts.sum()) for counts in instance.layout.population.counts.values())
    block = max(1, min(4096, _ROOM // held, math.ceil(trials / 8)))
    first = int(np.random.default_rng([seed, 2]).integers(2**30))  # no two trials share a seed
    used = 0

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        nonlocal used
        sides: list[list[np.ndarray]] = [[], []]
        for _ in range(math.ceil(count / block)):
            for side, data in zip(sides, (instance.under_d, instance.under_other)):
                seeds = first + used + np.arange(block)
                used += block
                side.append(np.asarray(score(jnp.asarray(seeds, jnp.int32), data), np.float64))
                bar.show(min(used, total), {})
        pooled = np.concatenate([*sides[0], *sides[1]])
        if np.isnan(pooled).any():
            raise FloatingPointError(
                "a trial's likelihood is not a number: its run diverged, or a release has no noise. Lower the step "
                "sizes, or give every release noise"
            )
        return np.round(np.concatenate(sides[0]), _DIGITS), np.round(np.concatenate(sides[1]), _DIGITS)

    total = 2 * (trials + trials // 4)
    each_look = 1 - (1 - confidence) / len(_LOOKS)
    with Progress(f"audit of {what}", total, shown=progress) as bar:
        which, event = _best(*draw(trials // 4), delta, each_look)
        seen: tuple[np.ndarray, np.ndarray] = (np.empty(0), np.empty(0))
        lower = 0.0
        for share in _LOOKS:
            missing = math.ceil(share * trials) - len(seen[0])
            if missing > 0:
                more = draw(missing)
                seen = (np.concatenate([seen[0], more[0][:, which]]), np.concatenate([seen[1], more[1][:, which]]))
            lower = max(lower, bounds.measure(event, *seen, delta=delta, confidence=each_look))
            if lower > claimed:
                break
    return lower, 2 * len(seen[0])


def _best(under_d: np.ndarray, under_other: np.ndarray, delta: float, confidence: float) -> tuple[int, bounds.Event]:
    """Choose which of the scores (columns) to use, and the event."""
    events = [bounds.choose(under_d[:, k], under_other[:, k], delta, confidence) for k in range(under_d.shape[1])]
    found = [
        bounds.measure(event, under_d[:, k], under_other[:, k], delta, confidence) for k, event in enumerate(events)
    ]
    return int(np.argmax(found)), events[int(np.argmax(found))]


def _one_run(
    scoring: Callable[[Instance, int], Score],
    method: Method,
    sizes: Mapping[str, np.ndarray],
    target: Target,
    delta: float,
    confidence: float,
    seed: int,
) -> tuple[float, int]:
    """Make all of an agent's records canaries, put each in by a coin, and guess the coins from one run."""
    count = int(sizes[target.level][target.agent])
    if count < 2:
        raise ValueError(
            f"a one-run audit needs many canaries, and agent {target.agent} has {count} record: give it more"
        )
    problem, layout = adversaries.canaries(method, sizes, target, width=count)
    included = np.random.default_rng([seed, 3]).random(count) < 0.5
    records = dict(layout.sealed)
    sealed = records[target.level]
    absent = sealed.order[int(sealed.starts[target.agent]) + np.flatnonzero(~included)]
    drawn = {**records, target.level: adversaries.without(sealed, absent)}
    instance = Instance(problem, layout, records, records, target)
    found = np.asarray(scoring(instance, count)(jnp.asarray([seed], jnp.int32), drawn), np.float64)[
        0, 0
    ]  # one run, the likelihood
    return bounds.one_run_bound(np.round(found, _DIGITS), included, delta, confidence), count
