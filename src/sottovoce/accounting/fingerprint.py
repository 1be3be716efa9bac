"""Digest what a program computes: two runs with the same digest do the same to the same records.

Example: ``x ** 2`` and ``2 * x ** 2`` as losses give different digests; the same loss in another process gives the same
one, although the addresses of its functions differ. Derivatives are part of the digest, so that a changed
`custom_vjp` rule is another program.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxprs_in_params

from sottovoce.methods import equations
from sottovoce.privacy.gate import RecordFunction


def fingerprint(programs: Iterable[ClosedJaxpr], beside: Sequence[np.ndarray] = ()) -> str:
    """Return a digest of traced programs: their equations, the numbers inside them, and how they differentiate.

    `beside` are further numbers that the programs depend on.

    >>> import jax.numpy as jnp
    >>> half, whole = (jax.make_jaxpr(lambda x, c=c: c * x)(jnp.ones(2)) for c in (0.5, 1.0))
    >>> fingerprint([half]) == fingerprint([whole])
    False
    """
    sha = hashlib.sha256()
    for closed in programs:
        sha.update(_text(closed.jaxpr).encode())
        for constant in _constants(closed.jaxpr, closed.consts):
            _add(sha, np.asarray(constant))
        for function in _record_functions(closed.jaxpr):
            sha.update(_text(_derivative(function)).encode())
    for numbers in beside:
        _add(sha, numbers)
    return sha.hexdigest()[:32]


def _add(sha: Any, held: np.ndarray) -> None:
    sha.update(f"{held.dtype}{held.shape}".encode())
    sha.update(np.ascontiguousarray(held).tobytes())


def _text(jaxpr: Jaxpr) -> str:
    """Return a jaxpr in words. Addresses of functions differ from process to process, what they compute does not."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(jaxpr))


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


def _record_functions(jaxpr: Jaxpr) -> Iterator[RecordFunction]:
    for equation in jaxpr.eqns:
        if "asked" in equation.params:
            yield from equation.params["asked"].functions
        elif equation.primitive is equations.loop_p:
            yield from _record_functions(equation.params["body"])


def _constants(jaxpr: Jaxpr, own: Sequence[Any]) -> Iterator[Any]:
    """Return all numbers that a program closes over, also those inside functions that it calls."""
    yield from own
    for equation in jaxpr.eqns:
        for function in equation.params["asked"].functions if "asked" in equation.params else ():
            yield from _constants(function.jaxpr, ())
        inner: Any
        for inner in jaxprs_in_params(equation.params):
            closed = isinstance(inner, ClosedJaxpr)
            yield from _constants(inner.jaxpr if closed else inner, inner.consts if closed else ())
