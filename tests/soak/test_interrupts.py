"""Ctrl-C at random moments: the folder always resumes, and nothing that was released goes unpaid.

`make test-all` tries a few moments, `make soak` many.
"""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.privacy.labels import Labels, Memoised
from sottovoce.runtime import loop

from .campaign import cases

MOMENTS = cases(50, 5)
DATA = [np.random.default_rng(seed).normal(size=(30, 2)).astype(np.float32) for seed in range(3)]
SQUARE = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(2))
SGD = sv.methods.DpSgd(rate=0.1, gradient=sv.Release(1.0, 0.1), sampling=sv.Poisson(10))
BLOCKS = [np.random.default_rng(seed).normal(size=(40, 2)).astype(np.float32) for seed in range(2)]
COLUMNS = sv.Vertical(
    lambda x, a: a * x,
    lambda y, e: e @ y,
    lambda s: jnp.concatenate([0.5 * s**2, 0.5 * (s - 1) ** 2], axis=-1),
    [jnp.ones(2)] * 2,
    [jnp.zeros((2, 1))] * 2,
)
BAMBI = sv.methods.Bambi(2, 10, 0.1, 0.1, Memoised(2.0))


def rows(out: Path, resume: bool = False) -> Any:
    return sv.run(SQUARE, DATA, SGD, network=sv.networks.ring(3), steps=60, every=2, out=out, resume=resume)


def discrete(out: Path, resume: bool = False) -> Any:
    options = {"network": sv.networks.ring(3), "steps": 12, "every": 2, "noise": "discrete"}
    return sv.run(SQUARE, DATA, SGD, out=out, resume=resume, **options)


def columns(out: Path, resume: bool = False) -> Any:
    labels = Labels(np.arange(40) % 2, 2, seed=0)
    table = sv.Table(sv.Columns(BLOCKS), labels)
    return sv.run(COLUMNS, table, BAMBI, steps=40, every=2, out=out, resume=resume)


def interrupted(run: Any, out: Path, after: float) -> bool:
    """Run, with a Ctrl-C after so many seconds; say whether it fell into the run."""
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        run(out)
        timer.cancel()
        timer.join()
        time.sleep(0.01)  # a signal that was sent at the last moment arrives here
    except KeyboardInterrupt:
        return True
    finally:
        timer.cancel()
    return False


@pytest.mark.slow
@pytest.mark.parametrize("run", [rows, columns, discrete])
def test_ctrl_c_at_random_moments_leaves_a_folder_that_resumes(run: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(loop, "_SAVE_SECONDS", 0.0)
    run(tmp_path / "warm")
    began = time.perf_counter()
    whole = run(tmp_path / "whole")
    length, rng, caught = time.perf_counter() - began, np.random.default_rng(int(time.time())), 0
    for moment in range(MOMENTS):
        out = tmp_path / f"stopped-{moment}"
        try:
            caught += interrupted(run, out, float(rng.uniform(0, length)))
        except KeyboardInterrupt:
            caught += 1
        again = run(out, resume=True)
        if run is not discrete:
            for a, b in zip(jax.tree.leaves(again.agents), jax.tree.leaves(whole.agents), strict=True):
                np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
            continue
        for agent in range(3):
            entries = sv.Ledger(out / f"ledger-{agent}.jsonl").entries.values()
            paid = {t for entry in entries for t in range(entry.start, entry.stop)}
            assert paid == set(range(12))
            assert {entry.attempt for entry in entries} <= {0, 1}
    assert caught >= MOMENTS // 4
