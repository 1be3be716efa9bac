"""Run files with one's own table: from a CSV to a report, a model and predictions."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

import sottovoce as sv
from sottovoce.cli import app
from sottovoce.experiments import execute
from sottovoce.experiments.runfile import RunFile

ROWS = 600
FILE = """
title = "clinics"
method = {name = "DpSgd", rate = 2.0, sampling = "full", gradient = {clip = 1.0}}
run.steps = 20
run.metric = "auroc"
privacy.epsilon = 4.0
[data]
file = "patients.csv"
label = "sick"
party = "clinic"
[data.columns]
age = {range = [20, 100]}
sex = {categories = ["F", "M"]}
sick = {categories = {0 = "well", 1 = "ill"}}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    age, sex = rng.uniform(20, 100, ROWS), rng.choice(["F", "M"], ROWS)
    sick = (age / 40 + (sex == "M") + rng.normal(0, 0.4, ROWS) > 2).astype(int)
    clinic = np.array(["north", "south"])[(rng.uniform(size=ROWS) < 0.3).astype(int)]
    lines = [f"{a:.1f},{s},{y},{c}" for a, s, y, c in zip(age, sex, sick, clinic)]
    lines[3], lines[5] = "SECRETVALUE,F,0,north", "55,M,SECRETLABEL,south"
    (tmp_path / "patients.csv").write_text("\n".join(["age,sex,sick,clinic", *lines]))
    (tmp_path / "mine.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(*words):
    found = CliRunner().invoke(app, list(words))
    assert found.exit_code == 0, (found.output, found.exception)
    return re.sub(r"\s+", " ", found.output)


def test_check_says_what_each_party_pays_and_what_set_replaced(folder):
    checked = said("check", "mine.toml", "--set", "run.steps=12")
    public = "names and sizes of the 2 parties in column clinic"
    for words in ("run.steps = 12 (was 20)", "complete graph of 2", "north", "south", public, "Nothing was run"):
        assert words in checked


@pytest.mark.slow
def test_from_a_csv_to_a_report_a_model_and_predictions(folder):
    assert said("run", "mine.toml", "--set", "run.steps=12")
    run = folder / "runs" / "mine" / "DpSgd" / "0"
    result = json.loads((run / "result.json").read_text())
    assert result["privacy"]["parties"] == ["north", "south"]
    assert result["history"]["auroc"][-1] > 0.8
    report = (folder / "runs" / "mine" / "report.html").read_text()
    assert "complete graph of 2" in report
    assert "north" in report
    assert any("held-out rows" in line for line in result["privacy"]["caveats"])
    for path in (folder / "runs").rglob("*"):  # what did not fit is shown to the holder of the rows only
        if path.is_file():
            assert b"SECRET" not in path.read_bytes(), path
            assert b"do not fit" not in path.read_bytes(), path
    (folder / "new.csv").write_text("sex,age\nM,95\nF,21\n")
    said("predict", str(run), "new.csv", "--out", "out.csv")
    lines = (folder / "out.csv").read_text().splitlines()
    assert lines[0] == "sick,sick=well,sick=ill"
    assert [line.split(",")[0] for line in lines[1:]] == ["ill", "well"]
    again = sv.load(run).probabilities({"age": [95, 21], "sex": ["M", "F"]})
    np.testing.assert_allclose([float(line.split(",")[2]) for line in lines[1:]], again[:, 1], rtol=1e-4)


def test_groups_and_two_organisations_are_set_up_from_ones_own_table(folder):
    own = FILE.replace(FILE.split("\n")[2], 'method = "auto"').replace("run.steps = 20\n", "")
    robust = 'task.name = "robust-logistic"\n'
    made = execute.setup(next(iter(RunFile.parse(robust + own).cases.values())))
    assert made.problem.y0.shape == (2,)
    assert made.account.epsilon <= 4.0
    assert len(made.why) == 3
    auc = ('task.name = "auc"\n' + own).replace('party = "clinic"', 'share = "public"')
    made = execute.setup(next(iter(RunFile.parse(auc).cases.values())))
    assert any("share of class ill" in line for line in made.account.caveats)
    columns = own.replace('party = "clinic"', "") + "\n[columns.holders]\nbank = ['age']\nclub = ['sex']\n"
    made = execute.setup(next(iter(RunFile.parse(columns, ["run.metric=accuracy"]).cases.values())))
    assert [block.shape for block in made.data.columns.blocks] == [(480, 1), (480, 3)]
    assert made.account.epsilon == 4.0
    assert any("declared and taken as public" in line for line in made.account.caveats)
