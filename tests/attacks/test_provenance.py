"""What is stored and opened again keeps what it is: drawn by a seed or not, bought by whom, which rows, which noise."""

import copy
import itertools
import math
import pickle
import random
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.data import Levels, Part
from sottovoce.data.parts import Bought, Facts
from sottovoce.papers.dp_bilevel.method import Descent
from sottovoce.privacy.gdp import gdp_epsilon, gdp_mu
from sottovoce.privacy.labels import Fresh
from sottovoce.privacy.ledger_line import encoded
from sottovoce.privacy.response import Response
from sottovoce.problems.tasks.reweighting import _corrupted
from sottovoce.problems.tasks.vertical import hyper_parameters
from sottovoce.runtime.columns import table_roots
from sottovoce.runtime.lone_agent import LoneAgent, run_agent
from sottovoce.runtime.lone_party import LoneParty
from sottovoce.runtime.run_state import RunState
from sottovoce.runtime.transport import QueueTransport

LABEL = np.random.default_rng(0).integers(0, 2, 400)


# A label store: who opens it does not say what it is.


@pytest.mark.parametrize(("begun", "opened"), [(0, None), (None, 0), (0, 1), (None, 7)])
def test_a_label_store_is_opened_as_it_was_begun(tmp_path, begun, opened):
    path = tmp_path / "labels.store"
    first = sv.Labels(LABEL, classes=2, path=path, seed=begun)
    seen = first.memo(1.0).observed
    with pytest.raises(ValueError, match=r"was begun with.*and is opened with.*give another path"):
        sv.Labels(LABEL, classes=2, path=path, seed=opened)
    again = sv.Labels(LABEL, classes=2, path=path, seed=begun)
    assert again.simulated is (begun is not None)
    assert (again.memo(1.0).observed == seen).all()
    with pytest.raises(AttributeError):
        again.simulated = False


def test_a_store_that_a_seed_charged_is_a_simulation_although_nothing_was_drawn(tmp_path):
    sv.Labels(LABEL, classes=2, path=tmp_path / "s", seed=0).accuracy(LABEL, 0.5)
    with pytest.raises(ValueError, match="begun with seed 0"):
        sv.Labels(LABEL, classes=2, path=tmp_path / "s")


def test_an_estimator_does_not_take_a_simulated_store_for_its_own(tmp_path):
    rows = np.random.default_rng(0).normal(size=(400, 2)).astype(np.float32)
    path = tmp_path / "labels.store"
    sv.Labels(LABEL, 2, path=path, seed=0).memo(1.0)
    with pytest.raises(ValueError, match="begun with seed 0, and is opened without a seed"):
        sv.PrivateColumnsClassifier(1.0, steps=1, path=path).fit([rows[:, :1], rows[:, 1:]], LABEL)


def test_two_draws_of_a_seed_share_no_coins_over_a_restart(tmp_path):
    """Coins began anew: at two epsilons the same rows were lied about, and so on other rows."""

    def told(epsilon, rows=None, again=False):
        labels = sv.Labels(np.zeros(400, int), classes=2, path=tmp_path / "labels.store", seed=0)
        memo = labels.redraw(epsilon, rows) if again else labels.memo(epsilon, rows)
        return memo.observed[slice(None) if rows is None else rows]

    one, other, third = told(1.0), told(1.01), told(1.0, again=True)
    halves = told(2.0, np.arange(200)), told(2.0, np.arange(200, 400))
    for a, b in (*itertools.combinations((one, other, third), 2), halves):
        assert 0.1 < np.mean(a != b) < 0.6
    coins, response = random.Random(0), Response(1.0, 2)  # whoever knows the seed alone
    assert (one != [response.answer(0, coins) for _ in range(400)]).any()


# A name of noise follows from everything that fixes what is drawn.

BLOCKS = [np.random.default_rng(m).normal(size=(40, 2)).astype(np.float32) for m in range(2)]
RUN = {"seed": 0, "steps": 1, "scale": 20.0, "places": None, "label": LABEL[:40], "secret": b"s" * 32, "upper": None}


def lone(labels=None, **changed):
    asked = {**RUN, **changed}
    held = sv.Labels(asked["label"], classes=2) if labels is None else labels
    places = asked["places"]
    rows = 40 if places is None else len(places)
    method = sv.methods.Bambi(inner_steps=1, batch=10, rate_x=0.1, rate_y=1.0, labels=Fresh(asked["scale"]))
    columns = sv.Columns([BLOCKS[0][:rows]], upper=asked["upper"])
    return LoneParty.of(
        0, columns, problem=hyper_parameters([2, 2]), method=method, classes=2, active=0, steps=asked["steps"],
        seed=asked["seed"], labels=held, places=places, secret=asked["secret"],
    )  # fmt: skip


def key(party):
    return np.asarray(jax.random.key_data(party.desk.root)).tobytes()


def test_another_public_seed_meets_other_label_noise_and_pays():
    labels, keys, spent = sv.Labels(LABEL[:40], classes=2), set(), []
    for seed in (0, 1, 0):
        keys.add(key(lone(labels, seed=seed)))
        spent.append(float(labels.epsilon()))
    assert len(keys) == 2
    assert spent[1] > spent[0]
    assert spent[2] == spent[1]  # the first one again, after a restart


def test_other_rows_with_equal_labels_meet_other_noise():
    """Two halves of one store, two stores, and the same rows dealt out otherwise."""
    same = np.zeros(40, int)
    store, every = sv.Labels(same, classes=2), np.arange(40)
    parties = [
        lone(store, places=every[:20], label=same),
        lone(store, places=every[20:], label=same),
        lone(store, places=every[:20][::-1], label=same),
        lone(label=same, places=every[:20]),
        lone(store, places=every[:20], label=same, upper=np.arange(10)),
        lone(store, places=every[:20], label=same, secret=b"t" * 32),
        lone(store, places=every[:20], label=same, scale=21.0),
    ]
    assert len({key(party) for party in parties}) == len(parties)
    assert key(lone(store, places=every[:20], label=same)) == key(parties[0])


def test_a_simulation_in_one_place_and_by_parties_draws_the_same():
    party = lone(secret=None)
    table = sv.Table(sv.Columns(BLOCKS), sv.Labels(LABEL[:40], classes=2))
    from sottovoce.accounting.table import table_account

    whole = table_account(party.account.method, table, hyper_parameters([2, 2]), 1, 0.0)
    assert np.asarray(jax.random.key_data(table_roots(whole, table)[-1])).tobytes() == key(party)


# What was bought is charged.

COLUMNS = {"age": {"range": "private"}, "y": {"categories": [0, 1]}}
QUIET = sv.Release(1.0, 1e6)
TWO_LEVELS = sv.methods.DpBilevel(0.1, Descent(1, 0.1, averaged=False), QUIET, QUIET, sv.Full(), release_x=QUIET)


def visits(seed, epsilon=3.0, unit="patient", columns=COLUMNS, **how):
    rng = np.random.default_rng(seed)
    frame = {"patient": [f"p{i}" for i in range(200)], "age": rng.uniform(20, 90, 200), "y": rng.integers(0, 2, 200)}
    if unit is None:
        del frame["patient"]
    return sv.data.table(frame, label="y", unit=unit, columns=columns, private=sv.NoisyCounts(epsilon, **how))


def stated(upper, lower, **how):
    parts = [Levels(up, low) for up, low in zip(upper, lower)]
    network = None if len(parts) == 1 else sv.networks.ring(len(parts))
    return sv.account(TWO_LEVELS, parts, steps=1, adjacency="zero-out", network=network, **how)


def test_two_tables_in_two_levels_pay_for_both_purchases_and_one_table_pays_once(tmp_path):
    one, other = visits(1).parts(), visits(2).parts()
    once = stated(one, one).epsilon
    assert 2.99 < once < 3.001
    twice = gdp_epsilon(math.sqrt(2) * gdp_mu(once, 1e-5), 1e-5)
    assert twice > once + 1
    assert stated(one, other).epsilon == pytest.approx(twice, rel=1e-3)
    assert stated(visits(1).parts(), visits(1).parts()).epsilon == pytest.approx(twice, rel=1e-3)  # equal, not one
    kept = (visits(seed, path=tmp_path / "bought.json").parts() for seed in (1, 2))
    assert stated(*kept).epsilon == pytest.approx(once, rel=1e-3)  # the same answers, bought once


def test_purchases_of_two_levels_add_their_deltas():
    columns = {"age": {"categories": "private"}, "y": {"categories": [0, 1]}}
    one, other = (visits(seed, columns=columns).parts() for seed in (1, 2))
    assert stated(one, one).epsilon < 3.01
    population = sv.Population.of([Levels(one[0], other[0])])
    once = one[0].facts.bought[0].delta
    assert once > 0
    assert sum(bought.delta for bought in population.bought(0, population.sizes)) == 2 * once


def test_a_party_pays_for_what_it_bought_and_for_nothing_else():
    cheap, dear, free = visits(1, 0.5).parts()[0], visits(2, 3.0).parts()[0], visits(3, 1.0)
    records = {name: np.array(held) for name, held in free.records.items()}  # as from a table with declared ranges
    none = Part(records, np.arange(200), free.unit, facts=Facts(unit="patient"))
    levels = [Levels(cheap, dear), Levels(cheap, cheap), Levels(none, none)]
    report = stated([one.upper for one in levels], [one.lower for one in levels])
    both = gdp_epsilon(math.hypot(gdp_mu(0.5, 1e-5), gdp_mu(3.0, 1e-5)), 1e-5)
    assert report.per_agent == pytest.approx([both, 0.5, 0.0], rel=0.01, abs=0.01)


def test_counts_of_records_do_not_cover_patients_and_the_reverse():
    held, ids = visits(1, unit=None), np.arange(200) // 4
    for part, unit in (
        (
            Part(held.records, np.arange(200), ids, facts=held.facts),
            "bought per record, and the run protects each unit",
        ),
        (Part(visits(1).records, np.arange(200), facts=visits(1).facts), "bought per patient, and .* each record"),
    ):
        with pytest.raises(ValueError, match=unit):
            sv.Population.of([part])


def test_a_purchase_over_columns_is_refused_because_nobody_would_pay():
    held = visits(1, unit=None)
    for ask in (
        lambda: held.blocks({"bank": ["age"]}),
        lambda: held.classes_of_rows,
        lambda: sv.Columns([held.inputs], facts=held.facts),
    ):
        with pytest.raises(ValueError, match=r"bought with noisy counts.*nobody would pay"):
            ask()


def test_arrays_of_a_table_are_paid_for_by_whoever_makes_parts_of_them():
    """The rows of a table, taken out by hand: their encoding tells the bought range, so the purchase goes with them."""
    held = visits(1, unit=None)
    (part,), rows = held.parts(), np.arange(200)
    views = {name: column[:150] for name, column in held.records.items()}
    by_hand = {"as they are": [held.records], "split": sv.data.split(held.records, 2), "views": [views],
               "part": [Part(held.records, rows)], "features": [Part(held.records["features"], rows)]}  # fmt: skip
    for way, parts in by_hand.items():
        population = sv.Population.of(parts)
        assert all(population.bought(k, population.sizes) == part.facts.bought for k in range(len(parts))), way
        assert set(part.facts.words) <= set(population.facts.words)
    (train,) = held.hold_out(0.2)[0].parts()
    assert Part(train.records, np.arange(160)).facts.bought == part.facts.bought
    model = sv.PrivateLogisticRegression(epsilon=4.0)
    (fitted,) = model._parts(model._records(held.records["features"], held.records["label"], None), None)
    assert fitted.facts.bought == part.facts.bought
    free = {name: np.array(column) for name, column in held.records.items()}
    assert sv.Population.of([free]).facts.bought == ()
    for blocks in ([held.inputs], [free["features"], held.records["features"][:, :1]]):
        with pytest.raises(ValueError, match=r"bought with noisy counts.*nobody would pay"):
            sv.Columns(blocks)


def test_a_task_that_prepares_records_keeps_what_was_bought():
    (part,) = visits(1).parts()
    both = sv.data.levels(part)
    made = _corrupted(both, np.array([0.5, 0.5]), 2, (0, 0))
    assert made.lower.facts.bought == made.upper.facts.bought == part.facts.bought != ()


def test_a_simulated_purchase_makes_a_run_with_a_secret_key_a_simulation():
    rows = np.ones((50, 2), np.float32)
    facts = Facts(bought=(Bought("counts a", 0.01, simulated=True),))
    problem = sv.Minimize(lambda x, r: jnp.sum((x - r) ** 2), jnp.zeros(2))
    method = sv.methods.DpSgd(0.1, sv.Release(1.0, 1.0), sv.Full())
    result = sv.run(problem, [Part(rows, np.arange(50), facts=facts)], method, steps=1, seed=None)
    assert result.privacy.drawn == "simulated"


# Copies.


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_book_is_the_book_itself(tmp_path, duplicate):
    for book in (sv.Ledger(), sv.Ledger(tmp_path / "l"), sv.Labels(LABEL, 2), sv.Labels(LABEL, 2, path=tmp_path / "s")):
        assert duplicate(book) is book


def test_a_label_store_is_not_pickled(tmp_path):
    for path in (None, tmp_path / "s"):
        with pytest.raises(TypeError, match=r"open it there, sv\.Labels\(\.\.\., path=path\)"):
            pickle.dumps(sv.Labels(LABEL, classes=2, path=path))


# A run is gone on with as what it was begun as.


class _Place:
    holds, shapes = None, ()

    def stored(self, leaves):
        return leaves


class _Alone:
    rank, count = 0, 1


def test_an_identity_that_says_something_else_is_another_run(tmp_path):
    """A run with exact noise was gone on with as a simulation: both said nothing about what the other is."""
    RunState([np.zeros(2)], step=3).save(tmp_path, {"steps": 9, "noise": "discrete"}, _Place(), _Alone())
    with pytest.raises(ValueError, match="noise was discrete and is not stated"):
        RunState.restore(tmp_path, 3, {"steps": 9, "seed": None}, _Place(), _Alone())


# Places in a federation's journal.


class Journal:
    def __init__(self, known=()):
        self.known, self.places = dict(known), []

    def recall(self, place):
        return self.known.get(place)

    def note(self, place, drawn):
        self.places.append((place, [np.array(one) for one in drawn]))


def test_two_loops_of_a_step_have_places_of_their_own():
    problem = sv.Bilevel(lambda x, y, r: jnp.sum((y - r) ** 2), lambda x, y, r: jnp.sum((y - r - x) ** 2),
                         x0=jnp.zeros(1), y0=jnp.zeros(1))  # fmt: skip
    release = sv.Release(1.0, 0.5)
    method = sv.methods.DpBilevel(
        0.1, Descent(2, 0.3, averaged=False), release, release, sv.Poisson(5), release_x=release
    )

    def run(journal):
        agent = LoneAgent.of(
            0, np.ones((40, 1), np.float32), problem, method, sv.Population([40]), sv.networks.single(), steps=1,
            root=jax.random.key(0), noise="discrete", journal=journal,
        )  # fmt: skip
        return [np.asarray(leaf) for leaf in run_agent(agent, QueueTransport(), steps=1)[0]]

    first = Journal()
    state = run(first)
    assert len({place for place, _ in first.places}) == len(first.places) == 10
    again = Journal(first.places)
    for one, other in zip(state, run(again)):
        np.testing.assert_array_equal(one, other)
    assert not again.places


# Ledgers: what a process knows is never forgotten.


def entry(name, epsilon=0.4):
    from sottovoce.privacy.ledger_line import Entry, Group
    from sottovoce.privacy.mechanisms import Mechanism

    return Entry(name, 0, 1, (Group("records", ("all",), ((Mechanism(laplace=(epsilon,)), 1),)),))


def spent(ledger):
    return float(ledger.epsilon("all", 0.0, "zero-out"))


def test_a_relative_path_is_the_same_file_wherever_the_process_goes(tmp_path, monkeypatch):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "a")
    ledger, labels = sv.Ledger("l.jsonl"), sv.Labels(LABEL, 2, path="labels.store")
    counts = sv.NoisyCounts(1.0, path="bought.json")
    ledger.charge(entry("one"))
    monkeypatch.chdir(tmp_path / "b")
    ledger.charge(entry("two"))
    labels.memo(1.0)
    assert (spent(ledger), spent(sv.Ledger(tmp_path / "a" / "l.jsonl"))) == pytest.approx((0.8, 0.8))
    assert labels.path == tmp_path / "a" / "labels.store"
    assert counts.path == tmp_path / "a" / "bought.json"
    assert not list((tmp_path / "b").iterdir())


def _removed(path, old):
    for file in (path, path.with_name(path.name + ".head")):
        file.unlink()


def _replaced(path, old):
    _removed(path, old)
    for file in old.iterdir():
        shutil.copy(file, path.parent / file.name)


def _another(path, old):
    _removed(path, old)
    other = sv.Ledger(old / "other")
    for number in range(9):
        other.charge(entry(f"other {number}"))
    for end in ("", ".head"):
        shutil.copy(old / f"other{end}", path.with_name(path.name + end))


@pytest.mark.parametrize("harm", [_removed, _replaced, _another])
@pytest.mark.parametrize("again", [False, True])
def test_a_ledger_that_no_longer_holds_what_the_process_charged_is_refused(tmp_path, harm, again):
    path, old = tmp_path / "l.jsonl", tmp_path / "old"
    ledger = sv.Ledger(path)
    ledger.charge(entry("one"))
    shutil.copytree(tmp_path, old)
    ledger.charge(entry("two"))
    harm(path, old)
    kept = dict(ledger.entries)
    for ask in (
        lambda: (sv.Ledger(path) if again else ledger).charge(entry("three")),
        lambda: spent(sv.Ledger(path) if again else ledger),
    ):
        with pytest.raises(ValueError, match="does not begin with the 2 lines that this process knows"):
            ask()
    assert ledger.entries == kept
    assert [encoded(one)["run"] for one in ledger.entries.values()] == ["one", "two"]


def test_a_ledger_states_what_other_objects_charged(tmp_path):
    one, other = (sv.Ledger(tmp_path / "l.jsonl") for _ in range(2))
    one.charge(entry("one"))
    assert spent(other) == pytest.approx(0.4)
    other.charge(entry("two"))
    assert spent(one) == pytest.approx(0.8)
    with pytest.raises(sv.privacy.BudgetExceeded):
        one.require(sv.Budget(1.0, 0.0, "zero-out"), "three", entry("three").groups)


@pytest.mark.parametrize("removed", [True, False])
def test_a_label_store_that_no_longer_holds_what_the_process_spent_is_refused(tmp_path, removed):
    path, old = tmp_path / "labels.store", tmp_path / "old"
    labels = sv.Labels(LABEL, classes=2, path=path)
    labels.memo(1.0)
    shutil.copytree(tmp_path, old)
    labels.redraw(1.0)
    (_removed if removed else _replaced)(path, old)
    for ask in (lambda: labels.memo(2.0), lambda: labels.redraw(1.0), labels.epsilon):
        with pytest.raises(ValueError, match="written to by another process meanwhile, or removed"):
            ask()
    with pytest.raises(ValueError, match="holds less than this process has spent"):
        sv.Labels(LABEL, classes=2, path=path)


def test_books_in_memory_are_refused_in_a_fork_of_their_process(monkeypatch):
    from sottovoce import files

    ledger, labels = sv.Ledger(), sv.Labels(LABEL, classes=2)
    labels.memo(1.0)
    parent = files.os.getpid()
    monkeypatch.setattr(files.os, "getpid", lambda: parent + 1)
    for ask in (
        lambda: ledger.charge(entry("one")),
        lambda: spent(ledger),
        lambda: ledger.require(sv.Budget(1.0, 0.0), "one", entry("one").groups),
        lambda: labels.memo(2.0),
        lambda: labels.redraw(1.0),
        lambda: labels.accuracy(LABEL, 1.0),
        labels.epsilon,
    ):
        with pytest.raises(RuntimeError, match=r"copied into another process by a fork.*give it a file, sv\."):
            ask()
