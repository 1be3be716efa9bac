"""Define what a ready-made task is, and register tasks by name.

To add a task, write a builder in a new file of this folder:

    @task("my-task")
    def my_task(shape: Shape, penalty: float = 0.0) -> Task:
        ...
        return Task(Minimize(loss, x0), metrics)
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from sottovoce.naming import unknown
from sottovoce.problems.objectives import Problem

Evaluate = Callable[..., Mapping[str, jax.Array]]
Builder = Callable[..., "Task"]

registry: dict[str, Builder] = {}


@dataclass(frozen=True)
class Shape:
    """State what a task may know of the data: nothing in it is learned from a record.

    `features` is the shape of one record's features, `classes` the number of declared classes (1: the label is a
    number), `agents` the number of parties, and `prior` the share of class 1, declared or bought.
    `widths` are the numbers of columns of parties that hold columns.
    """

    features: tuple[int, ...]
    classes: int
    agents: int
    prior: float | None = None
    widths: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Task:
    """Join a problem with the metrics that judge its solution.

    ``metrics(test)`` takes a test record set and returns the function that `run` evaluates: ``fn(x)``, or ``fn(x, y)``
    for problems with two variables, which returns named numbers. ``prepare(parts)`` adds what the losses need to the
    parties' records, for example a public column. `chances` says that `predict` gives the chances of classes, where
    labels are classes, and not scores that only rank.
    """

    problem: Problem
    metrics: Callable[[Any], Evaluate]
    prepare: Callable[[list[Any]], list[Any]] = list
    chances: bool = True


def task(name: str) -> Callable[[Builder], Builder]:
    """Register a builder ``(shape: Shape, **parameters) -> Task`` under a name; its keyword parameters are the task's.

    >>> from sottovoce.problems.tasks import get
    >>> get("softmax")(Shape(features=(4,), classes=3, agents=2), penalty=0.1).problem.variables
    ('x',)
    """

    def register(builder: Builder) -> Builder:
        known = registry.get(name, builder)
        if (inspect.getfile(known), known.__qualname__) != (inspect.getfile(builder), builder.__qualname__):
            raise ValueError(f"two tasks are called {name!r} ({known.__module__}, {builder.__module__}): rename one")
        registry[name] = builder  # the same one again, where a module is imported twice
        return builder

    return register


def start(build: Callable[[], Task]) -> tuple[Any, ...]:
    """Return the shapes of a task's variables; nothing is computed, and no array is made.

    >>> from functools import partial
    >>> from sottovoce.problems.tasks import get
    >>> start(partial(get("softmax"), Shape((10**6,), classes=10**5, agents=2)))[0]["weights"].shape
    (1000000, 100000)
    """

    def variables() -> tuple[Any, ...]:
        problem = build().problem
        return tuple(getattr(problem, f"{name}0") for name in problem.variables)

    return jax.eval_shape(variables)


def check_classes(name: str, shape: Shape, two: bool = False) -> None:
    """Refuse a label that is a number, and, with `two`, more than two classes.

    >>> check_classes("softmax", Shape((4,), classes=1, agents=1))
    Traceback (most recent call last):
    ...
    ValueError: the task softmax is for classes, but the label is a number: use the task ridge, or declare ...
    """
    if shape.classes == 1:
        raise ValueError(
            f"the task {name} is for classes, but the label is a number: use the task ridge, or declare categories of "
            "the label"
        )
    if two and shape.classes != 2:
        raise ValueError(
            f"the task {name} is for 2 classes, the data have {shape.classes}: use the task softmax or group-robust, "
            "or make two classes of them (ready-made data sets: data.positive)"
        )


def get(name: str) -> Builder:
    """Return the builder of a task; for an unknown name, the ValueError names the nearest one.

    >>> get("sofmax")
    Traceback (most recent call last):
    ...
    ValueError: there is no task 'sofmax'; did you mean 'softmax'? (...)
    """
    if name not in registry:
        raise ValueError(unknown("task", name, registry))
    return registry[name]
