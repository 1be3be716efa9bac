"""The experiments of the BAMBI paper: ``python -m sottovoce.experiments.bambi NAME [NAME ...] [--quick]``.

Each name prints a table, line by line as runs end. (Run files are for records that parties hold row by row.)

    table1, table2    test accuracy on MNIST and Fashion-MNIST against the label epsilon of the whole run
    inner, directions, batch, parties, heads    sweeps of N, Q, B, the number of parties, the heads' rate, on MNIST
    split             MNIST with the paper's rows: 50 000 below, 10 000 above
    twin              federated and non-federated runs side by side, on MNIST
    20news, a9a       one coefficient a party: 130 107 sparse columns, 123 dense ones

What is not the paper's: both levels read all training rows unless said otherwise (with memoised labels that costs
nothing), optimisers are AdamW, at epsilon 1 labels are drawn in stages and models averaged. Test records are public.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
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
from sottovoce.runtime.result import Result
from sottovoce.runtime.stages import run_in_stages
from sottovoce.runtime.vertical import run_vertical


@dataclass(frozen=True)
class Pictures:
    """A hyper-representation run on pictures, split into strips of rows."""

    data: str = "mnist"
    epsilon: float | None = None
    parties: int = 4
    hidden: tuple[int, ...] = (128, 64, 32)
    inner_steps: int = 1
    directions: int = 1
    batch: int = 256
    passes: float = 12.0  # over the rows of the upper level
    rate: float = 2e-3
    head_rate: float = 1e-4  # slow heads: the noise of the zeroth-order term grows with it
    decay: float = 1e-4
    upper: float | None = None  # the share of rows above, the others below; None: all rows at both levels
    stages: int = 1
    members: int = 1
    in_one_place: bool = False
    seed: int = 0

    def run(self) -> "Outcome":
        """Train, and measure on the test records."""
        train, test = _pictures(self.data)
        columns = Columns(split_columns(train["features"], self.parties))
        columns = columns if self.upper is None else columns.levels(self.upper)
        blocks = split_columns(test["features"], self.parties)
        steps = max(1, int(self.passes * len(columns.upper) / self.batch))
        method = Bambi(
            self.inner_steps,
            self.batch,
            rate_x=_adamw(self.rate, self.decay, steps),
            rate_y=_adamw(self.head_rate, self.decay, steps * self.inner_steps),
            labels=self._gate(),
            directions=self.directions,
        )
        problems = [
            hyper_representation([b.shape[1] for b in blocks], 10, self.hidden, penalty=0.0, seed=self.seed + member)
            for member in range(self.members)
        ]
        labels = Labels(train["label"], classes=10, seed=self.seed)
        began = time.monotonic()
        if self.stages == self.members == 1:
            judge = judged_on(problems[0], blocks, test["label"])
            options: dict[str, Any] = {"seed": self.seed, "every": steps, "in_one_place": self.in_one_place}
            found = run_vertical(problems[0], columns, labels, method, steps=steps, evaluate=judge, **options)
            return _outcome(found, float(found.history["accuracy"][-1]), began)
        staged = run_in_stages(
            problems, columns, labels, method, steps=steps, stages=self.stages, seed=self.seed, every=steps
        )
        guessed = staged.probabilities(Columns(blocks)).argmax(axis=1)
        runs = self.stages * self.members
        return _outcome(staged.members[-1], float(np.mean(guessed == test["label"])), began, runs)

    def _gate(self) -> LabelGate:
        return Open() if self.epsilon is None else Memoised(self.epsilon)


@dataclass(frozen=True)
class Coefficients:
    """Logistic regression with one penalty coefficient a party."""

    data: str = "20news"
    epsilon: float | None = None
    parties: int = 4
    inner_steps: int = 20
    directions: int = 2
    batch: int = 500
    steps: int = 30
    rate: float = 0.1
    head_rate: float = 0.02
    in_one_place: bool = False
    seed: int = 0

    def run(self) -> "Outcome":
        """Train on 40 % of the rows below and 40 % above, and measure on the other 20 %."""
        features, label = {"20news": _news, "a9a": _adult}[self.data]()
        order = np.random.default_rng(self.seed).permutation(len(label))
        cut = int(0.4 * len(label))
        train, test = order[: 2 * cut], order[2 * cut :]
        blocks = [_unit_rows(block) for block in split_columns(features, self.parties)]
        columns = Columns([b[train] for b in blocks], lower=np.arange(cut), upper=np.arange(cut, 2 * cut))
        problem = hyper_parameters([block.shape[1] for block in blocks])
        gate = Open() if self.epsilon is None else Memoised(self.epsilon)
        method = Bambi(
            self.inner_steps,
            self.batch,
            rate_x=optax.adam(self.rate),
            rate_y=optax.adam(self.head_rate),
            labels=gate,
            directions=self.directions,
        )
        began = time.monotonic()
        found = run_vertical(
            problem,
            columns,
            Labels(label[train], classes=2, seed=self.seed),
            method,
            steps=self.steps,
            seed=self.seed,
            evaluate=judged_on(problem, [b[test] for b in blocks], label[test]),
            every=self.steps,
            in_one_place=self.in_one_place,
        )
        return _outcome(found, float(found.history["accuracy"][-1]), began)


@dataclass(frozen=True)
class Outcome:
    """What a run gave: test accuracy, the label epsilon of all of it, seconds, and megabytes sent up by the parties."""

    accuracy: float
    epsilon: float
    seconds: float
    megabytes: float


Row = tuple[str, Pictures | Coefficients, float | None]  # what it is, the run, and the paper's accuracy in per cent

_AT_ONE: dict[str, Any] = {"stages": 3, "members": 3, "decay": 1.0, "passes": 10.0}
_PRINTED = {"mnist": (97.59, 94.35, 94.23, 93.60), "fashion-mnist": (85.52, 85.21, 85.31, 84.62)}


def _against_epsilon(name: str) -> list[Row]:
    plain = Pictures(name)
    runs = [plain, replace(plain, epsilon=10.0), replace(plain, epsilon=5.0), replace(plain, epsilon=1.0, **_AT_ONE)]
    return [
        ("no privacy" if run.epsilon is None else f"epsilon {run.epsilon:g}", run, printed)
        for run, printed in zip(runs, _PRINTED[name])
    ]


def _sweep(field: str, values: Sequence[Any], passes: float = 3.0) -> list[Row]:
    return [(f"{field} {value}", replace(Pictures(passes=passes), **{field: value}), None) for value in values]


def _both(run: Pictures | Coefficients) -> list[Row]:
    return [("federated", run, None), ("in one place", replace(run, in_one_place=True), None)]


EXPERIMENTS: dict[str, Callable[[], list[Row]]] = {
    "table1": lambda: _against_epsilon("mnist"),
    "table2": lambda: _against_epsilon("fashion-mnist"),
    "inner": lambda: _sweep("inner_steps", (1, 4, 16)),
    "directions": lambda: _sweep("directions", (1, 4, 16)),
    "batch": lambda: _sweep("batch", (64, 256, 1000)),
    "parties": lambda: _sweep("parties", (1, 2, 4, 7)),
    "split": lambda: [("50 000 below, 10 000 above", Pictures(upper=1 / 6, passes=60.0), 97.59)],
    "heads": lambda: _sweep("head_rate", (1e-4, 5e-4, 2e-3), passes=1.0),
    "twin": lambda: _both(Pictures(passes=1.0)),
    "20news": lambda: [*_both(Coefficients()), *_private(Coefficients())],
    "a9a": lambda: [*_both(Coefficients("a9a")), *_private(Coefficients("a9a"))],
}


def _private(run: Coefficients) -> list[Row]:
    return [(f"epsilon {epsilon:g}", replace(run, epsilon=epsilon), None) for epsilon in (5.0, 1.0)]


def lines(name: str, quick: bool = False) -> Iterator[str]:
    """The table of an experiment; `quick` does a tenth of the passes.

    >>> next(lines("20news"))
    '20news'
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"there is no experiment {name!r}; choose one of {', '.join(EXPERIMENTS)}")
    yield name
    for what, run, printed in EXPERIMENTS[name]():
        if quick:
            few = {"passes": run.passes / 10} if isinstance(run, Pictures) else {"steps": max(1, run.steps // 10)}
            run = replace(run, **few)
        found = run.run()
        paper = "" if printed is None else f", the paper prints {printed:.2f} %"
        yield (
            f"  {what}: {100 * found.accuracy:.2f} % at label epsilon {found.epsilon:g}{paper} "
            f"({found.seconds:.0f} s, {found.megabytes:.0f} MB up)"
        )


def main() -> None:
    """Print the tables that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=list(EXPERIMENTS), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="a tenth of the passes")
    arguments = parser.parse_args()
    for name in arguments.names:
        for line in lines(name, arguments.quick):
            print(line, flush=True)


def _outcome(found: Result, accuracy: float, began: float, runs: int = 1) -> Outcome:
    megabytes = runs * float(found.history["bytes up"][-1]) / 1e6
    return Outcome(accuracy, found.privacy.epsilon, time.monotonic() - began, megabytes)


def _adamw(rate: float, decay: float, steps: int) -> optax.GradientTransformation:
    return optax.adamw(optax.cosine_decay_schedule(rate, steps), weight_decay=decay)


@cache
def _pictures(name: str) -> tuple[Any, Any]:
    return data.load(name)


@cache
def _news() -> tuple[Any, np.ndarray]:
    """Logarithms of word counts; class 1 are the groups comp.*, rec.* and misc.forsale (numbers 1 to 10)."""
    train, test = data.load("20news")
    counts = sp.csr_array(sp.vstack([train["features"], test["features"]]), dtype=np.float32)
    counts.data = np.log1p(counts.data)
    group = np.concatenate([train["label"], test["label"]])
    return counts, ((group >= 1) & (group <= 10)).astype(np.int32)


@cache
def _adult() -> tuple[Any, np.ndarray]:
    train, test = data.load("a9a")
    features = [part.toarray() if sp.issparse(part) else part for part in (train["features"], test["features"])]
    return np.concatenate(features), np.concatenate([train["label"], test["label"]])


def _unit_rows(block: Any) -> Any:
    """Each record's share of a block, scaled to norm 1: a map of one record at one party."""
    if sp.issparse(block):
        norms = np.sqrt(block.multiply(block).sum(axis=1))
        return sp.csr_array(sp.diags_array(1 / np.maximum(norms, 1e-9)) @ block)
    return block / np.maximum(np.linalg.norm(block, axis=1, keepdims=True), 1e-9)


if __name__ == "__main__":
    main()
