"""Define what methods for a table that is split by columns share: a label gate, and public batches of rows.

Example: BAMBI reads batches of the lower and of the upper level, `VerticalSgd` batches of all rows. A step asks the
label holder about each batch, and the account compares what it asks with `batches`.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

from sottovoce.methods.base import Method
from sottovoce.naming import check_choice
from sottovoce.privacy.labels import LabelGate, Open
from sottovoce.problems.vertical import Vertical


class ColumnMethod(Method, abstract=True):
    """Define a method whose step is written for one `Party`, which holds columns. A subclass is a frozen dataclass.

    Its fields have to include these three, and its state fields `x` and `y`, the party's own blocks:

    - `labels`: the label gate. What is guaranteed is what the gate guarantees, for labels; features are not covered.
    - `batch`: the rows of each batch.
    - `draw`: batches are "uniform", each drawn anew, or slices of "passes" over all rows in random order, which read
      every label equally often. The account counts what is drawn.
    """

    labels: LabelGate
    batch: int
    draw: Literal["passes", "uniform"]

    solves: ClassVar[tuple[type, ...]] = (Vertical,)
    over: ClassVar[tuple[str, ...]] = ()  # parties talk to a server, not to each other

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch < 1:
            raise ValueError(f"batch is {self.batch}: it must be at least 1")
        check_choice("draw", self.draw, ("passes", "uniform"))

    @property
    @abstractmethod
    def batches(self) -> dict[str, int]:
        """Return how many batches a step reads, by level: of the rows of "upper", of "lower", or of "all"."""

    @classmethod
    def usual(cls, rows: int) -> Mapping[str, Any]:
        """Return settings, without the gate, for a table whose smallest level has so many rows: what `auto` takes."""
        raise NotImplementedError(f"{cls.__name__} has no usual settings: name all fields")

    def why(self, steps: int) -> tuple[str, ...]:
        """Say in a few lines why `usual` chose this."""
        return ()

    @property
    def design_name(self) -> str:
        """Return the label gate's design: "sound", "printed" or "non-private"."""
        return self.labels.design

    def without_privacy(self) -> Self:
        """Return the non-private twin: true labels."""
        return self.behind(Open())

    def behind(self, gate: LabelGate) -> Self:
        """Return the same method with another label gate."""
        changed: dict[str, Any] = {"labels": gate}
        return replace(self, **changed)
