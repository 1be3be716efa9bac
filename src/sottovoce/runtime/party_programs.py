"""Compile once what one party of a run over columns computes between two exchanges.

Example: a step of BAMBI is cut at its questions to the label holder. Each piece between two questions is one program,
with the party's features and random keys inside. The label holder's answers are programs too.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from sottovoce.methods import equations
from sottovoce.runtime.columns import TableSpec
from sottovoce.runtime.interpreter import Segment
from sottovoce.runtime.keys import step_key
from sottovoce.runtime.table_answers import PartyMoment, ServerMoment, in_order
from sottovoce.tracing import compiled

STOPS = frozenset({equations.ask_p, equations.total_p, equations.loop_p})


class Programs:
    """Hold the compiled programs of a party's trace, shared by all its steps."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self._own: dict[Segment, Callable[..., list[Any]]] = {}
        self._answers: dict[tuple[int, ...], Callable[..., Any]] = {}
        self.sum, self.finish = compiled(in_order), compiled(_finish)

    def between(self, segment: Segment, loops: Sequence[int]) -> Callable[..., list[Any]]:
        """Return the program of a segment, inside the loops that it always is in."""

        def computed(keys: Any, number: Any, t: Any, turns: Sequence[Any], block: Any, values: Any) -> list[Any]:
            own, shared = (step_key(key, at, "step", t) for key, at in zip(keys, number))
            alter, *_ = self.spec.trace.alterations or (None,)  # a party by itself has the one of its own block
            now = PartyMoment(alter, block, own, shared)
            for loop, turn in zip(loops, turns):
                now = now.inside(loop, turn)

            def answer(equation: JaxprEqn, operands: list[Any]) -> list[Any]:
                asked = equation.params["number"]
                return now.features(operands[0], asked) if operands else [now.key(asked)]

            return segment(*values, answer=answer)

        return self._own.get(segment) or self._own.setdefault(segment, compiled(computed))

    def slopes(self, question: int, loops: Sequence[int]) -> Callable[..., Any]:
        """Return the program of the label holder's answer to a question."""

        def computed(key: Any, number: Any, t: Any, turns: Sequence[Any], vectors: Any, rows: Any, said: Any) -> Any:
            now = ServerMoment(self.spec.trace.losses, self.spec.gate, vectors, step_key(key, number, "step", t))
            for loop, turn in zip(loops, turns):
                now = now.inside(loop, turn)
            return now.slopes(rows, said, question)

        where = (question, *loops)
        return self._answers.get(where) or self._answers.setdefault(where, compiled(computed))


def _finish(state: Sequence[Any], broken: Any, t: Any) -> Any:
    """Return when each leaf was first not finite."""
    fine = jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in state], bool)
    return jnp.where(fine, broken, jnp.minimum(broken, t))


@lru_cache(maxsize=16)
def programs_of(spec: TableSpec) -> Programs:
    """Return the programs of a party: another run of the same trace finds them compiled."""
    return Programs(spec)
