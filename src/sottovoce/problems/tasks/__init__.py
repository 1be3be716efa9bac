"""Provide ready-made problems by name: one file per family of tasks, found automatically.

>>> get("softmax")(Shape(features=(4,), classes=3, agents=2)).problem.variables
('x',)
"""

import importlib
import pkgutil

from sottovoce.problems.tasks.base import Builder, Shape, Task, get, registry, start, task


def _discover() -> dict[str, Builder]:
    for module in pkgutil.walk_packages(__path__, prefix=f"{__name__}."):
        importlib.import_module(module.name)
    return dict(sorted(registry.items()))


available: dict[str, Builder] = _discover()

__all__ = ["Shape", "Task", "available", "get", "start", "task"]
