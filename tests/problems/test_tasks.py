"""Tasks by name, and the linear ones against scikit-learn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

import sottovoce as sv
from sottovoce.optimisers import Momentum
from sottovoce.problems import tasks
from sottovoce.problems.tasks.metrics import auroc

SHAPE = tasks.Shape(features=(5,), classes=2, agents=3)


def test_unknown_task_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'logistic'"):
        tasks.get("logistik")


def test_registering_a_name_twice_is_an_error():
    with pytest.raises(ValueError, match="two tasks are called 'softmax'"):
        tasks.task("softmax")(lambda shape: None)


def test_logistic_refuses_many_classes():
    with pytest.raises(ValueError, match="use the task softmax"):
        tasks.get("logistic")(tasks.Shape((5,), classes=10, agents=1))


def test_negative_penalty_is_refused():
    with pytest.raises(ValueError, match="must not be negative"):
        tasks.get("softmax")(SHAPE, penalty=-1.0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), min_size=2, max_size=40))
@settings(max_examples=60, deadline=None)
def test_auroc_equals_scikit_learn(pairs):
    score, label = (np.resize(column, 40) for column in zip(*pairs))  # one shape: one compilation
    ours = float(auroc(jnp.asarray(score, float), jnp.asarray(label)))
    if len(set(label)) < 2:
        assert np.isnan(ours)
    else:
        assert ours == pytest.approx(roc_auc_score(label, score), abs=1e-6)


def test_auroc_of_scores_that_are_no_numbers_is_none():
    assert jnp.isnan(auroc(jnp.asarray([0.1, jnp.nan, 0.3]), jnp.asarray([0, 1, 1])))


@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_linear_tasks_reach_scikit_learns_optimum(name):
    records = sv.data.synthetic.logistic(300, 5, seed=1)
    built = tasks.get(name)(SHAPE, penalty=0.01)
    problem = built.problem
    result = sv.run(
        problem,
        [records],
        sv.methods.DpSgd(rate=Momentum(1.0, 0.9), gradient=sv.Release.open(), sampling=sv.Full()),
        steps=400,
        evaluate=built.metrics(records),
    )
    # penalty/2 |w|^2 + mean loss = (|w|^2/2 + C sum loss) / (C n); softmax over two classes halves the curvature
    strength = 1.0 / (0.01 * 300) * (1.0 if name == "logistic" else 2.0)
    oracle = LogisticRegression(C=strength, tol=1e-8).fit(records["features"], records["label"])
    chance = oracle.predict_proba(records["features"])
    ours = np.asarray(result.predict(records["features"]))
    np.testing.assert_allclose(ours if name == "logistic" else ours[:, 1], chance[:, 1], atol=2e-3)
    assert result.history["loss"][-1] == pytest.approx(log_loss(records["label"], chance), abs=1e-3)
    assert result.history["accuracy"][-1] == pytest.approx(
        oracle.score(records["features"], records["label"]), abs=0.01
    )


def test_pictures_are_flattened():
    built = tasks.get("softmax")(tasks.Shape((2, 3, 1), classes=4, agents=1))
    test = {"features": np.ones((7, 2, 3, 1), np.float32), "label": np.zeros(7, np.int32)}
    loss = built.problem.loss(built.problem.x0, jax.tree.map(lambda leaf: leaf[0], test))
    assert float(loss) == pytest.approx(np.log(4))
    assert float(built.metrics(test)(built.problem.x0)["loss"]) == pytest.approx(np.log(4))
