"""What a function brings along besides its arguments: arrays, and calls back to Python.

A loss sees one record at a time, through the gate. An array that it closes over is not a record: it would reach the
result without clip or noise. Example: ``lambda x, r: jnp.sum((x - r) ** 2) * DATA.mean()`` reads all of `DATA` in every
record's gradient. So arrays of any shape are refused wherever they hide: in closures, default arguments, attributes of
objects, globals, custom derivative rules. (Python numbers and NumPy scalars cannot be told from settings: every
statement says that they are taken as public.)
"""

import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

_CALLBACKS = ("pure_callback", "io_callback", "debug_callback", "callback", "python_callback")
_LIBRARIES = ("jax", "jaxlib", "numpy", "scipy", "optax", "functools", "builtins", "math", "operator")
_DEEPEST = 12  # functions inside functions that are followed


def refuse(
    name: str, function: Callable[..., Any], traced: Sequence[ClosedJaxpr], remedy: str, public: Sequence[Any] = ()
) -> None:
    """Raise ValueError if a function captures an array, or calls back to Python; `traced` are its jaxprs.

    The arrays in `public` (the values a problem starts from) are known to everybody, so they may be captured.

    >>> import jax.numpy as jnp
    >>> mean = jnp.asarray(0.3)
    >>> loss = lambda x, r: x * r * mean
    >>> refuse("loss", loss, [jax.make_jaxpr(loss)(1.0, 2.0)], "Pass data as part of the record.")
    Traceback (most recent call last):
    ...
    ValueError: loss closes over an array of shape (), which would by-pass the privacy gate (mean). Pass data ...
    """
    known = {id(array) for array in public}
    for where, array in arrays_in(function):
        if id(array) in known:
            continue
        raise ValueError(
            f"{name} closes over an array of shape {np.shape(array)}, which would by-pass the privacy gate ({where}). "
            f"{remedy}"
        )
    for closed in traced:
        for constant in constants(closed.jaxpr, closed.consts):
            if isinstance(constant, (np.ndarray, jax.Array)) and np.ndim(constant) > 0 and id(constant) not in known:
                raise ValueError(
                    f"{name} closes over an array of shape {np.shape(constant)}, which would by-pass the privacy gate. "
                    f"{remedy}"
                )
        called = next((kind for kind in _primitives(closed.jaxpr) if kind in _CALLBACKS), None)
        if called is not None:
            raise ValueError(
                f"{name} calls back to Python ({called}), which could read anything: write it with jax.numpy alone"
            )


def arrays_in(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays that a callable brings along, each with the name under which it was found.

    >>> table = np.zeros(3)
    >>> [where for where, _ in arrays_in(lambda x, t=table: x)]
    ['t']
    """
    seen: set[int] = set()

    def visit(value: Any, where: str, depth: int) -> Iterator[tuple[str, Any]]:
        if depth > _DEEPEST or id(value) in seen or isinstance(value, (types.ModuleType, type, str, bytes, int, float)):
            return
        if isinstance(value, (np.ndarray, jax.Array)) and not isinstance(value, jax.core.Tracer):
            yield where, value
            return
        seen.add(id(value))
        if isinstance(value, Mapping):
            for key, inner in value.items():
                yield from visit(inner, f"{where}[{key!r}]", depth + 1)
        elif isinstance(value, (tuple, list, set, frozenset)):
            for number, inner in enumerate(value):
                yield from visit(inner, f"{where}[{number}]", depth + 1)
        elif isinstance(value, functools.partial):
            for inner in (value.func, value.args, value.keywords):
                yield from visit(inner, where, depth + 1)
        elif isinstance(value, types.MethodType):
            yield from visit(value.__func__, where, depth + 1)
            yield from visit(value.__self__, f"{where}.__self__", depth + 1)
        elif isinstance(value, types.FunctionType):
            yield from of_function(value, depth)
        elif not _from_library(value):
            for key, inner in getattr(value, "__dict__", {}).items():
                yield from visit(inner, f"{where}.{key}", depth + 1)
            for slot in getattr(type(value), "__slots__", ()):
                yield from visit(getattr(value, slot, None), f"{where}.{slot}", depth + 1)
        elif hasattr(value, "__wrapped__"):  # jit, custom_jvp and the like, around somebody's function
            yield from visit(value.__wrapped__, where, depth + 1)

    def of_function(function: types.FunctionType, depth: int) -> Iterator[tuple[str, Any]]:
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or ()):
            try:
                yield from visit(cell.cell_contents, name, depth + 1)
            except ValueError:  # a name that is not bound yet
                continue
        positional = code.co_varnames[: code.co_argcount]
        for name, value in zip(reversed(positional), reversed(function.__defaults__ or ())):
            yield from visit(value, name, depth + 1)
        for name, value in (function.__kwdefaults__ or {}).items():
            yield from visit(value, name, depth + 1)
        if not _from_library(function):
            for name in _names(code):
                if name in function.__globals__:
                    yield from visit(function.__globals__[name], name, depth + 1)
        yield from visit(getattr(function, "__wrapped__", None), function.__name__, depth + 1)
        yield from visit(function.__dict__, function.__name__, depth + 1)

    yield from visit(function, getattr(function, "__name__", "it"), 0)


def constants(jaxpr: Any, own: Sequence[Any]) -> Iterator[Any]:
    """Yield all constants that a traced function captures, also those inside functions that it calls."""
    yield from own
    for inner, consts in _inner(jaxpr):
        yield from constants(inner, consts)


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


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the global names that code uses, also in functions defined inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _from_library(value: Any) -> bool:
    module = getattr(value, "__module__", None) or type(value).__module__ or ""
    return module.split(".")[0] in _LIBRARIES
