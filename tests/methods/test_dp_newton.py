"""Newton descent without noise against scikit-learn, and its noise against what is charged."""

import dataclasses

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LinearRegression, LogisticRegression

import sottovoce as sv
from sottovoce.problems.tasks import Shape, get
from tests.marks import few

QUIET = sv.Performance(progress=False)
SIZES = [300, 120, 60, 20]


def table(target: bool) -> dict[str, np.ndarray]:
    """Rows of very different scales and a strong correlation, where plain descent needs thousands of steps."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(sum(SIZES), 3)) @ np.array([[0.1, 0, 0], [0.09, 0.01, 0], [0, 0, 0.004]]) + [0.3, -0.2, 0.5]
    score = 8 * (rows[:, 0] - 0.3) + 150 * (rows[:, 2] - 0.5) + rng.logistic(size=len(rows))
    label = np.clip(score / 20, -1, 1).astype(np.float32) if target else (score > 0.5).astype(np.int32)
    return {"features": rows.astype(np.float32), "label": label}


@pytest.mark.parametrize("task", few(["logistic", "ridge"], ["logistic"]))
def test_without_noise_four_unequal_parties_on_a_ring_find_the_pooled_solution(task) -> None:
    records = table(task == "ridge")
    parts = sv.data.split(records, 4, "sizes", sizes=SIZES)
    problem = get(task)(Shape((3,), classes=1 if task == "ridge" else 2, agents=4)).problem
    plan = sv.auto(problem, parts, epsilon=None, network=sv.networks.ring(4))
    result = sv.run(problem, parts, **plan.settings, every=plan.steps, performance=QUIET)
    model = LinearRegression() if task == "ridge" else LogisticRegression(C=1e6, max_iter=10_000, tol=1e-8)
    model.fit(records["features"].astype(float), records["label"])
    scores = records["features"] @ np.asarray(result.x["weights"]) + np.asarray(result.x["bias"])
    wanted = records["features"] @ model.coef_.reshape(-1) + model.intercept_
    assert np.max(np.abs(scores - wanted)) < 0.05 * np.std(wanted)


def test_every_party_spends_the_whole_budget_whatever_its_size() -> None:
    problem = get("logistic")(Shape((3,), classes=2, agents=4)).problem
    plan = sv.auto(problem, sv.Population(SIZES), epsilon=1.5, delta=1e-4, network=sv.networks.complete(4))
    report = sv.account(plan.method, sv.Population(SIZES), **{k: v for k, v in plan.settings.items() if k != "method"})
    assert all(1.495 < epsilon <= 1.5 for epsilon in report.per_agent)
    scale = [float(plan.method.gradient.scale(0, party)) for party in range(4)]
    np.testing.assert_allclose(np.array(scale) * SIZES, scale[0] * SIZES[0], rtol=1e-6)


def worst_of_parties() -> tuple[list[sv.data.Part], sv.MinMax, list[tuple[np.ndarray, np.ndarray]]]:
    """Four unequal parties, of which the smallest has other slopes."""
    rng = np.random.default_rng(1)
    rows = rng.uniform(-0.5, 0.5, (1000, 2)).astype(np.float32)
    owner = np.repeat(np.arange(4), [500, 300, 150, 50])
    slopes = np.where(owner[:, None] == 3, [-3.0, 2.0], [4.0, 2.0])
    label = (np.sum(rows * slopes, axis=1) + rng.logistic(size=1000) > 0).astype(np.int32)
    task = get("robust-logistic")(Shape((2,), classes=2, agents=4), penalty=0.0)
    held = {"features": rows, "label": label}
    parts = [sv.data.Part(held, np.flatnonzero(owner == party)) for party in range(4)]
    return task.prepare(parts), task.problem, [(rows[part.rows], label[part.rows]) for part in parts]


@pytest.mark.slow
def test_without_noise_parties_are_weighed_as_at_the_saddle() -> None:
    parts, problem, groups = worst_of_parties()
    plan = sv.auto(problem, parts, epsilon=None, network=sv.networks.ring(4))
    result = sv.run(problem, parts, **plan.settings, every=plan.steps, performance=QUIET)

    def losses(x: np.ndarray) -> np.ndarray:
        return np.array([np.mean(np.logaddexp(0, a @ x[:2] + x[2]) - b * (a @ x[:2] + x[2])) for a, b in groups])

    def value(
        x: np.ndarray,
    ) -> float:  # price 1/16: the best weights are 1/4 + losses - their mean, where these are >= 0
        y = 0.25 + losses(x) - losses(x).mean()
        assert y.min() >= 0
        return float(y @ losses(x) - 0.5 / 16 * np.sum((4 * y - 1) ** 2))

    best = minimize(value, np.zeros(3), tol=1e-10).x
    found = np.append(result.x["weights"], result.x["bias"])
    np.testing.assert_allclose(found, best, atol=0.02)
    np.testing.assert_allclose(result.y, 0.25 + losses(best) - losses(best).mean(), atol=0.003)


def test_released_losses_are_charged_with_the_gradients() -> None:
    _, problem, _ = worst_of_parties()
    crowd = sv.Population([500, 300, 150, 50])
    plan = sv.auto(problem, crowd, epsilon=1.5, delta=1e-4, network=sv.networks.complete(4))
    known = {name: value for name, value in plan.settings.items() if name != "method"}
    report = sv.account(plan.method, crowd, **known)
    assert all(1.495 < epsilon <= 1.5 for epsilon in report.per_agent)
    assert [event.split(":")[0] for event in report.events] == ["moments", "gradient", "losses"]
    audible = dataclasses.replace(plan.method, losses=plan.method.losses.louder(0.1))
    assert sv.account(audible, crowd, **known).epsilon > 3


@pytest.mark.parametrize("alpha", few([0.01, 1.0], [1.0]))
def test_a_penalty_larger_than_the_moments_is_reached(alpha: float) -> None:
    """A step by the moments alone diverged: the penalty's own curvature was not in it."""
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, (2000, 4))
    label = rows @ [1.0, -2.0, 0.5, 0.0] + 0.3 * rng.normal(size=2000)
    fitted = sv.PrivateRidge(epsilon=None, norm=2.0, alpha=alpha, label_range=(-5, 5)).fit(rows, label)
    design = np.c_[rows / 2.0, np.ones(2000)]
    penalty = np.diag([2 * alpha] * 4 + [0.0])
    exact = 5 * np.linalg.solve(design.T @ design / 2000 + penalty, design.T @ (label / 5) / 2000)
    assert fitted.coef_ == pytest.approx(exact[:4] / 2.0, abs=1e-3)
    assert fitted.intercept_ == pytest.approx(exact[4], abs=1e-3)
