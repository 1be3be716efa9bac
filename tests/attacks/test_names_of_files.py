"""Attacks on who is asked: one ledger, or one label store, by many names, threads and processes, is one."""

import os
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.privacy.ledger import Budget, BudgetExceeded, Ledger
from sottovoce.privacy.ledger_line import Entry, Group
from sottovoce.privacy.mechanisms import Mechanism

BUDGET = Budget(1.0, 0.0, "zero-out")
LABELS = np.arange(30) % 3


def spend(ledger: Ledger, name: str) -> bool:
    """Say whether a run of epsilon 0.4 was allowed; two fit into the budget."""
    groups = (Group("records", ("all",), ((Mechanism(laplace=(0.4,)), 1),)),)
    try:
        ledger.require(BUDGET, name, groups)
        ledger.charge(Entry(name, 0, 1, groups))
    except BudgetExceeded:
        return False
    return True


def symbolic(path: Path) -> Path:
    """Return a symbolic link in another folder."""
    link = path.parent.parent / "link"
    link.symlink_to(path)
    return link


def of_folder(path: Path) -> Path:
    """Return the same file by a symbolic link of its folder."""
    link = path.parent.parent / "folder link"
    link.symlink_to(path.parent)
    return link / path.name


def relative(path: Path) -> Path:
    """Return the same file, by a way round."""
    return Path(os.path.relpath(path.parent.parent)) / "a" / ".." / "a" / path.name


def open_file(path: Path) -> Path:
    """Return the name of an open file of this process, which stays open."""
    return Path(f"/proc/self/fd/{os.open(path, os.O_RDONLY)}")


NAMES = [symbolic, of_folder, relative]
NAMES += [pytest.param(open_file, marks=pytest.mark.skipif(sys.platform != "linux", reason="/proc"))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    return tmp_path / "a" / "ledger.jsonl"


@pytest.mark.parametrize("name", NAMES)
def test_a_ledger_has_one_budget_by_whatever_name(name, path):
    first = Ledger(path)
    assert spend(first, "one")
    other = Ledger(name(path))
    assert other.path == path
    assert spend(other, "two")
    assert not spend(first, "three")
    assert not spend(other, "four")


@pytest.mark.parametrize("both", [False, True])
def test_a_ledger_with_two_names_of_one_rank_is_refused(both, path, tmp_path):
    """By hard links: writers by two names hold two locks, so one would write over the other's line."""
    assert spend(Ledger(path), "one")
    (tmp_path / "b").mkdir()
    for file in [path, path.with_name(path.name + ".head")][: 1 + both]:
        os.link(file, tmp_path / "b" / file.name)
    for one in (path, tmp_path / "b" / path.name):
        with pytest.raises(ValueError, match=r"ledger\.jsonl has a second name \(a hard link\)"):
            Ledger(one)
    (tmp_path / "b" / path.name).unlink()
    assert spend(Ledger(path), "two")


@pytest.mark.parametrize("kept", [False, True])
def test_threads_share_one_budget(kept, path):
    ledger, allowed, start = Ledger(path if kept else None), list[bool](), threading.Barrier(6)

    def act(number: int) -> None:
        own = Ledger(path) if kept and number % 2 else ledger
        start.wait()
        allowed.append(spend(own, f"run {number}"))

    threads = [threading.Thread(target=act, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(allowed) == [False] * 4 + [True] * 2


@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.parametrize("opened", ["before", "after"])
def test_forked_processes_share_one_budget(opened, path):
    """A ledger in a file that was opened before the fork, or is opened in each child."""
    ledger, ended = Ledger(path), list[int]()
    assert spend(ledger, "parent")
    for number in range(3):
        if (child := os.fork()) == 0:
            own = ledger if opened == "before" else Ledger(path)
            os._exit(10 + spend(own, f"child {number}"))
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert sorted(ended) == [10, 10, 11]
    assert not spend(ledger, "parent again")


@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_forked_ledger_in_memory_is_refused():
    ledger = Ledger()
    assert spend(ledger, "parent")
    if (child := os.fork()) == 0:
        try:
            spend(ledger, "child")
        except RuntimeError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize("name", NAMES)
def test_labels_are_drawn_once_by_whatever_name(name, path):
    first = sv.Labels(LABELS, 3, path=path)
    seen = first.memo(1.0).observed
    other = sv.Labels(LABELS, 3, path=name(path))
    assert np.array_equal(other.memo(1.0).observed, seen)
    other.redraw(0.5)
    assert float(sv.Labels(LABELS, 3, path=path).epsilon()) == 1.5


def test_a_label_store_with_two_names_of_one_rank_is_refused(path, tmp_path):
    """By hard links: a store is replaced when it is written, so the other name would be an old copy, with its head."""
    sv.Labels(LABELS, 3, path=path).memo(1.0)
    head, there = path.with_name(path.name + ".head"), tmp_path / "b"
    there.mkdir()
    for file in (path, head):
        os.link(file, there / file.name)
        os.link(file, path.with_name(f"other {file.name}"))
    for copy in (there / path.name, path.with_name(f"other {path.name}")):
        with pytest.raises(ValueError, match=r"still there|store already"):
            sv.Labels(LABELS, 3, path=copy)
    shutil.rmtree(there)
    for file in (path, head):
        path.with_name(f"other {file.name}").unlink()
    assert float(sv.Labels(LABELS, 3, path=path).epsilon()) == 1.0
