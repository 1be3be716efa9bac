"""Run a traced step: JAX's own equations are computed, ours are handed to whoever can answer them.

Example: ``walk`` over the step of DP-SGD computes the arithmetic, and stops three times to ask: at `sample`, at
`release` and at `mix`. On one machine the answers are array operations inside one compiled program; deployed, `mix`
sends a message and waits. What lies between two stops is a `Segment`, which is compiled once. Where a place can answer
some equations inside a compiled program, they are no stops, and segments reach from one exchange to the next.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Primitive, Var

from sottovoce.methods.equations import OURS, loop_p
from sottovoce.tracing import compiled

Stop = tuple[JaxprEqn, list[Any]]  # an equation of ours and its operands
Walk = Generator[Stop, Sequence[Any], list[Any]]
Answer = Callable[[JaxprEqn, list[Any]], Sequence[Any]]


@dataclass(frozen=True, eq=False)
class Segment:
    """Compute consecutive equations without a stop, as one function of the values that they take from before."""

    equations: tuple[JaxprEqn, ...]
    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]

    def __call__(self, *values: Any, answer: Answer | None = None) -> list[Any]:
        """Compute the values that are used later; `answer` is for equations of ours that are no stops."""
        held: dict[Var, Any] = dict(zip(self.inputs, values, strict=True))
        for equation in self.equations:
            operands = [given.val if isinstance(given, Literal) else held[given] for given in equation.invars]
            if answer is not None and equation.primitive in OURS:
                held.update(zip(equation.outvars, answer(equation, operands)))
                continue
            results = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(equation.params))
            held.update(zip(equation.outvars, results if equation.primitive.multiple_results else [results]))
        return [held[var] for var in self.outputs]

    @cached_property
    def compiled(self) -> Callable[..., list[Any]]:
        """Return the same function, compiled."""
        return compiled(self.__call__)


@lru_cache(maxsize=256)
def pieces(jaxpr: Jaxpr, stops: frozenset[Primitive] = OURS) -> tuple[Segment | JaxprEqn, ...]:
    """Return a jaxpr cut at the equations that are stops, and at loops with such an equation inside.

    >>> import jax
    >>> len(pieces(jax.make_jaxpr(lambda x: x * 2 + 1)(1.0).jaxpr))
    1
    """
    groups: list[list[JaxprEqn] | JaxprEqn] = []
    for equation in jaxpr.eqns:
        if contains([equation], stops):
            groups.append(equation)
        elif groups and isinstance(groups[-1], list):
            groups[-1].append(equation)
        else:
            groups.append([equation])
    later: set[Var] = {var for var in jaxpr.outvars if not isinstance(var, Literal)}
    cut: list[Segment | JaxprEqn] = []
    for group in reversed(groups):
        equations = group if isinstance(group, list) else [group]
        made = dict.fromkeys(var for equation in equations for var in equation.outvars)
        used = dict.fromkeys(v for equation in equations for v in equation.invars if not isinstance(v, Literal))
        inputs = tuple(var for var in used if var not in made)
        if isinstance(group, list):
            cut.append(Segment(tuple(group), inputs, tuple(var for var in made if var in later)))
        else:
            cut.append(group)
        later |= set(inputs)
    return tuple(reversed(cut))


def contains(equations: Iterable[JaxprEqn], kinds: frozenset[Primitive]) -> bool:
    """Say whether some equation, or one inside its loops, is of these kinds.

    >>> import jax
    >>> contains(jax.make_jaxpr(lambda x: x * 2 + 1)(1.0).jaxpr.eqns, OURS)
    False
    """
    return any(
        equation.primitive in kinds or (equation.primitive is loop_p and contains(equation.params["body"].eqns, kinds))
        for equation in equations
    )


def walk(
    jaxpr: Jaxpr, consts: Sequence[Any], arguments: Sequence[Any], compiled: bool,
    stops: frozenset[Primitive] = OURS, compute: Callable[[Segment, list[Any]], list[Any]] | None = None,
) -> Walk:  # fmt: skip
    """Compute a jaxpr's results; yield each stop with its operands, and receive its results.

    With `compiled`, what lies between two stops is compiled; otherwise it becomes part of the surrounding program.
    `compute` says how, where a place has a way of its own.
    """
    held: dict[Var, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    held.update(zip(jaxpr.invars, arguments, strict=True))

    def value(given: Any) -> Any:
        return given.val if isinstance(given, Literal) else held[given]

    for piece in pieces(jaxpr, stops):
        if isinstance(piece, Segment):
            operands = [held[var] for var in piece.inputs]
            run = piece.compiled if compiled else piece
            held.update(zip(piece.outputs, compute(piece, operands) if compute else run(*operands)))
        else:
            held.update(zip(piece.outvars, (yield piece, [value(given) for given in piece.invars])))
    return [value(var) for var in jaxpr.outvars]


def play(walking: Walk, answer: Answer) -> list[Any]:
    """Run a walk to its end, with each stop answered."""
    reply: Any = None
    while True:
        try:
            stop = walking.send(reply)
        except StopIteration as end:
            return end.value
        reply = answer(*stop)
