"""Compute the directions of the penalty approach to bilevel problems: gradients only, one scalar per record.

With yg the minimiser of g(x, .), yl that of f + penalty * g and w = penalty * (yl - yg) the *gap*, the hypergradient
is, up to O(1/penalty), grad_x f(x, yl) + penalty * (grad_x g(x, yl) - grad_x g(x, yg)). Example: yg = 1, a gap of 4 and
a penalty of 2 give yl = 1 + 4 / 2 = 3.

>>> beside(1.0, 4.0, 2.0)
3.0
"""

from typing import Any

import jax
import jax.numpy as jnp

from sottovoce.methods.agent import Agent
from sottovoce.methods.bilevel import toward_y
from sottovoce.papers.dp_bilevel.descent import Slope
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Sampling
from sottovoce.problems import Bilevel, along, public_along
from sottovoce.trees import Tree


def beside(y: Tree, gap: Tree, penalty: Any) -> Tree:
    """Return yl from yg and the gap: ``y + gap / penalty``.

    >>> beside(0.0, 1.0, 4.0)
    0.25
    """
    return jax.tree.map(lambda a, w: a + w / penalty, y, gap)


def lower_slope(release: Release, sampling: Sampling, problem: Bilevel, x: Tree) -> Slope:
    """Return the direction of yg: the gradient of g(x, .)."""
    return lambda y, agent: toward_y(agent.release, release, problem, x, y, agent.sample(sampling))


def penalised_slope(release: Release, sampling: Sampling, problem: Bilevel, x: Tree, penalty: Any) -> Slope:
    """Return the direction of yl: the gradient of f/penalty + g.

    It is the paper's penalised problem f + penalty * g, scaled so that its noise compares with that of g.
    """
    return lambda y, agent: agent.release(
        release,
        upper=lambda y, r: problem.upper(x, y, r) / penalty,
        lower=lambda y, r: problem.lower(x, y, r),
        at=y,
        batch=agent.sample(sampling),
        public=lambda y: problem.public_upper(x, y) / penalty + problem.public_lower(x, y),
    )


def gap_slope(release: Release, sampling: Sampling, problem: Bilevel, x: Tree, y: Tree, penalty: Any) -> Slope:
    """Return the direction of the gap w: grad f(y + w/penalty) + penalty * (grad g(y + w/penalty) - grad g(y)).

    It is the gradient of the penalised problem as a function of w, without its term that is linear in g at y, times
    penalty^2.
    """

    def upper(w: Tree, r: Any) -> jax.Array:
        return penalty * problem.upper(x, beside(y, w, penalty), r)

    def lower(w: Tree, r: Any) -> jax.Array:
        return penalty**2 * problem.lower(x, beside(y, w, penalty), r) - penalty * along(problem.lower, x, y, r, w)

    def public(w: Tree) -> Any:
        z = beside(y, w, penalty)
        curved = penalty**2 * problem.public_lower(x, z) - penalty * public_along(problem.public_lower, x, y, w)
        return curved + penalty * problem.public_upper(x, z)

    return lambda w, agent: agent.release(
        release, upper=upper, lower=lower, at=w, batch=agent.sample(sampling), public=public
    )


def hypergradient(
    release: Release | None,
    sampling: Sampling,
    problem: Bilevel,
    x: Tree,
    yg: Tree,
    yl: Tree,
    penalty: Any,
    agent: Agent,
) -> Tree:
    """Return grad_x f(x, yl) + penalty * (grad_x g(x, yl) - grad_x g(x, yg)), released.

    Without a release it is that of the public terms only.
    """

    def public(x: Tree) -> Any:
        return problem.public_upper(x, yl) + penalty * (problem.public_lower(x, yl) - problem.public_lower(x, yg))

    if release is None:
        return jax.grad(lambda x: jnp.asarray(public(x), float))(x)
    return agent.release(
        release,
        upper=lambda x, r: problem.upper(x, yl, r),
        lower=lambda x, r: penalty * (problem.lower(x, yl, r) - problem.lower(x, yg, r)),
        at=x,
        batch=agent.sample(sampling, "x"),
        public=public,
    )
