"""Choose method, clip, sampling, steps, rates and the split of the noise from public facts only: `auto`.

Example: ``plan = sv.auto(problem, parts, epsilon=1.0, network=network)``, and then ``sv.run(problem, parts,
**plan.settings)``. Facts are sizes, dimensions, epsilon, delta, the network and the declared bound on a row: no record
is read. The rules are few, and were settled on public tables other than the ones that the documents report.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from sottovoce.accounting import sums
from sottovoce.accounting.account import check_network
from sottovoce.accounting.advice import before as advice_before
from sottovoce.accounting.calibrate import calibrate
from sottovoce.data.population import Population
from sottovoce.methods.base import Method
from sottovoce.methods.base_rate import BaseRate
from sottovoce.methods.dp_newton import DpNewton
from sottovoce.methods.dp_sgd import DpSgd
from sottovoce.methods.dp_sgda import DpSgda
from sottovoce.naming import check_count, unknown
from sottovoce.networks import Network, checks
from sottovoce.optimisers import Adam, Momentum
from sottovoce.papers.ldp_dsbo.method import LdpDsbo
from sottovoce.privacy.gdp import gdp_mu
from sottovoce.privacy.mechanisms import Adjacency, check_adjacency, check_delta, check_epsilon, clips_moved
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full
from sottovoce.privacy.summed import Summed
from sottovoce.privacy.trust import Sum
from sottovoce.problems import Bilevel, Minimize, MinMax
from sottovoce.schedules import Constant, Linear

WIDEST = 1024  # entries of a row up to which its second moments are released
_AGREE = 1e-3  # the share of a disagreement that is left after mixing
_LOUD, _QUIET = 4e-3, 1.5e-3  # noise of a whitened gradient over the signal: where few steps, and where many, are best
_FEW, _MANY = 8, 32  # numbers of steps at _LOUD and at _QUIET
_UNEASY = 8e-3  # the same ratio, above which a narrower clip and shorter steps are better
_SHARE = 0.25  # share of the budget for the moments
_HOPELESS = 0.1  # noise of all gradients together over the longest possible gradient
_LONGEST, _JUDGING = 2.0, 3.0  # clip of a loss; noise of losses over that of gradients, each against its clip
_UNRULY = 1.0  # a spread of scores that changes odds by a factor of e
# What slopes gain over the base rate in mean loss while noise is far below the signal, the noise over the signal at
# which half of it is heard, and what they lose far above it. `python -m benchmarks.no_cliff choose 6` finds them on
# public tables: gain and half by least squares; the harm is such that no choosing table loses more than 0.02.
_SIGNAL, _HALF, _HARM = 0.111, 0.0372, 0.0413


@dataclass(frozen=True)
class Plan:
    """Hold what `auto` chose: `settings` are arguments for `sv.run`, `why` is the reason in three lines.

    Of a linear model several plans are known, and the one with the best expected `gain` over the noisy base rate is
    taken. `BaseRate` is the one that predicts the base rate alone. `spread` says how far noise is expected to move a
    typical record's score, where this is known; with a spread of 1 the odds change by a factor of e from run to run.
    `warnings` name what a user should look at before the run.
    """

    method: Method
    steps: int
    network: Network | None
    trust: Sum | None
    delta: float
    adjacency: Adjacency
    why: tuple[str, ...]
    spread: float | None = None
    gain: float | None = None  # expected, in the mean loss over the noisy base rate; None where this is not known
    advice: tuple[str, ...] = ()  # warnings about parties and delta, which `sv.run` gives too
    expected: tuple[str, ...] = ()  # warnings about what noise will do

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return all that a user should look at before the run."""
        return (*self.advice, *self.expected)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the arguments of `sv.run` after problem and data."""
        return {name: getattr(self, name) for name in ("method", "steps", "network", "trust", "delta", "adjacency")}

    def __str__(self) -> str:
        return "\n".join((*self.why, *(f"warning: {line}" for line in self.warnings)))


def auto(
    problem: Any,
    data: Any,
    *,
    epsilon: float | None,
    delta: float = 1e-5,
    network: Network | None = None,
    trust: Sum | None = None,
    adjacency: Adjacency = "zero-out",
    norm: float | None = None,
    steps: int | None = None,
    **by_hand: Any,
) -> Plan:
    """Choose a method with all its settings, calibrated for epsilon, from public facts only.

    Args:
        problem: `Minimize`, `MinMax` or `Bilevel`. With `LinearModel` (the tasks softmax, logistic and ridge) much more
            is known, and the choice is better.
        data: the parties' parts, or a `Population`. Only sizes are read.
        epsilon: of the worst party; None is for a comparison without privacy.
        delta: of the statement.
        network: who talks to whom; needed for more than one party.
        trust: ``sv.Sum(colluding=1)`` for a run by secure sums, whose parties share one noise and need no network.
        adjacency: "zero-out", or "replace-one", which needs twice the noise.
        norm: bound on the L2 norm of a record's features. By default that of the declared table (`sv.data.table`),
            otherwise 1.
        steps: takes the place of the number that would be chosen.
        by_hand: fields of the chosen method that take the place of its own, for example ``rate=1.0``.

    >>> import sottovoce as sv
    >>> from sottovoce.problems.tasks import Shape, get
    >>> problem = get("logistic")(Shape((10,), classes=2, agents=5)).problem
    >>> clinics = sv.Population([3000, 1500, 900, 400, 200])
    >>> plan = sv.auto(problem, clinics, epsilon=1.0, network=sv.networks.complete(5))
    >>> print(plan)
    DpNewton: ...
    8 steps ...
    noise ...
    """
    population, factor = Population.of(data), 0.0
    if trust is not None:
        summed = Summed(sums.checked(trust, network), population)
        population, factor = summed.program, summed.factor
    network = check_network(network, population.parties) if population.parties > 1 or network is not None else None
    epsilon = None if epsilon is None else check_epsilon(epsilon)
    facts = Facts.of(population, epsilon, check_delta(delta), check_adjacency(adjacency), norm, factor)
    if facts.summed:
        sums.refuse_weights(problem)
    chosen = _best(_known(problem, facts, network), by_hand)
    if steps is not None:
        check_count("steps", steps)
        chosen = dataclasses.replace(chosen, steps=steps)
    method = _set_by_hand(chosen.method, by_hand)
    if epsilon is None:
        method = method.without_privacy()
    else:
        parts = {} if isinstance(data, Population) and not data.records else {"problem": problem}
        method = calibrate(
            method,
            data,
            epsilon=epsilon,
            steps=chosen.steps,
            network=network,
            delta=delta,
            adjacency=adjacency,
            trust=trust,
            **parts,
        )
    advice = advice_before(population, delta if epsilon is not None else 0.0, shared_noise=False)
    expected = _expected(problem, facts, chosen)
    why, spread, gain = chosen.why, chosen.spread, chosen.gain
    return Plan(method, chosen.steps, network, trust, delta, adjacency, why, spread, gain, advice, expected)


@dataclass(frozen=True)
class Facts:
    """Hold what is public about a run."""

    sizes: np.ndarray
    norm: float  # of a record's features
    mu: float  # of the Gaussian mechanism that spends epsilon, for one clip; infinite without privacy
    summed: bool = False  # whether these are the rows of all parties, who share one noise

    @classmethod
    def of(
        cls,
        population: Population,
        epsilon: float | None,
        delta: float,
        adjacency: Adjacency,
        norm: float | None = None,
        factor: float = 0.0,
    ) -> "Facts":
        """Gather the facts of a population and a budget; `factor` is what a secure sum draws over what it charges."""
        sizes = np.max(np.stack(list(population.counts.values())), axis=0)
        mu = math.inf if epsilon is None else gdp_mu(epsilon, max(delta, 1e-12)) / clips_moved(adjacency)
        return cls(sizes, norm or population.facts.norm or 1.0, mu / (factor or 1.0), factor > 0)

    @property
    def rows(self) -> int:
        """Return how many records (or units) there are."""
        return int(self.sizes.sum())

    @property
    def parties(self) -> int:
        """Return how many parties there are."""
        return len(self.sizes)

    @property
    def fitted(self) -> str:
        """Say what the noise fits."""
        if self.summed:
            return "parties share one noise, which fits the number of all their records"
        return "each party's noise fits its size, so that all spend the same"

    def noise(self, clip: float, multiplier: float) -> Constant:
        """Return noise that is the same multiple of each party's own sensitivity, so that all spend alike."""
        each = tuple(float(clip * multiplier / size) for size in self.sizes)
        return Constant(each[0] if self.summed else each)


@dataclass(frozen=True)
class _Choice:
    method: Method
    steps: int
    why: tuple[str, ...]
    spread: float | None = None
    gain: float | None = None


def _known(problem: Any, facts: Facts, network: Network | None) -> list[_Choice]:
    """Return the plans that are known for a problem, the usual one first."""
    if isinstance(problem, Minimize):
        if problem.linear is None:
            return [_descent(problem, facts)]
        usual = _newton(problem, facts, network) if _entries(problem) <= WIDEST else _plain(problem, facts)
        gain = _gain(_loudness(problem, facts))
        return [dataclasses.replace(usual, gain=gain), _base_rate(problem, facts, network)]
    if isinstance(problem, MinMax):
        told = problem.weighted is not None and _entries(problem) <= WIDEST
        return [_newton(problem, facts, network) if told else _saddle(problem, facts)]
    if isinstance(problem, Bilevel):
        return [_tuned(facts)]
    raise TypeError(f"auto chooses for Minimize, MinMax and Bilevel, not for {type(problem).__name__}: give a method")


def _best(plans: list[_Choice], by_hand: dict[str, Any]) -> _Choice:
    """Return the plan with the best expected gain, among those that have the settings that are given by hand."""
    fitting = [plan for plan in plans if all(hasattr(plan.method, name) for name in by_hand)]
    return max(fitting or plans[:1], key=lambda plan: plan.gain or 0.0)


def _entries(problem: Minimize | MinMax) -> int:
    """Return how many numbers a row has, the one of the intercept included."""
    return 1 + int(np.shape(problem.x0["weights"])[0])


def _loudness(problem: Minimize | MinMax, facts: Facts) -> float:
    """Return the noise of a mean gradient of typical records over their signal, if all budget went into it."""
    numbers = _entries(problem) * math.prod(np.shape(problem.x0["bias"]))
    return math.sqrt(facts.parties * numbers) / (facts.mu * facts.rows)


def _gain(loudness: float) -> float:
    """Return by how much slopes are expected to lower the mean loss below the noisy base rate's."""
    heard = 1 / (1 + loudness / _HALF)
    return _SIGNAL * heard - _HARM * (1 - heard)


def _expected(problem: Any, facts: Facts, chosen: _Choice) -> tuple[str, ...]:
    """Return the warnings about what noise will do."""
    remedy = "Use fewer columns, more rows, or a larger epsilon"
    name = type(chosen.method).__name__
    if isinstance(chosen.method, BaseRate):
        return (
            f"{name} predicts the noisy base rate, the same for every record: with this noise slopes are expected to "
            f"be worse. {remedy}",
        )
    if chosen.gain is not None and chosen.gain < 0:
        return (
            f"{name} is expected to be worse than the base rate, by {-chosen.gain:.2g} in the mean loss; without "
            f"settings of {name} by hand, auto takes BaseRate. {remedy}",
        )
    count = sum(np.size(leaf) for leaf in jax.tree.leaves(problem.x0))
    unruly = (chosen.spread or 0.0) > _UNRULY
    if not unruly and math.sqrt(facts.parties * count) / (facts.mu * facts.rows) <= _HOPELESS:
        return ()
    moved = "" if chosen.spread is None else f" (a typical record's score by {chosen.spread:.2g})"
    return (
        f"noise is expected to move the model much{moved}: it may be no better than guessing, and differ from run to "
        f"run. {remedy}",
    )


def _base_rate(problem: Minimize, facts: Facts, network: Network | None) -> _Choice:
    assert problem.linear is not None
    clip = problem.linear.residual
    why = (
        f"BaseRate: noise has {_loudness(problem, facts):.2g} of the signal's size for rows of "
        f"{_entries(problem) - 1} numbers, so slopes are expected to be worse than none",
        "1 step on all records: the noisy shares of the classes (of a number: its noisy mean) are all that is learned",
        facts.fitted,
    )
    return _Choice(BaseRate(Release(clip, facts.noise(clip, 1.0)), _rounds(network)), 1, why, gain=0.0)


def _newton(problem: Minimize | MinMax, facts: Facts, network: Network | None) -> _Choice:
    robust, entries, noise = isinstance(problem, MinMax), _entries(problem), _loudness(problem, facts)
    known = problem.linear if isinstance(problem, Minimize) else None
    if isinstance(problem, MinMax) and problem.weighted is not None:
        known = problem.weighted.model
    assert known is not None
    # The quieter the gradients, the more of them pay: from 8 steps at _LOUD to 32 at _QUIET, with a wider clip.
    quiet = 0.0 if noise == 0 else math.log(_LOUD / noise) / math.log(_LOUD / _QUIET)
    quiet = 1.0 if noise == 0 else min(max(quiet, 0.0), 1.0)
    steps = round(_FEW * (_MANY / _FEW) ** quiet)
    fitted = known.target is not None
    # Louder gradients pay with their noise for what a wide clip keeps: clip and rate fall with the root of the noise.
    calm = 1.0 if noise <= _UNEASY else math.sqrt(_UNEASY / noise)
    share, rate, reach = (0.4, 1.0, 1.5) if fitted else (_SHARE, 1.5 * calm, 1.5 * 1.5**quiet * calm)
    if math.isinf(facts.mu):
        steps = 2 * _MANY
    multiplier = math.sqrt(steps * (1 + robust / _JUDGING**2) / (1 - share))
    mixing = _rounds(network)
    method = DpNewton(
        moments=Release(known.bound, facts.noise(known.bound, 1 / math.sqrt(share))),
        gradient=Release(1.0, facts.noise(1.0, multiplier)),
        norm=facts.norm,
        rate=rate,
        reach=reach,
        mixing=mixing,
        trust=0.0 if math.isinf(facts.mu) else 1.0,
        losses=Release(_LONGEST, facts.noise(_LONGEST, _JUDGING * multiplier)) if robust else None,
    )
    averaged = max(1.0, method.tail * steps / 2)
    spread = entries * reach * known.residual * multiplier * math.sqrt(facts.parties) / (facts.mu * facts.rows)
    spread *= rate / known.curvature / math.sqrt(averaged)
    moved = "" if fitted or spread == 0 else f"; from run to run noise moves a typical score by about {spread:.1g}"
    alone = facts.fitted if facts.summed else "the noise fits the number of records"
    averaged_over = "parties weigh by their released losses" if robust else "averages over records"
    together = (
        f"each party's noise fits its size, so that all spend the same; {averaged_over}, in {mixing} "
        f"{'round' if mixing == 1 else 'rounds'} of mixing"
    )
    why = (
        f"DpNewton: the model is linear in rows of {entries - 1} numbers of norm {facts.norm:.3g} at most, so their "
        f"noisy second moments ({share:.0%} of the budget) show where the loss is steep; a column that uses a small "
        "part of its declared range is hardly seen",
        f"{steps} steps on all records, because the noise has {noise:.2g} of the signal's size ({_MANY} steps below "
        f"{_QUIET:g}, {_FEW} above {_LOUD:g}); rate {rate:.3g} of Newton's own is stable by the bound on the curvature"
        f"{moved}",
        f"{alone if facts.parties == 1 else together}; the result is the average of the last half of the steps",
    )
    return _Choice(method, steps, why, None if fitted else spread)


def _plain(problem: Minimize, facts: Facts) -> _Choice:
    """Choose for long rows, of which too many second moments would be released: descent with a known curvature."""
    known, steps = problem.linear, 300
    assert known is not None
    # Gradients are cut to a tenth of the largest: all have one length. The step then is twice the inverse of the
    # curvature where x starts, for rows of a third of the declared norm, half of whose square lies in one direction.
    clip, length = 0.1 * known.residual * facts.norm, facts.norm / 3
    curvature = known.curvature if known.target is not None else min(known.curvature, 1 - known.residual**2)
    rate = 4 * known.residual / (curvature * length * clip)
    method = DpSgd(Linear(rate, 0.02 * rate, steps), Release(clip, facts.noise(clip, 1.0)), Full())
    why = (
        f"DpSgd: rows of more than {WIDEST} numbers have too many second moments, so all directions are treated alike",
        f"{steps} steps on all records; each gradient is cut to length {clip:.3g}, a tenth of the largest that can be, "
        f"so nearly all have this length; a rate that falls from {rate:.3g} follows from the declared norm and the "
        "curvature at the start",
        facts.fitted,
    )
    return _Choice(method, steps, why)


def _descent(problem: Minimize, facts: Facts) -> _Choice:
    """Choose for a loss of which nothing is known: normalised gradients with momentum and a rate that falls."""
    steps = 200
    method = DpSgd(Momentum(Linear(0.2, 0.01, steps), 0.9), Release(1.0, facts.noise(1.0, 1.0)), Full())
    count = sum(leaf.size for leaf in jax.tree.leaves(jax.tree.map(np.asarray, problem.x0)))
    why = (
        f"DpSgd with momentum: of the loss nothing is known but its {count} parameters",
        f"{steps} steps on all records, clip 1, a rate that falls from 0.2 to 0.01: a gradient is used as a direction",
        facts.fitted,
    )
    return _Choice(method, steps, why)


def _saddle(problem: MinMax, facts: Facts) -> _Choice:
    steps = 60
    release = Release(1.0, facts.noise(1.0, 1.0))
    method = DpSgda(
        Momentum(Linear(2.0, 0.2, steps), 0.8), Linear(0.3, 0.05, steps), Full(), release_x=release,
        release_y=release.louder(3.0),
    )  # fmt: skip
    why = (
        "DpSgda: descent in x and ascent in y from the same records",
        f"{steps} steps on all records, clip 1; x moves with momentum, y slowly, to judge an x that has settled",
        f"{facts.fitted}; y, which has few entries, bears three times the noise of x",
    )
    return _Choice(method, steps, why)


def _tuned(facts: Facts) -> _Choice:
    """Choose for a tuned regulariser: no record meets the upper variable. Others need ``release_x=`` by hand."""
    steps, release = 100, Release(1.0, facts.noise(1.0, 1.0))
    rate_y, rate_z = min(8 / facts.norm, 4.0), min(8 / facts.norm**2, 4.0)
    method = LdpDsbo(
        step_x=Adam(0.1), step_y=Linear(rate_y, 0.05 * rate_y, steps), step_z=rate_z, release_y=release,
        release_z=release, z_radius=20.0, sampling=Full(),
    )  # fmt: skip
    why = (
        "LdpDsbo: the upper variable meets no record, so it is tuned without further releases; by Adam, whose steps do "
        "not depend on the size of the penalties",
        f"{steps} steps on all records, clip 1; rates {rate_y:.3g} and {rate_z:.3g} follow from rows of norm "
        f"{facts.norm:.3g} at most",
        f"{facts.fitted}; training and judging bear the same noise",
    )
    return _Choice(method, steps, why)


def _rounds(network: Network | None) -> int:
    """Return how many rounds of averaging bring neighbours within `_AGREE` of each other."""
    if network is None or network.size == 1 or network.alone:
        return 1
    radius = checks.disagreement(network.mix).radius
    return 1 if radius < _AGREE else math.ceil(math.log(_AGREE) / math.log(radius))


def _set_by_hand(method: Method, given: dict[str, Any]) -> Method:
    known = [field.name for field in dataclasses.fields(method)]
    for name in given:
        if name not in known:
            raise ValueError(unknown(f"setting of {type(method).__name__}", name, known))
    return dataclasses.replace(method, **given) if given else method
