"""The rivals of LDP-DSBO: what they charge, and what sets them apart."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.methods import GbDsbo, LdpDsbo, MaDsbo, VrDsbo
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full

OPEN, PRIVATE = Release.open(), Release(1.0, 0.1)
RING = sv.networks.ring(4)
BATCH = sv.Poisson(10)


def epsilon(method: sv.methods.Method, steps: int = 5) -> float:
    return sv.account(method, sv.Population([100] * 4), steps=steps, network=RING).epsilon


def released(times: int, noise: float = 0.1) -> float:
    """So many releases, each from a batch of its own."""
    return float(sv.privacy.sound.gradient_release(times - 1, 10, 100, 1.0, noise, 1e-5))


def test_ma_dsbo_pays_for_every_turn_of_its_loops() -> None:
    method = MaDsbo(0.1, 0.1, 0.1, PRIVATE, PRIVATE, PRIVATE, BATCH, inner_y=4, inner_z=3)
    assert epsilon(method) == pytest.approx(released(5 * (4 + 3 + 2)), rel=1e-3)


def test_gb_dsbo_pays_for_every_matrix() -> None:
    method = GbDsbo(0.1, 0.1, 0.5, PRIVATE, PRIVATE, PRIVATE, PRIVATE, BATCH, terms=6)
    one_step = sv.account(method, sv.Population([100] * 4), steps=1, network=RING)
    assert [event.rsplit(", ", 1)[1] for event in one_step.events] == ["once"] * 4 + ["6 times"]
    without_series = released(5, noise=0.1 / 2)  # four releases share the first batch
    assert released(5 * 6) < epsilon(method) < released(5 * 6) + without_series


def test_vr_dsbo_pays_for_its_series_out_of_one_batch() -> None:
    method = VrDsbo(0.5, PRIVATE, PRIVATE, PRIVATE, BATCH, terms=3)
    assert epsilon(method) == pytest.approx(released(5, noise=0.1 / np.sqrt(2 * 3 + 2)), rel=1e-3)


@pytest.mark.parametrize("cls", [MaDsbo, GbDsbo, VrDsbo])
def test_printed_designs_prove_nothing(cls: type[sv.methods.Method]) -> None:
    printed = cls.examples()["printed"].map_releases(lambda r: PRIVATE)
    report = sv.account(printed, sv.Population([100] * 4), steps=2, network=RING)
    assert report.epsilon == np.inf
    assert report.design == "printed"


def uneven(curvature: tuple[float, ...]) -> tuple[sv.Bilevel, list[dict[str, np.ndarray]], float]:
    """Upper |y - b|^2 / 2 + |x|^2 / 2 over lower c y^2 / 2 - (x + a) y, whose curvature c differs between agents."""
    rng = np.random.default_rng(5)
    c = np.array(curvature)
    a, b = rng.normal(size=(2, 4)) * 2
    problem = sv.Bilevel(
        upper=lambda x, y, r: 0.5 * (y - r["b"]) ** 2,
        lower=lambda x, y, r: 0.5 * r["c"] * y**2 - (x + r["a"]) * y,
        x0=jnp.zeros(()),
        y0=jnp.zeros(()),
        public_upper=lambda x, y: 0.5 * x**2,
    )
    parts = [{k: np.full(2, w[i], np.float32) for k, w in (("a", a), ("b", b), ("c", c))} for i in range(4)]
    return problem, parts, (b.mean() * c.mean() - a.mean()) / (c.mean() ** 2 + 1)


def reached(method: sv.methods.Method, curvature: tuple[float, ...], steps: int) -> float:
    """How far x ends from the solution."""
    problem, parts, best = uneven(curvature)
    return abs(float(sv.run(problem, parts, method, network=RING, steps=steps, every=steps).x) - best)


@pytest.mark.slow
def test_vr_dsbo_needs_lower_levels_that_are_alike() -> None:
    """Its local inverses do not average to the inverse of the average: no step size helps. LDP-DSBO's bias vanishes."""
    own = VrDsbo(0.5, OPEN, OPEN, OPEN, Full(), beta_x=0.02, beta_y=0.04, smoothness=2.5, terms=40)
    alike, different = (1.0,) * 4, (0.4, 2.0, 1.0, 2.4)
    assert reached(own, alike, 3000) < 1e-3
    stuck = reached(own, different, 3000)
    assert stuck > 0.05
    single_loop = LdpDsbo(0.01, 0.01, 0.01, OPEN, OPEN, Full(), release_x=OPEN)
    assert reached(single_loop, different, 6000) < stuck / 2


@pytest.mark.slow
def test_gb_dsbo_averages_true_second_derivatives() -> None:
    def lower(x, y, r):
        return jnp.log1p(jnp.exp(r["a"] @ y["w"])) + jnp.sum(x["s"] * y["w"]) ** 2 * r["t"]

    problem = sv.Bilevel(
        upper=lambda x, y, r: 0.5 * jnp.sum(y["w"] ** 2) * r["t"] + jnp.sum(x["s"]),
        lower=lower,
        x0={"s": jnp.array([0.1, 0.2])},
        y0={"w": jnp.array([0.3, -0.4])},
        public_lower=lambda x, y: jnp.sum(jnp.exp(x["s"]) * y["w"] ** 2),
    )
    rng = np.random.default_rng(0)
    part = {"a": rng.normal(size=(5, 2)).astype(np.float32), "t": rng.random(5).astype(np.float32)}
    method = GbDsbo(0.0, 0.0, 1.0, OPEN, OPEN, OPEN, OPEN, Full(), smoothness=8.0, terms=60)
    result = sv.run(problem, [part], method, steps=1)

    def total(x, y):
        return jnp.mean(jax.vmap(lambda r: lower({"s": x}, {"w": y}, r))(part)) + jnp.sum(jnp.exp(x) * y**2)

    x, y = problem.x0["s"], problem.y0["w"]
    np.testing.assert_allclose(result.agents.hessians[0, 7], jax.hessian(total, 1)(x, y), rtol=1e-4)
    np.testing.assert_allclose(result.agents.jacobian[0], jax.jacfwd(jax.grad(total, 0), 1)(x, y), rtol=1e-4, atol=1e-6)
    moved = sv.run(problem, [part], dataclasses.replace(method, step_x=1.0, along="new"), steps=1)
    z = jnp.linalg.solve(jax.hessian(total, 1)(x, y), y * part["t"].mean())
    exact = 1.0 - jax.jacfwd(jax.grad(total, 0), 1)(x, y) @ z
    np.testing.assert_allclose(np.asarray(x) - moved.x["s"], exact, rtol=1e-3)


@pytest.mark.parametrize("cls", [MaDsbo, GbDsbo, VrDsbo])
@pytest.mark.slow
def test_designs_coincide_without_noise(cls: type[sv.methods.Method]) -> None:
    problem, parts, _ = uneven((0.5, 1.0, 1.5, 1.0))
    runs = [sv.run(problem, parts, cls.examples()[design], network=RING, steps=10) for design in ("sound", "printed")]
    np.testing.assert_allclose(runs[0].x, runs[1].x, atol=1e-5)


@pytest.mark.parametrize("cls", [GbDsbo, VrDsbo])
def test_a_series_needs_a_positive_bound(cls: type[sv.methods.Method]) -> None:
    with pytest.raises(ValueError, match="positive bound"):
        dataclasses.replace(cls.examples()["sound"], smoothness=0.0)  # type: ignore[call-arg]
