"""Define the equations that a traced step is made of, beside JAX's own.

A method's `step` is traced once, to a jaxpr. Whatever it asks of its agent stands in that jaxpr as an equation with one
of the names below. Example: the step of DP-SGD over a graph reads ``sample, release, (arithmetic), mix``. Three readers
follow these equations: the account counts them, the private marks are followed along them, and a place to run
(`sottovoce.runtime`) answers each one and compiles what lies between two exchanges.

| equation | what goes in | what comes out |
|---|---|---|
| `sample` | nothing | a batch: opaque, only `release` and `mean` can use it |
| `release` | a batch, a point, what the losses close over | the clipped, averaged and noised gradient: public |
| `mean` | the same | the clipped and averaged gradient: private |
| `tell` | a private value | the value with noise: the message of a printed design |
| `mix` | what the agent sends | the weighted sum of what it receives |
| `loop` | what the body closes over, and the carry | the carry after the last turn |
| `key` | nothing | a random key for the method's own choices |
| `features` | row numbers | a party's columns of these rows (tables split by columns) |
| `ask` | head outputs | the server's gradients at them |
| `total` | numbers | their sums over the parties |
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Primitive, jaxprs_in_params

from sottovoce.privacy.gate import RecordFunction


def _equation(name: str) -> Primitive:
    made = Primitive(name)
    made.multiple_results = True
    return made


sample_p, release_p, mean_p, tell_p = map(_equation, ("sample", "release", "mean", "tell"))
mix_p, loop_p, key_p = map(_equation, ("mix", "loop", "key"))
features_p, ask_p, total_p = map(_equation, ("features", "ask", "total"))
OURS = frozenset({sample_p, release_p, mean_p, tell_p, mix_p, loop_p, key_p, features_p, ask_p, total_p})


@dataclass(frozen=True, eq=False)
class Asked:
    """Say what a `release` or `mean` reads: its functions, one per level."""

    functions: tuple[RecordFunction, ...]
    structure: Any  # of the point
    count: int  # leaves of the point

    def split(self, values: Sequence[Any]) -> tuple[Any, Sequence[Any], list[Sequence[Any]]]:
        """Return the equation's operands as batch, point, and what each function closes over."""
        batch, at, rest = values[0], values[1 : 1 + self.count], list(values[1 + self.count :])
        closed_over: list[Sequence[Any]] = []
        for function in self.functions:
            closed_over.append(rest[: function.consts])
            rest = rest[function.consts :]
        return batch, at, closed_over


@sample_p.def_abstract_eval
def _sample(**_: Any) -> list[Any]:
    return [jax.core.ShapedArray((), jnp.int32)]  # a stand-in: places put the drawn rows there


@key_p.def_abstract_eval
def _key(**_: Any) -> list[Any]:
    key = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))
    return [jax.core.ShapedArray((), key.dtype)]


def _point(_: Any, *operands: Any, asked: Asked, **__: Any) -> list[Any]:
    return list(operands[: asked.count])


release_p.def_abstract_eval(_point)
mean_p.def_abstract_eval(_point)


def _same(*operands: Any, **_: Any) -> list[Any]:
    return list(operands)


tell_p.def_abstract_eval(_same)
mix_p.def_abstract_eval(_same)
total_p.def_abstract_eval(_same)


@ask_p.def_abstract_eval
def _ask(_: Any, outputs: Any, **__: Any) -> list[Any]:
    return [outputs]


@loop_p.def_abstract_eval
def _loop(*operands: Any, consts: int, **_: Any) -> list[Any]:
    return list(operands[consts:])


@features_p.def_abstract_eval
def _features(_: Any, *, shapes: tuple[Any, ...], **__: Any) -> list[Any]:
    return [jax.core.ShapedArray(shape.shape, shape.dtype) for shape in shapes]


def shape_of(var: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and type of a variable of a jaxpr.

    >>> shape_of(jax.make_jaxpr(jnp.sum)(jnp.ones(3)).jaxpr.invars[0])
    ShapeDtypeStruct(shape=(3,), dtype=float32)
    """
    return jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)


def inner_jaxprs(equation: JaxprEqn) -> Iterator[Jaxpr]:
    """Return the jaxprs inside an equation of JAX's own, such as the body of a scan."""
    for inner in jaxprs_in_params(equation.params):
        yield inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner


def hidden(jaxpr: Jaxpr) -> JaxprEqn | None:
    """Return an equation of ours inside control flow that is not `agent.loop`, if there is one.

    >>> hidden(jax.make_jaxpr(lambda x: jax.lax.cond(x > 0, lambda: x, lambda: -x))(1.0).jaxpr) is None
    True
    """
    for equation in jaxpr.eqns:
        if equation.primitive is loop_p:
            found = hidden(equation.params["body"])
            if found is not None:
                return found
        elif equation.primitive not in OURS:
            for inner in inner_jaxprs(equation):
                for nested in inner.eqns:
                    if nested.primitive in OURS:
                        return nested
                found = hidden(inner)
                if found is not None:
                    return found
    return None
