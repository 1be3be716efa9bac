"""Run setups of cases; those of parties with rows that differ in numbers alone run side by side (`sv.run_many`).

Example: five seeds of four epsilons are twenty runs, and one compiled program.
"""

from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from sottovoce.experiments.rows import RowsSetup
from sottovoce.experiments.setup import Setup
from sottovoce.runtime.result import Result
from sottovoce.runtime.run import as_they_end as runs_as_they_end

OneRun = tuple[Setup, int, Path | None]  # what is run, with which seed, and its folder


def as_they_end(runs: Iterable[OneRun], resume: bool = False) -> Iterator[tuple[int, Result | FloatingPointError]]:
    """Yield the number and the end of each run, as they end: its result, which is stored, or the error of divergence.

    Setups are taken up one after the other. One over columns is run before the next is taken.
    """
    numbered = enumerate(runs)
    begun: dict[int, tuple[int, RowsSetup, Path | None]] = {}
    places = count()
    alone: list[tuple[int, Result | FloatingPointError]] = []

    def of_rows() -> Iterator[dict[str, Any]]:
        for number, (setup, seed, out) in numbered:
            if isinstance(setup, RowsSetup):
                begun[next(places)] = number, setup, out
                yield setup.arguments(seed, out, resume)
            else:
                alone.append((number, _end(setup, seed, out, resume)))

    for place, end in runs_as_they_end(of_rows()):
        yield from alone
        alone.clear()
        number, setup, out = begun.pop(place)
        yield number, end if isinstance(end, FloatingPointError) else setup.finished(end, out)
    yield from alone


def _end(setup: Setup, seed: int, out: Path | None, resume: bool) -> Result | FloatingPointError:
    try:
        return setup.run(seed, out, resume)
    except FloatingPointError as error:
        return error
