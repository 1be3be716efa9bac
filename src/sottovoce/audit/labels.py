"""Audit a label gate: one label is 0 or 1, and the adversary sees every weight that is computed from it."""

import math

import numpy as np

from sottovoce.audit import bounds
from sottovoce.audit.bounds import Finding
from sottovoce.privacy.labels import LabelGate, Labels


def audit_labels(
    gate: LabelGate,
    *,
    classes: int,
    uses: int = 1,
    copies: int = 1,
    delta: float = 0.0,
    claimed: float | None = None,
    trials: int = 20_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Finding:
    """Measure a lower bound on the epsilon of a label that is used `uses` times, in `copies` perturbed copies per use.

    What a vertical method sends is computed from these weights and public values, so this adversary sees at least as
    much as any party. Each trial is a label of its own; its score is the log-likelihood ratio of the two labels.
    `Printed` gates are compared with the paper's claim, the others with what is accounted.

    >>> from sottovoce.privacy.labels import Memoised
    >>> finding = audit_labels(Memoised(2.0), classes=5, uses=100)
    >>> finding.passed, finding.ratio > 0.8
    (True, True)
    """
    if claimed is None:
        claimed = gate.claim(classes, uses, copies, delta)
    if not math.isfinite(claimed):
        raise ValueError(f"there is no claim to audit: {type(gate).__name__} guarantees nothing for {classes} classes")
    scores = [_scores(gate, label, classes, uses, copies, trials + trials // 4, 2 * seed + label) for label in (0, 1)]
    pilot = trials // 4
    event = bounds.choose(scores[0][:pilot], scores[1][:pilot], delta, confidence)
    lower = bounds.measure(event, scores[0][pilot:], scores[1][pilot:], delta, confidence)
    return Finding(lower, claimed, delta, confidence, 2 * trials, "label", type(gate).__name__)


def _scores(gate: LabelGate, label: int, classes: int, uses: int, copies: int, trials: int, seed: int) -> np.ndarray:
    return gate.gains(Labels(np.full(trials, label), classes, seed=seed), uses, copies, seed)
