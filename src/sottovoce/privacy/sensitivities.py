"""Compute sensitivities of private linear states, which are carried from step to step, drift included.

The *sensitivity* of a state is how far it can move when one record changes. It *drifts* when gradients are taken at
the private state itself: once two runs differ, their later gradients differ too, for all records. For example, in
``x = x - 0.1 * gradient(x)`` a change of x by 1 changes the next gradient by up to its Lipschitz constant.
"""

from collections.abc import Iterable

import numpy as np

from sottovoce.privacy.mechanisms import Adjacency, clips_moved


def storm_sensitivity(
    T: int,
    beta: float,
    C: float,
    batch: int,
    b0: int,
    participation: Iterable[int] | None,
    *,
    adjacency: Adjacency = "replace-one",
) -> np.ndarray:
    """Return the L2 sensitivity of the STORM estimator at t = 0..T-1, with per-record clip C at both of its points.

    `participation`: the steps whose batch contains the record, or None for a bound that holds for every schedule.
    Batches have `batch` records, the first batch b0. The result is not monotone in the participation, because
    neighbouring steps cancel.

    >>> storm_sensitivity(3, 0.1, 1.0, 20, 20, participation=range(3)).tolist()
    [0.1, 0.1, 0.1]
    """
    change = clips_moved(adjacency)
    if not 0 < beta <= 1:
        raise ValueError(f"beta is {beta}: give a number in (0, 1]")
    if participation is None:
        return np.full(T, change * C / (min(batch, b0) * beta))
    share = np.zeros(T)
    for step in participation:
        if not 0 <= step < T:
            raise ValueError(f"the record takes part in step {step}: steps are 0 to {T - 1}")
        share[step] = 1 / b0 if step == 0 else 1 / batch
    result, memory = np.zeros(T), 0.0
    for t in range(T):
        if t:
            memory = (1 - beta) * (memory + abs(share[t - 1] - share[t]))
        result[t] = change * C * (share[t] + memory)
    return result


def tracking_box(K: int, c: float, a: float, b: float, gamma: float, L1: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the sensitivities of x_k and y_k, where y is the gradient plus a memory of the earlier gradients.

    >>> x, y = tracking_box(2, c=1.0, a=0.5, b=0.5, gamma=0.1, L1=0.0)
    >>> x.round(3).tolist(), y.round(3).tolist()
    ([0.0, 0.1, 0.2], [1.0, 1.5, 1.75])
    """
    x, y, memory = np.zeros(K + 2), np.zeros(K + 2), 0.0
    for k in range(K + 1):
        gradient = c + L1 * x[k]
        y[k] = gradient + memory
        memory = abs(1 - b) * memory + abs(b) * gradient
        x[k + 1] = abs(1 - a) * x[k] + abs(gamma) * y[k]
    return x[:-1], y[:-1]


def tracking_compact(K: int, c: float, a: float, b: float, gamma: float, L1: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the sensitivities of x_k and y_k when an agent's noise enters its own state.

    Given the messages, nothing contracts then, and the sum that the tracker keeps telescopes.

    >>> x, y = tracking_compact(2, c=1.0, a=0.5, b=0.5, gamma=0.1, L1=0.0)
    >>> x.round(3).tolist(), y.round(3).tolist()
    ([0.0, 0.1, 0.2], [1.0, 1.0, 1.0])
    """
    x, y = np.zeros(K + 2), np.zeros(K + 2)
    for k in range(K + 1):
        y[k] = c + L1 * x[k]
        x[k + 1] = x[k] + abs(gamma) * y[k]
    return x[:-1], y[:-1]


def tracking_tight(K: int, c: float, a: float, b: float, gamma: float, L1: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the sensitivities of x_k and y_k from the impulse responses of the linear system.

    Absolute values are taken last.

    >>> x, y = tracking_tight(2, c=1.0, a=0.5, b=0.5, gamma=0.1, L1=0.0)
    >>> x.round(3).tolist(), y.round(3).tolist()
    ([0.0, 0.1, 0.1], [1.0, 1.5, 1.75])
    """
    to_y, to_x = np.zeros(K + 1), np.zeros(K + 1)
    to_y[0] = 1.0
    to_y[1:] = -b * (1 - b) ** np.arange(K)
    for k in range(K):
        to_x[k + 1] = (1 - a) * to_x[k] - gamma * to_y[k]
    to_x, to_y = np.abs(to_x), np.abs(to_y)
    gradient, x = np.zeros(K + 1), np.zeros(K + 1)
    for k in range(K + 1):  # to_x[0] = 0: x_k depends on earlier gradients only
        x[k] = to_x[1 : k + 1] @ gradient[:k][::-1]
        gradient[k] = c + L1 * x[k]
    return x, np.convolve(to_y, gradient)[: K + 1]
