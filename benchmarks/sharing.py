"""Fits and runs that share a compiled program, against ones that compile anew: ``python -m benchmarks.sharing``."""

from __future__ import annotations

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
from sottovoce.problems.tasks import Shape, get
from sottovoce.runtime import array

TURNS = 5
TABLES = [logistic(4000, 5, seed=seed) for seed in range(3)]


def anew(run: Callable[[], Any]) -> Any:
    """Run with nothing remembered, as a first run in a process does."""
    for remembered in (base.task_of, trace.remembered, content.remembered_keys, array.compiled):
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


if __name__ == "__main__":
    main()
