"""Coefficients with intervals: against simulated passages of noise, Monte Carlo means and closed forms."""

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline

import sottovoce as sv
from sottovoce.data import Column, Declarations
from sottovoce.problems.linear_model import INTERCEPT
from sottovoce.runtime.coefficients import Coefficients, Passage, empty_directions, in_units, logistic_curve

MOMENTS = np.diag([0.8, 0.3, 0.05, INTERCEPT**2])
TRUTH = np.array([0.02, -0.01, 0.03, 0.01])  # scores near 0: the loss curves by 1/4 of the moments


def trained(rng, steps, noise, rows, wider=1.0):
    """Run the steps of `DpNewton` on a quadratic, for rows that were drawn, and return what is known of it."""
    clip, rate = 1.5, 0.6
    basis = np.diag(1 / np.sqrt(np.diag(MOMENTS))) / clip
    stride, curve = rate / 0.25 * clip**2, 0.25 * MOMENTS
    best = TRUTH + rng.multivariate_normal(np.zeros(4), np.linalg.inv(curve) / rows)
    now, kept = np.zeros(4), []
    for _ in range(steps):
        released = basis.T @ curve @ (now - best) + wider * noise * rng.normal(size=4)
        now = now - basis @ (stride * released)
        kept.append(now)
    return Passage(
        point=np.mean(kept[steps // 2 :], axis=0), basis=basis, stride=stride, noise=noise, hidden=0.01, steps=steps,
        tail=0.5, rows=rows, norm=1.0, whole=rate / 0.25, reach=1.5, fitted=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("noise", "rows", "steps"),
    [
        (0.02, 10**8, 3),
        (1e-5, 4000, 12),
        pytest.param(0.02, 10**8, 12, marks=pytest.mark.slow),
        pytest.param(1e-5, 4000, 3, marks=pytest.mark.slow),
    ],
)
def test_errors_are_those_of_simulated_passages_and_early_ends_are_corrected(noise, rows, steps):
    rng, scale = np.random.default_rng(0), np.array([1, 1, 1, INTERCEPT])
    found = [trained(rng, steps, noise, rows).coefficients("abc") for _ in range(400)]
    off = np.array([(one.estimates - scale * TRUTH) / one.errors for one in found])
    np.testing.assert_allclose(off.mean(axis=0), 0.0, atol=0.2)
    np.testing.assert_allclose(off.std(axis=0), 1.0, rtol=0.12)
    if rows == 10**8:  # a wrong scale is seen
        off = [trained(rng, steps, noise, rows, wider=1.3).coefficients("abc").estimates for _ in range(150)]
        assert np.all(np.std(off, axis=0) > 1.15 * found[0].errors)


def test_a_hidden_direction_may_hold_as_much_as_a_seen_one():
    rng = np.random.default_rng(1)
    seen = trained(rng, 30, 1e-4, 10**7)
    hidden = Passage(**{**vars(seen), "hidden": 0.05, "point": np.array([0.2, 0.3, 0.0, 0.0])})
    found = hidden.coefficients("abc")
    held = (0.8 * 0.2**2 + 0.3 * 0.3**2) / 3  # of the variance of the score, on average over seen directions
    assert found.errors[2] == pytest.approx(np.sqrt(held / 0.05), rel=0.1)
    assert np.all(found.errors[:2] < 0.01)
    assert found.known.tolist() == [True, True, False, True]
    assert np.isinf(found.interval()[2]).all()
    assert [cells[2] for cells in found.table()[1]].count("hidden by noise") == 1
    assert hidden.coefficients("abc", empty=np.eye(4)[:, [2]]).errors[2] < 0.01  # no row has anything there
    all_hidden = Passage(**{**vars(seen), "hidden": 5.0}).coefficients("abc")
    assert np.all(all_hidden.errors > 400)


def test_the_curvature_of_the_logistic_loss_is_that_of_drawn_rows():
    rng = np.random.default_rng(0)
    mean, root = np.array([0.3, -0.2]), rng.normal(size=(2, 2)) * 0.5
    rows = np.hstack([mean + rng.normal(size=(400_000, 2)) @ root.T, np.full((400_000, 1), INTERCEPT)])
    point = np.array([1.0, -2.0, 0.7])
    chance = 1 / (1 + np.exp(-rows @ point))
    drawn = (rows * (chance * (1 - chance))[:, None]).T @ rows / len(rows)
    np.testing.assert_allclose(logistic_curve(rows.T @ rows / len(rows), point), drawn, atol=2e-3)


def test_units_are_those_of_the_columns_and_categories_differ_from_the_first():
    columns = Declarations({
        "age": Column(range=(0, 100), missing="flag"), "pay": Column(range=(1, 1024), log=True),
        "sex": Column(categories=["F", "M"]), "since": Column(range=("2000-01-01", "2020-01-01")),
    })  # fmt: skip
    model = np.arange(1.0, 9.0)  # age, age missing, pay, F, M, other, since, intercept
    zero = np.zeros((8, 8))
    found = in_units(Coefficients(("",) * 8, model, model, zero, np.eye(8)), columns, Column(range=(10, 30)))
    years = 20 * 365.25 / 7305
    expected = {"age": 0.2, "age missing": 20.0, "pay, per doubling": 6.0, "sex=M, not F": 10.0}
    expected |= {"since, per year": 70 * 2 / 20 * years, "intercept": 10 * (8 + 4) + 20}
    assert dict(zip(found.names, found.model)) == pytest.approx(expected, rel=1e-3)
    assert dict(zip(found.names, found.errors))["sex=M, not F"] == pytest.approx(10 * np.sqrt(2))
    empty = empty_directions(columns, norm=2.0)
    people = {"age": [7, None], "pay": [3, 9], "sex": ["F", "M"], "since": ["2001-01-01"] * 2}
    rows = np.hstack([columns.encode(people) / 2, np.full((2, 1), INTERCEPT)])
    np.testing.assert_allclose(rows @ empty, 0.0, atol=1e-6)


@pytest.mark.slow
def test_an_estimator_tells_its_coefficients_and_the_file_and_the_card_do(tmp_path):
    rng = np.random.default_rng(0)
    people = {"age": rng.uniform(0, 100, 6000), "sex": rng.choice(["F", "M"], 6000)}
    pay = 20 + 0.3 * people["age"] + 10 * (people["sex"] == "M") + rng.normal(0, 3, 6000)
    columns = {"age": {"range": (0, 100)}, "sex": {"categories": ["F", "M"]}}
    model = sv.PrivateRidge(4.0, label_range=(0, 100), ledger=sv.Ledger(), random_state=0)
    whole = make_pipeline(sv.DeclaredScaler(columns), model).fit(people, pay)
    found = whole[-1].coefficients(columns)
    assert found.names == ("age", "sex=M, not F", "intercept")
    for (low, high), truth in zip(found.interval(0.9999), (0.3, 10.0, 35.0)):
        assert low < truth < high
    np.testing.assert_allclose(found.estimates, (0.3, 10.0, 35.0), rtol=0.12)
    rows = whole[0].transform(people)
    band = whole[-1].coefficients().band(rows)
    assert np.all((band[:, 0] < whole.predict(people)) & (whole.predict(people) < band[:, 1]))
    opened = sv.load(sv.save(whole, tmp_path / "a.sv"))
    np.testing.assert_allclose(opened.coefficients.errors, found.errors)
    assert "| sex=M, not F | " in (tmp_path / "a.md").read_text()
    with pytest.raises(ValueError, match="without weights and penalty: coef_ has bare numbers"):
        sv.PrivateRidge(label_range=(0, 100), alpha=1e-4, ledger=sv.Ledger(), random_state=0).fit(
            rows, pay
        ).coefficients()
