"""Find the noise for a wanted epsilon: `calibrate`.

Example: ``calibrate(method, parts, epsilon=2.0, steps=100)`` returns the same method with all its noise multiplied by
one factor, such that the worst party's epsilon is just below 2.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np

from sottovoce.accounting import sums
from sottovoce.accounting.account import Account, account_of
from sottovoce.accounting.table import calibrate_labels
from sottovoce.methods.base import TARGET, Method
from sottovoce.networks import Network
from sottovoce.privacy.accountant import Adjacency
from sottovoce.privacy.mechanisms import check_delta, check_epsilon
from sottovoce.privacy.table import Table
from sottovoce.privacy.trust import Sum

M = TypeVar("M", bound=Method)
_FAR = 1.02  # a run whose epsilon differs from the target by more than this factor gets a warning


@dataclass(frozen=True)
class CalibratedFor:
    """Remember for which epsilon and which run a method was calibrated."""

    epsilon: float
    parties: int
    steps: int
    network: str


def calibrate(
    method: M,
    data: Any,
    *,
    epsilon: float,
    steps: int,
    network: Network | None = None,
    delta: float | None = None,
    adjacency: Adjacency | None = None,
    problem: Any = None,
    tolerance: float = 1e-3,
    trust: Sum | None = None,
) -> M:
    """Return the method with its noise scaled so that the worst agent's epsilon is the wanted one.

    All releases keep their ratio to each other. The result's epsilon lies within `tolerance` (relative) below the
    target, never above it. Where no noise has such an epsilon, it is the largest one below the target that can be
    reached, and a warning names both. The method remembers the target: `sv.run` warns if it is run for other data,
    another network or another number of steps. Other arguments as for `account`.

    The batches of a `Table` are those of seed 0. Where fresh noise is drawn at each use, another seed may use a label
    more often: ``sv.run(..., epsilon=..., seed=...)`` calibrates for its own batches.

    >>> import sottovoce as sv
    >>> rough = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(clip=1.0, noise=0.02), sampling=sv.Poisson(100))
    >>> clinics, network = sv.Population([1000] * 5), sv.networks.ring(5)
    >>> tuned = sv.calibrate(rough, clinics, epsilon=1.0, steps=200, network=network)
    >>> 0.999 <= sv.account(tuned, clinics, steps=200, network=network).epsilon <= 1.0
    True
    """
    epsilon = check_epsilon(epsilon)
    if not isinstance(tolerance, float) or not 0 < tolerance < 1:
        raise ValueError(f"tolerance is {tolerance!r}: give a relative error between 0 and 1, such as 1e-3")
    if isinstance(data, Table):
        sums.refuse_for_tables(trust)
        within = 0.0 if delta is None else check_delta(delta)
        return calibrate_labels(method, data, problem, epsilon, steps, within)  # type: ignore[return-value, arg-type]
    within = 1e-5 if delta is None else check_delta(delta)
    rough = account_of(method, data, steps, network, within, adjacency, problem, trust)
    return calibrated(rough, epsilon, tolerance).method  # type: ignore[return-value]  # of the same class


def calibrated(rough: Account, epsilon: float, tolerance: float = 1e-3) -> Account:
    """Return the account of the same run with its noise scaled, as `calibrate` says; its method remembers the target.

    >>> import sottovoce as sv
    >>> rough = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(clip=1.0, noise=0.02), sampling=sv.Poisson(100))
    >>> 0.999 <= calibrated(account_of(rough, sv.Population([1000]), steps=200), epsilon=1.0).report.epsilon <= 1.0
    True
    """
    _require_scalable(rough.method)
    found = _scaled(rough, epsilon, tolerance)
    if found.report.epsilon > epsilon:  # its step does more with noise than draw it: trace every trial
        found = rough.of_louder(_factor(rough.of_louder, epsilon, tolerance))
    reached = found.report.epsilon
    if reached < epsilon * (1 - 2 * tolerance) / _FAR:
        warnings.warn(
            f"epsilon {epsilon:g} was wanted, and {reached:.4g} is the largest that scaling the noise can reach below "
            "it: with less noise no finite epsilon is proved. Use full batches, or a smaller epsilon",
            stacklevel=3,
        )
    target = CalibratedFor(epsilon, rough.population.parties, rough.steps, rough.network.name)
    object.__setattr__(found.method, TARGET, target)
    return found


def _scaled(rough: Account, epsilon: float, tolerance: float) -> Account:
    """Return the account with its noise scaled, without a new trace per trial.

    A trial computes only the parties that paid most so far: of 10 000 unequal parties one decides, and the others are
    computed twice.
    """
    worst: list[int] = []
    account = rough
    while (most := int(np.argmax(account.report.per_agent))) not in worst:
        worst.append(most)
        account = rough.of_louder(_factor(rough.louder, epsilon, tolerance, worst))
        if account.report.epsilon <= epsilon:
            break
    return account


def check_target(account: Account) -> None:
    """Warn if a calibrated method is about to be run at another epsilon than the one it was calibrated for."""
    target: CalibratedFor | None = getattr(account.method, TARGET, None)
    reached = account.report.epsilon
    if target is not None and not target.epsilon / _FAR <= reached <= target.epsilon * (1 + 1e-9):
        warnings.warn(
            f"{type(account.method).__name__} was calibrated for epsilon {target.epsilon:g} ({target.parties} parties, "
            f"{target.network}, {target.steps} steps), but this run has epsilon {reached:.4g} "
            f"({account.population.parties} parties, {account.network.name}, {account.steps} steps): calibrate it for "
            "this run, or give sv.run(..., epsilon=...)",
            stacklevel=3,
        )


def _require_scalable(method: Method) -> None:
    unbounded = [release.name for release in method.releases() if not release.private]
    if unbounded or not method.releases():
        raise ValueError(
            f"releases {unbounded} have no clip or no noise, so there is nothing to scale: "
            "give each a finite clip and any positive noise (only the ratios matter)"
        )


def _factor(
    louder: Callable[[float], Account], epsilon: float, tolerance: float, agents: Sequence[int] | None = None
) -> float:
    """Return by how much to multiply the noise so that `agents` (all, if not given) stay below the wanted epsilon.

    Epsilon falls as noise grows.
    """

    @cache
    def excess(log_factor: float) -> float:
        account = louder(math.exp(log_factor))
        reached = account.report.epsilon if agents is None else account.epsilon_of(agents)
        if not math.isfinite(reached):
            return 50.0
        return math.log(max(reached, 1e-12)) - math.log(epsilon * (1 - tolerance / 2))

    if excess(0.0) >= 50.0:  # too little noise for a finite epsilon, or a design without a bound at any noise
        loudest = louder(1e12).report
        if not math.isfinite(loudest.epsilon):
            raise ValueError(f"no noise level helps: {loudest.statement()} {' '.join(loudest.caveats)}")
    from scipy.optimize import brentq

    low, high = _bracket(excess)
    root = float(brentq(excess, low, high, xtol=tolerance / 8, rtol=1e-12, maxiter=60))
    while excess(root) > math.log1p(tolerance / 2) * 0.9:  # the last step must land on the safe side
        root += tolerance / 4
    return math.exp(root)


def _bracket(excess: Callable[[float], float]) -> tuple[float, float]:
    """Return log-factors around the root."""
    width = 1.0
    while width < 64:
        low, high = (-width, 0.0) if excess(0.0) < 0 else (0.0, width)
        if excess(low) >= 0 >= excess(high):
            return low, high
        width *= 2
    raise ValueError(
        "the wanted epsilon is out of reach by scaling the noise, even by e^32: change the clip, the batch or the steps"
    )
