"""Plan the rows of a run file: every variant, and the comparisons that it asks for, built and checked."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sottovoce.experiments import choice, columns, rows
from sottovoce.experiments.redraw import redrawn
from sottovoce.experiments.rows import Loaded, RowsSetup
from sottovoce.experiments.runfile import RunFile
from sottovoce.experiments.schema import Case, with_settings
from sottovoce.experiments.setup import Setup
from sottovoce.reports.comparison import ALONE, Kind

_LONGEST = 200  # letters in the name of a variant's folder


def setup(case: Case, draws: bool = True, loaded: Loaded | None = None) -> Setup:
    """Build a case, and calibrate it if it names an epsilon; nothing is run. `loaded` takes the place of its [data].

    Without `draws`, ranges and lists that are to be bought have stand-ins, and nothing about private rows is learned.

    >>> case = Case.model_validate({
    ...     "data": {"name": "digits", "agents": 4}, "task": {"name": "softmax"}, "network": {"kind": "ring"},
    ...     "method": {"name": "DpSgd", "rate": 0.5, "sampling": "full", "gradient": {"clip": 1.0}},
    ...     "run": {"steps": 5}, "privacy": {"epsilon": 3.0},
    ... })
    >>> round(setup(case).account.epsilon, 2)
    3.0
    """
    if case.select is not None:
        choice.check(case)
        case = case.model_copy(update={"privacy": choice.of_a_trial(case)})
    return rows.setup(case, draws, loaded) if case.columns is None else columns.setup(case)


def of_kind(made: Setup, kind: Kind) -> Setup:
    """Return the setup itself, or of each party alone, or of all data in one place."""
    return made.alone() if kind == "alone" else made.pooled() if kind == "pooled" else made


def setups(runfile: RunFile, draws: bool = True) -> dict[str, Setup]:
    """Build every case of a run file, as `setup` does; an error names the file and the case."""
    made: dict[str, Setup] = {}
    try:
        cases = choice.complete(runfile.cases)
    except ValueError as error:
        raise ValueError(f"{runfile.source}: {error}") from None
    for name, case in cases.items():
        try:
            made[name] = setup(redrawn(case, case.run.seeds[0]), draws)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"{runfile.source}, {name}: {error}") from error
        except MemoryError as error:
            raise ValueError(
                f"{runfile.source}, {name}: it does not fit into memory ({error}): lower the sizes in [data] and [task]"
            ) from error
    return made


@dataclass(frozen=True)
class Planned:
    """Hold one row of the planned comparison. `setup` has the settings of the file, for the first seed."""

    name: str
    kind: Kind
    setup: Setup
    case: Case

    def at(self, seed: int, settings: Mapping[str, Any]) -> Setup:
        """Return the setup for a seed, with settings that a search chose."""
        first = seed == self.case.run.seeds[0] or not self.case.run.redraw
        if first and not settings:
            return self.setup
        return _here(of_kind(setup(redrawn(with_settings(self.case, settings), seed)), self.kind))

    def folder(self, seed: int) -> str:
        """Return the folder of a seed's run, within the experiment's folder: no name leads out of it."""
        words = re.sub(r"[^A-Za-z0-9.]+", "-", self.name).strip("-.")
        if not 0 < len(words) <= _LONGEST:
            raise ValueError(
                f"the variant {self.name[:40]!r} cannot give its folder a name: use 1 to {_LONGEST} letters and digits"
            )
        return f"{words}/{seed}"

    def entry(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the plan in the experiment's folder says of this row, with settings that a search chose."""
        seeds = self.case.run.seeds
        return {
            "name": self.name,
            "kind": self.kind,
            "metric": self.setup.case.run.metric,
            "runs": [self.folder(seed) for seed in seeds],
            "settings": settings,
        }


def plan(runfile: RunFile, draws: bool = True) -> list[Planned]:
    """Build and check all rows of a run file, so that an error in the last is found before the first is run.

    `draws` is as for `setup`.
    """
    found: list[Planned] = []
    pooled: set[str] = set()
    several = len(runfile.cases) > 1
    for (name, case), made in zip(runfile.cases.items(), setups(runfile, draws).values()):
        found.append(Planned(name, "together", made, case))
        if case.compare.alone:
            found.append(Planned(name + ALONE, "alone", of_kind(made, "alone"), case))
        if case.compare.pooled:
            whole = of_kind(made, "pooled")
            same = repr(
                (case.data, case.task, case.run, case.search, whole.method)
            )  # variants may share it: run it once
            if same not in pooled:
                suffix = f" ({name})" if several and pooled else ""
                found.append(Planned(f"pooled, no privacy{suffix}", "pooled", whole, case))
            pooled.add(same)
    folders = [row.folder(0).lower() for row in found]
    twice = {row.name for row, folder in zip(found, folders) if folders.count(folder) > 1}
    if twice:
        raise ValueError(f"variants {sorted(twice)} would share a folder: give them names that differ in their letters")
    return [replace(row, setup=_here(row.setup)) for row in found]


def _here(made: Setup) -> Setup:
    """Return the setup with the records of this process's parties alone."""
    return made.here() if isinstance(made, RowsSetup) else made
