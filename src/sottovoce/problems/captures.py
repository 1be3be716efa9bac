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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from sottovoce.problems import programs

_LIBRARIES = ("jax", "jaxlib", "numpy", "scipy", "optax", "functools", "builtins", "math", "operator")

# How libraries hand out what they hold: NumPy's own way, data frames, Arrow, DLPack, sparse matrices.
_AS_ARRAY = ("__array__", "__array_interface__", "__dataframe__", "__arrow_c_array__", "__arrow_c_stream__",
             "__dlpack__", "toarray")  # fmt: skip

# Called without being named: an object that is called, indexed, or computed with.
_UNNAMED = (
    "__call__", "__getitem__", "__getattr__", "__iter__", "__next__", "__len__", "__contains__", "__enter__", "__get__",
    "__bool__", "__int__", "__index__", "__float__", "__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__neg__",
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__", "__pow__",
    "__rpow__", "__matmul__", "__rmatmul__", "__jax_array__",
)  # fmt: skip

Found = deque[tuple[str, Any]]  # what is to be looked at, and under which name it was found


def refuse(
    name: str,
    function: Any,
    traced: Sequence[ClosedJaxpr],
    remedy: str,
    known: Sequence[Any] = (),
    public: bool = False,
) -> None:
    """Raise ValueError if a function captures an array, or calls back to Python; `traced` are its jaxprs.

    The arrays in `known` (the values a problem starts from) are known to everybody, so they may be captured; with
    `public` all may.

    >>> import jax.numpy as jnp
    >>> mean = jnp.asarray(0.3)
    >>> loss = lambda x, r: x * r * mean
    >>> refuse("loss", loss, [jax.make_jaxpr(loss)(1.0, 2.0)], "Pass data as part of the record.")
    Traceback (most recent call last):
    ...
    ValueError: loss closes over an array of shape (), which would by-pass the privacy gate (mean). Pass data ...
    """
    identities = {id(array) for array in known}
    for where, array in () if public else arrays_in(function):
        if id(array) not in identities:
            raise ValueError(
                f"{name} closes over an array of shape {np.shape(array)}, which would by-pass the privacy gate "
                f"({where}). {remedy}"
            )
    programs.refuse(name, traced, remedy, known, public)


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
    names, classes = set(_UNNAMED), dict[int, type]()
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
