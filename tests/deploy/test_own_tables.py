"""Each site has a table of its own, of which the others learn the number of rows."""

import csv

import numpy as np
import pytest

from sottovoce.data.parts import Levels, Part
from sottovoce.data.population import Population
from sottovoce.deploy.own_part import with_stand_ins
from tests.deploy import cases

SITES = sorted(cases.SITES)
TEXT = """
title = "five hospitals"
[data]
file = "patients.csv"
label = "death"
test = 0
{party}
[data.columns]
age = {{range = [0, 120]}}
sex = {{categories = ["F", "M"]}}
death = {{categories = {{0 = "alive", 1 = "dead"}}}}
[task]
name = "logistic"
[network]
kind = "ring"
[method]
name = "DpSgd"
rate = 0.5
sampling = {{kind = "poisson", batch = 20}}
gradient = {{clip = 1.0}}
[run]
steps = 12
[privacy]
epsilon = 4.0
{deploy}
"""
DEPLOY = f'[deploy]\nsites = {SITES!r}\nnoise = "simulated"'.replace("'", '"')


def rows(site, seed):
    rng = np.random.default_rng(seed)
    for _ in range(60 + 10 * seed):
        age = int(rng.integers(20, 100))
        yield {"age": age, "sex": str(rng.choice(["F", "M"])), "death": int(rng.random() < age / 120), "site": site}


def write(path, lines, fields):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fields, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(lines)


def test_sites_with_tables_of_their_own_equal_one_table_on_one_machine(homes, hall, tmp_path):
    text = TEXT.format(party="", deploy=DEPLOY)
    folder = homes(text)
    tables = {site: list(rows(site, seed)) for seed, site in enumerate(SITES)}
    for site, lines in tables.items():
        write(folder / site / "patients.csv", lines, ["age", "sex", "death"])
    assert hall(folder, text).run().failures == {}
    write(
        tmp_path / "patients.csv",
        [line for lines in tables.values() for line in lines],
        ["age", "sex", "death", "site"],
    )
    whole = TEXT.format(party='party = "site"', deploy="").replace("patients.csv", str(tmp_path / "patients.csv"))
    assert cases.furthest(cases.states(folder, SITES), cases.one_machine(whole)) < 1e-5
    report = (folder / "mid" / "runs" / "r" / "report.html").read_text()
    assert "the number of records of each party was told to all parties, without noise" in report
    assert (folder / "mid" / "runs" / "r" / "run" / "model.npz").exists()


def test_a_column_that_the_policy_does_not_list_is_refused(homes, hall):
    text = TEXT.format(party="", deploy=DEPLOY)
    folder = homes(text)
    path = folder / "mid" / "policy.toml"
    path.write_text(
        path.read_text().replace('file = "patients.csv"', 'file = "patients.csv"\ncolumns = ["age", "death"]')
    )
    with pytest.raises(PermissionError, match="does not agree to column 'sex'"):
        hall(folder, text).parties["mid"].prepare()


READ_OFF = {
    "range": ("age = {range = [0, 120]}", 'age = {range = "public"}', "the range of age is read off"),
    "list": ('sex = {categories = ["F", "M"]}', 'sex = {categories = "public"}', "the list of categories of sex"),
    "share": ("test = 0", 'test = 0\nshare = "public"', "data.share is read off"),
}


@pytest.mark.parametrize("case", READ_OFF)
def test_what_would_be_read_off_a_site_s_rows_without_noise_is_refused(homes, hall, case):
    before, after, why = READ_OFF[case]
    text = TEXT.format(party="", deploy=DEPLOY)
    folder = homes(text)  # there are no tables
    assert before in text
    with pytest.raises(PermissionError, match=why):
        hall(folder, text.replace(before, after)).parties["mid"].prepare()


@pytest.mark.parametrize("kind", ["rows", "ids", "said", "", "single", "units"])
def test_stand_ins_give_the_population_that_was_told(kind):
    """Sizes, and whether a unit pays for both levels, are those of a population in which all records are known."""
    pool, other = np.zeros((30, 2)), np.ones((30, 2))
    ids = np.arange(30) // 2 if kind in ("ids", "units") else None

    def party(first):
        upper, lower = np.arange(first, first + 4), np.arange(first + 4, first + 10)
        if kind in ("single", "units"):
            return Part(pool, lower, ids)
        return Levels(
            Part(pool, upper, ids),
            Part(pool if kind in ("rows", "ids") else other, lower, ids),
            disjoint=kind == "said",
        )

    from sottovoce.deploy.own_part import sizes

    parts = [party(first) for first in (0, 10, 20)]
    names = [f"hospital {number}" for number in range(3)]
    told = {name: sizes(part) for name, part in zip(names, parts)}
    ours, whole = Population.of(with_stand_ins(parts[1], told, names[1])), Population.of(parts)
    assert ours.sizes == whole.sizes
    assert ours.apart == whole.apart
    assert ours.unit == whole.unit
    assert ours.shared == whole.shared


@pytest.mark.parametrize("last", [2**63 - 1, 10])
def test_stand_ins_have_ids_of_their_own(last):
    own = Part(np.zeros((2, 1)), np.arange(2), np.array([last - 1, last]))
    parts = with_stand_ins(own, {name: [2, 0] for name in ("hospital-a", "hospital-b", "hospital-c")}, "hospital-b")
    assert len({int(id) for part in parts for id in part.unit}) == 6


def test_a_party_that_says_it_has_very_many_rows_is_refused():
    with pytest.raises(ValueError, match="south tells sizes"):
        with_stand_ins(np.zeros((2, 1)), {"north": [2, 0], "south": [10**15, 0]}, "north")
