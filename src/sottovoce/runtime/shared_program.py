"""Let runs that differ in numbers alone, for example in a rate, share one compiled program.

A traced step holds a rate as a number inside an equation, and so does the program that is compiled from it. Here such
numbers become inputs. Example: a search over eight rates compiles once, not eight times. What is computed is the same
up to the last bits, because a compiler may simplify with a number that it knows.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var

from sottovoce.accounting.identity import identity
from sottovoce.accounting.trace import KEPT, Trace, seen_by_equality
from sottovoce.methods.equations import loop_p, shape_of

Held = TypeVar("Held")


def shared(trace: Trace, problem: Any) -> tuple[Trace, tuple[list[Any], list[Any]]]:
    """Return a trace that all runs of this form share, and the numbers of this one, for `init` and for `step`.

    Noise is no such number: what is drawn must be what is charged. So releases must be equal, where `==` sees all of
    them; otherwise nothing is shared.
    """
    init, step = lifted(trace.init), lifted(trace.step)
    own, numbers = replace(trace, init=init, step=step), (list(init.consts), list(step.consts))
    releases = tuple(charge.release for charge in trace.charges)
    if not seen_by_equality(releases):
        return own, numbers
    return representative((problem, trace.known, releases, form([init, step])), own), numbers


def form(programs: Sequence[ClosedJaxpr]) -> str:
    """Return a digest of programs, whatever the numbers that were lifted out of them."""
    return identity(
        *(ClosedJaxpr(one.jaxpr, [np.zeros_like(np.asarray(number)) for number in one.consts]) for one in programs)
    )


def representative(key: Hashable, held: Held) -> Held:
    """Return what was held first under this key, one of the last `KEPT`."""
    return _first(_Entry(key, held))


@dataclass(frozen=True)
class _Entry:
    key: Hashable
    held: Any = field(compare=False)


@lru_cache(maxsize=KEPT)
def _first(entry: _Entry) -> Any:
    return entry.held


def lifted(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return the same function with the numbers inside its equations, and inside our loops, among its constants.

    >>> import jax
    >>> halved = lifted(jax.make_jaxpr(lambda x: 0.5 * x)(1.0))
    >>> [float(number) for number in halved.consts], len(halved.jaxpr.constvars)
    ([0.5], 1)
    """
    names, jaxpr, numbers = _lifted(closed.jaxpr)
    return ClosedJaxpr(jaxpr.replace(constvars=[*jaxpr.constvars, *names]), [*closed.consts, *numbers])


def _lifted(jaxpr: Jaxpr) -> tuple[list[Var], Jaxpr, list[Any]]:
    """Return names for the numbers of a jaxpr, the jaxpr with these names, and the numbers."""
    names: list[Var] = []
    numbers: list[Any] = []
    rewritten = []
    for equation in jaxpr.eqns:
        invars, params = list(equation.invars), dict(equation.params)
        if equation.primitive is loop_p:
            inside, body, held = _lifted(params["body"])
            outside = [Var(name.aval) for name in inside]
            names, numbers = [*names, *outside], [*numbers, *held]
            params.update(body=body.replace(invars=[*inside, *body.invars]), consts=params["consts"] + len(inside))
            invars = [*outside, *invars]
        for place, given in enumerate(invars):
            if isinstance(given, Literal) and np.issubdtype(shape_of(given).dtype, np.floating):
                names.append(Var(given.aval))
                numbers.append(np.asarray(given.val, shape_of(given).dtype))
                invars[place] = names[-1]
        rewritten.append(equation.replace(invars=invars, params=params))
    return names, jaxpr.replace(eqns=rewritten), numbers
