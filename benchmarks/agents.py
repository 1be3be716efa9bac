"""Many agents and large tables: steps of one thousand and ten thousand agents, set-up time, and peak memory."""

import time

import jax
import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from benchmarks import measure
from benchmarks.programs import program

DIMENSION, RECORDS, STEPS = 100, 20, 20


def task(agents: int):
    rng = np.random.default_rng(0)
    parts = [
        {
            "features": rng.normal(size=(RECORDS, DIMENSION)).astype(np.float32),
            "label": rng.integers(0, 2, RECORDS).astype(np.float32),
        }
        for _ in range(agents)
    ]
    method = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(1.0, 0.1), sampling=sv.Poisson(10))
    return sv.Minimize(loss, jnp.zeros(DIMENSION)), parts, method, sv.networks.ring(agents)


def loss(x: jax.Array, r: dict) -> jax.Array:
    margin = r["features"] @ x
    return jnp.logaddexp(0.0, margin) - r["label"] * margin


def steps() -> None:
    contenders = {}
    for agents in (1_000, 10_000):
        problem, parts, method, network = task(agents)
        contenders[f"{agents} agents"] = measure.Turns(program(problem, parts, method, STEPS, network), STEPS)
    title = f"Ring, {RECORDS} records of {DIMENSION} features per agent, Poisson batches of 10, clipped and noised"
    seen = measure.compare(title, contenders, turns=9)
    seen.show()
    slower = 1 / seen.ratio("10000 agents", "1000 agents")[1]
    measure.want_at_most("a step of 10 000 agents, times one of 1 000", slower, 10.5)


def first_result() -> None:
    problem, parts, method, network = task(10_000)
    began, cpu = time.perf_counter(), time.process_time()
    sv.run(problem, parts, method, network=network, steps=1)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    measure.want_at_most(
        "first result of 10 000 parties with arrays of their own: seconds", took, 10.0, f" (CPU {cpu:.1f} s)"
    )


def large_tables() -> None:
    """Ten parties with 100 000 records of 100 features each: what a run takes beyond the records themselves."""
    rng = np.random.default_rng(0)
    parts = [
        {"features": rng.random((100_000, DIMENSION), np.float32), "label": np.ones(100_000, np.float32)}
        for _ in range(10)
    ]
    data = sum(leaf.nbytes for part in parts for leaf in part.values()) / 2**20
    before = measure.peak_mib()
    problem, _, method, network = task(10)
    began = time.perf_counter()
    sv.run(problem, parts, method, network=network, steps=1)
    took = time.perf_counter() - began
    measure.want_at_most("1 000 000 records in 10 parties, seconds to the first result", took, 5.0)
    peak = (measure.peak_mib() - before + data) / data
    measure.want_at_most("peak memory, times the data", peak, 2.5)


if __name__ == "__main__":
    steps()
    first_result()
    large_tables()
