"""Bound the work that a run file asks of a site, before anything is built.

A line of a run file may stand for days of work: a thousand million steps, an inner loop in each, a network with wide
layers, ten thousand variants. What multiplies is counted from the text alone, and compared with the site's policy.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax

from sottovoce.data import Declarations
from sottovoce.experiments import build
from sottovoce.experiments.schema import Case, TaskTable
from sottovoce.experiments.toml import read
from sottovoce.problems.tasks import Shape

LONGEST = 1 << 17  # letters of a run file
GIGABYTE = 1 << 30
_ENDLESS = 10**15  # more is not told apart


def require_one_run(text: str) -> None:
    """Refuse a run file that is too long or stands for several runs, before its variants are made.

    >>> require_one_run("[[variant]]\\n" * 3)
    Traceback (most recent call last):
    ...
    ValueError: the run file has 3 variants: a federation runs one; use --set or split
    """
    if len(text) > LONGEST:
        raise ValueError(f"the run file has {len(text)} letters: a federation takes one of up to {LONGEST}")
    document = read(text)
    for kind, what in (("variant", "variants"), ("column", "[[column]]s")):
        listed = document.get(kind, [])
        if isinstance(listed, list) and len(listed) > 1:
            raise ValueError(f"the run file has {len(listed)} {what}: a federation runs one; use --set or split")


def work_of(case: Case) -> int:
    """Return the whole numbers in what a run file names, multiplied: batches, inner steps, layers, encoded columns.

    It is no count of operations. But whatever makes a step or a model larger makes it larger, a new method's too.

    >>> from sottovoce.experiments.schema import Data, MethodTable
    >>> data, method = Data(name="digits"), MethodTable(name="DpBilevel", inner={"steps": 3}, sampling={"batch": 50})
    >>> work_of(Case(data=data, method=method))
    150
    """
    tables: list[Any] = [case.method.options, case.data.options]
    tables += [table.options for table in (case.task, case.network) if table is not None]
    if case.columns is not None:
        tables.append(case.columns.model_dump(exclude={"holders", "active"}, exclude_none=True))
    width = len(Declarations(case.data.columns).names) if case.data.columns else 1
    return min(math.prod((width, *map(_product, tables))), _ENDLESS)


def _product(value: Any) -> int:
    if isinstance(value, Mapping):
        return min(math.prod(_product(one) for name, one in value.items() if name != "seed"), _ENDLESS)
    if isinstance(value, list):
        return min(len(value) * max(map(_product, value), default=1), _ENDLESS)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 1
    if isinstance(value, float) and not value.is_integer():
        return 1 if math.isfinite(value) else _ENDLESS
    return max(1, min(abs(int(value)), _ENDLESS))


def weights_of(table: TaskTable, shape: Shape, **given: Any) -> int:
    """Return how many numbers a task's model has; none of them is made.

    >>> weights_of(TaskTable(name="mlp", hidden=[10**6, 10**6]), Shape((64,), classes=10, agents=5)) > 10**12
    True
    """
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(build.start(table, shape, **given)))
