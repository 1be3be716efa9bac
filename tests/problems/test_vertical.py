"""Vertical problems: parties' outputs add up, and predictions do not depend on batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.data.columns import Columns, split_columns
from sottovoce.problems.tasks.vertical import (
    hyper_parameters,
    hyper_representation,
    judged_on,
    probabilities,
    regressors,
)
from sottovoce.problems.vertical import Vertical, cross_entropy


def test_one_party_with_all_columns_equals_two_with_half_each_for_a_linear_model() -> None:
    features = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    weights = np.random.default_rng(1).normal(size=(4, 1)).astype(np.float32)
    whole, halves = hyper_parameters([4]), hyper_parameters([2, 2])
    one = whole.scores(whole.x0, [{"weights": weights, "bias": jnp.ones(1)}], [features])
    y = [{"weights": w, "bias": b} for w, b in zip(np.split(weights, 2), ([1.0], [0.0]))]
    y = jax.tree.map(jnp.asarray, y, is_leaf=lambda leaf: isinstance(leaf, list) and not isinstance(leaf[0], dict))
    two = halves.scores(halves.x0, y, split_columns(features, 2))
    assert two == pytest.approx(np.asarray(one), rel=1e-5)


def test_regressors_score_as_a_logistic_regression_on_all_columns() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(6, 5)).astype(np.float32)
    problem = regressors([2, 3])
    x = [{"weights": rng.normal(size=(width, 1)).astype(np.float32), "bias": np.ones(1)} for width in (2, 3)]
    wanted = features @ np.concatenate([own["weights"] for own in x]) + 2
    assert problem.scores(x, problem.y0, [features[:, :2], features[:, 2:]]) == pytest.approx(wanted, rel=1e-5)


def test_parties_may_have_networks_of_their_own() -> None:
    problem = Vertical(
        embed=[lambda x, a: a @ x, lambda x, a: jnp.tanh(a) * x],
        head=[lambda y, e: e @ y, lambda y, e: e[:, :1] * y],
        losses=cross_entropy,
        x0=[jnp.ones((2, 3)), jnp.ones(())],
        y0=[jnp.ones((3, 4)), jnp.ones(4)],
    )
    blocks = [jnp.ones((5, 2)), jnp.zeros((5, 6))]
    assert problem.scores(problem.x0, problem.y0, blocks) == pytest.approx(6 * np.ones((5, 4)))


def test_predictions_do_not_depend_on_the_batch_they_come_in() -> None:
    problem = hyper_representation([3, 2], classes=4, hidden=(5,))
    rng = np.random.default_rng(0)
    blocks = [rng.normal(size=(11, width)).astype(np.float32) for width in (3, 2)]
    y = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), problem.y0)
    small, large = (probabilities(problem, problem.x0, y, Columns(blocks), batch=batch) for batch in (4, 100))
    assert small == pytest.approx(large, abs=1e-6)
    assert small.sum(axis=1) == pytest.approx(np.ones(11), abs=1e-5)
    label = large.argmax(axis=1)
    label[:3] = (label[:3] + 1) % 4
    assert float(judged_on(problem, blocks, label, batch=4)(problem.x0, y)["accuracy"]) == pytest.approx(8 / 11)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Vertical(len, len, cross_entropy, [1], []), "one of each"),  # type: ignore[arg-type]
        (lambda: hyper_parameters([2], start=-1.0, coefficient="plain"), "starts positive"),
        (lambda: Vertical([len], len, cross_entropy, [1, 2], [1, 2]), "one each"),  # type: ignore[list-item]
    ],
)
def test_errors_say_what_to_do(wrong: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()  # type: ignore[operator]
