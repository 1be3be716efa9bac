"""Give a program, a law or a table of numbers one identity: a digest of its canonical text.

Two runs with the same identity do the same to the same records. Example: ``x ** 2`` and ``2 * x ** 2`` as losses give
different digests. The same loss gives the same digest in another process and after a class or a function was renamed.

**Canonical text.** Variables of a jaxpr are numbered in the order in which they appear. Equations are written by their
primitive's name and by what they compute with. Names of functions and classes, addresses, and the containers of a state
are left out, because they change nothing that is computed. A law (a release, a sampling, a schedule, a label gate) is
written as its `kind`, a word that its class fixes, and the values of its fields. Derivatives of record functions are
part of the text, so that a changed `custom_vjp` rule is another program. Every piece is written with its length, so two
different lists of pieces never have the same text.

Keys of simulated noise are made of identities, and a stored run is known by them. So a changed text gives every run
other draws, and no stored run can go on: `tests/accounting/test_identity.py` freezes it.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Protocol

import jax
import numpy as np
import scipy.sparse as sp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from sottovoce.methods import equations
from sottovoce.methods.equations import Asked
from sottovoce.privacy.gate import RecordFunction

# What an equation or a law carries for people alone.
_WORDS = frozenset({"name", "debug_info", "debug"})


def identity(*things: Any) -> str:
    """Return a digest of programs, laws, arrays and plain values.

    >>> import jax.numpy as jnp
    >>> half, whole = (jax.make_jaxpr(lambda x, c=c: c * x)(jnp.ones(2)) for c in (0.5, 1.0))
    >>> identity(half) == identity(whole), identity(half) == identity(half)
    (False, True)
    """
    sha = hashlib.sha256()
    for piece in _text(things):
        sha.update(b"%d:" % len(piece))
        sha.update(piece)
    return sha.hexdigest()[:32]


def _text(value: Any) -> Iterator[bytes]:
    """Yield the pieces of a value's canonical text."""
    if isinstance(value, ClosedJaxpr):
        yield from walk(value.jaxpr, value.consts, _Text())
    elif isinstance(value, Jaxpr):
        yield from walk(value, (), _Text())
    elif isinstance(value, Asked):
        yield from _all("asked", (value.count, *value.functions))
    elif isinstance(value, RecordFunction):
        yield from _all("function", (value.level, value.consts, value.jaxpr, derivative(value)))
    elif is_dataclass(value) and isinstance(kind := getattr(value, "kind", None), str):
        held = [getattr(value, field.name) for field in fields(value) if field.name not in _WORDS]
        yield from _all(f"law {kind}", held)
    elif isinstance(value, Mapping):
        yield from _all("mapping", [part for key in sorted(value) for part in (key, value[key])])
    elif isinstance(value, (tuple, list)):
        yield from _all("list", value)
    elif isinstance(value, (set, frozenset)):
        yield from _all("set", sorted(value, key=repr))
    elif sp.issparse(value):
        rows = value.tocsr()
        yield from _all("sparse", (rows.shape, rows.data, rows.indices, rows.indptr))
    elif isinstance(value, (np.ndarray, jax.Array)):
        yield from _array(value)
    elif isinstance(value, bytes):
        yield from (b"bytes", value)
    elif isinstance(value, str):
        yield from (b"text", value.encode())
    elif isinstance(value, Enum):
        yield from (b"choice", value.name.encode())
    else:
        yield from (b"value", _shown(value).encode())


def _all(word: str, values: Sequence[Any]) -> Iterator[bytes]:
    yield f"{word} of {len(values)}".encode()
    for value in values:
        yield from _text(value)


def _array(value: Any) -> Iterator[bytes]:
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    held = np.asarray(value)
    yield f"array {held.dtype}{held.shape}".encode()
    yield np.ascontiguousarray(held).tobytes()


def _shown(value: Any) -> str:
    """Return a value of JAX's or Python's own in words, without addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


class Words(Protocol):
    """Say how the pieces of a program are written: in words for all processes, or as objects of this one."""

    def variable(self, number: int, var: Var, new: bool) -> Iterator[Any]:
        """Yield what stands for a variable; numbers count in the order of appearance."""

    def literal(self, given: Literal) -> Iterator[Any]:
        """Yield what stands for a number inside an equation."""

    def equation(self, equation: JaxprEqn) -> Iterator[Any]:
        """Yield what an equation does, and to how many operands."""

    def params(self, equation: JaxprEqn) -> Iterator[Any]:
        """Yield what an equation computes with."""

    def closed_over(self, consts: Sequence[Any]) -> Iterator[Any]:
        """Yield the numbers that a program closes over."""


def walk(jaxpr: Jaxpr, consts: Sequence[Any], words: Words) -> Iterator[Any]:
    """Yield a program piece by piece, in one order for all who ask whether two are the same."""
    numbers: dict[Var, int] = {}

    def each(values: Sequence[Any]) -> Iterator[Any]:
        for value in values:
            if isinstance(value, Literal):
                yield from words.literal(value)
            else:
                new = value not in numbers
                yield from words.variable(numbers.setdefault(value, len(numbers)), value, new)

    yield f"program of {len(jaxpr.constvars)}, {len(jaxpr.invars)}, {len(jaxpr.eqns)}, {len(jaxpr.outvars)}".encode()
    yield from each([*jaxpr.constvars, *jaxpr.invars])
    yield from words.closed_over(consts)
    for equation in jaxpr.eqns:
        yield from words.equation(equation)
        yield from each([*equation.invars, *equation.outvars])
        yield from words.params(equation)
    yield from each(jaxpr.outvars)


class _Text:
    """Write a program in canonical text."""

    def variable(self, number: int, var: Var, new: bool) -> Iterator[bytes]:
        """Yield its number, type and shape."""
        shape = equations.shape_of(var)
        yield f"{number} {shape.dtype}{list(shape.shape)}".encode()

    def literal(self, given: Literal) -> Iterator[bytes]:
        """Yield the number."""
        yield from _array(np.asarray(given.val, equations.shape_of(given).dtype))

    def equation(self, equation: JaxprEqn) -> Iterator[bytes]:
        """Yield the primitive's name."""
        yield f"{equation.primitive.name} {len(equation.invars)} {len(equation.outvars)}".encode()

    def params(self, equation: JaxprEqn) -> Iterator[bytes]:
        """Yield all but words and Python functions."""
        given = equation.params.items()
        yield from _text({name: held for name, held in given if name not in _WORDS and not callable(held)})

    def closed_over(self, consts: Sequence[Any]) -> Iterator[bytes]:
        """Yield the arrays."""
        yield from _all("closed over", consts)


def derivative(function: RecordFunction, all_given: bool = False) -> ClosedJaxpr:
    """Return the gradient as a program, at the point or in all that is given: custom rules are written out in it."""
    shapes = [equations.shape_of(var) for var in function.jaxpr.invars]
    first = 0 if all_given else function.consts
    real = [k for k, shape in enumerate(shapes) if k >= first and np.issubdtype(shape.dtype, np.floating)]

    def value(*arguments: Any) -> Any:
        return jax.core.eval_jaxpr(function.jaxpr, (), *arguments)[0]

    return jax.make_jaxpr(jax.grad(value, argnums=tuple(real)) if real else value)(*shapes)
