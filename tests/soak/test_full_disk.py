"""A disk that is full: the error names the file and the remedy, nothing that was stored is lost, the run goes on later.

`make soak` fills it at 20 points of each kind of run.
"""

import errno
import os
import random
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from sottovoce import files
from sottovoce.privacy.ledger import Ledger
from sottovoce.runtime import loop

from . import worker
from .campaign import cases
from .test_kills import CHECKS, charge_many

FULL = r"cannot be written \(No space left on device\): free some space"
KINDS = [pytest.param(name, marks=[] if name == "rows" else pytest.mark.slow) for name in worker.WRITES]


def full_after(writes: int, part: float, patch: pytest.MonkeyPatch) -> None:
    """Let the disk be full after so many writes and a part of the next one; it stays full."""
    put, seen = files._put, [0]

    def filling(descriptor: int, content: bytes) -> None:
        seen[0] += 1
        if seen[0] <= writes:
            put(descriptor, content)
            return
        os.write(descriptor, content[: round(part * len(content))])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(files, "_put", filling)


@pytest.mark.parametrize("name", KINDS)
def test_a_run_survives_a_full_disk(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(loop, "_SAVE_SECONDS", 0.0)
    job, rng, points = worker.JOBS[name], random.Random(3), cases(20, 2)
    whole, stopped = job(str(tmp_path / "whole")), 0
    for number in range(points):
        out, after = tmp_path / str(number), number * worker.WRITES[name] // points
        with monkeypatch.context() as patch:
            full_after(after, rng.choice([0.0, 0.5, 1.0]), patch)
            with pytest.raises(OSError, match=FULL) as said:
                job(str(out))
        assert str(out) in str(said.value)
        assert not list(tmp_path.rglob("*.part"))
        CHECKS[name](out, job(str(out), resume=True), whole)
        stopped += 1
    print(f"\n{name}: the disk was full at {stopped} points, and every run went on")


@pytest.mark.filterwarnings("ignore:os.fork")
def test_a_ledger_survives_a_real_limit(tmp_path: Path) -> None:
    """The operating system cuts a line off in the middle; no line that was written before is lost."""
    for limit in (1, 100, 1000, 2000, 2500):
        home = tmp_path / str(limit)
        home.mkdir()
        child = os.fork()
        if child == 0:  # no JAX in here
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            told = b"nothing"
            try:
                charge_many(home / "kept", 50)
            except OSError as error:
                told = str(error).encode()
            os._exit(0 if b"free some space" in told and str(home).encode() in told else 1)
        assert os.waitpid(child, 0)[1] == 0
        before = len(Ledger(home / "kept").entries)
        charge_many(home / "kept", before + 2)
        assert len(Ledger(home / "kept").entries) == before + 2
