"""Remember what a deployed agent drew, so that it is drawn once, even if a step is computed again after a crash.

Example: round 7 is computed again. Its batch and its noise are recalled, so the same message comes out, and nothing new
is released. A place that stores journals is `sottovoce.deploy.outbox`.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Journal(Protocol):
    """Remember draws by their place in the run, such as "7 step: release 2"."""

    def recall(self, place: str) -> Sequence[np.ndarray] | None:
        """Return what was drawn at a place, or None."""

    def note(self, place: str, drawn: Sequence[np.ndarray]) -> None:
        """Remember what was drawn; it must be on disk before anything that follows from it is sent."""


class _NoJournal:
    """Remember nothing: what is computed again is drawn again, and charged again."""

    def recall(self, place: str) -> None:
        """Return None."""

    def note(self, place: str, drawn: Sequence[np.ndarray]) -> None:
        """Forget it."""


NO_JOURNAL: Journal = _NoJournal()
