"""The hypergradient of ridge regression with JAXopt in one jit: ``python -m benchmarks.peers.jaxopt_hypergradient``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jaxopt
from jaxopt import linear_solve

from benchmarks import measure
from benchmarks.peers import work


def contender() -> measure.Turns:
    a, b, c, d = map(jnp.asarray, work.ridge())
    x0 = jnp.zeros(work.RIDGE_FEATURES)

    def lower(y: Any, x: Any, a: Any, b: Any) -> Any:
        return 0.5 * jnp.mean((a @ y - b) ** 2) + 0.5 * jnp.sum(jnp.exp(x) * y**2)

    solver = jaxopt.GradientDescent(
        lower, maxiter=work.RIDGE_STEPS, tol=0.0, stepsize=0.5, acceleration=False, unroll=False,
        implicit_diff_solve=lambda matvec, b: linear_solve.solve_cg(matvec, b, maxiter=work.RIDGE_STEPS),
    )  # fmt: skip

    def outer(x: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        return 0.5 * jnp.mean((a @ solver.run(jnp.zeros_like(x), x, c, d).params - b) ** 2)

    gradient = jax.jit(jax.grad(outer))

    def run() -> Any:
        for _ in range(500):
            out = gradient(x0, a, b, c, d)
        return out

    return measure.Turns(run, 500)


if __name__ == "__main__":
    measure.serve(contender())
