"""Attacks by tables of one's own: what was paid to declare them is charged, whoever is listed first."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.accounting.charging import Charging
from sottovoce.data.parts import Facts, Part

RECORDS = {"a": np.arange(400) % 50, "y": np.arange(400) % 2}
METHOD = sv.methods.DpSgd(0.1, sv.Release(1.0, 0.01), sv.Full())


def table(declared, private=None):
    columns = {"a": {"range": declared}, "y": {"categories": [0, 1]}}
    return sv.data.table(RECORDS, label="y", columns=columns, private=private).parts()[0]


def test_a_range_that_one_party_bought_is_charged_whoever_comes_first():
    free, dear = table((0, 50)), table("private", sv.NoisyCounts(3.0, seed=0))
    alone = sv.account(METHOD, [dear], steps=2).epsilon
    for parts in ([free, dear], [dear, free]):
        report = sv.account(METHOD, parts, steps=2, network=sv.networks.ring(2))
        assert report.epsilon == pytest.approx(alone)
        assert any("bought with noisy counts" in line for line in report.caveats)


def test_what_parties_bought_apart_is_charged_at_the_dearest():
    cheap, dear = (table("private", sv.NoisyCounts(epsilon, seed=0)) for epsilon in (0.5, 3.0))
    alone = sv.account(METHOD, [dear], steps=2).epsilon
    report = sv.account(METHOD, [cheap, dear], steps=2, network=sv.networks.ring(2))
    assert report.epsilon == pytest.approx(alone)


def test_a_purchase_that_is_in_the_ledger_of_one_party_is_not_taken_for_another_s():
    """Only what the ledger holds counts as paid: the party whose purchase it does not hold pays with its first step."""
    ledger = sv.Ledger()
    kept, unpaid = (
        sv.data.table(
            {**RECORDS, "who": [name] * 400},
            label="y",
            party="who",
            columns={"a": {"range": "private"}, "y": {"categories": [0, 1]}},
            private=sv.NoisyCounts(1.0, seed=0, ledger=kept_in),
        ).parts()[0]
        for name, kept_in in (("north", ledger), ("south", None))
    )
    quiet = sv.methods.DpSgd(0.1, sv.Release(1.0, 1e6), sv.Full())
    known = account_of(quiet, [kept, unpaid], 2, sv.networks.ring(2))
    Charging(ledger, "run", known).charge(0, 2)
    for name in ("north", "south"):
        assert 0.9 < float(ledger.epsilon(name, 1e-5, "zero-out")) <= 1.001


def test_parties_that_protect_different_units_are_refused():
    rows = np.ones((8, 2), np.float32)
    parts = [Part(rows, np.arange(4) + 4 * k, np.arange(8) // 2, facts=Facts(unit=name)) for k, name in enumerate("ab")]
    with pytest.raises(ValueError, match=r"different units \(a and b\): name one unit"):
        sv.account(METHOD, parts, steps=1, network=sv.networks.ring(2))
