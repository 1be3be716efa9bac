"""Trace what somebody wrote, with every lock: the one way in, for parties with rows and with columns.

What a run computes was traced here before. Example: a loss that closes over an array is refused in `traced`, and so is
a `release` inside `jax.lax.scan`, wherever it stands: in a method, in a linear model, an embedding, an optimiser, a
schedule, a projection or a rule for a derivative, because all of them are inside the jaxpr.

| lock | what is refused |
|---|---|
| arrays and callbacks | an array that nobody declared, a call back to Python, code that a trace does not show |
| hidden equations | an equation of ours inside control flow of JAX's, where nobody could count it |
| kinds | an equation that this kind of party has not; a release or a sampling of a kind of one's own |
| private marks | a value that is private, where it is mixed, released at, or kept by a party with columns |

A problem's own functions and a model file's `predict` are traced below, by `programs.traced`, with the first lock: no
equation of ours can stand in them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Primitive

from sottovoce.accounting import marks
from sottovoce.closed import require
from sottovoce.methods import equations
from sottovoce.methods.base import Method
from sottovoce.methods.handle import like, strong
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import KINDS as SAMPLINGS
from sottovoce.problems import captures, objectives, programs
from sottovoce.problems.programs import Refused

REMEDY = (
    "A method reads records through its agent alone; if the array is public, set public_constants = True on the class "
    "(or public_constants=True, where a function of the problem brings it)."
)
_BOTH = (equations.loop_p, equations.key_p)
OF_ROWS = frozenset(
    {equations.sample_p, equations.release_p, equations.mean_p, equations.tell_p, equations.mix_p, *_BOTH}
)
OF_COLUMNS = frozenset({equations.features_p, equations.ask_p, equations.total_p, *_BOTH})
_KINDS = {"release": (Release,), "sampling": SAMPLINGS}


@dataclass(frozen=True)
class Locks:
    """Hold what a run's programs may hold: declared arrays (with `public` all), and equations of these kinds."""

    declared: tuple[Any, ...]
    public: bool
    kinds: frozenset[Primitive]


@dataclass(frozen=True, eq=False)
class Program:
    """Hold `init` and `step` of one participant as jaxprs, the form of its state, and which leaves are private."""

    init: ClosedJaxpr
    step: ClosedJaxpr
    structure: Any
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    private: tuple[bool, ...]


def locks(method: Method, problem: Any, known: Sequence[Any], public: bool, kinds: frozenset[Primitive]) -> Locks:
    """Return the locks of a run; refuse at once what its functions bring along by name, which says best where.

    `known` are the arrays that everybody knows: starting values and tables. The method's own settings are known too.
    """
    objectives.refuse_captures(problem)
    for name in ("init", "step"):
        said = f"{type(method).__name__}.{name}"
        captures.refuse(said, getattr(method, name), [], REMEDY, public=method.public_constants)
    return Locks((*known, *settings(method)), public, kinds)


def settings(value: Any) -> Iterator[np.ndarray]:
    """Yield the lists of numbers that a method is configured with, such as one rate per agent.

    >>> from sottovoce.schedules import Constant
    >>> [numbers.tolist() for numbers in settings(Constant((0.1, 0.2)))]
    [[0.1, 0.2]]
    """
    if isinstance(value, tuple):
        with suppress(TypeError, ValueError):  # values of several kinds
            yield np.asarray(value, np.float64)
        for inner in value:
            yield from settings(inner)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from settings(getattr(value, field.name))


def traced(name: str, function: Callable[..., Any], *given: Any, locks: Locks) -> ClosedJaxpr:
    """Return a function's jaxpr after every lock was tried; Refused names what is wrong.

    >>> free = Locks((), False, OF_ROWS)
    >>> traced("step", lambda x: 2 * x, 1.0, locks=free).out_avals
    [ShapedArray(float32[], weak_type=True)]
    >>> traced("step", lambda x: x + np.arange(3), 1.0, locks=free)
    Traceback (most recent call last):
    ...
    sottovoce.problems.programs.Refused: step closes over an array of shape (3,), which would by-pass ...
    """
    allowed: dict[str, Any] = {"remedy": REMEDY, "declared": locks.declared, "public": locks.public}
    closed, _ = programs.traced(name, function, *given, **allowed)
    programs.refuse(name, _of_records(closed.jaxpr), **allowed)
    _refuse_hidden(closed.jaxpr)
    _refuse_kinds(name, closed.jaxpr, locks.kinds)
    return closed


def participant(
    method: Method,
    begin: Callable[..., Any],
    step: Callable[..., Any],
    first: Sequence[Any],
    later: Sequence[Any],
    locks: Locks,
) -> Program:
    """Trace ``begin(*first)``, which returns a state, and ``step(state, *later)``, which returns the next one."""
    found: dict[str, Any] = {}
    name = type(method).__name__

    def init(*values: Any) -> list[jax.Array]:
        leaves, found["structure"] = jax.tree.flatten(begin(*values))
        return [strong(leaf) for leaf in leaves]

    def move(*values: Any) -> list[jax.Array]:
        state = jax.tree.unflatten(found["structure"], values[len(later) :])
        after, structure = jax.tree.flatten(step(state, *values[: len(later)]))
        return like(after, structure, list(shapes), found["structure"], f"{name}.step")

    started = traced(f"{name}.init", init, *first, locks=locks)
    shapes = tuple(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in started.out_avals)
    stepped = traced(f"{name}.step", move, *later, *shapes, locks=locks)
    return Program(started, stepped, found["structure"], shapes, _settled(started.jaxpr, stepped.jaxpr))


def slope(name: str, function: ClosedJaxpr, locks: Locks) -> ClosedJaxpr:
    """Return the gradient of a traced function's sum: rules of its own for derivatives are written out in it."""

    def total(value: Any) -> Any:
        return jax.numpy.sum(jax.core.eval_jaxpr(function.jaxpr, function.consts, value)[0])

    return traced(name, jax.grad(total), equations.shape_of(function.jaxpr.invars[0]), locks=locks)


def _of_records(jaxpr: Jaxpr) -> Iterator[ClosedJaxpr]:
    """Yield the functions of one record that a step releases, and their gradients where a rule says how to derive."""
    for equation in jaxpr.eqns:
        if equation.primitive is equations.loop_p:
            yield from _of_records(equation.params["body"])
        if equation.primitive not in (equations.release_p, equations.mean_p):
            continue
        asked = equation.params["asked"]
        for function in asked.functions:
            yield ClosedJaxpr(function.jaxpr, ())
            if programs.has_rules(function.jaxpr):
                shapes = [equations.shape_of(var) for var in function.jaxpr.invars]
                point = tuple(range(function.consts, function.consts + asked.count))
                yield jax.make_jaxpr(jax.grad(partial(_value, function.jaxpr), argnums=point))(*shapes)


def _value(jaxpr: Jaxpr, *values: jax.Array) -> jax.Array:
    return jax.core.eval_jaxpr(jaxpr, (), *values)[0]


def _refuse_hidden(jaxpr: Jaxpr) -> None:
    """Refuse an equation of ours inside control flow of JAX's: nobody could count it."""
    found = equations.hidden(jaxpr)
    if found is not None:
        raise Refused(
            f"a {found.primitive.name} stands inside jit, cond, while or scan, where the ledger cannot count it: "
            "call it in the step itself, or repeat it with agent.loop"
        )


def _refuse_kinds(name: str, jaxpr: Jaxpr, kinds: frozenset[Primitive]) -> None:
    """Refuse equations of ours that this participant has not, and releases or samplings of a kind of one's own."""
    for equation in jaxpr.eqns:
        if equation.primitive in equations.OURS - kinds:
            raise Refused(
                f"{name} holds a {equation.primitive.name}, which a party with other data has: use its handle"
            )
        for what, closed in _KINDS.items():
            if what in equation.params and equation.primitive in equations.OURS:
                require(what, equation.params[what], closed)
        if equation.primitive is equations.loop_p:
            _refuse_kinds(name, equation.params["body"], kinds)


def _settled(init: Jaxpr, step: Jaxpr) -> tuple[bool, ...]:
    """Return which leaves of the state are private after any number of steps."""
    private = marks.follow(init, [False] * len(init.invars))
    while True:
        after = marks.follow(step, [*[False] * (len(step.invars) - len(private)), *private])
        grown = [before or now for before, now in zip(private, after, strict=True)]
        if grown == private:
            return tuple(private)
        private = grown
