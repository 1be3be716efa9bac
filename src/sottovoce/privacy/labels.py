"""Hide labels behind a gate, when the features are known to their owners.

A gate is a frozen value. The server's loss is a sum of, or a mixture over, the losses `theta_b` that it would have if
the label were b. A gate turns a label into the weights of these losses. For example, `Open` turns label 1 of two
classes into the weights (0, 1), and `Fresh(1.0)` turns it into the weights (-n, 1 + n) with a new Laplace number n at
every use. What a gate draws and what it charges come from the same value:

- `Memoised(epsilon)`: each label is randomised once, before training, within its likeliest classes if a prior is given.
  Whatever is computed afterwards, by anybody and however often, is post-processing: the whole cost is epsilon.
- `Fresh(scale)`: Laplace noise at each use. Every use, in each perturbed copy and at both levels, is charged.
- `Printed(scale)`: the paper's text. For two classes it is `Fresh`; for more it reveals the label: epsilon is infinite.
- `Open()`: true labels, no guarantee.

Guarantee of `Memoised` and `Fresh` (label differential privacy, replace-one): the joint distribution of all messages
changes by at most ``(epsilon, delta)`` when one label changes, for ideal Laplace noise. Randomised response uses
integer coins, so its bound holds on real machines too. Assumptions: features, batches and their order, and priors
depend on the labels only through earlier noisy ones, and nothing but `Labels` reads the true labels. Because batches
are known to every party, sampling amplifies nothing.
"""

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sottovoce.closed import Closed
from sottovoce.privacy import accountant, published
from sottovoce.privacy.label_store import Labels
from sottovoce.privacy.mechanisms import Mechanism, check_epsilon

__all__ = ["Fresh", "LabelGate", "Labels", "LaplaceGate", "Memoised", "Open", "Printed"]


REVEALED = "the printed noise for more than two classes reveals every label: see docs/bambi.md"
Uses = Callable[[], Iterable[tuple[int, np.ndarray]]]  # copies, and how often each label is used in so many


@dataclass(frozen=True)
class LabelGate(Closed, ABC):
    """Define what every gate does: it takes true labels and returns weights of the candidate losses."""

    kind: ClassVar[str]  # its name in run files and in identities
    design: ClassVar[str] = "sound"

    @final
    @property
    def covered(self) -> bool:
        """Say whether what is computed behind the gate has a proved epsilon."""
        return self.design == "sound"

    @property
    @abstractmethod
    def mixture(self) -> bool:
        """Say whether the loss is -log sum_b w_b exp(-theta_b) instead of sum_b w_b theta_b."""

    def charge(self, labels: Labels, rows: np.ndarray, uses: Uses, run: Callable[[], str | None]) -> None:
        """Charge what a run will draw, before anything is drawn: by default each use.

        `rows` are the labels that are used at all, and ``uses()`` says how often, in how many copies. ``run()`` names
        the noise: a run that goes on draws the same noise, and pays for it once.
        """
        costs: dict[Mechanism, np.ndarray] = {}
        for copies, counts in uses():
            if (cost := self.per_use(labels.classes, copies)) is not None:
                costs[cost[0]] = costs.get(cost[0], 0) + cost[1] * counts
        if costs:
            labels.charge(costs, run=run())

    @abstractmethod
    def vectors(self, labels: Labels, rows: np.ndarray | None = None) -> np.ndarray:
        """Return one vector per label, from which each use makes its weights.

        Only `rows` will be used; by default all. What is drawn here was charged before.
        """

    @property
    def staged(self) -> bool:
        """Say whether a label is asked once, so that what is asked of it may follow from others' answers (`ask`)."""
        return False

    def ask(self, labels: Labels, rows: np.ndarray, prior: np.ndarray) -> None:
        """Draw these labels, charged first, with the question that tells most under class probabilities."""
        raise ValueError("stages need labels=Memoised(epsilon) with the forward correction")

    def calibrated(self, epsilon: float, reached: "Callable[[LabelGate], float]") -> Self:
        """Return the gate with noise for a wanted epsilon; `reached` computes that of a whole run behind a gate."""
        raise ValueError(
            f"{type(self).__name__} labels have no noise that gives a wanted epsilon: use labels=Memoised(epsilon), "
            "whose epsilon is that of the whole run, or Fresh(scale)"
        )

    def claim(self, classes: int, uses: int, copies: int, delta: float) -> float:
        """Return the epsilon that an audit holds against what it measures: by default what is accounted."""
        cost = self.per_use(classes, copies)
        return float(accountant.epsilon([(cost[0], cost[1] * uses)], delta, "replace-one")) if cost else 0.0

    def gains(self, labels: Labels, uses: int, copies: int, seed: int) -> np.ndarray:
        """Draw all uses of labels; return each one's log-likelihood of label 0, less that of label 1."""
        raise ValueError(f"there is nothing to audit: {type(self).__name__} draws nothing")

    def caveats(self, epsilon: float) -> tuple[str, ...]:
        """Return what a reader of the statement should know of this gate."""
        return ()

    @abstractmethod
    def weights(self, vectors: Array, copies: tuple[int, ...], key: Array) -> Array:
        """Return the weights of a batch of `vectors` (rows, classes), per perturbed copy: (*copies, rows, classes)."""

    @abstractmethod
    def per_use(self, classes: int, copies: int) -> tuple[Mechanism, int] | None:
        """Return what one use of a label in `copies` copies costs: a mechanism and how often it is applied.

        None if a use costs nothing.
        """

    @abstractmethod
    def published(self) -> float | None:
        """Return the epsilon that the paper prints for the whole run; None if it prints none."""

    @final
    def loss(self, losses: Array, weights: Array) -> Array:
        """Return the server's loss of each record from its candidate losses (last axis) and their weights.

        >>> losses = jnp.asarray([0.5, 2.0])
        >>> truth = jnp.asarray([0.0, 1.0])
        >>> float(Open().loss(losses, truth)), float(Memoised(1.0).loss(losses, truth))
        (2.0, 2.0)
        """
        if self.mixture:
            return -jax.nn.logsumexp(-losses, axis=-1, b=weights)
        return jnp.sum(weights * losses, axis=-1)


@final
@dataclass(frozen=True)
class Open(LabelGate):
    """Use true labels: nothing is guaranteed.

    >>> Open().vectors(Labels([0, 2], classes=3)).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """

    kind: ClassVar[str] = "open"
    design: ClassVar[str] = "non-private"

    @property
    def mixture(self) -> bool:
        """Return False: the loss is a sum."""
        return False

    def vectors(self, labels: Labels, rows: np.ndarray | None = None) -> np.ndarray:
        """Return one-hot true labels."""
        return labels.open()

    def weights(self, vectors: Array, copies: tuple[int, ...], key: Array) -> Array:
        """Return the vectors as they are, in each copy."""
        return _repeated(vectors, copies)

    def per_use(self, classes: int, copies: int) -> tuple[Mechanism, int]:
        """Charge an infinite epsilon: there is no noise, and one use reveals the label."""
        return Mechanism(pure=float("inf")), 1

    def published(self) -> float | None:
        """Return None: no paper claims anything for true labels."""
        return None


@final
@dataclass(frozen=True)
class Memoised(LabelGate):
    """Draw each label once by randomised response, and keep the draw with the data.

    Args:
        epsilon: of the one draw, and so of everything that follows.
        correction: "forward" takes the observed label's likelihood under each true one, -log sum_b p_b P(observed | b),
            which needs losses that are negative log-likelihoods; "debiased" takes an unbiased one-hot vector, which
            makes gradients unbiased for any loss, at a larger variance.

    >>> labels = Labels(np.arange(6) % 3, classes=3, seed=0)
    >>> first = Memoised(1.0).vectors(labels)
    >>> bool((Memoised(1.0).vectors(labels) == first).all()), float(labels.epsilon())
    (True, 1.0)
    """

    kind: ClassVar[str] = "memoised"
    epsilon: float
    correction: Literal["forward", "debiased"] = "forward"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        if self.correction not in ("forward", "debiased"):
            raise ValueError(f"correction is {self.correction!r}: choose 'forward' or 'debiased'")

    @property
    def mixture(self) -> bool:
        """Say whether the forward correction is used: its loss is a mixture over the true label."""
        return self.correction == "forward"

    def charge(self, labels: Labels, rows: np.ndarray, uses: Uses, run: Callable[[], str | None]) -> None:
        """Charge each label for the one draw, if nobody has: how often it is used does not matter."""
        labels.pay(self.epsilon, rows)

    @property
    def staged(self) -> bool:
        """Say whether the likelihood of the answer is used: it knows of any question."""
        return self.mixture

    def ask(self, labels: Labels, rows: np.ndarray, prior: np.ndarray) -> None:
        """Draw these labels among groups of classes (`sottovoce.privacy.response`)."""
        if not self.staged:
            return super().ask(labels, rows, prior)
        labels.memo(self.epsilon, rows, prior)

    def calibrated(self, epsilon: float, reached: Callable[[LabelGate], float]) -> "Memoised":
        """Return the gate at this epsilon, which is that of the whole run."""
        return replace(self, epsilon=float(epsilon))

    def claim(self, classes: int, uses: int, copies: int, delta: float) -> float:
        """Return epsilon, however often a label is used."""
        return self.epsilon

    def gains(self, labels: Labels, uses: int, copies: int, seed: int) -> np.ndarray:
        """Return the gains of the one draw."""
        with np.errstate(divide="ignore"):
            found = np.log(labels.memo(self.epsilon).likelihood[:, :2].astype(np.float64))
        return np.round(found[:, 0] - found[:, 1], 6)

    def vectors(self, labels: Labels, rows: np.ndarray | None = None) -> np.ndarray:
        """Return likelihoods or unbiased one-hot vectors; draw the labels that have not been drawn yet."""
        memo = labels.memo(self.epsilon, rows)
        return memo.likelihood if self.mixture else memo.debiased()

    def weights(self, vectors: Array, copies: tuple[int, ...], key: Array) -> Array:
        """Return the vectors as they are, in each copy."""
        return _repeated(vectors, copies)

    def per_use(self, classes: int, copies: int) -> None:
        """Return None: the one draw was charged, and a use costs nothing more."""
        return

    def published(self) -> float | None:
        """Return None: the paper has no such gate."""
        return None


@dataclass(frozen=True)
class LaplaceGate(LabelGate):
    """Define what gates with Laplace noise of this scale share; the noise is drawn anew at every use.

    The perturbed copies of a use are uses of their own, unless they take the same noise (`shared`), which costs nothing
    more and cancels where copies are compared.
    """

    scale: float
    shared: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.scale, bool | str) or not 0 < self.scale < float("inf"):
            raise ValueError(f"scale is {self.scale!r}: give a positive number")
        object.__setattr__(self, "scale", float(self.scale))

    @final
    @property
    def mixture(self) -> bool:
        """Return False: the loss is a sum."""
        return False

    @final
    def noise(self, shape: tuple[int, ...], copies: tuple[int, ...], key: Array) -> Array:
        """Draw Laplace noise for a batch in each copy.

        The gate itself is part of the key. Otherwise two scales on one seed would share their noise, and twice the
        release of `Fresh(2)` minus that of `Fresh(4)` would be the label.
        """
        itself = f"{self.kind} {float(self.scale).hex()} {self.shared}"
        key = jax.random.fold_in(key, zlib.crc32(itself.encode()))
        drawn = jax.random.laplace(key, shape if self.shared else (*copies, *shape))
        return self.scale * _repeated(drawn, copies) if self.shared else self.scale * drawn

    @final
    def gains(self, labels: Labels, uses: int, copies: int, seed: int) -> np.ndarray:
        """Return the gains of all weights that are seen, which are summed over uses."""
        vectors, total = jnp.asarray(self.vectors(labels)), np.zeros(len(labels))
        for use in range(uses):
            key = jax.random.fold_in(jax.random.key(seed), use)
            seen = np.asarray(self.weights(vectors, (copies,), key), np.float64)
            total += self._seen(seen[:1] if self.shared else seen)
        return np.round(total, 4)

    def _seen(self, weights: np.ndarray) -> np.ndarray:
        """Return the gains of one use from its weights, (copies, labels, classes)."""
        classes = weights.shape[-1]
        # Two classes: the weights are those of one noisy number. More: one noise per entry.
        entries = slice(1, 2) if classes == 2 else slice(0, classes)
        gaps = [np.abs(weights[..., entries] - np.eye(classes)[guess][entries]).sum(axis=(0, 2)) for guess in (0, 1)]
        return (gaps[1] - gaps[0]) / self.scale

    @final
    def vectors(self, labels: Labels, rows: np.ndarray | None = None) -> np.ndarray:
        """Return one-hot true labels, to which `weights` adds noise."""
        return labels.open()

    @final
    def published(self) -> float | None:
        """Return the paper's epsilon, which is that of one release."""
        return published.bambi_dp(self.scale)

    @final
    def _binary(self, vectors: Array, copies: tuple[int, ...], key: Array) -> Array:
        """Add noise to labels of two classes: one number per label, which moves both weights in opposite directions."""
        one_hot = _repeated(vectors, copies)
        return one_hot + self.noise((len(vectors), 1), copies, key) * (2 * one_hot - 1)

    @final
    def _unit_shifts(self, number: int, copies: int) -> tuple[Mechanism, int]:
        """Charge `number` Laplace releases of sensitivity 1 per copy that has noise of its own."""
        shift = Mechanism(laplace=(0.5 / self.scale,))  # the accountant doubles a contribution that is replaced
        return shift, number * (1 if self.shared else copies)


@final
@dataclass(frozen=True)
class Fresh(LaplaceGate):
    """Add independent Laplace noise of this scale at every use.

    Two classes: the label, as a number, gets noise (Algorithm 2 of BAMBI-DP), at 1/scale per use. More classes: each
    entry of the one-hot vector gets its own noise, at 2/scale per use.

    >>> float(jnp.mean(Fresh(0.5).weights(jnp.asarray([[0.0, 1.0]]), (4000,), jax.random.key(0))[:, 0, 1]).round(1))
    1.0
    """

    kind: ClassVar[str] = "fresh"

    def weights(self, vectors: Array, copies: tuple[int, ...], key: Array) -> Array:
        """Return unbiased noisy one-hot vectors."""
        if vectors.shape[-1] == 2:
            return self._binary(vectors, copies, key)
        return _repeated(vectors, copies) + self.noise(vectors.shape, copies, key)

    def calibrated(self, epsilon: float, reached: Callable[[LabelGate], float]) -> "Fresh":
        """Return the gate with the least scale that the account finds to be enough."""
        low, high = 1e-6, 1.0
        while reached(replace(self, scale=high)) > epsilon:
            low, high = high, 2 * high
        for _ in range(40):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if reached(replace(self, scale=middle)) <= epsilon else (middle, high)
        return replace(self, scale=high)

    def per_use(self, classes: int, copies: int) -> tuple[Mechanism, int]:
        """Charge one unit shift for two classes and two unit shifts for more, per copy with noise of its own."""
        return self._unit_shifts(1 if classes == 2 else 2, copies)


@final
@dataclass(frozen=True)
class Printed(LaplaceGate):
    """Follow Algorithms 2 and 3 of BAMBI-DP as printed.

    For more than two classes, one noise number multiplies the sum of all candidate gradients. The candidates then lie
    on parallel lines, and anybody who knows the scores (or sees two copies) reads off the label. No epsilon holds.

    >>> Printed(1.0).per_use(classes=3, copies=1)[0].pure
    inf
    """

    kind: ClassVar[str] = "printed"
    design: ClassVar[str] = "printed"

    def weights(self, vectors: Array, copies: tuple[int, ...], key: Array) -> Array:
        """Return the one-hot vector plus the same noise in all entries; for two classes as `Fresh`."""
        if vectors.shape[-1] == 2:
            return self._binary(vectors, copies, key)
        return _repeated(vectors, copies) + self.noise((len(vectors), 1), copies, key)

    def claim(self, classes: int, uses: int, copies: int, delta: float) -> float:
        """Return the paper's epsilon."""
        return float(self.published() or math.inf)

    def _seen(self, weights: np.ndarray) -> np.ndarray:
        """For more than two classes all entries carry one noise, which cancels in differences."""
        return super()._seen(weights) if weights.shape[-1] == 2 else np.sum(weights[..., 0] - weights[..., 1], axis=0)

    def caveats(self, epsilon: float) -> tuple[str, ...]:
        """Return, where no epsilon holds, that labels can be read."""
        return (REVEALED,) if math.isinf(epsilon) else ()

    def per_use(self, classes: int, copies: int) -> tuple[Mechanism, int]:
        """Charge as `Fresh` for two classes; for more nothing is hidden and epsilon is infinite."""
        return self._unit_shifts(1, copies) if classes == 2 else (Mechanism(pure=float("inf")), 1)


GATES = (Open, Memoised, Fresh, Printed)  # those that an account over columns covers


def _repeated(x: Array, copies: tuple[int, ...]) -> Array:
    return jnp.broadcast_to(x, (*copies, *x.shape))
