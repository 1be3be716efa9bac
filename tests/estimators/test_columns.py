"""One classifier on the columns of two organisations: `PrivateColumnsClassifier`."""

import numpy as np
import pytest
from sklearn.base import clone

import sottovoce as sv
from sottovoce.experiments.planned import setup
from sottovoce.experiments.schema import Case
from sottovoce.papers.bambi.method import Bambi
from sottovoce.privacy.labels import Memoised
from sottovoce.tuning.columns import STEPS, usual


def _rows(count, seed):
    """Both organisations are needed: with the columns of one, at most 3 of 4 rows can be classified."""
    rng = np.random.default_rng(seed)
    blocks = [rng.uniform(-1, 1, (count, width)) for width in (2, 3)]
    return blocks, np.where(blocks[0][:, 0] + blocks[1][:, 0] > 0, "late", "in time")


def test_an_estimator_takes_the_settings_that_auto_takes_in_a_run_file():
    case = {"data": {"name": "logistic", "n": 900, "dim": 4}, "columns": {"parties": 2}, "privacy": {"epsilon": 1.5}}
    made = setup(Case.model_validate(case))
    assert made.method == Bambi(**usual(made.held.columns), labels=Memoised(1.5))
    assert made.steps == STEPS == sv.PrivateColumnsClassifier().steps
    by_hand = setup(Case.model_validate({**case, "method": {"name": "auto", "inner_steps": 3}}))
    assert by_hand.method == Bambi(**{**usual(made.held.columns), "inner_steps": 3}, labels=Memoised(1.5))


def test_mistakes_are_named_before_a_label_is_drawn(tmp_path):
    blocks, y = _rows(30, 0)
    model = sv.PrivateColumnsClassifier(path=tmp_path / "labels.json")
    for X, label, words in [
        (blocks[0], y, "one per organisation"),
        ([blocks[0], blocks[1][:-1]], y, "must be the same records"),
        (blocks, np.arange(30) % 3, "is for two"),
        (blocks, y[:-1], "29 labels for 30 rows"),
        (blocks, np.zeros(30, int), "one class only"),
        ([blocks[0], np.full((30, 1), np.nan)], y, "a block contains NaN"),
    ]:
        with pytest.raises((ValueError, TypeError), match=words):
            model.fit(X, label)
    for wrong in (0.0, -1.0):
        with pytest.raises(ValueError, match="epsilon"):
            clone(model).set_params(epsilon=wrong).fit(blocks, y)
    assert not (tmp_path / "labels.json").exists()


@pytest.mark.slow
def test_two_organisations_learn_what_neither_could_alone_and_labels_pay(tmp_path):
    blocks, y = _rows(6000, 0)
    new, truth = _rows(4000, 1)
    model = sv.PrivateColumnsClassifier(1.0, random_state=0, path=tmp_path / "labels").fit(blocks, y)
    assert model.score(new, truth) > 0.9  # chance is 0.5, one organisation alone 0.75
    report = model.privacy_
    assert (report.epsilon, report.delta, report.unit, report.adjacency) == (1.0, 0.0, "label", "replace-one")
    assert any("class list was read" in line for line in report.caveats)
    assert any("features" in line for line in report.caveats)
    assert any("simulated noise" in line for line in report.caveats)
    with pytest.raises(ValueError, match=r"\[2\] columns, those of fit had \[2, 3\]"):
        model.predict(new[:1])
    # The labels that it learns from are randomised: so small an epsilon leaves nothing to learn.
    blind = clone(model).set_params(epsilon=3e-4, path=None).fit(blocks, y)
    assert blind.score(new, truth) < 0.8
    # The same draws cost nothing more; others would be refused.
    again = clone(model).set_params(budget=sv.Budget(1.0, 0.0, "replace-one"))
    assert again.fit(blocks, y).privacy_.epsilon == 1.0
    with pytest.raises(sv.privacy.BudgetExceeded):
        again.set_params(epsilon=0.5).fit(blocks, y)
