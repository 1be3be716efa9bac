"""Several processes do what one does, each with its own agents' records."""

import json
from functools import cache

import jax
import numpy as np
import pytest

from sottovoce.runtime import mixing

from . import worker


def ledger(folder):
    """What was charged, without the run's name and the chain."""
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("run", "before")} for line in lines]


def test_two_processes_do_what_one_does(together, tmp_path):
    found, one = together("small", 2), worker.small(tmp_path / "one")
    np.testing.assert_allclose(found["x"], one.x, rtol=1e-5, atol=1e-6)
    for name in ("size", "size/agents", "consensus"):
        np.testing.assert_allclose(found[name], one.history[name], rtol=1e-5, atol=1e-6)
    assert ledger(tmp_path / "small-2") == ledger(tmp_path / "one")
    again = worker.small(tmp_path / "small-2", resume=True)  # what two have stored, one reads
    np.testing.assert_allclose(again.x, found["x"], rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_who_hears_agents_of_three_processes_adds_them_up(together):
    found, one = together("star", 3), worker.star()
    np.testing.assert_allclose(found["x"], one.x, rtol=1e-5, atol=1e-6)
    for name in ("size", "size/agents", "consensus"):
        np.testing.assert_allclose(found[name], one.history[name], rtol=1e-5, atol=1e-6)


@cache
def alone(dense):
    """All methods in one process; not `dense`: neighbours are added up along edges, as several processes do it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixing, "_DENSE", mixing._DENSE if dense else 0)
        jax.clear_caches()
        return worker.everything()


def apart(found, one, example, what):
    """How far apart two runs are at most, in the arrays of one kind; 0 is the same to the bit."""
    names = [name for name in one if name.startswith(f"{example}/{what}/")]
    return max(float(np.max(np.abs(np.float64(found[name]) - np.float64(one[name])))) for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_every_method_gives_the_same_in_several_processes(together, tmp_path, processes):
    """Shown with `-s`: where a method is the same to the bit, and where not (docs/cluster.md says why)."""
    found, one, by_edge = together("contract", processes), alone(dense=True), alone(dense=False)
    assert found.keys() == one.keys()
    files = [np.load(tmp_path / f"contract-{processes}" / f"found-{rank}.npz") for rank in range(processes)]
    for name in found:
        if "/agents/" in name:
            found[name] = np.concatenate([file[name] for file in files])
    for name, value in one.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    for example in dict.fromkeys(name.split("/")[0] for name in one):
        gaps = [apart(found, run, example, what) for run in (one, by_edge) for what in ("agents", "average")]
        print(f"{processes} | {example} | " + " | ".join(f"{gap:.0e}" if gap else "0" for gap in gaps))
