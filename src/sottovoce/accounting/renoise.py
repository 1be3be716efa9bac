"""Give a trace other noise without tracing again.

Example: calibration multiplies the noise of a method by 1.7. A step that only releases computes the same with it, so
the new trace is the old one with other releases in its equations: exactly the one that tracing would make.
"""

from dataclasses import fields, is_dataclass, replace
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from sottovoce.accounting.content import seen_by_equality
from sottovoce.accounting.trace import Trace, charges_of, kept
from sottovoce.methods.agent import as_settled
from sottovoce.methods.base import TARGET, Method
from sottovoce.methods.equations import loop_p
from sottovoce.privacy.release import Release


def renoised(trace: Trace, method: Method, other: Method) -> Trace | None:
    """Return the trace of `other`, which is `method` with other noise; None where that must be traced.

    It must be where code of the method reads noise, or releases with a noise that it made itself, and where the two
    differ in more than noise.
    """
    pairs: list[tuple[Release, Release]] = []
    if trace.reads_noise or not _alike(method, other, pairs):
        return None
    instead: dict[Release, Release] = {}
    for before, after in pairs:
        was, now = as_settled(before, trace.known), as_settled(after, trace.known)
        if instead.setdefault(was, now) != now:
            return None
    try:
        init, step = (ClosedJaxpr(_rewritten(one.jaxpr, instead), one.consts) for one in (trace.init, trace.step))
    except KeyError:
        return None
    return kept(replace(trace, init=init, step=step, charges=charges_of(init, step, trace.known)))


def _rewritten(jaxpr: Jaxpr, instead: dict[Release, Release]) -> Jaxpr:
    """Return a jaxpr with other releases; KeyError where one is none of the method's own."""

    def one(equation: JaxprEqn) -> JaxprEqn:
        if "release" in equation.params:
            return equation.replace(params={**equation.params, "release": instead[equation.params["release"]]})
        if equation.primitive is loop_p:
            return equation.replace(params={**equation.params, "body": _rewritten(equation.params["body"], instead)})
        return equation

    return jaxpr.replace(eqns=[one(equation) for equation in jaxpr.eqns])


_BESIDE = {TARGET, "solves", "over"}  # what a method holds beside its fields, and its step does not read


def _alike(one: Any, other: Any, pairs: list[tuple[Release, Release]]) -> bool:
    """Say whether two values differ in releases alone, and note these.

    False for what holds more than its fields: it may be worked out of the noise, such as a `cached_property`.
    """
    if isinstance(one, Release) and isinstance(other, Release):
        pairs.append((one, other))
        return True
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(_alike(a, b, pairs) for a, b in zip(one, other))
    if is_dataclass(one):
        names = {field.name for field in fields(one)}
        plain = all(vars(value).keys() <= names | _BESIDE for value in (one, other))
        return plain and all(_alike(getattr(one, name), getattr(other, name), pairs) for name in sorted(names))
    return seen_by_equality(one) and bool(one == other)
