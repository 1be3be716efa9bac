"""Compute clipped sums of per-record gradients without building one gradient per record.

`vmap(grad)` writes one gradient per record to memory, only to measure it and add it to the sum. Book-keeping measures
each record's gradient from the factors of the products that make it (`taps`, `norms`). It then needs one more product
per use of a parameter to add the clipped gradients. This costs about as much as a plain backward pass, for functions
of first and of second order.

For example, the gradient of ``0.5 * (x @ w - y) ** 2`` in `w` is ``(x @ w - y) * x``. Its norm is
``|x @ w - y| * |x|``: two numbers per record, and no gradient per record.

Why by hand: libraries that clip per record either build each record's gradient (`vmap(grad)`), or know a fixed list of
layers of one model library. The functions here are any JAX function of one record, Hessian-vector products included,
and the norm is never too small in floating point, which the guarantee of `clipped_sum` needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr

from sottovoce.clipping import norms
from sottovoce.clipping.products import Block, Use, blocks_of, is_cheaper_in_factors, wide
from sottovoce.clipping.taps import Taps, evaluate, leaf_cell
from sottovoce.together import largest
from sottovoce.trees import Tree

SAFETY = 1e-5  # records are clipped to C (1 - SAFETY), which leaves room for the rounding of the sum itself
_SLACK = 4e-6  # norms are raised by this relative amount, which leaves room for the rounding of their own sums
_EXPLICIT_ELEMENTS = 2**24  # per-record gradients held at once, unless `chunk` says otherwise
_CACHED_ELEMENTS = 2**20  # on a CPU: numbers kept at once, so that they stay in its cache
_FEWEST = 32  # records at once, however many numbers each keeps: fewer would not fill the products of matrices


def clipped_sum(
    fn: Callable[[Tree, Tree], Array],
    at: Tree,
    records: Tree,
    weights: Array,
    clip: Array | float | None,
    *,
    norm: str = "l2",
    chunk: int | None = None,
) -> Tree:
    """Add up weights[b] * min(1, C / |g_b|) * g_b over records b, with g_b the gradient of fn(., record_b) at `at`.

    Guarantee: C = clip * (1 - 1e-5) and |g_b| is never under-estimated, so one record changes the sum by at most
    weights[b] * clip in the chosen norm, which is taken over the whole pytree. It assumes that `fn` is a function of
    its two arguments and of public constants only. `fn` may compute in any precision and with complex numbers: what it
    does in 16 bits are the factors of g_b, and from these the norm and the sum are both computed in float32 (float64 if
    the parameters are). What is left is the rounding of a float32 sum, about 6e-8 of the sum of all contributions.

    | case | result |
    |---|---|
    | weights[b] == 0 | record b contributes exactly 0, whatever it contains |
    | |g_b| is not finite, or above about 1e19 in float32 | record b contributes exactly 0 |
    | clip is None or inf | no clipping; the two lines above still hold |
    | norm = "l1" and a leaf used in several products | |g_b| is bounded from above: clips more, never less |
    | a leaf that fn does not use | zeros |

    Args:
        fn: scalar function of (parameters, one record). It may contain `jax.grad` or `jax.jvp` of a loss. Where a loss
            has a `custom_vjp`, differentiate <grad, z> instead of `jvp`, which JAX does not define there.
        at: pytree of floating-point parameters.
        records: pytree whose leaves share a leading axis, one entry per record.
        weights: one number per record: 0 for padding, otherwise usually 1.
        clip: the clipping norm; may be traced.
        norm: "l2" or "l1".
        chunk: number of records to treat at once. It bounds the memory. By default only the memory of explicit
            per-record gradients is bounded, for the leaves that need them.

    >>> import jax.numpy as jnp
    >>> loss = lambda w, record: 0.5 * (record["x"] @ w - record["y"]) ** 2
    >>> records = {"x": jnp.array([[3.0, 4.0], [0.0, 0.1]]), "y": jnp.array([1.0, 0.0])}
    >>> total = clipped_sum(loss, jnp.array([0.0, 1.0]), records, jnp.ones(2), 1.0)
    >>> [round(float(v), 3) for v in total]  # the first record's (9, 12) is clipped, the second's (0, 0.01) is not
    [0.6, 0.81]
    """
    if clip is None:
        clip = np.inf
    elif isinstance(clip, int | float | np.number) and not clip >= 0:
        raise ValueError(f"clip is {clip}: give a clipping norm of at least 0, or None for no clipping")
    count = _count(records)
    if count == 0:
        return jax.tree.map(jnp.zeros_like, at)
    plan = _plan(fn, at, records, norm)
    weights = jnp.asarray(weights)
    if weights.shape != (count,):
        raise ValueError(
            f"weights have shape {weights.shape} and there are {count} records: give one weight per record"
        )

    def clipped(total: list[Array], records: Tree, weights: Array) -> list[Array]:
        book = plan.keep(records)
        finite = jnp.isfinite(book.sizes)
        kept = finite & (weights != 0)
        factor = jnp.minimum(1, clip * (1 - SAFETY) / jnp.where(kept, book.sizes, 1))
        scale = jnp.where(kept, weights * factor, 0)
        # A finite size has finite factors, and these times 0 are 0: only factors that are not finite must be masked,
        # which takes a pass over all of them.
        parts = jax.lax.cond(
            largest(~jnp.all(finite)), lambda: plan.add_up(book, kept, scale), lambda: plan.add_up(book, None, scale)
        )
        return [a + b for a, b in zip(total, parts)]

    def part(total: list[Array], batch: tuple[Tree, Array]) -> tuple[list[Array], None]:
        if len(batch[1]) == count:
            return clipped(total, *batch), None
        # a batch that is drawn at random has room for many more records than it mostly holds
        filled = largest(jnp.any(batch[1] != 0))
        return jax.lax.cond(filled, clipped, lambda total, *_: total, total, *batch), None

    nothing = [plan.zeros(leaf) for leaf in plan.leaves]
    return jax.tree.unflatten(plan.treedef, _in_chunks(part, nothing, records, weights, plan.chunk(count, chunk))[0])


def record_norms(
    fn: Callable[[Tree, Tree], Array], at: Tree, records: Tree, *, norm: str = "l2", chunk: int | None = None
) -> Array:
    """Return the norm of each record's gradient as `clipped_sum` sees it.

    It is never below the true norm, and it is not finite if the true norm is not. It depends on raw records: use it in
    tests, and to choose a clip where the data may be looked at.

    >>> import jax.numpy as jnp
    >>> loss = lambda w, record: 0.5 * (record @ w) ** 2
    >>> [round(float(v), 3) for v in record_norms(loss, jnp.array([0.0, 1.0]), jnp.array([[3.0, 4.0], [0.0, 2.0]]))]
    [20.0, 4.0]
    """
    count = _count(records)
    if count == 0:
        return jnp.zeros(0)
    plan = _plan(fn, at, records, norm)

    def part(total: None, batch: tuple[Tree, Array]) -> tuple[None, Array]:
        return total, plan.keep(batch[0]).sizes

    return _in_chunks(part, None, records, jnp.ones(count), plan.chunk(count, chunk))[1].reshape(-1)[:count]


@dataclass(frozen=True)
class _Book:
    """Hold the results of one backward pass, one entry per record in every array."""

    factors: list[list[Array]]
    cotangents: list[Array]
    explicit: dict[int, list[Array]]  # gradients of the leaves that are not kept in factors, per block or whole
    sizes: Array


@dataclass(frozen=True)
class _Plan:
    """Say how the gradient of each leaf is kept: in the factors of its uses, or explicitly."""

    closed: ClosedJaxpr
    treedef: Any
    leaves: list[Array]
    norm: str
    uses: list[Use]
    results: list[jax.ShapeDtypeStruct]
    direct: list[int]  # leaves with a tap of their own
    blocks: dict[int, list[Block]]  # leaves kept in factors
    written: dict[int, list[Block]]  # leaves whose gradients are written out, each block in the order of its products
    axes: tuple[str, ...]  # inside shard_map: the mesh axes over which records or parameters vary

    def zeros(self, like: Any) -> Array:
        return _vary(jnp.zeros(like.shape, like.dtype), self.axes)

    def chunk(self, count: int, chunk: int | None) -> int:
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk is {chunk}: give the number of records to treat at once, or None")
        explicit = {*self.direct, *(use.leaf for use in self.uses if use.leaf not in self.blocks)}
        elements = sum(self.leaves[i].size for i in explicit)
        at_once = max(1, _EXPLICIT_ELEMENTS // max(1, elements))
        if jax.default_backend() == "cpu":
            kept = elements + sum(use.positions * sum(use.where.shape[1:]) for use in self.uses)
            at_once = min(at_once, max(_FEWEST, _CACHED_ELEMENTS // max(1, kept)))
        chunks = -(-count // at_once)
        return min(count, chunk or -(-count // chunks))

    def keep(self, records: Tree) -> _Book:
        """Run one backward pass to the taps, and compute the norms from the cotangents that arrive there."""

        def tapped(zeros: tuple[list[Array], dict[int, Array]], record: list[Array]) -> tuple[Array, list[list[Array]]]:
            taps = Taps(zeros[0])
            cells = [leaf_cell(i, leaf, zeros[1].get(i)) for i, leaf in enumerate(self.leaves)]
            return evaluate(self.closed, cells, record, taps), taps.factors

        zeros = [self.zeros(r) for r in self.results], {i: self.zeros(self.leaves[i]) for i in self.direct}
        rows = jax.tree.leaves(records)
        (cotangents, own), factors = jax.vmap(jax.grad(tapped, has_aux=True), (None, 0))(zeros, rows)
        for use, a, d in zip(self.uses, factors, cotangents):
            if use.leaf not in self.blocks and use.leaf not in self.written:
                leaf = self.leaves[use.leaf]
                gradient = jax.vmap(use.unlay, (0, None))(use.gradients(a, d), leaf)
                own[use.leaf] = own[use.leaf] + gradient if use.leaf in own else gradient
        explicit = {i: [gradient] for i, gradient in own.items()}
        explicit |= {i: [block.gradients(factors, cotangents) for block in of] for i, of in self.written.items()}
        parts = [norms.length(wide(g.reshape(len(g), -1)), self.norm) for of in explicit.values() for g in of]
        for block in (b for blocks in self.blocks.values() for b in blocks):
            parts.append(jax.vmap(block.size, (0, 0, None))(factors, cotangents, self.norm))
        sizes = norms.together(parts, self.norm) * (1 + _SLACK) if parts else jnp.zeros(len(rows[0]))
        return _Book(factors, cotangents, explicit, sizes)

    def add_up(self, book: _Book, kept: Array | None, scale: Array) -> list[Array]:
        """Add up the records' gradients, each times its scale. Those not `kept` may hold anything, even NaN."""

        def mask(x: Array, scale: Array | None = None) -> Array:
            shape = (-1,) + (1,) * (x.ndim - 1)
            scaled = x if scale is None else wide(x) * scale.reshape(shape)  # a scale in 16 bits would be rounded up
            return scaled if kept is None else jnp.where(kept.reshape(shape), scaled, jnp.zeros((), scaled.dtype))

        total = [self.zeros(leaf) for leaf in self.leaves]
        for i, gradients in book.explicit.items():
            sums = [jnp.tensordot(scale, mask(wide(g)), 1, precision=jax.lax.Precision.HIGHEST) for g in gradients]
            if i in self.written:
                sums = [block.unlay(laid, self.leaves[i]) for block, laid in zip(self.written[i], sums)]
            total[i] = sum(sums[1:], sums[0]).astype(total[i].dtype)
        for use, a, d in zip(self.uses, book.factors, book.cotangents):
            if use.leaf in self.blocks:
                laid = use.gradient(jax.tree.map(mask, a), mask(d, scale))
                total[use.leaf] += use.unlay(laid, self.leaves[use.leaf])
        return total


def _plan(fn: Callable[[Tree, Tree], Array], at: Tree, records: Tree, norm: str) -> _Plan:
    if norm not in ("l1", "l2"):
        raise ValueError(f"norm is {norm!r}: choose 'l1' or 'l2'")
    leaves, treedef = jax.tree.flatten(jax.tree.map(jnp.asarray, at))
    if any(not jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
        raise TypeError("every leaf of `at` must be real floating point: bind other values to `fn` beforehand")
    if any(leaf.dtype.itemsize < 4 for leaf in leaves):  # their sums would be rounded by more than a clip
        narrow = next(leaf.dtype for leaf in leaves if leaf.dtype.itemsize < 4)
        raise TypeError(f"a leaf of `at` is {narrow}: keep parameters in float32, and cast them down inside `fn`")
    axes = tuple(sorted(set().union(*map(_varying, [*leaves, *jax.tree.leaves(records)]))))
    leaves = [_vary(leaf, axes) for leaf in leaves]
    record = jax.eval_shape(lambda rows: jax.tree.map(lambda x: x[0], rows), records)
    closed, out = jax.make_jaxpr(fn, return_shape=True)(jax.tree.unflatten(treedef, leaves), record)
    if getattr(out, "shape", None) != () or not jnp.issubdtype(out.dtype, jnp.floating):
        raise ValueError(
            f"fn(at, record) must be one real number, but it returns {out}: reduce it, for example by a sum"
        )
    taps = Taps()
    jax.eval_shape(
        lambda leaves, record: evaluate(closed, [leaf_cell(i, x) for i, x in enumerate(leaves)], record, taps),
        leaves,
        jax.tree.leaves(record),
    )
    blocks: dict[int, list[Block]] = {}
    written: dict[int, list[Block]] = {}
    for i, leaf in enumerate(leaves):
        uses = [(k, use) for k, use in enumerate(taps.uses) if use.leaf == i]
        found = None if i in taps.direct or not uses else blocks_of(leaf.size, uses)
        if found is not None:
            cheap = all(is_cheaper_in_factors(block, norm) for block in found)
            (blocks if cheap else written)[i] = found
    return _Plan(closed, treedef, leaves, norm, taps.uses, taps.results, sorted(taps.direct), blocks, written, axes)


def _varying(x: Array) -> frozenset[str]:
    return jax.typeof(x).manual_axis_type.varying


def _vary(x: Array, axes: Sequence[str]) -> Array:
    """Mark x as different on each device along `axes`; otherwise JAX adds up the cotangents of different devices."""
    missing = tuple(axis for axis in axes if axis not in _varying(x))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def _count(records: Tree) -> int:
    counts = {x.shape[:1] for x in jax.tree.leaves(records)}
    if len(counts) != 1 or () in counts:
        raise ValueError(f"the leaves of `records` must share a leading axis, one entry per record; they have {counts}")
    return counts.pop()[0]


def _in_chunks(
    part: Callable[[Any, tuple[Tree, Array]], tuple[Any, Any]],
    start: Any,
    records: Tree,
    weights: Array,
    size: int,
) -> tuple[Any, Any]:
    """Scan `part` over (records, weights), `size` records at a time; fill the last chunk with records of weight 0."""
    count = len(weights)
    if size >= count:
        return part(start, (records, weights))
    chunks = -(-count // size)
    weights = jnp.pad(weights, (0, chunks * size - count))
    filled = jax.tree.map(lambda x: x[np.arange(chunks * size) % count] if count % size else x, records)
    split = jax.tree.map(lambda x: x.reshape(chunks, size, *x.shape[1:]), (filled, weights))
    return jax.lax.scan(part, start, split)
