"""State what is guaranteed to whom, and what is not.

For example: "each agent's epsilon is at most 2 at delta 1e-05, per record, zero-out adjacency, by PLD".
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

_LISTED = 20  # parties up to which each one's epsilon is listed


@dataclass(frozen=True)
class PrivacyReport:
    """Hold the epsilon of a configured method, per agent, against everybody who sees the agent's messages.

    Guarantee (design "sound"): for every agent i, the messages it sends during the run are
    ``(per_agent[i], delta)``-differentially private for one `unit` of its data under `adjacency`, whatever the other
    agents do. `epsilon` is the largest. `published` is what the method's paper prints for this configuration.
    """

    epsilon: float
    delta: float
    per_agent: tuple[float, ...]
    per_level: dict[str, float]
    published: float | None
    design: str
    adjacency: str
    unit: str
    accountant: str
    library: str
    method: str
    steps: int
    events: tuple[str, ...]
    caveats: tuple[str, ...]
    parties: tuple[str, ...] = ()  # their names, in the order of `per_agent`

    @property
    def private(self) -> bool:
        """Say whether anything is guaranteed."""
        return bool(np.isfinite(self.epsilon))

    def statement(self) -> str:
        """Write one sentence to attach to a model."""
        if not self.private:
            return f"No differential privacy is guaranteed ({self.method}, {self.design} design): epsilon is infinite."
        spread = min(self.per_agent)
        who = f"each agent's epsilon is at most {rounded_up(self.epsilon, 4)}"
        if spread < self.epsilon * 0.995:
            who += f" (the lowest {rounded_up(spread, 4)})"
        return (
            f"{self.method}, {self.design} design, {self.steps} steps: {who} at delta {self.delta:g}, per {self.unit}, "
            f"{self.adjacency} adjacency, by {self.accountant} ({self.library})."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any, file: Path) -> "PrivacyReport":
        """Make a report from what `to_dict` returned; `file`, where it was stored, is named in errors."""
        try:
            lists = {name: tuple(data[name]) for name in ("per_agent", "events", "caveats", "parties")}
            return cls(**{**data, **lists})
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{file} holds no privacy statement of this version ({type(error).__name__}: {error!s:.100}): use the "
                "version of sottovoce that wrote it, or run again"
            ) from error

    def __str__(self) -> str:
        lines = [self.statement()]
        if self.published is not None:
            lines.append(f"The paper prints epsilon {self.published:.4g} for this configuration.")
        if self.private and 1 < len(self.parties) <= _LISTED:
            each = (f"{name} {rounded_up(epsilon, 4)}" for name, epsilon in zip(self.parties, self.per_agent))
            lines.append(f"  epsilon per party: {', '.join(each)}")
        lines += [f"  {event}" for event in self.events]
        lines += [f"  note: {caveat}" for caveat in self.caveats]
        return "\n".join(lines)


def merge_caveats(*groups: Sequence[str]) -> tuple[str, ...]:
    """Return every caveat once, in order.

    >>> merge_caveats(["one", "two"], ["two", "three"])
    ('one', 'two', 'three')
    """
    return tuple(dict.fromkeys(caveat for group in groups for caveat in group))


def rounded_up(epsilon: float, digits: int) -> str:
    """Write a number >= 0 with this many digits, rounded up, so that what is written is guaranteed too.

    >>> rounded_up(1.9991, 3), rounded_up(2.0001, 3), rounded_up(0.34561, 4)
    ('2', '2.01', '0.3457')
    """
    if epsilon == 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) + 1 - digits)
    return f"{math.ceil(epsilon / unit * (1 - 1e-12)) * unit:.{digits}g}"
