"""A hundred likely mistakes with one's own table: each is named, with its place and a remedy, before any work."""

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
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
    """Do what `sottovoce check` does, and return the statements."""
    return [row.setup.account for row in planned.plan(RunFile.parse(text, sets), draws=False)]


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
                                  ["Bambi", "VerticalSgd", "auto"]),
    "epsilon as text": ("epsilon = 1.0", 'epsilon = "1"', ["privacy.epsilon is '1'", "a number"]),
    "epsilon without end": ("epsilon = 1.0", "epsilon = inf", ["privacy.epsilon is inf", "finite"]),
    "epsilon of zero": ("epsilon = 1.0", "epsilon = 0", ["privacy.epsilon is 0", "greater than 0"]),
    "delta of zero": ("epsilon = 1.0", "epsilon = 1.0\nprivacy.delta = 0", ["delta is 0", "give delta > 0"]),
    "delta of one": ("epsilon = 1.0", "epsilon = 1.0\nprivacy.delta = 1", ["privacy.delta is 1", "less than 1"]),
    "a field of the method that is misspelt": ("rate =", "raet =", ["'raet'", "did you mean 'rate'"]),
    "auto misspelt": ('{name = "DpSgd",', '{name = "atuo",', ["'atuo'", "did you mean 'auto'"]),
    "a logarithm that is a word": ("[0, 120]}", '[1, 120], log = "no"}', ["'age'", "log is 'no'", "true or false"]),
    "a date that is none": ("[0, 120]", '["2020-02-31", "2021-01-01"]', ["'age'", "2020-02-31", "two dates"]),
    "no feature at all": ("[data.columns]", "features = []\n[data.columns]", ["features is []", "column names"]),
    "features that are a word": ("[data.columns]", 'features = "age"\n[data.columns]', ["features is 'age'", "list"]),
    "less than nothing held out": ("[data.columns]", "test = -0.2\n[data.columns]", ["test is -0.2", "0 and 1"]),
    "a price with nothing to buy": ("[data.columns]", "private = 0.1\n[data.columns]", ["a.csv", '"private"', "leave"]),
    "a price above epsilon": ("[data.columns]", "private = 2\n[data.columns]", ["data.private is 2", "lower"]),
    "a unit that is declared": ("[data.columns]", 'unit = "age"\n[data.columns]', ["'age' is the unit", "remove"]),
    "a share that is misspelt": ("[data.columns]", 'share = "pubic"\n[data.columns]', ["data.share", "'public'"]),
    "more parties than rows": ("[data.columns]", "agents = 99\n[data.columns]", ["no record", "fewer agents"]),
    "one weight and label": ("[data.columns]", 'weight = "death"\n[data.columns]', ["both label and weight"]),
    "a number for a classifier": ("{categories = [0, 1]}", "{range = [0, 1]}\n[task]\nname = 'logistic'",
                                  ["label is a number", "task ridge", "declare categories"]),
    "a number for softmax": ("{categories = [0, 1]}", "{range = [0, 1]}\n[task]\nname = 'softmax'", ["task ridge"]),
    "classes for a regression": ("[0, 1]}", "[0, 1]}\n[task]\nname = 'ridge'", ["2 classes", "declare a range"]),
    "the worst party of one": ("[0, 1]}", "[0, 1]}\n[task]\nname = 'robust-logistic'", ["there is one", "data.party"]),
    "an unknown metric": ("run.steps = 3", 'run.steps = 3\nrun.metric = "auc"', ["run.metric", "did you mean 'auroc'"]),
    "an unknown score of a choice": ("[0, 1]}", '[0, 1]}\n[select]\nmetric = "auc"', ["metric is 'auc'", "'auroc'"]),
    "a choice without variants": ("[0, 1]}", '[0, 1]}\n[select]\nmetric = "auroc"', ["there is one", "[[variant]]"]),
    "an unknown network": ("run.steps = 3", 'run.steps = 3\nnetwork.kind = "rign"', ["'rign'", "did you mean 'ring'"]),
    "no seed": ("run.steps = 3", "run.steps = 3\nrun.seeds = []", ["run.seeds is []", "at least 1"]),
    "no step": ("run.steps = 3", "run.steps = 0", ["run.steps is 0", "1"]),
    "a column declared twice": ("age =", "age = {range = [0, 1]}\nage =", ["not TOML", "line"]),
}  # fmt: skip
TABLES = {  # what the file holds: the words that the error must have
    "nothing": ("", ["a.csv has no header", "names of the columns"]),
    "a header and blank lines": (HEADER + "\n\n\n", ["a.csv has a header, but no rows"]),
    "names in capitals": ("\n".join([HEADER.upper(), *LINES]), ["a.csv", "did you mean 'DEATH'"]),
    "blanks between columns": ("\n".join([HEADER, *LINES]).replace(",", " "), ["one column only", "separate columns"]),
    "a quotation mark that is not closed": ("\n".join([HEADER, *LINES, '30,"F']), ["never closed", "write it twice"]),
    "no names": ("31,F,0\n" * 60, ["no column 'death'", "first line looks like a row", "above it"]),
    "no names, and a value twice": ("31,F,0,0,31,0\n" * 60, ["a.csv has no header", "looks like a row"]),
    "a hint for spreadsheets": ("\n".join(["sep=,", HEADER, *LINES]), ["a.csv", "remove this line"]),
}
SETS = {
    "a table that is misspelt": ("privcy.epsilon=2", ["'privcy'", "did you mean 'privacy'"]),
    "a key that is misspelt": ("privacy.epsilom=2", ["epsilom", "did you mean 'epsilon'"]),
    "no value": ("privacy.epsilon", ["--set 'privacy.epsilon'", "key=value"]),
    "a word for a number": ("privacy.epsilon=much", ["privacy.epsilon is 'much'", "a number"]),
    "a column that is not there": ("data.columns.aeg.range=[0,1]", ["'aeg'", "did you mean 'age'"]),
}


@pytest.mark.parametrize("what", RUN_FILES)
def test_a_mistake_in_a_run_file_is_named_before_work(what):
    old, new, words = RUN_FILES[what]
    with pytest.raises(ValueError) as error:
        checked(changed(old, new))
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("what", TABLES)
def test_a_mistake_in_a_text_file_is_named_before_work(what, folder):
    held, words = TABLES[what]
    (folder / "a.csv").write_text(held)
    with pytest.raises(ValueError) as error:
        checked(GOOD)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("what", SETS)
def test_a_mistake_in_set_is_named_before_work(what):
    given, words = SETS[what]
    with pytest.raises(ValueError) as error:
        checked(GOOD, [given])
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
        case "a folder as table":
            (folder / "d.csv").mkdir()
            sv.data.table("d.csv", "death", columns=declared)
        case "a damaged Parquet file":
            (folder / "x.parquet").write_text("hello")
            sv.data.table("x.parquet", "death", columns=declared)
        case "a Parquet file with lists":
            parquet.write_table(pa.table({**rows, "age": [[1], [2]]}), "x.parquet")
            sv.data.table("x.parquet", "death", columns=declared)
        case "a Parquet file without rows":
            parquet.write_table(pa.table({name: held[:0] for name, held in rows.items()}), "x.parquet")
            sv.data.table("x.parquet", "death", columns=declared)
        case "an array as table":
            sv.data.table(np.zeros((5, 2)), "death", columns=declared)
        case "no declarations":
            sv.data.table(rows, "death", columns=None)
        case "declarations as a list":
            sv.data.table(rows, "death", columns=["age", "death"])
        case "no label":
            sv.data.table(rows, None, columns=declared)
        case "a price as a number":
            sv.data.table(rows, "death", columns={**declared, "age": {"range": "private"}}, private=0.1)
        case "a missing value as category":
            sv.data.Column(categories=["F", None])
        case "a scaler that would read":
            sv.DeclaredScaler({"age": {"range": "public"}}).fit(rows)
        case "a scaler with a list":
            sv.DeclaredScaler(["age"]).fit(rows)
        case "a scaler without its column":
            sv.DeclaredScaler({"aeg": {"range": (0, 1)}}).fit(rows)
        case "candidates as a list":
            sv.select([lambda mu: mu], lambda model, mu: 0.0, epsilon=1.0)
        case "a field of auto that is misspelt":
            sv.auto(problem, good().parts(), epsilon=1.0, raet=1.0)
        case "parties without a network":
            sv.auto(problem, good().parts(3), epsilon=1.0)
        case "a result that is none":
            sv.save(good(), "x.sv")
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
    "a folder as table": ["d.csv is a folder", "give a file"],
    "a damaged Parquet file": ["x.parquet", "save the table as CSV"],
    "a Parquet file with lists": ["x.parquet", "'age'", "lists", "make a plain column"],
    "a Parquet file without rows": ["x.parquet has no rows", "one row per record"],
    "an array as table": ["ndarray is no table", "DataFrame"],
    "no declarations": ["columns is a NoneType", "mapping from names"],
    "declarations as a list": ["columns is a list", "mapping from names"],
    "no label": ["label is None", "column to predict"],
    "a price as a number": ["private is 0.1", "sv.NoisyCounts"],
    "a missing value as category": ["missing value", 'missing = "flag"'],
    "a scaler that would read": ["'age' is public", "declare it"],
    "a scaler with a list": ["columns is a list", "mapping from names"],
    "a scaler without its column": ["did you mean 'age'"],
    "candidates as a list": ["no candidates", "mapping from names"],
    "a field of auto that is misspelt": ["'raet'", "did you mean 'rate'"],
    "parties without a network": ["3 parties need a network", "sv.networks"],
    "a result that is none": ["DeclaredTable", "what sv.run returned"],
    "an unknown way to split": ["'klinic'", "did you mean 'clinic'"],
    "no number of parties": ["give agents="],
}


@pytest.mark.parametrize("what", PYTHON)
def test_a_mistake_in_python_is_named_before_work(what, folder):
    with pytest.raises((ValueError, TypeError)) as error:
        in_python(what, folder)
    assert all(word in str(error.value) for word in PYTHON[what]), str(error.value)


SECRET = "31415926"
VALUES = {  # rows of a text file that look strange: none of them may stop a run, or be told
    "a number beyond all": [f"{SECRET * 60},F,,,n,,0", f"{SECRET},F,,,n,,{SECRET}"],
    "no numbers": [f"inf,{SECRET},,,n,,0", "nan,,,,n,,1", "1e999,F,,,n,,", f"{SECRET}x,F,,,n,,0"],
    "too few and too many fields": [SECRET, f"{SECRET},F,,,n,,0,{SECRET}"],
    "quotation marks": [f'"{SECRET}",F,,,n,,0', f'30,"F ""{SECRET}""",,,n,,0'],
    "null and foreign characters": [f"\0{SECRET},F\xe9,,,n,,1"],
    "no party": [f"30,{SECRET},,,,,0", f"31,{SECRET},,,NA,,0"],
    "one class only": [f"{SECRET},F,,,n,,0"] * 20,
}


@pytest.mark.parametrize("what", VALUES)
def test_a_value_neither_stops_a_run_nor_is_told(what, folder, capfd, recwarn):
    lines = LINES if what != "one class only" else []
    (folder / "a.csv").write_text("\n".join([HEADER, *lines, *VALUES[what]]), encoding="latin-1")
    told = checked(changed("[data.columns]", 'party = "clinic"\nunit = "patient_id"\n[data.columns]'))
    printed = capfd.readouterr()
    assert SECRET not in "".join([*map(str, told), printed.out, printed.err, *(str(one.message) for one in recwarn)])


def test_types_that_cannot_hold_a_value_stop_no_run(folder):
    """Columns that are equal have two names; dates after the year 9999 and numbers of 5000 digits are values too."""
    columns = {name: {"range": [0, 120]} for name in ("age", "bmi")} | {"death": {"categories": [0, 1]}}
    parquet.write_table(pa.table({"age": [30, 40], "bmi": [30, 40], "death": [0, 1]}), "x.parquet")
    assert len(sv.data.table("x.parquet", "death", columns=columns)) == 2
    seen = pa.array([2**31 - 1, 18262, None], pa.int32()).cast(pa.date32())
    parquet.write_table(pa.table({"seen": seen, "death": [0, 1, 1]}), "x.parquet")
    dates = {"seen": {"range": ["2020-01-01", "2020-12-31"], "missing": "flag"}, "death": {"categories": [0, 1]}}
    made = sv.data.table("x.parquet", "death", columns=dates)
    assert made.records["features"].tolist() == [[0.0, 1.0], [-1.0, 0.0], [0.0, 1.0]]
    rows = {"age": [10**5000, -(10**5000), 60], "bmi": [10**400, None, "x"], "death": [0, 1, 10**5000]}
    made = sv.data.table(rows, "death", columns=columns)
    assert made.records["features"][:2].tolist() == [[1.0, 1.0], [-1.0, 0.0]]


def test_names_in_quotation_marks_may_hold_delimiters(folder):
    (folder / "a.csv").write_text('"age, in years, now";death\n' + "3,5;1\n4,5;0\n")
    columns = {"age, in years, now": {"range": [0, 10]}, "death": {"categories": [0, 1]}}
    made = sv.data.table("a.csv", "death", columns=columns)
    assert np.allclose(made.records["features"], [[-0.3], [-0.1]])


def test_there_are_a_hundred_and_the_right_file_passes():
    assert len(RUN_FILES) + len(TABLES) + len(SETS) + len(PYTHON) >= 100
    case = RunFile.parse(GOOD).cases["DpSgd"]
    own_table.check(case.data, build.data_names())
    made, test = build.own(case.data)
    assert (len(made), len(test), made.names) == (48, 12, ("age", "sex=F", "sex=M", "sex=other"))
