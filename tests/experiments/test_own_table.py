"""Run files with one's own table: from a CSV to a report, a model and predictions."""

import json
import re
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import sottovoce as sv
from sottovoce import cli
from sottovoce.cli import app
from sottovoce.experiments import planned
from sottovoce.experiments.execute import execute
from sottovoce.experiments.runfile import RunFile
from sottovoce.runtime.result import Result

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


def test_curves_are_bought_where_they_pay_and_the_statement_says_so(folder):
    loud, quiet = (
        said("check", "mine.toml", "--set", 'data.curves="auto"', "--set", f"privacy.epsilon={epsilon}")
        for epsilon in (0.5, 8.0)
    )
    assert "ranks of" not in loud
    assert "to be bought with noisy counts, charged, nothing is drawn before a run: ranks of age" in quiet


def test_check_says_what_each_party_pays_and_what_set_replaced(folder):
    checked = said("check", "mine.toml", "--set", "run.steps=12")
    public = "names and sizes of the 2 parties in column clinic"
    for words in ("run.steps = 12 (was 20)", "complete graph of 2", "north", "south", public, "Nothing was run"):
        assert words in checked


def heard(capsys, monkeypatch, *words):
    """What a whole command says that ends with exit code 2, and no terminal sees."""
    monkeypatch.setattr(sys, "argv", ["sottovoce", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    return re.sub(r"\s+", " ", capsys.readouterr().err)


def test_check_stops_where_nothing_of_a_column_fits_and_run_goes_on(folder, capsys, monkeypatch):
    wrong = (
        FILE.replace('run.metric = "auroc"\n', "")
        .replace('{0 = "well", 1 = "ill"}', '["well", "ill"]')
        .replace("age = {range = [20, 100]}\n", "")
    )
    (folder / "wrong.toml").write_text(wrong)
    words = heard(capsys, monkeypatch, "check", "wrong.toml")
    assert "warning" in words
    assert "column 'sick': none of its values is one of the declared categories (well, ill)" in words
    assert '{0 = "no", 1 = "yes"}' in words
    assert "`run` goes on" in words
    assert "SECRET" not in words
    with pytest.warns(sv.data.DeclarationWarning):
        planned.setups(RunFile.load(folder / "wrong.toml"))
    private = wrong.replace('["well", "ill"]', '{0 = "well", 1 = "ill"}').replace(
        'sex = {categories = ["F", "M"]}', 'sex = {categories = "private"}'
    )
    (folder / "private.toml").write_text(private.replace('label = "sick"', 'label = "sick"\nprivate = 0.1'))
    assert "Nothing was run" in said("check", "private.toml")  # stand-ins need not fit


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["run", "patients.csv"], "patients.csv is a table, and no run file: `sottovoce init`"),
        (["init", "mine.toml"], "mine.toml is a run file: `sottovoce check` takes it"),
        (["predict", "runs", "patients.csv"], "runs holds 2 runs: name the one that predicts, such as runs/auto/0"),
        (["check", "bare.toml"], "no feature is declared: write age = {range"),
    ],
)
def test_one_kind_of_file_in_the_place_of_another_is_named(folder, capsys, monkeypatch, words, answer):
    for seed in "01":
        (folder / "runs" / "auto" / seed).mkdir(parents=True)
        (folder / "runs" / "auto" / seed / "model.sv").touch()
    rows = (folder / "patients.csv").read_text().splitlines()
    (folder / "patients.csv").write_text("\n".join([f"rownames,{rows[0]}", *(f"1,{row}" for row in rows[1:])]))
    (folder / "bare.toml").write_text(FILE.partition("age =")[0] + 'sick = {categories = {0 = "well", 1 = "ill"}}')
    said = heard(capsys, monkeypatch, *words)
    assert answer in said
    assert "SECRET" not in said
    assert "age,sex" not in said


def test_a_path_with_a_space_can_be_copied_from_what_init_prints(folder):
    (folder / "my rows.csv").write_bytes((folder / "patients.csv").read_bytes())
    assert "sottovoce check 'my rows.toml'" in said("init", "my rows.csv")


def test_a_small_party_is_a_warning_at_the_end_and_the_last_line_says_so(folder):
    rows = (folder / "patients.csv").read_text().splitlines()
    (folder / "patients.csv").write_text("\n".join([rows[0], *(row.replace("south", "north") for row in rows[1:-2]),
                                                    "40,F,0,south", "50,M,1,south"]))  # fmt: skip
    (folder / "mine.toml").write_text(FILE.replace('run.metric = "auroc"\n', ""))
    words = said("check", "mine.toml", "--set", "data.test=0")
    assert "warning party south holds 2 of 600 records" in words
    assert words.strip().endswith("It can run, with 1 warning: 1 variant, 1 run. Nothing was run.")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "age = {range = [LOW, HIGH]}",
            "line 12 is to be filled in: age = {range = [LOW, HIGH]}. Write",
        ),
        ("age = {range = [20, 100}", "not TOML: Unclosed array (at line 12, column 24): age = {range = [20, 100}"),
        ("age = 1,5", "age = 1,5. A number is written with a point, as in 1.5"),
        ("age = range", "at line 12, column 7): age = range. A text stands in quotation marks"),
    ],
)
def test_a_line_that_is_no_toml_is_shown(folder, line, words):
    (folder / "mine.toml").write_text(FILE.replace("age = {range = [20, 100]}", line))
    with pytest.raises(ValueError, match=re.escape(words)):
        RunFile.load(folder / "mine.toml")


def test_what_was_edited_is_named_by_its_key_when_a_run_is_resumed(folder):
    short = ("run.steps=2", "privacy.epsilon=3")
    execute(RunFile.load("mine.toml", short), "out")
    before = (folder / "out" / "run.toml").read_bytes()
    with pytest.raises(ValueError, match=r"out holds another run: privacy.epsilon was 3 and is 2\. Undo"):
        execute(RunFile.load("mine.toml", ("run.steps=2", "privacy.epsilon=2")), "out", resume=True)
    assert (folder / "out" / "run.toml").read_bytes() == before


@pytest.mark.parametrize(("log", "name"), [(False, "rmse"), (True, "error factor")])
def test_a_regression_says_its_error_in_the_labels_unit_and_classes_their_base_rate(folder, log, name):
    own = FILE.replace(FILE.split("\n")[2], 'method = "auto"').replace('run.steps = 20\nrun.metric = "auroc"\n', "")
    made = planned.setup(next(iter(RunFile.parse(own).cases.values())), draws=False)
    assert made.metrics() == ["accuracy", "auroc", "base rate", "calibration error", "log loss"]
    assert made.case.run.metric == "auroc"
    number = own.replace('label = "sick"', 'label = "age"').replace(
        "[20, 100]}", f"[20, 100], log = {str(log).lower()}}}"
    )
    made = planned.setup(next(iter(RunFile.parse(number).cases.values())), draws=False)
    start = {"weights": np.zeros(made.problem.x0["weights"].shape), "bias": np.zeros(())}
    found = made.judge()(start)
    label = np.asarray(made.test["label"], float)  # in [-1, 1]
    low, high = np.log([20, 100]) if log else (20, 100)
    error = float(np.sqrt(np.mean(label**2)) * (high - low) / 2)  # of always guessing the middle
    assert float(found[name]) == pytest.approx(np.exp(error) if log else error, rel=1e-4)
    assert made.case.run.metric == "r2"


def test_a_run_that_diverges_says_that_to_resume_is_no_remedy(folder, monkeypatch):
    ends = sys.modules["sottovoce.runtime.run"]
    monkeypatch.setattr(ends, "drive_all", lambda runs: [FloatingPointError("x is broken.")] * len(runs))
    with pytest.raises(FloatingPointError, match=r"x is broken\. To resume would end in the same way"):
        execute(RunFile.load("mine.toml"), "out")


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
    made = planned.setup(next(iter(RunFile.parse(robust + own).cases.values())))
    assert made.problem.y0.shape == (2,)
    assert made.account.epsilon <= 4.0
    assert len(made.why) == 3
    auc = ('task.name = "auc"\n' + own).replace('party = "clinic"', 'share = "public"')
    made = planned.setup(next(iter(RunFile.parse(auc).cases.values())))
    assert any("share of class ill" in line for line in made.account.caveats)
    columns = own.replace('party = "clinic"', "") + "\n[columns.holders]\nbank = ['age']\nclub = ['sex']\n"
    made = planned.setup(next(iter(RunFile.parse(columns, ["run.metric=accuracy"]).cases.values())))
    assert [block.shape for block in made.data.columns.blocks] == [(480, 1), (480, 3)]
    assert made.account.epsilon == 4.0
    assert any("declared and taken as public" in line for line in made.account.caveats)


def test_a_model_of_two_organisations_travels(folder):
    columns = FILE.replace('party = "clinic"', "").replace(FILE.split("\n")[2], 'method = "auto"')
    case = RunFile.parse(columns + "\n[columns.holders]\nclub = ['sex']\nbank = ['age']\n", ["run.metric=accuracy"])
    made = planned.setup(next(iter(case.cases.values())))
    rng = np.random.default_rng(0)
    y = [{"weights": rng.normal(size=(width, 1)), "bias": rng.normal(size=1)} for width in (3, 1)]
    result = Result(made.problem.x0, y, (), {}, made.account, False, made.problem.predict)
    made._save_model(result, folder)
    model = sv.load(folder)
    rows = {"sex": ["M", "F", "?"], "age": [20, 100, 60]}
    found = model.probabilities(rows)
    score = [y[0]["weights"][k, 0] + age * y[1]["weights"][0, 0] for k, age in ((1, -1), (0, 1), (2, 0))]
    score = np.array(score) + y[0]["bias"] + y[1]["bias"]
    np.testing.assert_allclose(found[:, 1], 1 / (1 + np.exp(-score)), rtol=1e-5)
    assert model.predict(rows).tolist() == np.where(score > 0, "ill", "well").tolist()
    (folder / "new.csv").write_text("age,sex\n20,M\n100,F\n")
    assert said("predict", str(folder / "model.sv"), "new.csv").startswith("sick,sick=well,sick=ill ")
    blocks = [np.eye(3, dtype=np.float32), np.zeros((3, 1), np.float32)]
    model = sv.load(sv.save(result, folder / "blocks.sv", features=blocks))
    np.testing.assert_allclose(model.predict(blocks), made.problem.predict(result.x, y, blocks), rtol=1e-5)
    with pytest.raises(ValueError, match="a list of 2 blocks"):
        model.predict(blocks[0])


@pytest.mark.slow
def test_a_weight_bounds_what_a_record_moves(folder):
    lines = (folder / "patients.csv").read_text().splitlines()
    (folder / "mine.toml").write_text(
        FILE.replace("[data.columns]", 'weight = "w"\ntest = 0\n[data.columns]\nw = {range = [0, 10]}')
        .replace('run.metric = "auroc"', "")
    )  # fmt: skip
    noiseless = ["privacy={enabled = false}", "run={steps = 1}"]

    def trained(label, weight):
        held = [f"{line},{weight if number == 7 else 4}" for number, line in enumerate(lines[1:])]
        held[7] = f"90,F,{label},north,{weight}"
        (folder / "patients.csv").write_text("\n".join([f"{lines[0]},w", *held]))
        made = planned.setup(next(iter(RunFile.load(folder / "mine.toml", noiseless).cases.values())))
        x = made.run(0).x
        return np.append(x["weights"], x["bias"])

    def moved(weight):
        return np.linalg.norm(trained(0, weight) - trained(1, weight))

    most = moved(10)
    assert most > 0
    assert moved(5) == pytest.approx(most / 2, rel=1e-3)
    np.testing.assert_array_equal(trained(1, 10), trained(1, 1e6))  # no record counts for more than declared
    for nothing in (-3, "unreadable"):
        np.testing.assert_array_equal(trained(0, nothing), trained(1, nothing))


def test_checks_draw_nothing_that_is_to_be_bought(folder, monkeypatch):
    private = FILE.replace("range = [20, 100]", 'range = "private"').replace('["F", "M"]', '"private"')
    (folder / "mine.toml").write_text(private.replace("[data]", "[data]\nprivate = 0.5"))
    monkeypatch.setattr(sv.NoisyCounts, "noised", lambda *_: pytest.fail("counts were drawn"))
    told = [said(command, "mine.toml") for command in ("check", "account")]
    other = (folder / "patients.csv").read_text().replace(",F,", ",G,").replace("55,", "5e5,")
    (folder / "patients.csv").write_text(other)
    assert [said(command, "mine.toml") for command in ("check", "account")] == told
    assert "nothing is drawn before a run: range of age" in told[0]
    with pytest.raises(BaseException, match="counts were drawn"):
        planned.plan(RunFile.load(folder / "mine.toml"))
