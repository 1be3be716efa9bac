"""Ledgers, label stores, purchases and journals as state machines: what is stated is never less than what was drawn.

Processes open the books by absolute and relative paths, charge, draw, are killed in mid-write, copied by fork, and meet
files that were removed, cut, or put back from an older copy. Processes are told apart by what the package remembers of
each (`_SEEN`). A book may refuse, at any time. If it states a cost, this is at least what its process has seen; and at
least what all processes together have spent, unless somebody put back an older copy (which only processes that have
seen more can notice). ``python -m pytest -s tests/adversary/test_books.py`` prints how many acts were tried.
"""

import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import sottovoce as sv
from sottovoce import files
from sottovoce.accounting.account import account_of
from sottovoce.data import Levels, settle
from sottovoce.data.parts import Bought
from sottovoce.deploy.outbox import Outbox
from sottovoce.papers.dp_bilevel.method import Descent
from sottovoce.privacy import label_file, label_store
from sottovoce.privacy import ledger as ledgers
from sottovoce.privacy.gdp import gdp_epsilon, gdp_mu
from sottovoce.privacy.ledger_line import Entry, Group
from sottovoce.privacy.mechanisms import Mechanism
from sottovoce.runtime.frames import Message, MessageId

PROCESSES = st.integers(0, 1)
WHICH = st.integers(0, 99)
HARM = st.sampled_from(["remove", "remove both", "restore", "restore both", "cut"])
KILLS = st.sampled_from([0, 0, 0, 0, 1, 2, 3])
HOW: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
FAST = settings(max_examples=6, stateful_step_count=15, derandomize=True, **HOW)
FULL = settings(max_examples=300, stateful_step_count=40, phases=[Phase.generate], **HOW)
FOUND = settings(max_examples=300, stateful_step_count=15, derandomize=True, phases=[Phase.generate], **HOW)
QUIET = sv.Release(1.0, 1e6)
LEVELS = sv.methods.DpBilevel(0.1, Descent(1, 0.1, averaged=False), QUIET, QUIET, sv.Full(), release_x=QUIET)


class Killed(BaseException):
    """A kill in mid-write."""


@contextmanager
def killed(at: int) -> Iterator[None]:
    """Kill the process in the middle of a write, by number; 0 lets it live. Nothing waits for the disk."""
    count = [0]

    def put(descriptor: int, data: bytes) -> None:
        count[0] += 1
        os.write(descriptor, data[: len(data) // 2] if count[0] == at else data)
        if count[0] == at:
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_put", put)
        patch.setattr(files.os, "fsync", lambda _: None)
        yield


class Machine(RuleBasedStateMachine):
    """Counts its acts, over all machines of its kind."""

    acts: ClassVar[Counter[str]] = Counter()

    @invariant()
    def is_counted(self) -> None:
        self.acts[type(self).__name__] += 1


class Books(Machine):
    """Two processes with books in one file, and somebody who changes files."""

    name = "book"
    seen: Any  # what the package remembers in this process: a mapping by path

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(mkdtemp())
        self.path = self.home / "a" / self.name
        for folder in ("a", "b"):
            (self.home / folder).mkdir()
        self.start = Path.cwd()
        os.chdir(self.home / "a")
        self.memory = [dict[Any, Any]() for _ in range(2)]
        self.open = [list[Any]() for _ in range(2)]
        self.known = [0.0, 0.0]  # what each process has seen spent
        self.spent = 0.0
        self.rolled_back = False
        self.copies = list[Path]()
        self.moves = 0

    def teardown(self) -> None:
        try:
            for process in range(2):
                for which in range(len(self.open[process])):
                    Books.states.__wrapped__(self, process, which)  # type: ignore[attr-defined]
        finally:
            os.chdir(self.start)
            shutil.rmtree(self.home)

    def as_process(self, process: int, act: Callable[[], Any]) -> Any:
        """Act as a process: with what it remembers."""
        self.seen.clear()
        self.seen.update(self.memory[process])
        try:
            return act()
        finally:
            self.memory[process] = dict(self.seen)

    def attempt(self, process: int, act: Callable[[], Any]) -> bool:
        """Say whether the book did it; it may refuse."""
        try:
            self.as_process(process, act)
        except (ValueError, RuntimeError):
            return False
        return True

    def heads(self) -> list[Path]:
        return [self.path, self.path.with_name(self.path.name + ".head")]

    @rule(process=PROCESSES, relative=st.booleans())
    def opens(self, process: int, relative: bool) -> None:
        path = Path(os.path.relpath(self.path)) if relative else self.path
        found = list[Any]()
        if self.attempt(process, lambda: found.append(self.make(path))):
            self.open[process].append(found[0])

    @rule(folder=st.sampled_from("ab"))
    def goes_elsewhere(self, folder: str) -> None:
        os.chdir(self.home / folder)

    @rule(process=PROCESSES)
    def restarts(self, process: int) -> None:
        self.open[process], self.memory[process], self.known[process] = [], {}, 0.0

    @rule()
    def copies_files(self) -> None:
        into = self.home / f"copy {len(self.copies)}"
        shutil.copytree(self.home / "a", into)
        self.copies.append(into)

    @rule(harm=HARM, which=WHICH)
    def harms(self, harm: str, which: int) -> None:
        both = self.heads() if harm.endswith("both") else self.heads()[:1]
        if harm == "cut":
            for file in both:
                if file.exists():
                    file.write_bytes(file.read_bytes()[:-7])
            return
        old = self.copies[which % len(self.copies)] if self.copies and harm.startswith("restore") else None
        if harm.startswith("restore") and old is None:
            return
        for file in both:
            if old is not None and (old / file.name).exists():
                shutil.copy(old / file.name, file)
            else:
                file.unlink(missing_ok=True)
        self.rolled_back = True

    def write(self, process: int, which: int, kill: int, act: Callable[[Any], float]) -> None:
        """Let some book of a process do something, which returns its cost; `kill` says in which write it is killed."""
        if not self.open[process]:
            return
        book, cost = self.open[process][which % len(self.open[process])], list[float]()
        try:
            with killed(kill):
                done = self.attempt(process, lambda: cost.append(act(book)))
        except Killed:  # nothing was released; the process is gone
            return self.restarts(process)
        if done:
            self.spent += cost[0]
            self.known[process] += cost[0]

    def stated(self, book: Any, process: int) -> float | None:
        found = list[float]()
        return found[0] if self.attempt(process, lambda: found.append(self.cost(book))) else None

    @rule(process=PROCESSES, which=WHICH)
    def states(self, process: int, which: int) -> None:
        """Nothing is forgotten. Other books are not looked at, so that some stay behind."""
        if not self.open[process]:
            return
        stated = self.stated(self.open[process][which % len(self.open[process])], process)
        if stated is not None:
            assert stated >= self.known[process] - 1e-9, "less than this process has seen"
            assert self.rolled_back or stated >= self.spent - 1e-9, "less than was spent"
            self.known[process] = max(self.known[process], stated)


class LedgerBooks(Books):
    name, seen = "ledger.jsonl", ledgers._SEEN
    number = 0

    def make(self, path: Path) -> Any:
        return sv.Ledger(path)

    def cost(self, book: Any) -> float:
        return float(book.epsilon("all", 0.0, "zero-out"))

    def entry(self, cost: float) -> Entry:
        self.number += 1
        group = Group("records", ("all",), ((Mechanism(laplace=(cost,)), 1),))
        return Entry(f"run {self.number}", 0, 1, (group,))

    @rule(process=PROCESSES, which=WHICH, cost=st.sampled_from([0.25, 0.5]), kill=KILLS)
    def charges(self, process: int, which: int, cost: float, kill: int) -> None:
        entry = self.entry(cost)
        self.write(process, which, kill, lambda book: book.charge(entry) or cost)

    @rule(process=PROCESSES, which=WHICH)
    def keeps_within_a_budget(self, process: int, which: int) -> None:
        entry, before = self.entry(0.5), self.spent

        def act(book: Any) -> float:
            book.require(sv.Budget(1.0, 0.0, "zero-out"), entry.run, entry.groups)
            book.charge(entry)
            return 0.5

        self.write(process, which, 0, act)
        assert self.rolled_back or self.spent in (before, 0.5, 0.75, 1.0)


class LabelBooks(Books):
    name, seen = "labels.store", label_store._SEEN

    @initialize(seed=st.sampled_from([None, 0]))
    def begins(self, seed: int | None) -> None:
        self.seeds, self.drawn = (seed, seed, 1, seed, None), set[int | None]()
        self.turn = 0

    def make(self, path: Path) -> Any:
        label_store._STORES.clear()
        self.turn += 1
        return sv.Labels(np.array([0, 1, 1, 0]), 2, path=path, seed=self.seeds[self.turn % 5])

    def cost(self, book: Any) -> float:
        return float(book.epsilon())

    @rule(process=PROCESSES, which=WHICH, kind=st.sampled_from(["memo", "redraw", "charge", "accuracy"]), kill=KILLS)
    def draws(self, process: int, which: int, kind: str, kill: int) -> None:
        if which % 2:
            self.opens(process, relative=False)
            which = -1  # the one that was just opened

        def act(book: Any) -> float:
            fresh = 0.5 not in book._memos
            if kind == "charge":
                book.charge({Mechanism(pure=0.5): np.ones(4, int)})
            elif kind == "accuracy":
                book.accuracy(np.zeros(4, int), 0.5)
            else:
                getattr(book, kind)(0.5)
            if kind == "memo" and not fresh:
                return 0.0
            self.drawn.add(book._seed)
            return 0.5

        self.write(process, which, kill, act)
        assert self.rolled_back or len(self.drawn) <= 1


class Purchases(Machine):
    """Tables are read with noisy counts; the file that keeps the answers is lost, and processes are killed."""

    COLUMNS: ClassVar[dict[str, Any]] = {"a": {"range": "private"}, "y": {"categories": [0, 1]}}

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(mkdtemp())
        self.ledger, self.draws, self.charged = sv.Ledger(self.home / "ledger.jsonl"), 0, 0
        self.names, self.parts = set[str](), list[Any]()

    def teardown(self) -> None:
        shutil.rmtree(self.home)

    @rule(kept=st.booleans(), charged=st.booleans(), rows=st.integers(20, 24), kill=KILLS)
    def buys(self, kept: bool, charged: bool, rows: int, kill: int) -> None:
        drawn, real = list[int](), sv.NoisyCounts.noised

        def noised(self: Any, *asked: Any) -> Any:
            drawn.append(1)
            return real(self, *asked)

        counts = sv.NoisyCounts(
            1.0, path=self.home / "bought.json" if kept else None, ledger=self.ledger if charged else None
        )
        sv.NoisyCounts.noised = noised  # type: ignore[method-assign]
        part = None
        try:
            with killed(kill):
                held = {"a": np.arange(rows), "y": np.arange(rows) % 2}
                (part,) = sv.data.table(held, label="y", columns=self.COLUMNS, private=counts).parts()
        except Killed:
            self.ledger = sv.Ledger(self.home / "ledger.jsonl")
        finally:
            sv.NoisyCounts.noised = real  # type: ignore[method-assign]
        self.charged += bool(drawn) and charged
        if part is not None:
            (bought,) = part.facts.bought
            assert (bought.name in self.names) is not bool(drawn)  # a draw has a name of its own, and keeps it
            self.names.add(bought.name)
            self.parts.append(part)

    @rule()
    def loses_what_was_kept(self) -> None:
        (self.home / "bought.json").unlink(missing_ok=True)

    @invariant()
    def everything_is_charged(self) -> None:
        if self.ledger.entries:
            assert float(self.ledger.epsilon("0", 1e-5, "zero-out")) >= 0.99 * cost_of(self.charged)
        else:
            assert not self.charged

    @rule(upper=WHICH, lower=WHICH)
    def two_levels_pay_for_each_purchase_once(self, upper: int, lower: int) -> None:
        if not self.parts:
            return
        up, low = (self.parts[which % len(self.parts)] for which in (upper, lower))
        population = sv.Population.of([Levels(up, low)])
        paid = account_of(LEVELS, population, steps=1, adjacency="zero-out").report.epsilon
        distinct = len({up.facts.bought[0].name, low.facts.bought[0].name})
        assert 0.99 * cost_of(distinct) <= paid <= 1.01 * cost_of(distinct)


def cost_of(purchases: int) -> float:
    """Return what some purchases of epsilon 1 at delta 1e-5 cost together."""
    return gdp_epsilon(math.sqrt(purchases) * gdp_mu(1.0, 1e-5), 1e-5)


class JournalOfAFederation(Machine):
    """A party draws, says what follows, and is killed: who heard something never hears another thing in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.folder, self.round, self.stored = Path(mkdtemp()), 0, 0
        self.heard: dict[tuple[int, int], bytes] = {}
        self.box = Outbox(self.folder)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule(loops=st.integers(1, 3), kill=KILLS)
    def steps(self, loops: int, kill: int) -> None:
        try:
            with killed(kill):
                loops = 1 + self.round % 3  # what a round asks is fixed by the program
                drawn = [self.draw(f"{self.round} step: release 1, loop {loop} turn 0") for loop in range(loops)]
                said = self.said().get((self.round, 0))
                assert said is None or np.array_equal(Message.from_bytes(said).values, drawn), "drawn again"
                self.box.say(1, Message(MessageId("r", self.round, 0, "mix 1"), tuple(drawn), "release"))
                self.round += 1
        except Killed:
            self.is_killed()

    def draw(self, place: str) -> np.ndarray:
        known = self.box.recall(place)
        drawn = np.frombuffer(os.urandom(8), np.uint8).copy() if known is None else known[0]
        if known is None:
            self.box.note(place, [drawn])
        return drawn

    @rule()
    def is_killed(self) -> None:
        self.box = Outbox(self.folder)
        self.round = self.stored
        self.box.require(self.round)

    @rule()
    def stores_its_state(self) -> None:
        self.stored = self.round
        self.box.forget(lambda hearer: min(self.stored, 1 + max((r for r, _ in self.heard), default=-1)), self.stored)

    def said(self) -> dict[tuple[int, int], bytes]:
        found, place = dict[tuple[int, int], bytes](), (-1, -1)
        while (after := self.box.after(1, place, seconds=0)) is not None:
            place = after[0]
            found[place] = after[1]
        return found

    @rule()
    def hears(self) -> None:
        for place, data in self.said().items():
            assert self.heard.setdefault(place, data) == data


MACHINES = [LedgerBooks, LabelBooks, Purchases, JournalOfAFederation]


def search(machine: Any, how: Any) -> None:
    """Let a machine act, and print how much; AssertionError shows the acts after which less is stated."""
    start, before = time.perf_counter(), Machine.acts[machine.__name__]
    run_state_machine_as_test(machine, settings=how)
    acts = Machine.acts[machine.__name__] - before
    print(f"\n{machine.__name__}: {acts} acts in {time.perf_counter() - start:.1f} s, none forgotten")


@pytest.mark.parametrize("machine", MACHINES)
def test_no_book_states_less_than_was_spent(machine: Any) -> None:
    search(machine, FAST)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_no_book_states_less_than_was_spent_at_full_count(machine: Any) -> None:
    search(machine, FULL)


# Faults put back.


def _forgets(self: Any, path: Path) -> None:
    """Reads a file as if this process knew nothing of it."""
    ledgers._SEEN.clear()
    READ(self, path)


READ = sv.Ledger._read


@pytest.mark.slow
def test_it_finds_a_ledger_that_forgets_what_its_process_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sv.Ledger, "_read", _forgets)
    with pytest.raises(AssertionError, match="less than this process has seen"):
        run_state_machine_as_test(LedgerBooks, settings=FOUND)


def test_it_finds_a_ledger_that_does_not_look_at_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sv.Ledger, "_refresh", lambda self: self._traces or self._read_if_changed(self.path))
    with pytest.raises(AssertionError, match="less than"):
        run_state_machine_as_test(LedgerBooks, settings=FOUND)


@pytest.mark.slow
def test_it_finds_a_label_store_that_is_whatever_it_is_opened_as(monkeypatch: pytest.MonkeyPatch) -> None:
    def unpacked(path: Path, data: bytes) -> Any:
        facts, arrays = UNPACKED(path, data)
        return {**facts, "seed": AnySeed()}, arrays

    monkeypatch.setattr(label_file, "unpacked", unpacked)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(LabelBooks, settings=FOUND)


UNPACKED = label_file.unpacked


class AnySeed:
    def __ne__(self, other: object) -> bool:
        return False


def test_it_finds_purchases_that_are_told_apart_by_their_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "Bought", lambda name, *cost: Bought("", *cost))
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Purchases, settings=FOUND)


def test_it_finds_a_journal_whose_loops_share_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    note, recall = Outbox.note, Outbox.recall

    def place_of(place: str) -> str:
        return place.partition(", loop")[0]

    def noted(self: Any, place: str, drawn: Any) -> None:
        self._fresh.pop(place_of(place), None)
        note(self, place_of(place), drawn)

    monkeypatch.setattr(Outbox, "note", noted)
    monkeypatch.setattr(Outbox, "recall", lambda self, place: recall(self, place_of(place)))
    with pytest.raises(AssertionError, match="drawn again"):
        run_state_machine_as_test(JournalOfAFederation, settings=FOUND)
