"""The experiments of the BAMBI paper: ``python -m sottovoce.experiments.bambi NAME [NAME ...]``.

Each name prints a table. Run files describe records that parties hold row by row; these are split by columns.

    table1, table2                   test accuracy on MNIST and Fashion-MNIST against the whole run's label epsilon
    inner, directions, batch, parties    sweeps of N, Q, B and the number of parties on MNIST
    twin                             federated and non-federated runs side by side
    20news, a9a                      one coefficient a party, sparse and dense
    split                            MNIST with the paper's split: 50 000 rows below, 10 000 above

What is not the paper's here: both levels read all training rows unless said otherwise (memoised labels allow it at no
cost), optimisers are AdamW, and at epsilon 1 the labels are drawn in stages. Test records are public by declaration.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import optax
import scipy.sparse as sp

from sottovoce import data
from sottovoce.methods.bambi import Bambi
from sottovoce.privacy.labels import LabelGate, Labels, Memoised, Open
from sottovoce.problems.columns import Columns, split_columns
from sottovoce.problems.tasks.vertical import hyper_parameters, hyper_representation, judged_on
from sottovoce.problems.vertical import Vertical
from sottovoce.runtime.result import Result
from sottovoce.runtime.stages import run_in_stages
from sottovoce.runtime.vertical import run_vertical


@dataclass(frozen=True)
class Setting:
    """One run of the hyper-representation experiment."""

    name: str = "mnist"
    epsilon: float | None = None
    inner_steps: int = 1
    directions: int = 1
    batch: int = 256
    passes: float = 12.0  # over the upper level's rows
    rate: float = 2e-3
    decay: float = 1e-4
    parties: int = 4
    hidden: tuple[int, ...] = (128, 64, 32)
    upper: float | None = None  # the share of rows for the upper level alone; None: all rows at both levels
    stages: int = 1
    members: int = 1
    in_one_place: bool = False
    seed: int = 0

    @property
    def gate(self) -> LabelGate:
        """True labels, or randomised ones."""
        return Open() if self.epsilon is None else Memoised(self.epsilon)


@dataclass(frozen=True)
class Outcome:
    """What one run gave."""

    accuracy: float
    epsilon: float
    seconds: float
    megabytes: float


def accuracy(setting: Setting) -> Outcome:
    """Train, and measure on the test records."""
    began = time.monotonic()
    train, test = _pictures(setting.name)
    columns = Columns(split_columns(train["features"], setting.parties))
    columns = columns if setting.upper is None else columns.levels(setting.upper)
    blocks = split_columns(test["features"], setting.parties)
    widths = [block.shape[1] for block in blocks]
    labels = Labels(train["label"], classes=10, seed=setting.seed)
    steps = int(setting.passes * len(columns.upper) / setting.stages / setting.batch) if setting.stages == 1 else 0
    steps = steps or int(setting.passes * len(columns.upper) / setting.batch)
    method = Bambi(
        setting.inner_steps,
        setting.batch,
        rate_x=_adamw(setting, steps),
        rate_y=_adamw(setting, steps * setting.inner_steps),
        labels=setting.gate,
        directions=setting.directions,
    )
    problems = [
        hyper_representation(widths, 10, setting.hidden, penalty=0.0, seed=setting.seed + member)
        for member in range(setting.members)
    ]
    if setting.stages > 1 or setting.members > 1:
        found = run_in_stages(
            problems, columns, labels, method, steps=steps, stages=setting.stages, seed=setting.seed, every=steps
        )
        guessed = found.probabilities(Columns(blocks)).argmax(axis=1)
        right, last = float(np.mean(guessed == test["label"])), found.members[-1]
    else:
        evaluate = judged_on(problems[0], blocks, test["label"])
        last = run_vertical(
            problems[0],
            columns,
            labels,
            method,
            steps=steps,
            seed=setting.seed,
            evaluate=evaluate,
            every=steps,
            in_one_place=setting.in_one_place,
        )
        right = float(last.history["accuracy"][-1])
    traffic = float(last.history["bytes up"][-1]) * setting.stages * setting.members / 1e6
    return Outcome(right, last.privacy.epsilon, time.monotonic() - began, traffic)
