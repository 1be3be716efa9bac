import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.papers.ldp_dsbo.method import LdpDsbo
from sottovoce.papers.ldp_dsbo.theory import L1Constants, conditions, predict, rate
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Stream
from sottovoce.problems import sets
from sottovoce.schedules import Decay

from . import contract

# The worked case: Corollary 4.3 (i)'s exponents over 20 steps, on the paper's ring.
WORKED = {"step": (0.05, 0.05, 0.02), "v": (0.66, 0.64, 0.43), "sigma": 1.0, "s": (0.65, 0.63, 0.42), "clip": 1.0}
PLACE = {"data": sv.Population([20] * 10), "steps": 20, "network": sv.networks.ring(10, weight=0.3)}
OPEN = Release.open()


def account(method: LdpDsbo, delta: float = 0.0, **changes: object) -> sv.PrivacyReport:
    return sv.account(method, delta=delta, **{**PLACE, **changes})


@dataclasses.dataclass(frozen=True)
class _Leaping(Decay):
    """Takes one large step, at t = 5, where two looks at the schedule would not see it."""

    def __call__(self, t: Any, agent: Any = 0) -> Any:
        return super().__call__(t, agent) * (1.0 + 99.0 * (t == 5))


# Privacy.


def test_worked_values() -> None:
    laplace, gaussian = LdpDsbo.paper(**WORKED), LdpDsbo.paper(**WORKED, noise="gaussian")
    assert account(laplace).epsilon == pytest.approx(1.49699492, abs=1e-8)
    assert account(laplace, 1e-5).epsilon == pytest.approx(1.03852, abs=1e-3)
    assert account(gaussian, 1e-5).epsilon == pytest.approx(0.98239387, abs=1e-8)
    assert account(laplace).published == pytest.approx(132.57462913, abs=1e-8)
    assert account(laplace).adjacency == "replace-one"


def test_printed_needs_declared_constants() -> None:
    linear = L1Constants(c_h=1.0, c_l=1.0, L_h1=0.0, L_l1=0.0, L_l2=0.0, H1=0.0)
    printed = LdpDsbo.paper(**WORKED, design="printed", z_radius=1.0, constants=linear)
    report = account(printed)
    assert report.epsilon == pytest.approx(2.73467150, abs=1e-8)
    assert report.published == pytest.approx(132.57462913, abs=1e-8)
    assert report.design == "printed"
    for unproved in (
        dataclasses.replace(printed, constants=None),
        dataclasses.replace(printed, z_radius=math.inf),
        dataclasses.replace(
            printed, release_y=dataclasses.replace(printed.release_y, clip=0.5)
        ),  # the clip would act: no proof
        dataclasses.replace(printed, sampling=Full()),
        dataclasses.replace(printed, step_x=dataclasses.replace(printed.step_x, offset=0.001)),  # 95 times as large
        dataclasses.replace(printed, step_y=_Leaping(printed.step_y.value, printed.step_y.power)),
    ):
        assert account(unproved).epsilon == math.inf


def test_the_printed_bound_is_refused_where_a_projection_may_stretch_a_difference() -> None:
    """x is private there, and a ball's projection is no contraction in L1."""
    ball, one = sets.ball(1.0), jnp.full(100, 0.08).at[0].set(0.8)
    other = one.at[0].add(-0.01)
    assert jnp.abs(ball(one) - ball(other)).sum() > 4 * jnp.abs(one - other).sum()

    linear = L1Constants(c_h=1.0, c_l=1.0, L_h1=0.0, L_l1=0.0, L_l2=0.0, H1=0.0)
    printed = LdpDsbo.paper(**WORKED, design="printed", z_radius=1.0, constants=linear)
    free = sv.Bilevel(lambda x, y, r: r * jnp.sum(y), lambda x, y, r: r * jnp.sum(x * y), jnp.zeros(2), jnp.zeros(2))
    place = {**PLACE, "data": [np.ones(20, np.float32)] * 10}
    for held in (free, dataclasses.replace(free, project_x=sets.box(-1.0, 1.0))):
        assert sv.account(printed, delta=0.0, problem=held, **place).epsilon == pytest.approx(2.73467150, abs=1e-8)
    held = dataclasses.replace(free, project_x=ball)
    with pytest.raises(ValueError, match="free or in a box"):
        sv.account(printed, delta=0.0, problem=held, **place)
    undeclared = dataclasses.replace(printed, constants=None)
    assert sv.account(undeclared, delta=0.0, problem=held, **place).epsilon == math.inf


@pytest.mark.parametrize("design", ["sound", "printed"])
def test_without_noise_there_is_no_figure(design: str) -> None:
    report = account(LdpDsbo.paper(**{**WORKED, "sigma": 0.0}, design=design))
    assert report.epsilon == math.inf
    assert report.published is None


exponents = st.tuples(*[st.floats(0.1, 0.95)] * 3)
sizes = st.tuples(*[st.floats(0.05, 2.0)] * 3)


@settings(max_examples=15, deadline=None)
@given(exponents, exponents, sizes, sizes, sizes, st.integers(1, 12), st.sampled_from(["laplace", "gaussian"]))
def test_account_is_the_bound(v, s, sigma, step, clip, steps, noise) -> None:
    method = LdpDsbo.paper(step=step, v=v, sigma=sigma, s=s, clip=clip, noise=noise)
    delta = 1e-6 if noise == "gaussian" else 0.0
    bound = sv.privacy.sound.ldp_dsbo(steps, v, s, sigma, step, clip, noise, delta)
    assert account(method, delta, steps=steps).epsilon == pytest.approx(float(bound), rel=1e-9)


def test_agents_with_noise_of_their_own() -> None:
    decays = tuple(0.5 + 0.01 * i for i in range(10))
    report = account(LdpDsbo.paper(**{**WORKED, "s": (decays, 0.63, 0.42)}))
    alone = [account(LdpDsbo.paper(**{**WORKED, "s": (s, 0.63, 0.42)})).epsilon for s in (decays[0], decays[9])]
    assert report.per_agent[0] == pytest.approx(alone[0])
    assert report.per_agent[9] == pytest.approx(alone[1])
    assert report.epsilon == max(report.per_agent)


def test_batches_share_one_mechanism_and_levels_pay_apart() -> None:
    method = LdpDsbo(0.1, 0.1, 0.1, Release(1.0, 0.1), Release(1.0, 0.1), sv.Poisson(10), release_x=Release(1.0, 0.1))
    quiet_x = dataclasses.replace(method, release_x=None)
    both = account(method, 1e-5, data=sv.Population([100] * 10))
    assert both.adjacency == "zero-out"
    assert account(quiet_x, 1e-5, data=sv.Population([100] * 10)).epsilon < both.epsilon
    z = math.sqrt(1 / 3)  # three equal Gaussian releases of one batch
    merged = sv.privacy.sound.gradient_release(19, 10, 100, 1.0, 0.1 * z, 1e-5)
    assert both.epsilon == pytest.approx(float(merged), rel=1e-3)
    apart = account(method, 1e-5, data=sv.Population([sv.data.Levels(100, 100, disjoint=True)] * 10))
    assert apart.per_level["upper"] < apart.per_level["lower"] == pytest.approx(both.epsilon, rel=1e-6)


def test_noise_drawn_is_noise_charged() -> None:
    """Losses without slope leave only noise: its deviation in message t + 1 is sigma / (t+2)^s."""
    problem = sv.Bilevel(lambda x, y, r: 0.0 * r, lambda x, y, r: 0.0 * r, jnp.zeros(4000), jnp.zeros(4000))
    parts = [np.zeros(3, np.float32)]
    for design in ("sound", "printed"):
        method = LdpDsbo.paper(**WORKED, design=design)
        result = sv.run(problem, parts * 2, method, network=sv.networks.ring(2, weight=0.4), steps=1)
        (first, _) = np.asarray(jax.tree.leaves(result.agents.x)[0])
        # Sound: the agent's own broadcast number 1. Printed: what it hears of the neighbour's number 0, weight 0.4.
        wanted = 1 / 2**0.65 if design == "sound" else 0.4
        assert np.std(first) == pytest.approx(wanted, rel=0.05)
        assert np.mean(np.abs(first)) == pytest.approx(wanted / math.sqrt(2), rel=0.05)  # Laplace, not Gaussian


# Convergence.


@pytest.mark.parametrize("design", ["sound", "printed"])
def test_reaches_the_hypergradient_root_with_decaying_steps(design: str) -> None:
    method = LdpDsbo(
        Decay(0.8, 0.3), Decay(0.8, 0.2), Decay(0.8, 0.1), OPEN, OPEN, Full(), release_x=OPEN, design=design
    )
    case = contract.bilevel()
    result = contract.run(method, case, 800)
    for got, wanted in zip(jax.tree.leaves((result.x, result.y)), jax.tree.leaves(case.solution), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-4)


def test_designs_coincide_without_noise() -> None:
    case = contract.bilevel(levels=True)
    sound = LdpDsbo(0.1, 0.2, 0.2, OPEN, OPEN, Full(), release_x=OPEN)
    one, other = (contract.run(dataclasses.replace(sound, design=d), case, 20) for d in ("sound", "printed"))
    for a, b in zip(jax.tree.leaves((one.x, one.y)), jax.tree.leaves((other.x, other.y)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def uneven() -> tuple[sv.Bilevel, list[dict[str, np.ndarray]], float]:
    """Lower curvatures differ from agent to agent: y*(x) = x + weighted mean of a; upper as in the contract."""
    rng = np.random.default_rng(5)
    curvature = np.array([0.5, 2.0, 1.0, 1.5])
    a, b = rng.normal(size=(2, 4)) * 2
    problem = sv.Bilevel(
        upper=lambda x, y, r: 0.5 * (y - r["b"]) ** 2,
        lower=lambda x, y, r: 0.5 * r["c"] * (y - x - r["a"]) ** 2,
        x0=jnp.zeros(()),
        y0=jnp.zeros(()),
        public_upper=lambda x, y: 0.5 * x**2,
    )
    parts = [{k: np.full(2, w[i], np.float32) for k, w in (("a", a), ("b", b), ("c", curvature))} for i in range(4)]
    return problem, parts, (b.mean() - (curvature @ a) / curvature.sum()) / 2


def test_bias_falls_with_the_step_size() -> None:
    problem, parts, wanted = uneven()
    off = []
    for size in (0.1, 0.0125):
        method = LdpDsbo(size, size, size, OPEN, OPEN, Full(), release_x=OPEN)
        result = sv.run(problem, parts, method, network=sv.networks.ring(4), steps=round(120 / size), every=20_000)
        off.append(abs(float(result.x) - wanted))
    assert off[0] > 1e-3, "without a bias there is nothing to test"
    assert off[1] < off[0] / 4


# x that no record meets.


def ridge(reads_x: bool = False) -> sv.Bilevel:
    def loss(x, y, r):
        return 0.5 * (y @ r["a"] - r["b"]) ** 2 + (jnp.sum(x) if reads_x else 0.0)

    penalty = {"public_lower": lambda x, y: 0.5 * jnp.sum(jnp.exp(x) * y**2)}
    return sv.Bilevel(loss, loss, jnp.zeros(3), jnp.zeros(3), **penalty)


def regression(agents: int = 4) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(agents, 30, 3)).astype(np.float32)
    target = features @ np.array([1.0, -1.0, 0.0], np.float32) + 0.3 * rng.normal(size=(agents, 30)).astype(np.float32)
    return [{"a": features[i], "b": target[i].astype(np.float32)} for i in range(agents)]


def test_public_x_is_the_same_direction_for_free() -> None:
    charged = LdpDsbo(0.3, 0.2, 0.2, OPEN, OPEN, Full(), release_x=OPEN)
    free = dataclasses.replace(charged, release_x=None)
    runs = [sv.run(ridge(), regression(), m, network=sv.networks.ring(4), steps=30) for m in (charged, free)]
    np.testing.assert_allclose(runs[0].x, runs[1].x, atol=1e-6)
    assert not np.allclose(runs[0].x, 0.0, atol=1e-3)
    private = free.map_releases(lambda r: Release(1.0, 0.1))
    assert not any(
        e.startswith("release_x:")
        for e in sv.account(private, sv.Population([30] * 4), steps=3, network=sv.networks.ring(4)).events
    )
    with pytest.raises(TypeError, match="give x a release"):
        sv.run(ridge(reads_x=True), regression(), free, network=sv.networks.ring(4), steps=2)


def test_direction_of_x_is_the_hypergradient() -> None:
    """At y*(x) and the true z, one step of size 1 moves x by the gradient of F, computed by differentiating y*."""
    (part,) = regression(1)
    a, b = (np.asarray(part[k], np.float64) for k in ("a", "b"))
    x = np.array([0.3, -0.2, 0.5])

    def best(x):
        return jnp.linalg.solve(a.T @ a / 30 + jnp.diag(jnp.exp(x)), a.T @ b / 30)

    def outer(x):
        return 0.5 * jnp.mean((a @ best(x) - b) ** 2)

    y = best(x)
    z = jnp.linalg.solve(a.T @ a / 30 + jnp.diag(jnp.exp(x)), a.T @ (a @ y - b) / 30)
    problem = dataclasses.replace(ridge(), x0=jnp.asarray(x, jnp.float32), y0=jnp.asarray(y, jnp.float32))

    class Started(LdpDsbo):
        public_constants = True

        def init(self, problem, agent):
            return super().init(problem, agent)._replace(z=jnp.asarray(z, jnp.float32))

    del sv.methods.Method.registry["Started"]
    result = sv.run(problem, [part], Started(1.0, 1.0, 1.0, OPEN, OPEN, Full()), steps=1)
    np.testing.assert_allclose(result.x - x, -jax.grad(outer)(jnp.asarray(x)), atol=1e-5)


def test_z_stays_in_its_ball() -> None:
    method = LdpDsbo(0.1, 0.1, 5.0, OPEN, Release(100.0, 10.0), Full(), z_radius=0.5)
    result = sv.run(ridge(), regression(), method, network=sv.networks.ring(4), steps=5)
    assert np.isfinite(result.x).all()  # a z that ran away would carry x with it


# Theory.


@pytest.mark.parametrize(
    ("case", "v", "s", "wanted"),
    [
        ("strongly convex", (0.66, 0.64, 0.43), (0.65, 0.63, 0.42), 0.4),
        ("convex", (0.77, 0.75, 0.5), (0.76, 0.74, 0.49), 0.23),
        ("nonconvex", (0.615, 0.60375, 0.4), (0.61125, 0.6, 0.398125), 0.385),
    ],
)
def test_corollary_settings_meet_the_theorem(case, v, s, wanted) -> None:
    assert all(finding.holds for finding in conditions(v, s, case))
    assert rate(v, s, case) == pytest.approx(wanted)
    ring = sv.networks.ring(10, weight=0.3)
    for design in ("sound", "printed"):
        prediction = predict(LdpDsbo.paper(step=1.0, v=v, sigma=1.0, s=s, design=design).dynamics, ring, case)
        assert prediction.rate == pytest.approx(wanted)
        assert [f.name for f in prediction.failed] == [
            "stricter reading: eigenvalues of -W below 1"
        ]  # 1.2 on this ring


def test_experiment_settings_do_not() -> None:
    ring = sv.networks.ring(10, weight=0.3)
    agents = range(1, 11)
    decays = tuple(tuple(base + 0.01 * i for i in agents) for base in (0.8, 0.76, 0.6))
    mnist = LdpDsbo.paper(step=1.2, v=(0.95, 0.87, 0.75), sigma=1.0, s=decays, design="printed")
    failed = {f.name: f.detail for f in predict(mnist.dynamics, ring).failed}
    assert failed["2 s_y > v_z + v_y"] == "1.54 against 1.62"
    decays = tuple(tuple(base + 0.01 * i for i in agents) for base in (0.42, 0.41, 0.40))
    cifar = LdpDsbo.paper(step=1.0, v=(0.53, 0.52, 0.50), sigma=math.sqrt(2), s=decays, design="printed")
    prediction = predict(cifar.dynamics, ring)
    assert prediction.rate is None
    assert "s_x > 1/2" in {f.name for f in prediction.failed}
    assert "no rate" in str(prediction)


def test_noise_that_follows_the_step_fails_assumption_three() -> None:
    method = LdpDsbo(
        Decay(1, 0.9), Decay(1, 0.8), Decay(1, 0.7), *[Release(1.0, 0.1)] * 2, Stream(), release_x=Release(1.0, 0.1)
    )
    failed = {f.name for f in predict(method.dynamics, sv.networks.ring(4)).failed}
    assert {"s_x < v_x", "s_y < v_y", "s_z < v_z"} <= failed


# Mistakes.


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: LdpDsbo.paper(**{**WORKED, "v": (0.6, 0.5)}), "give one number, or three"),
        (lambda: LdpDsbo.paper(**WORKED, data="online"), "'stream' or 'batch'"),
        (lambda: LdpDsbo.paper(**WORKED, design="best"), "'sound' or 'printed'"),
        (lambda: LdpDsbo.paper(**WORKED, z_radius=0.0), "must be positive"),
        (lambda: LdpDsbo(0.1, 0.1, 0.1, OPEN, OPEN, Full(), design="printed"), "give x a release"),
        (lambda: conditions((0.6, 0.5, 0.4), (0.5, 0.4, 0.3), "concave"), "choose one of"),
    ],
)
def test_mistakes_say_what_to_do(mistake, words) -> None:
    with pytest.raises(ValueError, match=words):
        mistake()
