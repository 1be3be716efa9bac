"""Who a record belongs to is known across tables, and who moved it to a party is said."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.data import Column, Levels, Part, split

COLUMNS = {"a": Column(range=(0, 1)), "y": Column(categories=["no", "yes"])}


def patients(who, site=None):
    """Return a table of these patients' rows, by site if sites are named."""
    rows = {"a": np.linspace(0, 1, len(who)), "y": ["no", "yes"] * (len(who) // 2), "who": who}
    named = {} if site is None else {"site": site}
    return sv.data.table(rows | named, "y", columns=COLUMNS, unit="who", party=None if site is None else "site")


def test_a_patient_is_the_same_one_in_two_tables():
    sites = ["north", "north", "south", "south"]
    judged, trained = patients(["x", "x", "a", "b"], sites), patients(["x", "x", "y", "y"], sites)
    parts = [Levels(upper, lower) for upper, lower in zip(judged.parts(), trained.parts())]
    population = sv.Population.of(parts)
    assert population.apart == ("", "ids")  # x judges and trains in the north; nobody does so in the south
    assert [population.in_both_levels(party) for party in range(2)] == [True, False]


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (["p", "p", "q", "q"], ["r", "r", "s", "s"], False),
        (["p", "p", "q", "q"], ["a", "b", "c", "q"], True),
        ([7, 7, 8, 8], ["1", "2", " 8", "9"], True),
        ([7, 8], [8.0, np.nan], True),
        (["7", "8"], ["8.0", ""], True),  # as a file writes it, where another row has no id
    ],
)
def test_two_hospitals_with_a_file_each_say_whether_they_share_a_patient(one, other, shared):
    population = sv.Population.of([part for who in (one, other) for part in patients(who).parts()])
    assert population.spread is shared


def test_rows_without_an_id_are_units_of_their_own():
    held = patients(["p", "", "p", None])
    assert held.parts()[0].units == 3
    both = sv.Population.of([Levels(held.parts()[0], patients(["q", "", "q", ""]).parts()[0])])
    assert both.apart == ("",)  # nobody knows whose these rows are


def test_ids_of_two_kinds_are_refused():
    """The patient 1.0 of a level that pandas read and "1" of the other were two units, each charged for one level."""
    for one, other in [(np.ones(4), np.array(["1"] * 4)), (np.array([1] * 4, object), np.array(["1"] * 4, object))]:
        levels = Levels(*(Part(np.zeros((4, 2)), np.arange(4), ids) for ids in (one, other)))
        with pytest.raises(ValueError, match="numbers in one place and texts in another"):
            sv.Population.of([levels])


ROWS = {"features": np.zeros((40, 2), np.float32), "label": np.arange(40) % 2}


@pytest.mark.parametrize("by", ["label", "dirichlet", "iid"])
def test_a_split_that_reads_labels_is_in_every_statement(by):
    declared = sv.data.table({"a": [0.0] * 40, "y": ["no", "yes"] * 20}, "y", columns=COLUMNS)
    method = sv.methods.DpSgd(0.1, sv.Release(1.0, 0.1), sv.Full())
    for parts in (split(ROWS, 2, by), declared.parts(2, by)):
        report = sv.account(method, parts, steps=1, network=sv.networks.ring(2))
        assert any("all labels are taken as public" in line for line in report.caveats) is (by != "iid")
