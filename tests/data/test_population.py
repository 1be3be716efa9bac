"""Who takes part: sizes, names, and which units are held in several places."""

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.data.parties import Parties
from sottovoce.data.parts import Levels, Part

POOL = np.arange(20.0, dtype=np.float32)


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ([3, 4], {"records": (3, 4)}),
        (np.array([3, 4]), {"records": (3, 4)}),
        ([Levels(1, 2), Levels(3, 4)], {"upper": (1, 3), "lower": (2, 4)}),
        ({"upper": [1, 3], "lower": [2, 4]}, {"upper": (1, 3), "lower": (2, 4)}),
    ],
)
def test_sizes_come_as_lists_levels_or_by_level(sizes, wanted):
    population = sv.Population(sizes)
    assert population.sizes == wanted
    assert population.parties == 2
    assert population.names == ("0", "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "every party needs at least one record"),
        (([3, 0],), "every party needs at least one record"),
        (({"upper": [1], "lower": [1, 2]},), "one number per party"),
        (({"middle": [1]},), "'upper' and 'lower'"),
        (([1, 2], "record", ("a",)), "one name per party"),
        (([1, 2], "record", ("a", "a")), "one name per party"),
        (([Levels(1, 2)], "record", (), (), ("yes",)), "apart is"),
        (([Levels(1, 2, disjoint=True)], "record", (), {((0, "upper"), (0, "lower"))}), "given as disjoint"),
    ],
)
def test_bad_sizes_and_names_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        sv.Population(*arguments)


def test_equal_populations_are_one_key():
    """Compiled programs are found again by it."""
    one, other = (sv.Population([3, 4], shared={((0, "upper"), (0, "lower"))}) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != sv.Population([3, 4])
    assert one != sv.Population([3, 4], unit="patient", shared=one.shared)


def test_numbers_are_not_taken_for_records():
    with pytest.raises(TypeError, match=r"give sv\.Population\(sizes\)"):
        sv.Population.of([30, 40])


def test_a_population_is_read_off_the_parts():
    parts = [POOL[:5], POOL[5:8]]
    population = sv.Population.of(parts)
    assert population.sizes == {"records": (5, 3)}
    assert population.unit == "record"
    assert not population.shared
    assert sv.Population.of(population) is population


def test_units_are_counted_not_records():
    ids = np.repeat(np.arange(5), 4)
    parts = [Part(POOL, np.arange(10), ids), Part(POOL, np.arange(12, 20), ids)]
    population = sv.Population.of(parts)
    assert population.sizes == {"records": (3, 2)}
    assert population.unit == "unit"


def test_a_unit_in_both_levels_is_seen_and_one_in_either_is_not():
    ids = np.array([0, 0, 1, 1, *range(2, 18)])
    apart = Levels(Part(POOL, np.array([0, 1]), ids), Part(POOL, np.array([2, 3]), ids))
    mixed = Levels(Part(POOL, np.array([0, 2]), ids), Part(POOL, np.array([1, 3]), ids))
    population = sv.Population.of([apart, mixed])
    assert [population.in_both_levels(party) for party in range(2)] == [False, True]


def test_a_record_with_two_parties_is_seen():
    assert sv.Population.of([Part(POOL, np.arange(5)), Part(POOL, np.arange(4, 9))]).spread
    assert not sv.Population.of([Part(POOL, np.arange(4)), Part(POOL, np.arange(4, 9))]).spread
    assert sv.Population.of([POOL[:5], POOL[4:9]]).spread  # two views of one array
    assert sv.Population.of([POOL[::-1], POOL[4:9]]).spread
    assert not sv.Population.of([POOL[::2], POOL[1::2]]).spread


def test_units_of_two_parties_are_the_same_if_their_ids_are_equal_whichever_column_they_stand_in():
    ids = np.arange(20) // 2
    rows = np.array([0, 2]), np.array([1, 4])  # both hold a record of unit 0
    one_column = sv.Population.of([Part(POOL, own, ids) for own in rows])
    assert one_column.spread
    assert one_column.shared == {frozenset({(0, "records"), (1, "records")})}
    assert sv.Population.of([Part(POOL.copy(), own, ids.copy()) for own in rows]).shared == one_column.shared
    assert not sv.Population.of([Part(POOL, own, ids + 10 * k) for k, own in enumerate(rows)]).spread


def test_a_unit_of_two_parties_and_both_levels_names_all_its_places():
    ids = np.zeros(20, int)
    parts = [Levels(Part(POOL, rows[:2], ids), Part(POOL, rows[2:], ids)) for rows in np.arange(8).reshape(2, 4)]
    (cells,) = sv.Population.of(parts).shared
    assert cells == {(party, level) for party in range(2) for level in ("upper", "lower")}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (POOL, "parts is one record set"),
        ([], "there are no parties"),
        ([POOL, Levels(POOL, POOL)], "party 1 differs from party 0"),
        ([POOL, POOL[:0]], "party 1 has no records"),
        ([POOL, np.zeros((3, 2), np.float32)], "party 1 holds records of shapes"),
        ([Part(POOL, np.array([1, 1]))], "party 0 lists a row twice"),
        ([Part(POOL, np.array([1, 20]))], "party 0 lists row 20 of 20 records"),  # JAX would read row 19
        ([np.broadcast_to(POOL[:1], 20)], "party 0 holds one row, repeated"),
        ([Part(POOL, np.ones(20, bool))], "party 0 has rows of type bool: give row numbers"),
        ([Part(POOL, np.arange(3), np.arange(3))], "one id per record"),
        ([Part(POOL, np.arange(3), np.full(20, np.nan))], "no unit id for row 0"),
        ([Part(POOL, np.arange(3), np.array([1, None] * 10))], "no unit id for row 1"),
        ([Part(POOL, np.arange(2)), Part(POOL, np.arange(2), np.arange(20))], "every party names a privacy unit"),
        ([np.array(["a", "b"])], "records must be numbers"),
        ([{"a": POOL, "b": POOL[:3]}], "share their first axis"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        Parties.of(parts)
