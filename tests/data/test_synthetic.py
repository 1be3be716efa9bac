import numpy as np
import pytest

from sottovoce.data import synthetic


@pytest.mark.parametrize("kind", ["normal", "chi-squared", "mixed"])
def test_heterogeneous_moments(kind):
    """N(0, i^2) has mean 0 and deviation i; chi-squared(i) has mean i and variance 2 i."""
    parts, test = synthetic.heterogeneous(agents=4, records=800, test=40, dim=20, kind=kind, seed=3)
    assert [len(p) for p in parts] == [800] * 4
    assert test["features"].shape == (40, 20)
    for i, part in enumerate(parts, start=1):
        values = part.gather()["features"]
        normal = kind == "normal" or (kind == "mixed" and i % 2 == 0)
        mean, deviation = (0.0, i) if normal else (i, np.sqrt(2 * i))
        error = deviation / np.sqrt(values.size)
        assert abs(values.mean() - mean) < 5 * error
        assert values.std() == pytest.approx(deviation, rel=0.05)
        if not normal:
            assert values.min() >= 0


def test_heterogeneous_labels_are_one_linear_rule():
    """A linear rule learnt on every other record of all parties fits the rest: they share w, and noise is small."""
    parts, test = synthetic.heterogeneous(agents=3, records=500, test=300, dim=5, seed=1)
    records = parts[0].records
    w, *_ = np.linalg.lstsq(records["features"], 2.0 * records["label"] - 1, rcond=None)
    assert ((test["features"] @ w > 0) == test["label"]).mean() > 0.95
    assert 0.3 < records["label"].mean() < 0.7


def test_heterogeneous_refuses_nonsense():
    with pytest.raises(ValueError, match="kind"):
        synthetic.heterogeneous(kind="uniform")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positive"):
        synthetic.heterogeneous(agents=0)


def test_quadratic_minimiser():
    records = synthetic.quadratic(50, 3, seed=2, spread=0.5)
    curvature, centre = records["curvature"].astype(float), records["centre"].astype(float)
    best = (curvature * centre).sum(axis=0) / curvature.sum(axis=0)
    gradient = (curvature * (best - centre)).sum(axis=0)
    np.testing.assert_allclose(gradient, 0, atol=1e-10)
    assert curvature.min() >= 0.5
    assert curvature.max() > 1.2
    with pytest.raises(ValueError, match="spread"):
        synthetic.quadratic(5, 2, spread=1.0)


def test_logistic_labels_follow_the_model():
    """The rate of label 1 in bins of the true score follows the sigmoid."""
    records = synthetic.logistic(20_000, 8, seed=5)
    w = np.random.default_rng(5).normal(size=8)
    score = 5 * np.sqrt(8) * records["features"] @ (w / np.linalg.norm(w))
    for low in (-3, -1, 0, 1):
        inside = (score > low) & (score < low + 1)
        expected = (1 / (1 + np.exp(-score[inside]))).mean()
        assert abs(records["label"][inside].mean() - expected) < 4 * 0.5 / np.sqrt(inside.sum())


def test_patients_have_telling_and_useless_features():
    table = synthetic.patients(count=4000, informative=3, useless=4, groups=2, seed=0)
    assert np.abs(table["features"]).max() <= 1
    first = np.unique(table["patient_id"], return_index=True)[1]
    correlation = [abs(np.corrcoef(table["features"][first, k], table["label"][first])[0, 1]) for k in range(7)]
    assert min(correlation[:3]) > 0.15
    assert max(correlation[3:]) < 0.08
    # A patient keeps one label and one group through all visits.
    for column in ("label", "group"):
        assert (table[column] == table[column][first][table["patient_id"]]).all()
    assert 1.8 < (table["group"] == 0).sum() / (table["group"] == 1).sum() < 2.2


def test_same_seed_same_records():
    for make in (lambda s: synthetic.logistic(9, 2, seed=s), lambda s: synthetic.patients(9, seed=s)):
        np.testing.assert_array_equal(make(1)["features"], make(1)["features"])
        assert (make(1)["features"][:5] != make(2)["features"][:5]).any()
