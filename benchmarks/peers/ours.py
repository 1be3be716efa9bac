"""sottovoce's contenders: ``python -m benchmarks.peers.ours NAME``. They run in the project's own environment."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from benchmarks import measure
from benchmarks.peers import work
from benchmarks.programs import program
from sottovoce.problems import bilevel_objectives, hypergradient, minimise_lower, models, tasks

Program = tuple[Callable[[], Any], int]


def training(name: str, private: bool) -> Program:
    """Return DP-SGD, or plain SGD with the same Poisson batches, the same compiled loop, no clip and no noise."""
    job = work.TRAINING[name]
    features, label = work.records(name)
    shape = tasks.Shape(job.features, job.classes, 1)
    if name == "mlp":
        problem = tasks.vision.classification(models.mlp(job.features, job.classes, hidden=(256,))).problem
    else:
        problem = tasks.get("softmax" if name == "logistic" else name)(shape).problem
    release = sv.Release(job.clip, job.noise) if private else sv.Release.open()
    method = sv.methods.DpSgd(rate=job.rate, gradient=release, sampling=sv.Poisson(job.batch))
    return program(problem, [{"features": features, "label": label}], method, job.steps), job.steps


def ridge(solve: str) -> Program:
    """Return the exact hypergradient of ridge regression, lower descent and linear solve in one jit."""

    def square(x: Any, y: Any, r: Any) -> jax.Array:
        return 0.5 * (r["a"] @ y - r["b"]) ** 2

    tune = sv.Bilevel(
        square, square, jnp.zeros(work.RIDGE_FEATURES), jnp.zeros(work.RIDGE_FEATURES),
        public_lower=lambda x, y: 0.5 * jnp.sum(jnp.exp(x) * y**2),
    )  # fmt: skip
    a, b, c, d = map(jnp.asarray, work.ridge())
    how: dict[str, Any] = {"solve": solve} | ({"rate": 0.5} if solve == "neumann" else {})

    @jax.jit
    def gradient(x: jax.Array, upper: Any, lower: Any) -> jax.Array:
        f, g = bilevel_objectives(tune, upper, lower)
        y = minimise_lower(g, x, tune.y0, rate=0.5, steps=work.RIDGE_STEPS)
        return hypergradient(f, g, x, y, steps=work.RIDGE_STEPS, **how)

    return repeated(lambda: gradient(tune.x0, {"a": a, "b": b}, {"a": c, "b": d}), 500), 500


def ldp_dsbo() -> Program:
    """Return LDP-DSBO with two releases; x moves by its public terms."""
    features, label = work.pictures()
    parts = [{"features": f, "label": y} for f, y in zip(features, label)]
    problem = tasks.get("tuned-softmax")(tasks.Shape((784,), 10, work.DSBO_AGENTS)).problem
    noisy, rate = sv.Release(work.DSBO_CLIP, work.DSBO_NOISE), work.DSBO_RATE
    sampling = sv.Poisson(work.DSBO_BATCH)
    method = sv.methods.LdpDsbo(rate, rate, rate, noisy, noisy, sampling, z_radius=work.DSBO_RADIUS)
    network = sv.networks.ring(work.DSBO_AGENTS, work.DSBO_WEIGHT)
    return program(problem, parts, method, work.DSBO_STEPS, network), work.DSBO_STEPS


def dp_mix_sgd(same: bool = False) -> Program:
    """Return DPMixSGD, sound, clipped and noised; with `same`, without drawing and looking up batches."""
    parts = []
    for agent in range(work.MIX_AGENTS):
        features, label = (values[: work.MIX_BATCH] if same else values for values in work.adults(agent))
        parts.append({"features": features, "label": label, "party": np.full(len(label), agent, np.int32)})
    problem = tasks.get("robust-logistic")(tasks.Shape((work.MIX_FEATURES,), 2, work.MIX_AGENTS)).problem
    message, sampling = sv.Release(work.MIX_CLIP, work.MIX_NOISE), sv.Full() if same else sv.Poisson(work.MIX_BATCH)
    method = sv.methods.DpMixSgd(work.MIX_RATE, work.MIX_RATE, sampling, message, message, work.MIX_BETA, work.MIX_BETA)
    return program(problem, parts, method, work.MIX_STEPS, sv.networks.ring(work.MIX_AGENTS)), work.MIX_STEPS


def repeated(call: Callable[[], Any], times: int) -> Callable[[], Any]:
    """Return a function that calls `times` times."""

    def run() -> Any:
        for _ in range(times):
            out = call()
        return out

    return run


def made(name: str) -> Program:
    """Build a contender by name."""
    if name in work.TRAINING:
        return training(name, private=True)
    if name.removesuffix("-plain") in work.TRAINING:
        return training(name.removesuffix("-plain"), private=False)
    others = {"cg": lambda: ridge("cg"), "neumann": lambda: ridge("neumann"), "ldp-dsbo": ldp_dsbo}
    return (others | {"mix": dp_mix_sgd, "mix-same": lambda: dp_mix_sgd(same=True)})[name]()


if __name__ == "__main__":
    measure.serve(measure.Turns(*made(sys.argv[1])))
