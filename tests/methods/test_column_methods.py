"""Methods over columns: nobody outside of its folder knows one by name, and a new one is one file."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.experiments.runfile import RunFile
from sottovoce.methods.column_method import ColumnMethod
from sottovoce.privacy.labels import Memoised, Open
from sottovoce.registry import over_columns, usual_over_columns

SOURCE = Path(sv.__file__).parent
OWN = ("papers/bambi/", "laboratory/bambi/", "methods/vertical_sgd.py")
LISTED = "registry.py"  # which of them is taken where nobody names one
EXAMPLE = r"(>>>|^\s*\.\.\.|^    [ms]\w+ = )"  # examples of use may name one that they build


def test_nobody_knows_a_method_over_columns_by_name() -> None:
    names = re.compile(rf"\b({'|'.join(over_columns)}|papers\.bambi\.method)\b")
    found = [
        f"{file.relative_to(SOURCE).as_posix()}:{number}"
        for file in sorted(SOURCE.rglob("*.py"))
        if not file.relative_to(SOURCE).as_posix().startswith((*OWN, LISTED))
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if names.search(line) and not line.strip().startswith((">>>", "..."))
    ]
    assert found == ["methods/column_method.py:3"], f"ask the method (`ColumnMethod`) instead: {found}"
    (line,) = [line for line in (SOURCE / LISTED).read_text().splitlines() if names.search(line)]
    assert line.startswith("usual_over_columns = ")


def test_the_abstract_method_is_no_method() -> None:
    assert "ColumnMethod" not in sv.methods.Method.registry
    with pytest.raises(NotImplementedError, match="VerticalSgd has no usual settings"):
        sv.methods.VerticalSgd.usual(100)
    assert issubclass(usual_over_columns, ColumnMethod)


def table(seed: int | None = 0) -> sv.Table:
    rng = np.random.default_rng(0)
    blocks = [rng.normal(size=(400, 2)).astype(np.float32) for _ in range(2)]
    label = (blocks[0][:, 0] + blocks[1][:, 1] > 0).astype(int)
    return sv.Table(sv.Columns(blocks).levels(0.25), sv.Labels(label, classes=2, seed=seed))


def sgd(gate: Any) -> Any:
    return sv.methods.VerticalSgd(batch=50, rate_x=0.0, rate_y=1.0, labels=gate)


def test_one_level_reads_the_rows_of_both() -> None:
    from sottovoce.accounting.table import schedule

    held, method = table(), sgd(Open())
    rows = schedule(held.columns, method, 0, 0, 8)["all"]
    assert rows.shape == (8, 1, 50)
    assert sorted(rows.ravel().tolist()) == list(range(400))
    report = sv.account(method.behind(Memoised(1.0)), held, steps=3, problem=problem())
    assert report.epsilon == 1.0
    assert "at all rows, once per step, 1 copy" in report.events[0]


def problem() -> Any:
    from sottovoce.problems.tasks.vertical import hyper_parameters

    return hyper_parameters([2, 2])


def test_fresh_noise_is_charged_for_what_one_level_uses() -> None:
    """A pass of eight batches uses each label once: epsilon is that of one use; two passes cost twice as much."""
    fresh = sgd(sv.privacy.labels.Fresh(2.0))
    assert sv.account(fresh, table(), steps=8, problem=problem()).epsilon == pytest.approx(0.5)
    assert sv.account(fresh, table(), steps=16, problem=problem()).epsilon == pytest.approx(1.0)


RUN = """
data = {name = "patients"}
run = {steps = 6, every = 3, metric = "accuracy"}
privacy = {epsilon = 2.0}
task = {name = "vertical-coefficients"}
columns = {parties = 2, test = 0.2}
[method]
name = "VerticalSgd"
batch = 50
rate_x = 0.0
rate_y = {kind = "adam", rate = 0.1}
"""


def test_run_files_take_it_by_name(tmp_path: Path) -> None:
    from sottovoce.deploy.policy import method_of
    from sottovoce.experiments.columns import setup

    (case,) = RunFile.parse(RUN).cases.values()
    assert method_of(case) == "VerticalSgd"
    made = setup(case)
    assert made.account.epsilon == 2.0
    assert np.isfinite(made.run(0, tmp_path / "out").history["loss"]).all()
