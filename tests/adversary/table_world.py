"""An exact adversary for tiny tables of columns: it finds label stores and accounts that state too little.

Coins. Every coin that a label store tosses is a branch. All branches are walked, with exact probabilities, for every
list of labels. This gives the law of all that leaves the store, and the largest ratio of two lists that differ in one
label is the truth, which the store's own epsilon must reach.

Keys. Noise at each use comes from keys. Who sees two uses under one key and of two people can subtract them, so nothing
is hidden; uses under different keys add up. The adversary lists, for several runs of one store, which key meets whom.
"""

import functools
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

import sottovoce as sv
from sottovoce.accounting.table import schedule
from sottovoce.privacy import label_store
from sottovoce.privacy.labels import Fresh, LabelGate, Memoised, Open, Printed
from sottovoce.problems.tasks.vertical import hyper_parameters
from sottovoce.runtime.lone_party import LoneParty

TIES = 7  # what breaks ties among groups of classes: public, so the law is taken given it
GRID = 2  # steps per label in a noisy count: fewer than the store's, so that they can be listed
FAR = 24  # steps of noise that are listed
NEAR = 6  # steps of a noisy count that are told apart: beyond, it is known on which side alone


class _Uniform(int):
    """A uniform whole number below `sides`, of which only one comparison is asked: it branches there."""

    def __new__(cls, coins: "Branches", sides: int) -> "_Uniform":
        made = super().__new__(cls, 0)
        made.coins, made.sides = coins, sides
        return made

    def __lt__(self, threshold: int) -> bool:  # type: ignore[override]
        yes = Fraction(int(threshold), self.sides)
        return self.coins.pick([yes, 1 - yes]) == 0


class Branches(random.Random):
    """Coins that follow a script, and note which branches there were behind its end."""

    def __init__(self, script: Sequence[int] = ()) -> None:
        super().__init__(0)
        self.script, self.taken, self.chance = list(script), list[tuple[int, int]](), Fraction(1)

    def pick(self, chances: Sequence[Fraction]) -> int:
        at = len(self.taken)
        found = self.script[at] if at < len(self.script) else 0
        self.taken.append((found, len(chances)))
        self.chance *= chances[found]
        return found

    def randrange(self, sides: int, *_: Any) -> int:  # type: ignore[override]
        return _Uniform(self, sides) if sides > 100 else self.pick([Fraction(1, sides)] * sides)

    def getrandbits(self, bits: int) -> int:
        return TIES

    def laplace(self, scale: int) -> int:
        return self.pick(_laplace(scale)) - FAR


@functools.cache
def _laplace(scale: int) -> list[Fraction]:
    weights = [Fraction(math.exp(-abs(z) / scale)) for z in range(-FAR, FAR + 1)]
    return [weight / sum(weights) for weight in weights]


def walk(play: Callable[[Branches], Any]) -> Counter[Any]:
    """The law of what `play` returns."""
    law, script = Counter[Any](), list[int]()
    while True:
        coins = Branches(script)
        law[play(coins)] += coins.chance  # type: ignore[assignment]
        taken = coins.taken
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return law
        script = [found for found, _ in taken[:-1]] + [taken[-1][0] + 1]


Step = tuple[Any, ...]  # what is asked of a store: a name and its arguments


@dataclass(frozen=True)
class Store:
    """One configuration: a store of `n` labels, and what is asked of it, one thing after the other."""

    steps: tuple[Step, ...]
    n: int = 2
    classes: int = 2
    path: Path | None = None  # kept in a file, and opened anew before each step

    def opened(self, label: Sequence[int], again: Any = None, **how: Any) -> Any:
        if again is not None and self.path is None:
            return again
        return sv.Labels(np.array(label), self.classes, path=self.path, ids=np.arange(self.n), **how)

    def play(self, label: Sequence[int], coins: Branches) -> tuple[Any, float]:
        """What leaves the store, and what it says that it cost."""
        if self.path is not None:
            for file in (self.path, self.path.with_name(self.path.name + ".head")):
                file.unlink(missing_ok=True)
            label_store._SEEN.clear()
        told, labels = list[Any](), None
        with _tossing(coins):
            for name, *given in self.steps:
                labels = self.opened(label, labels)
                told += list(ASKED[name](labels, *given))
            labels = self.opened(label, labels)
        return tuple(told), float(labels.epsilon())

    @property
    def slack(self) -> float:
        """How far the truth may be off: the far ends of a noisy count are not listed."""
        return 1e-3 if any(name == "accuracy" for name, *_ in self.steps) else 1e-9

    def truth(self) -> tuple[float, float]:
        """The epsilon that is true, and the smallest that is stated."""
        laws, said = {}, set[float]()
        for label in itertools.product(range(self.classes), repeat=self.n):

            def played(coins: Branches, label: Sequence[int] = label) -> Any:
                told, epsilon = self.play(label, coins)
                said.add(epsilon)
                return told

            laws[label] = walk(played)
        return max(_apart(laws[one], laws[other]) for one, other in _neighbours(laws)), min(said)


def _neighbours(laws: Any) -> Iterator[tuple[Any, Any]]:
    for one, other in itertools.permutations(laws, 2):
        if sum(a != b for a, b in zip(one, other)) == 1:
            yield one, other


def _apart(p: Counter[Any], q: Counter[Any]) -> float:
    if p.keys() - {told for told in p if q[told]}:
        return math.inf
    return max(math.log(chance / q[told]) for told, chance in p.items())


def _tossing(coins: Branches) -> Any:
    import contextlib

    @contextlib.contextmanager
    def tossed() -> Iterator[None]:
        kept = label_store.random, label_store.LAWS, label_store._FINE
        noise = {"laplace": SimpleNamespace(exact=lambda scale, size, source: np.array([source.laplace(scale)]))}
        shim = SimpleNamespace(SystemRandom=lambda: coins, Random=random.Random)
        label_store.random, label_store.LAWS, label_store._FINE = shim, noise, GRID  # type: ignore[assignment]
        try:
            yield
        finally:
            label_store.random, label_store.LAWS, label_store._FINE = kept  # type: ignore[misc]

    return tossed()


def _seen(memo: Any) -> Iterator[Any]:
    yield memo.observed.tobytes(), memo.answers.tobytes(), memo.likelihood.tobytes()


def _gate(labels: Any, gate: LabelGate) -> Iterator[Any]:
    yield gate.vectors(labels).tobytes()


def _staged(labels: Any, epsilon: float, first: Sequence[int]) -> Iterator[Any]:
    """Two stages: the prior of the second part is learned from what was answered in the first."""
    uniform = np.full((len(first), labels.classes), 1 / labels.classes)
    memo = labels.memo(epsilon, first, uniform)
    yield from _seen(memo)
    rest = np.setdiff1d(np.arange(len(labels)), first)
    learned = memo.likelihood[list(first)].prod(axis=0) + 0.01
    yield from _seen(labels.memo(epsilon, rest, np.tile(learned / learned.sum(), (len(rest), 1))))


def _accuracy(labels: Any, epsilon: float) -> Iterator[Any]:
    found = round(labels.accuracy(np.zeros(len(labels), int), epsilon) * GRID * len(labels))
    yield max(-NEAR, min(NEAR, found))


ASKED: dict[str, Callable[..., Iterator[Any]]] = {
    "memo": lambda labels, *given: _seen(labels.memo(*given)),
    "redraw": lambda labels, *given: _seen(labels.redraw(*given)),
    "gate": _gate,
    "stages": _staged,
    "accuracy": _accuracy,
}
UNEVEN = np.array([[0.7, 0.2, 0.1], [0.2, 0.2, 0.6], [0.34, 0.33, 0.33]])
SINGLE: tuple[Step, ...] = (
    ("memo", 1.0),
    ("memo", 0.7, (0,)),
    ("memo", 1.0, (1,)),
    ("redraw", 1.0),
    ("redraw", 1.0, (0,)),
    ("gate", Memoised(1.0)),
    ("gate", Memoised(0.7, "debiased")),
    ("stages", 1.0, (0,)),
    ("stages", 0.7, (1,)),
    ("accuracy", 1.0),
)


# Noise at each use.


@dataclass(frozen=True)
class Run:
    """A run by the label holder alone, whose noise has a secret key: which rows it reads, and by which public seed."""

    seed: int = 0
    places: tuple[int, ...] = (0, 1, 2, 3)
    secret: bytes = b"s" * 16
    gate: LabelGate = field(default_factory=lambda: Fresh(2.0))
    inner: int = 1
    upper: tuple[int, ...] | None = None
    steps: int = 1

    def party(self, labels: Any) -> LoneParty:
        method = sv.methods.Bambi(inner_steps=self.inner, batch=2, rate_x=0.1, rate_y=0.1, labels=self.gate)
        upper = None if self.upper is None else np.array(self.upper)
        columns = sv.Columns([np.ones((len(self.places), 1), np.float32)], upper=upper)
        return LoneParty.of(
            0, columns, problem=hyper_parameters([1, 1]), method=method, classes=labels.classes, active=0,
            steps=self.steps, seed=self.seed, labels=labels, places=np.array(self.places), secret=self.secret,
        )  # fmt: skip

    def uses(self, party: LoneParty, root: bytes) -> Iterator[tuple[Any, int]]:
        """Which noise meets which person's label."""
        account = party.account
        for t in range(self.steps):
            batches = schedule(account.columns, account.method, account.seed, t, 1)
            for number, crossing in enumerate(account.trace.crossings):
                if crossing.level is None:
                    continue
                listed = batches[crossing.level][0]
                each = crossing.times // len(listed)
                copies = 1 if getattr(self.gate, "shared", False) else crossing.copies
                for turn, copy in itertools.product(range(crossing.times), range(copies)):
                    for place, row in enumerate(listed[turn // each]):
                        yield (root, repr(self.gate), t, number, turn, copy, place), self.places[row]


def of_runs(runs: Sequence[Run], label: Sequence[int], classes: int = 2) -> tuple[float, float]:
    """The true epsilon of several runs of one store, and what the store states."""
    labels = sv.Labels(np.array(label), classes)
    met: dict[Any, set[int]] = {}
    cost: dict[Any, float] = {}
    for run in runs:
        party = run.party(labels)
        root = np.asarray(jax.random.key_data(party.desk.root)).tobytes()
        if isinstance(run.gate, Open) or (isinstance(run.gate, Printed) and classes > 2):
            return math.inf, float(labels.epsilon())
        for noise, person in run.uses(party, root):
            met.setdefault(noise, set()).add(person)
            cost[noise] = (1 if classes == 2 else 2) / run.gate.scale  # type: ignore[attr-defined]
    if any(len(people) > 1 for people in met.values()):
        return math.inf, float(labels.epsilon())  # one noise for two people: it can be subtracted
    people = {person for held in met.values() for person in held}
    true = max(sum(cost[noise] for noise, held in met.items() if person in held) for person in people)
    return true, float(labels.epsilon())


BASE = Run()
ROWS: tuple[Run, ...] = (
    BASE,
    replace(BASE, seed=1),
    replace(BASE, places=(3, 2, 1, 0)),
    replace(BASE, places=(4, 5, 6, 7)),
    replace(BASE, places=(0, 1, 4, 5)),
    replace(BASE, upper=(0, 1)),
    replace(BASE, upper=(2, 3)),
    replace(BASE, steps=2),
    replace(BASE, secret=b"t" * 16),
)
CHANGES: tuple[Run, ...] = (
    *ROWS,
    replace(BASE, gate=Fresh(3.0)),
    replace(BASE, gate=Fresh(2.0, shared=True)),
    replace(BASE, gate=Printed(2.0)),
    replace(BASE, inner=2),
)
