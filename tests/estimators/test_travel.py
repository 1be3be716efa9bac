"""Estimators that travel in a file, searches that say what they cost, and errors that show no value."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sottovoce as sv
from sottovoce.estimators import base
from sottovoce.privacy.report import rounded_up

RNG = np.random.default_rng(3)
X = RNG.uniform(-0.5, 0.5, (400, 2))
Y = (X[:, 0] > 0).astype(int)
COLUMNS = {"age": {"range": (0, 120)}, "sex": {"categories": ["F", "M"]}}
PEOPLE = {"age": RNG.uniform(18, 90, 400).tolist(), "sex": RNG.choice(["F", "M"], 400).tolist()}


@pytest.fixture(scope="module")
def ridge():
    return sv.PrivateRidge(2.0, label_range=(0, 100), ledger=sv.Ledger()).fit(X, 50 + 60 * X[:, 0])


def test_a_pipeline_travels_with_its_columns_statement_and_card(tmp_path, ridge):
    whole = make_pipeline(sv.DeclaredScaler(COLUMNS), sv.PrivateLogisticRegression(2.0, random_state=0))
    labels = np.where(np.array(PEOPLE["age"]) > 60, 7, 3)
    model = whole.fit(PEOPLE, labels)
    opened = sv.load(sv.save(model, tmp_path / "a.sv"))
    np.testing.assert_allclose(opened.probabilities(PEOPLE), model.predict_proba(PEOPLE), atol=1e-5)
    np.testing.assert_array_equal(opened.predict(PEOPLE), model.predict(PEOPLE))  # 3 and 7, not their names
    assert (opened.classes, opened.releasable, opened.columns.names[0]) == (("3", "7"), False, "age")
    assert opened.privacy == model[-1].privacy_
    card = (tmp_path / "a.md").read_text()
    assert "Do not hand this model out" in card  # a given state is a simulation
    assert "| age | 0.0 to 120.0 | middle |" in card
    assert sv.load(sv.save(ridge, tmp_path / "b.sv")).releasable


def test_numbers_and_blocks_travel_too(tmp_path, ridge):
    opened = sv.load(sv.save(ridge, tmp_path / "a.sv"))
    low, high = opened.coefficients.interval(0.999)[0]
    assert low < 60 < high
    np.testing.assert_allclose(opened.coefficients.errors, ridge.coefficients().errors)
    assert "| x0 | " in (tmp_path / "a.md").read_text()
    np.testing.assert_allclose(opened.predict(5 * X), ridge.predict(5 * X), atol=1e-3)  # long rows are shortened
    blocks = [X[:, :1], X[:, 1:]]
    model = sv.PrivateColumnsClassifier(epsilon=2.0, steps=2, random_state=0).fit(blocks, Y)
    opened = sv.load(sv.save(model, tmp_path / "b.sv"))
    np.testing.assert_array_equal(opened.predict(blocks), model.predict(blocks))


def test_what_cannot_travel_is_refused_before_a_file_is_written(tmp_path, ridge):
    for given, words in (
        (make_pipeline(StandardScaler(), ridge), "StandardScaler: a pipeline travels with sv.DeclaredScaler alone"),
        (StandardScaler(), "has no privacy statement"),
        (sv.PrivateRidge(), "not fitted"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            sv.save(given, tmp_path / "a.sv")
    with pytest.raises(TypeError, match=r"sv.save\(model, path\)"):
        sv.save(ridge, tmp_path / "a.sv", features=X)
    assert not list(tmp_path.iterdir())


def test_fits_of_a_search_warn_once(monkeypatch):
    monkeypatch.setattr(base, "_SEEN", set())
    monkeypatch.setattr(base, "_WARNED", set())
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(2):
            for fold in range(3):
                base._fitted_before(X[np.arange(400) % 3 != fold])
        base._fitted_before(X)
    assert [("best_estimator_" in str(one.message)) for one in heard] == [True]


def test_the_second_fit_on_the_same_rows_is_not_called_ready_to_hand_out(monkeypatch, tmp_path, ridge):
    monkeypatch.setattr(base, "_SEEN", set())
    alone = clone(ridge).set_params(ledger=None)
    opened = [sv.load(sv.save(clone(alone).fit(X, X[:, 0]), tmp_path / f"{k}.sv")) for k in range(2)]
    assert [one.releasable for one in opened] == [True, False]
    assert "if this model was chosen among the fits" in (tmp_path / "1.md").read_text()


def test_with_a_ledger_the_statement_says_what_all_fits_cost(ridge):
    kept = sv.Ledger()
    fits = [clone(ridge).set_params(ledger=kept).fit(X, X[:, 0]) for _ in range(2)]
    cost = float(kept.epsilon("all", 1e-5, "zero-out"))
    assert cost > 2.0 >= fits[1].privacy_.epsilon
    assert not any("the ledger holds" in line for line in fits[0].privacy_.caveats)
    (said,) = [line for line in fits[1].privacy_.caveats if "the ledger holds 2 fits" in line]
    assert f"epsilon {rounded_up(cost, 4)}" in said


@pytest.mark.slow
def test_the_best_estimator_of_a_search_knows_what_the_search_cost(ridge):
    model = clone(ridge).set_params(ledger=sv.Ledger())
    best = GridSearchCV(model, {"norm": [0.5, 1.0]}, cv=2).fit(X, X[:, 0]).best_estimator_
    assert any("the ledger holds 5 fits" in line for line in best.privacy_.caveats)


@pytest.mark.parametrize("estimator", [sv.PrivateRidge(), sv.PrivateLogisticRegression(), sv.DeclaredScaler()])
@pytest.mark.parametrize("values", [["SECRET"], [np.nan], [np.inf], ["1", "SECRET"], "categories"])
def test_an_error_on_values_shows_none_and_names_our_remedy(estimator, values):
    pandas = pytest.importorskip("pandas")
    kind = "category" if values == "categories" else None
    held = pandas.DataFrame({"a": pandas.Series((["SECRET"] if kind else values) * 20, dtype=kind)})
    with pytest.raises(ValueError, match=r"DeclaredScaler\(\{'age'") as caught:
        clone(estimator).fit(held, np.arange(len(held)) % 2)
    shown = "".join(str(one) for one in (caught.value, caught.value.__cause__))
    assert "SECRET" not in shown
    assert "impute" not in shown or "would learn from private rows" in shown
    assert caught.value.__suppress_context__ or caught.value.__context__ is None  # a traceback would show the value
