"""Audit the five sound designs: how much of the claimed epsilon is detected, and that it is never exceeded."""

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from sottovoce.accounting import calibrate
from sottovoce.audit.auditing import audit
from sottovoce.audit.labels import audit_labels
from sottovoce.data.population import Population
from sottovoce.laboratory.exhibit import Measurement, exhibit, sized
from sottovoce.methods.base import Method
from sottovoce.networks import Network, directed, ring
from sottovoce.papers.dp_bilevel.method import Descent, DpBilevel
from sottovoce.papers.dpmixsgd.method import DpMixSgd
from sottovoce.papers.gradient_tracking.method import DpGradientTracking
from sottovoce.papers.gradient_tracking.theory import Rates
from sottovoce.papers.ldp_dsbo.method import LdpDsbo
from sottovoce.privacy.labels import Memoised
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Poisson, Sampling

EPSILON, DELTA = 3.0, 1e-2  # a large delta, so that some thousand trials have power
SIZES, STEPS = (8, 8), 3
REPEAT, RISK = 20, 1e-3  # of each audit


def designs(sampling: Sampling) -> dict[str, tuple[Method, Network]]:
    """Return the papers' methods in their sound designs for two agents; their noise is still to be calibrated.

    >>> sorted(designs(Poisson(4)))
    ['DpBilevel', 'DpGradientTracking', 'DpMixSgd', 'LdpDsbo']
    """
    one, both = Release(1.0, 1.0), ring(2)
    edges = [(0, 1), (1, 0)]
    return {
        "LdpDsbo": (LdpDsbo(0.1, 0.1, 0.1, one, one, sampling, release_x=one, z_radius=10.0), both),
        "DpGradientTracking": (
            DpGradientTracking(Rates(0.4, 0.4, 0.1), one, sampling),
            directed(pull=edges, push=edges),
        ),
        "DpMixSgd": (DpMixSgd(0.1, 0.1, sampling, release_x=one, release_y=one), both),
        "DpBilevel": (DpBilevel(0.1, Descent(2, 0.5), one, one, sampling, release_x=one), both),
    }


@exhibit(
    "sound-designs",
    "sottovoce",
    "the sound designs are as private as they say: each is calibrated to epsilon 3 and audited 20 times on its worst "
    "case, at 99.9 % confidence each",
)
def sound_designs(rng: np.random.Generator, quick: bool) -> list[Measurement]:
    """Audit with two agents of eight records each, Poisson batches of 4, three steps.

    Each row shows the median and the largest of the bounds.
    """
    trials, seed = max(sized(20_000, quick), 1000), int(rng.integers(2**20))
    rows = []
    for name, (method, network) in designs(Poisson(4)).items():
        setting: dict[str, Any] = {"data": Population(SIZES), "steps": STEPS, "network": network, "delta": DELTA}
        tuned = calibrate(method, epsilon=EPSILON, **setting)
        found = audit(tuned, trials=trials, repeat=REPEAT, confidence=1 - REPEAT * RISK, seed=seed, **setting)
        rows += _rows(name, found.claimed, found.each, trials)
    labels = [
        audit_labels(Memoised(EPSILON), classes=5, uses=100, trials=trials, confidence=1 - RISK, seed=seed + number)
        for number in range(REPEAT)
    ]
    return rows + _rows("columns, labels drawn once", EPSILON, [one.lower for one in labels], trials)


def _rows(name: str, claimed: float, each: Sequence[float], trials: int) -> list[Measurement]:
    return [
        Measurement(f"{name}, {what} of {REPEAT}", claimed, value, claimed, trials, control=True)
        for what, value in (("median", statistics.median(each)), ("largest", max(each)))
    ]
