"""Draw labels in stages: what is learned from the first part says what to ask about the next.

Stage 1 asks of a part of the labels in which of a few random groups of classes they are, and trains on the randomised
answers. The model's probabilities for the next part, which need its features only, are a prior: each of those labels is
asked the question that tells most (`sottovoce.privacy.response`). Then a model is trained on all parts so far, each
record with the likelihood of what was answered. Every label is asked once, in the part that chance put it in, so the
whole costs one epsilon (after Ghazi et al., "Deep learning with label differential privacy", NeurIPS 2021, who
randomise within the likeliest classes).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.data.columns import Columns
from sottovoce.methods.column_method import ColumnMethod
from sottovoce.privacy.report import PrivacyReport
from sottovoce.privacy.table import Table
from sottovoce.problems.tasks.vertical import probabilities
from sottovoce.problems.vertical import Vertical
from sottovoce.runtime.result import Result
from sottovoce.runtime.run import run


@dataclass(frozen=True)
class Staged:
    """Hold the models of every stage; the average of those of the last stage is the result."""

    problems: Sequence[Vertical]
    stages: Sequence[Sequence[Result]]

    @property
    def members(self) -> Sequence[Result]:
        """Return the models of the last stage."""
        return self.stages[-1]

    @property
    def privacy(self) -> PrivacyReport:
        """Return the statement for everything, labels of all stages included."""
        return self.members[-1].privacy

    def probabilities(self, columns: Columns, rows: Any = None, stage: int = -1) -> np.ndarray:
        """Return class probabilities of some rows: the mean over the members of a stage."""
        members = zip(self.problems, self.stages[stage], strict=True)
        return np.mean([probabilities(p, r.x, r.y or (), columns, rows) for p, r in members], axis=0)


def rows_of_stages(columns: Columns, seed: int, stages: int) -> list[np.ndarray]:
    """Return the rows whose labels are drawn in each stage, in the order in which they are drawn.

    >>> [len(part) for part in rows_of_stages(Columns([np.ones((5, 2))]), seed=0, stages=2)]
    [3, 2]
    """
    rows = np.random.default_rng([seed, stages]).permutation(columns.rows_of("all"))
    return np.array_split(rows, stages)


def run_in_stages(
    problem: Vertical | Sequence[Vertical],
    table: Table,
    method: ColumnMethod,
    *,
    steps: int,
    stages: int = 2,
    seed: int = 0,
    out: str | Path | None = None,
    **options: Any,
) -> Staged:
    """Train in stages, `steps` outer steps each. Further options are those of `run`; each model has its own folder.

    A list of problems, which differ in where they start, gives an ensemble: their probabilities are averaged, for the
    prior and in the end. It costs time and no privacy.

    >>> import sottovoce as sv
    >>> from sottovoce.problems.tasks.vertical import hyper_parameters
    >>> rng = np.random.default_rng(0)
    >>> blocks = [rng.normal(size=(400, 2)) for _ in range(2)]
    >>> labels = sv.Labels((blocks[0][:, 0] > 0).astype(int), classes=2, seed=0)
    >>> table = sv.Table(Columns(blocks), labels)
    >>> method = sv.methods.VerticalSgd(batch=50, rate_x=0.0, rate_y=1.0, labels=sv.privacy.labels.Memoised(1.0))
    >>> found = run_in_stages(hyper_parameters([2, 2]), table, method, steps=5)
    >>> found.privacy.epsilon, found.probabilities(Columns(blocks)).shape
    (1.0, (400, 2))
    """
    gate, columns, labels = method.labels, table.columns, table.labels
    if stages < 1:
        raise ValueError(f"stages is {stages}: it must be at least 1")
    problems = [problem] if isinstance(problem, Vertical) else list(problem)
    parts = rows_of_stages(columns, seed, stages)
    done: list[list[Result]] = []
    for number, part in enumerate(parts):
        uniform = np.full((len(part), labels.classes), 1 / labels.classes)
        prior = Staged(problems, done).probabilities(columns, part) if done else uniform
        gate.ask(labels, part, prior)
        known = columns.only(np.concatenate(parts[: number + 1]))
        done.append([])
        for member, start in enumerate(problems):
            folder = None if out is None else Path(out) / f"stage-{number + 1}-model-{member + 1}"
            own = seed + 1000 * number + member
            part_of = replace(table, columns=known)
            done[-1].append(run(start, part_of, method, steps=steps, seed=own, out=folder, **options))
    return Staged(problems, done)
