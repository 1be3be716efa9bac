"""Curves: their ranks against quantiles, the sensitivity of the counts, what is charged, and what a model learns."""

import math

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.data import Column, curves
from sottovoce.privacy.gdp import gdp_mu


def rows(count: int = 3000) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    hours = np.where(rng.random(count) < 0.2, np.nan, rng.exponential(2.0, count))
    return {"hours": hours, "age": rng.uniform(20, 90, count), "ill": (np.nan_to_num(hours) > 1).astype(int)}


COLUMNS = {
    "hours": {"range": (0, 24), "missing": "flag"}, "age": {"range": (0, 128)}, "ill": {"categories": [0, 1]},
}  # fmt: skip


def test_without_noise_knots_are_the_quantiles_and_ranks_the_shares_below() -> None:
    made = sv.data.table(rows(), "ill", columns=COLUMNS, curves="public")
    hours = rows()["hours"][~np.isnan(rows()["hours"])]
    wanted = np.quantile(hours, np.arange(1, 33) / 32) / 24 * curves.BINS
    assert np.max(np.abs(np.array(made.columns["hours"].curve[1:]) - wanted)) <= 1.5
    found = curves.ranks(hours / 24, made.columns["hours"].curve)
    shares = np.argsort(np.argsort(hours)) / len(hours)
    assert np.max(np.abs(found - shares)) < 1 / 32


def test_a_frequent_value_has_the_middle_of_its_ranks() -> None:
    values = np.repeat([0.25, 0.5, 0.75], [300, 400, 300])
    found = curves.ranks(values, curves.knots(curves.tree(curves.bins(values)), 0.0))
    np.testing.assert_allclose(found[[0, 400, 999]], [0.15, 0.5, 0.85], atol=0.03)


def test_one_row_moves_the_counts_of_a_column_by_the_root_of_its_levels() -> None:
    some = np.random.default_rng(0).integers(0, curves.BINS, 50)
    moved = np.linalg.norm(curves.tree(some) - curves.tree(some[1:]))
    assert moved == pytest.approx(math.sqrt(curves.LEVELS))


def test_one_purchase_for_all_curves_is_in_the_account_of_the_run() -> None:
    price = sv.NoisyCounts(epsilon=0.5, seed=0)
    made = sv.data.table(rows(), "ill", columns=COLUMNS, private=price, curves="private")
    (bought,) = made.facts.bought
    assert math.sqrt(bought.gaussian) == pytest.approx(gdp_mu(0.5, 1e-5), rel=1e-3)
    assert price.scale(2 * curves.LEVELS) == pytest.approx(math.sqrt(2 * curves.LEVELS) / gdp_mu(0.5, 1e-5), rel=1e-2)
    method = sv.methods.DpSgd(0.1, sv.Release(1.0, 1.0), sv.Full())
    calibrated = sv.calibrate(method, made.parts(), epsilon=1.0, steps=10, adjacency="zero-out")
    spent = sv.account(calibrated, made.parts(), steps=10, adjacency="zero-out")
    assert 0.995 < spent.epsilon <= 1.0
    assert any("ranks of hours, age" in line for line in spent.caveats)


def test_noise_moves_ranks_as_far_as_its_scale_says() -> None:
    age = rows()["age"]
    inner, off = curves.bins(age / 128), []
    for seed in range(100):
        noisy = curves.tree(inner) + np.random.default_rng(seed).normal(0, 40, 2046)
        off.append(curves.ranks(np.array([0.43]), curves.knots(noisy, 40.0))[0] - np.mean(age / 128 < 0.43))
    # At the middle of the tree half of the difference of two counts decides; finer levels add to it.
    assert 0.7 * 40 / 3000 / math.sqrt(2) < np.std(off) < 4 * 40 / 3000
    assert abs(np.mean(off)) < 0.01


def test_rows_keep_their_norm_and_a_missing_value_adds_nothing_but_its_flag() -> None:
    made = sv.data.table(rows(), "ill", columns=COLUMNS, curves="public")
    assert np.linalg.norm(made.records["features"], axis=1).max() <= made.norm + 1e-6
    assert made.names[:3] == ("hours", "hours rank", "hours hat 0")
    gone = np.isnan(rows()["hours"])
    assert not made.records["features"][gone, : curves.WIDTH].any()
    assert made.records["features"][gone, curves.WIDTH].all()
    filled = Column(range=(0, 10), missing=2, curve=curves.EVEN)
    np.testing.assert_array_equal(*filled.encode(np.array([np.nan, 2.0])))


def test_what_is_no_curve_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="curve is for numbers"):
        Column(categories=["a", "b"], curve="private")
    with pytest.raises(ValueError, match="33 bins"):
        Column(range=(0, 1), curve=[1, 2])
    with pytest.raises(ValueError, match="bought with noisy counts"):
        sv.data.table(rows(), "ill", columns=COLUMNS, curves="private")
    with pytest.raises(ValueError, match="curves are for features"):
        sv.data.table(rows(), "age", columns={**COLUMNS, "age": {"range": (0, 128), "curve": "public"}})
    kept = sv.data.table(rows(), "ill", columns=COLUMNS, curves="public").columns
    assert sv.data.Declarations(kept.to_dict()) == kept  # as a model file keeps them
