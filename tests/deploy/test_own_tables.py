"""Each site has a table of its own, of which the others learn the number of rows."""

import csv
import json

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


def test_sites_run_what_auto_chooses(homes, hall):
    """Its epsilon counts a record left out; that of a method by hand on full batches counts one that is replaced."""
    before, method = TEXT.split("[network]")
    text = (before + method[method.index("[run]") :].replace("steps = 12", "")).format(party="", deploy=DEPLOY)
    folder = homes(text)
    for seed, site in enumerate(SITES):
        write(folder / site / "patients.csv", rows(site, seed), ["age", "sex", "death"])
    assert hall(folder, text).run().failures == {}
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


AUTHORS = {  # what the author of a run file may not choose for a site: what is set, and how the refusal begins
    "unit": ('unit = "sex"', "does not agree to an epsilon per sex: it names no data.unit"),
    "unlisted unit": ('unit = "hiv"', "does not agree to an epsilon per hiv"),
    "id": ('id = "sex"', "data.id is not for a federation"),
    "party": ('party = "sex"', "data.party is not for a federation"),
    "split": ('by = "label"', "data.by is not for a federation"),
    "sizes": ("by = 'sizes'\nsizes = [60]", "data.(by|sizes) is not for a federation"),
    "agents": ("agents = 1", "data.agents is not for a federation"),
    "limit": ("limit = 10", "data.limit is not for a federation"),
    "positive": ("positive = [1]", "data.positive is not for a federation"),
    "private": ("private = 0.1", "data.private is not for a federation"),
    "a new key": ("filter = 'age > 60'", "data.filter is not for a federation"),
    "a column beside the features": ('features = ["age"]', "does not agree to column 'sex'"),
}


@pytest.mark.parametrize("case", AUTHORS)
def test_what_the_author_of_a_run_file_may_not_choose_is_refused_before_a_record_is_read(homes, hall, case):
    """A unit of its choice made a site tell how many values a column has, and weakened "a record left out"."""
    line, why = AUTHORS[case]
    text = TEXT.format(party="", deploy=DEPLOY)
    folder = homes(text)  # there are no tables
    path = folder / "mid" / "policy.toml"
    if "column" in case:
        path.write_text(path.read_text().replace("[data]", '[data]\ncolumns = ["age", "death"]'))
    with pytest.raises(PermissionError, match=why):
        hall(folder, text.replace("test = 0", f"test = 0\n{line}")).parties["mid"].prepare()
    assert not (folder / "mid" / "ledger.jsonl").exists()


@pytest.mark.parametrize(("granted", "asked", "fits"), [(None, None, True), ("who", "who", True), ("who", None, False),
                                                         ("who", "sex", False), (None, "who", False)])  # fmt: skip
def test_a_unit_is_a_role_that_the_policy_grants_by_name(granted, asked, fits):
    """It need not be among the columns that may be used: it is none of them."""
    from sottovoce.deploy.order import Order
    from sottovoce.deploy.policy import OwnData, Policy

    unit = "" if asked is None else f'unit = "{asked}"'
    case = Order(TEXT.format(party=unit, deploy=DEPLOY), "r").case()[1]
    held = OwnData(file="patients.csv", columns=["age", "sex", "death"], unit=granted)
    policy = Policy(
        methods=["DpSgd"], epsilon=4, delta=1e-5, budget=4, data=held, noise=["simulated"],
        peers=dict.fromkeys(SITES, "00"),
    )  # fmt: skip
    if fits:
        return policy.require(case, "mid", "simulated", SITES)
    with pytest.raises(PermissionError, match="does not agree to an epsilon per"):
        policy.require(case, "mid", "simulated", SITES)


def test_sizes_are_told_in_the_unit_of_the_policy(homes, hall):
    """The number of patients is told, not that of rows; the statement says so."""
    two = SITES[:2]
    deploy = f"[deploy]\nsites = {two!r}\nnoise = 'simulated'"
    text = TEXT.format(party='unit = "patient_id"', deploy=deploy).replace("steps = 12", "steps = 1")
    text = text.replace("ring", "complete")
    folder = homes(text)
    for seed, site in enumerate(two):
        lines = [{**line, "patient_id": number // 2} for number, line in enumerate(rows(site, seed))]
        write(folder / site / "patients.csv", lines, ["age", "sex", "death", "patient_id"])
    assert hall(folder, text).run().failures == {}
    stored = json.loads((folder / two[0] / "runs" / "r" / "run" / "result.json").read_text())
    told = "the number of patients of each party was told to all parties, without noise"
    assert told in stored["privacy"]["caveats"]
    assert stored["about"]["sizes"] == {"patient_id": [30, 35]}
    assert told.removesuffix(", without noise") in (folder / two[0] / "runs" / "r" / "report.html").read_text()


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
