"""Where a function of one record uses its parameters, and the cotangents that arrive there.

A per-record function is traced to a jaxpr and evaluated again, equation by equation. Wherever a parameter leaf meets
the record in a product (`dot_general`, a convolution, a look-up of rows) a zero is added to the product's result: the
derivative with respect to that zero is the cotangent `d` of this *use*, and with the other factor `a` of the product
it determines the leaf's gradient, without that gradient being formed. A leaf that is used in any other way gets a zero
added to itself instead: the derivative with respect to that is the leaf's own per-record gradient, which is what
`vmap(grad)` would have computed, for this leaf alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, primitives

from sottovoce.privacy.lowering import LOWERED

Array = Any  # a jax.Array, a tracer of one, or (for shapes only) a ShapeDtypeStruct
Moves = tuple[tuple[Any, tuple[tuple[str, Any], ...]], ...]

_INLINED = {primitives.jit_p: "jaxpr", primitives.closed_call_p: "call_jaxpr", primitives.remat_p: "jaxpr"}


@dataclass(frozen=True)
class View:
    """Elements of one leaf, moved about but not changed: `where` holds the flat index of each in the leaf."""

    leaf: int
    moves: Moves
    where: np.ndarray

    def of(self, leaf: Array) -> Array:
        """Make the same moves on an array shaped like the leaf."""
        for primitive, params in self.moves:
            leaf = primitive.bind(leaf, **dict(params))
        return leaf


@dataclass(frozen=True)
class Use:
    """One product of a view of a leaf with a factor `a` that depends on the record.

    The leaf's gradient through this use, laid out like `where` (groups, p, q), is the sum over positions t of the
    outer products of A[g, t] and D[g, t], where (A, D) = `factors(a, d)` have shapes (groups, T, p) and (groups, T, q).
    For a look-up of rows A is one-hot and only the row number is kept, so that A has shape (1, T).
    """

    kind: str  # "dot" or "rows"
    leaf: int
    where: np.ndarray
    positions: int
    apply: Callable[[list[Array], Array], Array]  # (a, leaf) -> the product, linear in leaf
    factors: Callable[[list[Array], Array], tuple[Array, Array]]


@dataclass
class Cell:
    """A value of the evaluation. A view of a leaf has two: as given, and with the leaf's own tap added."""

    value: Array
    view: View | None = None
    tapped: Array = None

    def __post_init__(self) -> None:
        if self.tapped is None:
            self.tapped = self.value


@dataclass
class Taps:
    """What one evaluation met: the uses in order with their factors and shapes, and the leaves used otherwise."""

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


def evaluate(closed: ClosedJaxpr, leaves: Sequence[Cell], rest: Sequence[Array], taps: Taps) -> Array:
    """The value of a scalar function traced to `closed`, whose first arguments are the leaves, with taps added."""
    [out] = _walk(closed.jaxpr, closed.consts, [*leaves, *map(Cell, rest)], taps, {})
    if out.view is not None:
        taps.direct.add(out.view.leaf)
    return out.tapped


def lowered(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with convolutions and poolings as slices and dots: as fast inside `lax.scan` as outside.

    >>> import jax.numpy as jnp
    >>> blur = lambda image: jax.lax.conv(image[None, None], jnp.ones((1, 1, 2, 2)), (1, 1), "VALID").sum()
    >>> float(lowered(blur)(jnp.ones((3, 3))))
    16.0
    """

    def call(*args: Any) -> Any:
        closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
        outs = _walk(closed.jaxpr, closed.consts, [Cell(x) for x in jax.tree.leaves(args)], Taps(), {})
        return jax.tree.unflatten(jax.tree.structure(shape), [cell.value for cell in outs])

    return call


def leaf_cell(number: int, value: Array, zero: Array | None = None) -> Cell:
    """A parameter leaf as an argument of `evaluate`; `zero` is its own tap, if it needs one."""
    where = np.arange(value.size).reshape(value.shape)
    return Cell(value, View(number, (), where), value if zero is None else value + zero)


def _walk(jaxpr: Jaxpr, consts: Sequence[Array], args: Sequence[Cell], taps: Taps, seen: dict[Any, Any]) -> list[Cell]:
    env: dict[Any, Cell] = dict(zip(jaxpr.invars, args)) | dict(zip(jaxpr.constvars, map(Cell, consts)))
    for eqn in jaxpr.eqns:
        cells = [Cell(v.val) if isinstance(v, Literal) else env[v] for v in eqn.invars]
        inner = _opened(eqn)
        if inner is not None:
            outs = _walk(inner.jaxpr, inner.consts, cells, taps, seen)
        else:
            outs = _once(eqn, cells, taps, seen)
        env.update(zip(eqn.outvars, outs))
    return [Cell(v.val) if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]


def _opened(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """The equation as a program of its own, if it is a call to be inlined or a primitive to be lowered."""
    if eqn.primitive in _INLINED:
        inner = eqn.params[_INLINED[eqn.primitive]]
        return inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
    avals = [v.aval for v in eqn.invars]
    lower = LOWERED.get(eqn.primitive)
    lowered = lower(*avals, **eqn.params) if lower is not None else None
    return jax.make_jaxpr(lowered)(*avals) if lowered is not None else None


def _once(eqn: JaxprEqn, cells: list[Cell], taps: Taps, seen: dict[Any, Any]) -> list[Cell]:
    """Evaluate an equation, or recall an equal one.

    A surrogate such as jvp(loss) - loss computes the loss twice. Recalling merges the two uses of each leaf into one,
    which is cheaper and leaves less to cancel.
    """
    try:
        operands = tuple(_literal(v) if isinstance(v, Literal) else id(c) for v, c in zip(eqn.invars, cells))
        key = (eqn.primitive, operands, tuple(sorted(eqn.params.items())))
        if key in seen:
            return seen[key][0]
    except TypeError:  # a parameter that cannot be hashed or ordered
        return _apply(eqn, cells, taps)
    outs = _apply(eqn, cells, taps)
    seen[key] = outs, cells  # the operands are kept alive, for their ids are in the key
    return outs


def _literal(literal: Literal) -> tuple[str, bytes]:
    return str(literal.aval), np.asarray(literal.val).tobytes()


def _apply(eqn: JaxprEqn, cells: list[Cell], taps: Taps) -> list[Cell]:
    primitive = eqn.primitive
    params = primitive.get_bind_params(eqn.params)

    def bind(values: Sequence[Array]) -> list[Array]:
        with eqn.ctx.manager:
            out = primitive.bind(*values, **params)
        return list(out) if primitive.multiple_results else [out]

    viewed = [i for i, c in enumerate(cells) if c.view is not None]
    if not viewed:
        return [Cell(v) for v in bind([c.value for c in cells])]
    is_constant = primitive is primitives.stop_gradient_p or not any(_is_float(v.aval) for v in eqn.outvars)
    if is_constant:
        return [Cell(v) for v in bind([c.value for c in cells])]
    view = cells[viewed[0]].view
    assert view is not None
    if len(cells) == 1 and primitive in _MOVES and _is_float(eqn.outvars[0].aval):
        moved = View(
            view.leaf, (*view.moves, (primitive, tuple(params.items()))), _MOVES[primitive](view.where, params)
        )
        [value], [tapped] = bind([cells[0].value]), bind([cells[0].tapped])
        return [Cell(value, moved, tapped)]
    product = _PRODUCTS.get(primitive)
    use = product(eqn, view, viewed[0], bind) if product is not None and len(viewed) == 1 else None
    if use is None:
        taps.direct.update(c.view.leaf for c in cells if c.view is not None)
        return [Cell(v) for v in bind([c.tapped for c in cells])]
    factor = [c.value for i, c in enumerate(cells) if i != viewed[0]]
    return [Cell(taps.add(use, factor, bind([c.value for c in cells])[0]))]


def _is_float(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def _shape(atom: Any) -> tuple[int, ...]:
    return atom.aval.shape


def _dot(eqn: JaxprEqn, view: View, side: int, bind: Callable[..., list[Array]]) -> Use:
    contracted, batched = eqn.params["dimension_numbers"]
    mine, theirs = view.where, _shape(eqn.invars[1 - side])
    my_free = [i for i in range(mine.ndim) if i not in contracted[side] and i not in batched[side]]
    their_free = [i for i in range(len(theirs)) if i not in contracted[1 - side] and i not in batched[1 - side]]
    groups = math.prod(mine.shape[i] for i in batched[side])
    p = math.prod(mine.shape[i] for i in contracted[side])
    q = math.prod(mine.shape[i] for i in my_free)
    positions = math.prod(theirs[i] for i in their_free)

    def factors(factor: list[Array], d: Array) -> tuple[Array, Array]:
        order = (*batched[1 - side], *their_free, *contracted[1 - side])
        a = jnp.transpose(factor[0], order).reshape(groups, positions, p)
        # the result has the free dimensions of the left operand before those of the right one
        d = d.reshape(groups, positions, q) if side == 1 else jnp.swapaxes(d.reshape(groups, q, positions), 1, 2)
        return a, d

    def apply(factor: list[Array], leaf: Array) -> Array:
        operands = [*factor, view.of(leaf)] if side == 1 else [view.of(leaf), *factor]
        return bind(operands)[0]

    where = mine.transpose(*batched[side], *contracted[side], *my_free).reshape(groups, p, q)
    return Use("dot", view.leaf, where, positions, apply, factors)


def _numbers(indices: Array, sizes: Sequence[int]) -> Array:
    """Row numbers of index vectors (the last axis), each coordinate clipped into its range."""
    number = jnp.zeros(indices.shape[:-1], jnp.int32)
    for i, size in enumerate(sizes):
        number = number * size + jnp.clip(indices[..., i], 0, size - 1).astype(jnp.int32)
    return number


def _rows_use(
    view: View, rows: Sequence[int], positions: int, bind: Callable[..., list[Array]], number: Callable[..., Array]
) -> Use:
    """A use that picks whole rows: one index in each of the dimensions `rows`, everything in the others."""
    rest = [i for i in range(view.where.ndim) if i not in rows]
    count = math.prod(view.where.shape[i] for i in rows)
    where = view.where.transpose(*rows, *rest).reshape(1, count, -1)

    def apply(factor: list[Array], leaf: Array) -> Array:
        return bind([view.of(leaf), *factor])[0]

    def factors(factor: list[Array], d: Array) -> tuple[Array, Array]:
        numbers, d = number(factor, d)
        return numbers.reshape(1, positions), d.reshape(1, positions, where.shape[2])

    return Use("rows", view.leaf, where, positions, apply, factors)


def _dynamic_slice(eqn: JaxprEqn, view: View, side: int, bind: Callable[..., list[Array]]) -> Use | None:
    sizes, shape = eqn.params["slice_sizes"], view.where.shape
    rows = [i for i, (size, n) in enumerate(zip(sizes, shape)) if size != n]
    if side != 0 or len(eqn.invars) != 1 + len(shape) or any(sizes[i] != 1 for i in rows):
        return None

    def number(factor: list[Array], d: Array) -> tuple[Array, Array]:
        start = jnp.stack([factor[i] for i in rows], -1) if rows else jnp.zeros(0, jnp.int32)
        return _numbers(start, [shape[i] for i in rows]), d

    return _rows_use(view, rows, 1, bind, number)


def _gather(eqn: JaxprEqn, view: View, side: int, bind: Callable[..., list[Array]]) -> Use | None:
    dims, sizes, shape = eqn.params["dimension_numbers"], eqn.params["slice_sizes"], view.where.shape
    rows = dims.start_index_map
    whole_rows = all(sizes[i] == (1 if i in rows else n) for i, n in enumerate(shape))
    if side != 0 or dims.operand_batching_dims or set(dims.collapsed_slice_dims) != set(rows) or not whole_rows:
        return None
    out = _shape(eqn.outvars[0])
    before = [i for i in range(len(out)) if i not in dims.offset_dims]
    positions = math.prod(out[i] for i in before)
    fills = eqn.params["mode"] == jax.lax.GatherScatterMode.FILL_OR_DROP

    def number(factor: list[Array], d: Array) -> tuple[Array, Array]:
        d = jnp.transpose(d, (*before, *dims.offset_dims))
        if fills:  # a look-up outside the table has no gradient
            limits = np.array([shape[i] for i in rows])
            inside = jnp.all((factor[0] >= 0) & (factor[0] < limits), -1)
            d = jnp.where(inside.reshape(inside.shape + (1,) * len(dims.offset_dims)), d, 0)
        return _numbers(factor[0], [shape[i] for i in rows]), d

    return _rows_use(view, rows, positions, bind, number)


_PRODUCTS: dict[Any, Callable[..., Use | None]] = {
    primitives.dot_general_p: _dot,
    primitives.dynamic_slice_p: _dynamic_slice,
    primitives.gather_p: _gather,
}


def _broadcast(where: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    shape = [1] * len(params["shape"])
    for i, n in zip(params["broadcast_dimensions"], where.shape):
        shape[i] = n
    return np.broadcast_to(where.reshape(shape), params["shape"])


def _slice(where: np.ndarray, params: dict[str, Any]) -> np.ndarray:
    strides = params["strides"] or (1,) * where.ndim
    return where[tuple(map(slice, params["start_indices"], params["limit_indices"], strides))]


_MOVES: dict[Any, Callable[[np.ndarray, dict[str, Any]], np.ndarray]] = {
    primitives.reshape_p: lambda where, params: where.reshape(params["new_sizes"]),
    primitives.transpose_p: lambda where, params: where.transpose(params["permutation"]),
    primitives.squeeze_p: lambda where, params: where.squeeze(tuple(params["dimensions"])),
    primitives.rev_p: lambda where, params: np.flip(where, params["dimensions"]),
    primitives.broadcast_in_dim_p: _broadcast,
    primitives.slice_p: _slice,
    primitives.convert_element_type_p: lambda where, params: where,
    primitives.copy_p: lambda where, params: where,
}
