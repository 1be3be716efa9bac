"""What a ledger states is at least what is true: adjacency, names, overflow, resumed runs, two writers, kills.

Attacks a04, a05, a11, a14, a16, a21 and b3; damaged files are in tests/soak.
"""

import json
import multiprocessing
import pickle
import stat

import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.accounting.charging import Charging
from sottovoce.data import Levels, Part
from sottovoce.papers.dp_bilevel.method import Descent
from sottovoce.privacy import accountant, ledger_line
from sottovoce.privacy import ledger as ledgers
from sottovoce.privacy.gdp import gdp_epsilon
from sottovoce.privacy.ledger import Budget, BudgetExceeded, Ledger
from sottovoce.privacy.ledger_line import Entry, Group
from sottovoce.privacy.mechanisms import Mechanism, PoissonAmplification

RNG = np.random.default_rng(0)
PROBLEM = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), x0=jnp.zeros(2))
RELEASE = Mechanism(laplace=(0.1,))


def sgd(noise, sampling):
    return sv.methods.DpSgd(rate=0.1, gradient=sv.Release(clip=1.0, noise=noise), sampling=sampling)


def part(size, name=None):
    return Part(RNG.normal(size=(size, 2)).astype(np.float32), np.arange(size), name=name)


def test_a_budget_is_kept_under_its_own_adjacency_whatever_a_run_states():
    """4.65 of 5 under replace-one, then a zero-out run: 7.51 in all."""
    data, book, budget = [part(1000)], Ledger(), Budget(5.0, 1e-5)
    first = sv.run(PROBLEM, data, sgd(0.0019, sv.Full()), steps=1, ledger=book, budget=budget)
    assert first.privacy.adjacency == "replace-one"
    with pytest.raises(BudgetExceeded, match=r"of a budget of 5 \(delta 1e-05, replace-one"):
        sv.run(PROBLEM, data, sgd(0.01, sv.Poisson(100)), steps=30, ledger=book, budget=budget, seed=2)
    assert float(book.epsilon("0", 1e-5, "replace-one")) <= 5.0


def test_a_budget_says_its_adjacency_and_covers_zero_out_by_default():
    book = Ledger()
    assert [book.bound(Budget(1.0, 1e-5), one).adjacency for one in ("zero-out", "replace-one")] == [
        "zero-out", "replace-one",
    ]  # fmt: skip
    book.charge(Entry("a", 0, 1, (Group("records", ("0",), ((RELEASE, 1),)),), adjacency="replace-one"))
    assert book.bound(Budget(1.0, 1e-5), "zero-out").adjacency == "replace-one"
    with pytest.raises(ValueError, match="adjacency is 'add-remove'"):
        Budget(1.0, 1e-5, "add-remove")  # type: ignore[arg-type]
    for amplification in (accountant.NoAmplification(), PoissonAmplification(0.1)):
        items = [(Mechanism(gaussian=1.0, amplification=amplification), 5)]
        assert accountant.epsilon(items, 1e-5, "zero-out") <= accountant.epsilon(items, 1e-5, "replace-one")


def test_entries_carry_the_adjacency_of_their_run():
    book = Ledger()
    sv.run(PROBLEM, [part(100)], sgd(0.1, sv.Poisson(10)), steps=2, ledger=book)
    assert {entry.adjacency for entry in book.entries.values()} == {"zero-out"}


def test_parties_that_change_places_are_charged_by_name():
    """A small party and a large one change places over eight runs: 9.998 stated by number, 15.46 true."""
    small, big = part(20, "small"), part(2000, "big")
    book, method, network = Ledger(), sgd(0.1, sv.Full()), sv.networks.ring(2)
    for i in range(8):
        parts = [small, big] if i % 2 == 0 else [big, small]
        sv.run(PROBLEM, parts, method, steps=1, network=network, seed=i, ledger=book)
    true = gdp_epsilon(np.sqrt(8) * 2 / 20 / 0.1, 1e-5)
    assert float(book.epsilon("small", 1e-5, "replace-one")) == pytest.approx(true, rel=1e-6)
    assert float(book.epsilon("big", 1e-5, "replace-one")) < 0.1


def test_a_budget_stops_the_named_party_that_moved():
    small, big = part(20, "small"), part(2000, "big")
    book, method, budget = Ledger(), sgd(0.1, sv.Full()), Budget(10.0, 1e-5)

    def runs():
        for i in range(8):
            parts = [small, big] if i % 2 == 0 else [big, small]
            sv.run(PROBLEM, parts, method, steps=1, network=sv.networks.ring(2), seed=i, ledger=book, budget=budget)

    with pytest.raises(BudgetExceeded, match="agent small would reach"):
        runs()
    assert float(book.epsilon("small", 1e-5, "replace-one")) <= 10.0


def test_parties_without_names_do_not_share_a_ledger_across_runs():
    book, method, network = Ledger(), sgd(0.1, sv.Full()), sv.networks.ring(2)
    sv.run(PROBLEM, [part(20), part(30)], method, steps=1, network=network, ledger=book)
    before = dict(book.entries)
    for parts in ([part(30), part(20)], [part(20, "small"), part(30, "big")]):
        with pytest.raises(ValueError, match=r"some parties have no names.*name='north'"):
            sv.run(PROBLEM, parts, method, steps=1, network=network, ledger=book)
    assert book.entries == before


def test_a_split_of_what_was_one_party_is_refused_without_names():
    """One party first, then its records in two parts: by number the second part would have spent nothing."""
    book, whole = Ledger(), RNG.normal(size=(40, 2)).astype(np.float32)
    sv.run(PROBLEM, [whole], sgd(0.1, sv.Full()), steps=1, ledger=book)
    with pytest.raises(ValueError, match="some parties have no names"):
        sv.run(
            PROBLEM,
            [whole[:35], whole[35:]],
            sgd(0.1, sv.Full()),
            steps=1,
            network=sv.networks.ring(2),
            ledger=book,
        )


def test_a_single_party_needs_no_name_because_all_runs_are_added_up():
    book = Ledger()
    for seed in range(3):
        sv.run(PROBLEM, [part(50)], sgd(0.1, sv.Full()), steps=1, seed=seed, ledger=book)
    true = gdp_epsilon(np.sqrt(3) * 2 / 50 / 0.1, 1e-5)
    assert float(book.epsilon("0", 1e-5, "replace-one")) == pytest.approx(true, rel=1e-6)


def test_an_owners_ledger_is_not_taken_for_anothers():
    def own(names, books):
        sizes = sv.Population([50, 60], names=names)
        account = account_of(sgd(0.1, sv.Full()), sizes, 1, sv.networks.ring(2))
        return Charging(books, f"run of {names}", account)

    books = [Ledger(), Ledger()]
    own(("north", "south"), books).charge(0, 1)
    with pytest.raises(ValueError, match="was kept by north, not by south"):
        own(("south", "north"), books)


def test_names_come_from_parts_and_splits():
    records = {"label": np.arange(20) % 2}
    parts = sv.data.split(records, 2, names=("north", "south"))
    assert sv.Population.of(parts).names == ("north", "south")
    assert sv.Population.of(sv.data.levels(parts)).names == ("north", "south")
    with pytest.raises(ValueError, match="give 2 different names"):
        sv.data.split(records, 2, names=("north", "north"))
    with pytest.raises(ValueError, match="party 1 has no name"):
        sv.Population.of([parts[0], Part(records, parts[1].rows)])
    with pytest.raises(ValueError, match="party 0 has two names, north and south"):
        sv.Population.of([Levels(*parts)])
    with pytest.raises(ValueError, match="must not be empty"):
        sv.Population([3, 4], names=("", "b"))


def test_a_unit_of_one_level_only_is_refused():
    """A unit's records in the other level were clipped one by one, and epsilon was stated per unit."""
    records, ids = {"a": np.ones((100, 2), np.float32)}, np.arange(100) // 10
    halves = Levels(Part(records, np.arange(50), ids), Part(records, np.arange(50, 100)))
    with pytest.raises(ValueError, match="name it in both levels, or in neither"):
        sv.Population.of([halves])


def test_a_ledger_pays_for_batches_that_do_not_fit(monkeypatch):
    """The account keeps a share of delta for overflow; the ledger states the same number, and more if it grows."""
    method, people = sgd(0.02, sv.Poisson(50)), sv.Population([1000])
    for chance in (1e-18, 1e-9):
        monkeypatch.setattr(sv.Poisson, "overflow", lambda self, n, chance=chance: chance)
        account = account_of(method, people, 100)
        book = Ledger()
        charging = Charging(book, "run", account)
        for start in range(0, 100, 10):
            charging.charge(start, start + 10)
        [total] = book.spent("0")
        assert total["records"][1] == pytest.approx(100 * chance)
        assert float(book.epsilon("0", 1e-5, "zero-out")) == pytest.approx(account.report.epsilon, rel=1e-9)
    monkeypatch.setattr(sv.Poisson, "overflow", lambda self, n: 1e-4)
    book = Ledger()
    Charging(book, "run", account_of(method, people, 100)).charge(0, 100)
    assert float(book.epsilon("0", 1e-5, "zero-out")) == np.inf


def test_what_was_released_before_a_resume_is_charged_in_a_new_ledger():
    account = account_of(sgd(0.1, sv.OnePass(2)), sv.Population([50]), 20)
    book = Ledger()
    charging = Charging(book, "run", account)
    charging.ensure(5, every=1)
    for step in range(5, 20):
        charging.charge(step, step + 1)
    assert float(book.epsilon("0", 1e-5, "replace-one")) >= account.report.epsilon * (1 - 1e-9)


# Files.


def entry(name, number=0):
    return Entry(name, number, number + 1, (Group("records", ("north",), ((RELEASE, 1),)),))


def _writer(path, name, count):
    for number in range(count):
        Ledger(path).charge(entry(name, number))


@pytest.mark.filterwarnings("ignore:os.fork")
def test_two_writers_never_break_the_chain(tmp_path):
    path, count = tmp_path / "ledger.jsonl", 40
    spawn = multiprocessing.get_context("fork")
    workers = [spawn.Process(target=_writer, args=(path, name, count)) for name in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(Ledger(path).entries) == 2 * count


@pytest.mark.parametrize("kill", [1, 2])
def test_a_kill_around_the_first_line_leaves_a_ledger_that_can_be_used(tmp_path, monkeypatch, kill):
    path, real, calls = tmp_path / "ledger.jsonl", ledgers.write_atomically, []

    def boom(*args, **kwargs):
        calls.append(args)
        if len(calls) == kill:
            raise KeyboardInterrupt
        real(*args, **kwargs)

    monkeypatch.setattr(ledgers, "write_atomically", boom)
    with pytest.raises(KeyboardInterrupt):
        Ledger(path).charge(entry("a"))
    monkeypatch.undo()
    again = Ledger(path)
    again.charge(entry("a"))
    assert len(Ledger(path).entries) == 1


def test_ledgers_and_heads_are_readable_by_their_owner_only(tmp_path):
    path = tmp_path / "ledger.jsonl"
    Ledger(path).charge(entry("a"))
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


@pytest.mark.parametrize(
    "content", [b"[]\n", b"null\n", b"\xff\xfe\n", b"{}\n", b'{"version": 1}\n', b"[" * 9999 + b"\n"]
)
def test_a_foreign_file_is_no_ledger(tmp_path, content):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"ledger\.jsonl"):
        Ledger(path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="cannot be read"):
        Ledger(tmp_path / "folder")


@pytest.mark.parametrize(
    ("field", "value"),
    [("start", "0"), ("run", 3), ("owned", 1), ("adjacency", "none"), ("groups", {}), ("unit", None)],
)
def test_a_line_with_a_wrong_field_is_no_entry(field, value):
    fields = json.loads(json.dumps(ledger_line.encoded(entry("a"))))
    ledger_line.decoded(dict(fields))
    if field == "groups":
        value = [{**fields["groups"][0], "overflow": -1.0}]
    with pytest.raises((TypeError, ValueError)):
        ledger_line.decoded({**fields, field: value})


def test_a_ledger_in_memory_does_not_go_to_another_process(tmp_path):
    """A search over settings with several processes would have charged copies, and lost them."""
    with pytest.raises(TypeError, match=r"give it a file, sv\.Ledger\(path\)"):
        pickle.dumps(Ledger())
    first = Ledger(tmp_path / "ledger.jsonl")
    sent = pickle.loads(pickle.dumps(first))
    sent.charge(entry("a"))
    first.charge(entry("b"))
    assert {kept.run for kept in first.entries.values()} == {"a", "b"}


def test_a_stream_charges_what_it_draws():
    """Attack a11: arrivals of 1.9 were charged as 1.9 and drawn as 1."""
    for arrivals in (1.9, 0, -1, True, "2", float("nan")):
        with pytest.raises((ValueError, TypeError), match="arrivals"):
            sgd(1.0, sv.Stream(arrivals))


def test_levels_over_the_same_arrays_pay_for_both():
    """Attack a05: copies of a dict, views and slices of the same arrays were taken for other records."""
    x, y = RNG.normal(size=(40, 2)).astype(np.float32), np.arange(40, dtype=np.float32)
    method = sv.methods.DpBilevel(
        step_x=0.1,
        inner=Descent(2, 0.1),
        release_y=sv.Release(1.0, 0.1),
        release_penalised=sv.Release(1.0, 0.1),
        sampling=sv.Full(),
        penalty=1.0,
        radius=1.0,
    )
    both = {"a": x, "b": y}
    least = sv.account(method, [Levels(both, both)], steps=3).epsilon
    for upper, lower in (
        ({"a": x, "b": y}, {"a": x, "b": y}),
        ({"a": x[:], "b": y[:]}, both),
        ({"a": x.copy(), "b": y.copy()}, both),  # of unknown origin
    ):
        assert sv.account(method, [Levels(upper, lower)], steps=3).epsilon >= least * (1 - 1e-9)
    overlapping = Levels({"a": x[:30], "b": y[:30]}, {"a": x[10:], "b": y[10:]})
    assert list(sv.account(method, [overlapping], steps=3).per_level) == ["both levels"]


def test_a_fit_on_one_table_and_a_fit_by_parties_are_added_up():
    """Without parties all rows are one table; the same rows by parties are the same rows."""
    from sottovoce.data.synthetic import logistic

    rows, ledger = logistic(400, 2), sv.Ledger()
    model = sv.PrivateLogisticRegression(
        1.0, random_state=0, ledger=ledger, budget=sv.Budget(1.2, 1e-5, "zero-out"), classes=[0, 1]
    )
    model.fit(rows["features"], rows["label"])
    with pytest.raises(BudgetExceeded, match=r"agent north would reach epsilon 1\.4"):
        model.fit(rows["features"], rows["label"], parties=["north", "south"] * 200)


def spend(*names, run):
    return Entry(run, 0, 10, (Group("records", names, ((Mechanism(laplace=(0.1,)), 10),)),))


def test_what_is_spent_on_the_whole_table_is_spent_on_every_party():
    ledger, budget = sv.Ledger(), sv.Budget(2.5, 0.0, "zero-out")
    for names, run in ((("north", "south"), "a"), (("all",), "b")):
        ledger.require(budget, run, spend(*names, run=run).groups)
        ledger.charge(spend(*names, run=run))
    assert {name: float(ledger.epsilon(name, 0.0, "zero-out")) for name in ("north", "south", "all")} == (
        pytest.approx({"north": 2.0, "south": 2.0, "all": 2.0})
    )
    for names in (("all",), ("south",)):
        with pytest.raises(BudgetExceeded, match="would reach epsilon 3"):
            ledger.require(budget, "c", spend(*names, run="c").groups)


def test_the_same_records_under_other_names_are_refused():
    """First by hospital, then by region: a ledger by names would add up nothing."""
    ledger = sv.Ledger()
    ledger.charge(spend("st-anna", "st-josef", run="a"))
    with pytest.raises(ValueError, match=r"kept for st-anna, st-josef.*of east, west.*same names as before.*another"):
        ledger.charge(spend("east", "west", run="b"))
    ledger.charge(spend("st-anna", "st-maria", run="b"))  # somebody left, somebody came


def test_a_budget_for_several_fits_is_refused_where_nothing_adds_them_up():
    """Three fits of epsilon 1 passed a budget of 1.2: each had a ledger of its own, in memory."""
    x, y = np.linspace(-1, 1, 60).reshape(30, 2), np.arange(30) % 2
    for model in (sv.PrivateLogisticRegression(1.0), sv.PrivateRidge(1.0), sv.TunedLogisticRegression(1.0)):
        with pytest.raises(ValueError, match=r"without a ledger nothing adds them up: give ledger=sv\.Ledger\(path\)"):
            model.set_params(budget=sv.Budget(1.2, 1e-5)).fit(x, y)
    columns = sv.PrivateColumnsClassifier(1.0, budget=sv.Budget(1.2, 0.0))
    with pytest.raises(ValueError, match=r"without a path nothing adds them up"):
        columns.fit([x[:, :1], x[:, 1:]], y)


def test_what_a_ledger_shows_is_never_below_what_was_spent():
    ledger = Ledger()
    ledger.charge(Entry("one", 0, 1, (Group("records", ("north",), ((Mechanism(pure=1.23441), 1),)),)))
    assert "epsilon 1.235," in ledgers.show(ledger, 0.0, "zero-out")
    ledger.charge(Entry("open", 0, 1, (Group("records", ("north",), ((Mechanism(pure=np.inf), 1),)),)))
    assert "epsilon infinite," in ledgers.show(ledger, 0.0, "zero-out")
