"""What a site's policy does not agree to is refused before a record is read."""

import tomllib

import pytest

from sottovoce.experiments import build
from sottovoce.experiments.toml import dump
from tests.deploy import cases

BEYOND = {  # what the policy says instead, and how the refusal begins
    "method": ({"methods": ["LdpDsbo"]}, "does not agree to method 'DpSgd'"),
    "task": ({"tasks": ["logistic"]}, "does not agree to task 'softmax'"),
    "epsilon": ({"epsilon": 7.9}, "does not agree to epsilon 8.0: at most epsilon 7.9"),
    "delta": ({"delta": 1e-6}, "does not agree to delta 1e-05: at most 1e-06"),
    "noise": ({"noise": ["exact"]}, "does not agree to noise 'simulated'"),
    "data": ({"data": {"name": "mnist"}}, "does not agree to data 'digits'"),
    "file": ({"data": {"file": "patients.csv"}}, "is for patients.csv"),
    "adjacency": ({"adjacency": "replace-one"}, "does not agree to an epsilon for a record left out"),
    "unit": ({"data": {"name": "digits", "unit": "patient"}}, "does not agree to an epsilon per record"),
    "no unit": ({}, "does not agree to an epsilon per label: it names no data.unit"),
    "peer": ({"peers": {"north": "00"}}, "does not agree to peer 'east'"),
}


@pytest.mark.parametrize("case", BEYOND)
def test_a_configuration_beyond_the_policy_is_refused_before_a_record_is_read(homes, hall, monkeypatch, case):
    changed, why = BEYOND[case]
    text = cases.text()
    folder = homes(text)
    text = text.replace('name = "digits"', 'name = "digits"\nunit = "label"') if case == "no unit" else text
    path = folder / "south" / "policy.toml"
    path.write_text(dump({**tomllib.loads(path.read_text()), **changed}))
    monkeypatch.setattr(build, "records", lambda table: pytest.fail("a record was read"))
    party = hall(folder, text).parties["south"]
    with pytest.raises(PermissionError, match=why):
        party.prepare()
    assert not (folder / "south" / "ledger.jsonl").exists()


def test_a_budget_over_several_runs_is_kept(homes, hall):
    """The second run would bring every site over its budget: it is refused, and nothing is charged or sent."""
    text = cases.text(steps=2)
    folder = homes(text)
    assert hall(folder, text, run="one").run().failures == {}
    before = (folder / "south" / "ledger.jsonl").read_bytes()
    failures = hall(folder, text.replace("deadline = 120", "deadline = 5"), run="two").run().failures
    assert {type(failure).__name__ for failure in failures.values()} == {"BudgetExceeded"}
    assert (folder / "south" / "ledger.jsonl").read_bytes() == before


@pytest.mark.parametrize("run", ["../elsewhere", "", "a/b", ".", "/tmp/x"])
def test_the_name_of_a_run_is_no_path(homes, hall, run):
    text = cases.text()
    with pytest.raises(ValueError, match="the run's name"):
        hall(homes(text), text, run=run)


def test_another_run_file_under_the_name_of_a_run_that_was_begun_is_refused(homes, hall):
    """What was drawn for the first one would serve the second. How long a silent party is waited for may change."""
    text = cases.text(steps=2)
    folder = homes(text)
    hall(folder, text, run="one").parties["south"].prepare()  # it was killed before its first step
    for other in (
        text.replace("clip = 1.0", "clip = 2.0"),
        text.replace('kind = "ring"', 'kind = "complete"'),
        text.replace("steps = 2", "steps = 1"),
    ):
        assert other != text
        with pytest.raises(PermissionError, match="south began one with another run file"):
            hall(folder, other, run="one").parties["south"].prepare()
    hall(folder, text.replace("deadline = 120", "deadline = 5"), run="one").parties["south"].prepare()


def test_noise_by_hand_needs_its_cost_before_policies_are_written(tmp_path, monkeypatch):
    """`deploy provision` does not know the cost, because it sees no table; `deploy poc` computes it."""
    from sottovoce.deploy import kits
    from sottovoce.deploy.order import Order
    from sottovoce.deploy.poc import agree

    document = tomllib.loads(cases.text())
    del document["privacy"]["epsilon"]
    text = dump(document).replace("clip = ", "noise = 0.1\nclip = ", 1)
    with pytest.raises(ValueError, match=r"privacy\.epsilon is missing: .* Write privacy.epsilon in the run file"):
        agree(Order(text, "r"), tmp_path)
    assert not list(tmp_path.iterdir())
    sites = Order(text, "r").case()[2].sites
    monkeypatch.setattr(kits, "fingerprints", lambda made, sites: dict.fromkeys(sites, "00"))
    for site in sites:
        (tmp_path / site).mkdir()
    agree(Order(text, "r"), tmp_path, 5.76)
    policies = [tomllib.loads((tmp_path / site / "policy.toml").read_text()) for site in sites]
    assert {(policy["epsilon"], policy["budget"]) for policy in policies} == {(5.76, 5.76)}
