"""Find what is private in a traced step, by data dependence.

A value is private if it is computed from a record without noise. Example: in a printed design `agent.mean` returns a
private gradient g; then ``x - rate * g`` is private, and so is everything computed from it, through any JAX operation
and any container, until `agent.tell` adds noise. Privacy marks are therefore not attached to values; they are read off
the jaxpr.
"""

from collections.abc import Sequence

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from sottovoce.methods import equations

# Equations whose inner jaxpr takes and returns what the equation does, one to one.
_TRANSPARENT = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2")


def follow(jaxpr: Jaxpr, private: Sequence[bool]) -> list[bool]:
    """Return which outputs are private, given which inputs are.

    Guarantee: an output that is not marked is a function of the unmarked inputs, of what `release` and `tell` returned,
    and of public constants and keys. Raises TypeError where a private value is mixed, or released at.

    >>> import jax, jax.numpy as jnp
    >>> follow(jax.make_jaxpr(lambda a, b: (a + 1, jnp.sin(a) * b))(1.0, 2.0).jaxpr, [False, True])
    [False, True]
    """
    marked: set[Var] = {var for var, is_private in zip(jaxpr.invars, private, strict=True) if is_private}
    for equation in jaxpr.eqns:
        operands = [not isinstance(given, Literal) and given in marked for given in equation.invars]
        results = _results(equation, operands)
        marked.update(var for var, is_private in zip(equation.outvars, results, strict=True) if is_private)
    return [not isinstance(var, Literal) and var in marked for var in jaxpr.outvars]


def _results(equation: JaxprEqn, operands: list[bool]) -> list[bool]:
    kind, count = equation.primitive, len(equation.outvars)
    if kind is equations.mean_p:
        return [True] * count
    if kind is equations.tell_p:
        return [False] * count
    if kind is equations.release_p:
        if any(operands):
            raise TypeError(
                f"release {equation.params['release'].name!r} at a private point: its noise does not cover how the "
                "point was computed. Release at public points, or use agent.mean and agent.tell in a printed design."
            )
        return [False] * count
    if kind is equations.mix_p:
        if any(operands):
            raise TypeError(
                "a private value may not leave the agent: agent.mix was given one. Use agent.tell, which adds the "
                "noise it needs, or mix a released value"
            )
        return [False] * count
    if kind is equations.loop_p:
        return _through_loop(equation, operands)
    inner = _transparent(equation)
    if inner is not None:
        return follow(inner, operands)
    return [any(operands)] * count


def _through_loop(equation: JaxprEqn, operands: list[bool]) -> list[bool]:
    """Mark a loop's carry as private as soon as some turn makes it private."""
    body, consts = equation.params["body"], equation.params["consts"]
    closed_over, carry = operands[:consts], operands[consts:]
    while True:
        after = follow(body, [*closed_over, *carry])
        grown = [before or now for before, now in zip(carry, after, strict=True)]
        if grown == carry:
            return carry
        carry = grown


def _transparent(equation: JaxprEqn) -> Jaxpr | None:
    if equation.primitive.name not in _TRANSPARENT:
        return None
    for name in ("jaxpr", "call_jaxpr"):
        inner = equation.params.get(name)
        jaxpr = inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner
        if isinstance(jaxpr, Jaxpr) and len(jaxpr.invars) == len(equation.invars):
            return jaxpr
    return None
