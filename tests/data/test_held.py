"""A process keeps its own parties' records, and sees who takes part as before."""

import numpy as np
import pytest

from sottovoce.data.held import held
from sottovoce.data.parts import Levels, Part
from sottovoce.data.population import Population
from sottovoce.runtime.layout import lay_out, own_digests

POOL = np.random.default_rng(0).normal(size=(12, 2))
ROWS = np.random.default_rng(1).permutation(12).reshape(4, 3)


@pytest.mark.parametrize("unit", [None, np.arange(12) // 2 + 12 * (np.arange(12) % 2)])
def test_what_is_kept_is_what_there_was(unit):
    parts = [Part(POOL, rows, unit, name) for rows, name in zip(ROWS, "abcd")]
    kept = held(parts, range(1, 3))
    assert Population.of(kept) == Population.of(parts)
    whole, some = own_digests(lay_out(parts)), own_digests(lay_out(kept, range(1, 3)))
    assert some == whole[1:3]  # so an agent has the same keys wherever it is
    assert not np.any(kept[0].gather())
    assert kept[1].records is kept[2].records
    assert len(kept[1].records) == 6


def test_levels_of_one_set_stay_levels_of_one_set():
    parts = [Levels(Part(POOL, rows[:1]), Part(POOL, rows[1:])) for rows in ROWS]
    assert Population.of(held(parts, range(2))) == Population.of(parts)


def test_a_unit_in_two_processes_is_refused():
    parts = [Part(POOL, np.arange(0, 6)), Part(POOL, np.arange(5, 9))]
    with pytest.raises(ValueError, match="parties of several processes"):
        held(parts, range(1))
