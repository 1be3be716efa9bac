"""Provide what the handles of a traced step share: numbered equations, loops, keys.

Example: an `Agent` (a peer with records of its own) and a `Party` (a holder of columns) both have `loop` and `key`. A
handle exists only while a step is traced: each call writes one equation (`sottovoce.methods.equations`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from typing import Any, Self

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, get_opaque_trace_state

from sottovoce.methods import equations
from sottovoce.privacy.release import unnoticed
from sottovoce.trees import Tree


class Handle(ABC):
    """Give a step, while it is traced, its numbered equations, loops and keys, for one participant at step `t`."""

    def __init__(self, t: jax.Array, loops: tuple[int, ...] = ()) -> None:
        self.t = t
        self._loops = loops
        self._numbers = count()  # no two equations of a step (or of a loop's turn) have the same number, hence key
        self._looping = False
        self._trace = get_opaque_trace_state(convention="nnx")

    @abstractmethod
    def _inside(self, loops: tuple[int, ...]) -> Self:
        """Return the handle for the body of a loop."""

    def loop(self, times: int, body: Callable[[Tree, Self], Tree], carry: Tree, name: str = "loop") -> Tree:
        """Return `carry` after `body(carry, handle)` has run n times; batches, noise and messages are new each time."""
        if times < 1:
            raise ValueError(f"loop {name!r} runs {times} times: it must run at least once")
        leaves, structure = jax.tree.flatten(jax.tree.map(strong, carry))
        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]

        def turn(*values: jax.Array) -> list[jax.Array]:
            after = body(jax.tree.unflatten(structure, values), self._inside((*self._loops, times)))
            return like(jax.tree.leaves(after), jax.tree.structure(after), shapes, structure, f"loop {name!r}")

        self._require_straight(f"the loop {name!r}")
        self._looping = True
        try:
            body_jaxpr, closed_over = explicit(turn, shapes)
        finally:
            self._looping = False
        after = self._bind(
            equations.loop_p, f"the loop {name!r}", *closed_over, *leaves,
            body=body_jaxpr, consts=len(closed_over), times=times,
        )  # fmt: skip
        return jax.tree.unflatten(structure, after)

    def key(self, name: str) -> jax.Array:
        """Return a random key for the method's own choices."""
        (key,) = self._bind(equations.key_p, f"the key {name!r}")
        return key

    def _bind(self, equation: Any, what: str, *operands: Any, **params: Any) -> list[Any]:
        """Write an equation, with a number of its own: the place folds it into the key of the step."""
        self._require_straight(what)
        with unnoticed():  # JAX looks an equation up by all its params
            return equation.bind(*operands, number=next(self._numbers), **params)

    def _require_straight(self, what: str) -> None:
        if self._looping:
            # The outer handle would be counted once, and would draw the same noise in every turn.
            raise ValueError("a loop is running: use the agent that it hands to its body, not the one outside")
        if get_opaque_trace_state(convention="nnx") != self._trace:
            raise ValueError(
                f"{what} stands inside jit, vmap, cond, while or scan, where the ledger cannot count it: "
                "call it in the step itself, or repeat it with agent.loop"
            )


def explicit(function: Callable[..., Any], shapes: list[Any]) -> tuple[Jaxpr, list[Any]]:
    """Trace a function of arrays; return its jaxpr, with what it closes over as its first arguments, and these values.

    >>> c = jnp.ones(2)
    >>> jaxpr, closed_over = explicit(lambda x: x @ c, [jax.ShapeDtypeStruct((2,), jnp.float32)])
    >>> len(jaxpr.invars), len(closed_over)
    (2, 1)
    """
    closed = jax.make_jaxpr(function)(*shapes)
    jaxpr = closed.jaxpr
    names = jaxpr.debug_info.with_unknown_names()
    return (
        jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars], debug_info=names),
        list(closed.consts),
    )


def strong(leaf: Any) -> jax.Array:
    """Return an array whose type does not bend to what it meets: carries and states keep their types.

    >>> strong(1.0).weak_type
    False
    """
    leaf = jnp.asarray(leaf)
    return jax.lax.convert_element_type(leaf, leaf.dtype)


def like(leaves: list[Any], got: Any, shapes: list[Any], structure: Any, what: str) -> list[jax.Array]:
    """Return leaves of the expected shapes and types; ValueError names what changed.

    >>> shapes = [jax.ShapeDtypeStruct((), jnp.float32)]
    >>> float(like([2.0], jax.tree.structure(0), shapes, jax.tree.structure(0), "loop")[0])
    2.0
    """
    if got != structure:
        raise ValueError(f"{what} must return the structure that it is given: {structure} became {got}")
    kept = []
    for leaf, shape in zip(map(strong, leaves), shapes, strict=True):
        if leaf.shape != shape.shape or leaf.dtype != shape.dtype:
            raise ValueError(
                f"{what} must return the shapes and types that it is given: "
                f"{shape.dtype}{list(shape.shape)} became {leaf.dtype}{list(leaf.shape)}"
            )
        kept.append(leaf)
    return kept
