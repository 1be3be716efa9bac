"""Define plain values for what was released, how sampling amplified it, and what a privacy bound says.

A *mechanism* is what an accountant needs to know of the releases from one batch. For example, a mean of m clipped
gradients with Gaussian noise of twice the sensitivity C/m, on a batch that each record enters with probability 0.1:

>>> Mechanism(gaussian=1 / 2**2, amplification=PoissonAmplification(0.1)).gaussian
0.25

An *amplification* says by which proof the secret draw of a batch lowers the cost. It is not the draw itself, which is
in `sottovoce.privacy.sampling`: a sampling such as `Poisson(50)` states its amplification by `event(n)`.

Noise multipliers are always given relative to the *zero-out* sensitivity C/m (a record's contribution is removed, the
denominator m stays). Under replace-one a contribution moves by 2C/m: accountants do that doubling.

Ledger files hold these values: `sottovoce.privacy.ledger` says which names are stable.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np

Adjacency = Literal["zero-out", "replace-one"]


@dataclass(frozen=True)
class NoAmplification:
    """Claim nothing: every record takes part, or it is not hidden which ones do."""


@dataclass(frozen=True)
class PoissonAmplification:
    """Amplify by a Poisson batch: each record takes part with probability `rate`, by fresh secret coins.

    The denominator is fixed in advance.
    """

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"sampling rate is {self.rate}: give a probability in (0, 1]")


@dataclass(frozen=True)
class SubsetAmplification:
    """Amplify by a batch without replacement: a uniform subset of `batch` out of `size` records, fresh and secret."""

    size: int
    batch: int

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= self.size:
            raise ValueError(f"batch is {self.batch} of {self.size} records: give 1 <= batch <= size")

    @property
    def appears(self) -> float:
        """Return the chance that a given record is drawn.

        >>> SubsetAmplification(size=8, batch=2).appears
        0.25
        """
        return self.batch / self.size

    @property
    def most(self) -> int:
        """Return how often a record can be drawn: once."""
        return 1


@dataclass(frozen=True)
class RedrawAmplification:
    """Amplify by a batch with replacement: `batch` uniform draws from `size` records, fresh and secret.

    A record may be drawn, and counted, several times. A draw that misses it draws another record in its place.
    """

    size: int
    batch: int

    def __post_init__(self) -> None:
        if self.batch < 1 or self.size < 1:
            raise ValueError(f"batch is {self.batch} of {self.size} records: both must be at least 1")

    @property
    def appears(self) -> float:
        """Return the chance that a given record is drawn at least once.

        >>> RedrawAmplification(size=2, batch=2).appears
        0.75
        """
        return -math.expm1(self.batch * math.log1p(-1 / self.size)) if self.size > 1 else 1.0

    @property
    def most(self) -> int:
        """Return how often a record can be drawn: in every draw."""
        return self.batch


Amplification = NoAmplification | PoissonAmplification | SubsetAmplification | RedrawAmplification


@dataclass(frozen=True)
class Mechanism:
    """Describe the releases computed from one batch: one mechanism, because they share the batch's coins.

    gaussian: sum of 1/z^2 over its Gaussian releases, z = std / (C/m) with C an L2 bound; 0 for none.
    laplace: 1/z of each Laplace release, z = scale / (C/m) with C an L1 bound (any dimension).
    pure: epsilon of further releases that are purely private, such as randomised labels. It must hold under
        replace-one, and then holds under zero-out too; it is not scaled. Do not add up Laplace releases here.
    amplification: how the secret draw of the batch lowers the cost.

    >>> Mechanism(laplace=(0.5, 0.0, 0.25)).laplace
    (0.25, 0.5)
    """

    gaussian: float = 0.0
    laplace: tuple[float, ...] = ()
    pure: float = 0.0
    amplification: Amplification = NoAmplification()

    def __post_init__(self) -> None:
        # terms of 0 are no releases; sorting makes equal mechanisms compare equal, so they are composed together
        object.__setattr__(self, "laplace", tuple(sorted(float(v) for v in self.laplace if v != 0)))
        for name, value in [("gaussian", self.gaussian), ("pure", self.pure), *(("laplace", v) for v in self.laplace)]:
            if not value >= 0:
                raise ValueError(f"{name} term of a mechanism is {value}: give an inverse noise multiplier >= 0")


Spent = tuple[tuple[Mechanism, int], ...]  # mechanisms and how often each was applied


class Epsilon(float):
    """Hold a privacy bound: a number that says for which delta and adjacency it holds.

    accountant: the name of the smallest valid bound, which is this number. considered: all valid bounds, by name.

    >>> bound = Epsilon(1.5, delta=1e-5, adjacency="zero-out", accountant="PLD")
    >>> bound + 1, bound.adjacency
    (2.5, 'zero-out')
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


_LARGEST_DELTA = 0.1  # delta is the chance that nothing is guaranteed


def check_delta(delta: Any) -> float:
    """Return delta as a number, or raise an error that names what is wrong with it.

    >>> check_delta(1e-5)
    1e-05
    >>> check_delta(0.5)
    Traceback (most recent call last):
    ...
    ValueError: delta is 0.5: give a number from 0 to below 0.1; 1e-5, or below 1/n, is usual
    """
    value = _number("delta", delta)
    if not 0 <= value < _LARGEST_DELTA:
        raise ValueError(
            f"delta is {delta}: give a number from 0 to below {_LARGEST_DELTA:g}; 1e-5, or below 1/n, is usual"
        )
    return value


def check_epsilon(epsilon: Any) -> float:
    """Return epsilon as a number, or raise an error that names what is wrong with it.

    >>> check_epsilon(2)
    2.0
    >>> check_epsilon("2")
    Traceback (most recent call last):
    ...
    TypeError: epsilon is '2': give a number
    """
    value = _number("epsilon", epsilon)
    if not 0 < value < math.inf:
        raise ValueError(f"epsilon is {epsilon}: give a positive number")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool | np.bool) or not isinstance(value, Real | np.number):
        raise TypeError(f"{name} is {value!r}: give a number")
    return float(value)


def check_adjacency(adjacency: str) -> Adjacency:
    """Return the adjacency, or raise ValueError naming the two that exist.

    >>> check_adjacency("zero-out")
    'zero-out'
    """
    if adjacency not in get_args(Adjacency):
        raise ValueError(f"adjacency is {adjacency!r}: choose one of {', '.join(get_args(Adjacency))}")
    return adjacency  # type: ignore[return-value]


def clips_moved(adjacency: Adjacency) -> float:
    """Return by how many clips a record's contribution moves between neighbours: 1 for zero-out, 2 for replace-one.

    >>> clips_moved("replace-one")
    2.0
    """
    return 1.0 if check_adjacency(adjacency) == "zero-out" else 2.0
