"""What was released and how its batch was drawn, and what a privacy bound says: plain values, no accounting.

Noise multipliers are always given relative to the *zero-out* sensitivity C/m (a record's contribution is removed, the
denominator m stays). Under replace-one a contribution moves by 2C/m: accountants do that doubling.
"""

from dataclasses import dataclass
from typing import Literal, get_args

Adjacency = Literal["zero-out", "replace-one"]


@dataclass(frozen=True)
class Unsampled:
    """Every record takes part, or who takes part is not hidden."""


@dataclass(frozen=True)
class Poisson:
    """Each record takes part with probability `rate`, by fresh secret coins; the denominator is fixed."""

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"sampling rate is {self.rate}: give a probability in (0, 1]")


@dataclass(frozen=True)
class WithoutReplacement:
    """A uniform subset of `batch` records out of `size`, drawn afresh and in secret."""

    size: int
    batch: int

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= self.size:
            raise ValueError(f"batch is {self.batch} of {self.size} records: give 1 <= batch <= size")


@dataclass(frozen=True)
class WithReplacement:
    """`batch` uniform draws from `size` records: a record may be drawn, and counted, several times."""

    size: int
    batch: int

    def __post_init__(self) -> None:
        if self.batch < 1 or self.size < 1:
            raise ValueError(f"batch is {self.batch} of {self.size} records: both must be at least 1")


Sampling = Unsampled | Poisson | WithoutReplacement | WithReplacement


@dataclass(frozen=True)
class Mechanism:
    """The releases computed from one batch: one mechanism, because they share the batch's coins.

    gaussian: sum of 1/z^2 over its Gaussian releases, z = std / (C/m) with C an L2 bound; 0 for none.
    laplace: 1/z of each Laplace release, z = scale / (C/m) with C an L1 bound (any dimension).
    pure: epsilon of further releases that are purely private, such as randomised labels. It must hold under
        replace-one, and then holds under zero-out too; it is not scaled. Not for adding up Laplace releases.

    >>> Mechanism(laplace=(0.5, 0.0, 0.25)).laplace
    (0.25, 0.5)
    """

    gaussian: float = 0.0
    laplace: tuple[float, ...] = ()
    pure: float = 0.0
    sampling: Sampling = Unsampled()

    def __post_init__(self) -> None:
        # zero terms are no releases; sorting makes equal mechanisms equal, so they are composed once
        object.__setattr__(self, "laplace", tuple(sorted(float(v) for v in self.laplace if v != 0)))
        for name, value in [("gaussian", self.gaussian), ("pure", self.pure), *(("laplace", v) for v in self.laplace)]:
            if not value >= 0:
                raise ValueError(f"{name} term of a mechanism is {value}: give an inverse noise multiplier >= 0")


class Epsilon(float):
    """A privacy bound: the number, and what it is a bound of.

    accountant: which of the valid bounds was the smallest; considered: all of them, by name.
    """

    delta: float
    adjacency: Adjacency
    accountant: str
    considered: dict[str, float]

    def __new__(
        cls,
        value: float,
        *,
        delta: float,
        adjacency: Adjacency,
        accountant: str,
        considered: dict[str, float] | None = None,
    ) -> "Epsilon":
        """Make the bound; `considered` defaults to the one bound given."""
        self = super().__new__(cls, value)
        self.delta, self.adjacency, self.accountant = delta, check_adjacency(adjacency), accountant
        self.considered = {accountant: float(value)} if considered is None else considered
        return self

    def __getnewargs_ex__(self) -> tuple[tuple[float], dict[str, object]]:
        return (float(self),), dict(vars(self))


def check_adjacency(adjacency: str) -> Adjacency:
    """Return the adjacency, or raise ValueError naming the two that exist.

    >>> check_adjacency("zero-out")
    'zero-out'
    """
    if adjacency not in get_args(Adjacency):
        raise ValueError(f"adjacency is {adjacency!r}: choose one of {', '.join(get_args(Adjacency))}")
    return adjacency  # type: ignore[return-value]


def clips_moved(adjacency: Adjacency) -> float:
    """By how many clips a record's contribution moves between neighbours: 1 for zero-out, 2 for replace-one.

    >>> clips_moved("replace-one")
    2.0
    """
    return 1.0 if check_adjacency(adjacency) == "zero-out" else 2.0
