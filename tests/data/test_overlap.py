"""Levels that may hold the same records pay for both, unless one split, unit ids or the user say that they do not."""

import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.data.overlap import _MOST_PAIRS, sharing
from sottovoce.data.parts import Levels, Part
from sottovoce.papers.dp_bilevel.method import Descent

X, Y = np.arange(80.0, dtype=np.float32).reshape(40, 2), np.arange(40.0, dtype=np.float32)
IDS = np.arange(40) // 2
HALVES = np.arange(20), np.arange(20, 40)
ON_DEVICE = jnp.asarray(X)
STEPPED = np.lib.stride_tricks.as_strided(X, (20, 2, 2), (16, 16, 4))  # record i holds rows 2i and 2i + 2


def halves(records):
    return Levels(*(Part(records, rows) for rows in HALVES))


OVERLAPPING = {  # levels that share memory
    "one array": Levels(X, X),
    "one dict": Levels(*[{"a": X, "b": Y}] * 2),
    "two dicts of the same arrays": Levels({"a": X, "b": Y}, {"a": X, "b": Y}),
    "one of two arrays": Levels({"a": X, "b": Y}, {"a": X.copy(), "b": Y}),
    "another name": Levels({"a": X}, {"b": X}),
    "a view": Levels(X, X[:]),
    "slices that meet": Levels(X[:30], X[10:]),
    "reversed": Levels(X, X[::-1]),
    "every second row": Levels(X[::2], X[1:]),
    "a column": Levels({"a": X}, {"a": X[:, :1]}),
    "flat": Levels(X[:20], X.reshape(-1)[:30]),
    "other numbers of the same bytes": Levels(X, X.view(np.int32)),
    "a device array": Levels(ON_DEVICE, ON_DEVICE),
    "rows that meet": Levels(Part(X, HALVES[0]), Part(X, HALVES[0] + 1)),
    "rows of two views": Levels(Part(X[:], HALVES[0]), Part(X[::-1], HALVES[0])),
    "windows": Levels(*(Part(STEPPED, rows) for rows in np.split(np.arange(20), 2))),
}
UNKNOWN = {  # levels of which nobody can know
    "copies": Levels(X, X.copy()),
    "other arrays": Levels(X[:20], np.ones((20, 2), np.float32)),
    "halves of an array": Levels(X[:20], X[20:]),  # two people, or one person twice
    "rows of two sets": Levels(Part(X, HALVES[0]), Part(X.copy(), HALVES[1])),
}
SPLIT = {
    "levels of a split": sv.data.levels(sv.data.split({"a": X, "b": Y}, 2))[0],
    "rows of one set": halves(X),
    "rows of one slice": Levels(*(Part(X[3:], rows[:17]) for rows in HALVES)),
    "rows of one set in two dicts": Levels(*(Part({"a": X, "b": Y}, rows) for rows in HALVES)),
    "a constant column": halves({"a": X, "weight": np.broadcast_to(np.float32(1.0), 40)}),
    "a repeated column": halves(np.broadcast_to(Y[:, None], (40, 3))),
    "stored by column": halves(np.asfortranarray(X)),
}


def of(levels):
    population = sv.Population.of([levels])
    assert population.in_both_levels(0) == (population.apart[0] == "")
    return population.apart[0]


@pytest.mark.parametrize("case", OVERLAPPING)
def test_levels_that_share_memory_pay_for_both_whatever_is_said(case):
    levels = OVERLAPPING[case]
    assert of(levels) == ""
    with pytest.raises(
        ValueError, match=r"disjoint=True, but share memory: split one record set with sv\.data\.levels"
    ):
        of(Levels(levels.upper, levels.lower, disjoint=True))


@pytest.mark.parametrize("case", UNKNOWN)
def test_levels_of_unknown_origin_pay_for_both_unless_they_are_said_to_be_disjoint(case):
    levels = UNKNOWN[case]
    assert of(levels) == ""
    assert of(Levels(levels.upper, levels.lower, disjoint=True)) == "said"


@pytest.mark.parametrize("case", SPLIT)
def test_levels_of_one_split_pay_for_themselves(case):
    assert of(SPLIT[case]) == "rows"


def test_unit_ids_say_who_is_in_both_levels():
    mixed, apart = (Levels(*(Part(X, rows, ids) for rows in HALVES)) for ids in (np.arange(40) % 20, IDS))
    assert (of(mixed), of(apart)) == ("", "ids")
    far = Levels(Part(X.copy(), HALVES[0], IDS), Part(Y, HALVES[0], IDS + 40))  # two record sets, two columns
    assert of(far) == of(Levels(far.upper, far.lower, disjoint=True)) == "ids"
    assert of(Levels(Part(X, HALVES[0], IDS), Part(Y, HALVES[0], IDS.astype(float)))) == ""
    with pytest.raises(ValueError, match="20 units are in both levels, which are given as disjoint=True"):
        of(Levels(mixed.upper, mixed.lower, disjoint=True))


@pytest.mark.parametrize("other", [X, X[:], X[::-1]], ids=["rows", "a view", "reversed"])
def test_ids_that_differ_for_the_same_records_are_refused(other):
    with pytest.raises(ValueError, match=r"hold the same records .* give each record one id"):
        of(Levels(Part(X, HALVES[0], IDS), Part(other, HALVES[0], IDS + 40)))


def test_many_interleaved_record_sets_count_as_shared_without_being_compared(monkeypatch):
    assert not list(sharing([X[k::4] for k in range(4)]))
    monkeypatch.setattr("sottovoce.data.overlap._MOST_PAIRS", 3)
    assert list(sharing([X[k::4] for k in range(4)]))
    assert _MOST_PAIRS > 1000


def test_the_statement_says_by_which_rule_levels_pay():
    release = sv.Release(1.0, 0.5)
    method = sv.methods.DpBilevel(0.1, Descent(1, 0.5, averaged=False), release, release, sv.Full(), release_x=release)
    half = Part(X, HALVES[0])
    parts = {
        "different rows of one record set": halves(X),
        "disjoint=True": Levels(X[:20], X[20:].copy(), disjoint=True),
        "nothing says that the levels hold different records": Levels(X[:20], X[20:].copy()),
        "some units have records in both levels": Levels(half, half),
    }
    network = sv.networks.ring(len(parts))
    together = sv.account(method, list(parts.values()), steps=2, network=network)
    for party, (said, levels) in enumerate(parts.items()):
        report = sv.account(method, [levels], steps=2)
        (caveat,) = (caveat for caveat in report.caveats if "level" in caveat)
        assert said in caveat
        assert any(line.startswith(caveat) and line.endswith(f"(parties {party})") for line in together.caveats)
        assert together.per_agent[party] == report.epsilon
    named, both_pay = together.per_agent[:2], together.per_agent[2:]
    assert min(both_pay) > 1.1 * max(named)
    said = sv.account(method, sv.Population([Levels(20, 20, disjoint=True)]), steps=2).epsilon
    assert said == pytest.approx(named[0])
    assert sv.account(method, sv.Population([Levels(20, 20)]), steps=2).epsilon == pytest.approx(both_pay[0])
