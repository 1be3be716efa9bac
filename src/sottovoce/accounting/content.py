"""Say when two traced programs are one: the key of a program is all that is traced, and nothing else.

Example: the loss ``(x - r) ** 2``, written down twice, is one program with one key; with another number in it, it is
another. Objects that are compared by identity (a function inside a rule of JAX) are part of the key as themselves, so
that nothing that only looks alike is taken for the same.
"""

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from enum import Enum
from functools import cached_property, lru_cache
from numbers import Number
from threading import get_ident
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeVar

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from sottovoce.accounting.identity import derivative, walk
from sottovoce.methods import equations
from sottovoce.methods.base import TARGET
from sottovoce.privacy.gate import RecordFunction
from sottovoce.problems import programs

# Rules for derivatives: what a derivative computes stands beside each function of a record; nothing else is derived.
_RULES = {"custom_jvp_call": ("jvp_jaxpr_fun",), "custom_vjp_call": ("fwd_jaxpr_thunk", "bwd", "out_trees")}
_LIBRARIES = ("jax", "jaxlib", "numpy", "ml_dtypes")

# How many traces are remembered, and how many compiled programs: nobody asks for the program of a forgotten trace.
# A run takes about 250 mapped pieces of memory, and Linux ends a process that has 65 530, so a long sweep must forget.
KEPT = 32
Held = TypeVar("Held")


def first_alike(key: Hashable, held: Held) -> Held:
    """Return what was held first under this key by this thread, one of the last `KEPT`.

    Threads share nothing: rules for derivatives inside of a program keep what JAX found out of them, and fail where two
    threads trace the same program at once.

    >>> first_alike("example", 1), first_alike("example", 2)
    (1, 1)
    """
    return remembered_keys(_Entry((get_ident(), key), held))


@dataclass(frozen=True)
class _Entry:
    key: Hashable
    held: Any = field(compare=False)


@lru_cache(maxsize=KEPT)
def remembered_keys(entry: _Entry) -> Any:
    """Return what an entry holds: that of the first entry with this key."""
    return entry.held


def program(closed: ClosedJaxpr, constants: bool = True) -> Hashable:
    """Return the key of a program; without `constants`, of all programs that differ in captured arrays alone.

    >>> half, again, whole = (jax.make_jaxpr(lambda x, c=c: c * x)(1.0) for c in (0.5, 0.5, 1.0))
    >>> program(half) == program(again), program(half) == program(whole)
    (True, False)
    """
    return tuple(walk(closed.jaxpr, closed.consts if constants else (), _Key()))


class _Key:
    """Write a program as objects of this process, with nothing left out that is compiled."""

    def variable(self, number: int, var: Var, new: bool) -> Iterator[Hashable]:
        """Yield a variable's type where it is new, and its number from then on."""
        yield var.aval if new else number

    def literal(self, given: Literal) -> Iterator[Hashable]:
        """Yield the number, with its type."""
        yield "literal", given.aval, _number(given.val)

    def equation(self, equation: JaxprEqn) -> Iterator[Hashable]:
        """Yield the primitive itself."""
        yield equation.primitive, len(equation.invars), len(equation.outvars), equation.ctx

    def params(self, equation: JaxprEqn) -> Iterator[Hashable]:
        """Yield all but the rules for derivatives."""
        left_out = _RULES.get(equation.primitive.name, ())
        yield tuple((name, _value(held)) for name, held in sorted(equation.params.items()) if name not in left_out)

    def closed_over(self, consts: Sequence[Any]) -> Iterator[Hashable]:
        """Yield the arrays."""
        yield tuple(map(_number, consts))


def _value(held: Any) -> Hashable:
    """Return what stands for a parameter of an equation: its content where that is known, else itself."""
    kind = type(held)
    if isinstance(held, ClosedJaxpr):
        return program(held)
    if isinstance(held, Jaxpr):
        return tuple(walk(held, (), _Key()))
    if isinstance(held, equations.Asked):
        return held.structure, held.count, tuple(map(_function, held.functions))
    if kind in (tuple, list) or (isinstance(held, tuple) and hasattr(kind, "_fields")):
        return kind, tuple(map(_value, held))
    if kind is dict:
        return kind, tuple((name, _value(one)) for name, one in sorted(held.items()))
    if isinstance(held, (np.ndarray, np.generic, jax.Array)):
        return _number(held)
    if kind in (bool, int, float, complex):
        return kind, repr(held)
    if kind in (str, bytes, type(None)):
        return kind, held
    told = kind.__module__.split(".")[0] in _LIBRARIES or (is_dataclass(held) and seen_by_equality(held))
    return (kind, held) if told and kind.__hash__ is not None else _Itself(held)


def _function(function: RecordFunction) -> Hashable:
    ruled = programs.has_rules(function.jaxpr)  # the gate derives at the point, and rules may be for other operands
    slopes = tuple(program(derivative(function, all_given)) for all_given in (True, False)) if ruled else ()
    return function.level, function.consts, _value(function.jaxpr), slopes


@dataclass(frozen=True, eq=False)
class _Itself:
    """Compare an object by identity; a key that holds it keeps it alive, so that no other one gets its address."""

    held: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.held is other.held

    def __hash__(self) -> int:
        return id(self.held)


def _number(held: Any) -> Hashable:
    """Return an array as its type, shape and bytes: -0.0 is not 0.0."""
    if isinstance(held, jax.Array) and jax.dtypes.issubdtype(held.dtype, jax.dtypes.prng_key):
        return _Itself(held)
    array = np.asarray(held)
    if array.dtype == object:
        return _Itself(held)
    whole = array.tobytes()
    return type(held), str(array.dtype), array.shape, whole if len(whole) <= 64 else hashlib.sha256(whole).digest()


_METHODS = ("sottovoce.methods.", "sottovoce.papers.")
_FROM_FIELDS = ("solves", "over")  # what our own methods tell of themselves, by their fields; a step does not read it
# Numbers, texts, classes and functions: equal ones are the same, and stay so.
_PLAIN = (Number, np.generic, str, bytes, type(None), type, Enum, FunctionType, BuiltinFunctionType)


def seen_by_equality(value: Any) -> bool:
    """Say whether `==` looks at all that a value holds.

    A class may inherit the `==` of a dataclass and hold more than its fields, and an object that is compared by
    identity may change between two runs. Example: two of these are "equal".

    >>> from sottovoce.schedules import Constant
    >>> class Louder(Constant):
    ...     def __init__(self, value, factor):
    ...         super().__init__(value)
    ...         object.__setattr__(self, "factor", factor)
    >>> Louder(1.0, 2.0) == Louder(1.0, 9.0), seen_by_equality(Louder(1.0, 2.0)), seen_by_equality(Constant(1.0))
    (True, False, True)
    """
    kind = type(value)
    if isinstance(value, (tuple, list, frozenset, set)):
        return all(map(seen_by_equality, value))
    if isinstance(value, Mapping):
        return all(map(seen_by_equality, value.values()))
    if not is_dataclass(value) or isinstance(value, type):
        return isinstance(value, _PLAIN)
    derived = {name for name, held in _attributes(kind) if isinstance(held, cached_property)}
    names = {field.name for field in fields(value)}
    by_fields = all(field.compare for field in fields(value)) and _compared_by_fields(kind)  # type: ignore[arg-type]
    own = kind.__dataclass_params__.frozen and (by_fields or kind.__eq__ is object.__eq__)
    said = {TARGET, *(_FROM_FIELDS if kind.__module__.startswith(_METHODS) else ())}
    held = set(getattr(value, "__dict__", ())) - said
    return own and held <= names | derived and all(seen_by_equality(getattr(value, name)) for name in names)


@lru_cache(maxsize=256)
def _compared_by_fields(kind: Any) -> bool:
    """Say whether a dataclass has the `==` that Python writes for its fields, and none of its own."""
    made = make_dataclass(kind.__name__, [field.name for field in fields(kind)], frozen=True)
    codes = [getattr(vars(one).get("__eq__"), "__code__", None) for one in (kind, made)]
    said = [None if code is None else (code.co_code, code.co_names, code.co_consts) for code in codes]
    return said[0] is not None and said[0] == said[1]


def _attributes(kind: type) -> Iterator[tuple[str, Any]]:
    for one in kind.__mro__:
        yield from vars(one).items()
