"""A ring of 20 agents, 100 records of 123 features each: DP-SGD and gradient tracking beside dense loops by hand.

The limits are loops for this problem alone: one product per gradient, a dense matrix for the network, no clip. Their
noise is the same Threefry noise, drawn in the fastest way found: inside the loop, with the rounds written out. NumPy
does the same arithmetic with its own generator.
"""

import jax
import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from benchmarks import measure
from benchmarks.programs import program
from sottovoce.papers.gradient_tracking.theory import Rates
from sottovoce.privacy import threefry
from sottovoce.runtime.keys import root_key

AGENTS, RECORDS, FEATURES, STEPS = 20, 100, 123, 200
RATE, NOISE = 0.1, 0.1


def logistic(x: jax.Array, record: dict) -> jax.Array:
    margin = record["x"] @ x
    return jnp.logaddexp(0.0, margin) - record["y"] * margin


def dense(features, labels, weights, tracking: bool, noisy: bool):
    """The loop by hand: everything an array, all agents at once."""
    key = root_key(0)

    def gradient(x, features, labels, t):
        margins = jnp.einsum("arf,af->ar", features, x)
        slope = jnp.einsum("arf,ar->af", features, jax.nn.sigmoid(margins) - labels) / RECORDS
        return slope + NOISE * threefry.normal(threefry.fold(key, t), slope.shape) if noisy else slope

    @jax.jit
    def run(state, first, features, labels, weights):
        def step(state, t):
            x, y, g = state
            slope = gradient(x, features, labels, t)
            if not tracking:
                return (weights @ (x - RATE * slope), y, g), None
            y = weights @ y + slope - g
            return (weights @ x - RATE * y, y, slope), None

        return jax.lax.scan(step, state, first + jnp.arange(STEPS))[0]

    state, first = tuple(jnp.zeros((AGENTS, FEATURES)) for _ in range(3)), 0

    def turn():
        nonlocal state, first
        state = run(state, first, features, labels, weights)
        first += STEPS
        return state

    return turn


def by_numpy(features, labels, weights, tracking: bool, steps: int, together: bool):
    """The same loop in NumPy, with noise: all agents' gradients in one product, or agent by agent."""
    rng = np.random.default_rng(0)
    x, y, g = (np.zeros((AGENTS, FEATURES), np.float32) for _ in range(3))

    def gradients():
        if together:
            margins = (features @ x[:, :, None])[:, :, 0]
            return (((1 / (1 + np.exp(-margins))) - labels)[:, None] @ features)[:, 0] / RECORDS
        return np.stack(
            [(1 / (1 + np.exp(-own @ at)) - said) @ own / RECORDS for own, said, at in zip(features, labels, x)]
        )

    def turn():
        nonlocal x, y, g
        for _ in range(steps):
            slope = gradients() + NOISE * rng.standard_normal(x.shape, np.float32)
            if tracking:
                y = weights @ y + slope - g
                x, g = weights @ x - RATE * y, slope
            else:
                x = weights @ (x - RATE * slope)

    return turn


def main() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(AGENTS, RECORDS, FEATURES)).astype(np.float32)
    labels = rng.integers(0, 2, (AGENTS, RECORDS)).astype(np.float32)
    parts = [{"x": a, "y": b} for a, b in zip(features, labels)]
    network, problem = sv.networks.ring(AGENTS), sv.Minimize(logistic, jnp.zeros(FEATURES))
    release, full = sv.Release(clip=1.0, noise=NOISE), sv.Full()
    methods = {
        "DP-SGD": sv.methods.DpSgd(RATE, release, full),
        "gradient tracking": sv.methods.DpGradientTracking(Rates(1.0, 1.0, RATE), release, full),
    }
    weights = np.asarray(network.matrix("mix").todense(), np.float32)
    for name, method in methods.items():
        given, tracking = tuple(map(jnp.asarray, (features, labels, weights))), name != "DP-SGD"
        contenders = {
            "dense": measure.Turns(dense(*given, tracking, noisy=True), STEPS),
            "sottovoce": measure.Turns(program(problem, parts, method, STEPS, network), STEPS),
            "dense, no noise": measure.Turns(dense(*given, tracking, noisy=False), STEPS),
            "NumPy": measure.Turns(by_numpy(features, labels, weights, tracking, 20, together=True), 20),
            "NumPy, agent by agent": measure.Turns(
                by_numpy(features, labels, weights, tracking, 20, together=False), 20
            ),
        }
        seen = measure.compare(f"{name} on a ring of {AGENTS} x {RECORDS} x {FEATURES}", contenders, turns=41)
        seen.show()
        seen.want("sottovoce", "dense", at_least=0.75)
        seen.want("sottovoce", "NumPy, agent by agent", at_least=4)


if __name__ == "__main__":
    main()
