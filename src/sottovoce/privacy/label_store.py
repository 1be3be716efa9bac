"""Store what the label holder has: the true labels, what has been drawn from them, and what that has cost each row.

Draws are kept with the data: a second run, another seed or a sweep gets the labels that were drawn before. For example,
ten runs with `Memoised(1.0)` see the same noisy labels, and cost epsilon 1 together. A redraw is possible, and adds its
epsilon. With a path, draws and costs survive the process; the file holds no true label.

A store that was begun with a seed is a simulation for good: its file says so, and is opened with this seed only. One
that was begun without a seed is opened without one.

Use one store per set of labels: what two stores spend on the same labels is added up by neither. A second store of the
same labels in the same folder, or in the same process, is refused. `sottovoce.privacy.label_file` says which copies of
a store's file are refused. A copy on another machine is not noticed, nor are a store and its head that were put back
from an older copy while no process lives that has seen more: keep one, where only the label holder can write.
"""

import math
import random
import secrets
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import wraps
from hashlib import sha256
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from sottovoce.files import Here, locked, traces
from sottovoce.privacy import accountant, label_file
from sottovoce.privacy.label_values import NEW, PAID, Memo, checked_ids, checked_labels, checked_seed, rows_of
from sottovoce.privacy.ledger import Budget, BudgetExceeded
from sottovoce.privacy.ledger_line import digest
from sottovoce.privacy.mechanisms import Epsilon, Mechanism, check_delta, check_epsilon
from sottovoce.privacy.noise import LAWS
from sottovoce.privacy.response import Response, groups

_FINE = 2**16  # grid steps per label in the noise of a count
_SMALLEST = 2.0**-30  # epsilon of a noisy count
_ALONE = threading.RLock()
_SEEN: dict[Path, tuple[dict[Mechanism, np.ndarray], set[str]]] = {}  # costs and runs that this process saw, by path
_STORES: "weakref.WeakSet[Labels]" = weakref.WeakSet()  # of this process: a second one of the same labels is found


P = ParamSpec("P")
R = TypeVar("R")


def _alone(function: Callable[P, R]) -> Callable[P, R]:
    """Let one thread at a time look up, draw and pay: else two would draw the same labels, and one would pay."""

    @wraps(function)
    def one_at_a_time(*args: P.args, **kwargs: P.kwargs) -> R:
        with _ALONE:
            return function(*args, **kwargs)

    return one_at_a_time


class Labels:
    """Hold the labels of a table's rows, which only the label gate reads.

    Args:
        label: whole numbers from 0 to classes - 1.
        classes: the number of classes: it is declared, not counted in the data.
        path: a file for draws and costs, to be kept with the data; read if it is there.
        ids: the rows' ids, which bind the file to these rows in this order.
        seed: for simulation only, and the same whenever `path` is opened. Without a seed, coins come from the operating
            system.
        budget: the most that may be released about any label: what would exceed it is refused before it is drawn.

    >>> labels = Labels(np.arange(100) % 10, classes=10, seed=0)
    >>> seen = labels.memo(1.0).observed
    >>> bool((labels.memo(1.0).observed == seen).all()), float(labels.epsilon())    # drawn once
    (True, 1.0)
    >>> _ = labels.redraw(1.0)
    >>> float(labels.epsilon())
    2.0
    >>> Labels(np.arange(100) % 10, classes=10, budget=Budget(1.0, 0.0)).memo(1.5)
    Traceback (most recent call last):
    ...
    sottovoce.privacy.ledger.BudgetExceeded: a label would reach epsilon 1.5 of a budget of 1 ...
    """

    def __init__(
        self,
        label: Any,
        classes: int,
        *,
        path: str | Path | None = None,
        ids: Sequence[Any] | np.ndarray | None = None,
        seed: int | None = None,
        budget: Budget | None = None,
    ) -> None:
        if not (budget is None or isinstance(budget, Budget)):
            raise TypeError(f"budget is {budget!r}: give sv.Budget(epsilon, delta)")
        if budget is not None and budget.sense != "replace-one":
            raise ValueError("a label is replaced, never removed: give sv.Budget(epsilon, delta) with replace-one")
        self.budget = None if budget is None else budget.under("replace-one")
        self._seen: str | None = None  # the file's digest, as this store knows it
        self._label = checked_labels(label, classes)
        self.classes, self.path = classes, Path(path).resolve() if path is not None else None
        self._seed, self._here = checked_seed(seed), Here()
        self._traces: Any = None  # of the file and its head, when they were read or written last
        self._rows = sha256(repr((len(self._label), checked_ids(ids, len(self._label)))).encode())
        self._salt = secrets.token_hex(16)
        self._memos: dict[float, Memo] = {}
        self._costs: dict[Mechanism, np.ndarray] = {}
        self._runs: set[str] = set()  # runs that have paid; a run is named after the noise that it draws
        if self.path is not None:
            with locked(self.path):
                self._read(self.path)
            self._refuse_second(self.path)
            _STORES.add(self)

    def __len__(self) -> int:
        return len(self._label)

    def __copy__(self) -> "Labels":
        """Return the store itself: what a copy spends would be lost."""
        return self

    def __deepcopy__(self, memo: object) -> "Labels":
        """Return the store itself."""
        return self

    def __reduce__(self) -> Any:
        """Refuse to be sent to another process: the true labels stay here."""
        raise TypeError("a label store cannot go to another process: open it there, sv.Labels(..., path=path)")

    @property
    def simulated(self) -> bool:
        """Say whether a seed draws, and drew, all of this store's coins."""
        return self._seed is not None

    @property
    def identity(self) -> tuple[str, str]:
        """Return the digest of whose rows it has in which order, and a name that no other store has."""
        return self._rows.hexdigest(), self._salt

    def _coins(self, what: str, costs: Mapping[Mechanism, np.ndarray]) -> random.Random:
        """Return the coins of one draw, whose `costs` include it: no two draws of a seed share them.

        Not even over a restart, because costs are stored. All that is public and says which draw it is belongs to the
        coins; the labels do not, so that one does not move the coins of others.
        """
        if self._seed is None:
            return random.SystemRandom()
        spent = sorted((m.pure, m.laplace, int(counts.sum())) for m, counts in costs.items())
        return random.Random(repr((self._seed, what, spent)))

    @_alone
    def memo(self, epsilon: float, rows: Any = None, prior: np.ndarray | None = None) -> Memo:
        """Return the labels drawn at this epsilon; charge, then draw those of `rows` (default: all) that are missing.

        `prior` (class probabilities, one row per entry of `rows`) lets a label be randomised among groups of classes,
        chosen so that the answer tells most (`sottovoce.privacy.response`). It may come from public features and from
        labels drawn earlier, never from true ones.
        """
        chosen, epsilon = rows_of(rows, len(self)), check_epsilon(epsilon)
        if prior is not None and np.shape(prior) != (len(chosen), self.classes):
            raise ValueError(f"the prior has shape {np.shape(prior)}, expected {(len(chosen), self.classes)}")
        if prior is not None and not (np.isfinite(prior).all() and (np.asarray(prior) >= 0).all()):
            raise ValueError("the prior has entries that are negative or not finite: give class probabilities")
        self.pay(epsilon, chosen)
        memo = self._drawn(epsilon)
        missing = memo.observed[chosen] == PAID
        if not missing.any():
            return memo
        new = chosen[missing]
        left = np.setdiff1d(np.flatnonzero(memo.observed == PAID), new)  # paid for, and drawn another time
        others = f" but for {sha256(left.tobytes()).hexdigest()}" if len(left) else ""
        coins = self._coins(f"memo {epsilon!r}{others}", self._costs)
        if prior is None:
            number, count = np.tile(np.arange(self.classes), (len(new), 1)), np.full(len(new), self.classes)
        else:
            number, count = groups(np.asarray(prior)[missing], epsilon, np.random.default_rng(coins.getrandbits(64)))
        responses = {int(k): Response(epsilon, int(k)) for k in np.unique(count)}
        truth = number[np.arange(len(new)), self._label[new]].tolist()
        told = np.array([responses[k].answer(place, coins) for k, place in zip(count.tolist(), truth)])
        honest, lie = (
            np.array([float(getattr(responses[k], chance)) for k in count.tolist()])[:, None]
            for chance in ("truth", "other")
        )
        observed, answers, likelihood = memo.observed.copy(), memo.answers.copy(), memo.likelihood.copy()
        observed[new], answers[new] = told, count
        likelihood[new] = np.where(number == told[:, None], honest, lie)
        made = Memo(epsilon, observed, answers, likelihood)
        self._keep(self._costs, {**self._memos, epsilon: made}, self._runs)  # kept before anybody sees it
        return made

    @_alone
    def pay(self, epsilon: float, rows: Any = None) -> None:
        """Charge the draw of those of `rows` (default: all) that nobody has paid for at this epsilon, and draw nothing.

        What was paid for stays so: after a kill before the draw, `memo` draws and charges nothing more.

        >>> labels = Labels([0, 1], classes=2, seed=0)
        >>> labels.pay(1.0)
        >>> memo = labels.memo(1.0)
        >>> float(labels.epsilon())
        1.0
        """
        chosen, epsilon = rows_of(rows, len(self)), check_epsilon(epsilon)
        memo = self._drawn(epsilon)
        new = chosen[memo.observed[chosen] == NEW]
        if len(new):
            costs = self._charged({Mechanism(pure=epsilon): np.bincount(new, minlength=len(self))})
            observed = memo.observed.copy()
            observed[new] = PAID
            self._keep(costs, {**self._memos, epsilon: replace(memo, observed=observed)}, self._runs)

    def _drawn(self, epsilon: float) -> Memo:
        n = len(self)
        return self._memos.get(epsilon) or Memo(
            epsilon, np.full(n, NEW, np.int32), np.zeros(n, np.int32), np.ones((n, self.classes), np.float32)
        )

    @_alone
    def redraw(self, epsilon: float, rows: Any = None) -> Memo:
        """Draw labels again that were drawn before; the cost is added to what was spent."""
        epsilon, chosen = check_epsilon(epsilon), rows_of(rows, len(self))
        old = self._memos.get(epsilon)
        if old is None:
            return self.memo(epsilon, rows)
        forgotten = np.isin(np.arange(len(self)), chosen)
        self._memos[epsilon] = Memo(epsilon, np.where(forgotten, NEW, old.observed), old.answers, old.likelihood)
        try:
            return self.memo(epsilon, rows)
        except BaseException:  # refused or interrupted: what was drawn before is kept
            self._memos[epsilon] = old
            raise

    @_alone
    def charge(self, uses: Mapping[Mechanism, Any], run: str | None = None) -> None:
        """Record that each mechanism will be applied to row i ``uses[mechanism][i]`` times, before any of them is.

        A `run` that is named pays once: a run that is resumed draws the same noise again, which tells nothing new.
        """
        if run is not None and run in self._runs:
            return
        self._keep(self._charged(uses), self._memos, self._runs | ({run} if run is not None else set()))

    def _charged(self, uses: Mapping[Mechanism, Any]) -> dict[Mechanism, np.ndarray]:
        """Return the costs with some uses more; refuse what is over the budget."""
        costs = dict(self._costs)
        for mechanism, given in uses.items():
            counts = np.asarray(given)
            if not isinstance(mechanism, Mechanism):
                raise TypeError(f"{mechanism!r} was charged: give a mapping from Mechanism to counts")
            if mechanism.gaussian or not isinstance(mechanism.amplification, accountant.NoAmplification):
                raise ValueError("labels are charged for Laplace and pure releases without amplification only")
            if counts.dtype.kind not in "biu" and not (counts.dtype.kind == "f" and (counts == counts.round()).all()):
                raise ValueError(f"counts are {counts.dtype}: give whole numbers, one per row")
            counts = counts.astype(np.int64)
            if counts.shape != (len(self),) or (counts < 0).any():
                raise ValueError(f"counts have shape {counts.shape}: give one number >= 0 for each of {len(self)} rows")
            costs[mechanism] = costs.get(mechanism, 0) + counts
        if self.budget is not None and (total := _most(costs, self.budget.delta)) > self.budget.epsilon:
            raise BudgetExceeded(
                f"a label would reach epsilon {float(total):.4g} of a budget of {self.budget.epsilon:g} (delta "
                f"{self.budget.delta:g}; {float(self.epsilon(self.budget.delta)):.4g} is spent already). Draw at a "
                "smaller epsilon, use labels that were drawn before, or raise the budget. Nothing was released."
            )
        return costs

    def _keep(self, costs: dict[Mechanism, np.ndarray], memos: dict[float, Memo], runs: set[str]) -> None:
        self._require_alone()
        before = self._costs, self._memos, self._runs
        self._costs, self._memos, self._runs = costs, memos, runs
        try:
            self._save()
        except BaseException:  # nothing was released, and nothing is handed out without a charge on the disk
            self._costs, self._memos, self._runs = before
            raise

    @_alone
    def epsilon(self, delta: float = 0.0) -> Epsilon:
        """Return epsilon of everything ever released about the label that was used most.

        All runs, all draws and all noisy counts are composed.
        """
        self._require_alone()
        return _most(self._costs, check_delta(delta))

    def accuracy(self, guessed: Any, epsilon: float, rows: Any = None) -> float:
        """Return the share of right guesses on true labels, with Laplace noise on the count, charged to these rows.

        Guarantee: one label moves the count by at most 1, because there is one guess per row and no row is listed
        twice. The noise is discrete and exact, on a grid of 1 / 65536.
        """
        if isinstance(epsilon, int | float) and not epsilon > 0:
            raise ValueError(f"epsilon is {epsilon}: give a positive number, or measure on public test labels")
        epsilon, chosen, guesses = check_epsilon(epsilon), rows_of(rows, len(self)), np.asarray(guessed)
        if not len(chosen):
            raise ValueError("rows are empty: there is nothing to measure")
        if guesses.shape != chosen.shape:
            raise ValueError(f"guesses have shape {guesses.shape}: give one class per row, shape {chosen.shape}")
        if not np.issubdtype(guesses.dtype, np.integer):
            raise TypeError(
                f"guesses are {guesses.dtype}: give classes as whole numbers, such as scores.argmax(axis=1)"
            )
        if epsilon < _SMALLEST:
            raise ValueError(f"epsilon is {epsilon:g}: below {_SMALLEST:.2g} the noise is a billion labels; give more")
        self.charge({Mechanism(pure=epsilon): np.bincount(chosen, minlength=len(self))})
        right = int(np.sum(guesses == self._label[chosen]))
        scale = math.ceil(_FINE / Fraction(epsilon))  # one label is _FINE grid steps
        noise = int(LAWS["laplace"].exact(scale, 1, self._coins(f"accuracy {epsilon!r}", self._costs))[0])
        return (right + noise / _FINE) / len(chosen)

    def open(self) -> np.ndarray:
        """Return one-hot true labels, for gates that hide them at each use, and for runs that guarantee nothing."""
        return np.eye(self.classes, dtype=np.float32)[self._label]

    def _require_alone(self) -> None:
        """Refuse to draw, to charge or to state a cost where another process knows, or would know, of more."""
        if self.path is None:
            return self._here.require("a label store in memory", "give it a file, sv.Labels(..., path=path)")
        if self._traces != traces(self.path, label_file.head_of(self.path)):
            with locked(self.path):
                label_file.require_same(self.path, self._seen)
        self._require_all_that_was_seen(self.path)

    def _save(self) -> None:
        if self.path is None:
            return
        arrays: dict[str, np.ndarray] = {}
        for number, memo in enumerate(self._memos.values()):
            for name in ("observed", "answers", "likelihood"):
                arrays[f"{name}{number}"] = getattr(memo, name)
        for number, counts in enumerate(self._costs.values()):
            arrays[f"counts{number}"] = counts
        facts = {
            "rows": self._rows.hexdigest(),
            "seed": self._seed,
            "memos": list(self._memos),
            "costs": [{"pure": m.pure, "laplace": m.laplace} for m in self._costs],
            "runs": sorted(self._runs),
        }
        mark = label_file.mark(self._salt, self._label, self._rows.hexdigest())
        data = label_file.packed(facts, arrays)
        self._seen = label_file.write(self.path, data, self._seen, {"salt": self._salt, "labels": mark})
        self._traces = traces(self.path, label_file.head_of(self.path))
        _SEEN[self.path] = self._costs, self._runs

    def _read(self, path: Path) -> None:
        head, data = label_file.read(path)
        self._traces = traces(path, label_file.head_of(path))
        if head is not None:
            self._salt = head["salt"]
        if data is not None:
            self._seen = digest(data)
            self._take(path, data)
        self._require_all_that_was_seen(path)
        if data is not None:
            _SEEN[path] = self._costs, self._runs

    def _require_all_that_was_seen(self, path: Path) -> None:
        known, runs = _SEEN.get(path, ({}, set()))
        if known is self._costs:
            return
        less = [m for m, counts in known.items() if m not in self._costs or (self._costs[m] < counts).any()]
        if less or not runs <= self._runs:
            raise ValueError(
                f"{path} holds less than this process has spent: it was removed, or replaced by an older copy. Put the "
                "newest copy back, with its head; or give another path, for labels of which nothing was released"
            )

    def _take(self, path: Path, data: bytes) -> None:
        facts, arrays = label_file.unpacked(path, data)
        if facts["rows"] != self._rows.hexdigest():
            raise ValueError(f"{path} belongs to other rows, or to these in another order: give the right file")
        if facts["seed"] != self._seed:
            seeds = facts["seed"], self._seed
            begun, given = ("without a seed" if seed is None else f"with seed {seed}" for seed in seeds)
            raise ValueError(
                f"{path} was begun {begun}, and is opened {given}: open it {begun}, or give another path. Labels that "
                "a seed drew are a simulation: whoever knows the seed finds the true ones"
            )
        self._runs = set(facts["runs"])
        for number, epsilon in enumerate(facts["memos"]):
            parts = [arrays[f"{name}{number}"] for name in ("observed", "answers", "likelihood")]
            self._memos[epsilon] = Memo(epsilon, *parts)
        for number, cost in enumerate(facts["costs"]):
            mechanism = Mechanism(pure=cost["pure"], laplace=tuple(cost["laplace"]))
            self._costs[mechanism] = arrays[f"counts{number}"]

    def _refuse_second(self, path: Path) -> None:
        """Refuse a store of labels that have another one: neither would know what the other spends."""
        here = path.resolve()
        same = [
            other.path
            for other in _STORES
            if other.path is not None
            and other.path.resolve() != here
            and other.path.exists()
            and other._rows.digest() == self._rows.digest()
            and np.array_equal(other._label, self._label)
        ]
        for head in sorted(path.parent.glob("*.head")) if path.parent.is_dir() else []:
            if head.resolve() == label_file.head_of(here):
                continue
            try:
                facts = label_file.read_head(head)
            except ValueError:
                continue  # the head of something else, such as a ledger
            mark = facts and label_file.mark(facts["salt"], self._label, self._rows.hexdigest())
            if facts is not None and facts["labels"] == mark:
                same.append(head.with_name(head.name.removesuffix(".head")))
        if same:
            raise ValueError(
                f"these labels have a store already, {same[0]}: give path={str(same[0])!r}, because two stores do not "
                "know what each other spends"
            )


def _most(costs: Mapping[Mechanism, np.ndarray], delta: float) -> Epsilon:
    """Return epsilon of the label that paid most; skip labels that paid no more than another for every mechanism."""
    if not costs:
        return accountant.epsilon([], delta, "replace-one")
    patterns = np.unique(np.stack(list(costs.values()), axis=1), axis=0)
    most = [p for p in patterns if not ((patterns >= p).all(axis=1) & (patterns > p).any(axis=1)).any()]
    return max(
        accountant.epsilon([(m, int(c)) for m, c in zip(costs, counts)], delta, "replace-one") for counts in most
    )
