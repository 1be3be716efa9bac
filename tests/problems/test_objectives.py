"""Derivatives per record against explicit matrices, and projections against their definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import sottovoce as sv
from sottovoce.problems import along, public_along, sets

VECTORS = arrays.arrays(np.float32, 4, elements=st.floats(-3, 3, width=32))


def loss(x, y, r):
    return jnp.tanh(x @ r) * jnp.sum(jnp.cos(y) * r) + jnp.sum(x**2 * y**2)


@jax.jit
def derivatives(x, y, z, r):
    """Hessian and mixed matrix of the loss, and the slopes of `along`, in y and in x."""
    hessian, mixed = jax.hessian(loss, 1)(x, y, r), jax.jacobian(jax.grad(loss, 1), 0)(x, y, r)
    slope_y = jax.grad(lambda y: along(loss, x, y, r, z))(y)
    return hessian, mixed, slope_y, jax.grad(lambda x: along(loss, x, y, r, z))(x)


@settings(max_examples=20, deadline=None)
@given(x=VECTORS, y=VECTORS, z=VECTORS, r=VECTORS)
def test_along_gives_hessian_and_jacobian_products(x, y, z, r):
    hessian, mixed, slope_y, slope_x = derivatives(x, y, z, r)
    np.testing.assert_allclose(slope_y, hessian @ z, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(slope_x, mixed.T @ z, rtol=1e-4, atol=1e-3)


def test_public_along_of_nothing_is_zero():
    problem = sv.Bilevel(loss, loss, jnp.zeros(4), jnp.zeros(4))
    assert float(public_along(problem.public_lower, problem.x0, problem.y0, jnp.ones(4))) == 0.0


PROJECTIONS = {
    "box": (sets.box(-1.0, 0.5), lambda p: np.all((p >= -1 - 1e-6) & (p <= 0.5 + 1e-6))),
    "ball": (sets.ball(1.5), lambda p: np.linalg.norm(p) <= 1.5 + 1e-5),
    "simplex": (sets.simplex(2.0), lambda p: np.all(p >= 0) and abs(p.sum() - 2.0) < 1e-5),
}


@pytest.mark.parametrize("name", PROJECTIONS)
@settings(max_examples=30, deadline=None)
@given(point=VECTORS, other=VECTORS)
def test_projections_give_the_nearest_point_of_the_set(name, point, other):
    project, inside = PROJECTIONS[name]
    nearest, rival = np.asarray(project(point)), np.asarray(project(other))
    assert inside(nearest)
    assert np.linalg.norm(point - nearest) <= np.linalg.norm(point - rival) + 1e-4
    np.testing.assert_allclose(project(nearest), nearest, atol=1e-5)


def test_a_ball_is_over_the_whole_tree():
    inside = sets.ball(1.0)({"a": jnp.asarray(3.0), "b": jnp.asarray([4.0])})
    assert float(inside["a"]) == pytest.approx(0.6)
    assert float(inside["b"][0]) == pytest.approx(0.8)


@pytest.mark.parametrize("make", [lambda: sets.box(1.0, 1.0), lambda: sets.ball(0.0), lambda: sets.simplex(-1.0)])
def test_empty_sets_are_refused(make):
    with pytest.raises(ValueError, match=r"empty|positive"):
        make()


def test_optional_terms_may_be_none():
    problem = sv.Minimize(lambda x, r: x * r, 0.0, public=None, project_x=None)
    assert problem.public(1.0) == 0.0
    assert problem.project_x(3.0) == 3.0
