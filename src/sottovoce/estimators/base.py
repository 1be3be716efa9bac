"""Provide what the private estimators share: reading X and y, parties, weights, and one private run.

Nothing here is learned from rows except by `sv.run`. What is read off them otherwise (a class list, the range of a
label) is listed in the statement as public.
"""

import hashlib
import secrets
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from sottovoce.data.declarations import Declarations
from sottovoce.data.declared import FEWEST, REST
from sottovoce.data.frames import as_frame
from sottovoce.data.notes import Note, holder_notes, tell_holder
from sottovoce.data.parts import NO_FACTS, Facts, Part, note_purchases, purchases_of
from sottovoce.data.population import Population
from sottovoce.data.preprocess import bounded_norm
from sottovoce.data.settle import Whose, settle
from sottovoce.data.values import is_missing, texts_of
from sottovoce.naming import check_choice
from sottovoce.networks import Network, complete
from sottovoce.privacy.ledger import Budget, Ledger
from sottovoce.privacy.noisy_counts import NoisyCounts
from sottovoce.privacy.report import PrivacyReport, rounded_up
from sottovoce.privacy.trust import Sum
from sottovoce.problems.tasks import Shape, Task
from sottovoce.runtime.coefficients import Coefficients, Passage, empty_directions, in_units, passage
from sottovoce.runtime.performance import Performance
from sottovoce.runtime.result import Result
from sottovoce.runtime.run import run
from sottovoce.tuning.auto import Plan, auto
from sottovoce.tuning.curves import curves_pay, price

_FITTED_BEFORE = (
    "not covered: whatever was fitted on these rows before (a scaler, a feature selection), other fits without a "
    "ledger, and a choice among several fits by their scores on private rows (sv.select covers one)"
)
_AGAIN = (
    "this process fitted on these rows before, without a ledger: if this model was chosen among the fits, as the "
    "best_estimator_ of a search is, its epsilon is larger than stated, so it is not said to be ready to hand out"
)
_SECRET = secrets.token_bytes(16)
_SEEN: set[bytes] = set()  # keyed digests of rows that this process has fitted on; at most `_REMEMBERED` per fit
_WARNED: set[bytes] = set()  # of those, the ones of fits that gave a warning
_REMEMBERED = 2000


@lru_cache(maxsize=32)
def task_of(build: Callable[..., Task], shape: Shape, **settings: Hashable) -> Task:
    """Build a task once: fits that differ in their rows or their seed alone share what is traced and compiled for it.

    >>> from sottovoce.problems.tasks.linear import ridge
    >>> task_of(ridge, Shape((4,), 1, 1), penalty=0.1) is task_of(ridge, Shape((4,), 1, 1), penalty=0.1)
    True
    """
    return build(shape, **settings)


class PrivateLinear(BaseEstimator):
    """Hold the settings and the steps of a fit that private linear models share; see the models themselves."""

    epsilon: float | None
    delta: float
    norm: float
    weight_bound: float
    network: Network | None
    trust: str
    colluding: int
    random_state: Any
    ledger: Ledger | Sequence[Ledger] | None
    budget: Budget | None
    columns: Mapping[str, Any] | None = None
    curves: Literal["auto", "private", "public"] | None = None
    privacy_: PrivacyReport
    n_features_in_: int
    classes_: Any
    _passage: Passage | None
    declarations_: Declarations | None = None
    _paid: Facts = NO_FACTS

    def _settled(self, X: Any, parties: Any) -> Any:
        """Return encoded rows to fit on, where columns are declared: ranks of curves are bought here."""
        self.declarations_, self._paid = None, NO_FACTS
        if self.columns is None:
            if self.curves is not None:
                raise ValueError("curves need declared columns: give columns={'age': {'range': (0, 120)}, ...}")
            return X
        frame, declared = as_frame(X), Declarations(self.columns)
        declared.check(frame)
        names, owner = _held_by(parties, len(frame))
        private = self.epsilon is not None
        curves = self.curves
        if curves == "auto":
            sizes = Population(np.bincount(owner).tolist())
            pay = curves_pay(len(declared.names), sizes, self.epsilon, self.delta)
            curves = ("private" if private else "public") if pay else None
        declared = declared.curved(list(declared), curves)
        counter = None
        if any("private" in (column.source, column.curve) for column in declared.values()):
            if not private:
                raise ValueError("private ranges or curves cost epsilon, and epsilon is None: use 'public' ones")
            _check_budget(self.epsilon, self.delta, len(frame))
            assert self.epsilon is not None
            counter = NoisyCounts(price(self.epsilon, self.delta), self.delta, seed=self._seed())
        whose = Whose(owner, np.arange(len(frame)), tuple(names))
        self.declarations_, facts, _ = settle(frame, declared, whose, counter)
        told = f"declared and taken as public: ranges, categories and missing-value rules of {', '.join(declared)}"
        self._paid = replace(facts, words=(told, *facts.words))
        return self._encoded(X)

    def _encoded(self, X: Any) -> Any:
        """Return encoded rows of norm 1 at most, where columns are declared, and X itself elsewhere."""
        if self.declarations_ is None:
            return X
        read = self.declarations_.read(X)
        tell_holder(holder_notes("X", read))
        return self.declarations_.encode_read(read).astype(np.float64) / self.declarations_.norm

    def _seed(self) -> int | None:
        return None if self.random_state is None else int(check_random_state(self.random_state).randint(2**31 - 1))

    def _records(self, X: Any, label: np.ndarray, sample_weight: Any) -> dict[str, np.ndarray]:
        """Return the record set: rows of norm at most 1, labels, and weights between 0 and 1."""
        rows = len(label)
        if rows < FEWEST:
            raise ValueError(f"n_samples = {rows}: at least {FEWEST} rows are needed to hide one among them")
        _check_budget(self.epsilon, self.delta, rows)
        check_kept(self.budget, "ledger", self.ledger, "sv.Ledger(path)")
        _check_positive("norm", self.norm, "the largest L2 norm of a row")
        dense = X.toarray() if sp.issparse(X) else X
        _warn_of_long_rows(dense, self.norm)
        self._again = self.ledger is None and _fitted_before(dense)
        records = {"features": bounded_norm(dense, self.norm) / np.float32(self.norm), "label": label}
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, dense, dtype=np.float64)
            _check_positive("weight_bound", self.weight_bound, "the largest weight that a row may have")
            _warn_of_weights(weight, self.weight_bound)
            records["weight"] = (np.clip(weight, 0.0, self.weight_bound) / self.weight_bound).astype(np.float32)
        for paid in (*purchases_of(dense), self._paid):
            note_purchases(records, paid)
        return records

    def _parts(self, records: dict[str, np.ndarray], parties: Any) -> list[Part]:
        """Return one part per party, named after the values of `parties`; one part for all rows without it."""
        names, owner = _held_by(parties, len(records["label"]))
        return [Part(records, np.flatnonzero(owner == k), name=name, facts=self._paid) for k, name in enumerate(names)]

    def _run(self, task: Task, parts: list[Part], **by_hand: Any) -> Result:
        """Choose settings from public facts, run, and keep the statement and the plan."""
        parts = task.prepare(parts)
        network, trust = self.network, self._trust()
        if network is None and trust is None and len(parts) > 1:
            network = complete(len(parts))
        plan = auto(
            task.problem, parts, epsilon=self.epsilon, delta=self.delta, network=network, trust=trust, **by_hand
        )
        for line in plan.expected:  # the run itself gives the other warnings
            warnings.warn(line, stacklevel=4)
        return self._carry_out(task, parts, plan)

    def _trust(self) -> Sum | None:
        """Return whom parties trust: nobody, or nobody with less than a sum."""
        check_choice("trust", self.trust, ("local", "sum"))
        by_sums = Sum(self.colluding)
        if self.trust != "sum" and by_sums != Sum():
            raise ValueError("colluding says how many parties of a secure sum may collude: set trust='sum'")
        return by_sums if self.trust == "sum" else None

    def _carry_out(self, task: Task, parts: list[Part], plan: Plan) -> Result:
        seed = self._seed()
        # Exact noise where nothing is to be repeated. Its parties keep a ledger each.
        ledger, shared = self.ledger, isinstance(self.ledger, Ledger)
        exact = seed is None and self.epsilon is not None and (not shared or len(parts) == 1)
        if exact and isinstance(ledger, Ledger):
            ledger = [ledger]
        result = run(
            task.problem, parts, **plan.settings, noise="discrete" if exact else "simulated", seed=seed,
            every=plan.steps, ledger=ledger, budget=self.budget, performance=Performance(chunk=8192, progress=False),
        )  # fmt: skip
        self.plan_, self.n_iter_ = plan, plan.steps
        weighted = "weight" in parts[0].records  # what errors are then is not known
        sizes, trust = [len(part) for part in parts], self._trust()
        found = passage(result.agents, plan.method, task.problem, sizes, plan.steps, trust)
        self._passage = None if weighted else found
        return result

    def coefficients(self, columns: Mapping[str, Any] | None = None) -> Coefficients:
        """Return the coefficients with their intervals, the intercept last.

        They are known for two classes or a number, without weights and penalty, where `auto` chose `DpNewton`.

        Args:
            columns: what the `DeclaredScaler` in front was given; then coefficients are in the columns' own units.
                Without it they are those of the model's own declared columns, or those of X, by name.
        """
        check_is_fitted(self)
        if getattr(self, "_passage", None) is None:
            raise ValueError(
                "intervals are known for two classes or a number, without weights and penalty: coef_ has bare numbers"
            )
        assert self._passage is not None
        columns = self.declarations_ if columns is None else columns
        if columns is None:
            names = getattr(self, "feature_names_in_", [f"x{number}" for number in range(self.n_features_in_)])
            return self._of_label(self._passage.coefficients(list(map(str, names)), unit=1.0 / self.norm))
        declared = columns if isinstance(columns, Declarations) else Declarations(columns)
        norm = declared.norm * float(self.norm)
        encoded = self._passage.coefficients(declared.names, empty_directions(declared, norm), unit=1.0 / norm)
        return in_units(self._of_label(encoded), declared)

    def _of_label(self, made: Coefficients) -> Coefficients:
        """Return coefficients for the label as the rows had it."""
        return replace(made, on=f"log odds of {self.classes_[1]}")

    def _stated(self, result: Result, *read: str) -> PrivacyReport:
        """Return the statement with what the estimator adds to it, and keep what `sv.save` needs."""
        self.releasable_, self.about_ = result.releasable and not self._again, result.about
        report = result.privacy
        several = len(report.per_agent) > 1 and report.against is None
        network = (f"network: {self._network_name(len(report.per_agent))}",) if several else ()
        told = (*network, _FITTED_BEFORE, *(_AGAIN,) * self._again, *self._together(report), *read)
        return replace(report, caveats=(*report.caveats, *told))

    def become_chosen(self, epsilon: float, delta: float, words: str, seeded: bool) -> Self:
        """Take over the statement of a choice (`sv.select`) in which this model was the best trial."""
        self.releasable_ = self.releasable_ and not seeded
        self.privacy_ = self.privacy_.of_the_best(epsilon, delta, words, seeded)
        return self

    def _together(self, report: PrivacyReport) -> tuple[str, ...]:
        """Say what all fits in the ledgers cost together, if there are several."""
        if self.ledger is None or not report.private:
            return ()
        own = [self.ledger] * len(report.parties) if isinstance(self.ledger, Ledger) else self.ledger
        pairs = list(zip(own, report.parties))
        runs = max(len({entry.run for entry in kept.entries.values()}) for kept, _ in pairs)
        if runs < 2:
            return ()
        cost = max(float(kept.epsilon(name, self.delta, "zero-out")) for kept, name in pairs)
        return (
            f"the ledger holds {runs} fits, this one included: together they cost epsilon {rounded_up(cost, 4)} at "
            f"delta {self.delta:g}, zero-out. A model that was chosen among them costs that, and its scores more",
        )

    def _network_name(self, parties: int) -> str:
        return f"complete, {parties} parties, by default" if self.network is None else self.network.name

    def _bounded(self, X: Any) -> np.ndarray:
        """Return rows as they were used in training: longer ones shortened, each separately."""
        return bounded_norm(X.toarray() if sp.issparse(X) else X, self.norm).astype(np.float64)

    def _shape(self, records: dict[str, np.ndarray], classes: int, parties: int) -> Shape:
        return Shape((records["features"].shape[1],), classes=classes, agents=parties)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        tags.input_tags.sparse = True
        return tags


def _held_by(parties: Any, count: int) -> tuple[list[str], np.ndarray]:
    """Return the parties' names, and the number of each row's party; one party without names."""
    if parties is None:
        return ["all"], np.zeros(count, int)
    if np.ndim(parties) != 1 or len(parties) != count:
        raise ValueError(f"parties has the shape {np.shape(parties)} for {count} rows: give one name per row")
    held = texts_of(np.asarray(parties))
    names, owner = np.unique(np.where(is_missing(held), REST, held), return_inverse=True)
    return [str(name) for name in names], owner


def numbered(y: np.ndarray, classes: Sequence[Any] | None) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return the class list, classes as numbers (-1 where it does not list one), and what was read off the labels.

    A label that `classes` does not list never stops a fit, because a refusal would tell that it is there.

    >>> numbered(np.array(["b", "a"]), None)[1].tolist()
    [1, 0]
    """
    check_classification_targets(y)
    listed = np.unique(y if classes is None else _listed(classes))
    if len(listed) < 2:
        raise ValueError(f"y has one class only ({listed.tolist()}): a classifier needs at least two")
    if _is_text(listed) != _is_text(y):
        kinds = {True: "texts", False: "numbers"}
        raise ValueError(f"`classes` lists {kinds[_is_text(listed)]}, y holds {kinds[_is_text(y)]}: list them as in y")
    if classes is None:
        label = np.searchsorted(listed, y)
        return listed, label.astype(np.int32), ("the class list was read from the labels: taken as public",)
    label = np.where(np.isin(y, listed), np.clip(np.searchsorted(listed, y), 0, len(listed) - 1), -1)
    if (foreign := int(np.sum(label < 0))) > 0:
        told = "labels are not in `classes`, and are not learned as they are: is the list complete?"
        tell_holder([Note(f"{foreign} of {len(y)} {told}", f"some {told}")])
    return listed, label.astype(np.int32), ()


def _listed(classes: Any) -> np.ndarray:
    if isinstance(classes, str) or np.ndim(classes) != 1:
        raise ValueError(f"classes is {classes!r}: give a list, such as ['no', 'yes']")
    return np.asarray(classes)


def _is_text(values: np.ndarray) -> bool:
    return values.dtype.kind in "OUST"


def _check_budget(epsilon: Any, delta: Any, rows: int) -> None:
    """Refuse what is no epsilon, or a delta that guarantees nothing."""
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if name == "epsilon" and value is None:  # a comparison without privacy, and its statement says so
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            raise ValueError(f"{name} is {value!r}: give a positive number")
    if not 0 < delta <= 1 / rows:
        raise ValueError(
            f"delta is {delta}: it must be positive and at most 1/n = {1 / rows:.2g}, because a mechanism that "
            "publishes one row at random would satisfy a larger one"
        )


def check_kept(budget: Budget | None, name: str, kept: Any, example: str) -> None:
    """Refuse a budget for several fits where nothing adds them up.

    >>> check_kept(Budget(1.0, 1e-5), "ledger", None, "sv.Ledger(path)")
    Traceback (most recent call last):
    ...
    ValueError: a budget bounds all fits together, and without a ledger nothing adds them up: give ledger=...
    """
    if budget is not None and kept is None:
        raise ValueError(
            f"a budget bounds all fits together, and without a {name} nothing adds them up: give {name}={example} too, "
            "or leave the budget out, because epsilon bounds one fit"
        )


def _check_positive(name: str, value: Any, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 < value < np.inf:
        raise ValueError(f"{name} is {value!r}: give {what}, a positive number")


def _warn_of_weights(weight: np.ndarray, bound: float) -> None:
    """Warn the holder of the rows of weights that are cut."""
    below, above = int(np.sum(weight < 0)), int(np.sum(weight > bound))
    if below or above:
        what = f"weights are below 0 and count as 0, {{}} above weight_bound={bound:g} and count as it"
        remedy = "set weight_bound to the largest weight that a row may have"
        tell_holder([Note(f"{below} {what.format(above)}: {remedy}", f"some {what.format('or')}: {remedy}")])


def _warn_of_long_rows(X: np.ndarray, norm: float) -> None:
    """Warn the holder of the rows if most of them are shortened: a sign of features that were not scaled."""
    lengths = np.linalg.norm(np.asarray(X, np.float64), axis=1)
    if np.median(lengths) > 2 * norm:
        told = (
            f"most rows are longer than norm={norm:g} and are shortened to it: scale the features by declared ranges "
            "first (sv.DeclaredScaler), or give a larger norm"
        )
        tell_holder([Note(told, told)])


def _fitted_before(X: np.ndarray) -> bool:
    """Say whether this process has fitted on some of these rows before, and warn once: their epsilons add up."""
    rows = np.ascontiguousarray(X[:: max(1, len(X) // _REMEMBERED)][:_REMEMBERED])
    digests = {hashlib.blake2b(row.tobytes(), key=_SECRET, digest_size=12).digest() for row in rows}
    again = bool(digests & _SEEN)
    if again and not digests & _WARNED:  # a search fits dozens of times: once is enough
        _WARNED.update(digests)
        warnings.warn(
            "these rows were fitted on before, and their epsilons add up. The statement of a model, such as the "
            "best_estimator_ of a search, knows of its own fit alone: give ledger=sv.Ledger(path), and it says what "
            "all fits cost together; budget=sv.Budget(epsilon, delta) bounds them",
            stacklevel=5,
        )
    _SEEN.update(digests)
    return again
