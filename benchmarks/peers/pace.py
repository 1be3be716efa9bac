"""Choose how many steps a turn has, for contenders whose loop is in Python."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks import measure


def paced(step: Callable[[], Any], seconds: float = 0.5) -> measure.Turns:
    """Return turns of about `seconds` each."""
    for _ in range(3):
        step()
    began, made = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        step()
        made += 1

    def run() -> Any:
        for _ in range(made):
            out = step()
        return out

    return measure.Turns(run, made)
