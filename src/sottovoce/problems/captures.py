"""Find what a function brings along besides its arguments: arrays, and calls back to Python.

A loss sees one record at a time, through the gate. An array that it closes over is not a record: it would reach the
result without clip or noise. Example: ``lambda x, r: jnp.sum((x - r) ** 2) * DATA.mean()`` reads all of `DATA` in every
record's gradient. So arrays of any shape are refused wherever they hide: in closures, default arguments, attributes of
objects and classes, globals, modules, custom derivative rules. Data frames, sparse matrices and buffers are arrays too.
(Python numbers and NumPy scalars cannot be told from settings: every statement says that they are taken as public.)
"""

import dis
import functools
import sys
import types
from array import array as numbers_in_a_row
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

_CALLBACKS = ("pure_callback", "io_callback", "debug_callback", "callback", "python_callback")
_LIBRARIES = ("jax", "jaxlib", "numpy", "scipy", "optax", "functools", "builtins", "math", "operator")

# How libraries hand out what they hold: NumPy's own way, data frames, Arrow, DLPack, sparse matrices.
_AS_ARRAY = ("__array__", "__array_interface__", "__dataframe__", "__arrow_c_array__", "__arrow_c_stream__",
             "__dlpack__", "toarray")  # fmt: skip

Found = deque[tuple[str, Any]]  # what is to be looked at, and under which name it was found


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
            # a JAX array of any shape was there before the trace; a NumPy number may as well be a setting
            brought = isinstance(constant, jax.Array) or (isinstance(constant, np.ndarray) and constant.ndim > 0)
            if brought and id(constant) not in known:
                raise ValueError(
                    f"{name} closes over an array of shape {np.shape(constant)}, which would by-pass the privacy gate. "
                    f"{remedy}"
                )
        refuse_callbacks(name, closed)


def refuse_callbacks(name: str, traced: ClosedJaxpr) -> None:
    """Raise ValueError if a traced function calls back to Python.

    >>> refuse_callbacks("loss", jax.make_jaxpr(lambda x: jax.debug.callback(print, x))(1.0))
    Traceback (most recent call last):
    ...
    ValueError: loss calls back to Python (debug_callback), which could read anything: write it with jax.numpy alone
    """
    called = next((kind for kind in _primitives(traced.jaxpr) if kind in _CALLBACKS), None)
    if called is not None:
        raise ValueError(
            f"{name} calls back to Python ({called}), which could read anything: write it with jax.numpy alone"
        )


def has_rules(jaxpr: Jaxpr) -> bool:
    """Say whether a traced function, or one that it calls, comes with a rule of its own for its derivative.

    >>> has_rules(jax.make_jaxpr(jax.nn.relu)(1.0).jaxpr), has_rules(jax.make_jaxpr(jax.numpy.sin)(1.0).jaxpr)
    (True, False)
    """
    return any(kind.startswith("custom_") for kind in _primitives(jaxpr))


def arrays_in(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays that a callable brings along, each with the name under which it was found.

    Everything that the code of a function can reach by name is followed: what it closes over, defaults, globals, what
    is inside containers and objects. Of a class only what some followed function names is read, of a module what the
    function that uses it names.

    >>> table = np.zeros(3)
    >>> [where for where, _ in arrays_in(lambda x, t=table: x)]
    ['t']
    """
    waiting: Found = deque([(getattr(function, "__name__", "it"), function)])
    seen: dict[int, Any] = {}  # keeps what was seen alive, so that no id is used twice
    names, classes = set[str](), dict[int, type]()
    while waiting:
        while waiting:
            where, value = waiting.popleft()
            if id(value) in seen:
                continue
            seen[id(value)] = value
            if isinstance(value, (str, bytes, int, float, complex)):
                continue
            if _holds_data(value):
                yield where, value
                continue
            waiting += _inside(value, where)
            if isinstance(value, types.FunctionType):
                names |= set() if _from_library(value) else _names(value.__code__).attributes
            elif not isinstance(value, types.ModuleType):
                kinds = (value if isinstance(value, type) else type(value)).__mro__
                classes |= {id(kind): kind for kind in kinds if not _from_library(kind)}
        named = [(f"{c.__name__}.{name}", vars(c)[name]) for c in classes.values() for name in names & vars(c).keys()]
        waiting += [(where, inner) for where, inner in named if id(inner) not in seen]


def _holds_data(value: Any) -> bool:
    """Say whether a value is an array or a table: whatever arrays can be made of, in any library, or a buffer."""
    if isinstance(value, (jax.core.Tracer, np.generic, type)):
        return False
    if isinstance(value, (np.ndarray, jax.Array, memoryview, bytearray, numbers_in_a_row)):
        return True
    return any(hasattr(type(value), name) for name in _AS_ARRAY)


def _inside(value: Any, where: str) -> list[tuple[str, Any]]:
    """Return what an object holds, and under which name; nothing of a library's own."""
    if isinstance(value, Mapping):
        return [(f"{where}[{key!r}]", inner) for key, inner in value.items()]
    if isinstance(value, (tuple, list, set, frozenset, deque)):
        return [(f"{where}[{number}]", inner) for number, inner in enumerate(value)]
    if isinstance(value, functools.partial):
        return [(where, value.func), (where, value.args), (where, value.keywords)]
    if isinstance(value, types.MethodType):
        return [(where, value.__func__), (f"{where}.__self__", value.__self__)]
    if isinstance(value, (staticmethod, classmethod)):
        return [(where, value.__func__)]
    if isinstance(value, property):
        return [(where, value.fget)]
    if isinstance(value, functools.cached_property):
        return [(where, value.func)]
    if isinstance(value, types.FunctionType):
        return _of_function(value)
    if isinstance(value, (types.ModuleType, type)):
        return []
    if _from_library(value):  # jit, custom_jvp and the like, around somebody's function
        return [(where, getattr(value, "__wrapped__", None))]
    slots = [slot for kind in type(value).__mro__ for slot in getattr(kind, "__slots__", ())]
    held = [(f"{where}.{slot}", getattr(value, slot, None)) for slot in slots]
    return held + [(f"{where}.{key}", inner) for key, inner in getattr(value, "__dict__", {}).items()]


def _of_function(function: types.FunctionType) -> list[tuple[str, Any]]:
    code, found = function.__code__, list[tuple[str, Any]]()
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        try:
            found.append((name, cell.cell_contents))
        except ValueError:  # a name that is not bound yet
            continue
    positional = code.co_varnames[: code.co_argcount]
    found += zip(reversed(positional), reversed(function.__defaults__ or ()))
    found += (function.__kwdefaults__ or {}).items()
    if not _from_library(function):
        used = _names(code)
        found += [(name, function.__globals__[name]) for name in sorted(used.globals & function.__globals__.keys())]
        imported = [sys.modules[name] for name in used.imports if name in sys.modules]
        found += _of_modules([*imported, *(inner for _, inner in found)], used.attributes)
    return [*found, (function.__name__, getattr(function, "__wrapped__", None)), (function.__name__, function.__dict__)]


def _of_modules(values: Sequence[Any], names: frozenset[str]) -> list[tuple[str, Any]]:
    """Return what these names stand for in the modules among some values, and in the modules inside those."""
    found: list[tuple[str, Any]] = []
    waiting, seen = list(values), set[int]()
    while waiting:
        module = waiting.pop()
        if isinstance(module, types.ModuleType) and id(module) not in seen and not _from_library(module):
            seen.add(id(module))
            held = [(f"{module.__name__}.{name}", vars(module)[name]) for name in names & vars(module).keys()]
            waiting += [inner for _, inner in held]
            found += held
    return found


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


class _Names(NamedTuple):
    """List the names that code uses, also in functions defined inside it."""

    globals: frozenset[str]
    attributes: frozenset[str]  # of objects, classes and modules
    imports: frozenset[str]


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> _Names:
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    used: dict[str, set[str]] = {"GLOBAL": set(), "ATTR": set(), "NAME": set()}
    for line in dis.get_instructions(code):
        kind = {"LOAD_GLOBAL": "GLOBAL", "LOAD_NAME": "GLOBAL", "IMPORT_NAME": "NAME"}.get(line.opname)
        if kind is None and line.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"):
            kind = "ATTR"
        if kind is not None:
            used[kind].add(line.argval)
    own = _Names(*(frozenset(names) for names in used.values()))
    return _Names(*(frozenset().union(*kind) for kind in zip(own, *inner)))


def _from_library(value: Any) -> bool:
    own = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    room = (own or type(value).__module__ or "").split(".")[0]
    if isinstance(value, (types.ModuleType, type)):  # modules of Python and of this package hold no data of a user
        return room in (*_LIBRARIES, "sottovoce") or room in sys.stdlib_module_names
    return room in _LIBRARIES
