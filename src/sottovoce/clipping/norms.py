"""Compute norms of sums of outer products from their factors alone, never too small.

The gradient of a leaf is P = A^T D with factors A (T, p) and D (T, q), for T positions or uses. For T = 1 its norm is
|A| |D|. For small T > 1 the usual formula is the sum over (A A^T) * (D D^T), the Gram matrices. It squares before it
subtracts: when uses nearly cancel, float32 loses the result, and clipping by it is unsound. Here one factor is made
triangular first, A^T = Q R with orthonormal Q, so |P| = |R D|. Cancellation then happens in R D, before squaring, as
it does in an explicit gradient. The rounding error that remains is bounded by a small multiple of the sum of
|A_t| |D_t|, which is added to the norm.

For example, A with the rows (1, 0) and (1, 0) and D with the rows (2, 0) and (-2, 0) make P = 0. The norm that is
returned is the rounding term alone, about 1e-5.

Every function returns an upper bound on the norm. It exceeds the norm by rounding only, except for L1 with T > 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array
from jax.lax import Precision


def length(x: Array, norm: str) -> Array:
    """Return the norm along the last axis, never too small: squares that underflow count as the smallest normal number.

    >>> round(float(length(jnp.array([3.0, 4.0]), "l2")), 4), float(length(jnp.array([3.0, 4.0]), "l1"))
    (5.0, 7.0)
    """
    if norm == "l1":
        return jnp.sum(jnp.abs(x), -1)
    return jnp.sqrt(jnp.sum(x * x, -1) + x.shape[-1] * jnp.finfo(x.dtype).tiny)


def together(parts: Sequence[Array], norm: str) -> Array:
    """Return the norm of a vector from the norms of its disjoint parts.

    >>> round(float(together([jnp.float32(3.0), jnp.float32(4.0)], "l2")), 4)
    5.0
    """
    return length(jnp.stack(parts, -1), norm)


def outer_sum(a: Array, d: Array, norm: str) -> Array:
    """Return the norm of the gradient with factors (groups, T, p) and (groups, T, q); an upper bound for L1 with T > 1.

    >>> a, d = jnp.array([[[1.0, 0.0], [0.0, 1.0]]]), jnp.array([[[3.0], [4.0]]])  # the gradient is (3, 4)
    >>> round(float(outer_sum(a, d, "l2")), 4)
    5.0
    """
    spread = jnp.sum(length(a, norm) * length(d, norm), -1)  # by the triangle inequality at least the norm
    if a.shape[1] == 1 or norm == "l1":
        return length(spread, norm)
    short, long = (a, d) if a.shape[2] <= d.shape[2] else (d, a)
    combined = length(_product("gkt,gtq->gkq", triangle(short), long), norm)
    rounding = (8 + 2 * a.shape[1]) * jnp.finfo(a.dtype).eps
    return length(length(combined, norm) + rounding * spread, norm)


def triangle(x: Array) -> Array:
    """Return R (groups, T, T) with x^T = Q R by modified Gram-Schmidt on the rows of x (groups, T, n).

    Gram-Schmidt loses the orthogonality of Q where vectors are nearly parallel, but keeps x^T = Q R up to rounding. The
    row of R that belongs to a badly orthogonal vector is itself of rounding size, so |R D| stays accurate.

    >>> triangle(jnp.array([[[3.0, 0.0], [1.0, 2.0]]])).round(4).tolist()
    [[[3.0, 1.0], [0.0, 2.0]]]
    """
    rows = [x[:, t] for t in range(x.shape[1])]
    nothing = jnp.zeros(x.shape[:1], x.dtype)
    table = []
    for k, row in enumerate(rows):
        size = length(row, "l2")
        direction = row / size[:, None]
        line = [nothing] * k + [size]
        for t in range(k + 1, len(rows)):
            along = jnp.sum(direction * rows[t], -1)
            rows[t] = rows[t] - along[:, None] * direction
            line.append(along)
        table.append(jnp.stack(line, -1))
    return jnp.stack(table, 1)


def row_sum(numbers: Array, d: Array, norm: str) -> Array:
    """Return the norm of a table's gradient that has d[t] (T, q) added to row numbers[t]; exact in both norms.

    >>> round(float(row_sum(jnp.array([7, 7]), jnp.array([[1.0], [2.0]]), "l2")), 4)  # both in row 7
    3.0
    """
    if len(numbers) == 1:
        return length(d, norm)[0]
    same = numbers[:, None] == numbers[None, :]
    is_first = ~jnp.any(jnp.tril(same, -1), -1)
    merge = (same & is_first[:, None]).astype(d.dtype)
    rounding = jnp.finfo(d.dtype).eps * jnp.sum((jnp.sum(merge, -1) - 1) * _product("st,t->s", merge, length(d, norm)))
    return length(length(_product("st,tq->sq", merge, d), norm), norm) + rounding


def _product(indices: str, a: Array, b: Array) -> Array:
    """Multiply at full precision, whatever `jax.default_matmul_precision` says: a rounded norm may be too small."""
    return jnp.einsum(indices, a, b, precision=Precision.HIGHEST)
