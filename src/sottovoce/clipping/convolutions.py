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

import jax
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
        patches = _patches(x, *geometry)
        batch, *space = patches.shape[:-1]
        if groups == 1:
            w = w.reshape(-1, features)
            out = lax.dot_general(patches, w, (((patches.ndim - 1,), (0,)), ((), ())), **precision)
        else:
            # the group comes first in the batch or among the channels, and first among the features
            places = math.prod(window)
            split = patches.reshape(by_batch, batch // by_batch, *space, places, by_feature, channels)
            split = jnp.moveaxis(split, -2, -3).reshape(*split.shape[:-3], by_feature, places * channels)
            w = w.reshape(-1, groups, features // groups)
            group_axis = 0 if by_batch > 1 else split.ndim - 2
            out = lax.dot_general(split, w, (((split.ndim - 1,), (0,)), ((group_axis,), (1,))), **precision)
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
        return _fold(x, jnp.array(-jnp.inf, x.dtype), _larger, *geometry)

    return pool if jnp.issubdtype(x.dtype, jnp.floating) else None


def _tangent_of_largest(tangent: Any, x: Any, **params: Any) -> Callable[[Array, Array], Array] | None:
    """Differentiate max-pooling: take the tangent at the place of the largest value."""
    geometry = _geometry(params)
    if _is_too_large(geometry[0]) or params["select_prim"] is not primitives.ge_p:
        return None

    def pool(tangent: Array, x: Array) -> Array:
        def larger(best: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
            stays = _stays(best[0], other[0])
            return lax.select(stays, best[0], other[0]), lax.select(stays, best[1], other[1])

        fill = jnp.array(-jnp.inf, x.dtype), jnp.zeros((), tangent.dtype)
        return _fold((x, tangent), fill, larger, *geometry)[1]

    return pool


def _sum(x: Any, **params: Any) -> Callable[[Array], Array] | None:
    geometry = _geometry(params)

    def pool(x: Array) -> Array:
        return _fold(x, jnp.zeros((), x.dtype), lax.add, *geometry)

    return None if _is_too_large(geometry[0]) else pool


@jax.custom_jvp
def _larger(best: Array, other: Array) -> Array:
    """Return the larger value. A maximum is cheap enough to be computed wherever it is needed, a selection is not."""
    return lax.max(best, other)


@_larger.defjvp
def _tangent_of_larger(values: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return _larger(*values), lax.select(_stays(*values), *tangents)


def _stays(best: Array, other: Array) -> Array:
    return (best >= other) | (best != best)  # NaN stays, as in lax.max


def _geometry(params: dict[str, Any]) -> tuple[Any, ...]:
    names = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")
    return tuple(params[name] for name in names)


def _is_too_large(window: Sequence[int]) -> bool:
    return math.prod(window) > _MOST_SLICES


def _patches(
    x: Array,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int],
    window_dilation: Sequence[int],
) -> Array:
    """Put what the window meets at each of its positions side by side in the channels; x is (batch, space, channels).

    One dimension after the other, so a 3 x 3 window takes three slices twice instead of nine, and those of the second
    turn are three times longer in memory.
    """
    x = _padded(x, jnp.zeros((), x.dtype), ((0, 0), *padding, (0, 0)), (1, *base_dilation, 1))
    for axis in reversed(range(len(window))):
        moves = window[axis], strides[axis], window_dilation[axis]
        x = jnp.concatenate(_slices(x, 1 + axis, *moves), -1)
    return x


def _fold(
    x: Any,
    fill: Any,
    join: Callable[[Any, Any], Any],
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int],
    window_dilation: Sequence[int],
) -> Any:
    """Join what the window meets, one dimension after the other; the first dimension comes last.

    Where `join` keeps the first of equals, the result is then the first of equals in the order of the window.
    """
    x = jax.tree.map(lambda x, fill: _padded(x, fill, padding, base_dilation), x, fill)
    for axis in reversed(range(len(window))):
        moves = window[axis], strides[axis], window_dilation[axis]
        slices = jax.tree.map(lambda x, axis=axis, moves=moves: _slices(x, axis, *moves), x)
        x = reduce(join, zip(*slices) if isinstance(x, tuple) else slices)
    return x


def _padded(x: Array, fill: Array, padding: Sequence[tuple[int, int]], dilation: Sequence[int]) -> Array:
    return lax.pad(x, fill, [(low, high, gap - 1) for (low, high), gap in zip(padding, dilation)])


def _slices(x: Array, axis: int, size: int, stride: int, gap: int) -> list[Array]:
    """Return one array per place in a window along one axis: what that place meets as the window moves over x."""
    count = (x.shape[axis] - (size - 1) * gap - 1) // stride + 1
    return [lax.slice_in_dim(x, i * gap, i * gap + (count - 1) * stride + 1, stride, axis) for i in range(size)]


IN_SLICES: dict[Any, Callable[..., Callable[..., Array] | None]] = {
    primitives.conv_general_dilated_p: _convolution,
    primitives.reduce_window_max_p: _largest,
    primitives.reduce_window_sum_p: _sum,
    primitives.select_and_gather_add_p: _tangent_of_largest,
}
