"""Agents on threads, and releases as they are deployed: exact noise, secret coins, charged before they are made."""

import dataclasses
import random
import time
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.data.parts import Levels, Part
from sottovoce.methods.base import Method
from sottovoce.methods.handle import explicit
from sottovoce.privacy import discrete, exact_gate, exact_rows
from sottovoce.privacy.gate import Reading, RecordFunction
from sottovoce.privacy.ledger import OWNER, BudgetExceeded
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import lay_out
from sottovoce.runtime.lone_agent import own_records
from sottovoce.runtime.threads import ThreadPlace
from sottovoce.schedules import Linear

RECORDS = np.random.default_rng(0).normal(size=(2, 12, 3)).astype(np.float32)
RING = sv.networks.ring(2)
PROBLEM = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(3))


SADDLE = sv.MinMax(lambda x, y, r: 0.5 * jnp.sum((x - r) ** 2) + x @ y - 0.5 * y @ y, jnp.zeros(3), jnp.zeros(3))
PARTS = list(RECORDS)


def size(x):
    return {"size": jnp.sum(x**2)}


def run_discrete(problem, parts, method, **options):
    return sv.run(problem, parts, method, noise="discrete", **options)


def sgd(**options):
    return sv.methods.DpSgd(**{"rate": 0.3, "gradient": sv.Release(4.0, 0.1), "sampling": sv.Poisson(6), **options})


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_what_is_released_has_the_stated_noise_and_lies_on_the_grid(mechanism):
    width, release = 6000, sv.Release(2.0, 0.05, mechanism, name="gradient")
    problem = sv.Minimize(lambda x, r: jnp.sum(x * r), jnp.zeros(width))
    records = np.zeros((5, width), np.float32)
    records[:, 0] = 7.0  # clipped to 2
    method = sv.methods.DpSgd(rate=1.0, gradient=release, sampling=sv.Full())
    seen = -np.asarray(run_discrete(problem, [records], method, steps=1).x, np.float64)  # rate 1, from zero
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
@pytest.mark.slow
def test_without_noise_to_speak_of_it_is_the_simulated_run(method):
    problem = SADDLE if sv.MinMax in method.solves else PROBLEM
    trace, layout = account_of(method, PARTS, 2, RING, problem=problem).trace, lay_out(PARTS)
    records, roots = [own_records(layout, me) for me in range(2)], [root_key(0)] * 2
    places = [ThreadPlace(trace, problem, records, roots, 64, noise) for noise in ("discrete", "simulated")]
    deployed, simulated = (place.advance(place.begin(), 0, 2)[0] for place in places)
    for a, b in zip(deployed, simulated, strict=True):
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
    assert "/ 12, Full(), once" in result.privacy.events[0]


AT = {"v": jnp.zeros(5), "w": jnp.zeros((3, 5))}
SHAPES = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((5,), (3, 5), (3,))]
BENT = RecordFunction("records", explicit(lambda v, w, r: jnp.tanh(jnp.tanh(r @ w) @ v) * 3, SHAPES)[0], 0)
STEEP = RecordFunction("records", explicit(lambda x, r: 50.0 * r @ x, [SHAPES[2]] * 2)[0], 0)


def whole_sum(parts, rows, function, at):
    """What the only agent adds up of some rows."""
    grid = discrete.on_grid(sv.Release(0.7, 0.1), 8)
    (sealed,) = own_records(lay_out(parts), 0).values()
    reading = Reading(sealed, function, (), (jnp.asarray(rows), jnp.ones(len(rows))), jnp.int32(8))
    return exact_gate.whole_sum(grid, reading, at, chunk=4), grid


def test_a_record_adds_the_same_whole_numbers_whoever_else_is_there():
    """A small network, so that rounding is real; batches of less and of more than a chunk."""
    rng = np.random.default_rng(1)
    at = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), AT)
    alone = [whole_sum([RECORDS[0]], [row], BENT, at)[0] for row in range(6)]
    for size in (2, 5, 6):
        together, grid = whole_sum([RECORDS[0]], range(size), BENT, at)
        np.testing.assert_array_equal(together, np.sum(alone[:size], axis=0))
    assert all(0 < (steps**2).sum() <= grid.clip**2 for steps in alone)
    broken = np.array(RECORDS[0])
    broken[2] = np.nan
    np.testing.assert_array_equal(whole_sum([broken], range(6), BENT, at)[0], np.sum(alone[:2] + alone[3:], axis=0))


def test_a_round_does_as_much_work_whatever_the_size_of_its_batch(monkeypatch):
    """Coins that are drawn, records whose gradients are computed, and gradients that are rounded: only sums differ."""
    sampling, n, grid = sv.Poisson(3), 300, discrete.on_grid(sv.Release(0.7, 0.1), 3)
    (sealed,) = own_records(lay_out([np.tile(RECORDS[0], (25, 1))]), 0).values()
    work, sums, slopes, whole = [], [], exact_gate._slopes, discrete.GridRelease.whole

    class Coins(random.Random):
        def randbytes(self, count):
            work[-1].append(count)
            return super().randbytes(count)

    def computed(function):
        return lambda source, given, at, rows: work[-1].append(len(rows)) or slopes(function)(source, given, at, rows)

    monkeypatch.setattr(discrete.secrets, "SystemRandom", lambda: Coins(0))
    monkeypatch.setattr(exact_gate, "_slopes", computed)
    monkeypatch.setattr(
        discrete.GridRelease, "whole", lambda grid, rows: work[-1].append(len(rows)) or whole(grid, rows)
    )
    for size in (0, 2, sampling.capacity(n)):
        work.append([])
        monkeypatch.setattr(exact_rows, "successes", lambda *given, size=size: size)
        rows = exact_gate.draw(sampling, n, 0)
        assert rows[1].sum() == size
        sums.append(exact_gate.whole_sum(grid, Reading(sealed, STEEP, (), rows, 3), jnp.zeros(3), chunk=4))
    assert work[0] == work[1] == work[2]
    assert len(work[0]) > 3
    assert not sums[0].any()
    assert sums[1].any()


def test_a_unit_is_clipped_as_a_whole():
    part = Part(RECORDS[0], np.arange(12), unit=np.repeat([0, 1, 2], 4))
    whole, grid = whole_sum([part], [0, 1, 2], STEEP, jnp.zeros(3))
    rest, _ = whole_sum([part], [0, 2], STEEP, jnp.zeros(3))
    assert 0.99 * grid.clip**2 < ((whole - rest) ** 2).sum() <= grid.clip**2


def test_every_run_is_new_and_every_agent_pays_before_each_step(monkeypatch):
    ledgers, setting = [sv.Ledger(), sv.Ledger()], {"network": RING, "steps": 3}
    budget = sv.Budget(epsilon=1.9 * sv.account(sgd(), sv.Population([12, 12]), **setting).epsilon, delta=1e-5)
    drawn = []
    honest = discrete.on_grid

    def watched(release, share, t=None, agent=None):
        if agent is not None:  # not for the report
            drawn.append((t, agent, len(ledgers[agent].entries)))
        return honest(release, share, t or 0, agent or 0)

    monkeypatch.setattr(discrete, "on_grid", watched)
    first = run_discrete(PROBLEM, PARTS, sgd(), ledger=ledgers, budget=budget, **setting)
    assert sorted(drawn) == [(t, agent, t + 1) for t in range(3) for agent in (0, 1)]
    second = run_discrete(PROBLEM, PARTS, sgd(), ledger=ledgers, **setting)
    assert not np.array_equal(first.x, second.x)
    assert [len(ledger.entries) for ledger in ledgers] == [6, 6]
    once, twice = first.privacy.epsilon, ledgers[0].epsilon(OWNER, 1e-5, "zero-out")
    assert once < twice < 2 * once
    with pytest.raises(BudgetExceeded, match=r"agent 0 would reach.*Nothing was released"):
        run_discrete(PROBLEM, PARTS, sgd(), ledger=ledgers, budget=budget, **setting)
    assert len(drawn) == 12


def test_an_agent_that_has_spent_its_own_budget_stops_the_run(tmp_path):
    """Ledgers outlive runs, and a party's number may be another one in each."""
    setting, files = {"network": RING, "steps": 1}, [tmp_path / "north.jsonl", tmp_path / "south.jsonl"]
    budget = sv.Budget(epsilon=1.2 * sv.account(sgd(), sv.Population([12, 12]), **setting).epsilon, delta=1e-5)
    run_discrete(PROBLEM, PARTS, sgd(), ledger=[sv.Ledger(file) for file in files], budget=budget, **setting)
    newcomer = tmp_path / "east.jsonl"
    ledgers = [sv.Ledger(newcomer), sv.Ledger(files[0])]
    with pytest.raises(BudgetExceeded, match="agent 1 would reach"):
        run_discrete(PROBLEM, PARTS, sgd(), ledger=ledgers, budget=budget, **setting)
    assert not newcomer.exists()
    text = files[0].read_text()
    files[0].write_text(text.replace('"count": 1', '"count": 0'))
    with pytest.raises(ValueError, match="changed or cut"):
        sv.Ledger(files[0])


def test_deployed_runs_must_guarantee_something_and_read_records():
    fading = sgd(gradient=sv.Release(4.0, Linear(0.5, 0.0, 2)))
    with pytest.raises(ValueError, match="guarantee something"):
        run_discrete(PROBLEM, PARTS, fading, network=RING, steps=4)


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
        run_discrete(PROBLEM, PARTS, sgd(), ledger=wrong(), network=RING, steps=1)


def test_the_report_names_what_is_drawn():
    report = run_discrete(PROBLEM, PARTS, sgd(), network=RING, steps=1).privacy
    assert "discrete gaussian" in report.events[0]
    assert any("operating system" in caveat for caveat in report.caveats)
    assert any("the time that a round takes is not protected" in caveat for caveat in report.caveats)
    assert not any("simulated" in caveat for caveat in report.caveats)
    simulated = sv.run(PROBLEM, PARTS, sgd(), network=RING, steps=1).privacy
    assert any("simulated" in caveat for caveat in simulated.caveats)
    assert report.epsilon == simulated.epsilon


def test_results_and_ledger_are_kept(tmp_path):
    options = {"network": RING, "steps": 1, "evaluate": size}
    result = run_discrete(PROBLEM, PARTS, sgd(), out=tmp_path / "run", **options)
    assert result.history["size"].shape == (2,)  # before and after the step
    assert result.history["size/agents"].shape == (2, 2)
    assert result.releasable
    assert (tmp_path / "run" / "result.json").exists()
    for agent in range(2):
        kept = sv.Ledger(tmp_path / "run" / f"ledger-{agent}.jsonl")
        assert kept.epsilon(OWNER, 1e-5, "zero-out") == pytest.approx(result.privacy.epsilon, rel=1e-3)
    with pytest.raises(ValueError, match="holds a run already"):
        run_discrete(PROBLEM, PARTS, sgd(), out=tmp_path / "run", **options)


def test_run_takes_the_noise_as_an_option():
    result = sv.run(PROBLEM, PARTS, sgd(), network=RING, steps=1, noise="discrete")
    assert "discrete gaussian" in result.privacy.events[0]
    with pytest.raises(ValueError, match="'simulated' or 'discrete'"):
        sv.run(PROBLEM, PARTS, sgd(), network=RING, steps=1, noise="quiet")
    with pytest.raises(ValueError, match="leave out devices"):
        run_discrete(PROBLEM, PARTS, sgd(), network=RING, steps=1, performance=sv.Performance(devices=2))


def test_coins_are_the_operating_systems(monkeypatch):
    asked, honest = [], discrete.secrets.SystemRandom
    monkeypatch.setattr(discrete.secrets, "SystemRandom", lambda: asked.append("coins") or honest())
    run_discrete(PROBLEM, PARTS, sgd(), network=RING, steps=2)
    assert len(asked) >= 8  # a batch and a release of each agent at each step


def test_what_cannot_be_made_exact_is_refused_before_anything_runs():
    printed = dataclasses.replace(
        sv.methods.DpMixSgd(0.1, 0.1, sv.Full(), release_x=sv.Release(1.0, 1.0), release_y=sv.Release(1.0, 1.0)),
        design="printed",
    )
    with pytest.raises(ValueError, match="private state"):
        run_discrete(SADDLE, PARTS, printed, network=RING, steps=1)
    ledgers = [sv.Ledger(), sv.Ledger()]
    wrong = {"evaluate": lambda x, y: {}, "ledger": ledgers}
    with pytest.raises(ValueError, match="evaluate could not be called"):
        run_discrete(PROBLEM, PARTS, sgd(), network=RING, steps=1, **wrong)
    assert not any(ledger.entries for ledger in ledgers)
    with pytest.raises(ValueError, match="no clip or no noise"):
        run_discrete(PROBLEM, PARTS, sgd(gradient=sv.Release.open()), network=RING, steps=1)
    trace = account_of(printed, PARTS, 1, RING, problem=SADDLE).trace
    place = ThreadPlace.deployed(trace, SADDLE, lay_out(PARTS), 64, lambda agent, t: None)
    with pytest.raises(ValueError, match="private state"):  # were it run all the same
        place.advance(place.begin(), 0, 1)


def test_every_step_is_paid_for_wherever_a_run_goes_on():
    paid = []
    trace = account_of(sgd(), PARTS, 3, RING, problem=PROBLEM).trace
    place = ThreadPlace.deployed(trace, PROBLEM, lay_out(PARTS), 64, lambda agent, t: paid.append((t, agent)))
    state = place.begin()
    assert sorted(paid) == [(0, 0), (0, 1)]  # for what `init` releases
    for first in (0, 1):
        paid.clear()
        place.advance(state, first, 2)
        assert sorted(paid) == [(t, agent) for t in (first, first + 1) for agent in (0, 1)]


def test_an_agent_that_fails_does_not_leave_the_others_waiting():
    def pay(agent, t):
        if (agent, t) == (1, 1):
            raise RuntimeError("out of order")

    trace = account_of(sgd(), PARTS, 3, RING, problem=PROBLEM).trace
    place = ThreadPlace.deployed(trace, PROBLEM, lay_out(PARTS), 64, pay)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="out of order"):
        place.advance(place.begin(), 0, 3)
    assert time.monotonic() - began < 60
