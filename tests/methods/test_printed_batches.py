"""BAMBI, and DP bilevel with batches, against their pseudo-code in NumPy, with the same batches and noise in both.

Random directions, label noise and the gate's noise are replaced by known numbers, so that where and when noise enters
is compared too. The oracles are written from the papers' lines, not from the package.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.table import schedule
from sottovoce.methods.party import Party
from sottovoce.papers.dp_bilevel.descent import Descent
from sottovoce.privacy import gate
from sottovoce.privacy.labels import LaplaceGate, Printed
from sottovoce.privacy.sampling import WithReplacement
from sottovoce.problems.vertical import cross_entropy
from sottovoce.schedules import Decay

ROWS, STEPS, INNER, BATCH, Q, MU, GAMMA, SCALE = 20, 3, 2, 6, 2, 0.1, 0.05, 0.3
WIDTHS, EMBEDDED = (2, 3), 3
RNG = np.random.default_rng(5)
FEATURES = [RNG.normal(size=(ROWS, width)).astype(np.float32) for width in WIDTHS]


def direction(m: int, shape: tuple[int, ...]) -> np.ndarray:
    """u_{k,j} of party m, one per copy: known numbers in place of normal ones."""
    return np.cos(1.0 + m + np.arange(np.prod(shape))).reshape(shape)


def label_noise(shape: tuple[int, ...]) -> np.ndarray:
    """u ~ Lap(c) of Algorithms 2 and 3, one per row and copy: known numbers."""
    return SCALE * np.sin(1.0 + np.arange(np.prod(shape))).reshape(shape)


@pytest.fixture
def known_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    def normal(party: Party, name: str, like: Any, count: int) -> Any:
        return jax.tree.map(lambda leaf: jnp.asarray(direction(party.index, (count, *leaf.shape)), jnp.float32), like)

    def noise(own: Any, shape: tuple[int, ...], copies: tuple[int, ...], key: Any) -> Any:
        return jnp.asarray(label_noise((*copies, *shape)), jnp.float32)

    monkeypatch.setattr(sv.methods.Bambi, "public_constants", True)  # the known directions stand in its step
    monkeypatch.setattr(Party, "normal", normal)
    monkeypatch.setattr(LaplaceGate, "noise", noise)


def perturbed(scores: np.ndarray, label: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """GradPerturb: the gradients at the scores, for each class, and the noisy one that is sent (per row)."""
    shifted = np.exp(scores - scores.max(-1, keepdims=True))
    chance, classes = shifted / shifted.sum(-1, keepdims=True), scores.shape[-1]
    theta = chance[None] - np.eye(classes)[:, None, :]  # theta_b for b = 0, ..., C - 1
    own = theta[label, np.arange(len(label))]
    other = theta.sum(0) if classes > 2 else own - theta[1 - label, np.arange(len(label))]
    return (own + noise * other) / len(label)


def bambi(x: list, y: list, label: np.ndarray, batches: list, copies: str, cross: bool) -> tuple[list, list]:
    """Algorithm 1 with GradPerturb, for all parties; each line as printed."""
    parties = range(len(WIDTHS))

    def sent(m: int, x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        embedded = np.tanh(FEATURES[m][rows].astype(float) @ x)
        return embedded, embedded @ y

    for rows in batches:
        u = [direction(m, (Q, *x[m].shape)) for m in parties]  # line 4
        points = [[x[m], *(x[m] + MU * u[m][j] for j in range(Q))] for m in parties]
        heads = [[y[m]] * (Q + 1) for m in parties]  # line 3
        for t in range(INNER):
            chosen = rows["lower"][t]  # line 6
            at = heads if copies == "own" else [[own[0]] * (Q + 1) for own in heads]
            noise, moved = label_noise((Q + 1, BATCH, 1)), [[] for _ in parties]
            for j in range(Q + 1):
                told = [sent(m, points[m][j], at[m][j], chosen) for m in parties]  # lines 7 to 9
                theta = perturbed(sum(h for _, h in told), label[chosen], noise[j])  # lines 10 to 12
                for m in parties:  # line 13
                    moved[m].append(heads[m][j] - 0.3 * (told[m][0].T @ theta + 2 * GAMMA * at[m][j]))
            heads = moved
        y = [own[0] for own in heads]
        chosen = rows["upper"][0]  # line 17
        told = [sent(m, x[m], y[m], chosen) for m in parties]
        theta = perturbed(sum(h for _, h in told), label[chosen], label_noise((BATCH, 1)))  # lines 18 to 23
        slope_y = [told[m][0].T @ theta for m in parties]  # line 24
        along = [[np.sum((heads[m][j + 1] - y[m]) / MU * slope_y[m]) for j in range(Q)] for m in parties]  # line 16
        if cross:
            along = [np.sum(along, axis=0)] * len(along)
        slope_x = [FEATURES[m][chosen].T.astype(float) @ ((theta @ y[m].T) * (1 - told[m][0] ** 2)) for m in parties]
        x = [  # line 25, equation (5)
            x[m] - 0.2 * (slope_x[m] + sum(along[m][j] * u[m][j] for j in range(Q)) / Q) for m in parties
        ]
    return x, y


@pytest.mark.slow
@pytest.mark.usefixtures("known_draws")
@pytest.mark.parametrize(
    ("classes", "copies", "cross"),
    [(3, "y", False), (2, "y", False), (3, "own", True)],
    ids=["Algorithms 1 and 3", "Algorithms 1 and 2", "own iterates, all parties' terms"],
)
def test_bambi_walks_as_its_pseudo_code(classes: int, copies: Literal["own", "y"], cross: bool) -> None:
    rng = np.random.default_rng(classes)
    label = rng.integers(classes, size=ROWS)
    x0 = [rng.normal(size=(width, EMBEDDED)).astype(np.float32) for width in WIDTHS]
    y0 = [rng.normal(size=(EMBEDDED, classes)).astype(np.float32) for _ in WIDTHS]
    problem = sv.Vertical(
        lambda x, a: jnp.tanh(a @ x), lambda y, s: s @ y, cross_entropy, x0, y0,
        penalty=lambda x, y: GAMMA * jnp.sum(y**2),
    )  # fmt: skip
    columns = sv.Columns(FEATURES).levels(upper=0.4)
    method = sv.methods.Bambi(
        INNER, BATCH, 0.2, 0.3, Printed(SCALE), directions=Q, smoothing=MU, cross_terms=cross, copies=copies,
        draw="uniform",
    )  # fmt: skip
    result = sv.run(problem, sv.Table(columns, sv.Labels(label, classes, seed=0)), method, steps=STEPS)
    drawn = schedule(columns, method, 0, 0, STEPS)
    batches = [{level: np.asarray(rows[t]) for level, rows in drawn.items()} for t in range(STEPS)]
    wanted_x, wanted_y = bambi(x0, y0, label, batches, copies, cross)
    for m in range(len(WIDTHS)):
        np.testing.assert_allclose(result.x[m], wanted_x[m], atol=2e-4)  # differences are divided by mu
        np.testing.assert_allclose(result.y[m], wanted_y[m], atol=2e-5)
    assert np.abs(wanted_x[0] - x0[0]).max() > 1e-2


# DP bilevel, Algorithms 3 and 4.

RECORDS = {
    "a": 0.7 * RNG.normal(size=(ROWS, 3)).astype(np.float32),
    "b": RNG.normal(size=ROWS).astype(np.float32),
    "s": RNG.random(ROWS).astype(np.float32),
}
X0, Y0 = np.array([0.1, -0.2, 0.3]), np.array([0.2, 0.1, -0.1])
NOISE, LARGEST = 0.05, 0.35


def squared(x: Any, y: Any, r: Any) -> Any:
    return 0.5 * (r["a"] @ y - r["b"]) ** 2 + r["s"] * (x @ y)


def loss(x: Any, y: Any, r: Any) -> Any:
    return 0.5 * jnp.sum((y - r["a"]) ** 2) + 0.5 * r["s"] * jnp.sum((x - y) ** 2)


BILEVEL = sv.Bilevel(
    loss, squared, jnp.asarray(X0), jnp.asarray(Y0), public_lower=lambda x, y: 0.5 * jnp.sum(y**2),
    project_x=lambda x: jnp.clip(x, -LARGEST, LARGEST),
)  # fmt: skip


@pytest.mark.slow
def test_dp_bilevel_walks_as_algorithms_3_and_4(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[np.ndarray] = []  # the batches in the order in which a run draws them

    def keep(rows: np.ndarray) -> None:
        asked.append(np.asarray(rows))

    draw = WithReplacement.draw

    def watched(own: WithReplacement, key: Any, sizes: Any, agent: Any, t: Any) -> Any:
        rows, weights = draw(own, key, sizes, agent, t)
        jax.debug.callback(keep, rows, ordered=True)
        return rows, weights

    def noised(mean: Any, release: Any, key: Any, t: Any, agent: Any, *_: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf + release.scale(t, agent) * jnp.cos(1.0), mean)

    monkeypatch.setattr(WithReplacement, "draw", watched)
    monkeypatch.setattr(gate, "noised", noised)
    releases = [sv.Release(1e9, times * NOISE) for times in (1, 2, 3)]
    method = sv.methods.DpBilevel(
        0.2, Descent(3, Decay(0.3, 1.0), radii=(1.0, 0.2)), *releases[:2], WithReplacement(4), releases[2], penalty=7.0,
        sampling_x=WithReplacement(7), solve="apart", output="smallest step", warm=False,
    )  # fmt: skip
    state = sv.run(BILEVEL, [RECORDS], method, steps=STEPS).agents
    jax.effects_barrier()
    assert [len(rows) for rows in asked] == ([4] * 12 + [7]) * STEPS  # two rounds of 3 steps for each of yg and yl
    assert len({tuple(rows) for rows in asked}) == len(asked)  # every step has a batch of its own
    for got, wanted in zip((state.x[0], state.at[0]), minibatch(iter(asked), 7.0)):
        np.testing.assert_allclose(got, wanted, atol=5e-5)


def minibatch(batches: Any, penalty: float) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 3 with Algorithm 4: the x_t with the smallest step, and the x after all of them."""
    a, b, s = (RECORDS[name].astype(float) for name in "abs")

    def lower(x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return (a[rows] * (a[rows] @ y - b[rows])[:, None]).mean(0) + s[rows].mean() * x + y

    def upper(x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return y - a[rows].mean(0) - s[rows].mean() * (x - y)

    def descended(slope: Any, scale: float) -> np.ndarray:  # Algorithm 4
        y = Y0
        for radius in (1.0, 0.2):  # line 3
            centre, seen = y, []
            for k in range(3):
                seen.append(y)
                y = y - 0.3 / (k + 1) * (slope(y, next(batches)) + scale * np.cos(1.0))  # line 5
                y = centre + (y - centre) * min(1.0, radius / np.linalg.norm(y - centre))
            y = np.mean(seen, axis=0)  # line 7
        return y

    x, candidates = X0, []
    for _ in range(STEPS):
        yg = descended(lambda y, rows, x=x: lower(x, y, rows), NOISE)  # line 3
        yl = descended(lambda y, rows, x=x: upper(x, y, rows) / penalty + lower(x, y, rows), 2 * NOISE)
        rows = next(batches)
        slope = s[rows].mean() * (x - yl) + penalty * s[rows].mean() * (yl - yg) + 3 * NOISE * np.cos(1.0)  # line 4
        moved = np.clip(x - 0.2 * slope, -LARGEST, LARGEST)  # line 5
        candidates.append((np.linalg.norm(moved - x), x))
        x = moved
    return min(candidates, key=lambda pair: pair[0])[1], x  # lines 7 and 8
