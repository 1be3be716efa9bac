"""Members of one program are the runs alone: their figures, their ledgers, their ends."""

import dataclasses
import json
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.charging import Charging
from sottovoce.methods import available
from sottovoce.networks import erdos_renyi, ring
from sottovoce.runtime import jobs, members
from sottovoce.runtime.progress import Progress

RING = ring(3)


def records(seed, parties=3):
    return [
        np.random.default_rng([seed, party]).normal(party, 1, (20, 2)).astype(np.float32) for party in range(parties)
    ]


def quadratic(start=0.0):
    return sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.full(2, start))


def saddle():
    return sv.MinMax(
        lambda x, y, r: 0.5 * jnp.sum((x - r) ** 2) + y @ x - 0.5 * jnp.sum(y**2), jnp.zeros(2), jnp.zeros(2)
    )


def bilevel():
    return sv.Bilevel(
        lambda x, y, r: 0.5 * jnp.sum((y - r) ** 2),
        lambda x, y, r: 0.5 * jnp.sum((y - x * r) ** 2) + 0.5 * jnp.sum(y**2),
        jnp.ones(2),
        jnp.zeros(2),
    )


def sgd(rate=0.2, noise=0.1):
    return sv.methods.DpSgd(rate=rate, gradient=sv.Release(1.0, noise), sampling=sv.Poisson(8))


def plain(seed=0, out=None, **options):
    """A run of DP-SGD."""
    given = {"problem": quadratic(), "data": records(0), "method": sgd(), "network": RING, "steps": 6, "every": 2}
    return {**given, "seed": seed, "out": out, "evaluate": size, **options}


def size(x):
    return {"size": jnp.sum(x**2)}


def close(one, other):
    """Whether two results have the same figures, to a millionth of the largest."""
    for a, b in zip(jax.tree.leaves((one.x, one.y, one.agents)), jax.tree.leaves((other.x, other.y, other.agents))):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * max(1.0, np.abs(b).max()))
    assert one.privacy == other.privacy
    assert set(one.history) == set(other.history)


@pytest.fixture
def programs(monkeypatch):
    """How many runs each program had."""
    seen = []
    of = members.Members.__init__
    monkeypatch.setattr(
        members.Members, "__init__", lambda self, places: (seen.append(len(places)), of(self, places))[1]
    )
    return seen


def apart():
    """Runs that differ in everything that may differ."""
    other = {"epsilon": 4.0, "network": erdos_renyi(3, 0.9, seed=4), "data": records(1), "problem": quadratic(1.0)}
    return [plain(epsilon=2.0), plain(seed=1, method=sgd(0.3), every=3, **other)]


@lru_cache
def apart_alone():
    return [sv.run(**given) for given in apart()]


@lru_cache
def plain_alone(seed):
    return sv.run(**plain(seed))


def test_members_are_the_runs_alone(programs):
    found = sv.run_many(apart())
    assert programs == [2]
    for result, alone in zip(found, apart_alone()):
        close(result, alone)
        for name in set(alone.history) - {"seconds"}:
            np.testing.assert_allclose(result.history[name], alone.history[name], rtol=1e-5, atol=1e-6)
    assert float(found[0].x[0]) != float(found[1].x[0])


PROBLEMS = {sv.Minimize: quadratic, sv.MinMax: saddle, sv.Bilevel: bilevel}
WHOLE = ("DpMixSgd", "LdpDsbo", "DpGradientTracking", "DpBilevel", "DpNewton")  # all examples of these
ROWS = [(name, kind) for name, kind in available.items() if set(kind.solves) <= set(PROBLEMS)]


def noisy(method, seed):
    """Return the method with noise of its own scale in each open release."""
    noise = {
        field.name: sv.Release(5.0, 0.01 * (1 + seed))
        for field in dataclasses.fields(method)
        if getattr(method, field.name) == sv.Release.open()
    }
    return dataclasses.replace(method, **noise)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), ROWS, ids=[name for name, _ in ROWS])
def test_every_method_is_the_run_alone(name, kind, programs):
    examples = list(kind.examples().values())
    for method in examples if name in WHOLE else examples[:1]:
        problem = PROBLEMS[method.solves[0]]()
        parties, network = (1, None) if name in ("DpNewton", "DpBilevel") else (3, RING)
        common = {"problem": problem, "network": network, "steps": 4}
        runs = [
            {**common, "method": noisy(method, seed), "data": records(seed, parties), "seed": seed} for seed in (0, 1)
        ]
        del programs[:]
        found = sv.run_many(runs)
        assert programs == [2]
        for given, result in zip(runs, found):
            close(result, sv.run(**given))


def test_a_lone_agent_does_not_hear_another_run(programs):
    runs = [plain(seed, data=records(seed, 1), network=None) for seed in (0, 1)]
    for given, result in zip(runs, sv.run_many(runs)):
        close(result, sv.run(**given))
    assert programs == [2, 1, 1]


def spent(folder, run):
    """The lines of a ledger without the random name of the run and the time."""
    text = (folder / "ledger.jsonl").read_text()
    name = json.loads((folder / "run.json").read_text())["name"]
    lines = [json.loads(line) for line in text.replace(name, run).splitlines()]
    return [{key: value for key, value in line.items() if key not in ("time", "before")} for line in lines]


def test_each_member_has_a_ledger_of_its_own_and_is_charged_before_it_moves(tmp_path, monkeypatch):
    lines = []
    of = members.Members.advance

    def advance(self, who, states, first, count):
        lines.append([len((tmp_path / str(number) / "ledger.jsonl").read_text().splitlines()) for number in range(2)])
        return of(self, who, states, first, count)

    monkeypatch.setattr(members.Members, "advance", advance)
    runs = [plain(seed, epsilon=epsilon) for seed, epsilon in enumerate((2.0, 5.0))]
    sv.run_many([{**given, "out": tmp_path / str(number)} for number, given in enumerate(runs)])
    held = [lines[0][0] + turn for turn in range(3)]
    assert lines == [[count, count] for count in held]  # three stretches, each paid for before
    monkeypatch.undo()
    for number, given in enumerate(runs):
        sv.run(**{**given, "out": tmp_path / f"alone {number}"})
        assert spent(tmp_path / str(number), "run") == spent(tmp_path / f"alone {number}", "run")
    assert spent(tmp_path / "0", "run") != spent(tmp_path / "1", "run")


def test_a_member_that_diverges_ends_with_its_own_error_and_the_others_go_on(tmp_path):
    steep = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.ones(2), public=lambda x: jnp.sum(x**4))
    tame, wild = (plain(problem=steep, method=sgd(rate), every=6) for rate in (1e-3, 1e6))
    near, gone, last = sv.run_many([tame, {**wild, "out": tmp_path}, {**tame, "seed": 1}])
    close(near, sv.run(**tame))
    assert (last.x != near.x).all()
    with pytest.raises(FloatingPointError) as caught:
        sv.run(**wild)
    assert isinstance(gone, FloatingPointError)
    assert str(gone) == str(caught.value)
    assert not (tmp_path / "result.json").exists()


def interrupted(tmp_path, monkeypatch, runs):
    """Stop runs after their first stretch."""

    def interrupt(self, done, metrics):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "show", interrupt)
        with pytest.raises(KeyboardInterrupt):
            sv.run_many(runs)


def test_stopped_members_go_on_to_the_same_bytes_together_or_alone(tmp_path, monkeypatch, capsys):
    runs = [plain(seed, out=tmp_path / str(seed)) for seed in (0, 1, 2)]
    interrupted(tmp_path, monkeypatch, runs)
    assert "stopped at step 2; resume=True" in capsys.readouterr().err
    alone = sv.run(**runs[1], resume=True)  # one of them finishes by itself, the others wait at step 2
    found = sv.run_many([{**given, "resume": True} for given in runs])
    for seed, result in enumerate(found):
        close(result, plain_alone(seed))
        assert result.history["step"].tolist() == [0, 2, 4, 6]
    np.testing.assert_array_equal(found[1].x, alone.x)


def test_members_at_different_steps_move_apart(tmp_path, monkeypatch):
    runs = [plain(seed, out=tmp_path / str(seed)) for seed in (0, 1)]
    interrupted(tmp_path, monkeypatch, runs[:1])
    moves = []
    of = members.Members.advance
    monkeypatch.setattr(
        members.Members,
        "advance",
        lambda self, who, states, *at: (moves.append((list(who), *at)), of(self, who, states, *at))[1],
    )
    found = sv.run_many([{**given, "resume": (tmp_path / str(n)).exists()} for n, given in enumerate(runs)])
    assert moves == [([1], 0, 2), ([0, 1], 2, 2), ([0, 1], 4, 2)]
    for seed, result in enumerate(found):
        close(result, plain_alone(seed))


def test_what_is_of_another_form_runs_alone(programs):
    other = {"method": sv.methods.DpSgd(0.2, sv.Release(2.0, 0.1), sv.Poisson(8))}  # another clip
    sv.run_many([plain(), plain(seed=1), plain(**other)])
    assert sorted(programs) == [1, 2]
    with pytest.raises(TypeError, match="stepz"):
        sv.run_many([plain(stepz=3)])


def test_runs_with_a_ledger_wait_for_each_other(programs):
    """What one ledger has left is known when the run before is done."""
    ledger, method = sv.Ledger(), sgd(noise=1.0)
    named = [sv.data.Part(own, np.arange(20), name=f"party {number}") for number, own in enumerate(records(0))]
    one = sv.account(method, records(0), steps=6, network=RING).epsilon
    budget = sv.Budget(1.1 * one, 1e-5)
    with pytest.raises(ValueError, match="is spent already"):
        sv.run_many([plain(seed, data=named, method=method, ledger=ledger, budget=budget) for seed in (0, 1)])
    assert programs == [1]


def test_runs_with_ledgers_of_their_own_are_members(programs, tmp_path):
    """Each is charged in its own, and no two of one file run together, by whatever object."""
    method = sgd(noise=1.0)
    one = sv.account(method, records(0), steps=6, network=RING)
    ledgers = [sv.Ledger(), sv.Ledger(tmp_path / "a.jsonl")]
    sv.run_many([plain(seed, method=method, ledger=ledger) for seed, ledger in enumerate(ledgers)])
    assert programs == [2]
    spent = [float(ledger.epsilon("0", 1e-5, one.adjacency)) for ledger in ledgers]
    assert spent == pytest.approx([one.epsilon] * 2)
    programs.clear()
    named = [sv.data.Part(own, np.arange(20), name=f"party {number}") for number, own in enumerate(records(0))]
    paths = [tmp_path / name for name in ("b.jsonl", "c.jsonl", "b.jsonl")]
    sv.run_many([plain(seed, data=named, ledger=sv.Ledger(path)) for seed, path in enumerate(paths)])
    assert programs == [2, 1]


def test_pieces_are_bounded_and_alike(programs, monkeypatch):
    monkeypatch.setattr(members, "MOST", 3)
    sv.run_many([plain(seed, steps=1) for seed in range(4)])
    assert programs == [2, 2]


def key_of_the_first(monkeypatch):
    keys, kept = jobs.agent_keys, []
    monkeypatch.setattr(jobs, "agent_keys", lambda *given: kept[0] if kept else kept.append(keys(*given)) or kept[0])


def scale_of_the_first(monkeypatch):
    of, first = members._operands, []

    def operands(place):
        *others, numbers = of(place)
        first.append(numbers)
        return (*others, [theirs if np.ndim(theirs) == 2 else own for own, theirs in zip(numbers, first[0])])

    monkeypatch.setattr(members, "_operands", operands)


def only_one_is_charged(monkeypatch):
    of, runs = Charging.charge, []

    def charge(self, start, stop):
        runs.append(self.run)
        if self.run == runs[0]:
            of(self, start, stop)

    monkeypatch.setattr(Charging, "charge", charge)


@pytest.mark.parametrize("fault", [key_of_the_first, scale_of_the_first])
def test_a_fault_put_back_is_found(fault, monkeypatch, programs):
    expected = apart_alone()
    fault(monkeypatch)
    assert not np.allclose(sv.run_many(apart())[1].x, expected[1].x, atol=1e-4)


def test_a_member_that_is_not_charged_is_found(tmp_path, monkeypatch):
    only_one_is_charged(monkeypatch)
    with pytest.raises((AssertionError, FileNotFoundError)):
        test_each_member_has_a_ledger_of_its_own_and_is_charged_before_it_moves(tmp_path, monkeypatch)
