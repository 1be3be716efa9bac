"""A run file's runs and trials that differ in numbers alone are members of one program."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from sottovoce.experiments import planned, search, together
from sottovoce.experiments.execute import execute
from sottovoce.experiments.runfile import RunFile
from sottovoce.runtime import members

run = sys.modules["sottovoce.runtime.run"]

TEXT = """
[data]
name = "digits"
agents = 3
limit = 90
positive = [0, 1, 2, 3, 4]

[task]
name = "robust-logistic"
scale = 0.1

[network]
kind = "erdos-renyi"
p = 0.7

[method]
name = "DmHsgd"
rate_x = 0.5
rate_y = 0.01
sampling = "full"

[privacy]
enabled = false

[run]
steps = 6
seeds = [0, 1]
redraw = true

[search]
trials = 2
metric = "auroc"

[search.ranges]
"method.rate_x" = [0.1, 2.0]

[[column]]
name = "3 agents"

[[column]]
name = "p = 1"
network.p = 1.0
search.like = "3 agents"

[[variant]]
name = "DM-HSGD"

[[variant]]
name = "SGDA"
method = {name = "Sgda", rate_x = 0.2, rate_y = 0.01, sampling = "full"}
"""


def test_each_variant_is_in_each_column() -> None:
    cases = RunFile.parse(TEXT).cases
    assert list(cases) == ["DM-HSGD, 3 agents", "DM-HSGD, p = 1", "SGDA, 3 agents", "SGDA, p = 1"]
    other = cases["SGDA, p = 1"]
    assert (other.method.name, other.network.options, other.search.like) == ("Sgda", {"p": 1.0}, "SGDA, 3 agents")
    assert not other.search.ranges
    assert cases["SGDA, 3 agents"].search.ranges


def test_a_try_runs_two_columns_and_those_whose_settings_they_take() -> None:
    def column(name: str, like: str = "") -> str:
        taken = f'search.like = "{like}"\n' if like else ""
        return f'[[column]]\nname = "{name}"\ndata.agents = 3\n{taken}\n'

    more = column("first", like="fourth") + column("second") + column("third") + column("fourth")
    text = TEXT[: TEXT.index("[[column]]")] + more + TEXT[TEXT.index("[[variant]]") :]
    assert len(RunFile.parse(text).cases) == 8
    tried = list(RunFile.parse(text, scale="quick").cases)
    assert tried[:3] == ["DM-HSGD, first", "DM-HSGD, second", "DM-HSGD, fourth"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('like = "3 agents"', 'like = "4 agents"', "search.like of DM-HSGD, p = 1: there is no variant"),
        ('[[column]]\nname = "3 agents"', "[[column]]\ndata.agents = 3", "each of both a name"),
        ('name = "p = 1"\nnetwork.p', 'name = "p = 1"\nnetwrk.p', "key of [[column]] 'netwrk'"),
    ],
)
def test_says_what_is_wrong_with_columns(old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        RunFile.parse(TEXT.replace(old, new))
    assert message in str(caught.value)


@pytest.mark.slow
def test_a_file_runs_and_searches_side_by_side_to_the_figures_of_runs_alone(tmp_path, monkeypatch) -> None:
    pieces = []
    of = members.Members.__init__
    monkeypatch.setattr(
        members.Members, "__init__", lambda self, places: (pieces.append(len(places)), of(self, places))[1]
    )
    runfile = RunFile.parse(TEXT)
    made = execute(runfile, tmp_path / "beside")
    assert sorted(pieces) == [2, 2, 4, 4]  # two trials of each search; two columns with two seeds of each variant
    assert made.rows[0].settings == made.rows[1].settings
    assert "method.rate_x" in made.rows[0].settings
    monkeypatch.setattr(run, "form", lambda place: None)
    alone = execute(runfile, tmp_path / "alone")
    assert set(pieces[4:]) == {1}
    for row, other in zip(made.rows, alone.rows, strict=True):
        assert row.settings == other.settings
        for one, same in zip(row.runs, other.runs, strict=True):
            # two test rows whose scores are equal but for the last bits are 2e-5 of an area
            np.testing.assert_allclose(one.history["auroc/agents"], same.history["auroc/agents"], atol=1e-4)


@pytest.mark.slow
def test_a_run_that_diverges_is_left_out_and_the_others_are_reported(tmp_path) -> None:
    text = (
        TEXT.split("[search]", maxsplit=1)[0]
        + '[[variant]]\nname = "near"\n\n[[variant]]\nname = "far"\nmethod.rate_x = 1e38\n'
    )
    said: list[str] = []
    made = execute(RunFile.parse(text), tmp_path, say=said.append)
    assert {row.name: len(row.runs) for row in made.rows} == {"near": 2}
    assert sum(line.startswith("left out: far, seed") for line in said) == 2


def test_a_trial_whose_score_is_not_finite_is_not_chosen(monkeypatch) -> None:
    def ends(runs):
        for number, (_, seed, _) in enumerate(runs):
            score = float("nan") if number % 2 == 0 else 0.5 + seed * 0
            yield number, SimpleNamespace(history={"auroc": np.array([score])})

    monkeypatch.setattr(together, "as_they_end", ends)
    row = planned.plan(RunFile.parse(TEXT))[0]
    tried = search.settings_of(row.case, row.name)
    assert list(search.scores(row, row.case.search, tried)) == [None, 0.5]


def test_what_ends_later_is_scored_in_turn(monkeypatch) -> None:
    def ends(runs):
        runs = list(runs)
        for number in (2, 0, 1):
            yield number, SimpleNamespace(history={"auroc": np.array([0.1 * number])})
        assert len(runs) == 3

    monkeypatch.setattr(together, "as_they_end", ends)
    row = planned.plan(RunFile.parse(TEXT.replace("trials = 2", "trials = 3")))[0]
    tried = search.settings_of(row.case, row.name)
    assert list(search.scores(row, row.case.search, tried)) == pytest.approx([0.0, 0.1, 0.2])
