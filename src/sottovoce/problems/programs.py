"""Refuse traced programs that hold an array which nobody declared, or do what no trace shows.

Everything that a run computes passes here as a jaxpr: the steps of a method with the losses, public terms, projections,
optimisers and schedules inside, what a party and its server compute, and a `predict` that goes into a model file. A
number inside a jaxpr is a setting, an array may be records. Example: balanced class weights are an array that was made
of the labels, and reach a model beside every gate.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

_FOREIGN = ("ffi_call", "infeed", "outfeed", "inspect_sharding")
_BATCHED = "custom_vmap_call"


class Refused(ValueError):
    """Say that what was traced brings something along that no run may hold."""


def traced(
    name: str,
    function: Callable[..., Any],
    *given: Any,
    remedy: str,
    declared: Sequence[Any] = (),
    public: bool = False,
) -> tuple[ClosedJaxpr, Any]:
    """Trace a function that somebody wrote, refuse it as `refuse` does, and return its jaxpr and its result's shapes.

    >>> closed, shape = traced("loss", lambda x: 2 * x, 1.0, remedy="Declare it.")
    >>> len(closed.jaxpr.eqns), shape.dtype
    (1, dtype('float32'))
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*given)
    refuse(name, [closed], remedy, declared, public)
    return closed, shape


def refuse(
    name: str, programs: Iterable[ClosedJaxpr], remedy: str, declared: Sequence[Any] = (), public: bool = False
) -> None:
    """Raise Refused if a traced program holds an array, calls back to Python, or hides code from the trace.

    Arrays that equal one of `declared` are known to everybody, so they may stand in a program; with `public` all may.

    >>> table = np.ones(3)
    >>> refuse("step", [jax.make_jaxpr(lambda x: x * table)(1.0)], "Declare it.", declared=[table])
    >>> refuse("step", [jax.make_jaxpr(lambda x: x * table)(1.0)], "Declare it.")
    Traceback (most recent call last):
    ...
    sottovoce.problems.programs.Refused: step closes over an array of shape (3,), which would by-pass ...
    """
    for closed in programs:
        refuse_callbacks(name, closed)
        for constant in constants(closed.jaxpr, closed.consts):
            if not _is_array(constant):
                raise Refused(
                    f"{name} reads or writes a {type(constant).__name__} that lives outside of it: pass values as "
                    "arguments, and return them"
                )
            if not public and not _is_number(constant) and not _among(constant, declared):
                raise Refused(
                    f"{name} closes over an array of shape {np.shape(constant)}, which would by-pass the privacy gate. "
                    f"{remedy}"
                )


def refuse_callbacks(name: str, traced: ClosedJaxpr) -> None:
    """Raise Refused if a traced function calls back to Python, or has a rule that a trace does not show.

    >>> refuse_callbacks("loss", jax.make_jaxpr(lambda x: jax.debug.callback(print, x))(1.0))
    Traceback (most recent call last):
    ...
    sottovoce.problems.programs.Refused: loss calls back to Python (debug_callback), which could read ...
    """
    for kind in _primitives(traced.jaxpr):
        if "callback" in kind or kind.startswith("debug_") or kind in _FOREIGN:
            raise Refused(
                f"{name} calls back to Python ({kind}), which could read anything: write it with jax.numpy alone"
            )
        if kind == _BATCHED:
            raise Refused(
                f"{name} has a rule of its own for batches (custom_vmap), which would see many records at once: "
                "write it as a function of one record"
            )


def has_rules(jaxpr: Jaxpr) -> bool:
    """Say whether a traced function, or one that it calls, comes with a rule of its own for its derivative.

    >>> has_rules(jax.make_jaxpr(jax.nn.relu)(1.0).jaxpr), has_rules(jax.make_jaxpr(jax.numpy.sin)(1.0).jaxpr)
    (True, False)
    """
    return any(kind.startswith("custom_") for kind in _primitives(jaxpr))


def constants(jaxpr: Any, own: Sequence[Any]) -> Iterator[Any]:
    """Yield all constants that a traced function captures, also those inside functions that it calls."""
    yield from own
    for equation in jaxpr.eqns:
        yield from (given.val for given in equation.invars if isinstance(given, Literal) and np.ndim(given.val))
        yield from (held for held in equation.params.values() if isinstance(held, (np.ndarray, jax.Array)))
    for inner, consts in _inner(jaxpr):
        yield from constants(inner, consts)


def _is_array(constant: Any) -> bool:
    return isinstance(constant, (np.ndarray, np.generic, jax.Array, bool, int, float, complex))


def _is_number(constant: Any) -> bool:
    """Say whether a constant may be a setting: a JAX array of any shape was there before the trace."""
    return not isinstance(constant, jax.Array) and np.ndim(constant) == 0


def _among(constant: Any, declared: Sequence[Any]) -> bool:
    """Say whether a constant has the values of a declared array, whatever the type of its numbers."""
    if any(constant is one for one in declared):
        return True
    if jnp.issubdtype(constant.dtype, jax.dtypes.extended):  # a random key
        return False
    values = np.asarray(constant)
    alike = (np.asarray(one) for one in declared if np.shape(one) == values.shape)
    return any(np.array_equal(one.astype(values.dtype), values) for one in alike)


def _primitives(jaxpr: Any) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
    for inner, _ in _inner(jaxpr):
        yield from _primitives(inner)


def _inner(jaxpr: Any) -> Iterator[tuple[Jaxpr, Sequence[Any]]]:
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(inner, ClosedJaxpr):
                    yield inner.jaxpr, inner.consts
                elif hasattr(inner, "eqns"):
                    yield inner, ()
