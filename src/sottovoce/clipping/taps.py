"""Find where a function of one record uses its parameters, and get the cotangents that arrive there.

A per-record function is traced to a jaxpr and evaluated again, equation by equation. Where a parameter leaf meets the
record in a product (`dot_general`, a convolution, a look-up of rows), a *tap* is put in: a zero is added to the
product's result. The derivative with respect to that zero is the cotangent `d` of this *use* of the leaf. Together with
the other factor `a` of the product it determines the leaf's gradient, and that gradient is never formed.

For example, in ``0.5 * (x @ w - y) ** 2`` the leaf `w` is used once, in ``x @ w``. With a tap it becomes
``0.5 * (x @ w + zero - y) ** 2``. The derivative in `zero` is d = x @ w - y, the other factor is a = x, and the
gradient in `w` is d * a.

A leaf that is used in any other way gets a zero added to itself instead. The derivative with respect to that zero is
the leaf's own per-record gradient, which is what `vmap(grad)` would compute, but for this leaf alone. A leaf that
becomes complex is treated in the same way: JAX carries the derivative back through complex numbers, and what arrives at
the leaf is real.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, primitives

from sottovoce.clipping.convolutions import IN_SLICES
from sottovoce.clipping.products import MOVES, PRODUCTS, Use, View, shape_of

_INLINED = {primitives.jit_p: "jaxpr", primitives.closed_call_p: "call_jaxpr", primitives.remat_p: "jaxpr"}


@dataclass
class TappedValue:
    """Hold one value of the evaluation.

    value: what the equation computed.
    view: set if the value consists of elements of one leaf, for example ``w.T`` or ``w[0]``.
    tapped: the same value computed from the leaf plus the leaf's own tap; equal to `value` where there is no such tap.
    fixed: whether the value depends on neither leaves nor record.
    """

    value: Array
    view: View | None = None
    tapped: Any = None
    fixed: bool = False

    def __post_init__(self) -> None:
        if self.tapped is None:
            self.tapped = self.value


@dataclass
class Taps:
    """Note what one evaluation met: the uses in order, their factors and shapes, and the leaves used in other ways.

    Without `zeros` the uses are only noted. With `zeros`, one per use, they are added to the products.
    """

    zeros: Sequence[Array] | None = None
    uses: list[Use] = field(default_factory=list)
    factors: list[list[Array]] = field(default_factory=list)
    results: list[jax.ShapeDtypeStruct] = field(default_factory=list)
    direct: set[int] = field(default_factory=set)

    def add(self, use: Use, factor: list[Array], result: Array) -> Array:
        """Note a use and add its zero to the result."""
        if self.zeros is not None:
            result = result + self.zeros[len(self.uses)]
        self.uses.append(use)
        self.factors.append(factor)
        self.results.append(jax.ShapeDtypeStruct(result.shape, result.dtype))
        return result


def evaluate(closed: ClosedJaxpr, leaves: Sequence[TappedValue], rest: Sequence[Array], taps: Taps) -> Array:
    """Evaluate a scalar function that was traced to `closed`, with taps; its first arguments are the leaves.

    >>> closed = jax.make_jaxpr(lambda w, x: (x @ w) ** 2)(jnp.ones(3), jnp.ones(3))
    >>> taps = Taps()
    >>> float(evaluate(closed, [leaf_cell(0, jnp.ones(3))], [jnp.ones(3)], taps))
    9.0
    >>> [(use.kind, use.leaf, use.positions) for use in taps.uses]
    [('dot', 0, 1)]
    """
    [out] = _walk(closed.jaxpr, closed.consts, [*leaves, *map(TappedValue, rest)], taps, {})
    if out.view is not None:
        taps.direct.add(out.view.leaf)
    return out.tapped


def leaf_cell(number: int, value: Array, zero: Array | None = None) -> TappedValue:
    """Make a parameter leaf an argument of `evaluate`; `zero` is the leaf's own tap, if it needs one.

    >>> leaf_cell(0, jnp.ones((2, 2))).view.where.tolist()
    [[0, 1], [2, 3]]
    """
    where = np.arange(value.size).reshape(value.shape)
    return TappedValue(value, View(number, (), where), value if zero is None else value + zero)


def _walk(
    jaxpr: Jaxpr, consts: Sequence[Array], args: Sequence[TappedValue], taps: Taps, seen: dict[Any, Any]
) -> list[TappedValue]:
    env: dict[Any, TappedValue] = dict(zip(jaxpr.invars, args))
    env |= {v: TappedValue(const, fixed=True) for v, const in zip(jaxpr.constvars, consts)}
    for eqn in jaxpr.eqns:
        cells = [TappedValue(v.val, fixed=True) if isinstance(v, Literal) else env[v] for v in eqn.invars]
        inner = _opened(eqn)
        if inner is not None:
            outs = _walk(inner.jaxpr, inner.consts, cells, taps, seen)
        else:
            outs = _once(eqn, cells, taps, seen)
        env.update(zip(eqn.outvars, outs))
    return [TappedValue(v.val, fixed=True) if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]


def _opened(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """Return the equation as a program of its own if it is a call to inline or a convolution to write in slices."""
    if eqn.primitive in _INLINED:
        inner = eqn.params[_INLINED[eqn.primitive]]
        return inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
    avals = [v.aval for v in eqn.invars]
    replace = IN_SLICES.get(eqn.primitive)
    replacement = replace(*avals, **eqn.params) if replace is not None else None
    return jax.make_jaxpr(replacement)(*avals) if replacement is not None else None


def _once(eqn: JaxprEqn, cells: list[TappedValue], taps: Taps, seen: dict[Any, Any]) -> list[TappedValue]:
    """Evaluate an equation, or return the result of an equal equation that was evaluated before.

    A surrogate such as jvp(loss) - loss computes the loss twice. Evaluating it once merges the two uses of each leaf
    into one, which is cheaper and leaves less to cancel.
    """
    try:
        operands = tuple(_literal(v) if isinstance(v, Literal) else id(c) for v, c in zip(eqn.invars, cells))
        key = (eqn.primitive, operands, tuple(sorted(eqn.params.items())))
        if key in seen:
            return seen[key][0]
    except TypeError:  # a parameter that cannot be hashed or ordered
        return _apply(eqn, cells, taps)
    outs = _apply(eqn, cells, taps)
    seen[key] = outs, cells  # the operands are kept alive because their ids are in the key
    return outs


def _literal(literal: Literal) -> tuple[str, bytes]:
    return str(literal.aval), np.asarray(literal.val).tobytes()


def _apply(eqn: JaxprEqn, cells: list[TappedValue], taps: Taps) -> list[TappedValue]:
    primitive = eqn.primitive
    params = primitive.get_bind_params(eqn.params)

    def bind(values: Sequence[Array]) -> list[Array]:
        with eqn.ctx.manager:
            out = primitive.bind(*values, **params)
        return list(out) if primitive.multiple_results else [out]

    viewed = [i for i, c in enumerate(cells) if c.view is not None]
    if not viewed:
        return [TappedValue(v, fixed=all(c.fixed for c in cells)) for v in bind([c.value for c in cells])]
    is_constant = primitive is primitives.stop_gradient_p or not any(_is_float(v.aval) for v in eqn.outvars)
    if is_constant:
        return [TappedValue(v) for v in bind([c.value for c in cells])]
    view = cells[viewed[0]].view
    assert view is not None
    # A leaf that becomes complex is no longer a real vector whose products can be measured: its own tap stays real.
    is_real = not any(_is_complex(v.aval) for v in (*eqn.invars, *eqn.outvars))
    if len(cells) == 1 and primitive in MOVES and is_real and _is_float(eqn.outvars[0].aval):
        moved = View(view.leaf, (*view.moves, (primitive, tuple(params.items()))), MOVES[primitive](view.where, params))
        [value], [tapped] = bind([cells[0].value]), bind([cells[0].tapped])
        return [TappedValue(value, moved, tapped)]
    if _is_shift(eqn, cells, viewed):
        [value], [tapped] = bind([c.value for c in cells]), bind([c.tapped for c in cells])
        return [TappedValue(value, view, tapped)]
    product = PRODUCTS.get(primitive)
    use = product(eqn, view, viewed[0]) if product is not None and len(viewed) == 1 and is_real else None
    if use is None:
        taps.direct.update(c.view.leaf for c in cells if c.view is not None)
        return [TappedValue(v) for v in bind([c.tapped for c in cells])]
    factor = [c.value for i, c in enumerate(cells) if i != viewed[0]]
    return [TappedValue(taps.add(use, factor, bind([c.value for c in cells])[0]))]


def _is_shift(eqn: JaxprEqn, cells: list[TappedValue], viewed: list[int]) -> bool:
    """Say whether the equation only adds a fixed value to a view: the derivative is then still that of the view."""
    if eqn.primitive is primitives.sub_p:
        shifts = viewed == [0] and cells[1].fixed
    else:
        shifts = eqn.primitive is primitives.add_p and len(viewed) == 1 and cells[1 - viewed[0]].fixed
    return shifts and shape_of(eqn.invars[viewed[0]]) == shape_of(eqn.outvars[0])


def _is_float(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def _is_complex(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.complexfloating)
