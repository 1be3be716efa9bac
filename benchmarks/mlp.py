"""An MLP 784-256-10 on Poisson batches of 256 of 10 000 records, beside a plain step with the same noise.

The plain step is by hand: fixed batches of 256 from random places, one gradient of the mean loss, no clip, and Threefry
noise on every weight inside the loop, drawn in the fastest way found.
"""

import jax
import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from benchmarks import measure
from benchmarks.clipping import mlp
from benchmarks.programs import program
from sottovoce.privacy import threefry
from sottovoce.runtime.keys import root_key

RECORDS, BATCH, STEPS, RATE, NOISE = 10_000, 256, 10, 0.1, 0.01


def loss(layers, record):
    x = record["x"]
    *hidden, (weight, bias) = layers
    for w, b in hidden:
        x = jax.nn.relu(x @ w + b)
    return -jax.nn.log_softmax(x @ weight + bias)[record["y"]]


def plain(start, records, noisy: bool):
    """The plain loop: the batch is looked up by uniform row numbers, which is the least a random batch takes."""
    key = root_key(0)

    @jax.jit
    def run(at, first, records):
        def step(at, t):
            now = threefry.fold(key, t)
            rows = (threefry.words(now, (BATCH,), stream=99) % RECORDS).astype(jnp.int32)
            batch = jax.tree.map(lambda leaf: leaf[rows], records)
            slope = jax.grad(lambda at: jnp.mean(jax.vmap(loss, (None, 0))(at, batch)))(at)
            leaves, structure = jax.tree.flatten(slope)
            if noisy:
                leaves = [g + NOISE * threefry.normal(now, g.shape, stream) for stream, g in enumerate(leaves)]
            return jax.tree.map(lambda p, g: p - RATE * g, at, jax.tree.unflatten(structure, leaves)), None

        return jax.lax.scan(step, at, first + jnp.arange(STEPS))[0]

    state, first = start, 0

    def turn():
        nonlocal state, first
        state = run(state, first, records)
        first += STEPS
        return state

    return turn


def main() -> None:
    rng = np.random.default_rng(0)
    records = {
        "x": rng.normal(size=(RECORDS, 784)).astype(np.float32),
        "y": rng.integers(0, 10, RECORDS).astype(np.int32),
    }
    start = mlp(jax.random.key(0))
    problem, release = sv.Minimize(loss, start), sv.Release(clip=1.0, noise=NOISE)
    samplings = {"Poisson": sv.Poisson(BATCH), "fixed": sv.FixedSize(BATCH)}
    on_device = jax.tree.map(jnp.asarray, records)
    contenders = {
        "plain with noise": measure.Turns(plain(start, on_device, noisy=True), STEPS),
        **{
            f"sottovoce, {name}": measure.Turns(
                program(problem, [records], sv.methods.DpSgd(RATE, release, sampling), STEPS), STEPS
            )
            for name, sampling in samplings.items()
        },
        "plain without noise": measure.Turns(plain(start, on_device, noisy=False), STEPS),
    }
    seen = measure.compare(f"MLP 784-256-10, batches of {BATCH} of {RECORDS}", contenders, turns=25)
    seen.show()
    seen.want("sottovoce, Poisson", "plain with noise", at_least=0.8)


if __name__ == "__main__":
    main()
