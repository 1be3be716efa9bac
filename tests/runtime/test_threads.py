"""Agents on threads, and releases as they are deployed: exact noise, secret coins, charged before they are made."""

import dataclasses
import time
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sottovoce.runtime.agent import Read
from sottovoce.runtime.store import lay_out

import sottovoce as sv
from sottovoce.data.parts import Levels, Part
from sottovoce.methods.base import Method
from sottovoce.privacy import discrete
from sottovoce.privacy.ledger import OWNER, BudgetExceeded
from sottovoce.runtime.threads import agent_of, live, places, run_discrete, run_threads
from sottovoce.schedules import Linear

RECORDS = np.random.default_rng(0).normal(size=(2, 12, 3)).astype(np.float32)
RING = sv.networks.ring(2)
PROBLEM = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(3))


def sgd(**options):
    return sv.methods.DpSgd(**{"rate": 0.3, "gradient": sv.Release(4.0, 0.1), "sampling": sv.Poisson(6), **options})


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_what_is_released_has_the_stated_noise_and_lies_on_the_grid(mechanism):
    width, release = 6000, sv.Release(2.0, 0.05, mechanism, name="gradient")
    problem = sv.Minimize(lambda x, r: jnp.sum(x * r), jnp.zeros(width))
    records = np.zeros((5, width), np.float32)
    records[:, 0] = 7.0  # clipped to 2
    method = sv.methods.DpSgd(rate=1.0, gradient=release, sampling=sv.Full())
    seen = np.asarray(run_discrete(problem, [records], method, steps=1).agents.velocity[0], np.float64)
    law = stats.norm if mechanism == "gaussian" else stats.laplace
    assert stats.kstest(seen[1:] / 0.05, law.cdf).pvalue > 1e-5
    assert stats.kstest(seen[1:] / 0.05 * 1.5, law.cdf).pvalue < 1e-9
    assert abs(seen[0] - 2.0) < 0.05 * 20
    grid = discrete.on_grid(release, 5)
    steps = np.round(seen * 5 / grid.step)
    np.testing.assert_array_equal(np.float32(steps * grid.step / 5), np.float32(seen))


@pytest.mark.parametrize(
    "method",
    [
        sgd(sampling=sv.Full(), gradient=sv.Release(16.0, 1e-9)),
        sv.methods.DpMixSgd(0.1, 0.1, sv.Full(), release_x=sv.Release(16.0, 1e-9), release_y=sv.Release(16.0, 1e-9)),
    ],
    ids=lambda method: type(method).__name__,
)
def test_without_noise_to_speak_of_it_is_the_simulated_run(method):
    problem = PROBLEM
    if sv.MinMax in method.solves:
        problem = sv.MinMax(
            lambda x, y, r: 0.5 * jnp.sum((x - r) ** 2) + x @ y - 0.5 * y @ y, jnp.zeros(3), jnp.zeros(3)
        )
    stores = [lay_out(list(RECORDS), range(me, me + 1)).stores for me in range(2)]
    where = places(stores, {"records": np.array([12, 12])}, RING, 2, noise="discrete")
    deployed = live(problem, method, where, lambda place, phase, t: agent_of(place, phase, t, jax.random.key(0)))
    simulated = run_threads(problem, list(RECORDS), method, RING, steps=2, seed=0)
    for a, b in zip(jax.tree.leaves(deployed), jax.tree.leaves(simulated), strict=True):
        np.testing.assert_allclose(a, b, atol=5e-3)


class Pair(NamedTuple):
    x: jax.Array
    y: jax.Array


@dataclass(frozen=True)
class _Both(Method):
    """One release of two levels."""

    x: sv.Release
    solves: ClassVar[tuple[type, ...]] = (sv.Bilevel,)

    def init(self, problem, agent):
        return Pair(problem.x0, problem.y0)

    def step(self, problem, state, agent):
        upper, lower = (partial(lambda fn, x, r: fn(x, state.y, r), fn) for fn in (problem.upper, problem.lower))
        batch = agent.sample(sv.Full())
        return Pair(agent.release(self.x, at=state.x, batch=batch, upper=upper, lower=lower), state.y)


def test_two_levels_meet_on_a_common_grid():
    """Means over 4 and over 6 records: sums on a grid of twelfths."""
    problem = sv.Bilevel(lambda x, y, r: r @ x, lambda x, y, r: r @ x, jnp.zeros(2), jnp.zeros(2))
    part = Levels(np.full((4, 2), 0.5, np.float32), np.full((6, 2), -0.25, np.float32))
    method = _Both(sv.Release(1.0, 1e-5))
    result = run_discrete(problem, [part], method, steps=1)
    np.testing.assert_allclose(result.x, [0.25, 0.25], atol=2e-4)
    assert "/ 12, Full(), 1 times" in result.privacy.events[0]


def whole_sum(parts, rows, fn, at):
    """What the only agent adds up of some rows."""
    layout = lay_out(parts)
    (place,) = places([layout.stores], layout.sizes, sv.networks.single(), 1, chunk=4, noise="discrete")
    grid = discrete.on_grid(sv.Release(0.7, 0.1), 8)
    read = Read("records", fn, (jnp.asarray(rows), jnp.ones(len(rows))), jnp.int32(8))
    return place._whole_sum(grid, read, at), grid


def test_a_record_adds_the_same_whole_numbers_whoever_else_is_there():
    """A small network, so that rounding is real; batches of less and of more than a chunk."""
    rng = np.random.default_rng(1)
    at = {"w": jnp.asarray(rng.normal(size=(3, 5)), jnp.float32), "v": jnp.asarray(rng.normal(size=5), jnp.float32)}
    fn = lambda x, r: jnp.tanh(jnp.tanh(r @ x["w"]) @ x["v"]) * 3  # noqa: E731
    alone = [whole_sum([RECORDS[0]], [row], fn, at)[0] for row in range(6)]
    for size in (2, 5, 6):
        together, grid = whole_sum([RECORDS[0]], range(size), fn, at)
        np.testing.assert_array_equal(together, np.sum(alone[:size], axis=0))
    assert all(0 < (steps**2).sum() <= grid.clip**2 for steps in alone)
    broken = np.array(RECORDS[0])
    broken[2] = np.nan
    np.testing.assert_array_equal(whole_sum([broken], range(6), fn, at)[0], np.sum(alone[:2] + alone[3:], axis=0))


def test_a_unit_is_clipped_as_a_whole():
    part = Part(RECORDS[0], np.arange(12), unit=np.repeat([0, 1, 2], 4))
    fn = lambda x, r: 50.0 * r @ x  # noqa: E731
    whole, grid = whole_sum([part], [0, 1, 2], fn, jnp.zeros(3))
    rest, _ = whole_sum([part], [0, 2], fn, jnp.zeros(3))
    assert 0.99 * grid.clip**2 < ((whole - rest) ** 2).sum() <= grid.clip**2


def test_every_run_is_new_and_every_agent_pays_before_each_step(monkeypatch):
    ledgers, setting = [sv.Ledger(), sv.Ledger()], {"network": RING, "steps": 3}
    budget = sv.Budget(epsilon=1.9 * sv.account(sgd(), sv.Population([12, 12]), **setting).epsilon, delta=1e-5)
    drawn = []
    honest = discrete.on_grid

    def watched(release, share, t=None, agent=None):
        if t is not None:  # not for the report
            drawn.append((t, agent, len(ledgers[agent].entries)))
        return honest(release, share) if t is None else honest(release, share, t, agent)

    monkeypatch.setattr(discrete, "on_grid", watched)
    first = run_discrete(PROBLEM, list(RECORDS), sgd(), ledger=ledgers, budget=budget, **setting)
    assert sorted(drawn) == [(t, agent, t + 1) for t in range(3) for agent in (0, 1)]
    second = run_discrete(PROBLEM, list(RECORDS), sgd(), ledger=ledgers, **setting)
    assert not np.array_equal(first.x, second.x)
    assert [len(ledger.entries) for ledger in ledgers] == [6, 6]
    once, twice = first.privacy.epsilon, ledgers[0].epsilon(OWNER, 1e-5, "zero-out")
    assert once < twice < 2 * once
    with pytest.raises(BudgetExceeded, match=r"agent 0 would reach.*Nothing was released"):
        run_discrete(PROBLEM, list(RECORDS), sgd(), ledger=ledgers, budget=budget, **setting)
    assert len(drawn) == 12


def test_an_agent_that_has_spent_its_own_budget_stops_the_run(tmp_path):
    """Ledgers outlive runs, and a party's number may be another one in each."""
    setting, files = {"network": RING, "steps": 1}, [tmp_path / "north.jsonl", tmp_path / "south.jsonl"]
    budget = sv.Budget(epsilon=1.2 * sv.account(sgd(), sv.Population([12, 12]), **setting).epsilon, delta=1e-5)
    run_discrete(PROBLEM, list(RECORDS), sgd(), ledger=[sv.Ledger(file) for file in files], budget=budget, **setting)
    newcomer = tmp_path / "east.jsonl"
    ledgers = [sv.Ledger(newcomer), sv.Ledger(files[0])]
    with pytest.raises(BudgetExceeded, match="agent 1 would reach"):
        run_discrete(PROBLEM, list(RECORDS), sgd(), ledger=ledgers, budget=budget, **setting)
    assert not newcomer.exists()
    text = files[0].read_text()
    files[0].write_text(text.replace('"count": 1', '"count": 0'))
    with pytest.raises(ValueError, match="changed or cut"):
        sv.Ledger(files[0])


def test_deployed_runs_must_guarantee_something_and_read_records():
    fading = sgd(gradient=sv.Release(4.0, Linear(0.5, 0.0, 2)))
    with pytest.raises(ValueError, match="guarantee something"):
        run_discrete(PROBLEM, list(RECORDS), fading, network=RING, steps=4)
    with pytest.raises(ValueError, match="chunk is 0"):
        run_discrete(PROBLEM, list(RECORDS), sgd(), network=RING, steps=1, chunk=0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: sv.Ledger(), "a ledger each: give a list"),
        (lambda: [sv.Ledger()], "1 ledgers for 2 agents"),
        (lambda: [sv.Ledger()] * 2, "two agents share a ledger"),
    ],
)
def test_ledgers_that_do_not_fit_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        run_discrete(PROBLEM, list(RECORDS), sgd(), ledger=wrong(), network=RING, steps=1)


def test_the_report_names_what_is_drawn():
    report = run_discrete(PROBLEM, list(RECORDS), sgd(), network=RING, steps=1).privacy
    assert "discrete gaussian" in report.events[0]
    assert any("operating system" in caveat for caveat in report.caveats)
    assert not any("simulated" in caveat for caveat in report.caveats)
    simulated = sv.run(PROBLEM, list(RECORDS), sgd(), network=RING, steps=1).privacy
    assert any("simulated" in caveat for caveat in simulated.caveats)
    assert report.epsilon == simulated.epsilon


def test_results_and_ledger_are_kept(tmp_path):
    options = {"network": RING, "steps": 1, "evaluate": lambda x: {"size": jnp.sum(x**2)}}
    result = run_discrete(PROBLEM, list(RECORDS), sgd(), out=tmp_path / "run", **options)
    assert result.history["size"].shape == (1,)
    assert result.history["size/agents"].shape == (1, 2)
    assert (tmp_path / "run" / "result.json").exists()
    for agent in range(2):
        kept = sv.Ledger(tmp_path / "run" / f"ledger-{agent}.jsonl")
        assert kept.epsilon(OWNER, 1e-5, "zero-out") == pytest.approx(result.privacy.epsilon, rel=1e-3)
    with pytest.raises(ValueError, match="holds a run already"):
        run_discrete(PROBLEM, list(RECORDS), sgd(), out=tmp_path / "run", **options)


def test_run_takes_the_noise_as_an_option():
    result = sv.run(PROBLEM, list(RECORDS), sgd(), network=RING, steps=1, noise="discrete")
    assert "discrete gaussian" in result.privacy.events[0]
    for wrong, message in (
        ({"noise": "quiet"}, "'simulated' or 'discrete'"),
        ({"noise": "discrete", "resume": True}, "resume="),
    ):
        with pytest.raises(ValueError, match=message):
            sv.run(PROBLEM, list(RECORDS), sgd(), network=RING, steps=1, **wrong)


def test_coins_are_the_operating_systems(monkeypatch):
    asked = []
    honest = discrete.poisson_coins
    monkeypatch.setattr(discrete, "poisson_coins", lambda n, rate: asked.append((n, rate)) or honest(n, rate))
    run_discrete(PROBLEM, list(RECORDS), sgd(), network=RING, steps=2)
    assert asked == [(12, 0.5)] * 4


def test_what_cannot_be_made_exact_is_refused_before_anything_runs():
    printed = dataclasses.replace(
        sv.methods.DpMixSgd(0.1, 0.1, sv.Full(), release_x=sv.Release(1.0, 1.0), release_y=sv.Release(1.0, 1.0)),
        design="printed",
    )
    problem = sv.MinMax(lambda x, y, r: x @ r + x @ y, jnp.zeros(3), jnp.zeros(3))
    with pytest.raises(ValueError, match="private state"):
        run_discrete(problem, list(RECORDS), printed, network=RING, steps=1)
    ledgers = [sv.Ledger(), sv.Ledger()]
    wrong = {"evaluate": lambda x, y: {}, "ledger": ledgers}
    with pytest.raises(ValueError, match="evaluate could not be called"):
        run_discrete(PROBLEM, list(RECORDS), sgd(), network=RING, steps=1, **wrong)
    assert not any(ledger.entries for ledger in ledgers)
    with pytest.raises(ValueError, match="no clip or no noise"):
        run_discrete(PROBLEM, list(RECORDS), sgd(gradient=sv.Release.open()), network=RING, steps=1)
    (place,) = places([{}], {}, sv.networks.single(), 1, noise="discrete")
    with pytest.raises(ValueError, match="private state"):
        place.noised(jnp.zeros(1), sv.Release(1.0, 1.0), jax.random.key(0), jnp.int32(0), jnp.int32(0))


def test_an_agent_that_fails_does_not_leave_the_others_waiting():
    @dataclass(frozen=True)
    class _Broken(sv.methods.DpSgd):
        def step(self, problem, state, agent):
            if int(agent.index) == 1:
                raise RuntimeError("out of order")
            return super().step(problem, state, agent)

    began = time.monotonic()
    with pytest.raises(RuntimeError, match="out of order"):
        run_threads(PROBLEM, list(RECORDS), _Broken(0.1, sv.Release(1.0, 1.0), sv.Full()), RING, steps=2, seed=0)
    assert time.monotonic() - began < 60
