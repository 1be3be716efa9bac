"""Let each seed of an experiment redraw all that is random: ``run.redraw = true``.

Without it, seeds redraw batches and noise alone, so results differ less between seeds than between draws of the split.
"""

import inspect
from typing import Any

from sottovoce.experiments import build
from sottovoce.experiments.schema import Case
from sottovoce.problems import tasks


def redrawn(case: Case, seed: int) -> Case:
    """Return the case as a seed draws it: its split, what its task draws (such as the start), and its random graph.

    >>> case = Case.model_validate({
    ...     "data": {"name": "digits"}, "task": {"name": "mlp"}, "network": {"kind": "ring"}, "run": {"redraw": True},
    ... })
    >>> drawn = redrawn(case, 7)
    >>> drawn.data.seed, drawn.task.options, drawn.network.options
    (7, {'seed': 7}, {})
    """
    if not case.run.redraw:
        return case
    drawn = _drawn(case)
    for name, table in drawn.items():
        if "seed" in table.model_fields_set | set(table.model_extra or {}):
            raise ValueError(f"{name}.seed has no effect with run.redraw, because each run draws its own: remove it")
    return case.model_copy(update={name: table.model_copy(update={"seed": seed}) for name, table in drawn.items()})


def words(case: Case) -> str:
    """Say what differs between the seeds of a case.

    >>> words(Case.model_validate({"data": {"name": "digits"}, "run": {"redraw": False}}))
    'batches and noise'
    """
    said = {"data": "split", "task": "what the task draws", "network": "graph"}
    if case.data.name in build.GENERATORS:
        said["data"] = "data and split"
    drawn = [said[name] for name in _drawn(case)] if case.run.redraw else []
    if case.run.redraw and case.columns is not None:
        drawn.append("start")
    return ", ".join([*drawn, "batches and noise"])


def _drawn(case: Case) -> dict[str, Any]:
    """Return the tables whose draws a seed decides."""
    found: dict[str, Any] = {"data": case.data}
    if case.task is not None and case.columns is None and _random(tasks.get(case.task.name)):
        found["task"] = case.task
    if case.network is not None and _random(build.builder(case.network.kind)):
        found["network"] = case.network
    return found


def _random(make: Any) -> bool:
    return "seed" in inspect.signature(make).parameters
