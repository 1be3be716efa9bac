"""The rates of DP bilevel optimisation, the parameters that its theory assigns, and a planner.

Kornowski, "Differentially private bilevel optimization", 2024: Theorems 3.1, 4.1 and 5.1, Lemma A.1, Theorems A.2 and
B.1. All rates are up to constants and logarithms, as printed: they tell how an error scales and which term rules, not
its size. Two slips in the powers of ell, which is 1 in most uses: Theorem 5.1 prints ell^(1/4) in its first constant
where 3.1 and 4.1 have ell^(3/4) (its proof only adds a term to theirs, so 3/4 is used throughout); and inserting the
penalty ell kappa^3 / alpha into Lemma 3.4 gives ell^(5/2) in (15), not ell^(3/2), so the second constant should have
ell^(5/6) where ell^(1/2) is printed and used here.

Three questions, three functions. Example for 10 outer and 10 inner coordinates and 1000 records at epsilon 1:

>>> facts = Facts(dx=10, dy=10, kappa=2.0)
>>> round(rate(facts, n=1000, epsilon=1.0).total, 2)         # how large an error does Theorem 3.1 predict?
0.66
>>> assignment(facts, n=1000, epsilon=1.0).inner_steps       # what does the paper assign?
1000000
>>> plan(facts, n=1000, epsilon=1.0, budget=500).steps       # what is best within 500 passes over the data?
9
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sottovoce.privacy import published
from sottovoce.privacy.gdp import gdp_epsilon
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling, WithReplacement
from sottovoce.schedules import Decay
from sottovoce.theory.bound import ErrorBound

_PENALTIES = [2.0**k for k in range(1, 11)]  # beyond 1024 differences of float32 gradients lose their digits
_RECORD_GRADIENTS_PER_SECOND = 1e6  # a rough figure for one core, to turn costs into hours
_MOVED = 2.0  # replace-one: a record's contribution moves by twice the clip
CONSTANT = 3600.0  # Theorem 3.1's absolute constant, from the paper's own lemmas: 2 * 18 * (sensitivity 10 ell kappa)^2


@dataclass(frozen=True)
class Conditioning:
    """The paper's constants: `ell` bounds all gradients and Lipschitz constants, `kappa` is ell over g's convexity."""

    ell: float
    kappa: float


@dataclass(frozen=True)
class Facts:
    """What the theory knows of a problem; all of it public.

    Args:
        dx, dy: numbers of coordinates of x and y.
        ell: bounds the gradients, Lipschitz and Hessian-Lipschitz constants of both levels, for every record.
        kappa: ell over the lower level's strong convexity.
        drop: how far F(x0) lies above the infimum of F.

    >>> Facts(dx=20, dy=100).mu
    1.0
    """

    dx: int
    dy: int
    ell: float = 1.0
    kappa: float = 1.0
    drop: float = 1.0

    def __post_init__(self) -> None:
        if min(self.dx, self.dy) < 1 or not min(self.ell, self.drop) > 0 or not self.kappa >= 1:
            raise ValueError(f"{self}: dimensions count from 1, ell and drop are positive, kappa is at least 1")

    @property
    def mu(self) -> float:
        """The strong convexity of the lower level."""
        return self.ell / self.kappa


def rate(
    facts: Facts, n: int, epsilon: float, batch: int | None = None, population: bool = False, gap: bool = False
) -> ErrorBound:
    """Return the predicted size of the projected hypergradient at the output.

    Theorem 3.1; with `batch` (of the step of x) Theorem 4.1; with `population`, for the distribution that the records
    come from, Theorem 5.1. `gap` replaces the inner term by that of ``DpBilevel(solve="gap")``, whose inner noise is
    not multiplied by the penalty: exponent 1/2 in place of 1/3. That one is argued along the paper's lines (its
    beta = ell kappa^2 sqrt(dy T) / (epsilon n) has no penalty in it), not proved.

    >>> print(rate(Facts(dx=100, dy=10_000), n=1_000_000, epsilon=1.0))
    0.0496 (outer noise 0.00316, inner noise 0.0464), up to constants and logarithms
    >>> print(rate(Facts(dx=100, dy=10_000), n=1_000_000, epsilon=1.0, gap=True))
    0.0132 (outer noise 0.00316, inner noise 0.01), up to constants and logarithms
    """
    if n < 1 or not epsilon > 0 or (batch is not None and not 1 <= batch <= n):
        raise ValueError(f"n = {n}, epsilon = {epsilon}, batch = {batch}: give n >= 1, epsilon > 0, a batch up to n")
    ell, kappa, drop = facts.ell, facts.kappa, facts.drop
    outer, inner = math.sqrt(facts.dx) / (epsilon * n), math.sqrt(facts.dy) / (epsilon * n)
    terms = {"outer noise": drop**0.25 * ell**0.75 * kappa**1.25 * outer**0.5}
    if gap:
        terms["inner noise"] = drop**0.25 * ell**0.75 * kappa**1.75 * inner**0.5
    else:
        terms["inner noise"] = drop ** (1 / 6) * ell**0.5 * kappa ** (11 / 6) * inner ** (1 / 3)
    if batch is not None:
        terms["batch"] = ell * kappa / batch
    if population:
        terms["sampling of records"] = ell * kappa * math.sqrt(facts.dx / n)
    return ErrorBound(terms, "constants and logarithms")


@dataclass(frozen=True)
class Assignment:
    """The paper's parameters for an accuracy alpha (constants taken as 1)."""

    alpha: float
    steps: int
    penalty: float
    step_x: float
    inner_steps: int
    radii: tuple[float, ...]

    @property
    def releases(self) -> int:
        """Inner and outer releases in all."""
        return self.steps * (2 * len(self.radii) * self.inner_steps + 1)


def assignment(facts: Facts, n: int, epsilon: float, first_radius: float = 1.0) -> Assignment:
    """Return Theorem 3.1's penalty, steps and step size, and Theorem B.1's rounds: n^2 steps each, in shrinking balls.

    >>> paper = assignment(Facts(dx=10, dy=10), n=1000, epsilon=1.0)
    >>> paper.inner_steps, len(paper.radii)
    (1000000, 2)
    """
    alpha = rate(facts, n, epsilon).total
    steps = math.ceil(facts.drop * facts.ell * facts.kappa**3 / alpha**2)
    share = epsilon / math.sqrt(18 * steps)
    reach = facts.kappa / (share * n)  # L / (mu epsilon' n)
    rounds = _rounds(reach)
    return Assignment(
        alpha=alpha,
        steps=steps,
        penalty=facts.ell * facts.kappa**3 / alpha,
        step_x=1 / (facts.ell * facts.kappa**3),
        inner_steps=n**2,
        radii=shrinking_radii(first_radius, rounds, reach, facts.dy),
    )


def shrinking_radii(first: float, rounds: int, reach: float, dy: int) -> tuple[float, ...]:
    """Return the radii of DP-Loc-(S)GD's balls: R' = sqrt(R reach) + reach sqrt(dy), with reach = L / (mu epsilon' n).

    >>> [round(radius, 3) for radius in shrinking_radii(1.0, 3, reach=0.01, dy=4)]
    [1.0, 0.12, 0.055]
    """
    radii = [first]
    while len(radii) < rounds:
        radii.append(math.sqrt(radii[-1] * reach) + reach * math.sqrt(dy))
    return tuple(radii)


def _rounds(reach: float) -> int:
    """Return Theorem B.1's M = log2 log(1 / reach), at least 1."""
    return max(1, math.ceil(math.log2(max(2.0, math.log(max(math.e, 1 / reach))))))


@dataclass(frozen=True)
class InnerNumbers:
    """One inner solve of the printed algorithm: steps per round, step sizes, a radius per round, clip and noise."""

    steps: int
    rate: Decay
    radii: tuple[float, ...]
    release: Release


@dataclass(frozen=True)
class PaperNumbers:
    """All numbers of the printed algorithm. The penalised problem is f / penalty + g, so its noise is over penalty."""

    steps: int
    penalty: float
    step_x: float
    release_x: Release
    y: InnerNumbers
    penalised: InnerNumbers


def paper_numbers(
    facts: Facts,
    n: int,
    epsilon: float,
    delta: float,
    steps: int | None = None,
    inner_steps: int | None = None,
    first_radius: float = 1.0,
) -> PaperNumbers:
    """Return the numbers of Algorithms 1 to 4 for a target (epsilon, delta) on n records.

    - Theorem 3.1: penalty, step size, T (`steps`), and the noise of x, sigma^2 = C ell^2 kappa^2 T log(T/delta) /
      (epsilon n)^2 with C = 3600 from the paper's own lemmas (sensitivity 10 ell kappa / n, so a clip of 5 ell kappa).
    - Algorithm 1, line 3: each inner solve has the budget epsilon' = epsilon / sqrt(18 T), delta' = delta / (3 T).
    - Theorem B.1 for a problem that is mu-strongly convex and L-Lipschitz: step sizes 1 / (mu (t+1)), n^2 steps
      per round (`inner_steps`), noise sigma_GD = L / epsilon', shrinking radii. With another number of steps its
      composition argument gives sigma_GD = L sqrt(steps) / (n epsilon').
    - Lemma A.1: L = ell, mu = ell / kappa for g; L = 2 penalty ell, mu = penalty ell / (2 kappa) for f + penalty g.

    The factors that the paper hides in O and O~ are 1, except for C.

    >>> numbers = paper_numbers(Facts(dx=10, dy=10), n=1000, epsilon=1.0, delta=1e-5, steps=18)
    >>> round(numbers.y.release.scale(0), 6), numbers.y.steps, numbers.penalised.release.clip
    (18.0, 1000000, 2.0)
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}: give a number between 0 and 1")
    paper = assignment(facts, n, epsilon, first_radius)
    T, T_inner = steps or paper.steps, inner_steps or paper.inner_steps
    ell, kappa, share = facts.ell, facts.kappa, epsilon / math.sqrt(18 * T)

    def inner(L: float, mu: float) -> InnerNumbers:
        reach = L / (mu * share * n)
        radii = shrinking_radii(first_radius, _rounds(reach), reach, facts.dy)
        return InnerNumbers(T_inner, Decay(1 / mu, 1.0), radii, Release(L, L * math.sqrt(T_inner) / (n * share)))

    sigma = published.dp_bilevel(1.0, ell, kappa, T, n, delta, CONSTANT) / epsilon  # linear in 1 / sigma
    lower, penalised = inner(ell, facts.mu), inner(2 * ell, facts.mu / 2)
    return PaperNumbers(T, paper.penalty, paper.step_x, Release(5 * ell * kappa, sigma), lower, penalised)


def printed_epsilon(
    conditioning: Conditioning | None,
    release_x: Release | None,
    sampling_x: Sampling,
    sizes: Mapping[str, Sequence[int]],
    steps: int,
    delta: float,
) -> float | None:
    """Return Theorem 3.1's epsilon with the constant of its own lemmas, for the smallest data set.

    It is for noise on x, declared constants, one set of records for both levels, delta > 0, and full batches or batches
    with replacement (Theorem 4.1); None otherwise. What it leaves out is said in `caveats`.

    >>> sizes = {"records": [10_000]}
    >>> round(printed_epsilon(Conditioning(1.0, 10.0), Release(1.0, 60.0), Full(), sizes, 100, 1e-5), 8)
    0.04014735
    """
    if conditioning is None or release_x is None or len(sizes) > 1 or not delta > 0:
        return None
    n, sigma = min(min(numbers) for numbers in sizes.values()), float(release_x.scale(0, 0))
    if not isinstance(sampling_x, (Full, WithReplacement)) or not sigma > 0:
        return None
    return published.dp_bilevel(sigma, conditioning.ell, conditioning.kappa, steps, n, delta, CONSTANT)


def caveats(has_release_x: bool, has_published: bool) -> list[str]:
    """List what the account relies on, and what the paper's epsilon does not cover.

    >>> caveats(has_release_x=False, has_published=False)
    ['records never meet x: its direction is computed from released values and costs nothing']
    """
    notes = []
    if not has_release_x:
        notes.append("records never meet x: its direction is computed from released values and costs nothing")
    if has_published:
        notes.append(
            "the published epsilon (Theorem 3.1) is for the noise of x alone, drops a logarithm in composition and "
            "bounds the sensitivity at exact inner minimisers"
        )
    return notes


# A planner: how to spend (epsilon, delta) and a compute budget.


@dataclass(frozen=True)
class BilevelPlan:
    """A configuration with its prediction: `terms` add up to `predicted`.

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
        """The predicted size of the projected hypergradient, up to constants."""
        return sum(self.terms.values())

    @property
    def releases(self) -> int:
        """How many releases, and passes over the data, it makes."""
        return self.steps * (2 * self.inner_steps + 1)

    @property
    def messages(self) -> dict[str, Release]:
        """Clip and noise by name ("y", "penalised", "x"), at the plan's epsilon for full batches."""
        clips, mu = _clips(self.facts, self.solve, self.penalty), _gdp(self.epsilon, self.delta)
        return {
            name: Release(clip, _noise(clip, _uses(name, self.steps, self.inner_steps), self.n, mu, self.shares[name]))
            for name, clip in clips.items()
        }

    @property
    def step_x(self) -> float:
        """The step size of x."""
        return 1 / (self.facts.ell * self.facts.kappa**3)

    @property
    def inner_rate(self) -> float:
        """The step size of the inner problems."""
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
    a grid. `sottovoce.methods.planning.planned` makes the method.

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
