"""Let runs that differ in numbers alone, for example in a rate, share one compiled program.

A traced step holds a rate as a number inside an equation, and so does the program that is compiled from it. Here such
numbers become inputs: numbers in equations, captured arrays such as a start, the scale of the noise, and the weights of
a small network. Example: a search over eight rates compiles once, not eight times. What is computed is the same up to
the last bits, because a compiler may simplify with a number that it knows.

Everything else is the key of the program (`accounting.content`): nothing is shared with a run in which a loss has
another number inside, or which samples, clips or mixes by another rule.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from sottovoce.accounting.content import first_alike, program
from sottovoce.accounting.trace import Trace
from sottovoce.data.population import Population
from sottovoce.methods import equations
from sottovoce.methods.agent import Known
from sottovoce.methods.equations import loop_p, shape_of
from sottovoce.networks import isolated
from sottovoce.privacy.release import Release
from sottovoce.runtime import mixing
from sottovoce.schedules import as_drawn

Brings = Callable[[JaxprEqn], tuple[dict[str, Any], np.ndarray] | None]  # params, and an array to be given

_OUTSIDE = math.inf  # the noise of a shared release: its own is given to the program; without it nothing finite is left
_LARGEST = 2**16  # numbers in a table of noise scales; a larger one stays what it is
_FORMULAS = 64  # agents whose noise is listed


def shared(trace: Trace) -> tuple[Trace, tuple[list[Any], list[Any]]]:
    """Return a trace that all runs of this form share, and the numbers of this one, for `init` and for `step`.

    The shared trace knows nothing of a run that another run of this form may have otherwise: no names, charges,
    weights or noise.
    """
    known = trace.known

    def brings(equation: JaxprEqn) -> tuple[dict[str, Any], np.ndarray] | None:
        return _noise(equation, known) or _weights(equation, known)

    init, step = lifted(trace.init, brings), lifted(trace.step, brings)
    network = known.network if _by_network(init.jaxpr) or _by_network(step.jaxpr) else isolated(known.network.size)
    kept = Known(Population(known.population.sizes), network, known.steps, known.records, known.summed)
    own = replace(trace, init=init, step=step, structure=None, charges=(), known=kept)
    key = program(init, constants=False), program(step, constants=False), trace.private, kept
    return first_alike(key, own), (list(init.consts), list(step.consts))


def _noise(equation: JaxprEqn, known: Known) -> tuple[dict[str, Any], np.ndarray] | None:
    """Return a release without its noise, and the scales that are drawn (by step, by agent), where these are few."""
    release = equation.params.get("release")
    if equation.primitive not in (equations.release_p, equations.tell_p) or type(release) is not Release:
        return None
    listed = release.scale.agents or 1
    if listed > _FORMULAS or listed * known.steps > _LARGEST:
        return None
    table = as_drawn(release.scale, np.arange(known.steps), range(listed))
    if not table.any():  # nothing is drawn, which is another program
        return None
    return {"release": replace(release, noise=_OUTSIDE), "given": True}, table


def _weights(equation: JaxprEqn, known: Known) -> tuple[dict[str, Any], np.ndarray] | None:
    """Return that the weights of a small network are given, and these."""
    if equation.primitive is not equations.mix_p:
        return None
    over, others_only = equation.params["over"], equation.params["others_only"]
    matrix = mixing.as_matrix(known.network, over, others_only, [shape_of(var).size for var in equation.invars])
    return None if matrix is None else ({"given": True}, matrix)


def _by_network(jaxpr: Jaxpr) -> bool:
    """Say whether some exchange goes by the network itself."""
    return any(
        (equation.primitive is equations.mix_p and not equation.params.get("given"))
        or (equation.primitive is loop_p and _by_network(equation.params["body"]))
        for equation in jaxpr.eqns
    )


def lifted(closed: ClosedJaxpr, brings: Brings = lambda equation: None) -> ClosedJaxpr:
    """Return the same function with the numbers inside its equations, and inside our loops, among its constants.

    `brings` says which further array of an equation becomes its last operand, and with which params it then goes.

    >>> import jax
    >>> halved = lifted(jax.make_jaxpr(lambda x: 0.5 * x)(1.0))
    >>> [float(number) for number in halved.consts], len(halved.jaxpr.constvars)
    ([0.5], 1)
    """
    names, jaxpr, numbers = _lifted(closed.jaxpr, brings)
    return ClosedJaxpr(jaxpr.replace(constvars=[*jaxpr.constvars, *names]), [*closed.consts, *numbers])


def _lifted(jaxpr: Jaxpr, brings: Brings) -> tuple[list[Var], Jaxpr, list[Any]]:
    """Return names for the numbers of a jaxpr, the jaxpr with these names, and the numbers."""
    names: list[Var] = []
    numbers: list[Any] = []
    rewritten = []

    def outside(aval: Any, number: Any) -> Var:
        names.append(Var(aval))
        numbers.append(number)
        return names[-1]

    for equation in jaxpr.eqns:
        invars, params = list(equation.invars), dict(equation.params)
        if equation.primitive is loop_p:
            inside, body, held = _lifted(params["body"], brings)
            given = [outside(name.aval, number) for name, number in zip(inside, held, strict=True)]
            params.update(body=body.replace(invars=[*inside, *body.invars]), consts=params["consts"] + len(inside))
            invars = [*given, *invars]
        for place, operand in enumerate(invars):
            if isinstance(operand, Literal) and np.issubdtype(shape_of(operand).dtype, np.floating):
                invars[place] = outside(operand.aval, np.asarray(operand.val, shape_of(operand).dtype))
        if (brought := brings(equation)) is not None:
            params.update(brought[0])
            invars.append(outside(_aval(brought[1]), brought[1]))
        rewritten.append(equation.replace(invars=invars, params=params))
    return names, jaxpr.replace(eqns=rewritten), numbers


def _aval(array: np.ndarray) -> Any:
    return jax.core.ShapedArray(array.shape, array.dtype)
