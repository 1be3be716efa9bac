"""Convolutions and poolings in slices against XLA's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from sottovoce.clipping.taps import TappedValue, Taps, _walk

from .cases import draw


def in_slices(fn):
    """The function as book-keeping evaluates it."""

    def call(*args):
        closed, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
        outs = _walk(closed.jaxpr, closed.consts, [TappedValue(x) for x in jax.tree.leaves(args)], Taps(), {})
        return jax.tree.unflatten(jax.tree.structure(shape), [cell.value for cell in outs])

    return call


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_pooling_in_slices_agrees_on_ties_and_tangents(padding):
    x = jnp.round(draw(2, 9, 9, 3))
    largest = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), padding)  # noqa: E731
    total = lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), padding)  # noqa: E731
    for pool in (largest, total):
        tangent = lambda x, pool=pool: jax.jvp(pool, (x,), (draw(*x.shape, seed=1),))[1]  # noqa: E731
        gradient = lambda x, pool=pool: jax.vjp(pool, x)[1](jnp.cos(pool(x)))[0]  # noqa: E731
        gradient_in_slices = lambda x, pool=pool: jax.vjp(in_slices(pool), x)[1](jnp.cos(pool(x)))[0]  # noqa: E731
        for ours, theirs in ((in_slices(pool), pool), (in_slices(tangent), tangent), (gradient_in_slices, gradient)):
            np.testing.assert_allclose(jax.jit(ours)(x), jax.jit(theirs)(x), atol=1e-5)
    assert np.isnan(jax.jit(in_slices(largest))(x.at[0, 3, 3, 0].set(jnp.nan))).any()


@pytest.mark.parametrize("layout", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NHWC"), ("HWNC", "HWOI", "CHWN")])
@pytest.mark.parametrize(
    "options",
    [
        {"window_strides": (2, 1), "padding": "SAME"},
        {"window_strides": (1, 2), "padding": [(1, 2), (-1, 3)], "lhs_dilation": (2, 1)},
        {"window_strides": (1, 1), "padding": "VALID", "rhs_dilation": (1, 2), "feature_group_count": 2},
        {"window_strides": (1, 1), "padding": "VALID", "batch_group_count": 2},
    ],
)
def test_convolution_in_slices(layout, options):
    sizes = {"N": 4, "H": 7, "W": 8, "C": 4}
    kernel_sizes = {"H": 3, "W": 2, "I": 4 // options.get("feature_group_count", 1), "O": 6}
    x = draw(*(sizes[c] for c in layout[0]))
    w = draw(*(kernel_sizes[c] for c in layout[1]))
    convolve = lambda x, w: lax.conv_general_dilated(x, w, dimension_numbers=layout, **options)  # noqa: E731
    np.testing.assert_allclose(jax.jit(in_slices(convolve))(x, w), convolve(x, w), atol=1e-4)
    assert "conv_general_dilated" not in str(jax.make_jaxpr(in_slices(convolve))(x, w))


def test_strides_become_channels_where_the_window_is_a_multiple_of_them():
    """A 6 x 4 window that moves by 3 and 2 is a 2 x 2 window over tiles: four slices, and one that cuts the image."""
    x, w = draw(2, 13, 11, 3), draw(6, 4, 3, 5)
    layout = ("NHWC", "HWIO", "NHWC")
    convolve = lambda x, w: lax.conv_general_dilated(  # noqa: E731
        x, w, (3, 2), [(2, 1), (-1, 3)], dimension_numbers=layout
    )
    slope = lambda fn: jax.grad(lambda x, w: jnp.sum(jnp.cos(fn(x, w))), (0, 1))  # noqa: E731
    for ours, theirs in ((in_slices(convolve), convolve), (slope(in_slices(convolve)), slope(convolve))):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), jax.jit(ours)(x, w), theirs(x, w))
    assert str(jax.make_jaxpr(in_slices(convolve))(x, w)).count("= slice[") == 5
