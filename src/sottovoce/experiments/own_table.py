"""Read one's own table for a run file: ``[data]`` with ``file = "patients.csv"``."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from sottovoce import data as datasets
from sottovoce.data import Column, DeclaredTable
from sottovoce.data.declared import FEWEST
from sottovoce.experiments.schema import Data
from sottovoce.naming import unknown
from sottovoce.privacy.noisy_counts import NoisyCounts
from sottovoce.problems.tasks import metrics
from sottovoce.problems.tasks.base import Evaluate, Task
from sottovoce.shown import Shown

# Keys that need `file`:
_OF_TABLES = ("label", "features", "party", "weight", "id", "columns", "test", "private", "share", "curves")
_OF_SETS = ("limit", "positive")
_SPLIT = ("agents", "by", "skew", "alpha", "sizes")  # keys that distribute rows: `party` does it instead


def check(table: Data, names: list[str]) -> None:
    """Refuse data that have no name, an unknown one, or keys that do not go together; nothing is read."""
    if (table.name is None) == (table.file is None):
        both = "both name and file" if table.name is not None else "neither name nor file"
        raise ValueError(f'[data] has {both}: give name = "digits", or file = "patients.csv"')
    if table.name is not None:
        if table.name not in names:
            raise ValueError("data.name: " + unknown("data set", table.name, names))
        useless = [key for key in _OF_TABLES if key in table.model_fields_set]
        if useless:
            raise ValueError(f"data.{useless[0]} is for your own table (data.file), not for {table.name}: remove it")
        return
    known = [key for key in Data.model_fields if key not in (*_OF_SETS, "name")]
    for key in table.options:
        raise ValueError(unknown("key of [data]", key, known))
    for key in _OF_SETS:
        if key in table.model_fields_set:
            raise ValueError(f"data.{key} is for ready-made data sets, not for data.file: remove it")
    if table.party is not None:
        for key in _SPLIT:
            if key in table.model_fields_set:
                raise ValueError(f"data.{key} and data.party both say who holds which rows: remove one")
    if table.label is None:
        raise ValueError('data.label is missing: name the column to predict, such as label = "death"')


def load(table: Data, draws: bool = True) -> tuple[DeclaredTable, DeclaredTable | None]:
    """Return the rows to train on, and those to test on if there are any; `draws` is as for `NoisyCounts`."""
    assert table.file is not None
    assert table.label is not None
    counter = None if table.private is None else NoisyCounts(table.private, seed=table.seed, draws=draws)
    made = datasets.table(
        Path(table.file),
        table.label,
        table.features,
        columns=table.columns,
        party=table.party,
        unit=table.unit,
        weight=table.weight,
        private=counter,
        share=table.share,
        curves=None if table.curves == "auto" else table.curves,
    )
    if isinstance(table.test, str):
        declared = {**made.columns, made.label: made.target}
        test = datasets.table(Path(table.test), made.label, list(made.columns), columns=declared).readable()
        words = f"figures are measured on rows of {test.source}, without noise: the statement does not cover these rows"
        return _told(_enough(made), words), test if len(test) else None
    if table.test == 0:
        return _enough(made), None
    train, test = made.hold_out(table.test, table.seed)
    _enough(train)
    words = "figures are measured on held-out rows, without noise: the statement does not cover these rows"
    return _told(train, words), test if len(test) else None


def require_fitting(*tables: DeclaredTable | None) -> None:
    """Refuse tables in which nothing of a declared column fits. This is for their holder alone: a run never refuses."""
    hopeless = dict.fromkeys(note for made in tables if made is not None for note in made.notes if note.hopeless)
    if hopeless:
        listed = "\n".join(f"- {note.rough or note.exact.partition(' (row')[0]}" for note in hopeless)
        raise ValueError(
            f"nothing fits the declaration of a column:\n{listed}\n`check` stops here, because it is for the holder"
            " of the rows. `run` goes on, and takes these values as missing: a run that stopped because of values "
            "would tell others about them"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Same(Shown):
    """Compare what it holds by identity: records are the key of a cache without being read."""

    held: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.held is other.held

    def __hash__(self) -> int:
        return id(self.held)


def in_units(evaluate: Evaluate, test: Any, table: Data, task: Task) -> Evaluate:
    """Return metrics of test rows with plain figures beside: the error in the label's own unit, and the base rate.

    The base rate is the accuracy of always guessing the most frequent class of these rows. Where a task predicts
    chances, log loss and calibration are measured too; of several classes AUROC and accuracy are means over classes.
    """
    target = Column.of(table.columns[str(table.label)])
    if not target.numeric:
        return _of_classes(evaluate, Same(test), task.problem.predict if task.chances else None)
    if target.source is not None:
        return evaluate
    low, high = map(math.log, target.bounds) if target.log else target.bounds
    return _with_error(evaluate, (high - low) / 2, target.log)


@lru_cache(maxsize=4)  # the same function is compiled once, for all seeds
def _of_classes(evaluate: Evaluate, test: Same, predict: Callable[..., Any] | None) -> Evaluate:
    label = jnp.asarray(test.held["label"])
    base = jnp.float32(np.bincount(np.asarray(label)).max() / len(label))

    def figures(*variables: Any) -> dict[str, Any]:
        found = dict(evaluate(*variables))
        if "accuracy" in found:
            found["base rate"] = base
        if predict is None:
            return found
        found.pop("loss", None)  # log loss says the same in known words
        return found | metrics.of_chances(predict(*variables, test.held["features"]), label)

    return figures


@lru_cache(maxsize=4)
def _with_error(evaluate: Evaluate, half: float, log: bool) -> Evaluate:
    def figures(*variables: Any) -> dict[str, Any]:
        found = dict(evaluate(*variables))
        if "r2" in found:
            # The error of a logarithm is a factor: a label of 100 with an error factor of 2 was guessed as 50 or 200.
            error = half * jnp.sqrt(2.0 * found.pop("loss"))
            found |= {"error factor": jnp.exp(error)} if log else {"rmse": error}
        return found

    return figures


def parts(table: Data, made: DeclaredTable) -> list[Any]:
    """Distribute rows to parties: by the column `party`, else as [data] says; one party by default."""
    if table.party is not None:
        return made.parts()
    agents = table.agents if "agents" in table.model_fields_set else 1
    return made.parts(agents, table.by, table.seed, skew=table.skew, alpha=table.alpha, sizes=table.sizes)


def _enough(train: DeclaredTable) -> DeclaredTable:
    if len(train) < FEWEST:
        raise ValueError(
            f"{train.source} has {len(train)} rows to train on: at least {FEWEST} are needed to hide one among them"
        )
    return train


def _told(made: DeclaredTable, words: str) -> DeclaredTable:
    return replace(made, facts=replace(made.facts, words=(*made.facts.words, words)))
