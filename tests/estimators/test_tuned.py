import math

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import check_estimator

import sottovoce as sv
from sottovoce.data import load
from sottovoce.data.synthetic import logistic
from sottovoce.estimators import TunedLogisticRegression, base

ROWS = logistic(3000, 4)
X, Y = ROWS["features"], ROWS["label"]


@pytest.fixture(scope="module")
def fitted() -> TunedLogisticRegression:
    return TunedLogisticRegression(epsilon=2.0, steps=4, random_state=0).fit(X, Y)


@pytest.mark.slow
def test_budget_is_spent_by_both_sets_and_not_exceeded(fitted) -> None:
    assert 1.99 < fitted.privacy_.epsilon <= 2.0
    assert all(1.98 < epsilon <= 2.0 for epsilon in fitted.privacy_.per_level.values())
    assert (fitted.privacy_.adjacency, fitted.privacy_.delta) == ("zero-out", 1e-5)
    assert any("class list" in caveat for caveat in fitted.privacy_.caveats)


def test_learns(fitted) -> None:
    assert fitted.score(X, Y) > 0.8
    assert fitted.coef_.shape == (1, 4)
    assert fitted.penalties_.shape == (4,)


@pytest.mark.slow
def test_scores_agree(fitted) -> None:
    chances = fitted.predict_proba(X)
    np.testing.assert_allclose(chances.sum(axis=1), 1.0, atol=1e-6)
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[chances.argmax(axis=1)])
    np.testing.assert_allclose(chances[:, 1], 1 / (1 + np.exp(-fitted.decision_function(X))), atol=1e-6)


@pytest.mark.slow
def test_same_state_same_model_another_state_another(fitted) -> None:
    again = clone(fitted).fit(X, Y)
    np.testing.assert_array_equal(again.coef_, fitted.coef_)
    fresh = clone(fitted).set_params(random_state=None).fit(X, Y)
    assert not np.array_equal(fresh.coef_, fitted.coef_)


@pytest.mark.slow
def test_norm_is_a_unit_only(fitted) -> None:
    """Features in other units with the norm in the same: the same model."""
    scaled = clone(fitted).set_params(norm=1024.0).fit(1024.0 * X, Y)  # a power of two: the same bits
    np.testing.assert_allclose(1024.0 * scaled.coef_, fitted.coef_, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_several_classes_with_words_and_groups() -> None:
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, 3000)
    rows = rng.normal(scale=0.2, size=(3000, 4)) + np.eye(4)[label]
    words = np.array(["ash", "elm", "fir"])[label]
    model = TunedLogisticRegression(epsilon=3.0, steps=4, groups=2, random_state=1).fit(rows, words)
    assert model.score(rows, words) > 0.9
    assert model.coef_.shape == (3, 4)
    assert model.penalties_.shape == (2,)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"classes": ["0", "1"]}, "lists texts, y holds numbers"),
        ({"penalty": 1.0}, "must be positive and below"),
        ({"validation": 1.5}, "between 0 and 1"),
        ({"epsilon": 0.0}, "give a positive number"),
        ({"steps": 0}, "at least 1"),
        ({"epsilon": "1"}, "epsilon is '1': give a positive number"),
        ({"delta": 0.5}, "at most 1/n"),
    ],
)
def test_mistakes_say_what_to_do(settings, words) -> None:
    with pytest.raises(ValueError, match=words):
        TunedLogisticRegression(**settings).fit(X, Y)


def test_few_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="n_samples = 9"):
        TunedLogisticRegression().fit(X[:9], Y[:9])


def test_a_second_fit_on_the_same_rows_warns_or_is_added_up(fitted) -> None:
    base._WARNED.clear()
    with pytest.warns(UserWarning, match="fitted on before"):
        clone(fitted).fit(X, Y)
    ledger = sv.Ledger()
    model = clone(fitted).set_params(ledger=ledger, budget=sv.Budget(2.5, 1e-5, "zero-out"))
    model.fit(X, Y)
    with pytest.raises(sv.privacy.BudgetExceeded):
        model.fit(X, Y)


def test_a_given_state_is_a_simulation_and_says_so(fitted) -> None:
    assert any("simulated noise" in caveat for caveat in fitted.privacy_.caveats)
    secret = TunedLogisticRegression(epsilon=2.0, steps=4).fit(X, Y)
    assert any("secret key" in caveat for caveat in secret.privacy_.caveats)
    assert any("fitted on these rows before" in caveat for caveat in secret.privacy_.caveats)


@pytest.mark.slow
def test_a_grid_search_is_added_up_in_its_ledger_and_warns_without() -> None:
    ledger, rows = sv.Ledger(), slice(0, 600)
    search = GridSearchCV(TunedLogisticRegression(steps=2, ledger=ledger), {"epsilon": [0.5]}, cv=2)
    search.fit(X[rows], Y[rows])
    assert len({entry.run for entry in ledger.entries.values()}) == 3  # two folds, and all rows
    spent = float(ledger.epsilon("all", 1e-5, "zero-out"))
    assert spent > 1.5 * search.best_estimator_.privacy_.epsilon
    base._WARNED.clear()
    with pytest.warns(UserWarning, match="fitted on before"):
        search.set_params(estimator__ledger=None).fit(X[rows], Y[rows])


@pytest.mark.slow
def test_scikit_learn_accepts_it() -> None:
    results = check_estimator(TunedLogisticRegression(steps=2, inner_steps=2), on_skip=None)
    assert sum(result["status"] == "passed" for result in results) > 40


@pytest.mark.slow
@pytest.mark.data("a9a")
def test_a9a_at_epsilon_one() -> None:
    from sklearn.metrics import roc_auc_score

    train, test = load("a9a")
    model = TunedLogisticRegression(epsilon=1.0, random_state=0).fit(train["features"], train["label"])
    assert roc_auc_score(test["label"], model.decision_function(test["features"])) >= 0.895
    assert math.isclose(model.privacy_.epsilon, 1.0, abs_tol=2e-3)
