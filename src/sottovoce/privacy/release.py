"""Define a release: the one object from which noise is drawn and epsilon is charged.

For example, `Release(clip=1.0, noise=0.05)` clips each record's gradient to L2 norm 1, and adds Gaussian noise of
standard deviation 0.05 to each coordinate of the mean.
"""

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from sottovoce.closed import Closed
from sottovoce.privacy.noise import Noise, law_of
from sottovoce.schedules import PerAgent, Scaled, Schedule, schedule

_READS: ContextVar[set[str] | None] = ContextVar("noise that was read", default=None)


@contextmanager
def noise_reads() -> Iterator[set[str]]:
    """Note which releases' noise is read meanwhile: code that only releases never looks at it.

    >>> release = Release(clip=1.0, noise=0.05, name="gradient")
    >>> with noise_reads() as reads:
    ...     _ = release.clip, release.scale(0, 0)
    >>> reads
    {'gradient'}
    """
    found: set[str] = set()
    before = _READS.set(found)
    try:
        yield found
    finally:
        _READS.reset(before)


@contextmanager
def unnoticed() -> Iterator[None]:
    """Let noise be read by our own code, which hands it on as it is.

    >>> with noise_reads() as reads, unnoticed():
    ...     _ = Release(clip=1.0, noise=0.05).noise
    >>> reads
    set()
    """
    before = _READS.set(None)
    try:
        yield
    finally:
        _READS.reset(before)


class _Noise:
    """Hold the noise of a release, and note that it was read."""

    def __get__(self, release: "Release | None", _: type) -> "float | Schedule":
        if release is None:
            raise AttributeError("noise")  # a field without a default
        if (reads := _READS.get()) is not None:
            reads.add(release.name)
        return vars(release)["noise"]

    def __set__(self, release: "Release", noise: "float | Schedule") -> None:
        vars(release)["noise"] = noise


@dataclass(frozen=True)
class Release(Closed):
    """Describe the clipped, averaged and noised gradient of a per-record function, before any record is read.

    Guarantee: with batch denominator m, the mean that `Agent.release` hands out changes by at most ``clip / m``
    in `norm` when one record's contribution is removed (zero-out), by ``2 clip / m`` when it is replaced; independent
    noise of scale ``noise(t)`` is added to each coordinate of that mean.

    Args:
        clip: bound on each record's gradient over the whole pytree, in `norm`. ``math.inf`` leaves it unbounded.
        noise: scale added to the *mean* at step t: the standard deviation for Gaussian noise, b for Laplace noise.
        mechanism: the law of the noise by its word: "gaussian" (clips in L2) or "laplace" (clips in L1).
        name: names the release in the ledger; a method's field name by default.

    >>> r = Release(clip=1.0, noise=0.05)
    >>> r.norm, r.private
    ('l2', True)
    >>> Release.open().private
    False
    """

    kind: ClassVar[str] = "release"
    clip: float
    noise: float | Schedule = _Noise()  # type: ignore[assignment]
    mechanism: str = "gaussian"
    name: str = ""

    def __post_init__(self) -> None:
        for name, kind in (("mechanism", str), ("name", str), ("clip", float)):  # and no kind of one's own of them
            object.__setattr__(self, name, _plain(name, kind, getattr(self, name)))
        law_of(self.mechanism)
        if not self.clip > 0:
            raise ValueError(f"clip is {self.clip}: it must be positive (math.inf leaves gradients unclipped)")
        object.__setattr__(self, "noise", schedule(self.noise))
        first = min(float(self.scale(0, agent)) for agent in range(self.scale.agents or 1))
        if not first >= 0:
            raise ValueError(f"noise is {first} at the first step: it must not be negative")

    @classmethod
    def open(cls) -> "Release":
        """Make a release without clipping or noise, for a non-private comparison; its epsilon is infinite.

        >>> Release.open().clip
        inf
        """
        return cls(clip=math.inf, noise=0.0)

    @property
    def norm(self) -> Literal["l1", "l2"]:
        """Return the norm of the clip, in which the guarantee of the noise is stated."""
        return self.law.norm

    @property
    def law(self) -> Noise:
        """Return the law of the noise, which says how it is drawn and what it charges."""
        return law_of(self.mechanism)

    @property
    def scale(self) -> Schedule:
        """Return the noise as a schedule."""
        assert isinstance(self.noise, Schedule)
        return self.noise

    @property
    def private(self) -> bool:
        """Say whether there is a clip, and noise at the first step: otherwise nothing is guaranteed."""
        return math.isfinite(self.clip) and self.scale(0, 0) > 0

    def louder(self, factor: PerAgent) -> "Release":
        """Return the same release with its noise multiplied, by one number or by one per agent.

        >>> float(Release(clip=1.0, noise=0.05).louder(2.0).scale(0, 0))
        0.1
        """
        return dataclasses.replace(self, noise=Scaled(self.scale, factor))


def _plain(name: str, kind: type, value: Any) -> Any:
    """Return a field as Python's own kind of text or number, so that an account and a run read the same of it."""
    wrong = TypeError(f"{name} of a release is {value!r}: give a {'text' if kind is str else 'number'}")
    if isinstance(value, (str, bytes)) or kind is str:
        if type(value) is not kind:
            raise wrong
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise wrong from None
