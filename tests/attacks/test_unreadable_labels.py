"""With columns, labels alone are protected: nothing that is sent may depend on whether a label can be read.

Who writes the run file declares the classes. If features of rows with other labels were left out, everybody would see
whose label is none of the declared ones, without an epsilon.
"""

import numpy as np
import pytest

from sottovoce.deploy import own_columns
from sottovoce.deploy.order import Order, Seat
from sottovoce.experiments.planned import setup
from sottovoce.experiments.runfile import RunFile
from tests.deploy import column_cases

POLICY = """
methods = ["Bambi"]
epsilon = 2.0
delta = 0.0
budget = 4.0
data.file = "table.csv"
peers = {}
[columns]
id = "who"
key = "join.key"
features = ["a", "b", "c", "d", "e", "colour"]
label = "y"
"""


def on_one_machine(folder):
    text = column_cases.text(deployed=False).replace("table.csv", str(folder / "table.csv"))
    held = setup(next(iter(RunFile.parse(text).cases.values()))).held
    return np.concatenate(held.columns.blocks, axis=1), held.label


def at_a_site(folder):
    (folder / "policy.toml").write_text(POLICY)
    holders = {"south": column_cases.FEATURES[:-1], "north": ["e"]}
    own = own_columns.read(Seat(folder, "south", Order(column_cases.text(holders=holders), "r")))
    return own.block, own.label


@pytest.mark.parametrize("read", [on_one_machine, at_a_site])
def test_features_do_not_tell_whose_label_is_none_of_the_declared_ones(read, tmp_path):
    found = {}
    for label in ("yes", "ill", ""):
        lines = [{**line, "y": label if place < 100 else line["y"]} for place, line in enumerate(column_cases.people())]
        folder = tmp_path / f"label-{label}"
        folder.mkdir()
        column_cases.write(folder / "table.csv", lines, ["who", *column_cases.FEATURES, "y"])
        found[label] = read(folder)
    assert np.abs(found["yes"][0]).min(axis=0).max() > 0
    for label in ("ill", ""):
        np.testing.assert_array_equal(found[label][0], found["yes"][0])
        assert set(found[label][1].tolist()) == {0, 1}
