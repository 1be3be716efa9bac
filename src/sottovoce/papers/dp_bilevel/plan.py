"""Plan DP bilevel optimisation: how to spend (epsilon, delta) and a compute budget.

It minimises a prediction that has the form of the paper's theory (`theory.py`), constants taken as 1.

>>> plan(Facts(dx=10, dy=10, kappa=2.0), n=1000, epsilon=1.0, budget=500).steps  # best within 500 passes over the data
9
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from sottovoce.papers.dp_bilevel.theory import Facts, assignment
from sottovoce.privacy.gdp import gdp_epsilon
from sottovoce.privacy.release import Release

_PENALTIES = [2.0**k for k in range(1, 11)]  # beyond 1024 differences of float32 gradients lose their digits
_RECORD_GRADIENTS_PER_SECOND = 1e6  # a rough figure for one core, to turn costs into hours
_MOVED = 2.0  # replace-one: a record's contribution moves by twice the clip


@dataclass(frozen=True)
class BilevelPlan:
    """Hold a configuration with its prediction: `terms` add up to `predicted`.

    The terms have the theory's form with its constants taken as 1, so figures are for comparing plans, not promises.
    What is guaranteed is the privacy of `messages`, and that the plan keeps within the budget.
    """

    facts: Facts
    n: int
    epsilon: float
    delta: float
    solve: Literal["gap", "apart"]
    steps: int
    inner_steps: int
    penalty: float
    shares: Mapping[str, float]
    terms: Mapping[str, float]
    runner_up: str

    @property
    def predicted(self) -> float:
        """Return the predicted size of the projected hypergradient, up to constants."""
        return sum(self.terms.values())

    @property
    def releases(self) -> int:
        """Return how many releases, and passes over the data, it makes."""
        return self.steps * (2 * self.inner_steps + 1)

    @property
    def messages(self) -> dict[str, Release]:
        """Return clip and noise by name ("y", "penalised", "x"), at the plan's epsilon for full batches."""
        clips, mu = _clips(self.facts, self.solve, self.penalty), _gdp(self.epsilon, self.delta)
        return {
            name: Release(clip, _noise(clip, _uses(name, self.steps, self.inner_steps), self.n, mu, self.shares[name]))
            for name, clip in clips.items()
        }

    @property
    def step_x(self) -> float:
        """Return the step size of x."""
        return 1 / (self.facts.ell * self.facts.kappa**3)

    @property
    def inner_rate(self) -> float:
        """Return the step size of the inner problems."""
        return _rate(self.facts)

    def explain(self) -> str:
        """Return the choice in words."""
        worst = max(self.terms, key=lambda name: self.terms[name])
        shares = ", ".join(f"{name} {share:.0%}" for name, share in self.shares.items())
        terms = ", ".join(f"{name} {value:.3g}" for name, value in self.terms.items())
        return (
            f"{self.steps} steps with {self.inner_steps} inner steps for each of the two inner problems "
            f"({self.releases} passes over {self.n} records), penalty {self.penalty:g}.\n"
            f"The privacy budget goes to {shares}.\n"
            f"Predicted hypergradient {self.predicted:.3g}, up to constants: {terms}. What limits it is {worst}.\n"
            f"{self.runner_up}"
        )


def plan(
    facts: Facts,
    n: int,
    epsilon: float,
    delta: float = 1e-5,
    budget: int = 1000,
    solve: Literal["gap", "apart"] = "gap",
    inner_steps: int | Literal["paper"] | None = None,
) -> BilevelPlan:
    """Choose steps, inner steps, penalty and the split of the noise for n records and `budget` passes over them.

    It predicts the size of the projected hypergradient at the output by a sum of five terms, and picks the smallest on
    a grid. `sottovoce.papers.dp_bilevel.planning.planned` makes the method.

    Args:
        facts: the problem's public constants.
        n, epsilon, delta: records and privacy, full batches, replace-one adjacency.
        budget: the most releases, each a pass over the data.
        solve: how the penalised problem is solved, as in `DpBilevel`.
        inner_steps: fixed beforehand; "paper" asks for its n^2 steps per round, which is refused with its cost when the
            budget does not allow it.

    >>> best = plan(Facts(dx=20, dy=100, kappa=2.0), n=100_000, epsilon=1.0, budget=500)
    >>> best.releases <= 500
    True
    """
    if budget < 3:
        raise ValueError(f"budget is {budget}: one step takes at least three passes over the data")
    if inner_steps == "paper":
        inner_steps = _paper_steps(facts, n, epsilon, budget)
    mu = _gdp(epsilon, delta)
    tried = [
        _evaluate(facts, n, epsilon, delta, mu, solve, steps, inner, penalty)
        for steps in _grid(budget // 3)
        for inner in ([inner_steps] if inner_steps else _grid(100))
        for penalty in _PENALTIES
        if steps * (2 * inner + 1) <= budget
    ]
    if not tried:
        raise ValueError(
            f"{inner_steps} inner steps do not fit a budget of {budget} passes: lower the one or raise the other"
        )
    best = min(tried, key=lambda p: p.predicted)
    others = [p for p in tried if (p.steps, p.inner_steps) != (best.steps, best.inner_steps)]
    if others:
        second = min(others, key=lambda p: p.predicted)
        text = f"Next best: {second.steps} steps, {second.inner_steps} inner steps, predicted {second.predicted:.3g}."
        best = replace(best, runner_up=text)
    return best


def _evaluate(
    facts: Facts,
    n: int,
    epsilon: float,
    delta: float,
    mu: float,
    solve: Literal["gap", "apart"],
    steps: int,
    inner: int,
    penalty: float,
) -> BilevelPlan:
    ell, kappa, convex = facts.ell, facts.kappa, facts.mu
    clips, rate = _clips(facts, solve, penalty), _rate(facts)
    settled = math.sqrt(facts.dy * rate / (convex * (2 - rate * convex)))  # error of noisy descent per unit of noise
    if solve == "gap":
        weight = {"y": ell * (1 + kappa) * settled, "penalised": ell * settled, "x": math.sqrt(facts.dx)}
    else:
        weight = {"y": penalty * ell * settled, "penalised": penalty * ell * settled, "x": math.sqrt(facts.dx)}
    cost = {k: weight[k] * _noise(clips[k], _uses(k, steps, inner), n, mu, 1.0) for k in weight}
    # Sum of cost / sqrt(share) is smallest for shares in proportion to cost^(2/3).
    whole = sum(value ** (2 / 3) for value in cost.values())
    shares = {k: value ** (2 / 3) / whole for k, value in cost.items()}
    smooth = ell * kappa**3
    left = (1 - rate * convex) ** inner  # of the distance that the inner solution moves from step to step
    moves = kappa * math.sqrt(facts.drop / (smooth * steps))
    lag = ell * (1 + kappa) * moves * left / (1 - left) if left < 1 else math.inf
    terms = {
        "outer steps": math.sqrt(facts.drop * smooth / steps),
        "penalty bias": smooth / penalty,
        "inner lag": lag,
        "inner noise": sum(cost[k] / math.sqrt(shares[k]) for k in ("y", "penalised")),
        "outer noise": cost["x"] / math.sqrt(shares["x"]),
    }
    return BilevelPlan(
        facts, n, epsilon, delta, solve, steps, inner, penalty, shares, terms, "Nothing else fits the budget."
    )


def _clips(facts: Facts, solve: str, penalty: float) -> dict[str, float]:
    """Return bounds that never cut, if ell and kappa are true."""
    wide = facts.ell * (1 + facts.kappa)
    return {"y": facts.ell, "penalised": wide if solve == "gap" else facts.ell * (1 + 1 / penalty), "x": wide}


def _rate(facts: Facts) -> float:
    """Return the best constant step for curvatures between mu and ell: no learning rate to tune."""
    return 2 / (facts.ell + facts.mu)


def _uses(name: str, steps: int, inner: int) -> int:
    return steps if name == "x" else steps * inner


def _noise(clip: float, uses: int, n: int, mu: float, share: float) -> float:
    """Return the deviation on the mean with which `uses` releases spend this share of mu^2."""
    return _MOVED * clip * math.sqrt(uses / share) / (n * mu)


def _gdp(epsilon: float, delta: float) -> float:
    """Return the mu whose epsilon at delta is the wanted one."""
    if not epsilon > 0 or not 0 < delta < 1:
        raise ValueError(f"epsilon {epsilon}, delta {delta}: give a positive epsilon and a delta between 0 and 1")
    from scipy.optimize import brentq

    return float(brentq(lambda mu: gdp_epsilon(mu, delta) - epsilon, 1e-6, 100.0 * (1 + epsilon), xtol=1e-13))


def _grid(most: int) -> list[int]:
    """Return whole numbers that grow by a fifth."""
    return sorted({round(1.2**k) for k in range(200) if round(1.2**k) <= most})


def _paper_steps(facts: Facts, n: int, epsilon: float, budget: int) -> int:
    paper = assignment(facts, n, epsilon)
    if paper.releases > budget:
        hours = paper.releases * n / _RECORD_GRADIENTS_PER_SECOND / 3600
        raise ValueError(
            f"the paper's n^2 = {n**2:,} inner steps per round, {len(paper.radii)} rounds, two problems and "
            f"{paper.steps} steps make {paper.releases:.3g} passes over {n:,} records, about {hours:.3g} hours on one "
            f"core, against a budget of {budget:,}: leave inner_steps out, and 30 to 100 of them do"
        )
    return paper.inner_steps * len(paper.radii)
