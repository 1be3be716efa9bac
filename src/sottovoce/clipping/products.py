"""Describe how a product uses a leaf, and keep the two factors that determine the leaf's gradient.

For example, the product ``x @ w`` with w of shape (p, q) uses the leaf `w` at one position: the gradient is the outer
product of the factor x, of length p, and the cotangent d, of length q. Kept in factors it takes p + q numbers per
record; written out it takes p * q.

A leaf may be transposed, reshaped or sliced before it meets the record: a `View` says which of its elements stand
where. Each product of a view is a `Use`; uses of the same elements form a `Block`, whose norm is computed at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import JaxprEqn, primitives

from sottovoce.clipping import norms

Factors = Callable[[list[Array], Array], tuple[Array, Array]]
FACTORED_POSITIONS = 8  # with more positions than this an explicit gradient costs no more than its factors

Moves = tuple[tuple[Any, tuple[tuple[str, Any], ...]], ...]


@dataclass(frozen=True)
class View:
    """Describe an array made of elements of one leaf, moved but not changed, such as ``w.T`` or ``w[0]``.

    `where` has the shape of that array and holds the flat index of each element in the leaf.
    """

    leaf: int
    moves: Moves
    where: np.ndarray

    def of(self, leaf: Array) -> Array:
        """Make the same moves on another array of the leaf's shape, in that array's precision.

        A loss may cast its parameters down, for example to bfloat16. Gradients are not cast with them: what is added up
        must be what was measured, and a sum of many 16-bit numbers is wrong by more than one of them.
        """
        for primitive, params in self.moves:
            if primitive is not primitives.convert_element_type_p:
                leaf = primitive.bind(leaf, **dict(params))
        return leaf


@dataclass(frozen=True)
class Use:
    """Describe one product of a view of a leaf with a factor `a` that depends on the record.

    The leaf's gradient through this use, laid out like `where` (groups, p, q), is the sum over positions t of the
    outer products of A[g, t] and D[g, t], where (A, D) = `factors(a, d)` have shapes (groups, T, p) and (groups, T, q).
    For a look-up of rows A is one-hot and only the row numbers are kept, so A has shape (1, T).
    """

    kind: str  # "dot" or "rows"
    leaf: int
    where: np.ndarray
    positions: int
    lay: Callable[[Array], Array]  # an array of the leaf's shape, laid out like `where`
    factors: Factors

    def gradient(self, factor: list[Array], d: Array) -> Array:
        """Return the gradient through this use, laid out like `where`, from its factors with a leading axis of records.

        It is the sum over the records, computed in at least float32 from the same factors that were measured, whatever
        precision the loss used.
        """
        a, d = jax.vmap(self.factors)(factor, d)
        if self.kind == "rows":
            return self._rows(a, wide(d))
        if self.turned:
            return jnp.swapaxes(_product("bgtq,bgtp->gqp", d, a), 1, 2)
        return _product("bgtp,bgtq->gpq", a, d)

    def gradients(self, factor: list[Array], d: Array, turned: bool = False) -> Array:
        """Return the gradient of each record through this use: the summands of `gradient`, if `turned` as (q, p)."""
        a, d = jax.vmap(self.factors)(factor, d)
        if self.kind == "rows":
            return jax.vmap(self._rows)(a[:, None], wide(d)[:, None])
        return _product("bgtq,bgtp->bgqp", d, a) if turned else _product("bgtp,bgtq->bgpq", a, d)

    @property
    def turned(self) -> bool:
        """Say whether gradients are better computed as (q, p).

        A product copies its first factor, which should be the smaller one.
        """
        return self.kind == "dot" and self.where.shape[1] >= self.where.shape[2]

    def unlay(self, laid: Array, leaf: Array) -> Array:
        """Bring an array that is laid out like `where` to the shape of the leaf, with zeros elsewhere."""
        return jax.linear_transpose(self.lay, leaf)(laid.astype(leaf.dtype))[0]

    def _rows(self, numbers: Array, d: Array) -> Array:
        _, p, q = self.where.shape
        return jnp.zeros((1, p, q), d.dtype).at[0, numbers.reshape(-1)].add(d.reshape(-1, q))


@dataclass(frozen=True)
class Block:
    """Collect the uses of the same elements of a leaf, whose factors can be put side by side."""

    kind: str
    where: np.ndarray
    uses: list[tuple[int, Use, bool]]  # number, use, whether its two factors change places

    def size(self, factors: list[list[Array]], cotangents: list[Array], norm: str) -> Array:
        """Return the norm of one record's gradient in these elements."""
        pairs = [use.factors(factors[k], cotangents[k])[:: -1 if swap else 1] for k, use, swap in self.uses]
        a, d = (jnp.concatenate(side, 1) for side in zip(*pairs))
        return norms.row_sum(a[0], wide(d[0]), norm) if self.kind == "rows" else norms.outer_sum(wide(a), wide(d), norm)

    def gradients(self, factors: list[list[Array]], cotangents: list[Array]) -> Array:
        """Return each record's gradient in these elements, laid out like `where`, or turned like the first use."""
        turned = self.uses[0][1].turned
        parts = [use.gradients(factors[k], cotangents[k], turned != swap) for k, use, swap in self.uses]
        return sum(parts[1:], parts[0])

    def unlay(self, laid: Array, leaf: Array) -> Array:
        """Bring a sum of `gradients` to the shape of the leaf, with zeros elsewhere."""
        first = self.uses[0][1]
        return first.unlay(jnp.swapaxes(laid, -1, -2) if first.turned else laid, leaf)


def blocks_of(elements: int, uses: Sequence[tuple[int, Use]]) -> list[Block] | None:
    """Sort the uses of a leaf by the elements that they touch.

    Returns None if two uses touch sets of elements that overlap without being equal.

    >>> def use(*elements):
    ...     return Use("dot", 0, np.array(elements).reshape(1, -1, 1), 1, lambda leaf: leaf, lambda a, d: (a[0], d))
    >>> blocks = blocks_of(4, [(0, use(0, 1)), (1, use(2, 3)), (2, use(0, 1))])
    >>> [len(block.uses) for block in blocks]
    [2, 1]
    >>> blocks_of(4, [(0, use(0, 1)), (1, use(1, 2))]) is None
    True
    """
    blocks: list[Block] = []
    for k, use in uses:
        for block in blocks:
            if use.kind == block.kind and np.array_equal(use.where, block.where):
                block.uses.append((k, use, False))
                break
            if use.kind == block.kind == "dot" and np.array_equal(use.where.swapaxes(1, 2), block.where):
                block.uses.append((k, use, True))
                break
        else:
            blocks.append(Block(use.kind, use.where, [(k, use, False)]))
    touched = sum((np.bincount(block.where.ravel(), minlength=elements) for block in blocks), np.zeros(elements, int))
    return blocks if touched.max(initial=0) <= 1 else None


def is_cheaper_in_factors(block: Block, norm: str) -> bool:
    """Say whether the norm from factors costs less than the explicit gradient, by rough counts of memory traffic.

    >>> where = np.arange(1000).reshape(1, 20, 50)
    >>> def block(positions):
    ...     use = Use("dot", 0, where, positions, lambda leaf: leaf, lambda a, d: (a[0], d))
    ...     return Block("dot", where, [(0, use, False)])
    >>> is_cheaper_in_factors(block(1), "l2"), is_cheaper_in_factors(block(20), "l2")
    (True, False)
    """
    positions = sum(use.positions for _, use, _ in block.uses)
    groups, p, q = block.where.shape
    if positions == 1:
        return True
    if block.kind == "rows":
        return positions**2 <= 8 * p
    in_factors = positions * groups * (p + q)
    # in L1, several positions give only an upper bound on the norm: the exact explicit gradient may cost more
    return positions <= FACTORED_POSITIONS and block.where.size > (16 if norm == "l1" else 2) * in_factors


def wide(x: Array) -> Array:
    """Convert to at least float32, in which norms and sums are computed; every narrower number is exact in it.

    >>> wide(jnp.ones(2, jnp.bfloat16)).dtype, wide(jnp.ones(2, jnp.float8_e4m3fn)).dtype
    (dtype('float32'), dtype('float32'))
    """
    return x.astype(jnp.float32) if x.dtype.itemsize < 4 else x


def _product(indices: str, a: Array, b: Array) -> Array:
    return jnp.einsum(indices, wide(a), wide(b), precision=jax.lax.Precision.HIGHEST)


def shape_of(atom: Any) -> tuple[int, ...]:
    """Return the shape of a variable or literal of a jaxpr.

    >>> shape_of(jax.make_jaxpr(jnp.sin)(jnp.ones((2, 3))).jaxpr.invars[0])
    (2, 3)
    """
    return atom.aval.shape


def _dot(eqn: JaxprEqn, view: View, side: int) -> Use:
    contracted, batched = eqn.params["dimension_numbers"]
    mine, theirs = view.where, shape_of(eqn.invars[1 - side])
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

    def lay(leaf: Array) -> Array:
        return view.of(leaf).transpose(*batched[side], *contracted[side], *my_free).reshape(groups, p, q)

    where = mine.transpose(*batched[side], *contracted[side], *my_free).reshape(groups, p, q)
    return Use("dot", view.leaf, where, positions, lay, factors)


def _numbers(indices: Array, sizes: Sequence[int]) -> Array:
    """Return the row numbers of index vectors (the last axis), each coordinate clipped into its range."""
    number = jnp.zeros(indices.shape[:-1], jnp.int32)
    for i, size in enumerate(sizes):
        number = number * size + jnp.clip(indices[..., i], 0, size - 1).astype(jnp.int32)
    return number


def _rows_use(view: View, rows: Sequence[int], positions: int, number: Factors) -> Use:
    """Make a use that picks whole rows: one index in each of the dimensions `rows`, all indices in the others."""
    rest = [i for i in range(view.where.ndim) if i not in rows]
    count = math.prod(view.where.shape[i] for i in rows)
    where = view.where.transpose(*rows, *rest).reshape(1, count, -1)

    def lay(leaf: Array) -> Array:
        return view.of(leaf).transpose(*rows, *rest).reshape(1, count, -1)

    def factors(factor: list[Array], d: Array) -> tuple[Array, Array]:
        numbers, d = number(factor, d)
        return numbers.reshape(1, positions), d.reshape(1, positions, where.shape[2])

    return Use("rows", view.leaf, where, positions, lay, factors)


def _dynamic_slice(eqn: JaxprEqn, view: View, side: int) -> Use | None:
    sizes, shape = eqn.params["slice_sizes"], view.where.shape
    rows = [i for i, (size, n) in enumerate(zip(sizes, shape)) if size != n]
    if side != 0 or len(eqn.invars) != 1 + len(shape) or any(sizes[i] != 1 for i in rows):
        return None

    def number(factor: list[Array], d: Array) -> tuple[Array, Array]:
        start = jnp.stack([factor[i] for i in rows], -1) if rows else jnp.zeros(0, jnp.int32)
        return _numbers(start, [shape[i] for i in rows]), d

    return _rows_use(view, rows, 1, number)


def _gather(eqn: JaxprEqn, view: View, side: int) -> Use | None:
    dims, sizes, shape = eqn.params["dimension_numbers"], eqn.params["slice_sizes"], view.where.shape
    rows = dims.start_index_map
    whole_rows = all(sizes[i] == (1 if i in rows else n) for i, n in enumerate(shape))
    modes = jax.lax.GatherScatterMode
    drops = eqn.params["mode"] in (modes.FILL_OR_DROP, modes.PROMISE_IN_BOUNDS)
    is_known = drops or eqn.params["mode"] == modes.CLIP
    is_lookup = set(dims.collapsed_slice_dims) == set(rows) and not dims.operand_batching_dims and whole_rows
    if side != 0 or not is_lookup or not is_known:
        return None
    out = shape_of(eqn.outvars[0])
    before = [i for i in range(len(out)) if i not in dims.offset_dims]
    positions = math.prod(out[i] for i in before)

    def number(factor: list[Array], d: Array) -> tuple[Array, Array]:
        d = jnp.transpose(d, (*before, *dims.offset_dims))
        if drops:  # a look-up outside the table has no gradient: if it counted, it might cancel one that has
            limits = np.array([shape[i] for i in rows])
            inside = jnp.all((factor[0] >= 0) & (factor[0] < limits), -1)
            d = jnp.where(inside.reshape(inside.shape + (1,) * len(dims.offset_dims)), d, 0)
        return _numbers(factor[0], [shape[i] for i in rows]), d

    return _rows_use(view, rows, positions, number)


PRODUCTS: dict[Any, Callable[..., Use | None]] = {
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


MOVES: dict[Any, Callable[[np.ndarray, dict[str, Any]], np.ndarray]] = {
    primitives.reshape_p: lambda where, params: where.reshape(params["new_sizes"]),
    primitives.transpose_p: lambda where, params: where.transpose(params["permutation"]),
    primitives.squeeze_p: lambda where, params: where.squeeze(tuple(params["dimensions"])),
    primitives.rev_p: lambda where, params: np.flip(where, params["dimensions"]),
    primitives.broadcast_in_dim_p: _broadcast,
    primitives.slice_p: _slice,
    primitives.convert_element_type_p: lambda where, params: where,
    primitives.copy_p: lambda where, params: where,
}
