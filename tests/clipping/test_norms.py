"""Norms from factors are never below the norm of the gradient that the factors make."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.clipping import record_norms
from sottovoce.clipping.bookkeeping import _plan
from sottovoce.clipping.norms import outer_sum

from .cases import draw, size


def difference(ratio):
    """Two uses of one leaf that cancel up to 1/ratio of their size."""

    def fn(w, r):
        return r["u"] @ w @ r["v"] - (r["u"] * (1 + r["e"] / ratio)) @ w @ r["v"]

    u, v = draw(4, 300), draw(4, 200)
    return fn, jnp.zeros((300, 200)), {"u": u, "v": v, "e": draw(4, 300, seed=1)}


@pytest.mark.parametrize("ratio", [1e1, 1e2, 1e3, 1e4])
def test_cancellation_is_never_underestimated(ratio):
    fn, at, records = difference(ratio)
    assert in_blocks(fn, at, records)
    # the factors are float32 numbers: what counts is the gradient that they make, in exact arithmetic
    u, v, e = (np.asarray(records[k]) for k in "uve")
    u2 = np.asarray(jax.jit(lambda u, e: u * (1 + e / ratio))(u, e))
    true = np.linalg.norm(u.astype(float) - u2.astype(float), axis=1) * np.linalg.norm(v.astype(float), axis=1)
    seen = np.asarray(jax.jit(lambda r: record_norms(fn, at, r))(records))
    assert np.all(seen >= true)
    np.testing.assert_allclose(seen, true, rtol=1e-5 + 3e-6 * ratio)


def in_blocks(fn, at, records):
    return set(_plan(fn, at, records, "l2").blocks) == {0}


MEASURE = jax.jit(outer_sum, static_argnums=2)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(-3, 3), st.integers(1, 3))
def test_norm_of_factors_is_an_upper_bound(seed, magnitude, uses):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(1, uses, 40)) * 10.0**magnitude
    d = rng.normal(size=(1, uses, 30))
    a[:, 1:] = a[:, :1] + 10.0 ** rng.uniform(-6, 0) * a[:, 1:]  # nearly parallel
    d[:, 1:] = -d[:, :1] / max(uses - 1, 1) + 10.0 ** rng.uniform(-6, 0) * d[:, 1:]  # nearly opposite
    a, d = a.astype(np.float32), d.astype(np.float32)
    gradient = np.einsum("gtp,gtq->gpq", a.astype(float), d.astype(float)).reshape(1, -1)
    for norm in ("l1", "l2"):
        assert float(MEASURE(a, d, norm)) * (1 + 4e-6) >= size(gradient, norm)[0]


def test_tiny_factors_are_not_lost():
    """The square of 1e-25 is 0 in float32, but its product with 1e15 is a gradient."""
    fn = lambda w, r: r[0] * 1e15 * jnp.sum(r[1:] @ w)  # noqa: E731
    records = jnp.array([[1.0, 1e-25, 1e-25], [1.0, 0.0, 0.0]])
    assert jax.jit(lambda w, r: record_norms(fn, w, r))(jnp.ones((2, 2)), records)[0] >= 2e-10
