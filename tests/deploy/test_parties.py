"""A party's run, without FLARE: policy, agreement, ledger, resuming."""

import pytest

from sottovoce.privacy.ledger import Ledger
from tests.deploy import cases


@pytest.mark.parametrize(
    "method", ["DpSgd", *(pytest.param(name, marks=pytest.mark.slow) for name in cases.METHODS if name != "DpSgd")]
)
def test_five_parties_equal_the_run_on_one_machine(homes, hall, method):
    text = cases.text(method)
    folder = homes(text)
    assert hall(folder, text).run().failures == {}
    assert cases.furthest(cases.states(folder), cases.one_machine(text)) < 1e-5
    for site in cases.SITES:
        assert {
            step for run, *steps, attempt in Ledger(folder / site / "ledger.jsonl").entries for step in range(*steps)
        } == set(range(20))
