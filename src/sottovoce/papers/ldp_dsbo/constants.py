"""Estimate the constants that theories of bilevel optimisation assume, on records that may be read.

Chen and Wang (ICML 2024) assume Lipschitz constants of f, its gradient, and the gradient and Hessian of g (Assumption
2.2), and bounded variances of what one record gives (Assumption 2.3). They give no way to find them. Here they are
measured at points of one's choice, over all agents: the true constants of a region are at least the measured L and
sigma, and at most the measured mu. All derivatives are whole arrays, so this is for problems with few unknowns. Records
are read without clip or noise: what is returned is not private.

>>> def square(x, y, r):
...     return 0.5 * r * jnp.sum((y - x) ** 2)
>>> problem = Bilevel(lambda x, y, r: jnp.sum(y), square, x0=jnp.zeros(1), y0=jnp.zeros(1))
>>> part = {"upper": jnp.ones(2), "lower": jnp.asarray([1.0, 3.0])}
>>> found = estimate(problem, [part], [(jnp.zeros(1), jnp.ones(1))])
>>> found.L_f0, found.mu_g, found.L_g1, found.sigma_g2
(1.0, 2.0, 4.0, 2.0)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from sottovoce.problems import Bilevel
from sottovoce.trees import Tree


@dataclass(frozen=True)
class Constants:
    """Hold the constants of Assumptions 2.2 and 2.3.

    Assumption 2.2: f, grad f, grad g and hess g are L-Lipschitz, and g is mu_g-strongly convex in y. Assumption 2.3:
    deviations.

    Every constant is the worst over agents and points. `sigma_f1` is the deviation of one record's grad f, and
    `sigma_f2` of its second derivatives; `sigma_g1` to `sigma_g3` those of the first to third derivatives of g.
    """

    L_f0: float
    L_f1: float
    L_g1: float
    L_g2: float
    mu_g: float
    sigma_f1: float
    sigma_f2: float
    sigma_g1: float
    sigma_g2: float
    sigma_g3: float


def estimate(problem: Bilevel, parts: Sequence[Mapping[str, Any]], points: Sequence[tuple[Tree, Tree]]) -> Constants:
    """Return the largest constants that are seen at `points`, pairs (x, y).

    Each part holds one agent's records, "upper" and "lower". Second derivatives are measured by their largest singular
    value, third ones by the norm of all entries (which is at least the Lipschitz constant of the Hessian).
    """
    flat_x, shape_x = ravel_pytree(problem.x0)
    _, shape_y = ravel_pytree(problem.y0)
    cut = flat_x.size

    def of(loss: Callable[..., Any], public: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def one(v: jax.Array, record: Any) -> jax.Array:
            return jnp.asarray(loss(shape_x(v[:cut]), shape_y(v[cut:]), record), float)

        return one, lambda v: jnp.asarray(public(shape_x(v[:cut]), shape_y(v[cut:])), float)

    (f, public_f), (g, public_g) = of(problem.upper, problem.public_upper), of(problem.lower, problem.public_lower)

    @jax.jit
    def measured(at: jax.Array, upper: Any, lower: Any) -> dict[str, jax.Array]:
        f1, f2 = (_moments(d(f), d(public_f), at, upper) for d in (jax.grad, jax.hessian))
        g1, g2, g3 = (_moments(d(g), d(public_g), at, lower) for d in (jax.grad, jax.hessian, _third))
        return {
            "L_f0": jnp.linalg.norm(f1[0]),
            "L_f1": _largest(f2[0]),
            "L_g1": _largest(g2[0]),
            "L_g2": jnp.linalg.norm(g3[0]),
            "mu_g": jnp.linalg.eigvalsh(g2[0][cut:, cut:])[0],
            "sigma_f1": f1[1],
            "sigma_f2": f2[1],
            "sigma_g1": g1[1],
            "sigma_g2": g2[1],
            "sigma_g3": g3[1],
        }

    places = [jnp.concatenate([ravel_pytree(x)[0], ravel_pytree(y)[0]]).astype(float) for x, y in points]
    seen = [measured(at, part["upper"], part["lower"]) for at in places for part in parts]
    columns = {name: [float(each[name]) for each in seen] for name in seen[0]}
    return Constants(**{name: min(found) if name == "mu_g" else max(found) for name, found in columns.items()})


def _largest(symmetric: jax.Array) -> jax.Array:
    return jnp.abs(jnp.linalg.eigvalsh(symmetric)).max()


def _third(function: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jacfwd(jax.hessian(function))


def _moments(own: Any, public: Any, at: jax.Array, records: Any) -> tuple[jax.Array, jax.Array]:
    """Return the mean over the records plus the public part, and the root of the mean squared distance from it."""
    each = jax.vmap(own, in_axes=(None, 0))(at, records)
    mean = each.mean(axis=0)
    spread = jnp.sum((each - mean) ** 2, axis=tuple(range(1, each.ndim)))
    return mean + public(at), jnp.sqrt(spread.mean())
