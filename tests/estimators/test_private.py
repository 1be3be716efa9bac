"""Private estimators: parties, weights, sparse rows, pipelines, ledgers and choices."""

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import sottovoce as sv
from sottovoce.accounting.trace import remembered
from sottovoce.data.synthetic import logistic
from sottovoce.estimators import trials
from sottovoce.runtime import array
from sottovoce.runtime.lone_agent import programs_of

ROWS = logistic(3000, 4)
X, Y = ROWS["features"].astype(np.float64), ROWS["label"]
PARTIES = np.repeat(["north", "south", "pier"], [1500, 1000, 500])


@pytest.fixture(scope="module")
def fitted() -> sv.PrivateLogisticRegression:
    model = sv.PrivateLogisticRegression(epsilon=2.0, random_state=0, ledger=sv.Ledger())
    return model.fit(X, Y, parties=PARTIES)


def test_parties_spend_the_whole_budget_and_keep_their_names(fitted) -> None:
    assert fitted.privacy_.parties == ("north", "pier", "south")
    assert all(1.99 < epsilon <= 2.0 for epsilon in fitted.privacy_.per_agent)
    assert fitted.score(X, Y) > 0.8
    said = str(fitted.privacy_)
    assert "that one party holds" in said
    assert "must not be released" in said  # a given state is a simulation
    assert "network: complete, 3 parties, by default" in said
    assert len(fitted.plan_.why) == 3


def test_one_table_draws_exact_noise_and_sparse_rows_and_weights_are_used() -> None:
    wrong = np.arange(len(Y)) % 2 == 0
    labels = np.where(wrong, 1 - Y, Y)  # half of the labels are turned round, and have next to no weight
    weights = np.where(wrong, 0.01, 2.0)
    model = sv.PrivateLogisticRegression(epsilon=4.0, weight_bound=2.0, ledger=sv.Ledger())
    model.fit(sp.csr_array(X), labels, sample_weight=weights)
    assert model.score(X, Y) > 0.75
    assert model.privacy_.drawn == "exact"
    assert model.privacy_.epsilon <= 4.0


@pytest.mark.slow
def test_weights_of_classes_are_weights_of_their_rows() -> None:
    model = sv.PrivateLogisticRegression(epsilon=4.0, random_state=0, ledger=sv.Ledger())
    by_class = clone(model).set_params(class_weight={1: 3.0}).fit(X, Y)
    by_row = clone(model).set_params(weight_bound=3.0).fit(X, Y, sample_weight=np.where(Y == 1, 3.0, 1.0))
    np.testing.assert_array_equal(by_class.coef_, by_row.coef_)
    assert by_class.predict(X).mean() > clone(model).fit(X, Y).predict(X).mean() + 0.03
    assert by_class.privacy_.epsilon <= 4.0


def test_ledger_adds_up_fits_and_a_budget_refuses() -> None:
    model = sv.PrivateRidge(1.0, label_range=(0, 1), ledger=sv.Ledger(), budget=sv.Budget(1.2, 1e-5, "zero-out"))
    model.fit(X, Y)
    with pytest.raises(sv.privacy.BudgetExceeded):
        model.fit(X, Y)


def test_ridge_predicts_within_its_range(fitted) -> None:
    label = 40.0 + 20.0 * X[:, 0] + np.random.default_rng(0).normal(size=len(X))
    model = sv.PrivateRidge(epsilon=2.0, label_range=(0, 100), ledger=sv.Ledger()).fit(X, label)
    assert model.score(X, label) > 0.9 * (1 - 1 / np.var(label))
    assert "range was read" not in str(model.privacy_)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["worst-party", "worst-class", "auc"])
def test_min_max_objectives_learn(objective) -> None:
    model = sv.PrivateLogisticRegression(epsilon=4.0, objective=objective, random_state=0, ledger=sv.Ledger())
    model.fit(X, Y, parties=PARTIES)
    assert model.score(X, Y) > 0.75


@pytest.mark.slow
def test_parties_and_weights_are_routed_through_a_pipeline_and_a_grid_search() -> None:
    frame = {f"x{k}": X[:, k] for k in range(4)}
    columns = {name: {"range": (-2, 2)} for name in frame}
    pandas = pytest.importorskip("pandas")
    with sklearn.config_context(enable_metadata_routing=True):
        model = sv.PrivateLogisticRegression(epsilon=1.0, random_state=0, ledger=sv.Ledger())
        model.set_fit_request(parties=True, sample_weight=True).set_score_request(sample_weight=True)
        pipeline = make_pipeline(sv.DeclaredScaler(columns), model)
        search = GridSearchCV(pipeline, {"privatelogisticregression__epsilon": [1.0, 4.0]}, cv=2, refit=False)
        search.fit(pandas.DataFrame(frame), Y, parties=PARTIES, sample_weight=np.ones(len(Y)))
    assert search.cv_results_["mean_test_score"].max() > 0.75
    assert model.ledger.epsilon("south", 1e-5, "zero-out") > 5.0  # in both halves: four fits, added up
    assert 4.0 < model.ledger.epsilon("pier", 1e-5, "zero-out") < 4.5  # in one half: two fits


def test_a_comparison_without_privacy_in_a_ledger_stops_no_later_fit() -> None:
    """Every further fit spent its budget, and then ended in an error."""
    model = sv.PrivateRidge(label_range=(-1, 1), random_state=0, ledger=sv.Ledger())
    rows, label = np.zeros((20, 2)), np.zeros(20)
    model.set_params(epsilon=None).fit(rows, label)
    told = model.set_params(epsilon=1.0, delta=1e-3).fit(rows, label).privacy_
    assert any("together they cost epsilon infinite" in line for line in told.caveats)


def test_scores_that_are_no_numbers_never_win() -> None:
    """The bound is for the best trial in an order; a first trial without a score would stand for ever."""
    turns = iter([np.nan, 0.5, 0.7, np.nan, *[0.1] * 1000])
    found = sv.select({"a": lambda mu: 0}, lambda value, mu: next(turns), epsilon=2.0, trials=20, seed=0)
    assert found.score == 0.7


@pytest.mark.slow
def test_select_prefers_the_better_model_and_charges_the_choice() -> None:
    models = {
        "useful": sv.PrivateLogisticRegression(random_state=0, ledger=sv.Ledger()),
        "blind": sv.PrivateLogisticRegression(norm=1e-3, random_state=0, ledger=sv.Ledger()),
    }
    candidates, score = trials(models, X, Y, seed=0)
    assert score(candidates["useful"](2.0), 5.0) > 0.75
    cheap = {"good": lambda mu: 1.0, "bad": lambda mu: 0.0}
    ledger = sv.Ledger()
    found = sv.select(cheap, lambda value, mu: value, epsilon=2.0, trials=20, seed=0, ledger=ledger)
    assert found.name == "good"
    assert 1.99 < found.epsilon <= 2.0
    assert float(ledger.epsilon("all", 1e-5, "zero-out")) >= found.epsilon
    with pytest.raises(sv.privacy.BudgetExceeded):
        sv.select(cheap, lambda value, mu: value, epsilon=2.0, budget=sv.Budget(1.0, 1e-5), ledger=ledger)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (sv.PrivateLogisticRegression(classes=["0", "1"]), "lists texts, y holds numbers"),
        (sv.PrivateLogisticRegression(classes="01"), "give a list"),
        (sv.PrivateLogisticRegression(norm="1"), "norm is '1': give the largest"),
        (sv.PrivateLogisticRegression(objective="auc", prior="half"), "prior is 'half'"),
        (sv.PrivateLogisticRegression(epsilon="1"), "epsilon is '1': give a positive number"),
        (sv.PrivateLogisticRegression(delta=0.5), "at most 1/n"),
        (sv.PrivateLogisticRegression(objective="worst"), "choose 'mean'"),
        (sv.PrivateLogisticRegression(objective="worst-party"), "needs several parties"),
        (
            sv.PrivateLogisticRegression(class_weight="balanced"),
            "shares off private labels. Give weights, such as {0: 1",
        ),
        (sv.PrivateLogisticRegression(class_weight={2: 1.0}), "2, which is no class"),
        (sv.PrivateLogisticRegression(class_weight={0: -1.0}), "a number of 0 or more"),
        (sv.PrivateLogisticRegression(objective="auc", prior=0.5, class_weight={0: 1.0}), "for objective='mean'"),
        (sv.PrivateRidge(label_range=(1, 0)), "lowest and the highest"),
        (sv.PrivateRidge(label_range=(0, 1, 2)), "lowest and the highest"),
        (sv.PrivateRidge(label_range="01"), "lowest and the highest"),
        (sv.PrivateRidge(alpha=-1.0), "alpha is -1.0"),
        (sv.PrivateRidge(colluding=2), "set trust='sum'"),
    ],
)
def test_mistakes_say_what_to_do(model, words) -> None:
    with pytest.raises(ValueError, match=words):
        clone(model).set_params(ledger=sv.Ledger()).fit(X, Y)


def test_parties_and_weights_that_do_not_fit_are_named() -> None:
    model = sv.PrivateLogisticRegression(random_state=0, ledger=sv.Ledger())
    for parties in (PARTIES[:-1], np.stack([PARTIES, PARTIES], axis=1), "north"):
        with pytest.raises(ValueError, match=r"parties has the shape .* give one name per row"):
            model.fit(X, Y, parties=parties)
    with pytest.raises(ValueError, match="weight_bound is '2'"):
        clone(model).set_params(weight_bound="2").fit(X, Y, sample_weight=np.ones(len(Y)))
    with pytest.raises(ValueError, match="y holds texts"):
        sv.PrivateRidge(label_range=(0, 1), ledger=sv.Ledger()).fit(X, np.where(Y, "yes", "no"))
    with pytest.warns(UserWarning, match=r"some weights are below 0 .* or above weight_bound=1"):
        model.fit(X, Y, sample_weight=np.r_[-1.0, 5.0, np.ones(len(Y) - 2)])


def test_a_party_or_a_label_that_is_missing_stops_no_fit() -> None:
    model = sv.PrivateLogisticRegression(epsilon=4.0, classes=[0, 1], random_state=0, ledger=sv.Ledger())
    parties = np.where(np.arange(len(Y)) < 200, None, PARTIES.astype(object))
    labels = np.where(np.arange(len(Y)) % 3 == 0, 7, Y)
    with pytest.warns(UserWarning, match="^some labels are not in `classes`"):
        model.fit(X, labels, parties=parties)
    assert model.privacy_.parties == ("north", "other", "pier", "south")
    assert model.score(X, Y) > 0.75
    assert "7" not in "".join(model.privacy_.caveats)


def test_warnings_name_unscaled_rows_a_tiny_party_and_a_hopeless_budget() -> None:
    model = sv.PrivateLogisticRegression(epsilon=0.01, random_state=0, ledger=sv.Ledger())
    few = np.repeat(["north", "pier"], [len(Y) - 12, 12])
    with pytest.warns(UserWarning, match="base rate") as caught:
        model.fit(1000.0 * X, Y, parties=few)
    said = " ".join(str(one.message) for one in caught)
    for words in (
        "scale the features by declared ranges",
        "party pier holds 12",
        "BaseRate predicts the noisy base rate",
    ):
        assert words in said
    assert said.count("party pier holds 12") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", [sv.DeclaredScaler(), sv.PrivateRidge(), sv.PrivateLogisticRegression()], ids=lambda m: type(m).__name__
)
def test_scikit_learn_accepts_it(model) -> None:
    """Weights are the exception: a row of weight 0 is still counted, because the number of rows is public."""
    results = check_estimator(model, on_skip=None, on_fail=None)
    failed = {result["check_name"] for result in results if result["status"] == "failed"}
    assert all(name.startswith("check_sample_weight_equivalence") for name in failed)
    assert sum(result["status"] == "passed" for result in results) > 40


@pytest.mark.parametrize("seed", [0, None])
def test_fits_that_differ_in_seed_and_rows_alone_are_traced_and_compiled_once(seed):
    """Grid searches and repeated trials would otherwise spend nearly all of their time on compiling the same."""

    def fit(number):
        rows = np.random.default_rng(number).uniform(-0.5, 0.5, (400, 2))
        model = sv.PrivateLogisticRegression(
            epsilon=3.0, classes=[False, True], random_state=None if seed is None else number
        )
        return model.fit(rows, rows[:, 0] > 0).coef_

    first, counts = fit(0), []
    for number in (1, 2):
        counts.append([cached.cache_info().misses for cached in (remembered, array.compiled, programs_of)])
        assert not np.array_equal(fit(number), first)
    counts.append([cached.cache_info().misses for cached in (remembered, array.compiled, programs_of)])
    assert counts[0] == counts[1] == counts[2]
