"""Measured constants of Assumptions 2.2 and 2.3 against closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.papers.ldp_dsbo.budget import hyper_smoothness
from sottovoce.papers.ldp_dsbo.constants import estimate


@pytest.mark.slow
def test_constants_of_a_sine_are_its_derivatives() -> None:
    # f = c sin(y), g = mu/2 y^2 - r sin(x) y for records r: mean a, deviation b.
    a, b, c, mu = 0.8, 0.3, 0.5, 1.5
    problem = sv.Bilevel(
        lambda x, y, r: c * jnp.sin(y[0]) + 0.0 * r,
        lambda x, y, r: 0.5 * mu * y[0] ** 2 - r * jnp.sin(x[0]) * y[0],
        x0=jnp.zeros(1),
        y0=jnp.zeros(1),
    )
    parts = [
        {"upper": jnp.ones(2), "lower": jnp.asarray([a - b, a + b])},
        {"upper": jnp.ones(2), "lower": jnp.zeros(2)},
    ]
    found = estimate(problem, parts, [(jnp.full(1, x), jnp.full(1, y)) for x in (0.0, np.pi / 2) for y in (0.0, 1.0)])
    assert found.L_f0 == pytest.approx(c)  # |cos| at 0
    assert found.L_f1 == pytest.approx(c * np.sin(1.0))
    assert found.mu_g == pytest.approx(mu)
    assert found.L_g1 == pytest.approx(np.linalg.norm([[0, -a], [-a, mu]], 2))  # at x = 0; bent by y at pi/2:
    # third derivatives at x = pi/2: xxy is a (three places); at x = 0: xxx is a y, xxy is 0.
    assert found.L_g2 == pytest.approx(np.sqrt(3) * a, rel=1e-5)
    assert found.sigma_f1 == found.sigma_f2 == 0.0
    # records move grad g by b (cos(x) y, sin(x)), at most b at (0, 1) or (pi/2, .)
    assert found.sigma_g1 == pytest.approx(b, rel=1e-5)
    assert found.sigma_g2 == pytest.approx(b * np.sqrt(2), rel=1e-5)  # both places of cos(x), at x = 0
    assert found.sigma_g3 == pytest.approx(b * np.sqrt(3), rel=1e-5)


def test_the_mean_over_agents_is_not_taken() -> None:
    problem = sv.Bilevel(
        lambda x, y, r: r * jnp.sum(y), lambda x, y, r: 0.5 * r * jnp.sum(y**2), x0=jnp.zeros(1), y0=jnp.zeros(2)
    )
    parts = [{"upper": jnp.asarray([1.0]), "lower": jnp.asarray([h])} for h in (0.5, 2.0)]
    found = estimate(problem, parts, [(jnp.zeros(1), jnp.ones(2))])
    assert (found.mu_g, found.L_g1) == pytest.approx((0.5, 2.0))
    assert hyper_smoothness(found.L_f0, found.L_f1, found.L_g1, found.L_g2, found.mu_g) == pytest.approx(0.0)
