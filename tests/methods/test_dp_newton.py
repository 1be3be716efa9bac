"""Newton descent without noise against scikit-learn, and its noise against what is charged."""

import numpy as np
import pytest
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
    problem = get(task)(Shape((3,), classes=2, agents=4)).problem
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
