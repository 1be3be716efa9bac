"""The table [select] of run files: one variant is chosen by a private score, and the statement covers the choice."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from sottovoce.cli import app
from sottovoce.data.parts import Part
from sottovoce.experiments import planned
from sottovoce.experiments.choice import Judges, choose
from sottovoce.experiments.runfile import RunFile
from sottovoce.privacy.gdp import gdp_mu
from sottovoce.privacy.selection import PoissonTrials, epsilon_of
from sottovoce.problems.tasks.metrics import auroc

FILE = """
title = "chosen"
privacy.epsilon = 4.0
data = {name = "logistic", n = 1500, dim = 3, agents = 1}
task.name = "logistic"
method = {name = "DpSgd", rate = 2.0, sampling = "full", gradient = {clip = 1.0}}
run.steps = 6
select.metric = "auroc"
[[variant]]
name = "towards"
[[variant]]
name = "away"
method.rate = 1e-9
[[variant]]
name = "hardly"
method.rate = 1e-8
"""


def test_a_trial_is_given_what_random_stopping_leaves_of_epsilon():
    """The noise of the method that is built, not the statement alone, must pay for six trials."""
    made = planned.setups(RunFile.parse(FILE))["towards"]
    release = made.method.gradient  # a mean over 960 rows: one row moves a sum of clip / 960, six times
    rows = len(made.parts[0])
    assert (rows, len(made.judges)) == (960, 240)
    assert not set(made.parts[0].rows) & set(made.judges.part.rows)
    mu = np.sqrt(6) * release.clip / rows / release.noise(0)
    assert epsilon_of(mu, PoissonTrials(6), 1e-5) == pytest.approx(4.0, rel=1e-3)
    assert made.account.epsilon == pytest.approx(4.0, rel=1e-4)
    assert mu < 0.8 * gdp_mu(4.0, 1e-5)


def test_a_score_moves_by_at_most_one_row_and_orders_models_as_its_metric():
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 40)
    guesses = [np.clip(label * 0.3 + rng.normal(0.3, spread, 40), 0, 1) for spread in (0.1, 0.3, 0.9)]
    judges = Judges(Part({"label": label}, np.arange(40)), "auroc")
    one, zero = label.sum(), 40 - label.sum()
    for guess in guesses:
        expected = one * zero * (2 * float(auroc(guess, label)) - 1) / 40
        assert judges.total(guess) == pytest.approx(expected, abs=1e-3)
    for metric in ("accuracy", "auroc"):
        judges = Judges(Part({"label": label}, np.arange(40)), metric)
        whole = judges.total(guesses[0])
        without = [judges.total(np.where(np.arange(40) == row, np.nan, guesses[0])) for row in range(40)]
        assert 0.3 < np.max(np.abs(whole - np.array(without))) <= 1


def test_the_noise_of_a_score_hides_one_row():
    """400 scores of one model: their deviation is 1 / (n mu)."""
    records = {"features": np.zeros((50, 1)), "label": np.zeros(50, int)}

    class Model:
        def predict(self, features):
            return np.zeros(len(features))

    rng = np.random.default_rng(0)
    judges = Judges(Part(records, np.arange(50)), "accuracy")
    seen = [judges.score(Model(), 0.5, rng) for _ in range(400)]
    assert np.mean(seen) == pytest.approx(1.0, abs=5 * 0.04 / 20)
    assert np.std(seen) == pytest.approx(0.04, rel=0.15)


class Stub:
    """A variant that answers a share of the rows rightly; each training is counted."""

    def __init__(self, built, right, seeds):
        self.case, self.judges, self.right, self.seeds = built.case, built.judges, right, seeds

    def run(self, seed):
        self.seeds.append(seed)
        label = np.asarray(self.judges.part.records["label"])[self.judges.part.rows]
        wrong = np.arange(len(label)) >= self.right * len(label)
        return Stub.Model(np.where(wrong, 1 - label, label))

    class Model:
        def __init__(self, guessed):
            self.guessed = guessed

        def predict(self, features):
            return self.guessed


def test_the_variant_with_the_best_score_is_chosen_with_fresh_noise_in_each_trial():
    built, seeds = planned.setups(RunFile.parse(FILE, ["select.metric='accuracy'"])), []
    stubs = {name: Stub(built[name], right, seeds) for name, right in zip(built, (0.6, 0.9, 0.7), strict=True)}
    found = choose(stubs, 4.0, say=lambda line: None)
    assert found.name == "away"
    assert len(set(seeds)) == len(seeds) > 1
    with pytest.raises(ValueError, match="number of trials was 0, or all of them diverged"):
        choose({name: Diverging(stub, 0.5, seeds) for name, stub in stubs.items()}, 4.0, say=lambda line: None)


class Diverging(Stub):
    def run(self, seed):
        raise FloatingPointError("nan")


def invoked(*words):
    found = CliRunner().invoke(app, list(words))
    assert found.exit_code == 0, (found.output, found.exception)
    return re.sub(r"\s+", " ", found.output)


def test_check_shows_what_the_choice_costs(tmp_path):
    (tmp_path / "mine.toml").write_text(FILE)
    said = invoked("check", str(tmp_path / "mine.toml"))
    assert "random, secret number of trials (6 on average" in said
    assert "epsilon 4 at delta 1e-05" in said


@pytest.mark.slow
def test_the_best_variant_is_stored_alone_with_what_the_choice_cost(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(FILE)
    invoked("run", "mine.toml")
    out = tmp_path / "runs" / "mine"
    assert [path.parent.parent.name for path in out.rglob("result.json")] == ["towards"]
    stored = json.loads((out / "towards" / "0" / "result.json").read_text())["privacy"]
    assert stored["epsilon"] == pytest.approx(4.0, rel=1e-4)
    assert stored["accountant"].startswith("random stopping")
    report = (out / "report.html").read_text()
    assert "towards, chosen among towards, away, hardly" in report
    assert "not counted here" not in report


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["select.metric=f1"], "select.metric"),
        (["data.agents=2"], "2 parties see each other's"),
        (["method.sampling={kind='poisson', batch=50.0}", "run.steps=1"], "un-sampled Gaussian"),
        (["run.seeds=[0, 1]"], "several seeds"),
        (["privacy.epsilon=0.001"], "Use fewer trials, or a larger epsilon"),
        (["privacy.enabled=false"], "set privacy.epsilon"),
        (["compare.pooled=true"], "remove [compare]"),
        (["data.upper=0.2"], "data.upper"),
        (["privacy.adjacency='replace-one'"], "zero-out"),
        (["task.name='softmax'"], "there is no metric 'auroc'"),
    ],
)
def test_what_cannot_be_chosen_among_is_refused_in_a_sentence(change, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        planned.plan(RunFile.parse(FILE, change))


def test_variants_must_share_the_budget_and_be_several():
    with pytest.raises(ValueError, match="share one budget"):
        planned.plan(RunFile.parse(FILE + "privacy.epsilon = 1.0"))
    with pytest.raises(ValueError, match="there is one"):
        planned.plan(RunFile.parse(FILE.partition("[[variant]]")[0]))
