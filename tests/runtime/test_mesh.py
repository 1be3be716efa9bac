"""Agents spread over devices: the same run, and on each device its own agents' records alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.marks import few

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.runtime.array import ArrayPlace
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import lay_out
from sottovoce.runtime.mesh import MeshPlace
from sottovoce.runtime.spread import AXIS, Spread, along_edges

PROBLEM = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(2))
METHOD = sv.methods.DpSgd(0.2, sv.Release(1.0, 0.1), sv.Poisson(2))
RING = sv.networks.ring(6)
SIZES = (5, 3, 4, 6, 2, 3)
PARTS = [np.full((n, 2), i, np.float32) + np.arange(n, dtype=np.float32)[:, None] for i, n in enumerate(SIZES)]
LAYOUT = lay_out(PARTS)
TRACE = account_of(METHOD, PARTS, 3, RING, problem=PROBLEM).trace


def mesh():
    return MeshPlace(TRACE, PROBLEM, LAYOUT, root_key(0), 64, devices=2)


def test_agents_of_unequal_sizes_run_as_on_one_device():
    places = mesh(), ArrayPlace(TRACE, PROBLEM, LAYOUT, root_key(0), 64)
    (spread, _), (together, _) = (place.advance(place.begin(), 0, 3) for place in places)
    for one, other in zip(spread, together, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_each_device_holds_its_own_agents_records_alone():
    held = np.asarray(mesh().records["records"].unseal())
    for device, agents in enumerate([(0, 1, 2), (3, 4, 5)]):
        own = np.concatenate([PARTS[agent] for agent in agents])
        assert {tuple(row) for row in held[device]} == {tuple(row) for row in own}


def test_a_divergence_on_one_device_is_seen():
    place = mesh()
    state = place.begin()
    state[0] = state[0].at[4].set(jnp.nan)  # its neighbours 3 and 5 are on the same device
    _, broken = place.advance(state, 1, 1)
    assert broken.min() == 1


@pytest.mark.slow
def test_a_run_over_devices_is_an_option_of_performance():
    options = {"network": RING, "steps": 3}
    one, two = (sv.run(PROBLEM, PARTS, METHOD, performance=sv.Performance(devices=n), **options) for n in (1, 2))
    np.testing.assert_allclose(one.x, two.x, rtol=1e-5, atol=1e-6)
    assert one.privacy == two.privacy


@pytest.mark.parametrize("agents", [1, 5])
@pytest.mark.slow
def test_agents_need_not_spread_evenly(agents):
    """An empty slot is nobody: it is neither heard, nor measured, nor looked at for divergence."""
    options = {"network": sv.networks.ring(agents), "steps": 3, "evaluate": lambda x: {"size": jnp.sum(x**2)}}
    one, two = (
        sv.run(PROBLEM, PARTS[:agents], METHOD, performance=sv.Performance(devices=n), **options) for n in (1, 2)
    )
    np.testing.assert_allclose(one.x, two.x, rtol=1e-5, atol=1e-6)
    assert one.history.keys() == two.history.keys()
    for name in set(one.history) - {"seconds"}:
        np.testing.assert_allclose(one.history[name], two.history[name], rtol=1e-5, atol=1e-6)
    assert len(two.agents.x) == agents


@pytest.mark.parametrize("others_only", few([False, True], [True]))
@pytest.mark.parametrize(
    ("network", "devices"),
    [(sv.networks.ring(7), 3), (sv.networks.exponential(7), 2), (sv.networks.star(70), 2)],
    ids=["ring", "exponential", "star"],
)
def test_what_travels_along_edges_is_the_weighted_sum(network, devices, others_only):
    """Against the dense matrix; devices are played one after the other, so that three can be had."""
    spread, wide = Spread(network.size, devices), np.random.default_rng(0).normal(size=(network.size, 2))
    mix = along_edges(network, "mix", others_only, spread)
    slots = spread.slots.reshape(-1)
    said = np.where(slots[:, None] >= 0, wide[slots], np.nan).reshape(devices, -1, 2).astype(np.float32)
    heard = jax.vmap(jax.vmap(mix, (0, None)), (0, None), axis_name=AXIS)(said, 0)
    dense = network.matrix("mix").toarray()
    wanted = (dense - np.diag(np.diag(dense)) if others_only else dense) @ wide
    np.testing.assert_allclose(heard.reshape(-1, 2)[slots >= 0], wanted, rtol=1e-5, atol=1e-6)


def test_devices_that_are_not_there_are_refused():
    assert len(jax.devices()) < 6
    with pytest.raises(ValueError, match="6 devices were asked for"):
        MeshPlace(TRACE, PROBLEM, LAYOUT, root_key(0), 64, devices=6)
