"""Models that travel: one file, opened in a process that cannot import the author's module, without pickle."""

import json
import subprocess
import sys
import zipfile
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.privacy.report import PrivacyReport
from sottovoce.problems import objectives
from sottovoce.problems.tasks import Shape, get
from sottovoce.runtime.model_file import NamedTask
from sottovoce.runtime.result import Result

STATEMENT = PrivacyReport(
    1.0, 1e-5, (1.0,), {}, None, "sound", "zero-out", "record", "PLD", "none", "DpSgd", 3, ("one release",), ("a note",)
)
ROWS = {"age": [20, 90], "sex": ["F", "?"], "pay": [10.0, 1000.0]}
COLUMNS = {"age": {"range": [0, 100]}, "sex": {"categories": ["F", "M"]}}


def result(x, predict, y=None):
    return Result(x, y, None, {"step": np.array([3]), "auroc": np.array([0.8])}, STATEMENT, False, predict)


def declared(target, label="pay"):
    return sv.data.table({**ROWS, label: ROWS["pay"]}, label, columns={**COLUMNS, label: target})


def test_a_named_task_predicts_class_names_and_probabilities(tmp_path):
    table = declared({"categories": {10: "poor", 1000: "rich"}})
    x = {"weights": jnp.asarray([2.0, 0.0, 0.0, 1.0]), "bias": jnp.asarray(-0.5)}
    task = NamedTask("logistic", {"penalty": 0.1}, Shape((4,), 2, 3))
    model = sv.load(sv.save(result(x, lambda x, rows: None), tmp_path / "m.sv", table=table, task=task))
    scores = np.array([-0.6 * 2 - 0.5, 0.8 * 2 + 1 - 0.5])  # ages 20 and 90 are -0.6 and 0.8; "?" is other
    np.testing.assert_allclose(model.probabilities(ROWS)[:, 1], 1 / (1 + np.exp(-scores)), rtol=1e-5)
    assert model.predict(ROWS).tolist() == ["poor", "rich"]
    assert model.columns == table.columns
    stated = replace(STATEMENT, caveats=("a note", *table.facts.words))
    assert (model.privacy, model.releasable, model.task) == (stated, False, "logistic")


@pytest.mark.parametrize("name", ["logistic", "tuned-ridge"])
def test_a_task_of_ours_is_saved_by_its_problem_too(tmp_path, name):
    """The script of the first tutorial does this: no name of a task is given."""
    made = get(name)(Shape((4,), 2, 1)).problem
    wanted = made.predict(*objectives.start(made), jnp.ones((3, 4)))
    start = dict(zip("xy", objectives.start(made)))
    model = sv.load(
        sv.save(result(start["x"], made.predict, start.get("y")), tmp_path / "m.sv", features=np.ones((1, 4)))
    )
    np.testing.assert_allclose(model.predict(np.ones((3, 4), np.float32)), wanted)


def test_a_number_comes_back_in_its_own_unit(tmp_path):
    table = declared({"range": [1, 10000], "log": True})
    own = sv.save(result(jnp.asarray(0.5), lambda x, rows: x * rows[:, 0] / 0.6), tmp_path / "m.sv", table=table)
    np.testing.assert_allclose(sv.load(own).predict(ROWS), [10.0, 10 ** (4 * (0.5 * 0.8 / 0.6 + 1) / 2)], rtol=1e-4)


AUTHOR = """
import jax.numpy as jnp
def predict(x, y, features):
    return jnp.tanh(features @ x["w"]) * y + jnp.arange(features.shape[0]) * 0
"""
STRANGER = """
import sys
assert "author" not in sys.modules
try:
    import author
    raise SystemExit("the author's module is here")
except ImportError:
    pass
import numpy as np, sottovoce as sv
model = sv.load(sys.argv[1])
print(model.predict(np.array([[1.0, 2.0], [0.0, 0.0], [3.0, -1.0]])).tolist())
"""


@pytest.mark.slow
def test_a_strangers_process_opens_a_model_with_the_authors_own_predict(tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "author.py").write_text(AUTHOR)
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    import author  # type: ignore[import-not-found]

    x, y = {"w": jnp.asarray([0.5, -0.25])}, jnp.asarray(2.0)
    path = sv.save(result(x, author.predict, y), tmp_path / "m.sv", features=np.zeros((1, 2)))
    del sys.modules["author"]
    found = subprocess.run(
        [sys.executable, "-c", STRANGER, str(path)], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    np.testing.assert_allclose(json.loads(found.stdout), 2 * np.tanh([0.0, 0.0, 1.75]), rtol=1e-5)
    with zipfile.ZipFile(path) as archive:  # arrays and JSON only: nothing that a reader would execute
        held = {name: archive.read(name) for name in archive.namelist()}
    assert all(name.endswith(".npy") and b"pickle" not in data and b"'O'" not in data for name, data in held.items())


def test_the_card_and_the_statement_lie_beside_the_model(tmp_path):
    table = declared({"categories": {10: "poor", 1000: "rich"}})
    task = NamedTask("logistic", {}, Shape((4,), 2, 1))
    x = {"weights": jnp.zeros(4), "bias": jnp.asarray(0.0)}
    sv.save(result(x, lambda x, rows: None), tmp_path / "m.sv", table=table, task=task)
    card = (tmp_path / "m.md").read_text()
    for words in ("pay (classes poor, rich)", "| age | 0.0 to 100.0 |", "epsilon is at most 1", "Do not hand", "0.8"):
        assert words in card
    said = json.loads((tmp_path / "m.statement.json").read_text())
    assert (said["epsilon"], said["releasable"]) == (1.0, False)


def test_the_card_has_no_figure_of_private_records_and_no_tag_of_a_name(tmp_path):
    """A card travels with its model: figures of training records have no noise, and names are other people's texts."""
    table = declared({"categories": {10: "poor", 1000: "<script>rich|"}})
    made = result({"weights": jnp.zeros(4), "bias": jnp.asarray(0.0)}, lambda x, rows: None)
    made = replace(made, history={**made.history, "train accuracy": np.array([0.125])})
    task = NamedTask("logistic", {}, Shape((4,), 2, 1))
    sv.save(made, tmp_path / "m.sv", table=table, task=task)
    card = (tmp_path / "m.md").read_text()
    assert "train accuracy" not in card
    assert r"poor, \<script>rich\|" in card


def test_damage_and_strange_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="without predict="):
        sv.save(result(jnp.zeros(2), None), tmp_path / "m.sv", features=np.zeros((1, 2)))
    with pytest.raises(ValueError, match="give table="):
        sv.save(result(jnp.zeros(2), lambda x, rows: rows @ x), tmp_path / "m.sv")
    path = sv.save(result(jnp.zeros(2), lambda x, rows: rows @ x), tmp_path / "m.sv", features=np.zeros((1, 2)))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"m\.sv is damaged"):
        sv.load(path)
