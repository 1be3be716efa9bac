"""What a sum's statement says of colluders and of people at several parties, against a script that shares no code."""

import json
import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.privacy.test_trust import exact_delta, together

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.privacy import against
from sottovoce.privacy.gdp import gdp_delta
from sottovoce.privacy.mechanisms import Mechanism, PoissonAmplification
from sottovoce.privacy.trust import share_scale

GOLDEN = {  # printed by sum_oracle.py
    (3, 1): [1.0, 1.4652],
    (5, 1): [1.0, 1.1714, 1.4652, 2.1547],
    (6, 3): [1.0, 1.2499, 1.835],
}
SEVERAL = {2: 2.1547, 3: 3.407}
ONE_BATCH = {(0.01, 1): 0.855, (0.01, 2): 1.755, (0.01, 3): 2.581, (0.2, 2): 10.211}


def calibrated(parties: int, colluding: int, sampling: Any = None, steps: int = 7, **how: Any) -> sv.PrivacyReport:
    method = sv.methods.DpSgd(0.5, sv.Release(1.0, 0.02), sampling or sv.Full())
    run: dict[str, Any] = {"steps": steps, "trust": sv.Sum(colluding), "adjacency": "zero-out"}
    clinics = sv.Population([300] * parties, names=tuple("abcdefghijklmnopqrstuvwxyz"[:parties]), **how)
    return sv.account(sv.calibrate(method, clinics, epsilon=1.0, **run), clinics, **run)


@pytest.mark.parametrize(("parties", "colluding"), GOLDEN)
def test_colluders_find_what_was_worked_out_by_hand(parties: int, colluding: int) -> None:
    told = calibrated(parties, colluding).against
    assert told is not None
    assert [count for count, _ in told.colluders] == list(range(colluding, parties))
    np.testing.assert_allclose([epsilon for _, epsilon in told.colluders], GOLDEN[parties, colluding], rtol=2e-3)
    np.testing.assert_allclose([epsilon for _, epsilon in told.several], list(SEVERAL.values()), rtol=2e-3)


@pytest.mark.parametrize(("rate", "held"), ONE_BATCH)
def test_a_person_at_several_parties_pays_the_mixture(rate: float, held: int) -> None:
    once = Mechanism(gaussian=1.43**2, amplification=PoissonAmplification(rate))
    found = against.at_several(((once, 1),), held, 1e-5, "zero-out")
    assert ONE_BATCH[rate, held] - 1e-3 <= found <= 1.01 * ONE_BATCH[rate, held]


@pytest.mark.slow
def test_many_batches_cost_far_less_than_a_shift_by_two() -> None:
    once = Mechanism(gaussian=1.43**2, amplification=PoissonAmplification(0.01))
    twice = Mechanism(gaussian=(2 * 1.43) ** 2, amplification=PoissonAmplification(0.01))
    spent = ((once, 500),)
    assert round(against.at_several(spent, 2, 1e-5, "zero-out"), 1) == 7.3
    assert round(sv.privacy.accountant.epsilon(((twice, 500),), 1e-5, "zero-out")) == 31
    alone = sv.privacy.accountant.epsilon(spent, 1e-5, "zero-out")
    assert math.isclose(against.at_several(spent, 1, 1e-5, "zero-out"), alone, rel_tol=1e-3)


@pytest.mark.slow
def test_at_small_rates_a_shift_is_no_bound() -> None:
    once = Mechanism(gaussian=0.5**2, amplification=PoissonAmplification(1e-4))
    twice = Mechanism(gaussian=1.0, amplification=PoissonAmplification(1e-4))
    shifted = sv.privacy.accountant.epsilon(((twice, 1),), 1e-5, "zero-out")
    mixture = against.at_several(((once, 1),), 2, 1e-5, "zero-out")
    assert mixture != shifted  # two coins fall more often than one


@pytest.mark.slow
def test_replacing_a_person_costs_at_most_both_bounds() -> None:
    once = Mechanism(gaussian=0.3**2, amplification=PoissonAmplification(0.01))
    one, two = (against.at_several(((once, 20),), 2, 1e-5, adjacency) for adjacency in ("zero-out", "replace-one"))
    assert one < two < math.inf
    plain = ((Mechanism(gaussian=0.01), 3),)
    assert against.at_several(plain, 2, 1e-5, "replace-one") == against.at_several(plain, 4, 1e-5, "zero-out")


@pytest.mark.parametrize("shares", [[8, 8, 8], [9, 20, 11]])
def test_every_number_of_colluders_on_a_coarse_grid_is_covered(shares: list[int]) -> None:
    """Exact sums of the honest shares that are left, equal and unequal, against N(0, sum of squares - 9)."""
    for honest in (shares, shares[1:], shares[2:]):
        law, charged = together(honest), 10 / math.sqrt(sum(s * s for s in honest) - 9)
        for eps in np.linspace(0, 4 * charged, 12):
            assert exact_delta(law, 10, eps) <= gdp_delta(charged, eps) + 1e-13


def test_what_is_stated_is_what_shares_on_the_grid_leave() -> None:
    """The statement asks no place for its grid; the shares that a place draws leave at least as much."""
    method, clinics = sv.methods.DpSgd(0.5, sv.Release(1.0, 0.02), sv.Full()), sv.Population([300] * 5)
    account = account_of(method, clinics, 7, adjacency="zero-out", trust=sv.Sum(1))
    grid = sv.privacy.discrete.on_grid(account.charges[0].release, 1500)
    share = share_scale(grid.scale, 5, 1)
    told = account.statement.against
    assert told is not None
    for count, epsilon in told.colluders:
        noise = math.sqrt((5 - count) * share**2 - 9) * grid.step / 1500
        left = sv.account(
            sv.methods.DpSgd(0.5, sv.Release(1.0, noise), sv.Full()), sv.Population([1500]), steps=7,
            adjacency="zero-out",
        ).epsilon  # fmt: skip
        assert left <= epsilon * (1 + 1e-9)
        assert left > epsilon * 0.999


def test_the_statement_says_against_whom_and_survives_a_file(tmp_path: Path) -> None:
    told = calibrated(5, 1)
    words = "\n".join(told.words())
    assert "everybody who sees the totals, the relay, and any 1 of the 5 parties together, over all runs" in words
    assert "of the 5, 2 find 1.18, 3 find 1.47, 4 find 2.16" in words
    assert "at 2 parties 2.16" in words
    assert "X25519" in words
    assert "by sums, against any 1 of 5 parties together" in told.statement()
    assert "costs no privacy" not in str(told)
    assert sv.PrivacyReport.from_dict(json.loads(json.dumps(told.to_dict())), tmp_path) == told
    outsiders = calibrated(5, 0)
    assert "against outsiders alone" in outsiders.statement()
    assert "sees the totals, the relay together" not in "\n".join(outsiders.words())
    local = sv.account(sv.methods.DpSgd(0.5, sv.Release(1.0, 0.02), sv.Full()), sv.Population([300]), steps=7)
    assert local.against is None


def test_a_ledger_keeps_who_summed_and_against_how_many(tmp_path: Path) -> None:
    problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(1))
    method = sv.methods.DpSgd(0.5, sv.Release(1.0, 0.2), sv.Full())
    parts = [sv.data.Part(np.ones((20, 1), np.float32), np.arange(20), name=name) for name in ("a", "b", "c")]
    ledger = sv.Ledger(tmp_path / "all.jsonl")
    sv.run(problem, parts, method, steps=2, ledger=ledger, trust=sv.Sum(1))
    (entry, *_) = sv.Ledger(tmp_path / "all.jsonl").entries.values()
    assert (entry.roster, entry.colluding, entry.names) == (("a", "b", "c"), 1, {"a", "b", "c"})
    assert "by sums, against any 1 of a, b, c" in sv.privacy.ledger.show(ledger, 1e-5, "zero-out")
