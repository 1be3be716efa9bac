"""Infer labels from the gradients that a passive party receives.

The party sees, for each record of a batch (whose rows it knows), the gradient at its head outputs, in Q + 1 copies. For
a softmax loss with an open label b that is p - e_b. Three ways to read it, after Li et al., "Label leakage and
protection in two-party split learning" (ICLR 2022), and one made for the printed noise of BAMBI-DP:

- "direction": the class whose entry is the most negative. Exact for open labels.
- "norm": two classes of unequal size; the rarer one has the larger gradients.
- "lines": the printed noise moves a gradient along one line per class, parallel to Cp - 1. Two copies of a use differ
  along that line, which gives its direction without knowing p; the right class is the one whose line goes through the
  observed gradient. This works in the first inner step, where the copies' heads are still the same.

Evidence about one record is added up over all its messages, so noise that is drawn anew each time averages out, and
noise that was drawn once does not.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from sottovoce.audit.bounds import Finding, limits
from sottovoce.runtime.columns import Message

Way = Literal["direction", "norm", "lines"]


def infer(messages: Iterable[Message], party: int, labels: int, classes: int, way: Way = "direction") -> np.ndarray:
    """Guess the labels of the rows 0 to `labels` - 1; -1 for rows about which the party received nothing.

    >>> rows, gradients = np.array([4, 2]), np.array([[0.2, 0.3, -0.5], [-0.8, 0.3, 0.5]])
    >>> seen = Message(0, 0, 1, False, "gradients", "lower", rows, gradients)
    >>> infer([seen], party=1, labels=5, classes=3).tolist()
    [-1, -1, 0, -1, 2]
    """
    if way not in _WAYS:
        raise ValueError(f"way is {way!r}: choose one of {', '.join(_WAYS)}")
    evidence, seen = np.zeros((labels, classes)), np.zeros(labels, bool)
    for message in messages:
        if message.party != party or message.what != "gradients":
            continue
        copies = message.value.reshape(-1, *message.value.shape[-2:]).astype(float) * len(message.rows)
        if way == "lines" and (message.turn != 0 or len(copies) < 2):
            continue
        evidence[message.rows] += _WAYS[way](copies, classes)
        seen[message.rows] = True
    if way == "norm":  # the rarer class is the one of the larger gradients: cut where its share is one half
        evidence[:, 1] -= np.median(evidence[seen, 1])
    return np.where(seen, evidence.argmax(axis=1), -1)


def measured(
    guesses: np.ndarray, labels: Any, classes: int, claimed: float, what: str, confidence: float = 0.95
) -> Finding:
    """Return a lower bound on the labels' epsilon from how many guesses are right, for labels drawn uniformly.

    Under pure epsilon label privacy such a label, given everything else, is guessed right with probability at most
    e^eps / (e^eps + C - 1), whatever was guessed before: the number of right guesses is bounded by a binomial one.
    Labels must have been drawn at random for the audit: real labels can be guessed by a good model, without any leak.

    >>> measured(np.zeros(1000, int), np.zeros(1000, int), classes=10, claimed=1.0, what="all right").passed
    False
    """
    told = guesses >= 0
    right = int(np.sum(guesses[told] == np.asarray(labels)[told]))
    low = float(limits(right, int(told.sum()), 1 - confidence)[0])
    lower = max(math.log(low * (classes - 1) / (1 - low)), 0.0) if 0 < low < 1 else 0.0
    return Finding(lower, claimed, 0.0, confidence, int(told.sum()), "passive party", what)


def _direction(copies: np.ndarray, classes: int) -> np.ndarray:
    """Return minus the gradient, summed over copies; with a single score, its sign tells two classes apart."""
    gradient = copies.sum(axis=0)
    return -gradient if gradient.shape[1] == classes else np.concatenate([gradient, -gradient], axis=1)


def _norm(copies: np.ndarray, classes: int) -> np.ndarray:
    if classes != 2:
        raise ValueError(f"the norm tells two classes apart, there are {classes}: use 'direction'")
    size = np.linalg.norm(copies, axis=2).sum(axis=0)
    return np.stack([np.zeros_like(size), size], axis=1)


def _lines(copies: np.ndarray, classes: int) -> np.ndarray:
    """Return how close each class's line is, as a logarithm; its direction is the widest difference of two copies."""
    others = copies[1:] - copies[:1]
    widest = np.take_along_axis(others, np.linalg.norm(others, axis=2).argmax(axis=0)[None, :, None], axis=0)[0]
    length = np.linalg.norm(widest, axis=1, keepdims=True)
    along = np.divide(widest, length, out=np.zeros_like(widest), where=length > 1e-6)
    gap = copies[0][:, None, :] + np.eye(classes) - 1 / classes  # p - 1/C + u (Cp - 1) for the right class
    off = gap - np.sum(gap * along[:, None, :], axis=2, keepdims=True) * along[:, None, :]
    return -np.log(np.linalg.norm(off, axis=2) + 1e-6)


_WAYS = {"direction": _direction, "norm": _norm, "lines": _lines}


def demonstrate(
    rows: int = 2000, classes: int = 10, epsilon: float = 1.0, seed: int = 0
) -> Sequence[tuple[str, float, Finding]]:
    """Attack each label gate on random labels with two parties and one pass over the rows.

    Returned for each gate: its name, the share of right guesses, and the finding.

    ``python -m sottovoce.laboratory.bambi.label_inference`` prints it.
    """
    from sottovoce.accounting.table import table_account
    from sottovoce.data.columns import Columns
    from sottovoce.papers.bambi.method import Bambi
    from sottovoce.privacy.labels import Fresh, LabelGate, Labels, Memoised, Open, Printed
    from sottovoce.privacy.table import Table
    from sottovoce.problems.tasks.vertical import hyper_representation
    from sottovoce.runtime.columns import record_messages

    rng = np.random.default_rng(seed)
    columns = Columns([rng.normal(size=(rows, 8)).astype(np.float32) for _ in range(2)])
    truth = rng.integers(classes, size=rows)
    problem = hyper_representation([8, 8], classes, hidden=(16,))
    gates: list[tuple[LabelGate, Way]] = [
        (Open(), "direction"),
        (Printed(1 / epsilon), "lines"),
        (Fresh(1 / epsilon), "direction"),
        (Memoised(epsilon), "direction"),
        (Memoised(epsilon, "debiased"), "direction"),
    ]
    found = []
    for gate, way in gates:
        table = Table(columns, Labels(truth, classes, seed=seed))
        method = Bambi(inner_steps=1, batch=rows // 4, rate_x=0.1, rate_y=0.5, labels=gate, smoothing=1e-3)
        account = table_account(method, table, problem, steps=4, delta=0.0)
        account.charge(table.labels)
        _, log = record_messages(account, table)
        report = account.report(table.labels)
        guesses = infer(log, party=1, labels=rows, classes=classes, way=way)
        claimed = report.published if gate.design == "printed" else report.epsilon
        name = f"{gate}, by {way}"
        finding = measured(guesses, truth, classes, float(claimed or 0.0), name)
        found.append((name, float(np.mean(guesses == truth)), finding))
    return found


def main() -> None:
    """Print what a passive party gets right under each gate."""
    for _, share, finding in demonstrate():
        print(f"{100 * share:5.1f} % right; {finding}")


if __name__ == "__main__":
    main()
