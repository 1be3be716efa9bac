"""The label gate: what may be known of labels, when features are public to their owners.

A gate is a frozen value. The server's loss is linear in, or a mixture over, the losses `theta_b` it would have if the
label were b; a gate turns a label into the weights of these. What it draws and what it charges come from that value:

- `Memoised(epsilon)`: each label is randomised once, before training, within its likeliest classes if a prior is given.
  Whatever is computed afterwards, by anybody and however often, is post-processing: the whole cost is epsilon.
- `Fresh(scale)`: Laplace noise at each use. Every use, in each perturbed copy and at both levels, is charged.
- `Printed(scale)`: the paper's text. For two classes it is `Fresh`; for more it reveals the label: epsilon is infinite.
- `Open()`: true labels, no guarantee.

Guarantee of `Memoised` and `Fresh` (label differential privacy, replace-one): the joint distribution of all messages
changes by at most ``(epsilon, delta)`` when one label changes, for ideal Laplace noise. Randomised response uses
integer coins, so its bound holds on real machines too. Assumptions: features, batches and their order, and priors do
not depend on the labels but through earlier noisy ones, and nothing but `Labels` reads the true labels. As batches
are known to every party, sampling amplifies nothing.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.privacy import published
from sottovoce.privacy.accountant import Mechanism
from sottovoce.privacy.label_store import Labels

__all__ = ["Fresh", "LabelGate", "Labels", "Memoised", "Open", "Printed"]

Array = jax.Array


@dataclass(frozen=True)
class LabelGate:
    """Base of all gates: true labels in, weights of the candidate losses out."""

    design: ClassVar[str] = "sound"
    mixture: ClassVar[bool] = False  # the loss is -log sum_b w_b exp(-theta_b) instead of sum_b w_b theta_b

    def vectors(self, labels: Labels, rows: np.ndarray | None = None) -> np.ndarray:
        """One vector a label, from which the weights of each use are made; only `rows` will be used (default: all)."""
        raise NotImplementedError

    def weights(self, vectors: Array, copies: tuple[int, ...], key: Array) -> Array:
        """The weights of a batch (rows, classes), for each of the perturbed copies: (*copies, rows, classes)."""
        return jnp.broadcast_to(vectors, (*copies, *vectors.shape))

    def per_use(self, classes: int, copies: int) -> tuple[Mechanism, int] | None:
        """What a use of a label, in so many copies, costs: a mechanism and how often it is applied; None if nothing."""
        return None

    def published(self) -> float | None:
        """What the paper prints for the whole run."""
        return None

    def loss(self, losses: Array, weights: Array) -> Array:
        """The server's loss of each record from its candidate losses (last axis) and their weights.

        >>> losses = jnp.asarray([0.5, 2.0])
        >>> truth = jnp.asarray([0.0, 1.0])
        >>> float(Open().loss(losses, truth)), float(Memoised(1.0).loss(losses, truth))
        (2.0, 2.0)
        """
        if self.mixture:
            return -jax.nn.logsumexp(-losses, axis=-1, b=weights)
        return jnp.sum(weights * losses, axis=-1)


@dataclass(frozen=True)
class Open(LabelGate):
    """True labels: nothing is guaranteed."""

    design: ClassVar[str] = "non-private"

    def vectors(self, labels: Labels, rows: np.ndarray | None = None) -> np.ndarray:
        """One-hot true labels."""
        return labels.open()

    def per_use(self, classes: int, copies: int) -> tuple[Mechanism, int]:
        """No noise: one use reveals the label."""
        return Mechanism(pure=float("inf")), 1


@dataclass(frozen=True)
class Memoised(LabelGate):
    """Randomised response, drawn once for each label and kept with the data.

    Args:
        epsilon: of the one draw, and so of everything that follows.
        correction: "forward" takes the observed label's likelihood under each true one, -log sum_b p_b P(observed | b),
            which needs losses that are negative log-likelihoods; "debiased" an unbiased one-hot vector, which makes
            gradients unbiased for any loss, at a larger variance.

    >>> labels = Labels(np.arange(6) % 3, classes=3, seed=0)
    >>> first = Memoised(1.0).vectors(labels)
    >>> bool((Memoised(1.0).vectors(labels) == first).all()), float(labels.epsilon())
    (True, 1.0)
    """

    epsilon: float
    correction: Literal["forward", "debiased"] = "forward"

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise ValueError(f"epsilon is {self.epsilon}: give a positive number")
        if self.correction not in ("forward", "debiased"):
            raise ValueError(f"correction is {self.correction!r}: choose 'forward' or 'debiased'")

    @property
    def mixture(self) -> bool:  # type: ignore[override]
        """Forward correction is a mixture over the true label."""
        return self.correction == "forward"

    def vectors(self, labels: Labels, rows: np.ndarray | None = None) -> np.ndarray:
        """Likelihoods or unbiased one-hot vectors; labels that have no memo yet are drawn now."""
        memo = labels.memo(self.epsilon, rows)
        return memo.likelihood if self.mixture else memo.debiased()


@dataclass(frozen=True)
class Fresh(LabelGate):
    """Laplace noise of this scale, drawn anew at every use.

    Two classes: the label, as a number, is noised (Algorithm 2 of BAMBI-DP), at 1/scale a use. More classes: each entry
    of the one-hot vector is, at 2/scale a use. The perturbed copies of a use are uses of their own, unless they take
    the same noise (`shared`), which costs nothing more and cancels where copies are compared.

    >>> float(jnp.mean(Fresh(0.5).weights(jnp.asarray([[0.0, 1.0]]), (4000,), jax.random.key(0))[:, 0, 1]).round(1))
    1.0
    """

    scale: float
    shared: bool = False

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(f"scale is {self.scale}: give a positive number")

    def noise(self, shape: tuple[int, ...], copies: tuple[int, ...], key: Array) -> Array:
        """Laplace noise for a batch in each copy."""
        drawn = jax.random.laplace(key, shape if self.shared else (*copies, *shape))
        return self.scale * jnp.broadcast_to(drawn, (*copies, *shape))

    def vectors(self, labels: Labels, rows: np.ndarray | None = None) -> np.ndarray:
        """One-hot true labels, which `weights` noises."""
        return labels.open()

    def weights(self, vectors: Array, copies: tuple[int, ...], key: Array) -> Array:
        """Unbiased noisy one-hot vectors."""
        classes = vectors.shape[-1]
        one_hot = super().weights(vectors, copies, key)
        if classes == 2:
            return one_hot + self.noise((len(vectors), 1), copies, key) * (2 * one_hot - 1)
        return one_hot + self.noise(vectors.shape, copies, key)

    def per_use(self, classes: int, copies: int) -> tuple[Mechanism, int]:
        """A unit shift for two classes, two of them for more; in each copy that has noise of its own."""
        shift = Mechanism(laplace=(0.5 / self.scale,))  # the accountant doubles a contribution that is replaced
        return shift, (1 if classes == 2 else 2) * (1 if self.shared else copies)

    def published(self) -> float | None:
        """The paper's epsilon, which is that of one release."""
        return published.bambi_dp(self.scale)


@dataclass(frozen=True)
class Printed(Fresh):
    """Algorithms 2 and 3 of BAMBI-DP as printed.

    For more than two classes, one noise number multiplies the sum of all candidate gradients: the candidates lie on
    parallel lines, and who knows the scores (or sees two copies) reads off the label. No epsilon holds.
    """

    design: ClassVar[str] = "printed"

    def weights(self, vectors: Array, copies: tuple[int, ...], key: Array) -> Array:
        """The one-hot vector plus the same noise in all entries."""
        if vectors.shape[-1] == 2:
            return super().weights(vectors, copies, key)
        one_hot = LabelGate.weights(self, vectors, copies, key)
        return one_hot + self.noise((len(vectors), 1), copies, key)

    def per_use(self, classes: int, copies: int) -> tuple[Mechanism, int]:
        """Nothing is hidden for more than two classes."""
        return super().per_use(classes, copies) if classes == 2 else (Mechanism(pure=float("inf")), 1)
