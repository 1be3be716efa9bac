"""Write a run file with the noise that its epsilon needs, for example ``gradient = {clip = 1.0, noise = 0.02}``."""

from collections.abc import Mapping
from typing import Any

from sottovoce.experiments.setup import Setup
from sottovoce.experiments.toml import TomlTable, dump
from sottovoce.privacy.release import Release
from sottovoce.schedules import Scaled


def written(title: str, setups: Mapping[str, Setup]) -> str:
    """Return the text of a run file whose releases have the noise of these calibrated setups; it has no epsilon."""
    tables = {name: _tables(setup) for name, setup in setups.items()}
    if len(tables) == 1:
        return dump({"title": title, **next(iter(tables.values()))})
    return dump({"title": title, "variant": [{"name": name, **table} for name, table in tables.items()]})


def _tables(setup: Setup) -> TomlTable:
    table = setup.case.model_dump(exclude_unset=True, exclude_none=True)
    if setup.method.releases():  # labels that are drawn once have no noise to write out: their epsilon stays
        table["method"] = _noisy(table["method"], setup.method)
        del table["privacy"]["epsilon"]
    return {key: value for key, value in table.items() if value}


def _noisy(table: TomlTable, made: Any) -> TomlTable:
    """Return the method's table with the noise of the releases that were built from it."""
    noisy = dict(table)
    for key, value in table.items():
        part = getattr(made, key, None)
        if isinstance(part, Release) and isinstance(value, dict):
            assert isinstance(part.noise, Scaled)  # calibration scales a release's noise
            noise = value.get("noise", value["clip"])
            factor = float(part.noise.factor)  # type: ignore[arg-type]
            scaled = noise * factor if isinstance(noise, (int, float)) else {"of": noise, "factor": factor}
            noisy[key] = {**value, "noise": scaled}
        elif isinstance(value, dict):
            noisy[key] = _noisy(value, part)
    return noisy
