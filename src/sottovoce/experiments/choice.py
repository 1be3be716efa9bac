"""Choose among the variants of a run file by a private score, and pay for it: the table [select].

Example: three variants, ``privacy.epsilon = 1.0`` and ``select.metric = "accuracy"``. A share of the rows is
kept for scores. `sv.select` trains variants that it draws at random, a random number of times, each with less than
epsilon 1, and keeps the trial with the best noisy score. Training, scores and the choice together have epsilon 1. All
other trials stay secret.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import numpy as np

from sottovoce.data.parts import Part
from sottovoce.experiments.schema import Case, Privacy
from sottovoce.privacy.gdp import gdp_epsilon, gdp_mu
from sottovoce.privacy.report import PrivacyReport, rounded_up
from sottovoce.privacy.selection import PoissonTrials, epsilon_of, mu_for
from sottovoce.runtime.result import Result
from sottovoce.shown import Shown
from sottovoce.tuning.select import Selected, select

_GAUSSIAN = "exact GDP"  # the accountant of un-sampled Gaussian releases


class Trial(Protocol):
    """State what a variant must offer so that it may be chosen."""

    @property
    def case(self) -> Case:
        """Return its configuration, with what one trial may spend."""

    @property
    def judges(self) -> "Judges | None":
        """Return the rows that score it."""

    def run(self, seed: int) -> Result:
        """Train it; nothing is stored."""


@dataclass(frozen=True, repr=False)
class Judges(Shown):
    """Score a model on private rows that nothing is trained on, by a metric.

    A row that is taken out of a sum changes it by at most 1, for both metrics, so the sum with Gaussian noise of
    standard deviation 1/mu is mu-GDP under zero-out adjacency. The number of rows is public.

    - accuracy: the sum of correct answers.
    - auroc: the sum over pairs of a row of class 1 and one of class 0 of +1 or -1, as they are ordered rightly or not,
      over the number of rows n. A row is in at most n - 1 pairs. For given rows this sum orders models as the AUROC
      does: it is n1 n0 (2 AUROC - 1) / n.

    >>> rows = {"features": np.zeros((4, 1)), "label": np.array([0, 0, 1, 1])}
    >>> judges = Judges(Part(rows, np.arange(4)), "auroc")
    >>> judges.total(np.array([0.1, 0.4, 0.35, 0.8]))        # 3 of 4 pairs are right
    0.5
    """

    part: Part
    metric: str

    def __len__(self) -> int:
        return len(self.part)

    def total(self, predicted: np.ndarray) -> float:
        """Return the sum that is noised; rows that cannot be read (NaN) contribute nothing."""
        label = np.asarray(self.part.records["label"])[self.part.rows]
        fine = np.isfinite(predicted.reshape(len(predicted), -1)).all(axis=1)
        predicted, label = predicted[fine], label[fine]
        if self.metric == "accuracy":
            classes = predicted.argmax(axis=1) if predicted.ndim == 2 else predicted > 0.5
            return float(np.sum(classes == label))
        scores = predicted[:, 1] if predicted.ndim == 2 else predicted
        high, low = scores[label == 1], np.sort(scores[label == 0])
        below, not_above = (np.searchsorted(low, high, side) for side in ("left", "right"))
        return float(np.sum(below - (len(low) - not_above)) / len(self))

    def score(self, result: Result | None, mu: float, rng: np.random.Generator) -> float:
        """Return a mu-GDP score; a training that diverged scores worst."""
        if result is None:
            return -np.inf
        features = np.asarray(self.part.records["features"])[self.part.rows]
        return (self.total(np.asarray(result.predict(features), np.float64)) + rng.normal() / mu) / len(self)


def complete(cases: Mapping[str, Case]) -> dict[str, Case]:
    """Return the cases with the mean number of trials filled in; refuse what cannot be chosen among."""
    asked = [case.select for case in cases.values()]
    first = next((table for table in asked if table is not None), None)
    if first is None:
        return dict(cases)
    if len(cases) < 2:
        raise ValueError(
            "[select] chooses among variants, but there is one: add [[variant]] tables, or remove [select]"
        )
    if any(table != first for table in asked):
        raise ValueError("[select] differs between variants: set it once, outside of [[variant]]")
    if len({(case.privacy, tuple(case.run.seeds)) for case in cases.values()}) > 1:
        raise ValueError(
            "[privacy] or run.seeds differs between variants: with [select] they share one budget and seed"
        )
    filled = first.model_copy(update={"trials": first.trials or 2.0 * len(cases)})
    return {name: case.model_copy(update={"select": filled}) for name, case in cases.items()}


def check(case: Case) -> None:
    """Refuse, before records are read, what a choice by random stopping does not cover."""
    wrong = {
        "[columns]: sv.select has no bound for labels, so remove [select]": case.columns is not None,
        "compare: other trials stay secret, so remove [compare]": case.compare.alone or case.compare.pooled,
        "privacy.trust: everybody sees the totals of every trial, so remove it": case.privacy.trust == "sum",
        "data.unit: a person with several rows would change a score by more than one row does, so remove [select]":
            case.data.unit is not None,
        "data.private: declare ranges and categories, so that all of privacy.epsilon is for the choice":
            case.data.private is not None,
        "data.curves: ranks are bought, so remove it": case.data.curves is not None,
        "data.upper: a choice needs no levels, so remove it": case.data.upper is not None,
        "several processes: the rows are in one place, so start one": jax.process_count() > 1,
        "several seeds: each would spend epsilon again, so give one in run.seeds": len(case.run.seeds) > 1,
        "replace-one adjacency: the bound is for zero-out, so remove privacy.adjacency":
            case.privacy.adjacency == "replace-one",
    }  # fmt: skip
    for words, found in wrong.items():
        if found:
            raise ValueError(f"[select] does not go with {words}")
    if case.privacy.epsilon is None or not case.privacy.enabled:
        raise ValueError("[select] needs to know what it may spend: set privacy.epsilon, such as 1.0")


def of_a_trial(case: Case) -> Privacy:
    """Return what one trial may spend, so that the best has the epsilon of the case, under zero-out adjacency."""
    assert case.privacy.epsilon is not None
    mu = mu_for(case.privacy.epsilon, _law(case), case.privacy.delta)
    return case.privacy.model_copy(update={"epsilon": gdp_epsilon(mu, case.privacy.delta), "adjacency": "zero-out"})


def apart(case: Case, parts: list[Any]) -> tuple[list[Any], Judges]:
    """Split the rows, by chance: most are for training, a share is for scores."""
    assert case.select is not None
    if len(parts) != 1:
        raise ValueError(
            f"[select] keeps all trials but the best secret, and {len(parts)} parties see each other's: put the rows "
            "in one place (data.agents = 1, no data.party), or remove [select]"
        )
    part = parts[0]
    order = np.random.default_rng([case.data.seed, len(part)]).permutation(len(part))
    count = max(1, round(case.select.validation * len(part)))
    if count >= len(part):
        raise ValueError(f"select.validation leaves none of {len(part)} rows for training: lower it")
    judges, train = (replace(part, rows=part.rows[np.sort(rows)]) for rows in (order[:count], order[count:]))
    return [train], Judges(judges, case.select.metric)


def check_trial(trial: PrivacyReport) -> None:
    """Refuse a variant that is no plain Gaussian mechanism, whatever its noise."""
    if not trial.states:
        raise ValueError("[select] publishes a model, and a variant's model has no noise: choose a sound design")
    if trial.accountant != _GAUSSIAN:
        raise ValueError(
            f"[select] has a bound for un-sampled Gaussian releases, and a trial here is accounted by "
            f'{trial.accountant}: set method.sampling = "full", or remove [select]'
        )


def stated(trial: PrivacyReport, case: Case, judges: Judges) -> PrivacyReport:
    """Return the statement of the best trial, from that of one trial."""
    assert case.select is not None
    check_trial(trial)
    allowed = (
        case.privacy.epsilon
    )  # the mu of a trial (`of_a_trial`): a score spends all of it, a calibrated training almost all
    assert allowed is not None
    epsilon = epsilon_of(gdp_mu(max(allowed, trial.epsilon), trial.delta), _law(case), trial.delta)
    words = (
        f"choice: the best of a random, secret number of trials ({case.select.trials:g} on average, each with epsilon "
        f"{rounded_up(trial.epsilon, 3)}) by {case.select.metric} of {len(judges)} private rows, kept for this; "
        "epsilon covers training, scores and the choice"
    )
    return trial.of_the_best(epsilon, trial.delta, words)


def choose(variants: Mapping[str, Trial], epsilon: float, say: Callable[[str], None]) -> Selected:
    """Train variants at random, a random number of times, and return the best trial; nothing else is stored."""
    case, judges = next((trial.case, trial.judges) for trial in variants.values())
    assert case.select is not None
    assert judges is not None
    rng = np.random.default_rng([case.run.seeds[0], 1])

    def candidate(trial: Trial) -> Callable[[float], tuple[Trial, Result | None]]:
        def train(mu: float) -> tuple[Trial, Result | None]:
            try:  # calibrated to this mu when it was built
                return trial, trial.run(int(rng.integers(2**31)))
            except FloatingPointError:
                return trial, None

        return train

    def score(trained: tuple[Trial, Result | None], mu: float) -> float:
        trial, result = trained
        assert trial.judges is not None  # its own: variants may use other columns
        return trial.judges.score(result, mu, rng)

    say(f"choosing among {len(variants)} variants by {case.select.metric} of {len(judges)} private rows")
    found = select(
        {name: candidate(trial) for name, trial in variants.items()},
        score,
        epsilon=epsilon,
        delta=case.privacy.delta,
        trials=case.select.trials,
        seed=case.run.seeds[0],
    )
    result = None if found.output is None else found.output[1]
    if result is None:
        raise ValueError(
            "[select]: the random number of trials was 0, or all of them diverged, so there is nothing to show (the "
            "statement covers this too): give another run.seeds, which spends epsilon again, or more select.trials"
        )
    return replace(found, output=result)


def _law(case: Case) -> PoissonTrials:
    assert case.select is not None
    assert case.select.trials is not None
    return PoissonTrials(case.select.trials)
