"""How tests start a cluster."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sottovoce.runtime import keeper


@pytest.fixture
def together(tmp_path: Path) -> Callable[..., dict[str, np.ndarray]]:
    """Run a job of `tests.cluster.worker` in several processes; return what the leader found."""

    def run(job: str, processes: int, out: Path | None = None) -> dict[str, np.ndarray]:
        folder = out or tmp_path / f"{job}-{processes}"
        folder.mkdir(exist_ok=True)

        def command(rank: int, address: str) -> list[str]:
            return [sys.executable, "-m", "tests.cluster.worker", job, str(folder), address, str(processes), str(rank)]

        assert keeper.keep(processes, range(processes), None, command, wait=120.0) == 0
        with np.load(folder / "found.npz") as file:
            return dict(file)

    return run
