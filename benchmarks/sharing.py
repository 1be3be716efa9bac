"""Fits and runs that share a compiled program, against ones that compile anew: ``python -m benchmarks.sharing``."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

import sottovoce as sv
from benchmarks import measure
from sottovoce.accounting import content, trace
from sottovoce.data.synthetic import logistic
from sottovoce.estimators import base
from sottovoce.papers.dp_bilevel.descent import Descent
from sottovoce.papers.gradient_tracking.method import Rates
from sottovoce.problems.tasks import Shape, get
from sottovoce.runtime import array, members

TURNS = 5
TABLES = [logistic(4000, 5, seed=seed) for seed in range(3)]


def anew(run: Callable[[], Any]) -> Any:
    """Run with nothing remembered, as a first run in a process does."""
    for remembered in (base.task_of, trace.remembered, content.remembered_keys, array.compiled, members._compiled):
        remembered.cache_clear()
    jax.clear_caches()
    return run()


def fit(seeds: list[int]) -> None:
    """Fit a table of the three with the next seed."""
    seeds.append(len(seeds))
    rows = TABLES[len(seeds) % 3]
    sv.PrivateLogisticRegression(epsilon=2.0, random_state=len(seeds)).fit(rows["features"], rows["label"])


def redraw(seeds: list[int]) -> Any:
    """Run DPMixSGD as the next seed draws it: start, split, graph; one of four epsilons."""
    seeds.append(len(seeds))
    seed = len(seeds)
    task = get("robust-logistic")(Shape((5,), classes=2, agents=4), seed=seed)
    parts = task.prepare(sv.data.split(TABLES[0], 4, seed=seed))
    noisy = sv.Release(2.0, 0.05 * (1 + seed % 4))  # as for one of four epsilons
    method = sv.methods.DpMixSgd(0.3, 0.003, sv.Poisson(20), noisy, noisy, increment=0.2)
    network = sv.networks.erdos_renyi(4, 0.5, seed=seed)
    how = {"steps": 40, "network": network, "seed": seed, "performance": sv.Performance(share=True)}
    return jax.tree.leaves(sv.run(task.problem, parts, method, **how).x)


_CLIP = sv.Release(1.0, 1.0)  # with noise that a calibration replaces
METHODS: dict[str, tuple[str, int, sv.methods.Method]] = {
    "DPMixSGD": ("robust-logistic", 4, sv.methods.DpMixSgd(0.3, 0.003, sv.Poisson(20), _CLIP, _CLIP, increment=0.2)),
    "LDP-DSBO": ("tuned-logistic", 4, sv.methods.LdpDsbo(0.1, 0.1, 0.1, _CLIP, _CLIP, sv.Poisson(20), _CLIP, 10.0)),
    "gradient tracking": ("logistic", 4, sv.methods.DpGradientTracking(Rates(0.4, 0.4, 0.1), _CLIP, sv.Poisson(20))),
    "DP bilevel": ("tuned-logistic", 1, sv.methods.DpBilevel(0.1, Descent(4, 0.3), _CLIP, _CLIP, sv.Full(), _CLIP)),
    "DpNewton": ("logistic", 1, sv.methods.DpNewton(_CLIP, _CLIP)),
}


def drawn(name: str, seed: int, epsilon: float) -> dict[str, Any]:
    """Return the arguments of one of twelve runs of a method: 4 agents (or 1) with 4 000 rows, 40 steps."""
    task, agents, method = METHODS[name]
    options = {"seed": seed} if task == "robust-logistic" else {}
    made = get(task)(Shape((5,), classes=2, agents=agents), **options)
    rows = sv.data.split(TABLES[seed], agents, seed=seed)
    parts = made.prepare(sv.data.levels(rows) if task == "tuned-logistic" else rows)
    network = sv.networks.erdos_renyi(agents, 0.5, seed=seed) if agents > 1 else None
    problem = {"problem": made.problem, "data": parts, "method": method, "network": network}
    return {**problem, "steps": 40, "seed": seed, "epsilon": epsilon}


def twelve(name: str) -> None:
    """Run four epsilons with three seeds, as members of one program and one after the other; print both times."""
    runs = [drawn(name, seed, epsilon) for epsilon in (1.0, 2.0, 4.0, 8.0) for seed in range(3)]
    took = []
    for way in (sv.run_many, lambda runs: [sv.run(**one) for one in runs]):
        kept = [{**one, "ledger": sv.Ledger()} for one in runs]
        began, cpu = time.perf_counter(), time.process_time()
        anew(partial(way, kept))
        took.append((time.perf_counter() - began, time.process_time() - cpu))
    (beside, cpu), (apart, cpu_apart) = took
    print(f"| {name} | {beside:.1f} | {apart:.1f} | {apart / beside:.1f} | {cpu:.1f} | {cpu_apart:.1f} |", flush=True)


def main() -> None:
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_compilation_cache", False)
    for title, run in (("A fit of 4 000 rows", fit), ("DPMixSGD, redrawn by a seed", redraw)):
        seeds: list[int] = []
        one = partial(run, seeds)
        turns = {"compiled anew": measure.Turns(partial(anew, one)), "shared": measure.Turns(one)}
        seen = measure.compare(title, turns, TURNS)
        seen.show()
        seen.want("shared", "compiled anew", at_least=5.0)
    print("\n**Four epsilons with three seeds, 40 steps, a ledger each, nothing remembered**\n")
    print("| | members, s | one after the other, s | times | members, CPU s | one after the other, CPU s |")
    print("|---|--:|--:|--:|--:|--:|")
    for name in METHODS:
        twelve(name)


if __name__ == "__main__":
    main()
