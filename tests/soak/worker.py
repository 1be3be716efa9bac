"""Processes to be killed: a parent that has imported the package forks a child for each job.

The parent runs no JAX program, so that a fork is sound; a child starts at once instead of importing for seconds.
Commands come as JSON lines: a job (see `JOBS`) is answered with the child's number, `{"wait": number}` with its exit
status.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import sottovoce as sv
from sottovoce import files
from sottovoce.privacy.labels import Fresh, Labels
from sottovoce.runtime import loop

STEPS = 24
WRITES = {"rows": 38, "columns": 16, "discrete": 140, "summed": 140}  # about, in a whole run
SIZE = 40


def problem() -> Any:
    """Return the mean of two numbers as a problem."""
    import jax.numpy as jnp

    return sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(2))


def data(parties: int) -> list[np.ndarray]:
    """Return the same records in every process."""
    return [np.random.default_rng(seed).normal(size=(SIZE, 2)).astype(np.float32) for seed in range(parties)]


def sgd() -> Any:
    """Return the method of all jobs over rows."""
    return sv.methods.DpSgd(rate=0.1, gradient=sv.Release(1.0, 0.1), sampling=sv.Full())


def rows(out: str, resume: bool = False, **options: Any) -> Any:
    """Run a simulation of three parties."""
    network = sv.networks.ring(3)
    return sv.run(problem(), data(3), sgd(), network=network, steps=STEPS, every=2, out=out, resume=resume, **options)


def discrete(out: str, resume: bool = False) -> Any:
    """Run as deployed: exact noise, a ledger per party."""
    return rows(out, resume, noise="discrete")


def summed(out: str, resume: bool = False) -> Any:
    """Run three parties that add up as deployed."""
    how: dict[str, Any] = {"trust": sv.Sum(1), "noise": "discrete", "steps": STEPS, "every": 2}
    return sv.run(problem(), data(3), sgd(), out=out, resume=resume, **how)


def columns(out: str, resume: bool = False) -> Any:
    """Run a table with fresh label noise, whose labels have a store beside the run."""
    import jax.numpy as jnp

    square = sv.Vertical(
        lambda x, a: a * x,
        lambda y, e: e @ y,
        lambda s: jnp.concatenate([0.5 * s**2, 0.5 * (s - 1) ** 2], axis=-1),
        [jnp.ones(2)] * 2,
        [jnp.zeros((2, 1))] * 2,
    )
    ids = [f"{out} {row}" for row in range(SIZE)]  # other rows in each folder: one set of labels has one store
    labels = Labels(np.arange(SIZE) % 2, 2, seed=0, path=out + ".labels.npz", ids=ids)
    method = sv.methods.Bambi(2, 10, 0.1, 0.1, Fresh(1.0))
    return sv.run(square, sv.Table(sv.Columns(data(2)), labels), method, steps=STEPS, every=2, out=out, resume=resume)


def shared(out: str, seed: int) -> Any:
    """Run one party alone, with a ledger that other processes use too."""
    ledger = sv.Ledger(Path(out).parent / "shared.jsonl")
    return sv.run(problem(), data(1), sgd(), steps=STEPS, every=2, out=out, ledger=ledger, seed=seed)


JOBS: dict[str, Callable[..., Any]] = {
    "rows": rows, "discrete": discrete, "summed": summed, "columns": columns, "shared": shared,
}  # fmt: skip


def save_always() -> None:
    """Store a checkpoint after every stretch."""
    loop._SAVE_SECONDS = 0.0


def kill_at_write(number: int, part: float) -> None:
    """Kill this process in its write number `number`, after `part` of the bytes."""
    put, seen = files._put, [0]

    def dying(descriptor: int, content: bytes) -> None:
        seen[0] += 1
        if seen[0] == number:
            os.write(descriptor, content[: round(part * len(content))])
            os.kill(os.getpid(), signal.SIGKILL)
        put(descriptor, content)

    files._put = dying


def _child(job: dict[str, Any]) -> None:
    """Do a job and write what came of it beside its folder."""
    name, at, told = job.pop("job"), job.pop("kill", None), Path(job.pop("told"))
    save_always()
    if at is not None:
        kill_at_write(*at)
    try:
        JOBS[name](**job)
        said = "finished"
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
    told.write_text(said)
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    """Answer commands until there are no more."""
    import warnings

    warnings.simplefilter("ignore")  # JAX warns of forks, because its threads would not survive one: there are none yet
    for line in sys.stdin:
        command = json.loads(line)
        if "wait" in command:
            answer = os.waitpid(command["wait"], 0)[1]
        else:
            answer = os.fork()
            if answer == 0:
                _child(command)
        print(answer, flush=True)


if __name__ == "__main__":
    main()
