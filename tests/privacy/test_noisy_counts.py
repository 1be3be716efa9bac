"""Noisy counts of a table: the noise that is charged is drawn, and no table tells more than the account says."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, norm

import sottovoce as sv
from sottovoce.privacy import accountant, noisy_counts
from sottovoce.privacy.gdp import gdp_delta
from sottovoce.privacy.mechanisms import Mechanism

COLUMNS = {"a": {"range": "private"}, "b": {"categories": "private"}, "y": {"categories": [0, 1]}}
PRICE = sv.NoisyCounts(0.2, delta=0.01)
EPSILONS = np.linspace(0.0, 6.0, 25)


def law(scale, far=12):
    """Return the whole numbers that noise of a scale takes, and their probabilities."""
    places = np.arange(-far * scale, far * scale + 1)
    weights = np.exp(-(places**2) / (2 * scale**2))
    return places, weights / weights.sum()


def tail(scale, draws, reached):
    """Return the chance that the sum of some draws reaches a number, by convolution."""
    one = law(scale)[1]
    several = one
    for _ in range(draws - 1):
        several = np.convolve(several, one)
    return float(several[len(several) // 2 + reached :].sum())


# What is drawn.


@pytest.mark.parametrize(("charged", "agrees"), [(1.0, True), (1.04, False), (0.96, False)])
def test_the_noise_that_is_drawn_has_the_scale_that_is_charged(charged, agrees):
    counter, parts = sv.NoisyCounts(0.5, seed=0), noisy_counts._PARTS
    drawn = np.concatenate([counter.noised(np.full(4000, 7), 3, (place,)) for place in range(5)]) - 7
    assert np.array_equal(drawn * parts, np.rint(drawn * parts))
    gaussian, _ = counter.cost(3, lists=0)
    scale = charged * math.sqrt(3 / gaussian + (3 / parts) ** 2)  # the term is questions / (scale^2 - 3^2)
    cells = np.searchsorted(norm.ppf(np.linspace(0, 1, 21)[1:-1], scale=scale), drawn)
    assert bool(chisquare(np.bincount(cells, minlength=20)).pvalue > 1e-3) is agrees


@pytest.mark.parametrize("epsilon", [0.1, 3.0, 30.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.05])
@pytest.mark.parametrize("lists", [0, 4])
def test_a_purchase_costs_what_its_price_says_and_no_less_than_needed(epsilon, delta, lists):
    gaussian, shown = sv.NoisyCounts(epsilon, delta).cost(20, lists)
    alone = accountant.epsilon([(Mechanism(gaussian=gaussian), 1)], delta, "zero-out", overflow=shown)
    assert 0.97 * epsilon <= alone <= epsilon
    assert (shown > 0) is (lists > 0)


def test_a_purchase_composes_with_a_run_as_gaussian_releases_do():
    """An independent computation: both curves are normal, so the roots of their sums of squares are one."""
    gaussian, _ = sv.NoisyCounts(0.1).cost(5, lists=0)
    assert math.sqrt(gaussian) == pytest.approx(0.03249372, rel=1e-6)
    found = accountant.epsilon([(Mechanism(gaussian=gaussian), 1), (Mechanism(gaussian=0.04), 3)], 1e-5, "zero-out")
    mu = math.sqrt(0.12 + gaussian)
    delta = norm.cdf(mu / 2 - found / mu) - math.exp(found) * norm.cdf(-mu / 2 - found / mu)
    assert delta == pytest.approx(1e-5, rel=1e-6)


def test_counts_that_are_to_cost_nothing_are_refused():
    with pytest.raises(ValueError, match=r"delta is 0, where noisy counts.*give more"):
        sv.NoisyCounts(0.1, delta=0)


# What two neighbouring tables tell: all counts that are asked of a table, before noise.


def counts_of(rows, monkeypatch, unit="who"):
    """Return the counts that a table is asked for, by party, question and category; and what a party pays for them."""
    asked = {}

    def noised(self, counts, questions, place):
        asked[place] = np.asarray(counts)
        return np.zeros(len(counts))

    held = {name: [row[name] for row in rows] for name in ("who", "a", "b", "y", "at")}
    with monkeypatch.context() as patch:
        patch.setattr(sv.NoisyCounts, "noised", noised)
        made = sv.data.table(held, label="y", party="at", unit=unit, columns=COLUMNS, private=PRICE, share="private")
    known = sorted(set(held["b"]))  # the order in which a table lists categories, without those of neither table
    whole = {
        (*place, known[bin_] if place[1] == 1 else bin_): int(count)
        for place, counts in asked.items()
        for bin_, count in enumerate(counts)
    }
    return whole, made.facts.bought[0]


def difference(one, other, party):
    places = {place for place in (*one, *other) if place[0] == party}
    moved = [one.get(place, 0) - other.get(place, 0) for place in places]
    return sorted(change for change in moved if change)


def row(who, a, b, y, at="north"):
    return {"who": f"p{who}", "a": a, "b": b, "y": y, "at": at}


CROWD = [row(who, 1.0 + who, "xyz"[who % 3], who % 2, ["north", "south"][who % 2]) for who in range(8)]
SEVERAL = st.lists(
    st.builds(row, st.just("unit"), st.sampled_from([2.0, 70.0, 1e9]), st.sampled_from("xw"), st.integers(0, 1)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(mine=SEVERAL, instead=SEVERAL, place=st.integers(0, 8), elsewhere=st.booleans())
def test_a_unit_with_several_rows_moves_each_question_by_one_count(monkeypatch, mine, instead, place, elsewhere):
    other_rows = [{**one, "at": "south"} for one in mine] if elsewhere else []

    def table(own):
        return counts_of([*CROWD[:place], *own, *CROWD[place:]], monkeypatch)[0]

    present, absent, replaced = table([*mine, *other_rows]), table([]), table(instead)
    for party in (0, 1):
        zeroed = difference(present, absent, party)
        assert zeroed in ([1, 1, 1], []) if party else zeroed == [1, 1, 1]  # questions: a range, a list and a share
    assert set(difference(present, replaced, 0)) <= {-1, 1}
    assert sum(change**2 for change in difference(present, replaced, 0)) <= 6


def truth(scale, moved, epsilon):
    """Return the exact hockey-stick divergence of two tables whose counts differ by `moved`, each by one."""
    total, chances = np.zeros(1, int), np.ones(1)
    _, one = law(scale)
    for _ in moved:
        chances = np.convolve(chances, one)
        total = np.arange(len(chances)) - len(chances) // 2
    loss = (2 * total + len(moved)) / (2 * scale**2)
    return float(np.sum(chances * np.clip(-np.expm1(epsilon - loss), 0, None)))


@pytest.mark.parametrize("wrong", [1.0, 0.9])
def test_no_account_is_below_the_exact_divergence_of_two_tables(monkeypatch, wrong):
    """Parts as coarse as a record: the scale is a few steps, where discrete noise is least like the ideal one."""
    monkeypatch.setattr(noisy_counts, "_PARTS", 1)
    noisy_counts._grid.cache_clear()
    unit = [row("unit", 1e9, "w", 1), row("unit", 2.0, "x", 0)]
    other = [row("unit", -70.0, "x", 0)]
    (present, bought), (absent, _), (replaced, _) = (
        counts_of([*CROWD, *own], monkeypatch) for own in (unit, [], other)
    )
    scale = PRICE.grid(3).scale
    noisy_counts._grid.cache_clear()
    assert 9 <= scale <= 20
    mu, below = wrong * math.sqrt(bought.gaussian), []
    for moved, doubled in ((difference(present, absent, 0), 1), (difference(present, replaced, 0), 2)):
        assert len(moved) == 3 * doubled
        below += [gdp_delta(doubled * mu, epsilon) < truth(scale, moved, epsilon) for epsilon in EPSILONS]
    assert any(below) is (wrong < 1)


# Thresholds.


@pytest.mark.parametrize("scale", [4, 31, 100])
@pytest.mark.parametrize(("draws", "slack"), [(1, 1), (3, 4)])
def test_what_noise_reaches_is_enumerated(scale, draws, slack):
    for chance in (0.3, 1e-3, 1e-9):
        reached = noisy_counts._reached(scale, draws, chance)
        assert tail(scale, draws, reached) <= chance < tail(scale, draws, reached - 1 - slack)


@pytest.mark.parametrize(("questions", "lists"), [(1, 1), (6, 5)])
def test_a_category_with_one_record_is_shown_with_at_most_the_chance_that_is_charged(monkeypatch, questions, lists):
    monkeypatch.setattr(noisy_counts, "_PARTS", 16)
    noisy_counts._grid.cache_clear()
    counter = sv.NoisyCounts(0.5, delta=1e-3)
    _, shown = counter.cost(questions, lists)
    threshold, scale = counter.shows_nobody(questions, lists), counter.grid(questions).scale
    noisy_counts._grid.cache_clear()
    assert lists * tail(scale, 1, 16 * (threshold - 1)) <= shown / 2 < lists * tail(scale, 1, 16 * (threshold - 2))


def test_empty_bins_of_several_parties_are_rarely_taken_for_full_ones():
    counter, bins, parties = sv.NoisyCounts(1.0, seed=0), 100, 3
    threshold = counter.surely_not_empty(2, parties, bins)
    seen = [
        sum(counter.noised(np.zeros(bins, int), 2, (trial, party)) for party in range(parties)).max()
        for trial in range(300)
    ]
    assert np.mean(np.array(seen) > threshold) < 0.03
    assert np.mean(np.array(seen) > 0.8 * threshold) > 0.05
