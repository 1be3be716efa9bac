"""Many agents: steps per second and peak memory with one thousand and ten thousand agents on a ring."""

import resource
import time

import jax
import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.runtime.array import ArrayPlace
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import lay_out

DIMENSION, RECORDS, STEPS = 100, 20, 20


def steps_per_second(agents: int) -> float:
    rng = np.random.default_rng(0)
    records = {
        "features": rng.normal(size=(agents * RECORDS, DIMENSION)).astype(np.float32),
        "label": rng.integers(0, 2, agents * RECORDS).astype(np.float32),
    }
    parts = [sv.data.Part(records, np.arange(i * RECORDS, (i + 1) * RECORDS)) for i in range(agents)]

    def loss(x: jax.Array, r: dict) -> jax.Array:
        margin = r["features"] @ x
        return jnp.logaddexp(0.0, margin) - r["label"] * margin

    method = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(1.0, 0.1), sampling=sv.Poisson(10))
    problem = sv.Minimize(loss, jnp.zeros(DIMENSION))
    trace = account_of(method, parts, STEPS, sv.networks.ring(agents), problem=problem).trace
    place = ArrayPlace(trace, problem, lay_out(parts), root_key(0), 1024)
    state, _ = place.advance(place.begin(), 0, STEPS)
    jax.block_until_ready(state)
    began = time.perf_counter()
    state, broken = place.advance(state, 0, STEPS)
    jax.block_until_ready((state, broken))
    return STEPS / (time.perf_counter() - began)


def main() -> None:
    few = steps_per_second(1_000)
    many = steps_per_second(10_000)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print("Logistic regression, 100 features, 20 records per agent, ring, Poisson batches of 10, clipped and noised")
    print(f"  1 000 agents   {few:8.1f} steps/s")
    print(f"  10 000 agents  {many:8.1f} steps/s   {few / many:.1f} times slower (at most 12 wanted)")
    print(f"  peak memory    {peak:8.2f} GB")


if __name__ == "__main__":
    main()
