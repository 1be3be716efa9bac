"""The compiled program of a run, as `sv.run` advances it, for benchmarks that time steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.runtime.array import ArrayPlace
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import lay_out


def program(
    problem: Any, parts: Sequence[Any], method: Any, steps: int, network: Any = None, chunk: int = 1024
) -> Callable[[], Any]:
    """Return a function that advances the run by `steps` steps and returns its state."""
    trace = account_of(method, parts, 1_000_000, network or sv.networks.single(), problem=problem).trace
    place = ArrayPlace(trace, problem, lay_out(parts), root_key(0), chunk)
    state, first = place.begin(), 0

    def run() -> Any:
        nonlocal state, first
        state, _ = place.advance(state, first, steps)
        first += steps
        return state

    return run
