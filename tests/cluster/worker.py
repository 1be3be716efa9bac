"""One process of a cluster, for tests: ``python -m tests.cluster.worker JOB OUT ADDRESS PROCESSES RANK``."""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from sottovoce.runtime import cluster

SIZES = (7, 4, 5, 8, 4)
UNITS = [np.arange(n) // 2 for n in SIZES]
ROWS = [np.random.default_rng(i).normal(size=(n, 3)).astype(np.float32) + i for i, n in enumerate(SIZES)]
PARTS = [sv.data.Part(rows, np.arange(len(rows)), unit) for rows, unit in zip(ROWS, UNITS)]
PROBLEM = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), np.zeros(3, np.float32))
METHOD = sv.methods.DpSgd(0.2, sv.Release(1.0, 0.1), sv.Poisson(1))
RING = sv.networks.ring(5)


def size(x: Any) -> dict[str, jax.Array]:
    return {"size": jnp.sum(x**2)}


def small(out: Path | None = None, **how: Any) -> Any:
    """Five agents of unequal sizes, with units: they do not spread evenly."""
    return sv.run(PROBLEM, PARTS, METHOD, network=RING, evaluate=size, out=out, **{"steps": 3, "every": 1, **how})


def long(out: Path) -> Any:
    """Long enough to be killed in the middle; goes on where it was."""
    return small(out, steps=3000, every=20, resume=True)


def star() -> Any:
    """An agent that hears all others, who are in three processes: the sum goes edge by edge."""
    rows = [np.full((4, 3), i, np.float32) for i in range(20)]
    return sv.run(PROBLEM, rows, METHOD, network=sv.networks.star(20), steps=3, every=1, evaluate=size)


def everything() -> dict[str, np.ndarray]:
    """Every example of the contract, with clipping, noise and batches: the average, and the own agents' states."""
    from tests.methods import contract
    from tests.methods.test_contract import EXAMPLES

    found = {}
    for name, example in EXAMPLES.items():
        method = contract.noisy(example)
        result = contract.run(method, contract.case_for(method), contract.STEPS)
        for what, tree in {"average": (result.x, result.y), "agents": result.agents}.items():
            for number, leaf in enumerate(jax.tree.leaves(tree)):
                found[f"{name}/{what}/{number}"] = np.asarray(leaf)
        found[f"{name}/consensus"] = result.history["consensus"]
    return found


def main(job: str, out: str, address: str, processes: int, rank: int) -> None:
    joined = cluster.join(address, processes, rank, cluster.facts(job), wait=60.0)
    folder = Path(out)
    if job == "contract":
        found = everything()
        np.savez(folder / f"found-{rank}.npz", **found)
    else:
        result = star() if job == "star" else {"small": small, "long": long}[job](folder)
        parties = 20 if job == "star" else len(SIZES)
        assert len(jax.tree.leaves(result.agents)[0]) < parties  # the others' states are elsewhere
        found = {"x": result.x, **{name: values for name, values in result.history.items() if name != "seconds"}}
    if joined.leads:
        np.savez(folder / "found.npz", **found)
    cluster.finish(joined)


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
