"""Fifty likely mistakes with one's own table: each is named, with its place and a remedy, before any work starts."""

import dataclasses

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.experiments import build, own_table, planned
from sottovoce.experiments.runfile import RunFile
from sottovoce.runtime.model_file import load

HEADER = "age,sex,visit_date,patient_id,clinic,weight,death"
LINES = [f"{30 + k % 50},{'FM'[k % 2]},2020-01-{1 + k % 28:02d},p{k},{'nsw'[k % 3]},{k % 5},{k % 2}" for k in range(60)]
GOOD = """
method = {name = "DpSgd", rate = 0.5, sampling = "full", gradient = {clip = 1.0}}
run.steps = 3
privacy.epsilon = 1.0
[data]
file = "a.csv"
label = "death"
[data.columns]
age = {range = [0, 120]}
sex = {categories = ["F", "M"]}
death = {categories = [0, 1]}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("\n".join([HEADER, *LINES]))
    return tmp_path


def checked(text, sets=()):
    """Do what `sottovoce check` does up to the first step."""
    for case in RunFile.parse(text, sets).cases.values():
        planned.setup(case)


def changed(old, new):
    assert old in GOOD
    return GOOD.replace(old, new)


RUN_FILES = {  # what is written instead: the words that the error must have
    "a file that is not there": ("a.csv", "b.csv", ["b.csv", "did you mean 'a.csv'"]),
    "a file of another kind": ("a.csv", "a.xlsx", ["a.xlsx", "save the table as CSV"]),
    "a folder that is not there": ("a.csv", "data/a.csv", ["a.csv", "data is no folder"]),
    "neither file nor name": ('file = "a.csv"', "", ["[data] has neither name nor file", "give name"]),
    "both file and name": ('file = "a.csv"', 'file = "a.csv"\nname = "digits"', ["both name and file"]),
    "no label": ('label = "death"', "", ["data.label is missing", "column to predict"]),
    "a label that is no column": ('"death"', '"deth"', ["a.csv", "'deth'", "did you mean 'death'"]),
    "a label without declaration": ("death = {categories = [0, 1]}", "", ["'death'", "not declared", "categories"]),
    "a declared column that is not there": ("age =", "aeg =", ["a.csv", "'aeg'", "did you mean 'age'"]),
    "a key that is misspelt": ("range =", "rnge =", ["column 'age'", "'rnge'", "did you mean 'range'"]),
    "a range the wrong way round": ("[0, 120]", "[120, 0]", ["column 'age'", "first end must be below"]),
    "a range with one end": ("[0, 120]", "[120]", ["column 'age'", "the lowest and the highest"]),
    "a range of words": ("[0, 120]", '["young", "old"]', ["column 'age'", "two finite numbers"]),
    "a range without end": ("[0, 120]", "[0, inf]", ["column 'age'", "finite"]),
    "a range of a date and a number": ("[0, 120]", "[2000-01-01, 120]", ["column 'age'", "two dates"]),
    "a range that is a word": ("[0, 120]", '"unknown"', ["column 'age'", '"public" or "private"']),
    "a bare number as declaration": ("{range = [0, 120]}", "120", ["age", "valid dictionary"]),
    "range and categories": ("{range = [0, 120]}", "{range = [0, 1], categories = [0, 1]}", ["'age'", "one of them"]),
    "an empty declaration": ("{range = [0, 120]}", "{}", ["column 'age'", "range", "categories"]),
    "no category": ('["F", "M"]', "[]", ["column 'sex'", "list at least one"]),
    "a category twice": ('["F", "M"]', '["F", "M", "F"]', ["column 'sex'", "'F' twice"]),
    "categories that are a word": ('["F", "M"]', '"F,M"', ["column 'sex'", "give a list"]),
    "a logarithm of zero": ("[0, 120]}", "[0, 120], log = true}", ["'age'", "above zero", "raise it"]),
    "a missing value outside the range": ("[0, 120]}", "[0, 120], missing = 500}", ["'age'", "within the range"]),
    "a missing value that is no category": ('"M"]}', '"M"], missing = "X"}', ["'sex'", "one of the categories"]),
    "a label with a flag": ("[0, 1]}", '[0, 1], missing = "flag"}', ["'death'", "a label has no flag"]),
    "a feature without declaration": ("[data.columns]", 'features = ["age", "clinic"]\n[data.columns]',
                                      ["column 'clinic'", "not declared", "write clinic ="]),
    "an id as feature": ("[data.columns]", 'features = ["patient_id"]\n[data.columns]', ["'patient_id'", "an id"]),
    "the label as feature": ("[data.columns]", 'features = ["death"]\n[data.columns]', ["'death'", "is the label"]),
    "a feature twice": ("[data.columns]", 'features = ["age", "age"]\n[data.columns]', ["'age'", "listed twice"]),
    "a party that is no column": ("[data.columns]", 'party = "klinic"\n[data.columns]', ["did you mean 'clinic'"]),
    "party and agents": ("[data.columns]", 'party = "clinic"\nagents = 3\n[data.columns]', ["agents", "remove one"]),
    "one column in two roles": ("[data.columns]", 'party = "death"\n[data.columns]', ["both label and party"]),
    "a weight without bound": ("[data.columns]", 'weight = "weight"\n[data.columns]', ["'weight'", "largest"]),
    "a negative weight": ("[data.columns]", 'weight = "weight"\n[data.columns]\nweight = {range = [-1, 1]}',
                          ["'weight'", "from 0 or above"]),
    "a label of one class": ("[0, 1]}", "[0]}", ["a.csv", "'death'", "one class only ('0')", "list all classes"]),
    "too few rows": ("[data.columns]", "test = 0.9\n[data.columns]", ["a.csv has 6 rows", "at least 10"]),
    "everything held out": ("[data.columns]", "test = 1.0\n[data.columns]", ["test is 1", "between 0 and 1"]),
    "a test file that is not there": ("[data.columns]", 'test = "t.csv"\n[data.columns]', ["t.csv"]),
    "private without a price": ("[0, 120]", '"private"', ["'age'", "data.private = 0.1"]),
    "a key of ready-made sets": ("[data.columns]", "limit = 10\n[data.columns]", ["data.limit", "remove it"]),
    "an unknown key of data": ("[data.columns]", 'lable = "death"\n[data.columns]', ["did you mean 'label'"]),
    "a task for two classes": ("[0, 1]}", "[0, 1, 2]}\n[task]\nname = 'logistic'", ["2 classes", "softmax"]),
    "auc without a share": ("run.steps", "task.name = 'auc'\nrun.steps", ["share of class 1", "data.share"]),
    "an unknown task": ("run.steps", "task.name = 'logit'\nrun.steps", ["'logit'", "did you mean 'logistic'"]),
    "an unknown method": ('"DpSgd"', '"DPSGDD"', ["'DPSGDD'", "did you mean 'DpSgd'"]),
    "a budget below epsilon": ("epsilon = 1.0", "epsilon = 1.0\nprivacy.budget = 0.5", ["budget is 0.5", "raise"]),
    "a negative epsilon": ("epsilon = 1.0", "epsilon = -1", ["privacy.epsilon is -1", "greater than 0"]),
    "columns that nobody holds": ("[data.columns]", "[columns.holders]\na = ['age']\n[data.columns]",
                                  ["Bambi"]),
}  # fmt: skip


@pytest.mark.parametrize("what", RUN_FILES)
def test_a_mistake_in_a_run_file_is_named_before_work(what):
    old, new, words = RUN_FILES[what]
    with pytest.raises(ValueError) as error:
        checked(changed(old, new))
    assert all(word in str(error.value) for word in words), str(error.value)


def good():
    return sv.data.table("a.csv", "death", columns={"age": {"range": [0, 120]}, "death": {"categories": [0, 1]}})


def in_python(what, folder):
    declared = {"age": {"range": [0, 120]}, "death": {"categories": [0, 1]}}
    rows = {"age": [1, 2], "death": [0, 1]}
    method = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(1.0, 1.0), sampling=sv.Full())
    problem = sv.Minimize(lambda x, r: (x - r["label"]) ** 2, 0.0)
    match what:
        case "two columns of one name":
            (folder / "a.csv").write_text("age,age,death\n1,2,0\n")
            good()
        case "a file without rows":
            (folder / "a.csv").write_text("age,death\n")
            good()
        case "a file without header":
            (folder / "a.csv").write_text("\n1,2\n")
            good()
        case "no table at all":
            sv.data.table(17, "death", columns=declared)
        case "columns of different lengths":
            sv.data.table({"age": [1], "death": [0, 1]}, "death", columns=declared)
        case "a DataFrame where parts are due":
            frame = dataclasses.make_dataclass("Frame", ["columns"])(["a"])
            sv.run(problem, frame, method, steps=1)
        case "features as one word":
            sv.data.table(rows, "death", "age", columns=declared)
        case "dates with a range of numbers":
            dates = {**rows, "age": np.array(["2001-01-01", "2002-01-01"], "datetime64[D]")}
            sv.data.table(dates, "death", columns=declared)
        case "numbers with a range of dates":
            sv.data.table(rows, "death", columns={**declared, "age": {"range": ["2000-01-01", "2001-01-01"]}})
        case "undeclared dates as a feature":
            dates = {**rows, "seen": np.array(["2001-01-01", "2002-01-01"], "datetime64[D]")}
            sv.data.table(dates, "death", ["seen"], columns=declared)
        case "a share of a number":
            sv.data.table(rows, "death", columns={**declared, "death": {"range": [0, 1]}}, share="public")
        case "a declared party without rows":
            parties = {"clinic": {"categories": ["n", "s", "w", "moon"]}}
            sv.data.table("a.csv", "death", ["age"], columns={**declared, **parties}, party="clinic").parts()
        case "new rows without a column":
            sv.data.Declarations({"age": {"range": [0, 1]}}).encode({"aeg": [1]})
        case "a model that is not there":
            load("nowhere.sv")
        case "a model that is no model":
            (folder / "x.sv").write_bytes(b"hello")
            load("x.sv")
        case "an unknown way to split":
            sv.data.split({"label": np.zeros(4, int), "clinic": np.zeros(4)}, by="klinic", agents=2)
        case "no number of parties":
            sv.data.split({"label": np.zeros(4, int)})


PYTHON = {
    "two columns of one name": ["a.csv", "2 columns called 'age'", "rename"],
    "a file without rows": ["a.csv", "no rows"],
    "a file without header": ["a.csv", "no header", "first line"],
    "no table at all": ["int is no table", "DataFrame"],
    "columns of different lengths": ["'age': 1", "same number"],
    "a DataFrame where parts are due": ["sv.data.table(frame", ".parts()"],
    "features as one word": ["features is 'age'", "list of column names"],
    "dates with a range of numbers": ["'age'", "holds dates", "2000-01-01"],
    "numbers with a range of dates": ["'age'", "holds numbers", "[0, 120]"],
    "undeclared dates as a feature": ["'seen'", "holds dates", "remove it from features"],
    "a share of a number": ["'death'", "two classes", "leave share out"],
    "a declared party without rows": ["a.csv", "'moon' has no rows", "remove it"],
    "new rows without a column": ["'age'", "did you mean 'aeg'"],
    "a model that is not there": ["nowhere.sv", "sv.save"],
    "a model that is no model": ["x.sv", "damaged"],
    "an unknown way to split": ["'klinic'", "did you mean 'clinic'"],
    "no number of parties": ["give agents="],
}


@pytest.mark.parametrize("what", PYTHON)
def test_a_mistake_in_python_is_named_before_work(what, folder):
    with pytest.raises(ValueError) as error:
        in_python(what, folder)
    assert all(word in str(error.value) for word in PYTHON[what]), str(error.value)


def test_there_are_fifty_and_the_right_file_passes():
    assert len(RUN_FILES) + len(PYTHON) >= 50
    case = RunFile.parse(GOOD).cases["DpSgd"]
    own_table.check(case.data, build.data_names())
    made, test = build.own(case.data)
    assert (len(made), len(test), made.names) == (48, 12, ("age", "sex=F", "sex=M", "sex=other"))
