"""Define the contract of a method, what methods share, and those that are no paper's. One file per method.

`sottovoce.registry` finds the methods here and in `sottovoce.papers`. They have their names here:

>>> from sottovoce import methods
>>> methods.DpSgd is methods.available["DpSgd"]
True
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sottovoce.methods.base import Method, Setting, State, summary

    available: dict[str, type[Method]]


def __getattr__(name: str) -> Any:
    """Return a name of the contract, or a method: the registry, which imports this folder, is loaded at first use."""
    if name.startswith("_") or importlib.util.find_spec(f"{__name__}.{name}"):  # Python then imports the module
        raise AttributeError(name)
    registry = importlib.import_module("sottovoce.registry")
    contract = importlib.import_module("sottovoce.methods.base")
    if name == "available":
        return registry.available
    return getattr(contract, name) if name in __all__ else registry.find(name)


def __dir__() -> list[str]:
    return [*__all__, *importlib.import_module("sottovoce.registry").available]


__all__ = ["Method", "Setting", "State", "available", "summary"]
