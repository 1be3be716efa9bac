"""Printed designs against the papers' pseudo-code in NumPy, step by step, with the same numbers for noise in both.

The gate's noise is replaced by a known number per agent and step, so that where and when noise enters is compared too.
Scripts p1 and p2 of the attacks: written from the papers, not from the package.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.methods import GbDsbo, LdpDsbo, MaDsbo, VrDsbo
from sottovoce.papers.dp_bilevel.descent import Descent
from sottovoce.papers.gradient_tracking.method import DpGradientTracking
from sottovoce.papers.gradient_tracking.theory import Rates
from sottovoce.privacy import gate
from sottovoce.schedules import Decay

AGENTS, WIDTH, STEPS, RECORDS, NOISE = 4, 3, 5, 12, 0.05
TERMS, SMOOTHNESS = 3, 6.0
RNG = np.random.default_rng(0)
UPPER = [
    {
        "c": RNG.normal(size=(RECORDS, WIDTH)).astype(np.float32),
        "d": RNG.normal(size=RECORDS).astype(np.float32),
        "s": RNG.random(RECORDS).astype(np.float32),
    }
    for _ in range(AGENTS)
]
LOWER = [
    {
        "a": 0.7 * RNG.normal(size=(RECORDS, WIDTH)).astype(np.float32),
        "b": RNG.normal(size=RECORDS).astype(np.float32),
        "s": RNG.random(RECORDS).astype(np.float32),
    }
    for _ in range(AGENTS)
]
X0, Y0 = np.array([0.1, -0.2, 0.3]), np.array([0.2, 0.1, -0.1])
BILEVEL = sv.Bilevel(
    upper=lambda x, y, r: 0.5 * (r["c"] @ y - r["d"]) ** 2 + 0.5 * r["s"] * jnp.sum((x - y) ** 2),
    lower=lambda x, y, r: 0.5 * (r["a"] @ y - r["b"]) ** 2 + r["s"] * (x @ y) + 0.05 * (r["a"] @ y) ** 4,
    x0=jnp.asarray(X0),
    y0=jnp.asarray(Y0),
    public_lower=lambda x, y: 0.5 * jnp.sum(jnp.exp(x) * y**2),
)
NETWORK = sv.networks.ring(AGENTS, weight=0.3)
MIX = NETWORK.mix.toarray()
OTHERS = MIX - np.diag(np.diag(MIX))


@pytest.fixture(autouse=True)
def known_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def noised(mean: Any, release: Any, key: Any, t: Any, agent: Any, *_: Any) -> Any:
        scale = release.scale(t, agent) * (-0.5 if release.name == "state" else 1.0)
        return jax.tree.map(lambda leaf: leaf + scale * jnp.cos(1.0 + agent) * jnp.ones_like(leaf), mean)

    monkeypatch.setattr(gate, "noised", noised)


def noise(like: np.ndarray, scale: float) -> np.ndarray:
    per_agent = scale * np.cos(1.0 + np.arange(len(like)))
    return per_agent.reshape((len(like),) + (1,) * (like.ndim - 1)) * np.ones_like(like)


def mixed(v: np.ndarray, scale: float) -> np.ndarray:
    """v_i + sum_j w_ij (v_j + noise_j - v_i): others are heard with noise, the own value without."""
    return np.tensordot(MIX, v, (1, 0)) + np.tensordot(OTHERS, noise(v, scale), (1, 0))


def of(level: list[dict[str, np.ndarray]], i: int, n: int) -> list[np.ndarray]:
    return [column[:n].astype(float) for column in level[i].values()]


def grad_y(i: int, x: np.ndarray, y: np.ndarray, n: int) -> np.ndarray:
    a, b, s = of(LOWER, i, n)
    at = a @ y
    return (a * (at - b + 0.2 * at**3)[:, None]).mean(0) + s.mean() * x + np.exp(x) * y


def hessian(i: int, x: np.ndarray, y: np.ndarray, n: int) -> np.ndarray:
    a = of(LOWER, i, n)[0]
    return (a.T * (1 + 0.6 * (a @ y) ** 2)) @ a / n + np.diag(np.exp(x))


def jacobian(i: int, x: np.ndarray, y: np.ndarray, n: int) -> np.ndarray:
    return of(LOWER, i, n)[2].mean() * np.eye(WIDTH) + np.diag(np.exp(x) * y)


def upper_x(i: int, x: np.ndarray, y: np.ndarray, n: int) -> np.ndarray:
    return of(UPPER, i, n)[2].mean() * (x - y)


def upper_y(i: int, x: np.ndarray, y: np.ndarray, n: int) -> np.ndarray:
    c, d, s = of(UPPER, i, n)
    return (c * (c @ y - d)[:, None]).mean(0) - s.mean() * (x - y)


def each(function: Any, x: np.ndarray, y: np.ndarray, n: int = RECORDS) -> np.ndarray:
    return np.array([function(i, x[i], y[i], n) for i in range(AGENTS)])


def start() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.tile(X0, (AGENTS, 1)), np.tile(Y0, (AGENTS, 1)), np.zeros((AGENTS, WIDTH))


def ldp_dsbo() -> dict[str, np.ndarray]:
    """Algorithms 1 and 2 of LDP-DSBO, on the records that have arrived."""
    x, y, z = start()
    for t in range(STEPS):
        n = t + 1
        rate_x, rate_y, rate_z = 0.3 / n**0.66, 0.25 / n**0.64, 0.2 / n**0.43
        products = np.einsum("ijk,ik->ij", each(hessian, x, y, n), z)
        crossed = np.einsum("ijk,ik->ij", each(jacobian, x, y, n), z)
        x, y, z = (
            mixed(x, NOISE / n**0.65) - rate_x * (each(upper_x, x, y, n) - crossed),
            mixed(y, NOISE / n**0.63) - rate_y * each(grad_y, x, y, n),
            mixed(z, NOISE / n**0.42) - rate_z * (products - each(upper_y, x, y, n)),
        )
    return {"x": x, "y": y, "z": z}


def ma_dsbo(within: float = 0.0, inner_y: int = 3, inner_z: int = 4) -> dict[str, np.ndarray]:
    """Algorithm 3, MA-DSBO; the noise of turn k is divided by (k+1)^within."""
    x, y, r = start()
    for t in range(STEPS):
        scale = NOISE / (t + 1) ** 0.8
        for k in range(inner_y):
            y = mixed(y, scale / (k + 1) ** within) - 0.15 * each(grad_y, x, y)
        z, h, b = np.zeros((AGENTS, WIDTH)), each(hessian, x, y), each(upper_y, x, y)
        d, s = -b, -b
        for k in range(inner_z):
            after = mixed(z, scale / (k + 1) ** within) - 0.1 * d
            slope = np.einsum("ijk,ik->ij", h, after) - b
            d = mixed(d, scale / (k + 1) ** within) + slope - s
            z, s = after, slope
        u = each(upper_x, x, y) - np.einsum("ijk,ik->ij", each(jacobian, x, y), z)
        x, r = mixed(x, scale) - 0.2 * r, 0.8 * r + 0.2 * u
    return {"x": x, "y": y, "r": r}


def gb_dsbo(along: str = "before") -> dict[str, np.ndarray]:
    """GBDSBO (Yang et al. 2022): x moves along the averages from before the step, or along the new ones."""
    x, y, s = start()
    h, u = np.zeros((AGENTS, WIDTH)), np.zeros((AGENTS, WIDTH, WIDTH))
    v = np.tile(SMOOTHNESS * np.eye(WIDTH), (AGENTS, TERMS, 1, 1))
    for t in range(STEPS):
        scale, steps = NOISE / (t + 1) ** 0.8, []
        new = [each(upper_x, x, y), each(upper_y, x, y), each(jacobian, x, y)]
        curvature = np.repeat(each(hessian, x, y)[:, None], TERMS, axis=1)
        before = s, h, u, v
        s, h, u, v = (0.6 * mixed(old, scale) + 0.4 * seen for old, seen in zip(before, (*new, curvature)))
        for one in zip(*(before if along == "before" else (s, h, u, v))):
            series = np.eye(WIDTH)
            for curved in one[3]:
                series = np.eye(WIDTH) + (np.eye(WIDTH) - curved / SMOOTHNESS) @ series
            steps.append(one[0] - one[2] @ (series / SMOOTHNESS) @ one[1])
        x, y = mixed(x, scale) - 0.2 * np.array(steps), mixed(y, scale) - 0.15 * each(grad_y, x, y)
    return {"x": x, "y": y, "s": s, "h": h}


def vr_dsbo() -> dict[str, np.ndarray]:
    """VRDSBO with a deterministic Neumann series."""
    x, y, u = start()
    v, track_u, track_v = (np.zeros((AGENTS, WIDTH)) for _ in range(3))
    last_x, last_y = x, y

    def hypergradient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        h, b, z = each(hessian, x, y), each(upper_y, x, y), np.zeros((AGENTS, WIDTH))
        for _ in range(TERMS):
            z = z - (np.einsum("ijk,ik->ij", h, z) - b) / SMOOTHNESS
        return each(upper_x, x, y) - np.einsum("ijk,ik->ij", each(jacobian, x, y), z)

    for t in range(STEPS):
        eta, scale = 0.5 / (t + 1) ** 0.3, NOISE / (t + 1) ** 0.8
        keep = 1 - (1.0 if t == 0 else min(1.0, 3 * eta**2))
        new_u = hypergradient(x, y) + keep * (u - hypergradient(last_x, last_y))
        new_v = each(grad_y, x, y) + keep * (v - each(grad_y, last_x, last_y))
        track_u, track_v = mixed(track_u, scale) + new_u - u, mixed(track_v, scale) + new_v - v
        last_x, last_y, u, v = x, y, new_u, new_v
        x = x + eta * (mixed(x, scale) - 0.2 * track_u - x)
        y = y + eta * (mixed(y, scale) - 0.4 * track_v - y)
    return {"x": x, "y": y, "u": u, "v": v}


LOUD = sv.Release(1e9, Decay(NOISE, 0.8), "laplace")
PRINTED = {
    "LDP-DSBO": (
        LdpDsbo.paper(
            step=(0.3, 0.25, 0.2),
            v=(0.66, 0.64, 0.43),
            sigma=NOISE * np.sqrt(2),
            s=(0.65, 0.63, 0.42),
            clip=1e9,
            design="printed",
        ),
        ldp_dsbo,
    ),
    "MA-DSBO": (MaDsbo(0.2, 0.15, 0.1, LOUD, LOUD, LOUD, sv.Full(), 3, 4, design="printed"), ma_dsbo),
    "MA-DSBO, noise decays with the inner turn": (
        MaDsbo(0.2, 0.15, 0.1, LOUD, LOUD, LOUD, sv.Full(), 3, 4, design="printed", within=Decay(1.0, 0.7)),
        partial(ma_dsbo, 0.7),
    ),
    **{
        f"GBDSBO {along}": (
            GbDsbo(
                0.2, 0.15, 0.4, *[LOUD] * 4, sv.Full(), smoothness=SMOOTHNESS, terms=TERMS, along=along,
                design="printed",
            ),
            partial(gb_dsbo, along),
        )
        for along in ("before", "new")
    },
    "VRDSBO": (
        VrDsbo(
            Decay(0.5, 0.3), LOUD, LOUD, LOUD, sv.Full(), beta_x=0.2, beta_y=0.4, smoothness=SMOOTHNESS, terms=TERMS,
            design="printed",
        ),
        vr_dsbo,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_a_printed_bilevel_design_walks_as_its_pseudo_code(name: str) -> None:
    method, oracle = PRINTED[name]
    parts = [sv.data.Levels(upper, lower) for upper, lower in zip(UPPER, LOWER)]
    state = sv.run(BILEVEL, parts, method, network=NETWORK, steps=STEPS).agents
    for field, wanted in oracle().items():
        np.testing.assert_allclose(getattr(state, field), wanted, atol=2e-5 * max(1.0, np.abs(wanted).max()))


PULL = [(0, 1, 0.7), (1, 0, 1.3), (1, 2, 0.4), (0, 3, 0.9), (3, 4, 1.1)]
PUSH = [(1, 0, 0.6), (0, 1, 1.2), (2, 0, 0.8), (3, 1, 0.5), (4, 3, 1.0)]
CURVED = [
    {
        "h": RNG.uniform(0.5, 2, size=(6, WIDTH)).astype(np.float32),
        "c": RNG.normal(size=(6, WIDTH)).astype(np.float32),
    }
    for _ in range(5)
]


def tracked(form: str, pull: np.ndarray, push: np.ndarray) -> list[np.ndarray]:
    """Gradient tracking as printed: agent by agent ("box"), or with Laplacians ("compact")."""

    def slope(x: np.ndarray) -> np.ndarray:
        held = [(part["h"].astype(float) * (x[i] - part["c"])).mean(0) for i, part in enumerate(CURVED)]
        return np.array(held) + 0.1 * np.cos(x)

    x = np.tile([0.5, -1.0, 2.0], (5, 1))
    g = slope(x)
    y, alpha, beta, gamma = g, 0.3, 0.25, 0.1
    down, up = np.diag(pull.sum(1)) - pull, np.diag(push.sum(0)) - push
    for k in range(STEPS):
        of_x, of_y = (noise(x, part * NOISE * (k + 1) ** 0.1) for part in (-0.5, 1.0))
        if form == "box":
            after_x = (1 - alpha * pull.sum(1))[:, None] * x + alpha * pull @ (x + of_x) - gamma * y
            after_y = (1 - beta * push.sum(1))[:, None] * y + beta * push @ (y + of_y)
        else:
            after_x = x - alpha * down @ (x + of_x) - gamma * y
            after_y = y - beta * up @ (y + of_y)
        new = slope(after_x)
        x, y, g = after_x, after_y + new - g, new
    return [x, y, g]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["box", "compact"])
def test_printed_gradient_tracking_walks_as_its_pseudo_code(form: Any) -> None:
    network = sv.networks.directed(PULL, PUSH)
    problem = sv.Minimize(
        lambda x, r: 0.5 * jnp.sum(r["h"] * (x - r["c"]) ** 2) + 0.1 * jnp.sum(jnp.sin(x)), jnp.array([0.5, -1.0, 2.0])
    )
    release = sv.Release(1e9, Decay(NOISE, -0.1), "laplace")
    method = DpGradientTracking(Rates(0.3, 0.25, 0.1), release, sampling=sv.Full(), design="printed", form=form)
    state = sv.run(problem, CURVED, method, network=network, steps=STEPS).agents
    for got, wanted in zip(state, tracked(form, network.pull.toarray(), network.push.toarray())):
        np.testing.assert_allclose(got, wanted, atol=2e-5)


def descended(slope: Any, y: np.ndarray, scale: float) -> np.ndarray:
    """Algorithm 2 of DP bilevel: two rounds of 3 steps 0.3 / (k + 1), in balls of radii 1 and 0.2."""
    for radius in (1.0, 0.2):
        centre, seen = y, []
        for k in range(3):
            seen.append(y)
            y = y - 0.3 / (k + 1) * (slope(y) + scale * np.cos(1.0))
            length = np.linalg.norm(y - centre)
            y = centre + (y - centre) * min(1.0, radius / length)
        y = np.mean(seen, axis=0)
    return y


def dp_bilevel(penalty: float) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 1 of DP bilevel: the x_t with the smallest step, and the x after all of them."""
    x, candidates = X0.astype(float), []
    for _ in range(STEPS):
        yg = descended(lambda y, x=x: grad_y(0, x, y, RECORDS), Y0.astype(float), NOISE)
        yl = descended(
            lambda y, x=x: upper_y(0, x, y, RECORDS) / penalty + grad_y(0, x, y, RECORDS), Y0.astype(float), 2 * NOISE
        )
        below = [of(LOWER, 0, RECORDS)[2].mean() * y + 0.5 * np.exp(x) * y**2 for y in (yl, yg)]
        slope = upper_x(0, x, yl, RECORDS) + penalty * (below[0] - below[1]) + 3 * NOISE * np.cos(1.0)
        candidates.append((np.linalg.norm(0.2 * slope), x))
        x = x - 0.2 * slope
    return min(candidates, key=lambda pair: pair[0])[1], x


@pytest.mark.slow
def test_dp_bilevel_walks_as_algorithms_1_and_2() -> None:
    releases = [sv.Release(1e9, times * NOISE) for times in (1, 2, 3)]
    method = sv.methods.DpBilevel(
        0.2, Descent(3, Decay(0.3, 1.0), radii=(1.0, 0.2)), *releases[:2], sv.Full(), releases[2], penalty=7.0,
        solve="apart", output="smallest step", warm=False,
    )  # fmt: skip
    state = sv.run(BILEVEL, [sv.data.Levels(UPPER[0], LOWER[0])], method, steps=STEPS).agents
    for got, wanted in zip((state.x[0], state.at[0]), dp_bilevel(7.0)):
        np.testing.assert_allclose(got, wanted, atol=5e-5)


SADDLE = sv.MinMax(
    lambda x, y, r: 0.5 * (r["a"] @ x - r["b"]) ** 2 + (r["s"] * y) @ x - 0.5 * jnp.sum(y**2), X0, Y0
)  # fmt: skip


def saddle_slopes(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each agent's gradients of SADDLE in x and y, over all its records."""
    g, h = [], []
    for i in range(AGENTS):
        a, b, s = of(LOWER, i, RECORDS)
        g.append((a * (a @ x[i] - b)[:, None]).mean(0) + s.mean() * y[i])
        h.append(s.mean() * x[i] - y[i])
    return np.array(g), np.array(h)


def dp_mix_sgd(scale: float) -> dict[str, np.ndarray]:
    """Algorithm 1 of DPMixSGD, with whole batches; without noise, the DM-HSGD of Xian et al."""
    x, y = (np.tile(start.astype(float), (AGENTS, 1)) for start in (X0, Y0))
    (g, h), before = saddle_slopes(x, y), (x, y)
    v = u = told_g = told_h = np.zeros((AGENTS, WIDTH))
    for t in range(STEPS + 1):
        if t:
            (new_g, new_h), (old_g, old_h) = saddle_slopes(x, y), saddle_slopes(*before)
            g, h = new_g + 0.7 * (g - old_g), new_h + 0.6 * (h - old_h)  # lines 2 and 3
        now_g, now_h = g + noise(g, scale), h + noise(h, 2 * scale)  # lines 5 to 7
        v, u = MIX @ (v + now_g - told_g), MIX @ (u + now_h - told_h)  # lines 9 and 10
        told_g, told_h, before = now_g, now_h, (x, y)
        x, y = MIX @ (x - 0.1 * v), MIX @ (y + 0.2 * u)  # lines 12 and 13
    return {"x": x, "y": y, "estimate": g}


def dp_sgda(scale: float) -> dict[str, np.ndarray]:
    """Descent ascent of Yang et al., over a graph: the gradients at the own point are noised, states are averaged."""
    x, y = (np.tile(start.astype(float), (AGENTS, 1)) for start in (X0, Y0))
    for _ in range(STEPS):
        g, h = saddle_slopes(x, y)
        x, y = MIX @ x - 0.1 * (g + noise(g, scale)), MIX @ y + 0.2 * (h + noise(h, 2 * scale))
    return {"x": x, "y": y}


WIDE = {"release_x": sv.Release(1e9, NOISE), "release_y": sv.Release(1e9, 2 * NOISE)}
MIXED = {"beta_x": 0.3, "beta_y": 0.4}
SADDLE_METHODS = {
    "DPMixSGD": (sv.methods.DpMixSgd(0.1, 0.2, sv.Full(), **WIDE, **MIXED, design="printed"), dp_mix_sgd(NOISE)),
    "DM-HSGD": (sv.methods.DmHsgd(0.1, 0.2, sv.Full(), **MIXED), dp_mix_sgd(0.0)),
    "DP-SGDA": (sv.methods.DpSgda(0.1, 0.2, sv.Full(), **WIDE), dp_sgda(NOISE)),
    "SGDA": (sv.methods.Sgda(0.1, 0.2, sv.Full()), dp_sgda(0.0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SADDLE_METHODS)
def test_a_saddle_method_walks_as_its_pseudo_code(name: str) -> None:
    method, wanted = SADDLE_METHODS[name]
    state = sv.run(SADDLE, LOWER, method, network=NETWORK, steps=STEPS).agents
    assert np.abs(wanted["x"] - X0).max() > 0.05  # the walk is long enough to tell a wrong one
    for field, path in wanted.items():
        got = getattr(state, field)
        np.testing.assert_allclose(got[0] if field == "estimate" else got, path, atol=2e-5)
