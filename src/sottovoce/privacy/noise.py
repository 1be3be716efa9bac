"""Define the laws of noise: how each is drawn, what it charges, and how likely it is.

A `Release` names its law by a word, such as "gaussian", and everybody else asks the law: the gates draw with it, the
account charges with it, an audit weighs with it. Nobody but this file knows which laws there are. Example:
``LAWS["laplace"].norm`` is "l1", the norm in which a record is clipped before Laplace noise is added.

To add a law, write one class here and list it in `LAWS`. It fits as long as a `Mechanism` has terms that are at least
as revealing; a new kind of term is work for the accountant. Tests run over `LAWS`: the contract, the exact adversary,
statistics of both samplers.
"""

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.privacy import exact_noise, threefry

BLUR = 3  # the r of the Gaussian law's proof


class Noise(ABC):
    """Say all that the package must know of one law, for noise of scale 1 in each coordinate unless a scale is given.

    The exact law is over whole numbers: P[z] is proportional to exp(-E(|z|)), with the `energy` E.
    """

    kind: ClassVar[str]  # its word in releases, run files and statements
    norm: ClassVar[Literal["l1", "l2"]]  # in which one record's share is bounded
    reaches: ClassVar[bool] = False  # the noise of a step is made of earlier draws too: the whole run is one mechanism
    adds_up: ClassVar[bool] = False  # shares that parties draw add up to it: the proof is in `sottovoce.privacy.trust`

    @abstractmethod
    def draw(self, key: jax.Array, shape: tuple[int, ...], stream: int) -> jax.Array:
        """Return simulated noise of scale 1."""

    def now(self, drawn: Callable[[Any], jax.Array], t: Any) -> jax.Array:
        """Return the noise of step t, where ``drawn(s)`` are the independent draws of this release at step s <= t."""
        return drawn(t)

    def check(self, once: bool, alone: bool) -> None:
        """Refuse a release that `terms` are not about.

        `once` says that a record takes part in one step of the run at most, `alone` that a step releases this once.
        """
        if self.reaches and not (once and alone):
            raise ValueError(
                f"has {self.kind} noise, which reaches earlier steps: it is charged for batches of sv.OnePass, each "
                "released once, in the step and outside of loops. Use these, or another law"
            )

    @abstractmethod
    def gain(self, value: jax.Array, shift: jax.Array, scale: jax.Array) -> jax.Array:
        """Return the log-density of noise `value - shift` minus that of `value`, in each coordinate."""

    @abstractmethod
    def terms(self, own: np.ndarray, together: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Return what a release costs at each step: a Gaussian term and Laplace terms of a `Mechanism`.

        `own` is sensitivity over scale for the records of one level, and `together` the sum over the levels that a
        unit has records in, which is larger than `own` where one noise covers two levels. ValueError where no terms are
        proved for that. A law that reaches earlier draws is given all steps of a run, and says for each of them what a
        unit pays for the whole run that takes part in this step alone.
        """

    @abstractmethod
    def energy(self, size: int, scale: int) -> Fraction:
        """Return E(size): a polynomial of degree at most two, 0 at 0."""

    @abstractmethod
    def climb(self, places: np.ndarray, starts: np.ndarray, scale: int) -> np.ndarray:
        """Return E(start + place) - E(start) in floating point, with at most five roundings."""

    @abstractmethod
    def multiplier(self, clip: int, scale: int) -> float:
        """Return 1/z of an ideal release that reveals at least as much as exact noise: what is charged."""

    @abstractmethod
    def whole_scale(self, ideal: Fraction, clip: int) -> int:
        """Return the least whole scale whose charge is at most that of ideal noise of this scale."""

    @abstractmethod
    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return each row's length in the law's norm."""

    @abstractmethod
    def exceeds(self, steps: np.ndarray, clip: int) -> np.ndarray:
        """Say of each row of whole numbers whether it is longer than the clip, exactly (see `GridRelease.whole`)."""

    def exact(self, scale: int, size: int, source: random.Random) -> np.ndarray:
        """Return exact noise of a whole scale (int64).

        >>> LAWS["laplace"].exact(3, 8, random.Random(0)).tolist()
        [-5, 1, 4, 6, -1, 0, 0, 10]
        """
        return exact_noise.draw(self, scale, size, source)


class Gaussian(Noise):
    """Add Gaussian noise; the scale is its standard deviation.

    **Two levels under one noise.** If a unit has records in both levels, one release shifts by up to a + b under a
    single Gaussian noise. We charge the upper level a (a + b) and the lower b (a + b): together (a + b)^2, the exact
    joint cost.

    **Charge of the exact law**, whole scale s, any dimension: sigma^2 = s^2 - r^2 with r = 3. Take x = v + N(0, s^2 -
    r^2), and draw a whole number k from the discrete Gaussian of scale r around x: P[k] is the integral over x of
    phi(x - v) exp(-(k-x)^2 / 2r^2) / R(x), where R(x) = sum_j exp(-(j-x)^2 / 2r^2), by Poisson summation
    r sqrt(2 pi) (1 + 2 sum_i exp(-2 pi^2 r^2 i^2) cos(2 pi i x)), is constant up to factors 1 +- 2.1 exp(-18 pi^2), or
    1 +- 1e-76. Were it constant, P[k] would be proportional to exp(-(k-v)^2 / 2s^2): the discrete Gaussian around v. So
    probabilities differ by factors within 1 +- 1e-75 per coordinate, and by 1e-63 in a run of 10^12 draws: far below
    what the accountant charges for its own rounding.
    """

    kind: ClassVar[str] = "gaussian"
    norm: ClassVar[Literal["l1", "l2"]] = "l2"
    adds_up: ClassVar[bool] = True

    def draw(self, key: jax.Array, shape: tuple[int, ...], stream: int) -> jax.Array:
        """Return standard normal numbers."""
        return threefry.normal(key, shape, stream)

    def gain(self, value: jax.Array, shift: jax.Array, scale: jax.Array) -> jax.Array:
        """Return the difference of two squares."""
        return shift * (value - shift / 2) / scale**2

    def terms(self, own: np.ndarray, together: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Return a Gaussian term: the level's share of the joint cost."""
        return own * together, ()

    def energy(self, size: int, scale: int) -> Fraction:
        """Return size^2 / (2 scale^2)."""
        return Fraction(size**2, 2 * scale**2)

    def climb(self, places: np.ndarray, starts: np.ndarray, scale: int) -> np.ndarray:
        """Return place (2 start + place) / (2 scale^2)."""
        return 0.5 * (places / scale) * ((2 * starts + places) / scale)

    def multiplier(self, clip: int, scale: int) -> float:
        """Return clip / sigma."""
        return clip / math.sqrt(scale**2 - BLUR**2) if scale > BLUR else math.inf

    def whole_scale(self, ideal: Fraction, clip: int) -> int:
        """Return the least s with s^2 - r^2 at least the square of the ideal scale."""
        return math.isqrt(math.ceil(ideal**2 + BLUR**2) - 1) + 1

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the roots of sums of squares."""
        return np.sqrt(_squares(rows))

    def exceeds(self, steps: np.ndarray, clip: int) -> np.ndarray:
        """Compare sums of squares."""
        return _squares(steps) > clip**2


class Laplace(Noise):
    """Add Laplace noise; the scale is its b, and the density falls as exp(-|z| / b).

    **Two levels under one noise** are refused: no split of the joint cost into two is known for Laplace noise.

    **Charge of the exact law**, whole scale s: 1/z = clip/s + 2 ln cosh(1/2s). In one coordinate, with a = e^(-1/s),
    the hockey-stick divergence at epsilon = (clip - 2j)/s is 1 - a^j, the value of the ideal one; between these points
    it is linear in E = e^epsilon where the ideal one is 1 - e^(-clip/2s) sqrt(E). For w = e^(1/s) the chord of the
    square root over [1, w^2] is (w + E)/(w + 1) >= sqrt(E) / cosh(1/2s), as w + E >= 2 sqrt(wE): so ideal noise with a
    shift larger by 2s ln cosh(1/2s) dominates. Several coordinates are no worse than the sum of their shifts in one:
    threshold tests, randomised at one point, are most powerful for all shifts at once, so trade-off functions of shifts
    chain exactly.
    """

    kind: ClassVar[str] = "laplace"
    norm: ClassVar[Literal["l1", "l2"]] = "l1"

    def draw(self, key: jax.Array, shape: tuple[int, ...], stream: int) -> jax.Array:
        """Return Laplace numbers of scale 1."""
        return threefry.laplace(key, shape, stream)

    def gain(self, value: jax.Array, shift: jax.Array, scale: jax.Array) -> jax.Array:
        """Return the difference of two sizes."""
        return (jnp.abs(value) - jnp.abs(value - shift)) / scale

    def terms(self, own: np.ndarray, together: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Return one Laplace term."""
        if together is not own:
            raise ValueError(
                "reads both levels under one Laplace noise, and some units are in both, or may be: no sum of two "
                "covers it. Use Gaussian noise, or keep each unit in one level and say so: sv.data.levels, unit ids, "
                "or Levels(upper, lower, disjoint=True)"
            )
        return np.zeros_like(own), (own,)

    def energy(self, size: int, scale: int) -> Fraction:
        """Return size / scale."""
        return Fraction(size, scale)

    def climb(self, places: np.ndarray, starts: np.ndarray, scale: int) -> np.ndarray:
        """Return place / scale."""
        return places / scale

    def multiplier(self, clip: int, scale: int) -> float:
        """Return clip / s + 2 ln cosh(1 / 2s)."""
        return clip / scale + 2 * math.log(math.cosh(0.5 / scale))

    def whole_scale(self, ideal: Fraction, clip: int) -> int:
        """Return the least s with clip/s + 1/(4 s^2) at most clip over the ideal scale."""
        return math.ceil(ideal + Fraction(1, 4 * clip))

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return sums of sizes."""
        return np.abs(rows).sum(axis=1)

    def exceeds(self, steps: np.ndarray, clip: int) -> np.ndarray:
        """Compare sums of sizes."""
        return np.abs(steps).sum(axis=1) > clip


def _squares(rows: np.ndarray) -> np.ndarray:
    """Return each row's sum of squares; not by a linear algebra library, whose threads would wait for each other."""
    return np.einsum("ij,ij->i", rows, rows)


LAWS: Mapping[str, Noise] = {law.kind: law for law in (Gaussian(), Laplace())}


def law_of(word: str) -> Noise:
    """Return the law of this word.

    >>> law_of("cauchy")
    Traceback (most recent call last):
    ...
    ValueError: mechanism is 'cauchy': choose 'gaussian' or 'laplace'
    """
    if type(word) is not str or word not in LAWS:
        raise ValueError(f"mechanism is {word!r}: choose {' or '.join(map(repr, LAWS))}")
    return LAWS[word]
