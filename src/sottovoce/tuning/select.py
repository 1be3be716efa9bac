"""Choose among candidates by a private score, with a random number of trials, and pay for all of it: `select`.

Example: three estimators with different penalties. A grid search that fits each one and compares scores on private rows
spends the budget three times, and the comparison is not covered by any statement. `select` draws candidates at random,
a random number of times, and shows only the best trial: one (epsilon, delta) covers training, scores and the choice.
"""

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sottovoce.closed import require
from sottovoce.privacy.ledger import Budget, Ledger
from sottovoce.privacy.ledger_line import Entry, Group
from sottovoce.privacy.mechanisms import Mechanism, check_delta, check_epsilon
from sottovoce.privacy.report import rounded_up
from sottovoce.privacy.selection import GeometricTrials, PoissonTrials, Trials, epsilon_of, mu_for

_APART = 1e-4  # share of delta that an entry in a ledger keeps for the choice


@dataclass(frozen=True)
class Selected:
    """Hold the best trial. How many trials there were stays secret: it is part of the guarantee.

    `mu` is the Gaussian differential privacy of one trial. `statement` says what is guaranteed, and so does the
    statement of a private estimator that was chosen.
    """

    name: str
    output: Any
    score: float
    mu: float
    epsilon: float
    delta: float
    candidates: int
    seeded: bool = False  # whether the draws, or the noise of the scores, can be repeated

    @property
    def statement(self) -> str:
        """Write one sentence to attach to the result."""
        said = (
            f"best of a random, secret number of trials among {self.candidates} candidates: training, scores and the "
            f"choice together have epsilon {rounded_up(self.epsilon, 4)} at delta {self.delta:g}, zero-out adjacency, "
            "if each candidate and score is mu-GDP at the mu that it is given (Papernot and Steinke 2022)"
        )
        if hasattr(self.output, "become_chosen"):
            said += "; what is taken as public stands in the notes of the model's own statement"
        return (
            f"{said}; simulated: who knows the seed knows the number of trials, or the noise of the scores"
            if self.seeded
            else said
        )


def select(
    candidates: Mapping[str, Callable[[float], Any]],
    score: Callable[[Any, float], float],
    *,
    epsilon: float,
    delta: float = 1e-5,
    trials: float | None = None,
    stopping: type[Trials] = PoissonTrials,
    disjoint: bool = True,
    seed: int | None = None,
    ledger: Ledger | None = None,
    budget: Budget | None = None,
    party: str = "all",
) -> Selected:
    """Train and score candidates a random number of times, and return the best trial.

    Guarantee: the result is (epsilon, delta)-differentially private under zero-out adjacency, provided that every
    candidate is a function of mu that is mu-GDP (un-sampled Gaussian releases, as `PrivateLogisticRegression` makes),
    that `score` is, and that fresh noise is drawn in every call.

    Proof. A trial draws a candidate independently of the data, trains it and scores it. Where training and score read
    disjoint rows, one row takes part in one of them, so the trial is mu-GDP for it; else each is given mu / sqrt(2),
    and their composition is mu-GDP. A mixture over candidates of mu-GDP mechanisms is mu-GDP, because which one was
    drawn can be told too. The best of a random number of such trials has the Renyi divergences of `privacy.selection`,
    and mu is the largest for which these give (epsilon, delta). Showing the name of the candidate and its score is part
    of it: they belong to the output of the best trial.

    In the ledger the choice is one pure release of epsilon' that fails with probability delta'. Pure releases in a
    ledger must also hold under replace-one, so (epsilon', delta') is computed for trials that are 2 mu-GDP. delta' is
    chosen so small that other runs can be added. (Every (e, d)-private pair is within total variation d of an e-private
    one: Murtagh and Vadhan 2016, lemma 3.2.) So a ledger counts more than `epsilon`.

    Args:
        candidates: by name, functions of mu that return a model. What has `become_chosen` (a private estimator, a
            `Result`) is told of the choice, because the epsilon of its own training is not that of the best of several.
        score: ``score(model, mu)``, a private score; larger is better. With an attribute `seeded` it says that a seed
            draws its noise.
        epsilon, delta: of everything together.
        trials: the mean number of trials; twice the number of candidates by default.
        stopping: `PoissonTrials`, or `GeometricTrials`, which never makes no trial at all.
        disjoint: whether `score` reads other rows than the candidates are trained on.
        seed: of the draws of candidates and of their number; None takes them from the operating system.
        ledger, budget, party: where it is written before the first trial, what may be spent at most, on whose rows.

    >>> rng = np.random.default_rng(0)
    >>> def candidate(value): return lambda mu: value                      # nothing private in this example
    >>> def score(value, mu): return -abs(value - 2.0) + rng.normal() / (100 * mu)     # a mean over 100 rows
    >>> found = select({"one": candidate(1.0), "two": candidate(2.0)}, score, epsilon=2.0, trials=30, seed=1)
    >>> found.name, found.epsilon <= 2.0
    ('two', True)
    """
    if not isinstance(candidates, Mapping) or not candidates:
        raise ValueError("there are no candidates: give a mapping from names to functions of mu")
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    if not any(stopping is kind for kind in (PoissonTrials, GeometricTrials)):
        raise TypeError(f"stopping is {stopping!r}: choose PoissonTrials or GeometricTrials, whose bounds are proved")
    if not isinstance(party, str):
        raise TypeError(f"party is {party!r}: give the name under which the ledger keeps these rows, as 'all'")
    law = stopping(max(2.0, 2.0 * len(candidates)) if trials is None else float(trials))
    mu = mu_for(epsilon, law, delta)
    if ledger is not None or budget is not None:
        _charge(ledger or Ledger(), budget, mu, law, epsilon, delta, party)
    share = mu if disjoint else mu / math.sqrt(2)
    rng = np.random.default_rng(secrets.randbits(128) if seed is None else seed)
    names = sorted(candidates)
    best: tuple[str, Any, float] | None = None
    for _ in range(law.draw(rng)):
        name = names[int(rng.integers(len(names)))]
        output = candidates[name](share)
        found = float(score(output, share))
        found = -math.inf if math.isnan(found) else found  # the bound needs scores that can be put in one order
        if best is None or found > best[2]:
            best = (name, output, found)
    # The Poisson law may draw 0: an outcome that depends on nothing.
    chosen, output, top = (names[0], None, -math.inf) if best is None else best
    seeded = seed is not None or bool(getattr(score, "seeded", False))
    made = Selected(chosen, output, top, mu, epsilon_of(mu, law, delta), delta, len(names), seeded)
    return replace(made, output=_restated(output, made))


def _restated(output: Any, choice: Selected) -> Any:
    """Return what was chosen with the statement of the choice; of a pipeline, its last step has the statement."""
    if hasattr(output, "named_steps"):
        _restated(output[-1], choice)
        return output
    if not hasattr(output, "become_chosen"):
        return output
    return output.become_chosen(choice.epsilon, choice.delta, f"choice: {choice.statement}", choice.seeded)


def _charge(
    ledger: Ledger, budget: Budget | None, mu: float, law: Trials, epsilon: float, delta: float, party: str
) -> None:
    """Write the choice down, as one release that is pure except with a small chance."""
    apart = _APART * delta / (1 + math.exp(min(2 * epsilon, 300.0)))
    pure = epsilon_of(2 * mu, law, apart)  # under replace-one a record moves twice as far
    group = Group("records", (party,), ((Mechanism(pure=pure), 1),), apart)
    run = f"select-{secrets.token_hex(8)}"
    if budget is not None:
        require("budget", budget, (Budget,))
        ledger.require(budget, run, (group,), stated="zero-out")
    ledger.charge(Entry(run, 0, 1, (group,), adjacency="zero-out"))


__all__ = ["GeometricTrials", "PoissonTrials", "Selected", "select"]
