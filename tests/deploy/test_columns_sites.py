"""Sites that hold different columns of the same people: rows are joined privately, then one model is trained."""

import json
import re
import shutil
import tomllib

import pytest

from sottovoce.deploy.order import Order
from sottovoce.deploy.outbox import Outbox
from sottovoce.deploy.poc import distributed
from sottovoce.experiments.runfile import RunFile
from sottovoce.experiments.toml import dump
from sottovoce.files import read_facts
from sottovoce.runtime import loop
from sottovoce.runtime.frames import Message
from tests.deploy import column_cases as cases
from tests.deploy.test_parties import stopping

pytest.importorskip("private_set_intersection.python")


@pytest.mark.slow
def test_five_sites_with_columns_equal_the_run_on_one_machine(homes, hall, tmp_path):
    text = cases.text()
    folder = homes(text)
    common = cases.spread(folder)
    assert hall(folder, text).run().failures == {}
    whole = cases.one_machine(cases.text(deployed=False), cases.in_order(common, folder), tmp_path)
    assert cases.furthest(folder, whole) < 1e-5
    stored = json.loads((folder / cases.ACTIVE / "runs" / "r" / "run" / "result.json").read_text())
    assert stored["history"]["accuracy"] == pytest.approx(whole.history["accuracy"].tolist())


TWO = {"north": ["a", "c"], "south": ["b", "colour", "d", "e"]}


def kits_of_two(homes, text, **how):
    folder = homes(text)
    return folder, cases.spread(folder, TWO, **how)


def changed(path, **tables):
    """Change some entries of a policy."""
    policy = tomllib.loads(path.read_text())
    for name, entries in tables.items():
        policy[name] = {**policy.get(name, {}), **entries} if isinstance(entries, dict) else entries
    path.write_text(dump(policy))


@pytest.mark.parametrize("noise", ["exact", "simulated"])
def test_a_run_that_was_stopped_says_the_same_bytes_and_pays_once(homes, hall, noise, monkeypatch, caplog, tmp_path):
    """Stopped in the join, before the first checkpoint, and later; the label store and the list of joins count once."""
    text, heard = cases.text(noise, steps=8, every=2, holders=TWO), {}
    folder, common = kits_of_two(homes, text, seed=1)
    honest, same, again = Outbox.after, [], []

    def after(self, hearer, place, seconds):
        found = honest(self, hearer, place, seconds)
        if found is not None:
            where = (str(self._said), hearer, found[0])
            again.append(where in heard)
            same.append(heard.setdefault(where, found[1]) == found[1])
        return found

    monkeypatch.setattr(Outbox, "after", after)
    monkeypatch.setattr(loop, "_SAVE_SECONDS", 0.0)
    for calls in (14, 24, 80, 10**9):
        now = hall(folder, text)
        now.between = stopping(calls, now.parties)
        now.run()
    assert now.failures == {}
    assert all(same)
    assert any(again)
    assert "came out differently" not in caplog.text
    assert len(read_facts(folder / "north" / "joins.json", "the list of a site's joins", 1, "")["joins"]) == 1
    if noise == "exact":
        stored = json.loads((folder / "south" / "runs" / "r" / "run" / "result.json").read_text())
        assert stored["privacy"]["epsilon"] == 2.0
        assert stored["privacy"]["drawn"] == "exact"
    else:
        whole = cases.one_machine(
            cases.text(steps=8, every=2, holders=TWO, deployed=False), cases.in_order(common, folder), tmp_path
        )
        assert cases.furthest(folder, whole) < 1e-5


def test_each_site_s_statement_names_what_was_disclosed(homes, hall):
    text = cases.text("exact", steps=2, every=2, holders=TWO)
    folder, common = kits_of_two(homes, text, seed=2)
    for site in TWO:
        changed(folder / site / "policy.toml", columns={"joins": 2})
    assert hall(folder, text, run="one").run().failures == {}
    said = {site: (folder / site / "runs" / "one" / "report.html").read_text() for site in TWO}
    for words in (
        f"which {len(common)} rows they have in common",
        "head outputs for every row of a batch",
        "their head outputs reach the label holder too",
        "joined its rows in 1 runs, and its policy agrees to 2",
        "features are not covered",
        "Nothing protects the features that the model was computed from",
    ):
        assert all(words in report for report in said.values()), words
    assert "has spent before is in its own statement" in said["north"]
    assert "Epsilon 0 of 2 is left" in said["south"]
    assert "The guarantee does not cover accuracy and loss in this report" in said["south"]
    assert "This site has no labels" in said["north"]  # and measures nothing
    assert "At the end " not in said["north"]
    assert "The guarantee does not cover" not in said["north"]
    cases.spread(folder, TWO, missing=30, seed=2)
    everybody = list(cases.people(seed=2))
    cases.write(folder / "south" / "table.csv", everybody, ["who", *TWO["south"], "y"])
    failed = hall(folder, text, run="two").run(together=True).failures
    assert "belongs to other rows" in str(failed["south"])  # its own table has other rows now: that is not this site's


def test_what_two_runs_spend_on_one_label_is_added_up(homes, hall):
    text = cases.text("exact", steps=2, every=2, holders=TWO)
    folder, _ = kits_of_two(homes, text, seed=3)
    for site in TWO:
        changed(folder / site / "policy.toml", columns={"joins": 3}, budget=3.0)
    for run, north in (("one", 10), ("two", 40)):  # the second time more people are missing at the other site
        shutil.copy(folder / "south" / "table.csv", folder / "kept.csv")
        cases.spread(folder, TWO, missing=north, seed=3)
        shutil.copy(folder / "kept.csv", folder / "south" / "table.csv")
        assert hall(folder, text, run=run).run().failures == {}
        stored = json.loads((folder / "south" / "runs" / run / "run" / "result.json").read_text())
        assert stored["privacy"]["epsilon"] == 2.0
    dearer = text.replace("epsilon = 2.0", "epsilon = 1.5").replace("deadline = 120", "deadline = 3")
    failed = hall(folder, dearer, run="three").run(together=True).failures  # another draw of the same labels
    assert type(failed["south"]).__name__ == "BudgetExceeded"
    assert not list((folder / "south" / "runs" / "three" / "outbox").glob("said/*/000000000-00000[2-9]"))


BEYOND = {  # what the policy of the label holder says, or the run file, and how the refusal begins
    "no table": (lambda policy, text: policy.pop("columns"), "does not agree to [columns]"),
    "a feature": (
        lambda policy, text: policy["columns"].update(features=["b", "d"]),
        "does not agree to feature 'colour'",
    ),
    "the label as a feature": (
        lambda policy, text: text.replace('"colour"', '"y"').replace('label = "y"', 'label = "colour"'),
        "does not agree to feature 'y'",
    ),
    "another label": (lambda policy, text: policy["columns"].update(label="z"), "does not agree to label 'y'"),
    "no label": (
        lambda policy, text: policy["columns"].pop("label") and None,
        "does not agree to label 'y': it allows none",
    ),
    "the id": (lambda policy, text: policy["columns"].update(id="ssn"), "does not agree to id 'who'"),
    "a column": (lambda policy, text: policy["data"].update(columns=["b", "y"]), "does not agree to column 'colour'"),
    "epsilon": (lambda policy, text: policy.update(epsilon=1.0), "does not agree to epsilon 2.0"),
    "rows": (
        lambda policy, text: re.sub(r"(?s)\[columns\].*?\[method\]", "[method]", text).replace('id = "who"', ""),
        "is for runs over columns",
    ),
    "no privacy": (
        lambda policy, text: text.replace("epsilon = 2.0", "enabled = false"),
        "does not agree to no privacy",
    ),
    "true labels": (
        lambda policy, text: text.replace("epsilon = 2.0", "").replace("rate_y", 'labels = "open"\nrate_y'),
        "asks what a label costs: set privacy.epsilon",
    ),
}


@pytest.mark.parametrize("case", BEYOND)
def test_a_role_that_the_policy_does_not_give_to_a_column_is_refused_before_a_row_is_read(homes, hall, case):
    change, why = BEYOND[case]
    text = cases.text("exact", holders=TWO)
    folder = homes(text)  # there are no tables
    path = folder / "south" / "policy.toml"
    policy = tomllib.loads(path.read_text())
    given = change(policy, text)
    path.write_text(dump(policy))
    with pytest.raises(PermissionError, match=re.escape(why)):
        hall(folder, given if isinstance(given, str) else text).parties["south"].prepare()


def test_joins_few_common_rows_long_lists_and_other_classes_are_refused(homes, hall):
    text = cases.text("exact", steps=2, holders=TWO, deadline=3)
    folder, common = kits_of_two(homes, text.replace("deadline = 3", "deadline = 600"), seed=4)
    path = folder / "north" / "policy.toml"

    def failure(run, given=text, site="north"):
        return str(hall(folder, given, run=run).run(together=True).failures[site])

    changed(path, columns={"joins": 0})
    assert "does not agree to another join: 0 of 0 took place" in failure("none")
    assert not (folder / "north" / "runs" / "none" / "outbox").exists()  # nothing was said
    assert not (folder / "south" / "joins.json").exists()  # and no other site's joins were used up
    changed(folder / "south" / "policy.toml", columns={"joins": 9})
    changed(path, columns={"joins": 2, "longest": 100})
    assert "at most 100 are agreed to" in failure("long")
    changed(path, columns={"longest": 1000, "fewest": len(common) + 1})
    assert "does not agree to so few common rows" in failure("few")
    assert not (folder / "south" / "labels-y.npz").exists()  # no label was drawn so far
    changed(path, columns={"fewest": 1})
    assert "does not agree to another join: 2 of 2 took place" in failure("third")
    changed(path, columns={"joins": 9})
    assert hall(folder, text.replace("deadline = 3", "deadline = 600"), run="fine").run(together=True).failures == {}
    turned = text.replace('categories = ["no", "yes"]', 'categories = {yes = "no", no = "yes"}')
    assert "labels of y were drawn with another declaration" in failure("turned", turned, "south")


WRONG = {
    "who has the label": ('[columns]\nactive = "south"', "", "columns.active is missing"),
    "ids": ('id = "who"', "", "data.id is missing"),
    "order": ('sites = ["north", "south"]', 'sites = ["south", "north"]', "in the order of deploy.sites"),
    "stages": ('active = "south"', 'active = "south"\nstages = 2', "are for one machine"),
    "question": ('active = "south"', 'active = "south"\nquestion = "classes"', "are for one machine"),
    "absent": ('noise = "exact"', 'noise = "exact"\nabsent = "go on"', "every party is needed"),
    "range": ("c = {range = [-3, 3]}", 'c = {range = "public"}', "needs it declared"),
    "label": ('y = {categories = ["no", "yes"]}', "y = {range = [0, 1]}", "needs declared categories"),
    "nobody": ('north = ["a", "c"]', 'north = ["a"]', "nobody holds c"),
    "declared id": ('id = "who"', 'id = "a"', "an id is no feature"),
    "active": ('active = "south"', 'active = "sout"', "did you mean 'south'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_run_file_that_sites_with_columns_cannot_run_is_refused_with_the_remedy(case):
    before, after, why = WRONG[case]
    text = cases.text("exact", holders=TWO)
    assert before in text
    with pytest.raises(ValueError, match=re.escape(why)):
        Order(text.replace(before, after), "r").case()


def test_a_trial_gives_each_site_its_own_columns_and_ids(tmp_path):
    cases.write(tmp_path / "table.csv", list(cases.people(20)), ["who", *cases.FEATURES, "y"])
    (tmp_path / "mine.toml").write_text(cases.text(holders=TWO).replace('id = "who"', ""))
    text, tables = distributed(RunFile.load(tmp_path / "mine.toml"))
    assert {site: table.decode().split("\r\n")[0] for site, table in tables.items()} == {
        "north": "row,a,c", "south": "row,b,colour,d,e,y",
    }  # fmt: skip
    assert Order(text, "r").case()[1].data.id == "row"


def test_a_peer_that_comes_back_with_another_list_is_not_answered(homes, hall, caplog):
    """One run is one join: north forgets what it asked, and asks about other people under the same run's name."""
    text = cases.text("exact", steps=2, every=2, holders=TWO)
    folder, _ = kits_of_two(homes, text, seed=5)
    answered = folder / "south" / "runs" / "r"
    now = hall(folder, text)

    def between(caller, name, data):
        if (answered / "joined.json").exists():
            for party in now.parties.values():
                party.stop()
        return data

    now.between = between
    now.run()
    said = {path: path.read_bytes() for path in answered.glob("outbox/said/*/*")}
    tags = [Message.from_bytes(data).id.tag for data in said.values()]
    assert "join: question" in tags
    assert "join: answer" in tags
    shutil.rmtree(folder / "north" / "runs")
    everybody = list(cases.people(seed=6))
    cases.write(folder / "north" / "table.csv", everybody[:100], ["who", *TWO["north"]])
    assert set(hall(folder, text).run(together=True).failures) == {"north", "south"}
    assert all(path.read_bytes() == data for path, data in said.items())
    assert len(read_facts(folder / "south" / "joins.json", "the list of a site's joins", 1, "")["joins"]) == 1


def test_a_run_whose_folder_was_removed_is_another_join(homes, hall):
    """South does not know any more what it answered: under the same name it would answer another list."""
    text = cases.text("exact", steps=2, every=2, holders=TWO, deadline=3)
    folder, _ = kits_of_two(homes, text.replace("deadline = 3", "deadline = 600"), seed=7)
    changed(folder / "north" / "policy.toml", columns={"joins": 9})
    assert hall(folder, text.replace("deadline = 3", "deadline = 600")).run(together=True).failures == {}
    for site in TWO:
        shutil.rmtree(folder / site / "runs")
    failed = hall(folder, text).run(together=True).failures
    assert "does not agree to another join: 1 of 1 took place" in str(failed["south"])
