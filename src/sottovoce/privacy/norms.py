"""Norms of sums of outer products, from the factors alone and never too small.

The gradient of a leaf is P = A^T D with factors A (T, p) and D (T, q), T positions or uses. For T = 1 its norm is
|A| |D|. For small T > 1 the usual Gram sum of (A A^T) * (D D^T) squares before it subtracts: when uses nearly cancel,
float32 loses the result and a clip by it is unsound. Here one factor is made triangular first, A^T = Q R with
orthonormal Q, so that |P| = |R D|: what cancels does so in R D, before squaring, as it does in an explicit gradient.
What is left of rounding is bounded by a small multiple of the sum of |A_t| |D_t|, which is added to the norm.

Every function returns an upper bound on the norm that exceeds it by rounding only, except for L1 with T > 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

Array = Any


def length(x: Array, norm: str) -> Array:
    """Norm along the last axis. Squares that underflow count as the smallest normal number: never too small."""
    if norm == "l1":
        return jnp.sum(jnp.abs(x), -1)
    return jnp.sqrt(jnp.sum(x * x, -1) + x.shape[-1] * jnp.finfo(x.dtype).tiny)


def together(parts: Sequence[Array], norm: str) -> Array:
    """Norm of a vector from the norms of its disjoint parts."""
    return length(jnp.stack(parts, -1), norm)


def outer_sum(a: Array, d: Array, norm: str) -> Array:
    """Norm of the gradient with factors (groups, T, p) and (groups, T, q); an upper bound for L1 with T > 1."""
    spread = jnp.sum(length(a, norm) * length(d, norm), -1)  # by the triangle inequality at least the norm
    if a.shape[1] == 1 or norm == "l1":
        return length(spread, norm)
    short, long = (a, d) if a.shape[2] <= d.shape[2] else (d, a)
    combined = length(jnp.einsum("gkt,gtq->gkq", triangle(short), long), norm)
    rounding = (8 + 2 * a.shape[1]) * jnp.finfo(a.dtype).eps
    return length(length(combined, norm) + rounding * spread, norm)


def triangle(x: Array) -> Array:
    """R (groups, T, T) with x^T = Q R by modified Gram-Schmidt, rows of x (groups, T, n) as vectors.

    Gram-Schmidt loses the orthogonality of Q where vectors are nearly parallel, but keeps x^T = Q R to rounding; the
    row of R that belongs to a badly orthogonal vector is itself of rounding size, so that |R D| stays accurate.
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
    """Norm of a table's gradient that has d[t] (T, q) added to row numbers[t]: exact in both norms."""
    if len(numbers) == 1:
        return length(d, norm)[0]
    same = numbers[:, None] == numbers[None, :]
    is_first = ~jnp.any(jnp.tril(same, -1), -1)
    merge = (same & is_first[:, None]).astype(d.dtype)
    rounding = jnp.finfo(d.dtype).eps * jnp.sum((jnp.sum(merge, -1) - 1) * (merge @ length(d, norm)))
    return length(length(merge @ d, norm), norm) + rounding
