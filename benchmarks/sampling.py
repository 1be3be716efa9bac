"""Batches: steps per second of random batches of 64 beside a whole batch of 64; exact noise; deployed steps.

All variants take turns in one run, so that a busy machine slows them alike; the ratio is taken turn by turn.
"""

import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.privacy.discrete import GridRelease
from sottovoce.privacy.sampling import Sampling
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.array import ArrayPlace
from sottovoce.runtime.layout import lay_out

FEATURES, BATCH, STEPS, TURNS = 124, 64, 300, 25


def logistic(w: jax.Array, record: dict) -> jax.Array:
    return -jax.nn.log_softmax(record["x"] @ w)[record["y"]]


def simulated(sampling: Sampling, n: int) -> Callable[[], float]:
    """Return a function that runs some steps of the compiled program and returns steps per second."""
    rng = np.random.default_rng(0)
    parts = [{"x": rng.normal(size=(n, FEATURES)).astype(np.float32), "y": rng.integers(0, 2, n).astype(np.int32)}]
    problem = sv.Minimize(logistic, jnp.zeros((FEATURES, 2)))
    method = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(1.0, 0.5), sampling=sampling)
    trace = account_of(method, parts, STEPS, problem=problem).trace
    place = ArrayPlace(trace, problem, lay_out(parts), root_key(0), 1024)
    state, first = place.begin(), 0

    def turn() -> float:
        nonlocal state, first
        began = time.perf_counter()
        state, _ = place.advance(state, first, STEPS)
        jax.block_until_ready(state)
        first += STEPS
        return STEPS / (time.perf_counter() - began)

    turn()
    return turn


def batches() -> None:
    turns = {"whole batch of 64": simulated(sv.Full(), BATCH)}
    for n in (2_000, 20_000, 1_000_000):
        turns[f"Poisson 64 of {n}"] = simulated(sv.Poisson(BATCH), n)
        turns[f"fixed 64 of {n}"] = simulated(sv.FixedSize(BATCH), n)
    seen = {name: [] for name in turns}
    for _ in range(TURNS):
        for name, turn in turns.items():
            seen[name].append(turn())
    whole = seen["whole batch of 64"]
    print(f"Logistic regression, {FEATURES} features, 2 classes, one agent, clipped and noised; {TURNS} turns")
    for name, speeds in seen.items():
        low, middle, high = statistics.quantiles([a / b for a, b in zip(speeds, whole)], n=4)
        print(f"  {name:24} {statistics.median(speeds):8.0f} steps/s   {middle:.2f} of whole ({low:.2f} to {high:.2f})")


def exact_numbers() -> None:
    print("Exact noise: numbers per second, one core")
    for mechanism in ("gaussian", "laplace"):
        for bits in (4, 16, 40):
            grid = GridRelease(1, 2**bits + 1, 1.0, 1, mechanism)
            grid.noise(1000)
            speeds = []
            for _ in range(5):
                began = time.perf_counter()
                grid.noise(1_000_000)
                speeds.append(1e6 / (time.perf_counter() - began))
            print(f"  {mechanism:9} scale 2^{bits:<3} {statistics.median(speeds) / 1e6:6.2f} million")


def deployed(name: str, problem: sv.Minimize, parts: list, method: sv.methods.DpSgd, steps: int, wanted: float) -> None:
    network = sv.networks.ring(len(parts)) if len(parts) > 1 else sv.networks.single()

    def seconds(count: int) -> float:
        began = time.perf_counter()
        sv.run(problem, parts, method, network=network, steps=count, noise="discrete")
        return time.perf_counter() - began

    seconds(1)
    spans = [(seconds(1 + steps) - seconds(1)) / steps for _ in range(3)]
    print(f"  {name:50} {1e3 * statistics.median(spans):8.1f} ms per step (at most {1e3 * wanted:.0f} wanted)")


def deployed_steps() -> None:
    print("Deployed steps: exact noise, whole-number sums, one thread per agent")
    rng = np.random.default_rng(0)
    small = [
        {"x": rng.normal(size=(400, 123)).astype(np.float32), "y": rng.integers(0, 2, 400).astype(np.int32)}
        for _ in range(5)
    ]
    release, problem = sv.Release(1.0, 0.5), sv.Minimize(logistic, jnp.zeros((123, 2)))
    for sampling in (sv.Full(), sv.Poisson(64)):
        method = sv.methods.DpSgd(rate=0.1, gradient=release, sampling=sampling)
        deployed(f"5 agents, 400 records, 123 features, {sampling}", problem, small, method, 40, 0.015)

    def network(x: dict, record: dict) -> jax.Array:
        hidden = jnp.tanh(record["x"] @ x["first"])
        return -jax.nn.log_softmax(hidden @ x["second"])[record["y"]]

    weights = {
        "first": jnp.asarray(rng.normal(size=(784, 252)) / 28, jnp.float32),
        "second": jnp.asarray(rng.normal(size=(252, 10)) / 16, jnp.float32),
    }
    part = [{"x": rng.normal(size=(2000, 784)).astype(np.float32), "y": rng.integers(0, 10, 2000).astype(np.int32)}]
    method = sv.methods.DpSgd(rate=0.1, gradient=release, sampling=sv.FixedSize(256))
    deployed("200 000 parameters, one agent, 256 records", sv.Minimize(network, weights), part, method, 4, 1.0)


if __name__ == "__main__":
    batches()
    exact_numbers()
    deployed_steps()
