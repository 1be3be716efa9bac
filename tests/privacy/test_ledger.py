"""A ledger file that was touched is refused; one that a kill left behind is not."""

import json
import re

import pytest

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.accounting.charging import Charging
from sottovoce.privacy import accountant
from sottovoce.privacy.ledger import Budget, BudgetExceeded, Ledger, show
from sottovoce.privacy.ledger_line import AMPLIFICATIONS, Entry, Group, decoded, encoded
from sottovoce.privacy.mechanisms import (
    Mechanism,
    NoAmplification,
    PoissonAmplification,
    RedrawAmplification,
    SubsetAmplification,
)

RELEASE = Mechanism(gaussian=0.25, amplification=PoissonAmplification(0.1))


def entry(number: int, run: str = "a", count: int = 10) -> Entry:
    return Entry(run, 10 * number, 10 * number + 10, (Group("records", ("0", "1"), ((RELEASE, count),), 1e-12),))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    for number in range(4):
        ledger.charge(entry(number))
    return path


def test_entries_come_back(path):
    assert list(Ledger(path).entries.values()) == [entry(number) for number in range(4)]
    again = Ledger(path)
    again.charge(entry(2))  # a resumed run repeats itself
    again.charge(entry(4))
    assert len(Ledger(path).entries) == 5


def test_the_names_in_a_file_are_stable():
    """Ledgers outlive programs: if this test has to change, raise the version and read the old one."""
    kinds = {
        "none": NoAmplification(),
        "poisson": PoissonAmplification(0.1),
        "without replacement": SubsetAmplification(50, 5),
        "with replacement": RedrawAmplification(50, 5),
    }
    assert kinds.keys() == AMPLIFICATIONS.keys()
    parameters = {"none": {}, "poisson": {"rate": 0.1}}
    for name, amplification in kinds.items():
        mechanism = Mechanism(0.25, (0.5,), 0.0, amplification)
        written = {
            "count": 10,
            "gaussian": 0.25,
            "laplace": [0.5],
            "pure": 0.0,
            "sampling": {"kind": name, **parameters.get(name, {"size": 50, "batch": 5})},
        }
        group = {"level": "records", "agents": ["north", "south"], "overflow": 1e-12, "spent": [written]}
        line = {
            "run": "a",
            "start": 0,
            "stop": 10,
            "unit": "record",
            "attempt": 0,
            "adjacency": "zero-out",
            "owned": False,
            "groups": [group],
        }
        charged = (Group("records", ("north", "south"), ((mechanism, 10),), 1e-12),)
        entry = Entry("a", 0, 10, charged, adjacency="zero-out")
        assert encoded(entry) == line
        assert decoded(line) == entry


def test_a_stretch_that_is_drawn_again_is_charged_again():
    ledger, spent = Ledger(), ((Mechanism(laplace=(0.1,)), 10),)
    for attempt in (0, 1, 1):
        ledger.charge(Entry("a", 0, 10, (Group("records", ("north",), spent),), attempt=attempt, adjacency="zero-out"))
    assert len(ledger.entries) == 2
    assert float(ledger.epsilon("north", 0.0, "zero-out")) == pytest.approx(2.0)


def test_a_party_that_nobody_charged_is_no_party_that_spent_nothing(path):
    with pytest.raises(ValueError, match=r"ledger\.jsonl: there is no party 'north'; choose from 0, 1"):
        Ledger(path).epsilon("north", 1e-5, "zero-out")
    owned, spent = Ledger(), ((Mechanism(laplace=(0.1,)), 10),)
    owned.charge(Entry("a", 0, 10, (Group("records", ("north",), spent),), adjacency="zero-out", owned=True))
    assert float(owned.epsilon("the owner", 0.0, "zero-out")) == pytest.approx(1.0)  # every party is the owner


def test_a_line_of_another_version_is_refused(path):
    first, *_ = path.read_text().splitlines(keepends=True)
    assert first.startswith('{"version": 2, ')
    path.write_text(first.replace('"version": 2', '"version": 3'))
    with pytest.raises(ValueError, match="line 1, has version 3, and this program reads version 2"):
        Ledger(path)


def edit(path, change):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(change(lines)))


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[:-1],
        lambda lines: [],
        lambda lines: lines[1:],
        lambda lines: [lines[0], *lines[2:]],
        lambda lines: [*lines[:2], lines[1], *lines[2:]],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [*lines[:-1], lines[-1].replace('"count": 10', '"count": 1')],
        lambda lines: [lines[0].replace('"gaussian": 0.25', '"gaussian": 0.01'), *lines[1:]],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [*lines[:-1], lines[-1][:-20]],
        lambda lines: [*lines, "not json\n"],
    ],
)
def test_a_changed_or_cut_file_is_refused(path, change):
    edit(path, change)
    with pytest.raises(ValueError, match="changed or cut"):
        Ledger(path)


def test_a_forged_line_must_fit_both_its_neighbours_and_the_head(path):
    lines = path.read_text().splitlines()
    last = json.loads(lines[-1])
    last["groups"][0]["spent"][0]["count"] = 1  # the chain before it is intact
    path.write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    with pytest.raises(ValueError, match="not the one that was written"):
        Ledger(path)


def test_a_deleted_ledger_or_head_is_refused(path):
    head = path.with_name(path.name + ".head")
    kept = head.read_bytes()
    head.unlink()
    with pytest.raises(ValueError, match="head is missing"):
        Ledger(path)
    head.write_bytes(kept)
    path.unlink()
    with pytest.raises(ValueError, match="0 lines where 4 were written"):
        Ledger(path)


def test_a_ledger_rolled_back_without_its_head_is_refused(path):
    old = path.read_bytes()
    Ledger(path).charge(entry(4))
    path.write_bytes(old)
    with pytest.raises(ValueError, match="4 lines where 5 were written"):
        Ledger(path)


def test_a_kill_between_line_and_head_loses_nothing(path, monkeypatch):
    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    ledger = Ledger(path)
    monkeypatch.setattr("sottovoce.privacy.ledger.write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        ledger.charge(entry(4))
    monkeypatch.undo()
    after = Ledger(path)  # the line is there: charged, though nothing was released
    assert len(after.entries) == 5
    after.charge(entry(5))
    assert len(Ledger(path).entries) == 6


def test_a_kill_after_a_line_and_one_inside_the_next_lose_nothing(path, monkeypatch):
    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    def half(path, data, at):
        with path.open("ab") as file:
            file.write(data[: len(data) // 2])
        raise KeyboardInterrupt

    for number, name, does in ((4, "write_atomically", killed), (5, "append", half)):
        monkeypatch.setattr(f"sottovoce.privacy.ledger.{name}", does)
        with pytest.raises(KeyboardInterrupt):
            Ledger(path).charge(entry(number))
        monkeypatch.undo()
    after = Ledger(path)
    assert len(after.entries) == 5
    after.charge(entry(5))
    assert len(Ledger(path).entries) == 6


def test_a_kill_inside_a_line_is_mended(path):
    with path.open("a") as file:
        file.write('{"run": "a", "sta')
    ledger = Ledger(path)
    assert len(ledger.entries) == 4
    ledger.charge(entry(4))
    assert len(Ledger(path).entries) == 5


def test_two_runs_at_once_do_not_overlook_each_other(path):
    one, two = Ledger(path), Ledger(path)
    allowed = 1.05 * float(accountant.epsilon(((RELEASE, 55),), 1e-5, "zero-out", overflow=5e-12))
    two.require(Budget(allowed, 1e-5, "zero-out"), "a", (Group("records", ("0",), ((RELEASE, 55),), 5e-12),))
    one.charge(entry(4))
    two.charge(entry(5))  # the same run in another process: no more than was planned
    assert len(Ledger(path).entries) == 6


def test_another_run_that_uses_up_the_budget_stops_this_one(tmp_path):
    path, plan = tmp_path / "ledger.jsonl", (Group("records", ("north",), ((RELEASE, 10),)),)
    one, two = Ledger(path), Ledger(path)
    budget = Budget(1.05 * float(accountant.epsilon(((RELEASE, 10),), 1e-5, "replace-one")), 1e-5)
    for ledger, run in ((one, "a"), (two, "b")):
        ledger.require(budget, run, plan)
    one.charge(Entry("a", 0, 1, plan))
    with pytest.raises(BudgetExceeded, match="north would reach"):
        two.charge(Entry("b", 0, 1, plan))
    assert len(Ledger(path).entries) == 1


def test_runs_compose_up_to_a_budget(path):
    ledger = Ledger(path)
    spent = float(ledger.epsilon("0", 1e-5, "zero-out"))
    more = entry(0, run="b", count=40).groups
    both = float(Ledger().epsilon("0", 1e-5, "zero-out"))
    assert both == 0.0
    ledger.require(Budget(10 * spent, 1e-5), "b", more)
    with pytest.raises(BudgetExceeded, match="agent 0 would reach epsilon"):
        ledger.require(Budget(1.01 * spent, 1e-5, "zero-out"), "b", more)


def test_a_record_may_have_been_in_any_level_of_another_run():
    """Levels are names within a run: the split below may not be the one above."""
    dear, cheap = ((RELEASE, 40),), ((RELEASE, 10),)
    ledger = Ledger()
    ledger.charge(Entry("a", 0, 1, (Group("upper", (0,), cheap), Group("lower", (0,), dear))))
    ledger.charge(Entry("b", 0, 1, (Group("records", (0,), cheap),)))
    ledger.charge(Entry("c", 0, 1, (Group("upper", (0,), dear), Group("lower", (0,), cheap))))
    worst = float(accountant.epsilon(((RELEASE, 90),), 1e-5, "zero-out"))
    assert float(ledger.epsilon(0, 1e-5, "zero-out")) == worst
    with pytest.raises(BudgetExceeded):
        ledger.require(Budget(1.001 * worst, 1e-5, "zero-out"), "d", (Group("records", (0,), cheap),))
    for number in range(7):  # too many combinations to try: a record is taken to have been in both levels
        groups = (Group("upper", (0,), ((RELEASE, 1),)), Group("lower", (0,), ((RELEASE, 1 + 2**number),)))
        ledger.charge(Entry(f"more{number}", 0, 1, groups))
    everything = 10 + 40 + 10 + 40 + 10 + sum(2 + 2**number for number in range(7))
    assert float(ledger.epsilon(0, 1e-5, "zero-out")) == float(
        accountant.epsilon(((RELEASE, everything),), 1e-5, "zero-out")
    )


def test_the_agent_that_would_go_over_is_named():
    plan = tuple(Group("records", (agent,), ((RELEASE, 10 + 30 * (agent == 2)),)) for agent in range(4))
    allowed = float(accountant.epsilon(((RELEASE, 20),), 1e-5, "zero-out"))
    with pytest.raises(BudgetExceeded, match="agent 2 would reach"):
        Ledger().require(Budget(allowed, 1e-5, "zero-out"), "a", plan)
    spent = Ledger()
    spent.charge(Entry("a", 0, 1, (Group("records", (3,), ((RELEASE, 15),)),)))
    with pytest.raises(BudgetExceeded, match="agent 3 would reach"):
        spent.require(Budget(allowed, 1e-5, "zero-out"), "b", (Group("records", (0, 1, 2, 3), ((RELEASE, 10),)),))


def test_records_and_larger_units_are_not_mixed(path):
    ledger = Ledger(path)
    with pytest.raises(ValueError, match="counts by record, this run by unit"):
        ledger.charge(Entry("b", 0, 1, (Group("records", (0,), ()),), unit="unit"))
    assert len(Ledger(path).entries) == 4


def test_show_says_who_spent_what(path):
    ledger = Ledger(path)
    ledger.charge(Entry("a", 40, 45, (Group("records", (1,), ((RELEASE, 5),)),)))
    text = show(ledger, 1e-5, "zero-out", Budget(3.0, 1e-5))
    assert "run a: steps 0 to 44" in text
    values = [float(v) for v in re.findall(r"epsilon ([0-9.]+) of 3", text)]
    assert len(values) == 2
    assert values[1] > values[0]
    assert show(Ledger(), 1e-5, "zero-out") == "nothing has been spent"


def test_a_mechanism_that_is_listed_twice_is_paid_for_twice():
    """A first full batch and one pass can cost the same: the ledger must count both, as the account does."""
    message = sv.Release(clip=1.0, noise=1.0)
    method = sv.methods.DpMixSgd(0.1, 0.1, sv.OnePass(10), message, message, first=sv.Full(), increment=1.0)
    account, ledger = account_of(method, sv.Population([10]), steps=1), Ledger()
    charging = Charging(ledger, "a", account)
    charging.charge(0, 1)
    (group,) = ledger.entries["a", 0, 1, 0].groups
    assert [count for _, count in group.spent] == [1, 1]
    assert len(dict(group.spent)) == 1
    assert float(ledger.epsilon("0", 1e-5, account.adjacency)) == account.report.epsilon
    with pytest.raises(BudgetExceeded, match=r"reach epsilon 1\.555 of a budget of 1\.2"):
        charging.require(Budget(1.2, 1e-5, account.adjacency))
