"""Write convolutions and poolings as slices and dot products.

For example, a 3 x 3 convolution becomes nine slices of the images, put side by side, times the kernel as a matrix with
nine rows per input channel.

Why by hand: on a CPU, XLA's convolutions are fast in a step that is compiled alone, but many times slower inside
`lax.scan`, where whole runs live. Slices and dot products are equally fast in both, so they win on a CPU inside `scan`
only; outside `scan` XLA's own convolution is faster. Book-keeping needs the same form: a convolution is then a product
of the kernel with patches, measured like every other product.

`IN_SLICES` maps a primitive to a function of its operands' shapes and its parameters. That function returns a
replacement, or None where the primitive is better left as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import primitives

_MOST_SLICES = 128  # a larger window, such as in the gradient of a kernel, would make a very large program


def _convolution(images: Any, kernel: Any, **params: Any) -> Callable[[Array, Array], Array] | None:
    """Multiply patches of the images, one row per place of the window, by the kernel as a matrix."""
    in_spec, kernel_spec, out_spec = params["dimension_numbers"]
    window = [kernel.shape[i] for i in kernel_spec[2:]]
    full = window, params["window_strides"], params["padding"], params["lhs_dilation"], params["rhs_dilation"]
    if _is_too_large(window):
        return None
    by_feature, by_batch = params["feature_group_count"], params["batch_group_count"]
    precision = {name: params[name] for name in ("precision", "preferred_element_type")}
    groups = by_feature * by_batch  # JAX allows only one of the two to exceed 1

    def convolve(images: Array, kernel: Array) -> Array:
        geometry: tuple[Any, ...] = full
        x = lax.transpose(images, (in_spec[0], *in_spec[2:], in_spec[1]))  # batch, space, channels
        w = lax.transpose(kernel, (*kernel_spec[2:], kernel_spec[1], kernel_spec[0]))  # window, channels in, out
        if groups == 1:
            x, w, geometry = _folded(x, w, *full)
        channels, features = w.shape[-2:]
        slices = _slices(x, jnp.zeros((), x.dtype), *geometry)
        batch, *space = slices[0].shape[:-1]
        if groups == 1:
            patches, w = jnp.concatenate(slices, -1), w.reshape(-1, features)
            out = lax.dot_general(patches, w, (((patches.ndim - 1,), (0,)), ((), ())), **precision)
        else:
            # the group comes first in the batch or among the channels, and first among the features
            split = [s.reshape(by_batch, batch // by_batch, *space, by_feature, channels) for s in slices]
            patches = jnp.concatenate(split, -1)
            w = w.reshape(-1, groups, features // groups)
            group_axis = 0 if by_batch > 1 else patches.ndim - 2
            out = lax.dot_general(patches, w, (((patches.ndim - 1,), (0,)), ((group_axis,), (1,))), **precision)
            out = jnp.moveaxis(out, 0, -2).reshape(batch // by_batch, *space, features)
        # out is batch, space, features: bring each to its place
        order = np.argsort([out_spec[0], *out_spec[2:], out_spec[1]])
        return lax.transpose(out, [int(i) for i in order])

    return convolve


def _folded(
    x: Array,
    w: Array,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int],
    window_dilation: Sequence[int],
) -> tuple[Array, Array, tuple[Any, ...]]:
    """Turn strides into channels where the window is a multiple of them: fewer slices, and each is longer in memory.

    For example, an 8 x 8 window that moves by 2 over one channel is a 4 x 4 window that moves by 1 over the four
    channels that each 2 x 2 tile of the image holds: 16 slices instead of 64.
    """
    geometry = window, strides, padding, base_dilation, window_dilation
    if max(strides) == 1 or {*base_dilation, *window_dilation} != {1} or any(k % s for k, s in zip(window, strides)):
        return x, w, geometry
    n = len(window)
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((low, high, 0) for low, high in padding), (0, 0, 0)])
    reach = [(size - k) // s * s + k for size, k, s in zip(x.shape[1:-1], window, strides)]  # what the window meets
    x = lax.slice(x, (0,) * (n + 2), (x.shape[0], *reach, x.shape[-1]))
    tiles = [part for size, s in zip(reach, strides) for part in (size // s, s)]
    outer, inner = range(0, 2 * n, 2), range(1, 2 * n, 2)
    x = x.reshape(x.shape[0], *tiles, x.shape[-1])
    x = lax.transpose(x, (0, *(1 + i for i in outer), *(1 + i for i in inner), 2 * n + 1))
    x = x.reshape(*x.shape[: n + 1], -1)
    steps = [part for k, s in zip(window, strides) for part in (k // s, s)]
    w = lax.transpose(w.reshape(*steps, *w.shape[-2:]), (*outer, *inner, 2 * n, 2 * n + 1))
    w = w.reshape(*w.shape[:n], -1, w.shape[-1])
    ones = (1,) * n
    return x, w, (w.shape[:n], ones, ((0, 0),) * n, ones, ones)


def _largest(x: Any, **params: Any) -> Callable[[Array], Array] | None:
    """Pool by the largest value. Of equal values the first counts, as in XLA, so gradients agree too."""
    geometry = _geometry(params)
    if _is_too_large(geometry[0]):
        return None

    def pool(x: Array) -> Array:
        best, *others = _slices(x[None, ..., None], jnp.array(-jnp.inf, x.dtype), *geometry)
        for other in others:
            best = lax.select(_stays(best, other), best, other)
        return best[0, ..., 0]

    return pool if jnp.issubdtype(x.dtype, jnp.floating) else None


def _tangent_of_largest(tangent: Any, x: Any, **params: Any) -> Callable[[Array, Array], Array] | None:
    """Differentiate max-pooling: take the tangent at the place of the largest value."""
    geometry = _geometry(params)
    if _is_too_large(geometry[0]) or params["select_prim"] is not primitives.ge_p:
        return None

    def pool(tangent: Array, x: Array) -> Array:
        best, *others = _slices(x[None, ..., None], jnp.array(-jnp.inf, x.dtype), *geometry)
        there, *theirs = _slices(tangent[None, ..., None], jnp.zeros((), tangent.dtype), *geometry)
        for other, its in zip(others, theirs):
            stays = _stays(best, other)
            best, there = lax.select(stays, best, other), lax.select(stays, there, its)
        return there[0, ..., 0]

    return pool


def _sum(x: Any, **params: Any) -> Callable[[Array], Array] | None:
    geometry = _geometry(params)

    def pool(x: Array) -> Array:
        return reduce(lax.add, _slices(x[None, ..., None], jnp.zeros((), x.dtype), *geometry))[0, ..., 0]

    return None if _is_too_large(geometry[0]) else pool


def _stays(best: Array, other: Array) -> Array:
    return (best >= other) | (best != best)  # NaN stays, as in lax.max


def _geometry(params: dict[str, Any]) -> tuple[Any, ...]:
    names = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    return tuple(params[name] for name in names)


def _is_too_large(window: Sequence[int]) -> bool:
    return math.prod(window) > _MOST_SLICES


def _slices(
    x: Array,
    fill: Array,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int],
    window_dilation: Sequence[int],
) -> list[Array]:
    """Return one array per place in the window: what that place meets as the window moves over x.

    x has the axes (batch, space, channels).
    """
    edges = [(low, high, gap - 1) for (low, high), gap in zip(padding, base_dilation)]
    x = lax.pad(x, fill, [(0, 0, 0), *edges, (0, 0, 0)])
    moves = [
        (n - (size - 1) * gap - 1) // stride + 1
        for n, size, gap, stride in zip(x.shape[1:-1], window, window_dilation, strides)
    ]
    out = []
    for place in np.ndindex(*window):
        begin = [i * gap for i, gap in zip(place, window_dilation)]
        end = [i + (count - 1) * stride + 1 for i, count, stride in zip(begin, moves, strides)]
        out.append(lax.slice(x, (0, *begin, 0), (x.shape[0], *end, x.shape[-1]), (1, *strides, 1)))
    return out


IN_SLICES: dict[Any, Callable[..., Callable[..., Array] | None]] = {
    primitives.conv_general_dilated_p: _convolution,
    primitives.reduce_window_max_p: _largest,
    primitives.reduce_window_sum_p: _sum,
    primitives.select_and_gather_add_p: _tangent_of_largest,
}
