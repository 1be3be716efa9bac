"""Attacks on a choice among candidates: what its scores, its ledger and its statement tell."""

import warnings
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.pipeline import Pipeline

import sottovoce as sv
from sottovoce.estimators.choosing import trials
from sottovoce.tuning.select import GeometricTrials

RNG = np.random.default_rng(0)
X = RNG.uniform(-0.5, 0.5, size=(400, 2))
Y = X[:, 0] + 0.1 * RNG.normal(size=400)
MODELS = {"a": sv.PrivateRidge(label_range=(-1, 1), random_state=0)}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_label_that_is_not_finite_is_seen_before_rows_are_split(value):
    """Among the rows for scores it made every score nan: an epsilon of 3 was stated, and the record showed."""
    wrong = Y.copy()
    wrong[np.random.default_rng(3).permutation(400)[0]] = value  # one of the rows for scores
    with pytest.raises(ValueError, match=r"contains NaN|infinity"):
        trials(MODELS, X, wrong, seed=3)
    inputs = X.copy()
    inputs[np.random.default_rng(3).permutation(400)[0], 0] = value
    with pytest.raises(ValueError, match=r"contains NaN|infinity"):
        trials(MODELS, inputs, Y, seed=3)


def test_a_score_that_is_no_number_never_wins():
    """It stayed the best if it came first, and never was if it came later: no order, so no bound."""
    scores = iter([np.nan, 0.5, np.nan, 0.2] * 50)
    found = sv.select({"a": lambda mu: mu}, lambda model, mu: next(scores), epsilon=3.0, trials=8, seed=1)
    assert found.score == 0.5


def test_the_ledger_does_not_tell_the_number_of_trials():
    ledger = sv.Ledger()
    candidates, score = trials({"a": sv.PrivateRidge(label_range=(-1, 1), random_state=0, ledger=ledger)}, X, Y, seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one for each further fit on the same rows would tell it as well
        sv.select(candidates, score, epsilon=3.0, seed=1, trials=4, ledger=ledger)
    assert len(ledger.entries) == 1


def test_a_choice_with_a_seed_says_that_its_number_of_trials_is_no_secret():
    chosen = {seed: sv.select({"a": lambda mu: 0}, lambda _, mu: 0.0, epsilon=3.0, seed=seed) for seed in (None, 1)}
    assert "knows the seed knows the number of trials" in chosen[1].statement
    assert "seed" not in chosen[None].statement


def test_a_model_that_was_chosen_has_the_epsilon_of_the_choice():
    """It kept that of its own training: saved, its card said that it may be handed out, at 0.66 in place of 1."""
    seeds = {"nobody": None, "the scores": 3}
    for who, seed in seeds.items():
        candidates, score = trials({"a": sv.PrivateRidge(label_range=(-1, 1))}, X, Y, delta=1e-5, seed=seed)
        found = sv.select(candidates, score, epsilon=3.0, delta=1e-6, trials=1.01, stopping=GeometricTrials)
        stated = found.output.privacy_
        assert (stated.epsilon, stated.delta) == (found.epsilon, 1e-6)
        assert 2.9 < stated.epsilon <= 3.0
        assert stated.power()[0][1] > 1e-3 * np.exp(2.9)  # no gain of a single training is left
        assert any("secret number of trials" in line for line in stated.events)
        assert found.seeded is ("simulated" in found.statement) is (who != "nobody")
        assert found.output.travelling([]).result.releasable is (who == "nobody")
        assert stated.drawn == ("exact" if who == "nobody" else "simulated")


def test_a_result_or_a_pipeline_that_was_chosen_has_the_epsilon_of_the_choice():
    problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(2))
    method = sv.methods.DpSgd(0.1, sv.Release(1.0, 0.1), sv.Full())
    result = sv.run(problem, [X.astype(np.float32)], method, steps=1)
    last, told = SimpleNamespace(), []
    last.become_chosen = lambda *given: told.append(given)
    given = {"result": result, "pipeline": Pipeline([("model", last)])}
    how = {"epsilon": 3.0, "trials": 1.01, "stopping": GeometricTrials}
    found = {name: sv.select({"a": lambda mu, g=g: g}, lambda *_: 0.0, **how) for name, g in given.items()}
    assert result.privacy.epsilon < found["result"].output.privacy.epsilon == found["result"].epsilon
    assert [(epsilon, delta, seeded) for epsilon, delta, _, seeded in told] == [
        (found["pipeline"].epsilon, 1e-5, False)
    ]
