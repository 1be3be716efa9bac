"""Provide what bilevel methods share: the directions of y, z and x, and problems whose records never meet x.

With f the upper and g the lower loss, z stands for the Hessian-inverse-vector product (hess_yy g)^-1 grad_y f. Each
direction is the gradient of one scalar per record: the derivative of g along z takes the place of a product of z with a
second derivative. So each direction can pass the gate, and no matrix is formed.

Example with f = x y and g = (y - x)^2 at x = 1, y = 3, z = 5, and a stand-in for the gate that reads one record:

>>> def read(release, at, upper=lambda v, r: 0.0, lower=lambda v, r: 0.0, **rest):
...     return float(jax.grad(lambda v: upper(v, None) + lower(v, None))(at))
>>> problem = Bilevel(lambda x, y, r: x * y, lambda x, y, r: (y - x) ** 2, x0=1.0, y0=3.0)
>>> toward_y(read, None, problem, 1.0, 3.0, None)       # grad_y g = 2 (y - x)
4.0
>>> toward_z(read, None, problem, 1.0, 3.0, 5.0, None)  # hess_yy g z - grad_y f = 2 z - x
9.0
>>> toward_x(read, None, problem, 1.0, 3.0, 5.0, None)  # grad_x f - hess_xy g z = y + 2 z
13.0
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sottovoce.methods.agent import Batch
from sottovoce.methods.design import Design, Reader
from sottovoce.privacy.release import Release
from sottovoce.problems import Bilevel, along, public_along, sets
from sottovoce.trees import Tree


def toward_y(read: Reader, release: Release, problem: Bilevel, x: Tree, y: Tree, batch: Batch) -> Tree:
    """Read grad_y g, the direction of y."""
    return read(
        release,
        lower=lambda y, r: problem.lower(x, y, r),
        at=y,
        batch=batch,
        public=lambda y: problem.public_lower(x, y),
    )


def toward_z(read: Reader, release: Release, problem: Bilevel, x: Tree, y: Tree, z: Tree, batch: Batch) -> Tree:
    """Read hess_yy g z - grad_y f, the direction of z: the gradient in y of g's derivative along z, minus f."""
    return read(
        release,
        lower=lambda y, r: along(problem.lower, x, y, r, z),
        upper=lambda y, r: -problem.upper(x, y, r),
        at=y,
        batch=batch,
        public=lambda y: public_along(problem.public_lower, x, y, z) - problem.public_upper(x, y),
    )


def toward_x(read: Reader, release: Release, problem: Bilevel, x: Tree, y: Tree, z: Tree, batch: Batch) -> Tree:
    """Read grad_x f - hess_xy g z, the direction of x: the gradient in x of f minus g's derivative along z."""
    return read(
        release,
        upper=lambda x, r: problem.upper(x, y, r),
        lower=lambda x, r: -along(problem.lower, x, y, r, z),
        at=x,
        batch=batch,
        public=lambda x: public_x(problem, x, y, z),
    )


def public_x(problem: Bilevel, x: Tree, y: Tree, z: Tree) -> jax.Array:
    """Return what the public terms add to the function whose gradient in x is the hypergradient."""
    return problem.public_upper(x, y) - public_along(problem.public_lower, x, y, z)


def confined(z: Tree, radius: float, design: Design) -> Tree:
    """Return z in a ball (sound), or in a box inside the L1 ball (printed); an infinite radius changes nothing.

    >>> confined(jnp.array([3.0, -3.0]), 2.0, "printed").tolist()
    [1.0, -1.0]
    """
    if math.isinf(radius):
        return z
    if design == "sound":
        return sets.ball(radius)(z)
    # z is private here: only a coordinate-wise clamp leaves differences in L1 no larger than they are.
    side = radius / sum(leaf.size for leaf in jax.tree.leaves(z))
    return sets.box(-side, side)(z)


def without_x(problem: Bilevel) -> Bilevel:
    """Return the same problem with x hidden from the records' losses: a loss that reads x fails when it is traced."""

    def blind(loss: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def unseeing(x: Tree, y: Tree, record: Any) -> jax.Array:
            try:
                return loss(None, y, record)
            except (TypeError, ValueError, AttributeError) as error:
                raise TypeError(
                    "release_x=None says that no record's loss reads x, but one does: give x a release of its own"
                ) from error

        return unseeing

    return dataclasses.replace(problem, upper=blind(problem.upper), lower=blind(problem.lower))


@dataclasses.dataclass(frozen=True)
class SecondDerivatives:
    """Read second derivatives of g as gradients: <M, hess g> is linear in M, and its gradient is the matrix itself.

    `x` and `y` are flat vectors; `shape_x` and `shape_y` give them the shapes of the variables.
    """

    problem: Bilevel
    shape_x: Any
    shape_y: Any
    x: jax.Array
    y: jax.Array

    def _lower(self, x: jax.Array, y: jax.Array, *record: Any) -> jax.Array:
        fn = self.problem.lower if record else self.problem.public_lower
        return jnp.asarray(fn(self.shape_x(x), self.shape_y(y), *record), float)

    def jacobian(self, matrix: jax.Array, *record: Any) -> jax.Array:
        """Return <matrix, hess_xy g> of a record, or of the public term when none is given."""
        return jnp.vdot(matrix, jax.jacfwd(jax.grad(self._lower, 1), 0)(self.x, self.y, *record).T)

    def hessian(self, matrix: jax.Array, *record: Any) -> jax.Array:
        """Return <matrix, hess_yy g>, likewise."""
        return jnp.vdot(matrix, jax.hessian(self._lower, 1)(self.x, self.y, *record))
