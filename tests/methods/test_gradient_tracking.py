"""DP gradient tracking: account against closed forms, limits against solutions, theory against simulation."""

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
from sottovoce.papers.gradient_tracking import convergence as theory
from sottovoce.papers.gradient_tracking import lemmas
from sottovoce.papers.gradient_tracking.method import DpGradientTracking, TrackingState
from sottovoce.papers.gradient_tracking.rivals.ternary_sgd import ternary
from sottovoce.papers.gradient_tracking.theory import S1, S2, Rates
from sottovoce.privacy import published, sound
from sottovoce.schedules import Linear
from tests.marks import few

# Agents 2, 3 and 4 only listen along pull and only speak along push: spanning trees, common roots 0 and 1.
PULL = [(0, 1), (1, 0), (1, 2), (0, 3), (3, 4)]
PUSH = [(1, 0), (0, 1), (2, 0), (3, 1), (4, 3)]
NETWORK = sv.networks.directed(PULL, PUSH)
CYCLE = [(0, 1), (1, 0)]
ALPHA, BETA, GAMMA = 0.5, 0.4, 0.05
CURVATURE = np.array([0.5, 1.0, 1.5, 2.0, 0.8], np.float32)
CENTRE = np.array([3.0, 2.0, -1.0, 0.0, -2.0], np.float32)
OPTIMUM = float(CURVATURE @ CENTRE / CURVATURE.sum())


def tracking(**changes: Any) -> DpGradientTracking:
    plain: dict[str, Any] = {"scheme": Rates(ALPHA, BETA, GAMMA), "gradient": sv.Release.open(), "sampling": sv.Full()}
    return DpGradientTracking(**plain | changes)


def quadratics() -> tuple[sv.Minimize, list[Any]]:
    """Agents of different curvature and centre: a method without tracking is biased on them."""
    problem = sv.Minimize(lambda x, r: 0.5 * r["h"] * jnp.sum((x - r["c"]) ** 2), jnp.zeros(3))
    return problem, [{"h": np.full(4, h), "c": np.full((4, 1), c)} for h, c in zip(CURVATURE, CENTRE)]


def run(method: Any, steps: int, every: int = 10, network: Any = NETWORK) -> Any:
    problem, parts = quadratics()
    return sv.run(
        problem,
        parts,
        method,
        network=network,
        steps=steps,
        every=every,
        evaluate=lambda x: {"off": jnp.max(jnp.abs(x - OPTIMUM))},
    )


# The account.


@pytest.mark.parametrize(
    ("sampling", "kind", "wanted"),
    [(sv.Poisson(100), "poisson", 0.828943), (sv.FixedSize(100), "without_replacement", 1.91594)],
)
def test_sound_account_is_the_gradient_release(sampling: Any, kind: Any, wanted: float) -> None:
    method = tracking(gradient=sv.Release(1.0, 0.1), sampling=sampling)
    report = sv.account(method, sv.Population([1000] * 5), steps=501, network=NETWORK, delta=1e-5)
    assert report.design == "sound"
    assert report.epsilon == pytest.approx(wanted, rel=2e-5)
    assert report.epsilon == pytest.approx(sound.gradient_release(500, 100, 1000, 1.0, 0.1, 1e-5, kind), rel=1e-6)


def test_without_amplification_and_with_laplace() -> None:
    full = sv.account(tracking(gradient=sv.Release(1.0, 0.1)), sv.Population([100] * 5), steps=20, network=NETWORK)
    assert full.epsilon == pytest.approx(sound.gdp_epsilon(np.sqrt(20) * 2 / 100 / 0.1, 1e-5), rel=1e-6)
    laplace = tracking(gradient=sv.Release(1.0, 0.1, mechanism="laplace"))
    assert sv.account(laplace, sv.Population([100] * 5), steps=20, network=NETWORK, delta=0.0).epsilon == pytest.approx(
        4.0
    )


@pytest.mark.parametrize(("form", "wanted"), [("box", 2.160332), ("compact", 1.65)])
def test_printed_account_has_the_worked_values(form: Any, wanted: float) -> None:
    pair = sv.networks.directed(CYCLE, CYCLE)
    method = tracking(
        scheme=Rates(0.5, 0.5, 0.1),
        gradient=sv.Release(0.5, 1.0, mechanism="laplace"),
        sampling=sv.FixedSize(10),
        design="printed",
        form=form,
    )
    unproved = sv.account(method, sv.Population([100] * 2), steps=11, network=pair)
    assert (unproved.epsilon, unproved.design) == (np.inf, "printed")
    report = sv.account(dataclasses.replace(method, lipschitz=0.0), sv.Population([100] * 2), steps=11, network=pair)
    assert report.epsilon == pytest.approx(wanted, rel=1e-6)
    assert report.published == pytest.approx(4.40107422)


def test_printed_epsilon_is_each_agents_own() -> None:
    """It depends on the weights an agent gives; a root that hears nobody keeps its differences for ever."""
    release = sv.Release(1.0, 2.0, mechanism="laplace")
    method = tracking(gradient=release, sampling=sv.Poisson(10), design="printed", lipschitz=0.1)
    chain = sv.networks.directed([(0, 1, 0.5), (1, 2, 0.9)], [(1, 0, 0.5), (2, 1, 0.9)])
    report = sv.account(method, sv.Population([100] * 3), steps=30, network=chain)
    assert len(set(report.per_agent)) == 3
    for agent, (a, b) in enumerate([(0.0, 0.5), (0.5, 0.9), (0.9, 0.0)]):
        exact = sound.gradient_tracking_printed(
            29, 0.2, ALPHA * a, BETA * b, GAMMA, 0.1, lambda k: 2.0, lambda k: 2.0, "tight"
        )
        assert report.per_agent[agent] == pytest.approx(exact)
    assert any("un-noised" in caveat for caveat in report.caveats)


@pytest.mark.parametrize(
    "noise", [(2.0, 0.0, 2.0), Linear(2.0, 0.0, 10), Linear(2.0, -2.5, 10)], ids=["one agent", "to none", "below none"]
)
def test_printed_messages_without_noise_have_no_epsilon(noise: Any) -> None:
    """0 over 0 is no number, and noise below 0 would count as a gain: neither may lower the worst agent's epsilon."""
    loud, quiet = sv.Release(1.0, 2.0, mechanism="laplace"), sv.Release(1.0, noise, mechanism="laplace")
    cycle = [(0, 1), (1, 2), (2, 0)]
    for gradient, state in [(loud, quiet), (quiet, loud), (quiet, quiet)]:
        method = tracking(gradient=gradient, state=state, sampling=sv.Poisson(10), design="printed", lipschitz=0.1)
        report = sv.account(method, sv.Population([100] * 3), steps=30, network=sv.networks.directed(cycle, cycle))
        assert report.epsilon == math.inf
        assert report.per_agent[1] == math.inf
        assert report.published == math.inf


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.01, 1.0), st.floats(0.01, 0.95), st.floats(0.001, 1.0), st.floats(0.0, 1.0), st.integers(0, 60),
    st.sampled_from([("S1", 0.0), ("S1", 0.4), ("S1", -0.3), ("S2", 0.99)]),
)  # fmt: skip
def test_published_covers_the_box_where_it_is_proved(
    a: float, b: float, gamma: float, share: float, K: int, noise: Any
) -> None:
    lipschitz = share * a * (1 - b) / (2 * gamma)
    printed = published.gradient_tracking(K, 1.0, 10, a, b, gamma, noise, noise)
    box, tight = (
        sound.gradient_tracking_printed(K, 0.1, a, b, gamma, lipschitz, noise, noise, form) for form in ("box", "tight")
    )
    assert printed * (1 + 1e-9) >= box
    assert box * (1 + 1e-9) >= tight


def test_published_fails_outside_that_region() -> None:
    flat = ("S1", 0.0)
    tight = sound.gradient_tracking_printed(100, 0.1, 0.04, 0.04, 0.1, 3.0, flat, flat, "tight")
    assert tight > 100 * published.gradient_tracking(100, 1.0, 10, 0.04, 0.04, 0.1, flat, flat)


# What is refused.


def test_refusals() -> None:
    with pytest.raises(ValueError, match="common root"):
        sv.networks.directed(pull=[(0, 1), (0, 2)], push=[(0, 1), (0, 2), (1, 2)])
    private = sv.Release(1.0, 0.1)
    for method, reason in [
        (tracking(gradient=private, sampling=sv.FixedSize(101)), "batch of 101 from a party that has 100"),
        (DpGradientTracking(S1(K=200, a4=1.0), private), "from a party that has 100"),
        (DpGradientTracking(S2(K=10, p_m=1.1), private), "made for iterations 0 to 10"),
    ]:
        with pytest.raises(ValueError, match=reason):
            sv.account(method, sv.Population([100] * 5), steps=50, network=NETWORK)
    with pytest.raises(ValueError, match="has no `mix`: it is directed"):
        run(sv.methods.DpSgd(0.1, sv.Release.open(), sv.Full()), 5)
    for wrong in ({"sampling": None}, {"form": "round"}, {"design": "best"}, {"lipschitz": 1.0}, {"rounds": 0}):
        with pytest.raises(ValueError):
            tracking(**wrong)
    with pytest.raises(ValueError, match="costs privacy"):
        tracking(design="printed", rounds=2)


# Where it goes.


def test_an_undirected_network_serves_pull_and_push() -> None:
    """The optimum of all parties' quadratics, of different curvature, is reached over a ring."""
    problem, parts = quadratics()
    curvature, centre = CURVATURE[:4], CENTRE[:4]
    optimum = float(curvature @ centre / curvature.sum())
    result = sv.run(problem, parts[:4], tracking(), network=sv.networks.ring(4), steps=400, every=400)
    np.testing.assert_allclose(result.agents.x, optimum, atol=1e-3)


def iteration(h: np.ndarray, rounds: int) -> np.ndarray:
    """The noise-free iteration of (x, y, g) around the optimum, written down from the paper's matrices."""
    first, second = lemmas.laplacians(NETWORK)
    eye, zero, curvature = np.eye(5), np.zeros((5, 5)), np.diag(h)
    pull, push = eye - ALPHA * first, eye - BETA * second
    y = np.linalg.matrix_power(push, rounds - 1) @ np.hstack([curvature, push, -eye])
    x = np.linalg.matrix_power(pull, rounds - 1) @ (np.hstack([pull, zero, zero]) - GAMMA * y)
    return np.vstack([x, y, np.hstack([curvature, zero, zero])])


@pytest.mark.parametrize("rounds", [1, 3])
def test_exponential_at_the_rate_of_the_iteration_matrix(rounds: int) -> None:
    values = np.linalg.eigvals(iteration(CURVATURE.astype(float), rounds))
    values = np.delete(values, np.argmin(np.abs(values - 1)))  # kept: trackers add up to gradients
    result = run(tracking(rounds=rounds), 150, every=5)
    error = np.max(np.abs(result.history["off/agents"]), axis=1)
    window = (error < 2e-3) & (error > 1e-5)  # after the first phase, well before float32's floor
    slope = np.polyfit(result.history["step"][window], np.log(error[window]), 1)[0]
    assert np.exp(slope) == pytest.approx(np.abs(values).max(), abs=2e-3)
    np.testing.assert_allclose(result.x, OPTIMUM, atol=1e-3)


@pytest.mark.parametrize("rounds", few([1, 3], [3]))
def test_trackers_add_up_to_released_gradients(rounds: int) -> None:
    method = tracking(gradient=sv.Release(2.0, 0.3), sampling=sv.Poisson(2), rounds=rounds)
    state = run(method, 40).agents
    assert isinstance(state, TrackingState)
    np.testing.assert_allclose(np.sum(state.y, axis=0), np.sum(state.g, axis=0), atol=1e-4)


@pytest.mark.slow
def test_box_is_biased_on_an_unbalanced_push_graph_and_compact_is_not() -> None:
    """Its rows lose what its columns keep; on a balanced push graph the two agree."""
    triangle = [(0, 1), (1, 2), (2, 0)]
    balanced = [*triangle, (2, 3), (3, 2), (3, 4), (4, 3)]
    reached = {
        (form, name): run(tracking(design="printed", form=form), 800, 800, sv.networks.directed(PULL, push)).x
        for form in ("box", "compact")
        for name, push in (("balanced", balanced), ("unbalanced", PUSH))
    }
    for form, name in [("box", "balanced"), ("compact", "balanced"), ("compact", "unbalanced")]:
        np.testing.assert_allclose(reached[form, name], OPTIMUM, atol=0.01)
    assert abs(reached["box", "unbalanced"][0] - OPTIMUM) > 0.3


@dataclasses.dataclass(frozen=True)
class _Naive(DpGradientTracking):
    """Averages along pull as if its weights were symmetric, and descends along its own gradient."""

    def step(self, problem: Any, state: Any, agent: Any) -> Any:
        slope = agent.release(self.gradient, problem.loss, at=state.x, batch=agent.sample(self._sampling))
        pull, heard = agent.heard("pull"), agent.mix(state.x, over="pull")
        return state._replace(
            x=jax.tree.map(lambda x, h, g: x + ALPHA * (h - pull * x) - 0.005 * g, state.x, heard, slope)
        )


def test_a_naive_symmetric_method_follows_the_roots_alone() -> None:
    naive = run(_Naive(**{f.name: getattr(tracking(), f.name) for f in dataclasses.fields(tracking())}), 2500, 2500)
    weights = lemmas.spreads(NETWORK, ALPHA, BETA)[0].weights
    roots = float((weights * CURVATURE) @ CENTRE / (weights @ CURVATURE))
    assert abs(roots - OPTIMUM) > 0.2
    np.testing.assert_allclose(naive.agents.x[:2].mean(), roots, atol=0.05)


def nonconvex(agents: int = 5) -> tuple[sv.Minimize, list[Any]]:
    """x^2 + 3 sin^2 x a coordinate: not convex, yet Polyak-Lojasiewicz; tilted differently on each agent. Minimum 0."""
    problem = sv.Minimize(lambda x, r: jnp.sum(x**2 + 3 * jnp.sin(x) ** 2 + r * x), jnp.full(20, 3.0))
    tilt = np.random.default_rng(0).normal(size=(agents, 1, 20)).astype(np.float32)
    tilt -= tilt.mean(axis=0)
    return problem, [np.repeat(part, 4, axis=0) for part in tilt]


def test_exponential_on_a_nonconvex_polyak_lojasiewicz_problem() -> None:
    problem, parts = nonconvex()
    result = sv.run(
        problem, parts, tracking(), network=NETWORK, steps=400, every=20,
        evaluate=lambda x: {"gap": jnp.sum(x**2 + 3 * jnp.sin(x) ** 2)},
    )  # fmt: skip
    gap = result.history["gap/agents"].max(axis=1)
    assert gap[-1] < 1e-8 * gap[0]


# The theory.


def test_lemma_2_bounds_a_simulated_step() -> None:
    """On a cycle (normal matrices, where the proof's norms are right) no step without noise exceeds A V."""
    n, alpha, beta, gamma = 4, 0.2, 0.3, 0.02
    cycle = [(i, (i + 1) % n) for i in range(n)]
    network = sv.networks.directed(cycle, cycle)
    first, second = lemmas.laplacians(network)
    rng = np.random.default_rng(0)
    h, c = rng.uniform(0.5, 2.0, n), rng.normal(size=n)
    best = h @ c / h.sum()
    A = lemmas.lemma_2(network, alpha, beta, gamma, L=h.max(), mu=h.mean())

    def measure(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        gap = np.mean(h * (x.mean() - c) ** 2 - h * (best - c) ** 2) / 2
        return np.array([np.sum((x - x.mean()) ** 2), np.sum((y - y.mean()) ** 2), gap])

    for _ in range(50):
        x = rng.normal(size=n) * rng.uniform(0, 3)
        g = h * (x - c)
        disagreement = rng.normal(size=n)
        y = g + disagreement - disagreement.mean()
        for _ in range(20):
            before = measure(x, y)
            x = x - alpha * first @ x - gamma * y
            new = h * (x - c)
            y, g = y - beta * second @ y + new - g, new
            assert (measure(x, y) <= A @ before * (1 + 1e-9) + 1e-12).all()


def test_theory_of_the_papers_own_experiments() -> None:
    cycle = [(i, (i + 1) % 5) for i in range(5)]
    network = sv.networks.directed(cycle, cycle)
    rates = {p: theory.convergence(S1(2000), network, L=1.0, mu=1.0, p_zeta=p, p_eta=p) for p in (-0.1, 0.1, 0.2)}
    assert [round(float(v.rate), 2) for v in rates.values()] == [0.34, 0.12, -0.08]
    assert all("tacit in (57)" in v.failing[-1] for v in rates.values())
    assert "theta > max(p_alpha, p_beta, p_gamma)" in rates[0.2].failing
    assert theory.privacy(S1(2000), network, p_zeta=0.1, p_eta=0.1).failing[0].startswith("0 < a_1 sum_j R_ij < 1")
    second = theory.convergence(S2(2000), network, L=1.0, mu=1.0, p_zeta=0.9996, p_eta=0.9996)
    assert second.failing == ("spectral radius of Lemma 2's matrix < 1",)
    small = dataclasses.replace(S2(2000), alpha=0.1, beta=0.1, gamma=1e-4)
    assert theory.convergence(small, network, L=1.0, mu=1.0, p_zeta=0.9996, p_eta=0.9996).holds
    assert theory.privacy(S2(2000), network, p_zeta=0.9996, p_eta=0.9996, records=12_000).holds
    assert theory.privacy(S2(6000), network, p_zeta=0.9996, p_eta=0.9996, records=12_000).failing == (
        "m different records exist",
    )


def test_roots_that_hear_nobody_are_outside_the_privacy_theorems() -> None:
    tree = sv.networks.directed([(0, 1), (0, 2)], [(1, 0), (2, 0)])
    names = theory.privacy(S2(2000), tree, p_zeta=0.9996, p_eta=0.9996).failing
    assert names == ("0 < alpha sum_j R_ij < 1 for every agent", "0 < beta sum_j C_ij < 1 for every agent")


def test_oracle_complexity_counts_the_batch() -> None:
    """The paper prints (3 + 3 phi)/(1 - 3 phi), with a batch of K^phi where its theorem has K^(4/3)."""
    phi, cycle = 0.02, [(0, 1), (1, 2), (2, 0)]
    scheme = S1(K=10**6, p_alpha=1.0, p_beta=2 / 3, p_gamma=1.0, p_m=4 / 3)
    verdict = theory.convergence(
        scheme, sv.networks.directed(cycle, cycle), L=1.0, mu=1.0, p_zeta=phi / 2, p_eta=phi / 2
    )
    assert verdict.rate == pytest.approx(1 / 3 - phi)
    assert verdict.complexity == pytest.approx(7 / (1 - 3 * phi))


@pytest.mark.parametrize(("p", "falls"), [(0.7, True), (1.0, False)])
@pytest.mark.slow
def test_s1_forgets_its_start_only_below_exponent_one(p: float, falls: bool) -> None:
    """Without noise, the error of runs with K = 100 and 400 on quadratics: at exponent 1 it stays where it is."""
    errors = []
    for K in (100, 400):
        scheme = S1(K, a1=10.0, a2=10.0, a3=2.0, a4=1e-9, p_alpha=p, p_beta=p, p_gamma=p)
        result = run(tracking(scheme=scheme), K + 1, K + 1)
        errors.append(float(result.history["off"][-1]))
    assert (errors[1] < 0.5 * errors[0]) == falls


# The baselines.


def test_online_learning_is_charged_like_its_releases() -> None:
    rate = sv.Decay(0.5, 0.6)
    release = sv.methods.LdpOnline.laplace(clip=1.0, sigma=3.0, s=0.4, rate=rate)
    method = sv.methods.LdpOnline(rate=rate, gradient=release)
    report = sv.account(method, sv.Population([30] * 4), steps=20, network=sv.networks.ring(4), delta=0.0)
    t = np.arange(20)
    exact = np.sum(2 * 0.5 / (t + 1) ** 0.6 / (t + 1) * np.sqrt(2) * (t + 2) ** 0.4 / 3.0)
    assert report.epsilon == pytest.approx(exact)
    printed = dataclasses.replace(method, design="printed")
    assert sv.account(printed, sv.Population([30] * 4), steps=20, network=sv.networks.ring(4)).epsilon == np.inf


@pytest.mark.slow
def test_ternary_messages_are_unbiased_and_infinitely_loud() -> None:
    value = {"w": jnp.asarray([-0.7, 0.0, 0.4, 5.0])}
    draws = jax.vmap(lambda key: ternary(key, value, 2.0)["w"])(jax.random.split(jax.random.key(0), 4000))
    assert set(np.unique(draws).tolist()) == {-2.0, 0.0, 2.0}
    np.testing.assert_allclose(draws.mean(axis=0), [-0.7, 0.0, 0.4, 2.0], atol=0.07)  # beyond the threshold it is cut
    method = sv.methods.TernarySgd(rate=0.02, message=sv.Release.open(), sampling=sv.Full(), threshold=4.0, weight=0.1)
    result = run(method, 400, 400, network=sv.networks.ring(5))
    assert result.privacy.epsilon == np.inf
    exact = run(dataclasses.replace(method, threshold=None), 400, 400, network=sv.networks.ring(5))
    np.testing.assert_allclose(result.x, exact.x, atol=0.3)
