"""Run files for tables split by columns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from sottovoce.experiments.columns import apart, records
from sottovoce.experiments.execute import execute
from sottovoce.experiments.planned import plan, setup
from sottovoce.experiments.redraw import redrawn
from sottovoce.experiments.runfile import RunFile
from sottovoce.experiments.schema import Case
from sottovoce.experiments.search import trial_setup
from sottovoce.laboratory import reproduce
from sottovoce.optimisers import Adam
from sottovoce.privacy.label_values import Memo
from sottovoce.privacy.labels import Fresh, Labels, Memoised, Open
from sottovoce.reports import load, render
from sottovoce.schedules import Linear

TINY = """
title = "columns"

[data]
name = "digits"
limit = 300

[columns]
parties = 2

[task]
name = "vertical-representation"
hidden = [4]
shift = 1
line = 8

[method]
name = "Bambi"
inner_steps = 1
batch = 50
rate_x = {rate = {start = 0.1, stop = 0.0, steps = 4}, decay = 0.1}
rate_y = 0.1

[run]
steps = 4
every = 2

[privacy]
epsilon = 2.0
"""


def _case(*sets: str) -> Case:
    return RunFile.parse(TINY, sets).cases["Bambi"]


def test_tables_become_what_they_name() -> None:
    made: Any = setup(_case())
    assert made.method.labels == Memoised(2.0)
    assert made.method.rate_x == Adam(Linear(0.1, 0.0, steps=4), 0.1)
    assert [block.shape for block in made.held.columns.blocks] == [(300, 32), (300, 32)]
    assert made.account.epsilon == 2.0
    assert made.account.unit == "label"
    assert setup(_case("privacy.enabled=false")).method.labels == Open()
    text = TINY.replace("[privacy]\nepsilon = 2.0", "") + '\n[method.labels]\nkind = "fresh"\nscale = 3.0\n'
    assert setup(RunFile.parse(text).cases["Bambi"]).method.labels == Fresh(3.0)


def test_levels_held_out_records_and_scaling() -> None:
    made: Any = setup(_case("columns.test=0.25", "columns.unit=true", "data.upper=0.5"))
    columns, test = made.held.columns, made.held.test
    assert len(columns) + len(test["label"]) == 300 + 359
    assert len(test["label"]) == 659 // 4
    assert not set(columns.upper) & set(columns.lower)
    norms = np.linalg.norm(columns.blocks[0], axis=1)
    assert norms[norms > 0] == pytest.approx(1.0, rel=1e-5)


def test_a_search_reads_no_record_that_a_reported_seed_is_tested_on() -> None:
    sets = ["run.redraw=true", "columns.test=0.25", "run.seeds=[0, 1]", "search.trials=2", "data.limit=1000"]
    case = _case(*sets)
    assert case.search is not None
    made: Any = trial_setup(case, "together", case.search, seed=1000)

    def rows(blocks: Any) -> set[bytes]:
        return {row.tobytes() for row in np.concatenate(blocks, axis=1)}

    read = rows(made.held.columns.blocks) | rows(made.held.test["blocks"])
    for seed in case.run.seeds:
        reported: Any = setup(redrawn(case, seed))
        assert not read & rows(reported.held.test["blocks"])
    free = case.model_copy(update={"search": None})  # nothing is chosen: seeds redraw their test rows too
    first, second = (rows(records(redrawn(free, seed)).test["blocks"]) for seed in case.run.seeds)
    assert first != second


@pytest.mark.parametrize(("question", "grouped"), [("groups", True), ("classes", False)])
def test_a_file_says_what_is_asked_about_a_label(question: str, grouped: bool, monkeypatch: Any) -> None:
    drawn, memo = [], Labels.memo

    def draw(self: Labels, *args: Any) -> Memo:
        drawn.append(memo(self, *args))
        return drawn[-1]

    monkeypatch.setattr(Labels, "memo", draw)
    result = setup(_case(f"columns.question={question}", "run.steps=1", "run.every=1")).run(0)
    assert result.privacy.epsilon == 2.0
    answers = {count for memo in drawn for count in memo.answers.tolist()} - {0}
    assert (max(answers) < 10) is grouped
    assert answers == {10} or grouped


@pytest.mark.slow
def test_stages_and_the_twin_side_by_side(tmp_path: Path) -> None:
    text = TINY.replace("[privacy]\nepsilon = 2.0", "") + (
        '[[variant]]\nname = "private"\nprivacy.epsilon = 2.0\ncolumns = {stages = 2, models = 1}\n'
        '[[variant]]\nname = "open"\nprivacy.enabled = false\ncompare.pooled = true\n'
    )
    found = execute(RunFile.parse(text), tmp_path)
    assert [(row.name, row.kind) for row in found.rows] == [
        ("private", "together"),
        ("open", "together"),
        ("pooled, no privacy", "pooled"),
    ]
    private, federated, twin = (row.runs[0] for row in found.rows)
    assert private.privacy.epsilon == 2.0
    assert private.history["step"].tolist() == [4, 8]
    assert private.history["bytes up"][-1] == 2 * federated.history["bytes up"][-1]
    assert federated.history["loss"] == pytest.approx(twin.history["loss"], rel=1e-3)
    page = render(found)
    assert "sent by all, kB" in page
    assert '<th scope="col">columns</th>' in page
    assert "features are not covered" in page


@pytest.mark.slow
def test_a_stopped_experiment_goes_on(tmp_path: Path, stopped_at_first_save: Any) -> None:
    with stopped_at_first_save():
        execute(RunFile.parse(TINY), tmp_path)
    with pytest.raises(ValueError, match="is finished"):
        load(tmp_path)
    assert execute(RunFile.parse(TINY), tmp_path, resume=True).rows[0].runs[0].history["step"].tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["columns.partys=2"], r"no key of \[columns\] 'partys'; did you mean 'parties'"),
        (["task.hiden=[3]"], "did you mean 'hidden'"),
        (["task.seed=3"], r"no key of \[task\] 'seed'"),
        (["method.bach=3"], "did you mean 'batch'"),
        (["method.rate_x=fast"], r"\[method\].rate_x is 'fast'"),
        (["data.agents=3"], "data.agents has no effect"),
        (["run.devices=2"], "run.devices has no effect"),
        (["network.kind=ring"], "network has no effect"),
        (["method.name=DpSgd"], "no method for"),
        (["task.name=softmax", "task.hidden=[]"], "hidden"),
        (["data.name=heterogeneous"], "one data set per party"),
        (["method.labels=open"], "both say how labels"),
        (["privacy.budget=1"], "more than privacy.budget"),
        (["columns.parties=65"], "65 parties for 64 columns"),
        (["columns.question=classes", "columns.stages=2"], "is for one stage and one model"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(sets: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(RunFile.parse(TINY, sets))


def test_what_does_not_go_together() -> None:
    with pytest.raises(ValueError, match="nothing says how labels are hidden"):
        setup(RunFile.parse(TINY.replace("epsilon = 2.0", "")).cases["Bambi"])
    with pytest.raises(ValueError, match=r"add \[columns\]"):
        setup(RunFile.parse(TINY.replace("[columns]\nparties = 2", "")).cases["Bambi"])
    rows = TINY.replace('name = "vertical-representation"\nhidden = [4]\nshift = 1\nline = 8', 'name = "softmax"')
    with pytest.raises(ValueError, match="choose one of vertical-coefficients, vertical-regressor, vertical-repr"):
        setup(RunFile.parse(rows).cases["Bambi"])
    with pytest.raises(ValueError, match=r"compare\.alone"):
        plan(RunFile.parse(TINY, ["compare.alone=true"]))
    assert setup(_case()).method.releases() == []
    with pytest.raises(ValueError, match="two classes, not 10"):
        setup(RunFile.parse(rows.replace("softmax", "vertical-coefficients")).cases["Bambi"])


@pytest.mark.slow
@pytest.mark.data("20news")
def test_all_columns_of_20_newsgroups_sparse_and_federated_equal_the_twin(tmp_path: Path) -> None:
    small = ["run.steps=5", "method.inner_steps=20", "method.batch=500"]
    file = RunFile.load(reproduce.find("bambi/news20"), sets=small)
    federated: Any = setup(file.cases["problem 2, no privacy"])
    assert all(sp.issparse(block) for block in federated.held.columns.blocks)
    assert sum(block.shape[1] for block in federated.held.columns.blocks) == 130_107
    one, other = (made.run(0).history["accuracy"][-1] for made in (federated, federated.pooled()))
    assert one == pytest.approx(other, abs=0.005)
    assert one > 0.92


def test_rows_for_a_search_come_from_both_levels() -> None:
    held = records(_case("data.upper=0.1", "data.seed=1000"))
    kept = apart(held, 0.2, 1000)
    assert 0 < len(kept.columns.upper) < len(held.columns.upper)
    assert not np.isin(kept.columns.upper, kept.columns.lower).any()
    assert len(kept.columns.upper) + len(kept.columns.lower) + len(kept.test["label"]) == len(held.label)


@pytest.mark.slow
def test_training_metrics_are_those_of_true_labels_of_lower_rows() -> None:
    made: Any = setup(_case("run.train=50"))
    judged = made.judge(task := made.task(0))(task.problem.x0, task.problem.y0)
    assert set(judged) == {"accuracy", "loss", "train accuracy", "train loss"}
    rows = made.held.columns.lower
    whole = {"blocks": [block[rows] for block in made.held.columns.blocks], "label": made.held.label[rows]}
    made = setup(_case(f"run.train={len(rows)}"))
    every, wanted = (judge(task.problem.x0, task.problem.y0) for judge in (made.judge(task), task.metrics(whole)))
    assert float(every["train loss"]) == pytest.approx(float(wanted["loss"]))
