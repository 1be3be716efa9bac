"""How records are laid out: each agent finds its own, whatever they are views of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.marks import few

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.data.parts import Levels, Part
from sottovoce.runtime.array import ArrayPlace
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import alone, lay_out, shard
from sottovoce.runtime.spread import Spread
from sottovoce.runtime.threads import own_records

RING = sv.networks.ring(4)
POOL = np.arange(12.0, dtype=np.float32)
ROWS = [np.array([7, 2, 5]), np.array([0, 11]), np.array([1, 9, 3, 4]), np.array([6, 8, 10])]
IDS = np.array([0, 0, 1, 1, 1, 2, 3, 2, 3, 4, 3, 0])


def seen(own, count):
    """What an agent reads of its own records, unit by unit."""
    found = own.unseal(jnp.arange(count))
    if own.filled is None:
        return np.asarray(found).tolist()
    records, filled = map(np.asarray, found)
    return [sorted(unit[there].tolist()) for unit, there in zip(records, filled)]


def held(sealed, agent, count):
    return seen(sealed.of(agent), count)


def units(rows):
    return [sorted(POOL[rows[IDS[rows] == unit]].tolist()) for unit in np.unique(IDS[rows])]


def parts(unit):
    return [Part(POOL, rows, unit=IDS if unit else None) for rows in ROWS]


def wanted(agent, unit):
    return units(ROWS[agent]) if unit else POOL[ROWS[agent]].tolist()


@pytest.mark.parametrize("unit", [False, True], ids=["records", "units"])
def test_every_agent_finds_its_own_rows(unit):
    layout = lay_out(parts(unit))
    for agent, size in enumerate(layout.population.sizes["records"]):
        assert held(layout.sealed["records"], agent, size) == wanted(agent, unit)


@pytest.mark.parametrize("unit", [False, True], ids=["records", "units"])
def test_alone_an_agent_holds_nobody_elses(unit):
    layout = lay_out(parts(unit))
    for agent, size in enumerate(layout.population.sizes["records"]):
        own = alone(layout.sealed["records"], agent, size)
        assert set(np.asarray(own.unseal()).tolist()) == set(POOL[ROWS[agent]].tolist())
        assert seen(own, size) == wanted(agent, unit)
        assert own_records(layout, agent)["records"].order.shape == own.order.shape


@pytest.mark.parametrize("unit", [False, True], ids=["records", "units"])
def test_on_two_devices_every_agent_finds_its_own_rows(unit):
    layout = lay_out(parts(unit))
    sizes = layout.population.counts["records"]
    spread = jax.tree.map(jnp.asarray, shard(layout.sealed["records"], sizes, Spread(len(sizes), devices=2), range(2)))
    for agent, size in enumerate(sizes):
        device, place = divmod(agent, 2)
        mine = type(spread)(
            spread.unseal()[device],
            spread.order[device],
            None if spread.filled is None else spread.filled[device],
            spread.starts[device],
        )
        assert held(mine, place, int(size)) == wanted(agent, unit)


def test_a_shared_set_is_not_copied():
    layout = lay_out(parts(unit=False))
    assert layout.sealed["records"].unseal().shape == POOL.shape
    half = lay_out(parts(unit=False)[:2])  # rows that nobody holds are left out
    assert half.sealed["records"].unseal().shape == (5,)


def test_only_some_agents_records_may_be_held_and_sizes_stay_everyones():
    layout = lay_out(parts(unit=False), agents=range(2, 3))
    assert layout.population.sizes == {"records": (3, 2, 4, 3)}
    assert sorted(np.asarray(layout.sealed["records"].unseal()).tolist()) == sorted(POOL[ROWS[2]].tolist())


def test_levels_are_sealed_apart():
    layout = lay_out(
        [Levels(Part(POOL, ROWS[0]), Part(POOL, ROWS[1])), Levels(Part(POOL, ROWS[2]), Part(POOL, ROWS[3]))]
    )
    assert held(layout.sealed["upper"], 1, 4) == POOL[ROWS[2]].tolist()
    assert held(layout.sealed["lower"], 0, 2) == POOL[ROWS[1]].tolist()


def test_a_small_unit_is_padded_and_marked():
    ids = np.array([0, 1, 1, 1])
    sealed = lay_out([Part(POOL[:4], np.arange(4), unit=ids)]).sealed["records"]
    assert sealed.order.shape == (2, 3)
    assert np.asarray(sealed.filled).tolist() == [[True, False, False], [True, True, True]]
    assert sealed.record_bytes == 3 * 4


@pytest.mark.parametrize("sampling", few([sv.Full(), sv.Poisson(2)], [sv.Poisson(2)]), ids=["full", "coins"])
def test_records_that_are_read_in_place_are_those_that_are_looked_up(sampling):
    rng = np.random.default_rng(0)
    own = list(rng.normal(size=(4, 5, 2)).astype(np.float32))
    mixed = rng.permutation(20)
    views = [Part(np.concatenate(own)[mixed], np.argsort(mixed)[5 * agent : 5 * agent + 5]) for agent in range(4)]
    shared = [Part(views[0].records, view.rows) for view in views]
    problem = sv.Minimize(lambda x, r: jnp.sum((x - r) ** 2), jnp.zeros(2))
    trace = account_of(sv.methods.DpSgd(0.1, sv.Release(1.0, 0.1), sampling), own, 3, RING, problem=problem).trace
    states = []
    for held_as, in_place in ((own, True), (shared, False)):
        layout = lay_out(held_as)
        assert layout.sealed["records"].in_turn == in_place
        place = ArrayPlace(trace, problem, layout, root_key(0), 64)
        states.append(place.advance(place.begin(), 0, 3)[0][0])
    np.testing.assert_allclose(*states, rtol=1e-6)
    assert np.ptp(states[0]) > 0.1
