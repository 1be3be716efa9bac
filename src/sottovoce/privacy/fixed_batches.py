"""Prove what Gaussian releases on a batch of a fixed size cost, if the batch is drawn without replacement.

A party has n places, each with a record. A batch is a uniform subset of b places, fresh and secret; q = b / n. Zero-out
adjacency: D' is D with one record's contribution set to zero. Its place stays, so n, b and the law of the batch are the
same for D and D'. (Nothing is said about data sets of n and of n - 1 places.) A batch that misses the record has
another one instead: so the others matter, and the release without the record depends on the draw too.

**Theorem.** Let the batch be used for Gaussian releases, each of which may depend on those before it, and let mu^2 be
the sum of their squared clips over noise. For a = e^epsilon >= 1 the hockey-stick divergences are at most

    H_a(with | without) <= H_a((1-q) N(-mu) + q N(mu) | (1-q) N(-mu) + q N(0)),
    H_a(without | with) <= H_a((1-q) N(mu) + q N(0) | N(mu)),

all of variance 1. Both are attained: the first if the others contribute the opposite of the record, the second if they
contribute the same.

*Assumptions.* 1 <= b <= n, batches of different steps are independent, each clip and noise is fixed before its batch is
drawn, and each release is a vector with independent Gaussian noise in every coordinate, or a function of one without
further access to records (so exact discrete noise, which `discrete` reduces to it). The theorem is not for Laplace
noise, replace-one adjacency, or draws with replacement. A *record* is a unit where units are sampled and clipped.

*One release.* Measure in units of the noise.

1. Draw b - 1 of the other places, then one more of them, j. With chance q the batch is the first b - 1 and the record's
   place, otherwise the first b - 1 and j: a uniform subset. (If b = n there is no j, and q = 1.) H_a is jointly convex,
   and what was drawn first has one law under D and D'. So it suffices to bound H_a given these draws, where after a
   shift P = (1-q) N(u, I) + q N(v, I) and Q = (1-q) N(u, I) + q N(0, I), with |u| <= mu from j and |v| <= mu.
2. Let X ~ N(0, I), X1 its coordinate along v, U that along u, and r = |u|. With A = q, B = q a and C = (1-q)(a-1),
   which are not negative as a >= 1, H_a(P | Q) = E (k(X1) - g(U))_+, where k(x) = A e^(|v| x - |v|^2 / 2) - B and
   g(y) = C e^(r y - r^2 / 2) increase. The positive part of a difference is submodular in its two terms, so this is
   submodular in (X1, U), a Gaussian pair with standard marginals. The mean of a submodular function falls as the
   correlation grows (Slepian; Tchen 1980). It is largest at -1, where U = -X1.
3. There k(x) - g(-x) increases, and is positive for x > z, say. The mean is A F(|v| - z) - B F(-z) - C F(-z - r) with
   F the normal distribution function. It is stationary in z, so its derivatives are C f(z + r) >= 0 in r and
   A f(|v| - z) >= 0 in |v|: it is largest at r = |v| = mu. If v = 0, then P = Q.
4. H_a(Q | P) is the same with k(x) = A - B e^(|v| x - |v|^2 / 2), for A = q and B = q a, which decreases. So the
   integrand is supermodular, and correlation +1 is the worst. There it is positive for x < z, the mean is
   A F(z) - B F(z - |v|) - C F(z - r), and both derivatives are not negative. So r = |v| = mu again, and u = v.

*Several releases on one batch.* Backward induction: 2 to 4 hold for all A, B, C >= 0, and only the size of u and v is
used. Given all releases but the last, H_a is an integral over the last one, of the form of 2 with A and C multiplied by
the likelihoods of the releases before. It is at most its value at u = -v, |v| = mu_last: a mean over a standard normal
Z of the form for the releases before, with A multiplied by e^(mu_last Z - mu_last^2 / 2) and C by
e^(-mu_last Z - mu_last^2 / 2). For each Z the induction goes on. At the end the exponents hold
mu_1 Z_1 + mu_2 Z_2 + ..., which is one Gaussian of size mu. The other direction is the same.

*Composition.* Let f(a) be the first bound for a >= 1. For a < 1, H_a(P | Q) = 1 - a + a H_(1/a)(Q | P), so
f(a) = 1 - a + a g(1/a) with g the second bound. As the supremum of profiles f is convex, decreasing, 1 at 0, and at
least (1 - a)_+. So f is the profile of a pair of distributions, which dominates every step, given everything before it.
Dominating pairs compose adaptively (Zhu, Dong, Wang 2022, theorem 10). Releases from several batches may alternate, as
those from two levels do: concurrent composition costs the same (Vadhan and Zhang 2023). The pair of the first bound
alone does *not* dominate: for a < 1 the second one is above it.

*The pair.* f'(a) is minus the chance, without the record, of a loss above log a. So the positive losses of the pair are
those of the first bound, its negative ones those of the second, mirrored, and what remains is at loss 0. All of these
masses are positive, and no difference of hockey-sticks is taken. The remaining mass is (1-q) (F(mu/2) - F(-3 mu/2)).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Mixture = tuple[tuple[int, float], ...]  # (shift, probability) pairs of a mixture


class Half(NamedTuple):
    """Hold one of the theorem's two bounds, a pair of mixtures whose loss increases wherever it is positive.

    `point` is the inverse of the loss: where it has a value >= 0.
    """

    over: Mixture
    under: Mixture
    point: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Subset:
    """Describe Gaussian releases on one batch without replacement, under zero-out: mu = clip / noise of all together.

    `rate` is the batch over the number of places, q in the proof.

    >>> removed, added = Subset(mu=1.0, rate=0.25).halves
    >>> removed.over, removed.under
    (((-1, 0.75), (1, 0.25)), ((-1, 0.75), (0, 0.25)))
    >>> added.over, added.under
    (((0, 0.75), (1, 0.25)), ((0, 1.0),))
    """

    mu: float
    rate: float

    @property
    def halves(self) -> tuple[Half, Half]:
        """Return the theorem's bounds: with over without the record, and without over with, mirrored and shifted."""
        q = self.rate
        return (
            Half(((-1, 1 - q), (1, q)), ((-1, 1 - q), (0, q)), self._where_with_exceeds),
            Half(((0, 1 - q), (1, q)), ((0, 1.0),), self._where_without_exceeds),
        )

    @property
    def indifferent(self) -> float:
        """Return the mass of the pair at loss 0.

        >>> Subset(mu=1.0, rate=1.0).indifferent
        0.0
        """
        from scipy.special import ndtr  # slow to load

        return (1 - self.rate) * float(ndtr(self.mu / 2) - ndtr(-1.5 * self.mu))

    def _where_with_exceeds(self, loss: np.ndarray) -> np.ndarray:
        """Solve a quadratic equation in e^(mu x); every term is positive, so no digit is lost.

        >>> float(Subset(mu=2.0, rate=0.1)._where_with_exceeds(np.zeros(1))[0])
        1.0
        """
        other = (1 - self.rate) / self.rate * np.exp(-loss - self.mu**2) * -np.expm1(-loss)
        return self.mu / 2 + (loss + np.log1p(2 * other / (1 + np.sqrt(1 + 4 * other)))) / self.mu

    def _where_without_exceeds(self, loss: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return self.mu / 2 + np.logaddexp(0.0, loss + np.log(-np.expm1(-loss)) - math.log(self.rate)) / self.mu
