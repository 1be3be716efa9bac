"""The exact hypergradient against closed forms on ridge regression with one penalty per feature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.problems import Bilevel, bilevel_objectives, hypergradient, minimise_lower

RNG = np.random.default_rng(0)
D = 4
UPPER, LOWER = (
    {"a": RNG.normal(size=(n, D)).astype(np.float32), "b": RNG.normal(size=n).astype(np.float32)} for n in (30, 50)
)
X = jnp.asarray([-1.0, 0.5, -2.0, 0.0])


def square(x, y, r):
    return 0.5 * (y["w"] @ r["a"] - r["b"]) ** 2


TUNE = Bilevel(
    square, square, X, {"w": jnp.zeros(D)}, public_lower=lambda x, y: 0.5 * jnp.sum(jnp.exp(x) * y["w"] ** 2),
    public_upper=lambda x, y: 0.1 * jnp.sum(x**2) + 0.2 * jnp.sum(x * y["w"]),
)  # fmt: skip


def closed_form():
    """H, the right-hand side, y*, and the gradient of F, from the normal equations in float64, without autodiff."""
    a, b, n = LOWER["a"].astype(float), LOWER["b"].astype(float), len(LOWER["b"])
    e = np.exp(np.asarray(X, float))
    hessian = a.T @ a / n + np.diag(e)
    y = np.linalg.solve(hessian, a.T @ b / n)
    c, d = UPPER["a"].astype(float), UPPER["b"].astype(float)
    right = c.T @ (c @ y - d) / len(d) + 0.2 * np.asarray(X, float)
    direct = 0.2 * np.asarray(X, float) + 0.2 * y
    return hessian, right, y, lambda z: direct - e * y * z  # d/dx_j of grad_y g is exp(x_j) y_j, on the diagonal


class TestRidge:
    def test_conjugate_gradients_give_the_exact_hypergradient(self):
        hessian, right, y, assemble = closed_form()
        f, g = bilevel_objectives(TUNE, UPPER, LOWER)
        found = minimise_lower(g, X, TUNE.y0, rate=0.3, steps=400)
        assert found["w"] == pytest.approx(y, abs=1e-5)
        exact = assemble(np.linalg.solve(hessian, right))
        assert jax.jit(lambda x, y: hypergradient(f, g, x, y, steps=D + 2))(X, found) == pytest.approx(exact, abs=1e-4)

    def test_the_neumann_series_has_as_many_terms_as_it_says(self):
        hessian, right, y, assemble = closed_form()
        f, g = bilevel_objectives(TUNE, UPPER, LOWER)
        solved = jax.jit(lambda y, terms: hypergradient(f, g, X, y, solve="neumann", steps=terms, rate=0.3))
        shrunk = np.eye(D) - 0.3 * hessian
        for terms in (1, 3, 200):
            partial = 0.3 * sum(np.linalg.matrix_power(shrunk, k) for k in range(terms)) @ right
            assert solved({"w": jnp.asarray(y, jnp.float32)}, terms) == pytest.approx(assemble(partial), abs=1e-4)
        assert partial == pytest.approx(np.linalg.solve(hessian, right), abs=1e-4)


def test_a_rate_belongs_to_the_neumann_series_only():
    f, g = bilevel_objectives(TUNE, UPPER, LOWER)
    with pytest.raises(ValueError, match="needs a rate"):
        hypergradient(f, g, X, TUNE.y0, solve="neumann")
    with pytest.raises(ValueError, match="only it takes one"):
        hypergradient(f, g, X, TUNE.y0, rate=0.1)
    with pytest.raises(ValueError, match="solve is 'lu'"):
        hypergradient(f, g, X, TUNE.y0, solve="lu")
