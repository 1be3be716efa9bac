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
from typing import Any

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
        yield from _program(value.jaxpr, value.consts)
    elif isinstance(value, Jaxpr):
        yield from _program(value, ())
    elif isinstance(value, Asked):
        yield from _all("asked", (value.count, *value.functions))
    elif isinstance(value, RecordFunction):
        yield from _all("function", (value.level, value.consts, value.jaxpr, _derivative(value)))
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


def _program(jaxpr: Jaxpr, consts: Sequence[Any]) -> Iterator[bytes]:
    """Yield a jaxpr's equations, with variables by number, and the numbers that it closes over."""
    numbers: dict[Var, int] = {}

    def named(var: Any) -> Iterator[bytes]:
        shape = equations.shape_of(var)
        yield f"{numbers.setdefault(var, len(numbers))} {shape.dtype}{list(shape.shape)}".encode()

    def operand(var: Any) -> Iterator[bytes]:
        yield from (
            _array(np.asarray(var.val, equations.shape_of(var).dtype)) if isinstance(var, Literal) else named(var)
        )

    yield f"program of {len(jaxpr.constvars)}, {len(jaxpr.invars)}, {len(jaxpr.eqns)}, {len(jaxpr.outvars)}".encode()
    for var in (*jaxpr.constvars, *jaxpr.invars):
        yield from named(var)
    yield from _all("closed over", consts)
    for equation in jaxpr.eqns:
        yield f"{equation.primitive.name} {len(equation.invars)} {len(equation.outvars)}".encode()
        for given in equation.invars:
            yield from operand(given)
        for var in equation.outvars:
            yield from named(var)
        yield from _text(_params(equation))
    for given in jaxpr.outvars:
        yield from operand(given)


def _params(equation: JaxprEqn) -> dict[str, Any]:
    """Return what an equation computes with: not its words, nor Python functions."""
    return {name: held for name, held in equation.params.items() if name not in _WORDS and not callable(held)}


def _derivative(function: RecordFunction) -> Jaxpr:
    """Return the gradient's jaxpr: custom rules are written out in it."""
    shapes = [equations.shape_of(var) for var in function.jaxpr.invars]
    real = [
        number
        for number, shape in enumerate(shapes)
        if number >= function.consts and np.issubdtype(shape.dtype, np.floating)
    ]

    def value(*arguments: Any) -> Any:
        return jax.core.eval_jaxpr(function.jaxpr, (), *arguments)[0]

    return jax.make_jaxpr(jax.grad(value, argnums=tuple(real)) if real else value)(*shapes).jaxpr
