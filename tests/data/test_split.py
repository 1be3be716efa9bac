import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.data import Levels, levels, split, synthetic


def table(n, classes=10, seed=0):
    rng = np.random.default_rng(seed)
    return {"features": rng.normal(size=(n, 3)).astype(np.float32), "label": rng.integers(0, classes, n)}


def rows_of(parts):
    return np.concatenate([part.rows for part in parts])


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(200, 400),
    agents=st.integers(1, 8),
    by=st.sampled_from(["iid", "label", "dirichlet"]),
    skew=st.floats(0, 0.9),
    seed=st.integers(0, 10**6),
)
def test_every_record_is_used_exactly_once(n, agents, by, skew, seed):
    parts = split(table(n, seed=seed), agents, by, skew=skew, alpha=5.0, seed=seed)
    assert len(parts) == agents
    assert sorted(rows_of(parts).tolist()) == list(range(n))


@settings(max_examples=30, deadline=None)
@given(n=st.integers(5, 300), agents=st.integers(1, 5), share=st.floats(0.05, 0.95), seed=st.integers(0, 10**6))
def test_levels_partition_each_part(n, agents, share, seed):
    parts = split(table(n), agents, seed=seed) if n >= 2 * agents else split(table(10), 5, seed=seed)
    for part, both in zip(parts, levels(parts, upper=share, seed=seed)):
        assert sorted([*both.upper.rows, *both.lower.rows]) == sorted(part.rows)
        assert abs(len(both.upper) - share * len(part)) <= 1
        assert min(len(both.upper), len(both.lower)) >= 1


def test_levels_do_not_look_at_values():
    first, second = table(50, seed=1), table(50, seed=2)
    a, b = (levels(split(records, 5, seed=3), seed=4) for records in (first, second))
    assert all((x.upper.rows == y.upper.rows).all() and (x.lower.rows == y.lower.rows).all() for x, y in zip(a, b))
    assert isinstance(levels(split(first, 1)[0]), Levels)


def test_seeds_matter_and_repeat():
    records = table(100)
    same = [split(records, 4, seed=1), split(records, 4, seed=1)]
    assert (rows_of(same[0]) == rows_of(same[1])).all()
    assert (rows_of(same[0]) != rows_of(split(records, 4, seed=2))).any()


@pytest.mark.parametrize("skew", [0.3, 0.5, 1.0])
def test_label_skew_gives_each_agent_its_share(skew):
    """Of 900 records of each of ten classes, agent i holds skew of class i and the others equal shares of the rest."""
    records = {"label": np.repeat(np.arange(10), 900)}
    counts = np.stack([np.bincount(p.gather()["label"], minlength=10) for p in split(records, 10, "label", skew=skew)])
    expected = np.where(np.eye(10, dtype=bool), 900 * skew, 900 * (1 - skew) / 9)
    np.testing.assert_allclose(counts, expected, atol=1e-9)


def test_label_skew_with_more_and_fewer_agents_than_classes():
    records = {"label": np.repeat(np.arange(10), 90)}
    few = split(records, 4, "label", skew=1.0)
    assert [sorted(set(p.gather()["label"].tolist())) for p in few] == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    assert len(split(records, 15, "label", skew=0.5)) == 15
    with pytest.raises(ValueError, match=r"agent 10 would get no record \(5 of 15 agents empty"):
        split(records, 15, "label", skew=1.0)


def test_dirichlet_is_more_uneven_for_small_alpha():
    records = {"label": np.repeat(np.arange(5), 1000)}

    def unevenness(alpha):
        parts = split(records, 5, "dirichlet", alpha=alpha, seed=0)
        counts = np.stack([np.bincount(p.gather()["label"], minlength=5) for p in parts])
        return counts.std(axis=0).mean()

    assert unevenness(0.3) > 3 * unevenness(100.0)


def test_sizes_are_kept_or_refused():
    records = table(10)
    assert [len(p) for p in split(records, 3, "sizes", sizes=[5, 3, 2])] == [5, 3, 2]
    with pytest.raises(ValueError, match="sum to the 10 records there are, but they sum to 9"):
        split(records, 3, "sizes", sizes=[5, 3, 1])
    with pytest.raises(ValueError, match="one size per agent: 3, got 2"):
        split(records, 3, "sizes", sizes=[5, 5])
    with pytest.raises(ValueError, match="agent 1 would get no record"):
        split(records, 3, "sizes", sizes=[5, 0, 5])


@pytest.mark.parametrize("by", ["iid", "label", "dirichlet"])
def test_units_stay_whole(by):
    records = synthetic.patients(count=120)
    parts = split(records, 4, by, alpha=5.0, unit="patient_id", seed=1)
    assert sorted(rows_of(parts).tolist()) == list(range(len(records["label"])))
    holders = [set(part.gather()["patient_id"].tolist()) for part in parts]
    assert sum(map(len, holders)) == len(set.union(*holders)) == 120
    for both in levels(parts, upper=0.3):
        above, below = (set(level.gather()["patient_id"].tolist()) for level in (both.upper, both.lower))
        assert above
        assert below
        assert not above & below
        assert both.upper.unit is records["patient_id"] or (both.upper.unit == records["patient_id"]).all()


def test_parts_are_views():
    records = table(30)
    records["features"] = sp.csr_array(records["features"])
    parts = split(records, 3)
    assert all(part.records is records for part in parts)
    assert parts[1].gather()["features"].shape == (10, 3)


def test_errors_name_the_bad_thing():
    records = table(4)
    with pytest.raises(ValueError, match="agent 4 would get no record"):
        split(records, 6)
    with pytest.raises(ValueError, match="agents must be at least 1"):
        split(records, 0)
    with pytest.raises(ValueError, match="by: there is no way or column"):
        split(records, 2, "rows")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unit needs a column 'id'"):
        split(records, 2, unit="id")
    with pytest.raises(ValueError, match="by needs a column 'label'"):
        split({"features": np.zeros((4, 2))}, 2, "label")
    with pytest.raises(ValueError, match="skew"):
        split(records, 2, "label", skew=1.5)
    with pytest.raises(ValueError, match="alpha"):
        split(records, 2, "dirichlet", alpha=0.0)
    with pytest.raises(ValueError, match="first axis"):
        split({"features": np.zeros((4, 2)), "label": np.zeros(3, int)}, 2)
    with pytest.raises(ValueError, match="whole numbers"):
        split({"label": np.array([-1, 1])}, 1, "label")
    with pytest.raises(ValueError, match="share of records"):
        levels(split(records, 2), upper=1.0)
    with pytest.raises(ValueError, match="agent 0 has one record"):
        levels(split(records, 4))
