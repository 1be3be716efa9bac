"""Warn of what a user should look at: facts that are public, or that a run has released.

Example: if all parties are to have the same epsilon, one party with two records sets the noise of four with thousands.
"""

from collections.abc import Sequence

import numpy as np

from sottovoce.data.population import Population, named

_SMALL = 0.05  # of the average party


def before(population: Population, delta: float, *, shared_noise: bool) -> tuple[str, ...]:
    """Return warnings about parties and delta, from public facts.

    `shared_noise` says whether all parties draw noise of one scale, which the smallest then sets.

    >>> before(Population([1000, 1000, 2], names=("north", "south", "pier")), 1e-5, shared_noise=True)
    ('party pier holds 2 of 2002 records and sets the noise of all: ...',)
    >>> before(Population([50]), 0.05, shared_noise=True)
    ('delta is 0.05, above 1/n = 0.02: ...',)
    """
    found: list[str] = []
    for sizes in population.counts.values():
        small = np.flatnonzero(sizes < _SMALL * sizes.mean()).tolist()
        if small:
            least, total = int(sizes[small].min()), int(sizes.sum())
            does = "sets the noise of all" if shared_noise else "adds as much noise as the largest, and little else"
            found.append(
                f"party {named(population, small)} holds {least} of {total} {population.unit}s and {does}: merge it "
                "with another, or leave it out"
            )
        largest = 1 / int(sizes.sum())
        if delta > largest:
            found.append(
                f"delta is {delta:g}, above 1/n = {largest:.2g}: a mechanism that publishes one {population.unit} at "
                "random would satisfy it. Use a smaller delta"
            )
    return tuple(dict.fromkeys(found))


def after(names: Sequence[str], starts: Sequence[np.ndarray], ends: Sequence[np.ndarray]) -> tuple[str, ...]:
    """Return warnings about variables that did not move, or that ran away, from what was released.

    >>> after(["x"], [np.zeros(2)], [np.full(2, 1e-9)])
    ('x has not moved from where it started: raise its step size, or run more steps',)
    >>> after(["x"], [np.zeros(2)], [np.full(2, 1e7)])
    ('x has grown to 1e+07: ...',)
    """
    found = []
    for name, start, end in zip(names, starts, ends):
        moved, size = float(np.max(np.abs(end - start), initial=0.0)), float(np.max(np.abs(end), initial=0.0))
        if start.size and moved <= 1e-6 * (1.0 + float(np.max(np.abs(start)))):
            found.append(f"{name} has not moved from where it started: raise its step size, or run more steps")
        elif size > 1e6 * (1.0 + float(np.max(np.abs(start), initial=0.0))):
            found.append(
                f"{name} has grown to {size:.3g}: lower its step size, or scale the features by declared ranges"
            )
    return tuple(found)
