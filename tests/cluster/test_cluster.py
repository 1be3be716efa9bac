"""Several processes do what one does, each with its own agents' records."""

import json

import numpy as np
import pytest

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
@pytest.mark.parametrize("processes", [2, 4])
def test_every_method_gives_the_same_in_several_processes(together, processes):
    found, one = together("contract", processes), worker.everything()
    assert found.keys() == one.keys()
    for name, value in one.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
