"""`run`: errors before work, checkpoints, budgets, units, and what stops a run."""

import dataclasses
import gc
import json
import os
import signal
import subprocess
import sys
import weakref
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.accounting.content import KEPT, remembered_keys
from sottovoce.accounting.trace import remembered
from sottovoce.data.parts import Levels, Part
from sottovoce.papers.dp_bilevel.method import Descent
from sottovoce.privacy.ledger import OWNER, BudgetExceeded
from sottovoce.runtime import array, checkpoint, loop
from sottovoce.runtime.layout import lay_out
from sottovoce.runtime.progress import Progress

DATA = np.random.default_rng(0).normal(size=(4, 30, 2)).astype(np.float32)
PARTS = list(DATA)
NAMED = [Part(records, np.arange(30), name=name) for records, name in zip(DATA, ("north", "east", "south", "west"))]
RING = sv.networks.ring(4)
FOUR = sv.Population([30] * 4)


def square(x, r):
    return 0.5 * jnp.sum((x - r) ** 2)


PROBLEM = sv.Minimize(square, jnp.zeros(2))


def size(x):
    return {"size": jnp.sum(x**2)}


def sgd(**options):
    options = {"rate": 0.2, "gradient": sv.Release(1.0, 0.1), "sampling": sv.Poisson(10), **options}
    return sv.methods.DpSgd(**options)


def test_history_has_metrics_for_the_average_and_for_each_agent():
    result = sv.run(PROBLEM, PARTS, sgd(), network=RING, steps=10, every=4, evaluate=size)
    assert result.history["step"].tolist() == [0, 4, 8, 10]
    assert result.history["size"].shape == (4,)
    assert result.history["size/agents"].shape == (4, 4)
    assert result.history["consensus"][0] == 0.0
    np.testing.assert_allclose(result.history["size"][-1], np.sum(result.x**2), rtol=1e-5)
    np.testing.assert_allclose(np.mean(result.agents.x, axis=0), result.x, rtol=1e-5, atol=1e-6)


def test_stretches_do_not_change_the_result():
    whole = sv.run(PROBLEM, PARTS, sgd(), network=RING, steps=10, every=10)
    pieces = sv.run(PROBLEM, PARTS, sgd(), network=RING, steps=10, every=3)
    np.testing.assert_allclose(whole.agents.x, pieces.agents.x, rtol=1e-6)


def test_a_forgotten_trace_takes_its_compiled_programs_along():
    """A sweep over thousands of settings would otherwise fill the process until Linux ends it."""
    account = account_of(sgd(rate=0.123), PARTS, 3, RING, problem=PROBLEM)
    held = weakref.ref(account.trace)
    sv.run(PROBLEM, PARTS, sgd(rate=0.123), network=RING, steps=3)
    del account
    gc.collect()
    assert held() is not None  # the next run of these settings compiles nothing
    for bounded in (remembered, remembered_keys, array.compiled):
        assert bounded.cache_info().maxsize == KEPT
        bounded.cache_clear()
    gc.collect()
    assert held() is None


@pytest.mark.slow
def test_parts_may_be_views_of_one_set_or_sets_of_their_own():
    pool = DATA.reshape(-1, 2)
    order = np.random.default_rng(1).permutation(len(pool)).reshape(4, 30)
    views = [Part(pool, rows) for rows in order]
    copies = [pool[rows] for rows in order]
    a, b = (sv.run(PROBLEM, parts, sgd(), network=RING, steps=5) for parts in (views, copies))
    np.testing.assert_array_equal(a.agents.x, b.agents.x)
    assert lay_out(views).sealed["records"].unseal().shape == pool.shape


def test_unequal_parties():
    parts = [DATA[0], DATA[1][:12], DATA[2][:25], DATA[3]]
    open_ = sgd(gradient=sv.Release.open(), sampling=sv.Full(), rate=0.1)
    result = sv.run(PROBLEM, parts, open_, network=RING, steps=300)
    np.testing.assert_allclose(result.x, np.mean([part.mean(axis=0) for part in parts], axis=0), atol=1e-3)


# Privacy units.


def test_units_are_sampled_and_clipped_as_a_whole():
    records = np.array([[9.0, 0.0], [9.0, 0.0], [9.0, 0.0], [0.0, 1.0]], np.float32)
    part = Part(records, np.arange(4), unit=np.array(["p", "p", "p", "q"]))
    linear = sv.Minimize(lambda x, r: x @ r, jnp.zeros(2))
    result = sv.run(linear, [part], sgd(rate=1.0, gradient=sv.Release(2.0, 1e-12), sampling=sv.Full()), steps=1)
    # patient p: the mean of its records, clipped to 2; patient q as it is; divided by two patients
    np.testing.assert_allclose(result.x, [-1.0, -0.5], rtol=1e-4)
    assert result.privacy.unit == "unit"
    assert (
        result.privacy.epsilon
        == sv.account(sgd(gradient=sv.Release(2.0, 1e-12), sampling=sv.Full()), sv.Population([2]), steps=1).epsilon
    )


def test_a_unit_in_both_levels_pays_for_both():
    ids = np.array([0, 0, 1, 1])
    apart = Levels(Part(DATA[0][:4], np.array([0, 1]), ids), Part(DATA[0][:4], np.array([2, 3]), ids))
    mixed = Levels(Part(DATA[0][:4], np.array([0, 2]), ids), Part(DATA[0][:4], np.array([1, 3]), ids))
    assert not sv.Population.of([apart]).in_both_levels(0)
    assert sv.Population.of([mixed]).in_both_levels(0)
    release = sv.Release(1.0, 0.5)
    method = sv.methods.DpBilevel(0.1, Descent(1, 0.5, averaged=False), release, release, sv.Full(), release_x=release)
    disjoint = sv.Population([Levels(2, 2, disjoint=True)], unit="unit")
    alone, both = (sv.account(method, held, steps=2).epsilon for held in (disjoint, [mixed]))
    assert both > 1.1 * alone


# Bad input is named before work starts.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": []}, "no parties"),
        ({"parts": [DATA[0], DATA[1][:0], DATA[2], DATA[3]]}, "party 1 has no records"),
        ({"parts": [DATA[0], DATA[1][:, :1], DATA[2], DATA[3]]}, "party 1 holds records of shapes"),
        ({"parts": [{"a": DATA[0], "b": DATA[0][:5]}] * 4}, "share their first axis"),
        ({"network": None}, r"4 parties need a network, for example sv.networks.ring\(4\)"),
        ({"network": sv.networks.ring(5)}, "the network has 5 agents, but there are 4 parties"),
        ({"steps": 0}, "steps is 0"),
        ({"problem": sv.Minimize(lambda x, r: x - r, jnp.zeros(2))}, "must return one scalar per record"),
        ({"problem": sv.Minimize(lambda x, r: x["w"] @ r, jnp.zeros(2))}, "loss could not be evaluated"),
        ({"parts": [Levels(d, d) for d in DATA]}, "Levels"),
        ({"performance": sv.Performance(devices=3)}, "3 devices were asked for"),
        ({"parts": {"a": DATA[0]}}, "parts is one record set: give a list"),
        ({"network": np.eye(4)}, "network is a ndarray: make one"),
        ({"steps": 2.5}, "steps is 2.5: it must be a whole number"),
        ({"every": -1}, "every is -1: it must be a whole number"),
        ({"every": 0}, "every is 0"),
        ({"budget": 1.0}, r"budget is 1.0: give sv.Budget\(epsilon, delta\)"),
        ({"evaluate": lambda x, y: {"a": x}}, r"It is called as evaluate\(x\)"),
        ({"evaluate": lambda x: {"a": float(x[0])}}, "without float"),
        ({"evaluate": lambda x: x}, "named numbers"),
        ({"problem": sv.Minimize(lambda x, r: jnp.einsum("i,i->", x, r), jnp.zeros(3))}, "loss could not be evaluated"),
        ({"problem": sv.Minimize(square, jnp.zeros(2), public=lambda x: x**2)}, "public returned shape"),
        ({"problem": sv.Minimize(square, jnp.zeros(2), public=lambda: 0.0)}, "public could not be evaluated"),
        ({"problem": sv.Minimize(square, jnp.zeros(2), project_x=lambda x: x[:1])}, "project_x must return the shapes"),
    ],
)
def test_bad_input_is_named(change, message):
    options = {"problem": PROBLEM, "parts": PARTS, "method": sgd(), "network": RING, "steps": 3, **change}
    with pytest.raises((ValueError, TypeError), match=message):
        sv.run(options.pop("problem"), options.pop("parts"), options.pop("method"), **options)


def test_a_method_says_what_it_solves():
    saddle = sv.MinMax(lambda x, y, r: x @ y, jnp.zeros(2), jnp.zeros(2))
    with pytest.raises(TypeError, match="DpSgd solves Minimize; the problem is a MinMax"):
        sv.run(saddle, PARTS, sgd(), network=RING, steps=3)
    columns = sv.Vertical(lambda x, a: a, lambda y, a: a, lambda e, label: 0.0, [jnp.zeros(1)], [jnp.zeros(1)])
    with pytest.raises(TypeError, match=r"give sv\.Table\(columns, labels\)"):
        sv.run(columns, PARTS, sgd(), network=RING, steps=3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"gradient": 1.0}, "gradient is 1.0: give a release"),
        ({"sampling": 10}, "sampling is 10: give a sampling"),
        ({"rate": lambda t: 1 / t}, "rate: .* is no schedule"),
        ({"rate": "fast"}, "rate: 'fast' is no schedule"),
        ({"rate": None}, "rate: None is no schedule"),
        ({"rate": ()}, "rate: an empty list is no schedule"),
    ],
)
def test_a_method_is_told_what_its_fields_are(wrong, message):
    with pytest.raises(TypeError, match=message):
        sgd(**wrong)


def test_a_state_names_the_problems_variables():
    class _Bare(sv.methods.DpSgd):
        def init(self, problem, agent):
            return problem.x0

        def step(self, problem, state, agent):
            return state

    bare = _Bare(0.1, sv.Release(1.0, 0.1), sv.Full())
    with pytest.raises(TypeError, match="state has no x"):
        sv.run(PROBLEM, PARTS, bare, network=RING, steps=1)


def test_a_method_may_not_take_the_name_of_another():
    with pytest.raises(ValueError, match="has a method DpSgd already"):
        type("DpSgd", (sv.methods.DpSgd,), {})


def test_one_value_an_agent_means_every_agent():
    with pytest.raises(ValueError, match="rate lists values for 3 agents, but there are 4"):
        sv.run(PROBLEM, PARTS, sgd(rate=(0.1, 0.2, 0.3)), network=RING, steps=2)


@pytest.mark.parametrize(
    "hidden",
    [
        {"loss": jax.jit(lambda x, r: jnp.sum((x - r) ** 2) + jnp.sum(jnp.asarray(DATA[0][:3]) @ x))},
        {"public": lambda x: jnp.mean((jnp.asarray(DATA[0]) @ x) ** 2)},
        {"project_x": lambda x: x + jnp.asarray(DATA[0]).mean(0)},
    ],
    ids=lambda hidden: next(iter(hidden)),
)
def test_records_do_not_come_in_beside_the_gate(hidden):
    with pytest.raises(ValueError, match="by-pass the privacy gate"):
        sv.run(dataclasses.replace(PROBLEM, **hidden), PARTS, sgd(), network=RING, steps=1)


def test_short_floats_are_refused():
    short = dataclasses.replace(PROBLEM, x0=jnp.zeros(2, jnp.bfloat16))
    with pytest.raises(ValueError, match="bfloat16: use floating-point numbers of 32 bits"):
        sv.run(short, PARTS, sgd(), network=RING, steps=1)


def test_captured_arrays_are_refused_unless_declared_public():
    secret = jnp.asarray(DATA[0][:3])
    leaky = sv.Minimize(lambda x, r: jnp.sum((x - r) ** 2) + jnp.sum(secret @ x), jnp.zeros(2))
    with pytest.raises(ValueError, match=r"closes over an array of shape \(3, 2\).*public_constants=True"):
        sv.run(leaky, PARTS, sgd(), network=RING, steps=3)
    declared = dataclasses.replace(leaky, public_constants=True)
    sv.run(declared, PARTS, sgd(), network=RING, steps=1)


def test_agents_start_apart_where_the_problem_says_so_and_meet_at_the_same_place():
    apart, full = sv.Minimize(square, jnp.ones(2), spread=2.0), {"gradient": sv.Release.open(), "sampling": sv.Full()}
    still, silent = sgd(rate=1e-9, **full), sgd(rate=0.1, **full)
    starts = [
        np.asarray(sv.run(apart, PARTS, still, network=sv.networks.isolated(4), steps=1, seed=seed).agents.x)
        for seed in range(40)
    ]
    assert len(np.unique(np.stack(starts)[..., 0])) == 40 * len(PARTS)
    assert np.std(starts) == pytest.approx(2.0, rel=0.2)  # of 40 x 4 x 2 numbers: 20 % is five deviations
    met = sv.run(apart, PARTS, silent, network=RING, steps=200)
    np.testing.assert_allclose(met.x, sv.run(PROBLEM, PARTS, silent, network=RING, steps=200).x, atol=1e-3)


# What stops a run.


def test_divergence_is_named_with_step_and_variable():
    runaway = sgd(rate=1e6)
    cube = sv.Minimize(square, jnp.ones(2), public=lambda x: jnp.sum(x**4))
    with pytest.raises(
        FloatingPointError, match=r"^x is no longer finite after step 2:"
    ):  # 4e6, then 3e26, then no more
        sv.run(cube, PARTS, runaway, network=RING, steps=60)


def test_a_bad_record_does_not_stop_the_run():
    """A stop that depends on a record would itself be a release."""
    broken = [np.where(np.arange(30)[:, None] == 3, np.nan, DATA[0]).astype(np.float32), *PARTS[1:]]
    with pytest.warns(UserWarning, match="^some records have values that are not finite"):
        result = sv.run(PROBLEM, broken, sgd(), network=RING, steps=20)
    assert np.all(np.isfinite(result.x))


def test_reports_say_what_simulation_means():
    caveats = " ".join(sv.run(PROBLEM, PARTS, sgd(), network=RING, steps=1).privacy.caveats)
    assert "whoever knows its seed can subtract it" in caveats
    assert "ideal mechanism" in caveats


def test_budget_refuses_before_anything_is_released(tmp_path):
    planned = sv.account(sgd(), FOUR, steps=10, network=RING).epsilon
    budget = sv.Budget(planned * 1.2, 1e-5, "zero-out")
    ledger = sv.Ledger(tmp_path / "ledger.jsonl")
    sv.run(PROBLEM, NAMED, sgd(), network=RING, steps=10, budget=budget, ledger=ledger)
    size = (tmp_path / "ledger.jsonl").stat().st_size
    with pytest.raises(
        BudgetExceeded, match=r"agent north would reach epsilon .* is spent already.*Nothing was released"
    ):
        sv.run(PROBLEM, NAMED, sgd(), network=RING, steps=10, seed=1, budget=budget, ledger=ledger)
    assert (tmp_path / "ledger.jsonl").stat().st_size == size
    with pytest.raises(ValueError, match="No differential privacy"):
        sv.run(PROBLEM, PARTS, sgd().without_privacy(), network=RING, steps=1, budget=budget)


def test_the_ledger_composes_to_the_report(tmp_path):
    result = sv.run(PROBLEM, PARTS, sgd(), network=RING, steps=10, every=3, out=tmp_path / "run")
    ledger = sv.Ledger(tmp_path / "run" / "ledger.jsonl")
    spent = ledger.epsilon(agent=2, delta=1e-5, adjacency="zero-out")
    assert float(spent) == pytest.approx(result.privacy.epsilon, rel=1e-4)


def test_every_run_without_a_folder_is_charged_anew():
    """Same seed, same noise: were another loss not charged, the difference of two models would be the records' own."""
    ledger, options = sv.Ledger(), {"network": RING, "steps": 5}
    spent = []
    for _ in range(2):
        sv.run(PROBLEM, NAMED, sgd(), ledger=ledger, **options)
        spent.append(float(ledger.epsilon("north", 1e-5, "zero-out")))
    assert spent[1] > 1.2 * spent[0]
    assert len({entry.run for entry in ledger.entries.values()}) == 2


def test_what_is_kept_of_a_run_confirms_no_guess_of_its_records(tmp_path):
    """Same records, same everything, in two folders: neither names nor digests agree."""
    for name in ("one", "two"):
        sv.run(PROBLEM, PARTS, sgd(), network=RING, steps=2, out=tmp_path / name)
    metas = [checkpoint.read_meta(tmp_path / name / "checkpoint.npz")["identity"] for name in ("one", "two")]
    assert metas[0].keys() == metas[1].keys()
    assert [key for key in metas[0] if metas[0][key] != metas[1][key]] == ["records"]
    names = [json.loads((tmp_path / name / "run.json").read_text())["name"] for name in ("one", "two")]
    assert names[0] != names[1]


def test_a_run_without_privacy_leaves_nothing_of_a_budget():
    ledger, options = sv.Ledger(), {"network": RING, "steps": 2}
    sv.run(PROBLEM, NAMED, sgd().without_privacy(), ledger=ledger, **options)
    with pytest.raises(BudgetExceeded, match="inf is spent already"):
        sv.run(PROBLEM, NAMED, sgd(), ledger=ledger, budget=sv.Budget(100.0, 1e-5), **options)


def test_what_init_releases_is_charged_before_it_is_made(tmp_path, monkeypatch):
    problem = sv.MinMax(lambda x, y, r: x @ r + x @ y, jnp.zeros(2), jnp.zeros(2))
    release = sv.Release(1.0, 0.1)
    method = sv.methods.DpMixSgd(0.1, 0.1, sv.Full(), release_x=release, release_y=release)
    assert any(charge.phase == "init" for charge in account_of(method, PARTS, 3, RING, problem=problem).charges)

    def stopped(self, entry):
        raise KeyboardInterrupt

    monkeypatch.setattr(sv.Ledger, "charge", stopped)
    with pytest.raises(KeyboardInterrupt):
        sv.run(problem, PARTS, method, network=RING, steps=3, out=tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint.npz").exists()


@pytest.mark.parametrize("every", [1, 3])
def test_a_single_pass_is_paid_for_once(every):
    ledger, method = sv.Ledger(), sgd(sampling=sv.OnePass(10))
    result = sv.run(PROBLEM, PARTS, method, network=RING, steps=3, every=every, ledger=ledger)
    spent = float(ledger.epsilon(0, 1e-5, result.privacy.adjacency))
    assert spent == pytest.approx(result.privacy.epsilon, rel=1e-3)


def test_a_ledger_is_for_all_agents_or_for_its_owner():
    shared, own, options = sv.Ledger(), [sv.Ledger() for _ in PARTS], {"network": RING, "steps": 2}
    sv.run(PROBLEM, PARTS, sgd(), ledger=shared, **options)
    sv.run(PROBLEM, PARTS, sgd(), ledger=own, **options)
    assert own[2].epsilon(7, 1e-5, "zero-out") == own[2].epsilon(OWNER, 1e-5, "zero-out") > 0
    with pytest.raises(ValueError, match="kept for its owner alone"):
        sv.run(PROBLEM, PARTS[:1], sgd(), ledger=own[0], steps=2)
    with pytest.raises(ValueError, match="kept for all agents"):
        sv.run(PROBLEM, PARTS, sgd(), ledger=[shared, *own[1:]], **options)
    with pytest.raises(TypeError, match="neither a ledger nor a list"):
        sv.run(PROBLEM, PARTS, sgd(), ledger=["a", "b", "c", "d"], **options)


def test_each_agent_may_keep_its_own_ledger():
    sizes = [30, 30, 30, 60]
    parts = [np.resize(PARTS[0], (size, *np.shape(PARTS[0])[1:])) for size in sizes]
    ledgers = [sv.Ledger() for _ in sizes]
    result = sv.run(PROBLEM, parts, sgd(), network=RING, steps=10, every=5, ledger=ledgers)
    spent = [float(ledger.epsilon(OWNER, 1e-5, "zero-out")) for ledger in ledgers]
    np.testing.assert_allclose(spent, np.asarray(result.privacy.per_agent, float), rtol=1e-3)
    assert spent[3] < spent[0]
    budget = sv.Budget(1.2 * spent[3], 1e-5)
    with pytest.raises(BudgetExceeded, match="agent 0 would reach"):
        sv.run(PROBLEM, parts, sgd(), network=RING, steps=10, ledger=ledgers, budget=budget)


def test_a_damaged_ledger_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text('{"run": "a", "start": 0\n')
    with pytest.raises(ValueError, match="line 1, is not a ledger entry"):
        sv.Ledger(path)


# Checkpoints.


def test_a_folder_is_not_overwritten_and_another_run_is_not_continued(tmp_path):
    options = {"network": RING, "steps": 4, "out": tmp_path / "run"}
    sv.run(PROBLEM, PARTS, sgd(), **options)
    with pytest.raises(ValueError, match="holds a run already"):
        sv.run(PROBLEM, PARTS, sgd(), **options)
    with pytest.raises(ValueError, match="seed was 0 and is 1"):
        sv.run(PROBLEM, PARTS, sgd(), seed=1, resume=True, **options)
    with pytest.raises(ValueError, match="holds a run already"):
        sv.run(PROBLEM, PARTS, sgd(), ledger=sv.Ledger(), **options)
    with pytest.raises(ValueError, match="is a file: give a folder"):
        sv.run(PROBLEM, PARTS, sgd(), **{**options, "out": tmp_path / "run" / "result.json"})
    again = sv.run(PROBLEM, PARTS, sgd(), resume=True, **options)
    summary = json.loads((tmp_path / "run" / "result.json").read_text())
    assert summary["privacy"]["epsilon"] == again.privacy.epsilon


def _killed_while_saving(folder):
    """Run into a folder until the third checkpoint is about to be written; then the process is killed."""
    honest, saves = checkpoint.save, []

    def save(*given):
        saves.append(given)
        if len(saves) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        honest(*given)

    checkpoint.save = save
    loop._SAVE_SECONDS = 0.0
    sv.run(PROBLEM, PARTS, sgd(), network=RING, steps=12, every=2, out=folder)


def test_kill_and_resume_gives_the_same_bytes_and_charges_nothing_twice(tmp_path):
    there = f"import runpy; runpy.run_path({__file__!r})['_killed_while_saving']({str(tmp_path / 'killed')!r})"
    killed = subprocess.run([sys.executable, "-c", there], timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL
    options = {"network": RING, "steps": 12, "every": 2}
    assert checkpoint.read_meta(tmp_path / "killed" / "checkpoint.npz")["step"] == 4
    resumed = sv.run(PROBLEM, PARTS, sgd(), out=tmp_path / "killed", resume=True, **options)
    whole = sv.run(PROBLEM, PARTS, sgd(), out=tmp_path / "whole", **options)
    np.testing.assert_array_equal(resumed.agents.x, whole.agents.x)
    ledgers = [sv.Ledger(tmp_path / name / "ledger.jsonl") for name in ("whole", "killed")]
    spent = [[(e.start, e.stop, e.groups) for e in ledger.entries.values()] for ledger in ledgers]
    assert spent[0] == spent[1]
    assert len((tmp_path / "killed" / "ledger.jsonl").read_text().splitlines()) == 6


def test_ctrl_c_saves(tmp_path, monkeypatch, capsys):
    def interrupt(self, done, metrics):
        if done >= 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "show", interrupt)
        with pytest.raises(KeyboardInterrupt):
            sv.run(PROBLEM, PARTS, sgd(), network=RING, steps=8, every=2, out=tmp_path / "run")
    assert "stopped at step 4" in capsys.readouterr().err
    resumed = sv.run(PROBLEM, PARTS, sgd(), network=RING, steps=8, every=2, out=tmp_path / "run", resume=True)
    whole = sv.run(PROBLEM, PARTS, sgd(), network=RING, steps=8, every=2)
    np.testing.assert_array_equal(resumed.agents.x, whole.agents.x)
    np.testing.assert_array_equal(resumed.history["consensus"], whole.history["consensus"])


@pytest.mark.parametrize("seed", [0, None])
def test_a_simulation_is_never_releasable(seed):
    """Whoever knows the seed can subtract its noise; a secret one is drawn in floating point."""
    result = sv.run(PROBLEM, PARTS, sgd(), network=RING, steps=3, seed=seed)
    assert result.covered
    assert not result.releasable


def test_models_carry_their_statement(tmp_path):
    problem = dataclasses.replace(PROBLEM, predict=lambda x, features: features @ x)
    result = sv.run(problem, PARTS, sgd(), network=RING, steps=3)
    assert result.covered
    assert not result.releasable  # a simulation's noise comes from a seed
    model = sv.Model.load(result.save(tmp_path) / "model.npz", problem)
    assert model.privacy.statement() == result.privacy.statement()
    np.testing.assert_allclose(model.predict(DATA[0]), result.predict(DATA[0]), atol=1e-6)
    with pytest.raises(ValueError, match="predict"):
        sv.run(PROBLEM, PARTS, sgd(), network=RING, steps=1).predict(DATA[0])


class _Noted(NamedTuple):
    x: jax.Array
    keys: jax.Array
    count: jax.Array


class _Keys(sv.methods.DpSgd):
    """Writes down two keys in `init`, two in each step, and two in each turn of two loops."""

    def init(self, problem, agent):
        return self._two(_Noted(problem.x0, jnp.zeros((22, 2), jnp.uint32), jnp.int32(0)), agent)

    def step(self, problem, state, agent):
        state = self._two(state, agent)
        for _ in range(2):
            state = agent.loop(2, self._two, state)
        return state

    def _two(self, state, agent):
        x, keys, count = state
        for number in range(2):
            keys = keys.at[count + number].set(jax.random.key_data(agent.key("same")))
        return _Noted(x, keys, count + 2)


def test_keys_are_never_used_twice():
    """Every equation of a step, of every agent, phase, step and loop turn, has a key of its own."""
    method = _Keys(0.1, sv.Release(1.0, 0.1), sv.Full())
    noted = sv.run(PROBLEM, PARTS, method, network=RING, steps=2).agents
    assert noted.count.tolist() == [22] * 4
    keys = np.asarray(noted.keys).reshape(-1, 2)
    assert len(np.unique(keys, axis=0)) == len(keys)


def test_an_optax_transformation_that_is_built_anew_draws_the_same_noise():
    """Its words show addresses in memory, which differ in every process: they must not reach the keys."""
    once, again = (
        sv.run(PROBLEM, PARTS, sgd(rate=optax.chain(optax.sgd(0.1))), network=RING, steps=1).x for _ in range(2)
    )
    np.testing.assert_array_equal(once, again)
