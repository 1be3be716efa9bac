"""Compute the exact hypergradient of a bilevel problem, without privacy: the ceiling of private methods, and an oracle.

With F(x) = f(x, y*(x)) and y*(x) the minimiser of g(x, .), implicit differentiation gives

    grad F = grad_x f - (d/dx grad_y g) z,    where z solves (Hessian of g in y) z = grad_y f.

Example: tune a ridge penalty without noise, on records that may be pooled:

>>> from sottovoce.problems import Bilevel
>>> def square(x, y, r):
...     return 0.5 * (y @ r["a"] - r["b"]) ** 2
>>> tune = Bilevel(square, square, x0=jnp.zeros(2), y0=jnp.zeros(2),
...                public_lower=lambda x, y: 0.5 * jnp.sum(jnp.exp(x) * y**2))
>>> records = {"a": jnp.eye(2), "b": jnp.asarray([1.0, 2.0])}
>>> f, g = bilevel_objectives(tune, records)
>>> y = minimise_lower(g, tune.x0, tune.y0, rate=0.5, steps=50)     # the mean of two records is halved: y* = b / 3
>>> [round(each, 3) for each in hypergradient(f, g, tune.x0, y).tolist()]
[0.074, 0.296]

These functions read records without clip or noise. They never run inside a step, and what they return is not private.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.scipy.sparse.linalg import cg

from sottovoce.problems.objectives import Bilevel
from sottovoce.trees import Tree, add, descend

Objective = Callable[[Tree, Tree], jax.Array]  # of x and y


def bilevel_objectives(problem: Bilevel, upper: Any, lower: Any = None) -> tuple[Objective, Objective]:
    """Return the two levels as functions of x and y: the mean over all records, plus the public term.

    `upper` and `lower` are record sets; without `lower` both levels read `upper`.

    >>> tune = Bilevel(lambda x, y, r: (y - r) ** 2, lambda x, y, r: (x - y) ** 2, x0=0.0, y0=0.0)
    >>> f, g = bilevel_objectives(tune, jnp.asarray([1.0, 3.0]))
    >>> float(f(0.0, 1.0)), float(g(0.0, 1.0))
    (2.0, 1.0)
    """

    def whole(loss: Callable[..., jax.Array], public: Callable[..., Any], records: Any) -> Objective:
        return lambda x, y: jnp.mean(jax.vmap(lambda r: loss(x, y, r))(records)) + public(x, y)

    return (
        whole(problem.upper, problem.public_upper, upper),
        whole(problem.lower, problem.public_lower, upper if lower is None else lower),
    )


def minimise_lower(lower: Objective, x: Tree, y: Tree, *, rate: float, steps: int) -> Tree:
    """Approach the lower minimiser y*(x) from y, by gradient descent.

    >>> float(minimise_lower(lambda x, y: 0.5 * (y - x) ** 2, 2.0, 0.0, rate=0.5, steps=2))
    1.5
    """
    y = jax.tree.map(jnp.asarray, y)
    return jax.lax.fori_loop(0, steps, lambda _, y: descend(y, rate, jax.grad(lower, 1)(x, y)), y)


def hypergradient(
    upper: Objective,
    lower: Objective,
    x: Tree,
    y: Tree,
    *,
    solve: Literal["cg", "neumann"] = "cg",
    steps: int = 100,
    rate: float | None = None,
) -> Tree:
    """Return the gradient of ``upper(x, y*(x))`` in x, by implicit differentiation at a given y.

    Args:
        upper: the upper objective, a function of x and y; `bilevel_objectives` makes it from a problem and its records.
        lower: the lower objective, strongly convex in y.
        x: where the gradient is taken.
        y: the lower minimiser at x (`minimise_lower`); an error in y is an error of the same order in the result.
        solve: how the linear system is solved: "cg", conjugate gradients, exact after as many steps as y has numbers;
            or "neumann", the series ``rate * sum_k (I - rate * Hessian)^k grad_y f`` with `steps` terms.
        steps: iterations at most ("cg" stops when it is done), or terms of the series.
        rate: of the Neumann series: at most one over the largest eigenvalue of the Hessian.

    >>> f, g = lambda x, y: 0.5 * (y - 3.0) ** 2, lambda x, y: 0.5 * (y - 2.0 * x) ** 2       # so F(x) = (2x - 3)^2 / 2
    >>> float(hypergradient(f, g, 1.0, 2.0)), float(hypergradient(f, g, 1.0, 2.0, solve="neumann", rate=1.0))
    (-2.0, -2.0)
    """
    if solve not in ("cg", "neumann"):
        raise ValueError(f'solve is {solve!r}: give "cg" or "neumann"')
    if (solve == "neumann") != (rate is not None):
        raise ValueError(
            f"solve is {solve!r} and rate is {rate}: the Neumann series needs a rate, and only it takes one"
        )
    x, y = jax.tree.map(jnp.asarray, (x, y))
    direct, right = jax.grad(upper, (0, 1))(x, y)
    # Linearised once: an iteration costs one product, not another evaluation of the objective.
    hessian = jax.linearize(lambda y: jax.grad(lower, 1)(x, y), y)[1]
    if rate is None:
        z, _ = cg(hessian, right, maxiter=steps)
    else:
        first = jax.tree.map(lambda b: rate * b, right)
        z = jax.lax.fori_loop(1, steps, lambda _, z: add(descend(z, rate, hessian(z)), first), first)
    through = jax.vjp(lambda x: jax.grad(lower, 1)(x, y), x)[1](z)[0]
    return jax.tree.map(jnp.subtract, direct, through)
