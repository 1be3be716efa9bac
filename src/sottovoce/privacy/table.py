"""Describe a table that is split by columns: who holds which features, and who holds the labels.

Example: a bank holds income and debt, a shop holds purchases, and the bank also knows who defaulted. Then
``Table(Columns([bank, shop]), Labels(defaulted, classes=2), active=0)`` is the data of a run.
"""

from dataclasses import dataclass

from sottovoce.data.columns import Columns
from sottovoce.privacy.label_store import Labels
from sottovoce.shown import Shown


@dataclass(frozen=True, eq=False, repr=False)
class Table(Shown):
    """Join the parties' columns, aligned row by row, with the label holder's store.

    Args:
        columns: the parties' blocks, and the rows of each level.
        labels: the label holder's store; what a run uses of it is charged to it before the run.
        active: the party that sits with the server, whose messages do not travel. It learns no more of the labels than
            the others: its gradients come through the same gate.

    >>> import numpy as np
    >>> Table(Columns([np.ones((4, 2)), np.ones((4, 3))]), Labels(np.array([0, 1, 0, 1]), classes=2)).parties
    2
    """

    columns: Columns
    labels: Labels
    active: int | None = None

    def __post_init__(self) -> None:
        for name, kind in (("columns", Columns), ("labels", Labels)):
            given = getattr(self, name)
            if not isinstance(given, kind):
                raise TypeError(f"{name} is of type {type(given).__name__}: a Table takes a {kind.__name__} there")
        if len(self.labels) != len(self.columns):
            raise ValueError(
                f"there are {len(self.labels)} labels for {len(self.columns)} rows: align them first (see align)"
            )
        if self.active is not None and not 0 <= self.active < self.parties:
            raise ValueError(f"active is {self.active}: give the number of a party, 0 to {self.parties - 1}")

    @property
    def parties(self) -> int:
        """Return how many parties hold columns."""
        return len(self.columns.blocks)
