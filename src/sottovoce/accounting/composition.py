"""Turn the charges of a traced step into the mechanisms that one unit of an agent takes part in.

Example: a release with clip 1 and noise 0.02 on Poisson batches of 50 out of 1000 records, over 100 steps, is one
Gaussian mechanism with inverse multiplier 1 / 50 / 0.02 = 1, amplified by the rate 0.05, 100 times.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sottovoce.accounting.trace import Charge
from sottovoce.data.parts import Bought
from sottovoce.data.population import Population
from sottovoce.privacy.accountant import Mechanism
from sottovoce.privacy.mechanisms import Spent
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Sampling
from sottovoce.schedules import charged


def paid(purchases: Iterable[Bought], steps: range) -> Spent:
    """Return what purchases of noisy counts cost, with step 0: each purchase is one release.

    >>> paid([Bought("counts a", 0.01), Bought("counts b", 0.01)], range(3))
    ((Mechanism(gaussian=0.01, laplace=(), pure=0.0, amplification=NoAmplification()), 2),)
    """
    return tuple(Counter(Mechanism(gaussian=one.gaussian) for one in purchases if 0 in steps).items())


def composed(
    charges: Sequence[Charge], population: Population, agent: int, levels: Sequence[str], steps: range
) -> Spent:
    """Return what some charges cost one unit of an agent's `levels` during `steps`."""
    counts: Counter[Mechanism] = Counter()
    groups: dict[tuple[Any, ...], list[Charge]] = {}
    for charge in charges:
        if charge.sampling is not None:
            groups.setdefault((charge.phase, charge.batch), []).append(charge)
    for (phase, _), group in groups.items():
        times = np.asarray(steps if phase == "step" else range(0 in steps), dtype=np.int64)
        for level in levels:
            for mechanism, count in _group(group, population, agent, level, times, levels):
                counts[mechanism] += count
    return tuple(counts.items())


def _group(
    group: list[Charge],
    population: Population,
    agent: int,
    level: str,
    times: np.ndarray,
    paying: Sequence[str],
) -> list[tuple[Mechanism, int]]:
    """Return the releases that share a batch as one mechanism per step: privacy is lost jointly, not separately.

    A unit with records in both levels moves both means of a release that reads both, under one noise: its law says
    what each level pays then (`Noise.terms`).
    """
    own = [charge for charge in group if level in charge.levels]
    if not own or times.size == 0:
        return []
    if times[0] and any(charge.release.law.reaches for charge in own):
        raise ValueError("noise that reaches earlier steps is charged from step 0 on")
    sampling, n = own[0].sampling, int(population.counts[level][agent])
    assert sampling is not None
    gaussian = np.zeros(times.size)
    laplace: list[np.ndarray] = []
    for charge in own:
        paid = {
            other: _inverse_multiplier(charge.release, sampling, int(population.counts[other][agent]), agent, times)
            for other in charge.levels
            if other in paying
        }
        together = sum(paid.values()) if len(paid) > 1 else paid[level]
        try:
            quadratic, linear = charge.release.law.terms(paid[level], np.asarray(together))
        except ValueError as error:
            raise ValueError(f"release {charge.release.name!r} {error}") from None
        gaussian += charge.times * quadratic
        laplace += linear * charge.times
    table = np.stack([gaussian, *laplace])
    if sampling.once:  # a record takes part in one step only: it pays for the most costly one
        table = table.max(axis=1, keepdims=True)
    rows, how_often = np.unique(table, axis=1, return_counts=True)
    event = sampling.event(n)
    return [
        (
            Mechanism(gaussian=float(row[0]), laplace=tuple(row[1:].tolist()), amplification=event),
            int(count) * own[0].batches,
        )
        for row, count in zip(rows.T, how_often)
    ]


def _inverse_multiplier(release: Release, sampling: Sampling, n: int, agent: int, times: np.ndarray) -> np.ndarray:
    """Return zero-out sensitivity over noise scale at each step; infinite where nothing is guaranteed."""
    scale = charged(release.scale, times, agent)
    sensitivity = release.clip / np.broadcast_to(np.asarray(sampling.denominator(n, times), np.float64), times.shape)
    with np.errstate(divide="ignore"):
        return np.where(scale > 0, sensitivity / np.where(scale > 0, scale, 1.0), np.inf)
