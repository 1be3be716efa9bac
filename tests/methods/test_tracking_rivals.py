"""The rivals of the paper on DP gradient tracking, each against its equations in NumPy, with known noise and coins."""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom

import sottovoce as sv
from sottovoce.papers.gradient_tracking.rivals import binomial_sgd
from sottovoce.privacy import binomial_noise, gate
from sottovoce.privacy.binomial_noise import binomial_epsilon
from sottovoce.privacy.sound import gdp_epsilon
from tests.marks import few

STEPS, NOISE, COIN, HEADS = 4, 0.05, 0.37, 3.0
SIZES = (6, 12, 9, 15)  # unequal, so that weights matter
RNG = np.random.default_rng(3)
PARTS = [
    {"h": RNG.uniform(0.5, 1.5, (n, 3)).astype(np.float32), "c": RNG.normal(size=(n, 3)).astype(np.float32)}
    for n in SIZES
]
START = np.array([0.5, -1.0, 2.0])
PROBLEM = sv.Minimize(
    lambda x, r: 0.5 * jnp.sum(r["h"] * (x - r["c"]) ** 2), jnp.asarray(START), public=lambda x: 0.1 * jnp.sum(x**2)
)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    def noised(mean: Any, release: Any, key: Any, t: Any, agent: Any, *_: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf + release.scale(t, agent) * jnp.cos(1.0 + agent), mean)

    monkeypatch.setattr(gate, "noised", noised)
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape=(), *_, **__: jnp.full(shape, COIN))
    monkeypatch.setattr(binomial_sgd, "heads", lambda key, coins, shape: jnp.full(shape, HEADS))


def noise(t: int) -> np.ndarray:
    return NOISE / (t + 1) ** 0.1 * np.cos(1.0 + np.arange(4))[:, None]


def records(x: np.ndarray, arrived: int | None = None) -> np.ndarray:
    """The mean gradients over records, at each agent's own state."""
    pairs = zip(x, PARTS)
    return np.array([(p["h"][:arrived] * (at - p["c"][:arrived])).mean(0, dtype=float) for at, p in pairs])


def mixing(name: str) -> np.ndarray:
    return NETWORKS[name].mix.toarray()


NETWORKS = {"complete": sv.networks.complete(4), "ring": sv.networks.ring(4, weight=0.3)}


def weighted(x: np.ndarray, t: int) -> np.ndarray:
    step = x - 0.3 * (records(x) + 0.2 * x + noise(t))
    return np.tile(np.array(SIZES) / sum(SIZES) @ step, (4, 1))


def binomial(x: np.ndarray, t: int) -> np.ndarray:
    width = 2 * NOISE / (t + 1) ** 0.1 / 16  # 256 coins
    sent = (np.floor(records(x) / width + COIN) + HEADS) * width + 0.2 * x
    return mixing("complete") @ (x - 0.3 * sent)


def quantized(design: str) -> Any:
    def step(x: np.ndarray, t: int) -> np.ndarray:
        sent = np.floor((x + (noise(t) if design == "printed" else 0)) / 0.125 + COIN) * 0.125
        w = mixing("ring")
        others = w - np.diag(np.diag(w))
        moved = x + 0.7 * (others @ sent - others.sum(1)[:, None] * x)
        return moved - 0.3 * (records(x) + 0.2 * x + (noise(t) if design == "sound" else 0))

    return step


def ternary(x: np.ndarray, t: int) -> np.ndarray:
    sent = np.where(np.minimum(np.abs(x) / 1.5, 1) > COIN, np.sign(x) * 1.5, 0.0)
    return x + 0.4 * (mixing("ring") @ sent - sent) - 0.3 * (records(x) + 0.2 * x)


def online(design: str) -> Any:
    def step(x: np.ndarray, t: int) -> np.ndarray:
        w, sound = mixing("ring"), design == "sound"
        heard = w @ x if sound else w @ x + (w - np.diag(np.diag(w))) @ noise(t)
        return heard - 0.3 / (t + 1) ** 0.5 * (records(x, t + 1) + 0.2 * x + (noise(t) if sound else 0))

    return step


LOUD = sv.Release(1e9, sv.Decay(NOISE, 0.1))
FULL = sv.Full()
RIVALS: dict[str, tuple[Any, str, Any]] = {
    "[33] weighted": (sv.methods.WeightedErm(0.3, LOUD, FULL), "complete", weighted),
    "[37] binomial": (sv.methods.BinomialSgd(0.3, LOUD, FULL, coins=256), "complete", binomial),
    "[36] ternary": (sv.methods.TernarySgd(0.3, sv.Release.open(), FULL, threshold=1.5, weight=0.4), "ring", ternary),
    **{
        f"[41] quantized, {design}": (
            sv.methods.QuantizedSgd(0.3, LOUD, FULL, weight=0.7, resolution=0.125, design=design),
            "ring",
            quantized(design),
        )
        for design in ("sound", "printed")
    },
    **{
        f"[39] online, {design}": (
            sv.methods.LdpOnline(sv.Decay(0.3, 0.5), LOUD, sv.privacy.sampling.Stream(), design),
            "ring",
            online(design),
        )
        for design in ("sound", "printed")
    },
}


@pytest.mark.parametrize("name", few(list(RIVALS), ["[37] binomial", "[41] quantized, printed"]))
@pytest.mark.usefixtures("known")
def test_a_rival_walks_as_its_equations(name: str) -> None:
    method, network, step = RIVALS[name]
    x = np.tile(START, (4, 1))
    for t in range(STEPS):
        x = step(x, t)
    state = sv.run(PROBLEM, PARTS, method, network=NETWORKS[network], steps=STEPS).agents
    np.testing.assert_allclose(state.x, x, atol=2e-5)


def exact_delta(epsilon: float, coins: int, moves: list[float]) -> float:
    """The smallest delta for one release of two coordinates, by summing over all outcomes."""
    values = np.arange(coins + max(math.ceil(move) for move in moves) + 2)
    sides = []
    for side in (0, 1):
        law = np.ones(1)
        for move in moves:
            low, part = math.floor(move) * side, (move % 1) * side
            one = (1 - part) * binom.pmf(values - low, coins, 0.5) + part * binom.pmf(values - low - 1, coins, 0.5)
            law = np.outer(law, one).reshape(-1)
        sides.append(law)
    p, q = sides
    return max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((p, q), (q, p)))


@pytest.mark.parametrize("coins", [400, 1500])
def test_the_bound_on_binomial_noise_covers_all_outcomes(coins: int) -> None:
    for moves, delta in itertools.product(([1.0, 0.0], [0.4, 0.3], [2.5, 1.2], [5.0, 0.5]), (1e-3, 1e-6)):
        epsilon = binomial_epsilon(coins, float(np.linalg.norm(moves)), 2, 1, delta)
        assert exact_delta(epsilon, coins, moves) <= delta, (moves, delta)


def test_the_bound_on_binomial_noise_nears_the_gaussian_one() -> None:
    """With many coins and few coordinates nothing but the Renyi bound's own slack is left; rounding adds the rest."""
    coins, steps = 2**30, 50
    moved = math.sqrt(coins) / 2 / 20  # a noise multiplier of 20
    near, rough = (binomial_epsilon(coins, moved, d, steps, 1e-5) for d in (10, 10**7))
    assert 1.0 < near / gdp_epsilon(math.sqrt(steps) / 20, 1e-5) < 1.2
    assert rough > 2 * near


def test_binomial_noise_has_the_law_of_coins() -> None:
    drawn = np.asarray(binomial_noise.heads(jax.random.key(1), 9, (200_000,))) + 4.5
    shares = np.bincount(drawn.astype(int), minlength=10) / drawn.size
    np.testing.assert_allclose(shares, binom.pmf(np.arange(10), 9, 0.5), atol=5e-3)


def test_a_dimension_that_is_too_small_is_refused_and_none_proves_nothing() -> None:
    method = sv.methods.BinomialSgd(0.1, sv.Release(1.0, 0.1), FULL, dimension=2)
    network = NETWORKS["complete"]
    with pytest.raises(ValueError, match="dimension=3"):
        sv.run(PROBLEM, PARTS, method, network=network, steps=1)
    bare = sv.methods.BinomialSgd(0.1, sv.Release(1.0, 0.1), FULL)
    given = {"problem": PROBLEM, "network": network}
    assert sv.account(bare, PARTS, steps=1, **given).epsilon == np.inf
    wide = sv.methods.BinomialSgd(0.1, sv.Release(1.0, 0.1), FULL, dimension=3)
    tuned = sv.calibrate(wide, PARTS, epsilon=1.0, steps=5, **given)
    assert 0.99 < sv.account(tuned, PARTS, steps=5, **given).epsilon <= 1.0


def test_an_agent_without_binomial_noise_has_no_epsilon() -> None:
    noise = (0.1, *[0.0] * (len(SIZES) - 1))
    method = sv.methods.BinomialSgd(0.1, sv.Release(1.0, noise), FULL, dimension=3)
    report = sv.account(method, PARTS, steps=2, network=NETWORKS["complete"], problem=PROBLEM)
    assert report.per_agent[0] < report.per_agent[1] == np.inf
    assert binomial_epsilon(2**30, -1.0, 3, 1, 1e-5) == np.inf
    assert binomial_epsilon(2**30, 1.0, 3, 0, 1e-5) == 0.0


def test_mistakes_with_binomial_noise_are_said_in_words() -> None:
    for wrong in ({"dimension": 2.5}, {"dimension": "many"}, {"coins": 2**62}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} is .*: it must be"):
            sv.methods.BinomialSgd(0.1, sv.Release(1.0, 0.1), FULL, **wrong)
    method = sv.methods.BinomialSgd(0.1, sv.Release(1.0, 0.1), FULL, dimension=3)
    network = NETWORKS["complete"]
    assert sv.account(method, PARTS, steps=1, network=network, delta=0.0, problem=PROBLEM).epsilon == np.inf
    with pytest.raises(ValueError, match="leave the budget out"):
        sv.run(PROBLEM, PARTS, method, network=network, steps=1, budget=sv.Budget(8.0, 1e-5))
