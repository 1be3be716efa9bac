"""Batches: steps per second of random batches of 64 beside a whole batch of 64; exact noise; deployed steps."""

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from benchmarks import measure
from benchmarks.programs import program
from sottovoce.privacy.discrete import GridRelease
from sottovoce.privacy.sampling import Sampling

FEATURES, BATCH, STEPS, TURNS = 124, 64, 300, 41


def logistic(w: jax.Array, record: dict) -> jax.Array:
    return -jax.nn.log_softmax(record["x"] @ w)[record["y"]]


def simulated(sampling: Sampling, n: int) -> measure.Turns:
    rng = np.random.default_rng(0)
    parts = [{"x": rng.normal(size=(n, FEATURES)).astype(np.float32), "y": rng.integers(0, 2, n).astype(np.int32)}]
    problem = sv.Minimize(logistic, jnp.zeros((FEATURES, 2)))
    method = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(1.0, 0.5), sampling=sampling)
    return measure.Turns(program(problem, parts, method, STEPS), STEPS)


def looked_up(rows: int, n: int) -> measure.Turns:
    """The least that a random batch takes: its rows at random places of the data, and nothing done with them."""
    pool = jnp.asarray(np.random.default_rng(0).normal(size=(n, FEATURES)).astype(np.float32))
    places = jnp.asarray(np.random.default_rng(1).integers(0, n, (1000, rows)))

    @jax.jit
    def run(pool, places):
        def step(total, t):
            found = pool.at[places[t % 1000]].get(mode="promise_in_bounds")
            return total + jnp.max(found, axis=0), None

        return jax.lax.scan(step, jnp.zeros(FEATURES), jnp.arange(STEPS))[0]

    return measure.Turns(lambda: run(pool, places), STEPS)


def batches() -> None:
    contenders = {"whole 64": simulated(sv.Full(), BATCH)}
    for n in (20_000, 1_000_000):
        contenders[f"Poisson 64 of {n}"] = simulated(sv.Poisson(BATCH), n)
        contenders[f"fixed 64 of {n}"] = simulated(sv.FixedSize(BATCH), n)
        contenders[f"80 rows of {n}, looked up only"] = looked_up(80, n)
    title = f"Logistic regression, {FEATURES} features, 2 classes, one agent, clipped and noised"
    seen = measure.compare(title, contenders, turns=TURNS)
    seen.show()
    for n, wanted in ((20_000, 0.5), (1_000_000, 0.3)):
        for kind in ("Poisson", "fixed"):
            seen.want(f"{kind} 64 of {n}", "whole 64", at_least=wanted)
    print()


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
