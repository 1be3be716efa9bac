"""`run`: a problem, the parties' records, a method, a network; out comes a model with its privacy statement."""

import hashlib
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from sottovoce import accounting
from sottovoce.methods.base import Method
from sottovoce.naming import check_count
from sottovoce.networks import Network
from sottovoce.privacy.accountant import Adjacency
from sottovoce.privacy.ledger import Budget, Ledger
from sottovoce.privacy.report import PrivacyReport
from sottovoce.problems import objectives
from sottovoce.runtime import checks
from sottovoce.runtime.books import Books
from sottovoce.runtime.journey import CHECKPOINT, Journey, digest
from sottovoce.runtime.progress import Progress
from sottovoce.runtime.result import Result, measure
from sottovoce.runtime.store import Layout, lay_out
from sottovoce.runtime.vectorised import NEVER, Program, program, public_leaves

SIMULATION = (
    "simulated noise, do not deploy: it comes from a seed and a floating-point sampler, so this is the epsilon of the "
    "ideal mechanism, and who knows the seed can subtract the noise"
)
_SAVE_SECONDS = 2.0  # between checkpoints, so that small runs do not spend their time on the disk


def run(
    problem: Any,
    parts: Sequence[Any],
    method: Method,
    *,
    steps: int,
    network: Network | None = None,
    seed: int = 0,
    noise: Literal["simulated", "discrete"] = "simulated",
    evaluate: Callable[..., Mapping[str, Any]] | None = None,
    every: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    delta: float = 1e-5,
    adjacency: Adjacency | None = None,
    budget: Budget | None = None,
    ledger: Ledger | Sequence[Ledger] | None = None,
    chunk: int = 1024,
    devices: int = 1,
    progress: bool | None = None,
) -> Result:
    """Run a method on all agents, compiled as one program.

    Args:
        problem: `Minimize`, `MinMax` or `Bilevel`.
        parts: one record set an agent: a pytree of arrays that share their first axis, a `Part`, or `Levels`.
        method: a configured method.
        steps: how many steps.
        network: who talks to whom; needed as soon as there is more than one agent.
        seed: same seed, same bytes. For simulation: a seed is no secret.
        noise: "simulated", or "discrete" as deployed: exact noise and coins from the operating system, one thread an
            agent (see `runtime.threads.run_discrete`). Slow; `seed`, `every` and `progress` then say nothing.
        evaluate: ``evaluate(x)`` or ``evaluate(x, y)`` giving named numbers, in JAX; recorded for the agents' average
            and, with up to 64 agents, for each agent (``name/agents``).
        every: evaluate (and checkpoint) each so many steps; a tenth of the run by default.
        out: folder for the checkpoint, the ledger and the result; `resume` continues what is there.
        budget: refuse to start when an agent would spend more than this, counting what `ledger` has already.
        ledger: where it is written down what is spent: one for all agents, or a list of one an agent, which discrete
            noise asks for. By default `ledger.jsonl` in `out`, and there `ledger-0.jsonl` and so on.
        chunk: how many records are treated at once: bounds the memory.
        devices: spread the agents over so many devices.
        progress: show a progress bar; by default on a terminal.

    >>> import jax.numpy as jnp, numpy as np, sottovoce as sv
    >>> problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), x0=jnp.zeros(2))
    >>> parts = [np.full((50, 2), i, np.float32) for i in range(4)]
    >>> method = sv.methods.DpSgd(rate=0.2, gradient=sv.Release(clip=5.0, noise=0.001), sampling=sv.Full())
    >>> result = sv.run(problem, parts, method, network=sv.networks.ring(4), steps=50)
    >>> np.round(result.x, 1).tolist()
    [1.5, 1.5]
    """
    if noise == "discrete":
        from sottovoce.runtime.threads import run_discrete

        if resume or devices > 1:
            raise ValueError("discrete noise runs on threads and from the beginning: leave out resume= and devices=")
        given: dict[str, Any] = {"delta": delta, "adjacency": adjacency, "budget": budget, "ledger": ledger}
        given |= {"steps": steps, "network": network, "evaluate": evaluate, "out": out, "chunk": chunk}
        return run_discrete(problem, parts, method, **given)
    if noise != "simulated":
        raise ValueError(f"noise is {noise!r}: choose 'simulated' or 'discrete'")
    layout = lay_out(parts)
    network = checks.fitting(problem, method, network, layout, steps)
    check_count("chunk", chunk)
    place = {"steps": steps, "network": network, "problem": problem, **layout.facts}
    report = _simulated(accounting.account(method, delta=delta, adjacency=adjacency, **place))
    every = max(1, math.ceil(steps / 10)) if every is None else every
    check_count("every", every)
    checks.metrics(problem, evaluate)
    checks.finite(layout)
    folder = checks.ready(out, resume)
    identity = _identity(problem, method, network, layout, steps, seed, every) if folder or ledger else {}
    name = hashlib.sha256(repr(sorted(identity.items())).encode()).hexdigest()[:16]
    if ledger is None:
        ledger = Ledger(folder / "ledger.jsonl" if folder else None)
    books = Books(ledger, name, method, problem, layout, network, steps, report)
    if budget is not None:
        books.require(budget)

    compiled = program(problem, method, layout, network, steps, seed, chunk, devices)
    journey = _Journey(identity=identity, compiled=compiled, problem=problem, evaluate=evaluate)
    if resume and folder is not None and (folder / CHECKPOINT).exists():
        journey.restore(folder, like=jax.eval_shape(compiled.init))
    else:
        books.charge(0, min(every, steps))  # what `init` releases is charged with the first stretch
        journey.begin()
    with Progress(f"{type(method).__name__}, {network.size} agents", steps, journey.step, progress) as bar:
        saved = time.monotonic()
        try:
            while journey.step < steps:
                count = min(every - journey.step % every, steps - journey.step)
                books.charge(journey.step, journey.step + count)
                journey.advance(count)
                bar.show(journey.step, journey.latest())
                if folder is not None and (time.monotonic() - saved > _SAVE_SECONDS or journey.step == steps):
                    journey.save(folder)
                    saved = time.monotonic()
        except KeyboardInterrupt:
            if folder is not None:
                journey.save(folder)
                print(f"stopped at step {journey.step}; resume=True (--resume) goes on from there", file=sys.stderr)
            raise
    result = Result.of(problem, journey.state, journey.stacked(), report)
    if folder is not None:
        result.save(folder)
    return result


def _simulated(report: PrivacyReport) -> PrivacyReport:
    exact = f"{SIMULATION} (noise='discrete' is exact)"
    return replace(report, caveats=(*report.caveats, exact)) if report.private else report


def _identity(
    problem: Any, method: Method, network: Network, layout: Layout, steps: int, seed: int, every: int
) -> dict[str, Any]:
    """What must agree for a run to be continued."""
    return {
        "method": repr(method),
        "steps": steps,
        "every": every,
        "seed": seed,
        "network": network.name
        + "/"
        + digest(
            [
                network.matrices[key].toarray() if network.size < 512 else network.matrices[key].data
                for key in sorted(network.matrices)
            ]
        ),
        "problem": objectives.fingerprint(problem, layout.example()),
        "start": digest(objectives.start(problem)),
        "records": digest(dict(layout.stores)),
    }


@dataclass(kw_only=True)
class _Journey(Journey):
    """The journey of a compiled program."""

    compiled: Program
    problem: Any
    evaluate: Callable[..., Mapping[str, Any]] | None

    def begin(self) -> None:
        self.state = self.compiled.init()
        self.measure()

    def advance(self, count: int) -> None:
        began = time.perf_counter()
        state, broken = self.compiled.advance(self.state, self.step, count)
        first = np.asarray(broken)  # waits for the stretch to end
        if first.size and first.min() < NEVER:
            name = public_leaves(state)[int(first.argmin())][0]
            raise FloatingPointError(
                f"{name} is no longer finite after step {int(first.min())}: the run diverges. Lower the step size or "
                f"the noise; the last good state is that of step {self.step}."
            )
        self.move(state, count, time.perf_counter() - began)
        self.measure()

    def measure(self) -> None:
        self.note(measure(self.state, self.problem, self.evaluate))
