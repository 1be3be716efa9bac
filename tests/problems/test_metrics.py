"""What test rows are judged by, beside scikit-learn's own figures."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, log_loss, roc_auc_score

from sottovoce.problems.tasks import metrics


@pytest.mark.parametrize("classes", [2, 4])
def test_figures_of_chances_are_those_of_another_library(classes):
    rng = np.random.default_rng(0)
    chance = rng.dirichlet(np.arange(1, classes + 1), 600).astype(np.float32)
    label = np.array([rng.choice(classes, p=row / row.sum()) for row in chance.astype(float)])
    found = metrics.of_chances(jnp.asarray(chance[:, 1] if classes == 2 else chance), jnp.asarray(label))
    expected = {"auroc": roc_auc_score(label, chance[:, 1] if classes == 2 else chance, multi_class="ovr")}
    expected["log loss"] = log_loss(label, chance.astype(float))
    if classes > 2:
        expected["balanced accuracy"] = balanced_accuracy_score(label, chance.argmax(axis=1))
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(value, rel=1e-4), name


def test_calibration_is_zero_for_chances_that_are_right_and_says_by_how_much_others_are_off():
    rng = np.random.default_rng(0)
    chance = rng.uniform(0.2, 0.8, 40_000)
    happened = rng.uniform(size=40_000) < chance
    off = [float(metrics.calibration_error(jnp.asarray(chance + by), jnp.asarray(happened))) for by in (0.0, 0.1, -0.2)]
    np.testing.assert_allclose(off, [0.0, 0.1, 0.2], atol=0.012)


def test_a_class_that_no_row_has_is_left_out_of_means():
    chance = jnp.asarray([[0.7, 0.2, 0.1], [0.2, 0.7, 0.1], [0.6, 0.3, 0.1]])
    found = metrics.of_chances(chance, jnp.asarray([0, 1, 0]))
    assert (float(found["auroc"]), float(found["balanced accuracy"])) == (1.0, 1.0)
