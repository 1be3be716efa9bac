"""Store what the label holder has: the true labels, what has been drawn from them, and what that has cost each row.

Draws are kept with the data: a second run, another seed or a sweep gets the labels that were drawn before. For example,
ten runs with `Memoised(1.0)` see the same noisy labels, and cost epsilon 1 together. A redraw is possible, and adds its
epsilon. With a path, draws and costs survive the process; the file holds no true label.
"""

import io
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.files import write_atomically
from sottovoce.privacy import accountant
from sottovoce.privacy.ledger import Budget, BudgetExceeded, digest
from sottovoce.privacy.mechanisms import Epsilon, Mechanism
from sottovoce.privacy.response import ONE, Response, groups


@dataclass(frozen=True, eq=False)
class Memo:
    """Hold labels as they were drawn: per row what was `observed` (-1: not drawn yet), out of `answers` answers.

    What was observed is a class, or the number of a group of classes where a prior was given. `likelihood[i, b]` is the
    probability of what was observed in row i if b were true; it is 1 for all b where nothing is known.
    """

    epsilon: float
    observed: np.ndarray
    answers: np.ndarray
    likelihood: np.ndarray

    def debiased(self) -> np.ndarray:
        """Return one-hot vectors whose mean over the draw is the true one-hot vector.

        >>> memo = Labels(np.arange(4000) % 4, classes=4, seed=0).memo(1.0)
        >>> truth = np.eye(4)[np.arange(4000) % 4]
        >>> bool(np.abs((memo.debiased() - truth).reshape(-1, 4, 4).mean(axis=0)).max() < 0.15)
        True
        """
        classes = self.likelihood.shape[1]
        if not np.isin(self.answers, (0, classes)).all():
            raise ValueError("labels drawn with a prior have no unbiased form: use the forward correction")
        response = Response(self.epsilon, classes)
        low, high = float(response.other), float(response.truth)
        return ((np.eye(classes)[self.observed] - low) / (high - low)).astype(np.float32)


class Labels:
    """Hold the labels of a table's rows, which only the label gate reads.

    Args:
        label: whole numbers from 0 to classes - 1.
        classes: the number of classes: it is declared, not counted in the data.
        path: a file for draws and costs, to be kept with the data; read if it is there.
        ids: the rows' ids, which bind the file to these rows in this order.
        seed: for simulation only. Without a seed, coins come from the operating system.
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
        self.budget = budget
        self._seen: str | None = None  # the file's digest, as this store knows it
        self._label = _checked(label, classes)
        self.classes, self.path, self.simulated = classes, Path(path) if path is not None else None, seed is not None
        self._rows = sha256(repr((len(self._label), None if ids is None else np.asarray(ids).tolist())).encode())
        self._coins: random.Random = random.SystemRandom() if seed is None else random.Random(seed)
        self._memos: dict[float, Memo] = {}
        self._costs: dict[Mechanism, np.ndarray] = {}
        if self.path is not None and self.path.exists():
            self._read(self.path)

    def __len__(self) -> int:
        return len(self._label)

    def memo(self, epsilon: float, rows: Any = None, prior: np.ndarray | None = None) -> Memo:
        """Return the labels drawn at this epsilon; draw and charge those of `rows` (default: all) that are missing.

        `prior` (class probabilities, one row per entry of `rows`) lets a label be randomised among groups of classes,
        chosen so that the answer tells most (`sottovoce.privacy.response`). It may come from public features and from
        labels drawn earlier, never from true ones.
        """
        n, chosen = len(self), np.arange(len(self)) if rows is None else np.asarray(rows)
        if prior is not None and np.shape(prior) != (len(chosen), self.classes):
            raise ValueError(f"the prior has shape {np.shape(prior)}, expected {(len(chosen), self.classes)}")
        memo = self._memos.get(epsilon) or Memo(
            epsilon, np.full(n, -1, np.int32), np.zeros(n, np.int32), np.ones((n, self.classes), np.float32)
        )
        missing = memo.observed[chosen] < 0
        if not missing.any():
            return memo
        new = chosen[missing]
        self.charge({Mechanism(pure=epsilon): np.bincount(new, minlength=n)})
        if prior is None:
            number, count = np.tile(np.arange(self.classes), (len(new), 1)), np.full(len(new), self.classes)
        else:
            number, count = groups(
                np.asarray(prior)[missing], epsilon, np.random.default_rng(self._coins.getrandbits(64))
            )
        responses = {int(k): Response(epsilon, int(k)) for k in np.unique(count)}
        truth = number[np.arange(len(new)), self._label[new]].tolist()
        told = np.array([responses[k].answer(place, self._coins) for k, place in zip(count.tolist(), truth)])
        honest, lie = (
            np.array([float(getattr(responses[k], chance)) for k in count.tolist()])[:, None]
            for chance in ("truth", "other")
        )
        observed, answers, likelihood = memo.observed.copy(), memo.answers.copy(), memo.likelihood.copy()
        observed[new], answers[new] = told, count
        likelihood[new] = np.where(number == told[:, None], honest, lie)
        self._memos[epsilon] = Memo(epsilon, observed, answers, likelihood)
        self._save()
        return self._memos[epsilon]

    def redraw(self, epsilon: float, rows: Any = None) -> Memo:
        """Draw labels again that were drawn before; the cost is added to what was spent."""
        old = self._memos.get(epsilon)
        if old is None:
            return self.memo(epsilon, rows)
        forgotten = np.ones(len(self), bool) if rows is None else np.isin(np.arange(len(self)), rows)
        self._memos[epsilon] = Memo(epsilon, np.where(forgotten, -1, old.observed), old.answers, old.likelihood)
        try:
            return self.memo(epsilon, rows)
        except BaseException:  # refused or interrupted: what was drawn before is kept
            self._memos[epsilon] = old
            raise

    def charge(self, uses: Mapping[Mechanism, Any]) -> None:
        """Record that each mechanism will be applied to row i ``uses[mechanism][i]`` times, before any of them is."""
        costs = dict(self._costs)
        for mechanism, given in uses.items():
            counts = np.asarray(given, np.int64)
            if counts.shape != (len(self),) or (counts < 0).any():
                raise ValueError(f"counts have shape {counts.shape}: give one number >= 0 for each of {len(self)} rows")
            costs[mechanism] = costs.get(mechanism, 0) + counts
        if self.budget is not None and (total := _most(costs, self.budget.delta)) > self.budget.epsilon:
            raise BudgetExceeded(
                f"a label would reach epsilon {float(total):.4g} of a budget of {self.budget.epsilon:g} (delta "
                f"{self.budget.delta:g}; {float(self.epsilon(self.budget.delta)):.4g} is spent already). Draw at a "
                "smaller epsilon, use labels that were drawn before, or raise the budget. Nothing was released."
            )
        self._costs = costs
        self._save()

    def epsilon(self, delta: float = 0.0) -> Epsilon:
        """Return epsilon of everything ever released about the label that was used most.

        All runs, all draws and all noisy counts are composed.
        """
        return _most(self._costs, delta)

    def accuracy(self, guessed: Any, epsilon: float, rows: Any = None) -> float:
        """Return the share of right guesses on true labels, with Laplace noise on the count, charged to these rows."""
        if not epsilon > 0:
            raise ValueError(f"epsilon is {epsilon}: give a positive number, or measure on public test labels")
        chosen = np.arange(len(self)) if rows is None else np.asarray(rows)
        self.charge({Mechanism(pure=epsilon): np.bincount(chosen, minlength=len(self))})
        right = int(np.sum(np.asarray(guessed) == self._label[chosen]))
        return (right + _whole_laplace(epsilon, self._coins)) / len(chosen)

    def open(self) -> np.ndarray:
        """Return one-hot true labels, for gates that hide them at each use, and for runs that guarantee nothing."""
        return np.eye(self.classes, dtype=np.float32)[self._label]

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
            "memos": list(self._memos),
            "costs": [{"pure": m.pure, "laplace": m.laplace} for m in self._costs],
        }
        buffer = io.BytesIO()
        np.savez_compressed(buffer, facts=np.asarray(json.dumps(facts)), **arrays)  # type: ignore[arg-type]
        if self._seen != (digest(self.path.read_bytes()) if self.path.exists() else None):
            raise ValueError(
                f"{self.path} was written to by another process meanwhile, so what was drawn and what is left of the "
                "budget have changed: create the Labels again"
            )
        write_atomically(self.path, buffer.getvalue())
        self._seen = digest(buffer.getvalue())

    def _read(self, path: Path) -> None:
        data = path.read_bytes()
        self._seen = digest(data)
        with np.load(io.BytesIO(data)) as file:
            facts = json.loads(str(file["facts"]))
            if facts["rows"] != self._rows.hexdigest():
                raise ValueError(f"{path} belongs to other rows, or to these in another order: give the right file")
            for number, epsilon in enumerate(facts["memos"]):
                parts = [file[f"{name}{number}"] for name in ("observed", "answers", "likelihood")]
                self._memos[epsilon] = Memo(epsilon, *parts)
            for number, cost in enumerate(facts["costs"]):
                mechanism = Mechanism(pure=cost["pure"], laplace=tuple(cost["laplace"]))
                self._costs[mechanism] = file[f"counts{number}"]


def _most(costs: Mapping[Mechanism, np.ndarray], delta: float) -> Epsilon:
    """Return epsilon of the label that paid most; skip labels that paid no more than another for every mechanism."""
    if not costs:
        return accountant.epsilon([], delta, "replace-one")
    patterns = np.unique(np.stack(list(costs.values()), axis=1), axis=0)
    most = [p for p in patterns if not ((patterns >= p).all(axis=1) & (patterns > p).any(axis=1)).any()]
    return max(
        accountant.epsilon([(m, int(c)) for m, c in zip(costs, counts)], delta, "replace-one") for counts in most
    )


def _whole_laplace(epsilon: float, coins: random.Random) -> int:
    """Draw discrete Laplace noise for a count: the difference of two geometric numbers, by integer coins rounded up."""
    going_on = math.ceil(math.exp(-epsilon) * (1 + 2**-50) * ONE)

    def geometric() -> int:
        turns = 0
        while coins.randrange(ONE) < going_on:
            turns += 1
        return turns

    return geometric() - geometric()


def _checked(label: Any, classes: int) -> np.ndarray:
    label = np.asarray(label)
    if classes < 2:
        raise ValueError(f"classes is {classes}: a label needs at least 2 possible values")
    if label.ndim != 1 or not np.issubdtype(label.dtype, np.integer) or not len(label):
        raise ValueError(f"labels must be a list of whole numbers, got {label.dtype} of shape {label.shape}")
    if label.min() < 0 or label.max() >= classes:
        raise ValueError(f"labels run from {label.min()} to {label.max()}, expected 0 to {classes - 1}: recode them")
    return label
