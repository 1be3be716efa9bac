import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sottovoce.data import Ranges, bounded_norm, check_records

finite = st.floats(-1e6, 1e6)


@settings(max_examples=60, deadline=None)
@given(x=arrays(np.float64, (5, 3), elements=finite), bound=st.floats(1e-3, 1e3))
def test_no_norm_exceeds_the_bound(x, bound):
    out = bounded_norm(x, bound)
    norms = np.linalg.norm(out.astype(np.float64), axis=1)
    assert (norms <= bound).all()
    inside = np.linalg.norm(x, axis=1) <= bound * (1 - 2e-6)
    np.testing.assert_array_equal(out[inside], x[inside].astype(np.float32))
    np.testing.assert_allclose(bounded_norm(sp.csr_array(x), bound).toarray(), out, rtol=1e-6, atol=1e-30)


def test_bounded_norm_covers_pictures_and_is_per_record():
    pictures = np.random.default_rng(0).normal(size=(4, 3, 3, 1))
    out = bounded_norm(pictures, 0.5)
    np.testing.assert_allclose(np.linalg.norm(out.reshape(4, -1), axis=1), 0.5, rtol=1e-5)
    np.testing.assert_array_equal(bounded_norm(pictures[2:3], 0.5)[0], out[2])
    with pytest.raises(ValueError, match="bound"):
        bounded_norm(pictures, 0.0)


@settings(max_examples=60, deadline=None)
@given(x=arrays(np.float64, (6, 2), elements=finite), signed=st.booleans())
def test_ranges_clamp(x, signed):
    out = Ranges([-1.0, 0.0], [1.0, 10.0]).scale(x, signed)
    assert out.dtype == np.float32
    assert out.min() >= (-1 if signed else 0)
    assert out.max() <= 1
    # A record's image does not depend on its neighbours.
    np.testing.assert_array_equal(Ranges([-1.0, 0.0], [1.0, 10.0]).scale(x[:1], signed), out[:1])


def test_ranges_must_be_ranges():
    for low, high in [(1.0, 1.0), (0.0, np.inf), ([0.0, 2.0], [1.0, 1.0])]:
        with pytest.raises(ValueError, match="range"):
            Ranges(low, high)


def test_check_records_lists_everything():
    check_records({"features": np.zeros((3, 2)), "label": np.array([0, 1, 2])}, classes=3)
    check_records({"features": sp.csr_array(np.eye(2)), "note": np.array(["x", "y"])})
    bad = {"features": np.zeros((4, 2)), "label": np.array([0.0, 1.0, 2.0]), "extra": [1, 2]}
    bad["features"][1:3, 1] = np.nan
    with pytest.raises(ValueError) as raised:
        check_records(bad, classes=2)
    message = str(raised.value)
    for part in (
        "first axes differ",
        "features: 2 of 4 records not finite, first in row 1 (column 1)",
        "extra/0: a int",
    ):
        assert part in message
    assert "label: values from 0.0 to 2.0, expected whole numbers from 0 to 1" in message


@pytest.mark.parametrize(
    ("records", "match"),
    [
        ({}, "no records"),
        ({"x": np.zeros((0, 2))}, "no records"),
        ({"x": sp.csr_array(np.array([[0.0, 0.0], [0.0, np.inf]]))}, r"x: 1 of 2 .* row 1 \(column 1\)"),
        ({"x": np.array([1.0, np.nan])}, "first in row 1:"),
        (np.float32(1.0), "records: a float32"),
    ],
)
def test_check_records_on_odd_sets(records, match):
    with pytest.raises(ValueError, match=match):
        check_records(records)


def test_missing_labels_are_a_problem_when_classes_are_given():
    with pytest.raises(ValueError, match="label: missing"):
        check_records({"x": np.zeros(3)}, classes=2)
