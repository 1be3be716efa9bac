"""Attacks by several runs, fits or draws at the same time in one process: each one looks before the other pays."""

import sys
import threading

import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.privacy.ledger import BudgetExceeded
from sottovoce.privacy.ledger_line import Entry, Group
from sottovoce.privacy.mechanisms import Mechanism

RELEASE = Mechanism(laplace=(0.1,))


def group(steps: int) -> Group:
    return Group("records", ("north",), ((RELEASE, steps),))


@pytest.mark.parametrize("kept", [False, True], ids=["in memory", "in a file"])
def test_two_runs_that_share_a_ledger_stay_within_the_budget_together(tmp_path, kept):
    """Both plans fit by themselves, and neither is charged when the other one is allowed."""
    ledger, budget = sv.Ledger(tmp_path / "ledger.jsonl" if kept else None), sv.Budget(1.2, 0.0, "zero-out")
    ledger.require(budget, "a", (group(10),))
    ledger.require(budget, "b", (group(10),))
    for t in range(10):
        ledger.charge(Entry("a", t, t + 1, (group(1),)))
    with pytest.raises(BudgetExceeded, match=r"epsilon 2 of a budget of 1\.2.*Nothing was released"):
        ledger.charge(Entry("b", 0, 1, (group(1),)))
    assert float(ledger.epsilon("north", 0.0, "zero-out")) == pytest.approx(1.0)


def test_a_run_that_is_stopped_midway_says_so():
    ledger, budget = sv.Ledger(), sv.Budget(1.2, 0.0, "zero-out")
    ledger.require(budget, "a", (group(10),))
    ledger.charge(Entry("a", 0, 1, (group(1),)))
    ledger.charge(Entry("b", 0, 5, (group(5),)))
    with pytest.raises(BudgetExceeded, match="Nothing more was released"):
        ledger.charge(Entry("a", 1, 2, (group(1),)))


def test_a_run_is_held_to_its_own_budget_if_another_one_is_allowed_more(tmp_path):
    """The larger budget of another run, asked for later, is not the one that a charge is checked against."""
    one, other = (sv.Ledger(tmp_path / "ledger.jsonl") for _ in range(2))
    one.require(sv.Budget(1.2, 0.0, "zero-out"), "a", (group(10),))
    one.require(sv.Budget(9.0, 0.0, "zero-out"), "b", (group(1),))
    other.charge(Entry("c", 0, 5, (group(5),)))
    with pytest.raises(BudgetExceeded):
        one.charge(Entry("a", 0, 10, (group(10),)))


def test_a_run_inside_another_run_does_not_pass_its_budget():
    problem = sv.Minimize(lambda x, r: jnp.sum(x * r), x0=jnp.zeros(2))
    method = sv.methods.DpSgd(0.1, sv.Release(1.0, 0.05), sv.Full())
    parts, ledger = [np.ones((100, 2), np.float32)], sv.Ledger()
    one = sv.account(method, parts, steps=4).epsilon
    budget = sv.Budget(1.2 * one, 1e-5)
    charge, depth = sv.Ledger.charge, []

    def charging(self, entry):
        charge(self, entry)
        if not depth:
            depth.append(1)
            sv.run(problem, parts, method, steps=4, ledger=ledger, budget=budget, every=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sv.Ledger, "charge", charging)
        with pytest.raises(BudgetExceeded):
            sv.run(problem, parts, method, steps=4, ledger=ledger, budget=budget, every=1)
    assert float(ledger.epsilon("0", 1e-5, "replace-one")) <= budget.epsilon


@pytest.fixture
def hurried():
    """Let threads take turns so often that one is caught between looking and paying."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*jobs):
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_counts_of_right_labels_that_are_made_at_once_are_all_paid_for(hurried):
    labels, made = sv.Labels(np.arange(20_000) % 2, classes=2, budget=sv.Budget(2.0, 0.0)), []

    def ask():
        for _ in range(10):
            try:
                made.append(labels.accuracy(np.zeros(20_000, int), 0.1))
            except BudgetExceeded:
                return

    together(*[ask] * 4)
    assert float(labels.epsilon()) == pytest.approx(0.1 * len(made))
    assert len(made) <= 20


def test_labels_that_are_asked_for_at_once_are_drawn_once(hurried):
    labels, seen = sv.Labels(np.arange(20_000) % 2, classes=2), []
    together(*[lambda: seen.append(labels.memo(1.0).observed.tobytes())] * 3)
    assert len(set(seen)) == 1
    assert float(labels.epsilon()) == 1.0
