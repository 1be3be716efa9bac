"""Define the methods: how one agent moves in one step. One file per method, with its paper cited on top.

Every module in this folder is discovered, so a new method needs no entry anywhere. What the papers prove about the
methods is in `sottovoce.theory`.

>>> available["DpSgd"].__name__
'DpSgd'
"""

import importlib
import pkgutil
from typing import Any

from sottovoce.methods.base import Method, Setting, State, summary
from sottovoce.naming import unknown


def _discover() -> dict[str, type[Method]]:
    for module in pkgutil.walk_packages(__path__, prefix=f"{__name__}."):
        importlib.import_module(module.name)
    return {name: cls for name, cls in sorted(Method.registry.items()) if cls.__module__.startswith(__name__)}


available: dict[str, type[Method]] = _discover()


def __getattr__(name: str) -> Any:
    if name in Method.registry:
        return Method.registry[name]
    raise AttributeError(unknown("method", name, available))


__all__ = ["Method", "Setting", "State", "available", "summary"]
