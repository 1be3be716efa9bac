"""What decentralised bilevel methods share: two ways to read and to tell, and the three directions.

Each direction is the gradient of a scalar per record (an inner product with z takes the place of a second derivative),
so it can pass the gate, and no matrix is formed.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import jax

from sottovoce.privacy.release import Release
from sottovoce.problems import Bilevel, along, public_along
from sottovoce.trees import Private, Tree

if TYPE_CHECKING:
    from sottovoce.runtime.agent import Agent, Batch

Design = Literal["sound", "printed"]
Read = Callable[..., Tree]


def check_design(design: str) -> None:
    """Raise ValueError unless it is one of the two.

    >>> check_design("sound")
    """
    if design not in ("sound", "printed"):
        raise ValueError(f"design is {design!r}: choose 'sound' or 'printed'")


def keeper(design: Design) -> Callable[[Tree], Tree]:
    """How a design holds its state: public as it is, or marked private.

    >>> keeper("printed")(1.0)
    Private(value=1.0)
    """
    return Private if design == "printed" else lambda value: value


def voice(agent: "Agent", design: Design) -> tuple[Read, Callable[[Release | None, Tree], Tree]]:
    """How a design reads records, and how it averages a value with the neighbours.

    Sound: it reads by release, and its state, public, is told as it is. Printed: it reads un-noised means, and tells
    its private state with the release's noise, while its own weight stays on the un-noised value.
    """
    if design == "sound":
        return agent.release, lambda release, value: agent.mix(value)
    return agent.mean, lambda release, value: agent.mix(agent.tell(release, value), own=value)


def toward_y(read: Read, release: Release, problem: Bilevel, x: Tree, y: Tree, batch: "Batch") -> Tree:
    """The slope of the lower level in y."""
    return read(
        release,
        lower=lambda y, r: problem.lower(x, y, r),
        at=y,
        batch=batch,
        public=lambda y: problem.public_lower(x, y),
    )


def toward_z(read: Read, release: Release, problem: Bilevel, x: Tree, y: Tree, z: Tree, batch: "Batch") -> Tree:
    """The residual of hess_yy g z = grad_y f, as the gradient in y of g's derivative along z minus f."""
    return read(
        release,
        lower=lambda y, r: along(problem.lower, x, y, r, z),
        upper=lambda y, r: -problem.upper(x, y, r),
        at=y,
        batch=batch,
        public=lambda y: public_along(problem.public_lower, x, y, z) - problem.public_upper(x, y),
    )


def toward_x(read: Read, release: Release, problem: Bilevel, x: Tree, y: Tree, z: Tree, batch: "Batch") -> Tree:
    """The hypergradient grad_x f - hess_xy g z, as the gradient in x of f minus g's derivative along z."""
    return read(
        release,
        upper=lambda x, r: problem.upper(x, y, r),
        lower=lambda x, r: -along(problem.lower, x, y, r, z),
        at=x,
        batch=batch,
        public=lambda x: public_x(problem, x, y, z),
    )


def public_x(problem: Bilevel, x: Tree, y: Tree, z: Tree) -> jax.Array:
    """What the public terms add to the function whose gradient in x is the hypergradient."""
    return problem.public_upper(x, y) - public_along(problem.public_lower, x, y, z)


def without_x(problem: Bilevel) -> Bilevel:
    """The same problem with x hidden from the records' losses: one that reads it fails when it is traced."""

    def blind(loss: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        def unseeing(x: Tree, y: Tree, record: Any) -> jax.Array:
            try:
                return loss(None, y, record)
            except (TypeError, ValueError, AttributeError) as error:
                raise TypeError(
                    "x=None says that no record's loss reads x, but one does: give x a release of its own"
                ) from error

        return unseeing

    return dataclasses.replace(problem, upper=blind(problem.upper), lower=blind(problem.lower))
