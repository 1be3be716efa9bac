"""Ready-made problems by name. Every module here is found by itself: one family of tasks, one file."""

import importlib
import pkgutil

from sottovoce.problems.tasks.base import Builder, Shape, Task, get, registry, task


def _discover() -> dict[str, Builder]:
    for module in pkgutil.walk_packages(__path__, prefix=f"{__name__}."):
        importlib.import_module(module.name)
    return dict(sorted(registry.items()))


available: dict[str, Builder] = _discover()

__all__ = ["Shape", "Task", "available", "get", "task"]
