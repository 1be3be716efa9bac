"""Write an error bound of a paper, term by term.

>>> bound = ErrorBound({"start": 0.5, "noise": 0.25})
>>> bound.total, str(bound)
(0.75, '0.75 (start 0.5, noise 0.25)')
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ErrorBound:
    """Bound an error by a sum of named terms; `up_to` says what the paper leaves out, such as constants."""

    terms: Mapping[str, float]
    up_to: str = ""

    @property
    def total(self) -> float:
        """Return the sum of the terms."""
        return sum(self.terms.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {value:.3g}" for name, value in self.terms.items())
        return f"{self.total:.3g} ({parts})" + (f", up to {self.up_to}" if self.up_to else "")
