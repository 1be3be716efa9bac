"""Audit a label gate: one label is 0 or 1, and the adversary sees every weight that is computed from it."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.audit import bounds
from sottovoce.audit.bounds import Finding
from sottovoce.privacy import accountant
from sottovoce.privacy.labels import LabelGate, Labels, LaplaceGate, Memoised, Printed


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
        claimed = _claim(gate, classes, uses, copies, delta)
    if not math.isfinite(claimed):
        raise ValueError(f"there is no claim to audit: {type(gate).__name__} guarantees nothing for {classes} classes")
    scores = [_scores(gate, label, classes, uses, copies, trials + trials // 4, 2 * seed + label) for label in (0, 1)]
    pilot = trials // 4
    event = bounds.choose(scores[0][:pilot], scores[1][:pilot], delta, confidence)
    lower = bounds.measure(event, scores[0][pilot:], scores[1][pilot:], delta, confidence)
    return Finding(lower, claimed, delta, confidence, 2 * trials, "label", type(gate).__name__)


def _claim(gate: LabelGate, classes: int, uses: int, copies: int, delta: float) -> float:
    if isinstance(gate, Memoised):
        return gate.epsilon
    if isinstance(gate, Printed):
        return float(gate.published() or math.inf)
    cost = gate.per_use(classes, copies)
    return float(accountant.epsilon([(cost[0], cost[1] * uses)], delta, "replace-one")) if cost else 0.0


def _scores(gate: LabelGate, label: int, classes: int, uses: int, copies: int, trials: int, seed: int) -> np.ndarray:
    labels = Labels(np.full(trials, label), classes, seed=seed)
    if isinstance(gate, Memoised):
        with np.errstate(divide="ignore"):
            found = np.log(labels.memo(gate.epsilon).likelihood[:, :2].astype(np.float64))
        return np.round(found[:, 0] - found[:, 1], 6)
    if not isinstance(gate, LaplaceGate):
        raise TypeError(f"{type(gate).__name__} is not a gate that this audit knows: use Memoised, Fresh or Printed")
    vectors = jnp.asarray(gate.vectors(labels))
    # Two classes: the weights are those of one noisy number. More: one noise per entry or, printed, one for all.
    entries = slice(1, 2) if classes == 2 else slice(0, classes)
    score = np.zeros(trials)
    for use in range(uses):
        key = jax.random.fold_in(jax.random.key(seed), use)
        seen = np.asarray(gate.weights(vectors, (copies,), key), np.float64)
        seen = seen[:1] if gate.shared else seen
        if isinstance(gate, Printed) and classes > 2:  # all entries carry one noise: it cancels in differences
            score += np.sum(seen[..., 0] - seen[..., 1], axis=0)
        else:
            gaps = [np.abs(seen[..., entries] - np.eye(classes)[guess][entries]).sum(axis=(0, 2)) for guess in (0, 1)]
            score += (gaps[1] - gaps[0]) / gate.scale
    return np.round(score, 4)
