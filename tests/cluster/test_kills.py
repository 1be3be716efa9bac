"""A process is killed at a random moment: the others store their state, and the run goes on to the same result."""

import os
import random
import shutil
import sys
import threading

import numpy as np
import pytest

from sottovoce.runtime import keeper
from sottovoce.runtime.peers import LOST

from . import worker
from .test_cluster import ledger

KILLS = int(os.environ.get("SOAK", "2"))


def killed(out, processes, victim, after, monkeypatch):
    """Run until a process is killed some seconds after all have begun; return the exit code."""
    children, honest = [], keeper._start
    monkeypatch.setattr(keeper, "_start", lambda *given: children.append(honest(*given)) or children[-1])
    begun, start = [], keeper.Meeting.start

    def watched(self, service):
        start(self, service)
        begun.append(threading.Timer(after, children[victim].kill))
        begun[0].start()

    monkeypatch.setattr(keeper.Meeting, "start", watched)

    def command(rank, address):
        return [sys.executable, "-m", "tests.cluster.worker", "long", str(out), address, str(processes), str(rank)]

    try:
        return keeper.keep(processes, range(processes), None, command, wait=120.0)
    finally:
        begun[0].cancel()
        monkeypatch.undo()


@pytest.mark.slow
def test_a_killed_process_costs_nothing_but_time(together, tmp_path, monkeypatch, capfd):
    whole, coins = together("long", 2), random.Random(0)
    alone = worker.long(tmp_path / "alone")
    np.testing.assert_allclose(whole["x"], alone.x, rtol=1e-5, atol=1e-5)
    spent, met = ledger(tmp_path / "alone"), 0
    assert ledger(tmp_path / "long-2") == spent
    for number in range(KILLS):
        out = tmp_path / f"killed-{number}"
        out.mkdir()
        capfd.readouterr()
        code = killed(out, 2, coins.randrange(2), coins.uniform(1.0, 12.0), monkeypatch)
        said = capfd.readouterr().err
        if code != 0:  # it was killed before it was done
            met += 1
            assert code == LOST
            assert "is gone (it ended without a word" in said
        shutil.copytree(out, tmp_path / f"other-{number}")
        again = together("long", 2, out)
        for name, value in whole.items():
            np.testing.assert_array_equal(again[name], value, err_msg=name)
        assert ledger(out) == spent
        other = tmp_path / f"other-{number}"
        found = together("long", 3, other)["x"] if number % 2 else worker.long(other).x
        np.testing.assert_allclose(found, whole["x"], rtol=1e-5, atol=1e-5)
        assert ledger(other) == spent
    print(f"{met} of {KILLS} runs were killed before they were done")
    assert met >= KILLS / 2, "runs were done before they could be killed"
