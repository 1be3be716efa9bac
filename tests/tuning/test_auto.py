"""`auto` reads public facts only, lets settings be given one by one, and names what is wrong."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.privacy.gdp import gdp_mu
from sottovoce.problems.tasks import Shape, get

RING = sv.networks.ring(3)
SIZES = [3000, 2000, 1000]


def problem(name: str, features: int = 4):
    return get(name)(Shape((features,), classes=2, agents=3)).problem


def test_same_sizes_same_plan_whatever_the_records_are() -> None:
    rng = np.random.default_rng(0)
    plans = []
    for scale in (0.0, 1.0):
        records = {
            "features": (scale * rng.normal(size=(6000, 4))).astype(np.float32),
            "label": np.zeros(6000, np.int32),
        }
        parts = sv.data.split(records, 3, "sizes", sizes=SIZES)
        plans.append(sv.auto(problem("logistic"), parts, epsilon=1.0, network=RING))
    plans.append(sv.auto(problem("logistic"), sv.Population(SIZES), epsilon=1.0, network=RING))
    assert plans[0] == plans[1] == plans[2]
    assert len(plans[0].why) == 3
    assert "mixing" in plans[0].why[2]
    alone = sv.auto(problem("logistic"), sv.Population(SIZES[:1]), epsilon=1.0)
    assert "mixing" not in alone.why[2]  # one party has nobody to mix with


@pytest.mark.parametrize(
    ("task", "features", "method"),
    [
        ("logistic", 4, "DpNewton"),
        ("softmax", 2000, "DpSgd"),
        ("tuned-logistic", 4, "LdpDsbo"),
        ("group-robust", 4, "DpSgda"),
    ],
)
def test_every_kind_of_problem_gets_a_calibrated_method(task, features, method) -> None:
    plan = sv.auto(problem(task, features), sv.Population(SIZES), epsilon=1.0, network=RING)
    assert type(plan.method).__name__ == method
    rest = {name: value for name, value in plan.settings.items() if name != "method"}
    report = sv.account(plan.method, sv.Population(SIZES), **rest)
    assert all(0.99 < epsilon <= 1.0 for epsilon in report.per_agent)
    assert (report.adjacency, report.delta) == ("zero-out", 1e-5)


def test_where_slopes_are_lost_in_noise_the_plan_is_the_base_rate_and_says_so() -> None:
    small, alone = sv.Population([300]), problem("logistic", 100)
    plans = [sv.auto(alone, small, epsilon=e) for e in (0.1, 0.3, 2.0, 4.0)]
    assert [type(plan.method).__name__ for plan in plans] == ["BaseRate", "BaseRate", "DpNewton", "DpNewton"]
    assert [plan.gain for plan in plans[:2]] == [0.0, 0.0]
    assert 0 < plans[2].gain < plans[3].gain
    assert "BaseRate predicts the noisy base rate" in plans[0].warnings[-1]
    forced = sv.auto(alone, small, epsilon=0.1, rate=1.0)
    assert type(forced.method).__name__ == "DpNewton"
    assert forced.gain < 0
    assert "DpNewton is expected to be worse than the base rate" in forced.warnings[-1]
    spread = sv.Population([60] * 5)
    five = sv.auto(problem("logistic", 100), spread, epsilon=1.0, network=sv.networks.complete(5))
    assert type(five.method).__name__ == "BaseRate"  # five noises, the same rows


def test_more_budget_means_more_steps_and_settings_by_hand_are_kept() -> None:
    few, many = (sv.auto(problem("logistic"), sv.Population(SIZES), epsilon=e, network=RING) for e in (0.2, 20.0))
    assert few.steps < many.steps
    assert few.spread > many.spread
    noise = math.sqrt(3 * 5) / (gdp_mu(0.2, 1e-5) * sum(SIZES))  # three parties, four columns and the intercept
    assert noise > 0.008
    assert few.method.reach == pytest.approx(1.5 * math.sqrt(0.008 / noise)) == pytest.approx(few.method.rate)
    assert many.method.reach > many.method.rate == 1.5
    kept = sv.auto(problem("logistic"), sv.Population(SIZES), epsilon=1.0, network=RING, steps=5, reach=0.6)
    assert (kept.steps, kept.method.reach) == (5, 0.6)
    with pytest.raises(ValueError, match="did you mean 'reach'"):
        sv.auto(problem("logistic"), sv.Population(SIZES), epsilon=1.0, network=RING, raech=0.6)


def test_the_plan_tells_how_far_noise_moves_a_score_from_run_to_run() -> None:
    told = [sv.auto(problem("logistic"), sv.Population(SIZES), epsilon=e, network=RING) for e in (1.0, 4.0)]
    assert all(f"a typical score by about {plan.spread:.1g}" in plan.why[1] for plan in told)
    assert told[0].spread > told[1].spread
    assert "typical score" not in str(sv.auto(problem("logistic"), sv.Population(SIZES), epsilon=None, network=RING))


def test_a_tiny_party_and_a_large_delta_are_named() -> None:
    plan = sv.auto(
        problem("logistic"),
        sv.Population([3000, 2000, 2], names=("a", "b", "c")),
        epsilon=1.0,
        delta=1e-3,
        network=RING,
    )
    assert any("party c holds 2 of 5002" in line for line in plan.warnings)
    assert any("above 1/n" in line for line in plan.warnings)


def test_a_run_warns_of_an_x_that_never_moves_and_of_a_party_that_sets_the_noise() -> None:
    stuck = sv.methods.DpSgd(rate=1e-12, gradient=sv.Release(1.0, 0.1), sampling=sv.Full())
    loss = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), x0=jnp.zeros(2))
    parts = [np.ones((200, 2), np.float32), np.ones((2, 2), np.float32)]
    with pytest.warns(UserWarning, match="not moved") as caught:
        sv.run(loss, parts, stuck, steps=1, network=sv.networks.ring(2), performance=sv.Performance(progress=False))
    assert any("sets the noise of all" in str(one.message) for one in caught)
