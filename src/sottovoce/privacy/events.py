"""Say what was spent in the words of dp-accounting, so that other tools can check an epsilon.

For example, ten Gaussian releases of noise multiplier 2 on Poisson batches of one record in ten:

>>> from sottovoce.privacy.mechanisms import Mechanism, PoissonAmplification
>>> dp_event(((Mechanism(gaussian=0.25, amplification=PoissonAmplification(0.1)), 10),))
SelfComposedDpEvent(event=PoissonSampledDpEvent(sampling_probability=0.1, event=GaussianDpEvent(noise_multiplier=2.0)),
count=10)
"""

import math
from typing import TYPE_CHECKING, Any

from sottovoce.naming import how_often, optional
from sottovoce.privacy.mechanisms import (
    Mechanism,
    PoissonAmplification,
    RedrawAmplification,
    Spent,
    SubsetAmplification,
)

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def dp_event(spent: Spent | None) -> "DpEvent":
    """Return all mechanisms, composed, as one event of dp-accounting; None stands for no guarantee at all.

    Noise multipliers are relative to the zero-out sensitivity, which is what `noise_multiplier` means elsewhere. Give
    `PLDAccountant` the relation REPLACE_SPECIAL for zero-out adjacency and REPLACE_ONE for replace-one: it then doubles
    the sensitivity by itself. `RdpAccountant` does not, so under replace-one its epsilon is too small.

    Batches of fixed size are the exception: `RdpAccountant` alone takes them, under REPLACE_ONE. So their multipliers
    are relative to a replaced record, and half as large, whichever adjacency is stated: its proof needs this under
    zero-out too, because a batch that misses the record has another one in its place. Its bound is looser than the one
    that is stated here, most of all under zero-out.

    A purely private release is `UnsupportedDpEvent`, which accountants refuse: dp-accounting 0.6 counts repeated
    randomised responses once, and under REPLACE_SPECIAL at half their epsilon.

    >>> dp_event(((Mechanism(pure=0.3), 10),))
    SelfComposedDpEvent(event=UnsupportedDpEvent(), count=10)
    """
    dp_accounting = _library()
    if spent is None:
        return dp_accounting.NonPrivateDpEvent()
    if not spent:
        return dp_accounting.UnsupportedDpEvent()
    events = [
        one if count == 1 else dp_accounting.SelfComposedDpEvent(one, count)
        for one, count in ((_event(mechanism), count) for mechanism, count in spent)
    ]
    return events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)


def _library() -> Any:
    return optional("dp_accounting", "events", "an event in the words of other tools")  # slow to load


def technical(spent: Spent) -> tuple[str, ...]:
    """Say what was spent by the names that Opacus and dp-accounting use; unlike steps become a range.

    >>> from sottovoce.privacy.mechanisms import Mechanism, PoissonAmplification
    >>> technical(((Mechanism(gaussian=0.25, amplification=PoissonAmplification(0.1)), 10),))
    ('noise_multiplier 2, sampling_probability 0.1, 10 times',)
    """
    alike: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for mechanism, count in spent:
        drawn = _drawn(mechanism)
        if mechanism.gaussian:
            alike.setdefault(("noise_multiplier", drawn), []).append((mechanism.gaussian**-0.5, count))
        for inverse in mechanism.laplace:
            alike.setdefault(("Laplace noise_multiplier", drawn), []).append((1 / inverse, count))
        if mechanism.pure:
            alike.setdefault(("pure epsilon", drawn), []).append((mechanism.pure, count))
    lines = []
    for (name, drawn), found in alike.items():
        low, high = min(value for value, _ in found), max(value for value, _ in found)
        values = f"{low:.4g}" if high <= low * (1 + 1e-6) else f"from {low:.4g} to {high:.4g}"
        lines.append(f"{name} {values}{drawn}, {how_often(sum(count for _, count in found))}")
    return tuple(lines)


def _drawn(mechanism: Mechanism) -> str:
    match mechanism.amplification:
        case PoissonAmplification(rate):
            return f", sampling_probability {rate:.4g}"
        case SubsetAmplification(size, batch):
            return f", {batch} of {size} without replacement"
        case RedrawAmplification(size, batch):
            return f", {batch} of {size} with replacement"
    return ""


def _event(mechanism: Mechanism) -> Any:
    dp_accounting = _library()
    terms = [mechanism.gaussian, *mechanism.laplace, mechanism.pure]
    if any(math.isinf(term) for term in terms):
        return dp_accounting.NonPrivateDpEvent()
    moved = 2 if isinstance(mechanism.amplification, SubsetAmplification) else 1  # clips that a record moves a sum by
    parts: list[Any] = []
    if mechanism.gaussian:
        parts.append(dp_accounting.GaussianDpEvent(1 / math.sqrt(mechanism.gaussian) / moved))
    parts += [dp_accounting.LaplaceDpEvent(1 / inverse / moved) for inverse in mechanism.laplace]
    if mechanism.pure:
        parts.append(dp_accounting.UnsupportedDpEvent())
    event = parts[0] if len(parts) == 1 else dp_accounting.ComposedDpEvent(parts)
    match mechanism.amplification:
        case PoissonAmplification(rate):
            return dp_accounting.PoissonSampledDpEvent(rate, event)
        case SubsetAmplification(size, batch):
            return dp_accounting.SampledWithoutReplacementDpEvent(size, batch, event)
        case RedrawAmplification(size, batch):
            return dp_accounting.SampledWithReplacementDpEvent(size, batch, event)
    return event
