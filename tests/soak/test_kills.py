"""kill -9 at any moment, and two processes at once: a run goes on, nothing is lost, nothing goes unpaid.

`make soak` kills 100 runs, and starts 50 pairs on one folder and 50 on one ledger; `make test` kills only writers of
ledgers and label stores.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.privacy.labels import Labels
from sottovoce.privacy.ledger import Ledger
from sottovoce.privacy.ledger_line import Entry, Group
from sottovoce.privacy.mechanisms import Mechanism
from sottovoce.runtime import loop

from . import worker
from .campaign import cases

KILLS, PAIRS = cases(100, 6), cases(50, 2)


class Workers:
    """A parent process that starts children, which may be killed."""

    def __init__(self) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, **command: Any) -> int:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(command) + "\n")
        self._parent.stdin.flush()
        return int(self._parent.stdout.readline())

    def stop(self) -> None:
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        self._parent.wait()


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.stop()


def age(folder: Path) -> None:
    """Make what a killed write left look old, so that the next writer may remove it."""
    for left in folder.rglob("*.part"):
        os.utime(left, (0, 0))


def same(one: Any, other: Any) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


def check_rows(out: Path, again: Any, whole: Any) -> None:
    assert same(again.agents, whole.agents)
    ledger = sv.Ledger(out / "ledger.jsonl")
    paid = sorted((entry.start, entry.stop) for entry in ledger.entries.values())
    assert paid == [(t, t + 2) for t in range(0, worker.STEPS, 2)]
    assert float(ledger.epsilon("0", 1e-5, "replace-one")) == pytest.approx(again.privacy.epsilon)


def check_discrete(out: Path, again: Any, whole: Any) -> None:
    assert again.releasable
    for agent in range(3):
        entries = sv.Ledger(out / f"ledger-{agent}.jsonl").entries.values()
        assert {t for entry in entries for t in range(entry.start, entry.stop)} == set(range(worker.STEPS))
        assert {entry.attempt for entry in entries} <= {0, 1}


def check_columns(out: Path, again: Any, whole: Any) -> None:
    assert same(again.agents, whole.agents)
    assert again.privacy.epsilon == pytest.approx(whole.privacy.epsilon)  # the noise was drawn again, and paid for once


CHECKS = {"rows": check_rows, "columns": check_columns, "discrete": check_discrete, "summed": check_discrete}


@pytest.mark.slow
def test_a_killed_run_goes_on_and_nothing_goes_unpaid(workers: Workers, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(loop, "_SAVE_SECONDS", 0.0)
    rng, seen = random.Random(int(time.time())), Counter[str]()
    wholes, lengths = {}, {}
    for name in CHECKS:
        wholes[name] = worker.JOBS[name](str(tmp_path / f"whole-{name}"))
        began = time.monotonic()
        child = workers.ask(job=name, out=str(tmp_path / f"timed-{name}"), told=str(tmp_path / "told"))
        assert workers.ask(wait=child) == 0
        assert (tmp_path / "told").read_text() == "finished"
        lengths[name] = time.monotonic() - began
    number = -1
    while seen["killed"] < KILLS:  # some have finished before they are killed
        number += 1
        assert number < 5 * KILLS
        name, out = rng.choice(["rows", "rows", "columns", "discrete", "summed"]), tmp_path / f"killed-{number}"
        at_write = number % 2 == 0  # every other one inside a write: the first head, the first line, ...
        write = 1 + number // 2 if number < 20 else rng.randrange(1, worker.WRITES[name])
        kill = [write, rng.choice([0.0, 0.5, 1.0])]
        given = {"kill": kill} if at_write else {}
        child = workers.ask(job=name, out=str(out), told=str(tmp_path / f"told-{number}"), **given)
        if not at_write:
            time.sleep(rng.uniform(0, 0.8 * lengths[name]))
            os.kill(child, signal.SIGKILL)
        ended = workers.ask(wait=child)
        if ended == signal.SIGKILL:
            seen["killed"] += 1
            seen["with a line in a ledger"] += any(file.stat().st_size > 0 for file in out.glob("ledger*.jsonl"))
            seen["with a checkpoint"] += (out / "checkpoint.npz").exists()
            seen["with leftovers"] += any(tmp_path.rglob(f"killed-{number}*/*.part"))
        age(tmp_path)
        again = worker.JOBS[name](str(out), resume=True)
        CHECKS[name](out, again, wholes[name])
        assert not list(out.glob("*.part"))
        seen[name] += 1
    print(f"\n{number + 1} runs, {dict(seen)}: all went on, all paid for")


@pytest.mark.slow
def test_of_two_runs_in_one_folder_one_is_refused(workers: Workers, tmp_path: Path) -> None:
    rng, seen = random.Random(int(time.time())), Counter[str]()
    for number in range(PAIRS):
        name, out = rng.choice(["rows", "columns", "discrete"]), tmp_path / f"pair-{number}"
        told = [tmp_path / f"told-{number}-{one}" for one in "ab"]
        children = []
        for file in told:
            children.append(workers.ask(job=name, out=str(out), told=str(file)))
            time.sleep(rng.choice([0.0, 0.0, 0.05, 0.5]))
        for child in children:
            assert workers.ask(wait=child) == 0
        said = sorted(file.read_text() for file in told)
        assert said.count("finished") == 1, said
        refused = next(words for words in said if words != "finished")
        assert str(out) in refused, refused
        assert any(words in refused for words in ("in use by another process", "holds a run already", "meanwhile"))
        seen[refused.replace(str(out), "OUT")[:50]] += 1
        again = worker.JOBS[name](str(out), resume=True)  # what is there is one whole run
        CHECKS[name](out, again, again)
    print(f"\n{PAIRS} pairs in one folder: {dict(seen)}")


@pytest.mark.slow
def test_two_runs_on_one_ledger_are_both_written_down(workers: Workers, tmp_path: Path) -> None:
    for number in range(PAIRS):
        home = tmp_path / f"pair-{number}"
        home.mkdir()
        told = [home / f"told-{seed}" for seed in (0, 1)]
        children = [
            workers.ask(job="shared", out=str(home / f"run-{seed}"), told=str(file), seed=seed)
            for seed, file in enumerate(told)
        ]
        for child in children:
            assert workers.ask(wait=child) == 0
        assert [file.read_text() for file in told] == ["finished", "finished"]
        ledger = sv.Ledger(home / "shared.jsonl")
        assert Counter(entry.run for entry in ledger.entries.values()).most_common()[-1][1] == worker.STEPS // 2
        twice = sv.account(worker.sgd(), sv.Population([worker.SIZE]), steps=2 * worker.STEPS).epsilon
        assert float(ledger.epsilon("0", 1e-5, "replace-one")) == pytest.approx(twice, rel=1e-3)
    print(f"\n{PAIRS} pairs on one ledger: every line of both is there")


RELEASE = Mechanism(laplace=(0.1,))


def charge_many(path: Path, count: int) -> None:
    ledger = Ledger(path)
    for number in range(count):
        ledger.charge(Entry("run", number, number + 1, (Group("records", ("north",), ((RELEASE, 1),)),)))
        (path.parent / "released").write_text(str(number))  # what a run would do next


def draw_many(path: Path, count: int) -> None:
    labels = Labels(np.arange(30) % 3, 3, path=path)
    for number in range(count):
        labels.redraw(1.0)
        (path.parent / "released").write_text(str(number))


@pytest.mark.filterwarnings("ignore:os.fork")
@pytest.mark.parametrize("write", [charge_many, draw_many])
def test_what_was_released_before_a_kill_is_on_the_disk(write: Any, tmp_path: Path) -> None:
    """Each write of a writer's life is cut off once; whatever it had released by then is charged."""
    rng = random.Random(0)
    for number in range(1, 1 + cases(100, 7)):
        home = tmp_path / str(number)
        home.mkdir()
        at = number if number < 10 else rng.randrange(1, 40), rng.choice([0.0, 0.3, 1.0])
        child = os.fork()
        if child == 0:  # no JAX in here
            worker.kill_at_write(*at)
            write(home / "kept", 14)
            os._exit(0)
        assert os.waitpid(child, 0)[1] in (0, signal.SIGKILL)
        released = int((home / "released").read_text()) + 1 if (home / "released").exists() else 0
        if write is charge_many:
            charged = len(Ledger(home / "kept").entries)
        else:
            charged = round(float(Labels(np.arange(30) % 3, 3, path=home / "kept").epsilon()))
        assert released <= charged <= released + 1
        age(home)
        write(home / "kept", charged + 1)  # the next writer clears up
        assert not list(home.glob("*.part"))
