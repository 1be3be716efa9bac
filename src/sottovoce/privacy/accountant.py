"""Compute epsilon from mechanisms.

A `Mechanism` says what was released from one batch and how the draw of the batch amplifies privacy. `epsilon` composes
any number of them and returns the smallest of all bounds that are valid for the stated adjacency. For example, three
Laplace releases of 0.1 each, composed at delta = 0:

>>> round(epsilon([(Mechanism(laplace=(0.1,)), 3)], 0.0, "zero-out"), 6)
0.3

Nothing here knows which method made a release, and nothing is guessed: a combination without a proof is an error.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version

import numpy as np

from sottovoce.privacy import pld, rdp
from sottovoce.privacy.gdp import gdp_epsilon
from sottovoce.privacy.mechanisms import (
    Adjacency,
    Amplification,
    Epsilon,
    Mechanism,
    NoAmplification,
    PoissonAmplification,
    RedrawAmplification,
    Spent,
    SubsetAmplification,
    check_adjacency,
    clips_moved,
)

__all__ = [
    "Adjacency",
    "Amplification",
    "Epsilon",
    "Mechanism",
    "NoAmplification",
    "PoissonAmplification",
    "RedrawAmplification",
    "SubsetAmplification",
    "check_adjacency",
    "epsilon",
    "library",
    "pairs",
]


def library() -> str:
    """Return the name and version of what computes bounds, for reports.

    >>> library()
    'sottovoce 0.1.0'
    """
    return f"sottovoce {version('sottovoce')}"


def epsilon(
    mechanisms: Iterable[tuple[Mechanism, int]], delta: float, adjacency: Adjacency, *, overflow: float = 0.0
) -> Epsilon:
    """Return the smallest valid epsilon of all (mechanism, count) together, composed adaptively.

    The guarantee is (epsilon, delta)-differential privacy of everything released, for the ideal mechanisms (real
    numbers, perfect noise), provided that sampling coins are fresh and secret, denominators fixed, and each noise
    multiplier set before its step or from public values only. Each of these bounds is computed where it is valid:

    - "pure sum": Laplace and pure releases; holds at delta = 0 too. Sampling at rate q turns e into log(1+q(e^e - 1)).
    - "exact GDP": un-sampled Gaussian releases only.
    - "PLD": everything.
    - "RDP": Poisson and un-sampled releases, where the PLD is above 20, because its grid is coarse there.

    `overflow` is the chance that any padded batch did not fit its array. Cutting such batches makes another mechanism,
    at a total variation of at most `overflow` from the one that is charged, for D and for D'. So (e, d) of the one that
    is charged is (e, d + (1 + e^e) overflow) of the one that runs: a share of delta is kept for it.

    Three rules need a proof rather than a formula:

    - Replace-one where no dominating pair is known (Laplace releases on Poisson batches). Replacing is zeroing out
      twice, so (e, d) under zero-out is (2e, (1+e^e)d) under replace-one: the smallest such e is found. The names of
      these bounds end in "of pairs".
    - Batches of a fixed size. A draw that misses the record takes another one, so the release without the record
      depends on the draw too. Gaussian releases without replacement under zero-out: the theorem of `fixed_batches`,
      whose bound one batch attains. All others: see below. With replacement a record may come up k times, with chance
      w_k of the binomial law; without replacement k is 0 or 1, and w_1 is the batch over the size.
    - More than 256 different mechanisms of one kind: inverse multipliers are rounded up to a geometric grid.

    The other batches of a fixed size, proof. Let D and D' be neighbours, and D_a the hockey-stick divergence, whose
    value at a = e^e is the delta of epsilon e. Write delta_s(a) for the curve of one release moved by s clips: s = k
    for a record that comes up k times and is zeroed out, s = 2k if it is replaced.

    1. Draws known. Draw the b row numbers first, for D and D' alike. Given them, the two sums differ by s clips. D_a is
       jointly convex, so D_a(M(D) | M(D')) <= sum_k w_k delta_s(a). This is the curve of the pair that tells k and the
       release moved by s or not, so it composes. Nothing of it changes when D and D' change places.
    2. Draws secret. Let P0 be the release given k = 0, which D and D' share, P1 and Q1 those of D and D' given k > 0,
       and eta = 1 - w_0. For a' = 1 + eta (a - 1) and c = a'/a, advanced joint convexity (Balle, Barthe, Gaboardi 2018,
       theorem 2) gives D_a'(M(D) | M(D')) = eta D_a(P1 | (1-c) P0 + c Q1) <= eta ((1-c) D_a(P1 | P0) + c D_a(P1 | Q1)).
       To compare P1 with P0, draw P1's rows and put uniform other records in the k places of the record (without
       replacement, one that was not drawn): this gives P0's rows, and the sums differ by at most 2k clips. P1 and Q1
       differ by at most 2k clips as in 1. Hence D_a'(M(D) | M(D')) <= sum_{k>0} w_k delta_2k(a) for all a >= 1, under
       zero-out too, and in both directions. `pld.Redrawn` is the pair with this curve.

    Under replace-one 2 is never above 1. Under zero-out either may be smaller, and the smaller one counts.

    >>> release = Mechanism(gaussian=1 / 1.5**2, amplification=PoissonAmplification(0.04))
    >>> bound = epsilon([(release, 2250)], 1e-5, "zero-out")
    >>> round(bound, 3), bound.accountant, bound.adjacency
    (6.769, 'PLD', 'zero-out')
    """
    check_adjacency(adjacency)
    if isinstance(delta, bool | str) or not 0 <= delta < 1:
        raise ValueError(f"delta is {delta!r}: give a number in [0, 1)")
    if not overflow >= 0:
        raise ValueError(f"overflow is {overflow}: give a chance >= 0")
    counts: dict[Mechanism, int] = {}
    for mechanism, count in mechanisms:
        if count < 0 or count != int(count):
            raise ValueError(f"a mechanism was used {count} times: give a whole number >= 0")
        if count and (mechanism.gaussian or mechanism.laplace or mechanism.pure):
            counts[mechanism] = counts.get(mechanism, 0) + int(count)
    if delta == 0 and any(0 < mechanism.gaussian < math.inf for mechanism in counts):
        raise ValueError(
            "delta is 0, where Gaussian releases and noisy counts have no finite epsilon: give delta > 0, or use "
            "Laplace noise and declared ranges"
        )
    items = frozenset(counts.items())
    if overflow == 0.0 or not items:
        return _epsilon(items, float(delta), adjacency)
    for reserve in _RESERVES:
        found = _epsilon(items, delta * (1 - reserve), adjacency)
        if overflow * (1 + math.exp(min(float(found), 700.0))) <= reserve * delta:
            return Epsilon(
                found, delta=delta, adjacency=adjacency, accountant=found.accountant, considered=found.considered
            )
    # Beyond an epsilon of about 20 the chance of an overflow, times e^epsilon, is no longer negligible against delta.
    return Epsilon(math.inf, delta=delta, adjacency=adjacency, accountant="none")


_FixedSize = SubsetAmplification | RedrawAmplification
_MOST_DIFFERENT = 256  # mechanisms that are composed one by one; a longer list is rounded up to a grid
_RESERVES = (1e-6, 1e-2, 0.5)  # shares of delta that are kept for batches that did not fit
_COARSE = 20.0  # below it the PLD is the smaller bound, and RDP would only take its time
_FEW = 16  # of a longer list RDP is not worth its time


@lru_cache(maxsize=4096)
def _epsilon(counts: frozenset[tuple[Mechanism, int]], delta: float, adjacency: Adjacency) -> Epsilon:
    items = tuple((_plain(mechanism), count) for mechanism, count in counts)
    considered: dict[str, float] = {}
    if not any(mechanism.gaussian for mechanism, _ in items):
        considered["pure sum"] = sum(count * _pure(mechanism, adjacency) for mechanism, count in items)
    if any(math.isinf(x) for mechanism, _ in items for x in (mechanism.gaussian, mechanism.pure, *mechanism.laplace)):
        considered = {"no noise": math.inf}
    elif items and all(mechanism == Mechanism(gaussian=mechanism.gaussian) for mechanism, _ in items):
        mu = math.sqrt(sum(count * mechanism.gaussian for mechanism, count in items))
        considered["exact GDP"] = gdp_epsilon(mu * clips_moved(adjacency), delta)
    elif items and delta > 0:
        considered |= _numerical(_few(items), delta, adjacency)
    accountant = min(considered, key=lambda name: considered[name])
    return Epsilon(
        considered[accountant], delta=delta, adjacency=adjacency, accountant=accountant, considered=considered
    )


def _numerical(items: Spent, delta: float, adjacency: Adjacency) -> dict[str, float]:
    """Compute the bounds that need a numerical accountant."""
    found: dict[str, float] = {}
    if adjacency == "zero-out" or all(_has_replace_one_pair(mechanism) for mechanism, _ in items):
        found["PLD"] = pld.epsilon(_pieces(items, delta, adjacency), delta)
        if adjacency == "zero-out" and any(_has_two_pairs(mechanism, adjacency) for mechanism, _ in items):
            found["PLD, draws known"] = pld.epsilon(_pieces(items, delta, adjacency, hidden=False), delta)
    else:
        found["PLD of pairs"] = _of_pairs(items, delta)
    if min(found.values()) > _COARSE and len(items) <= _FEW and all(_has_rdp(m, adjacency) for m, _ in items):
        found["RDP"] = rdp.epsilon(items, delta, adjacency)
    return found


def pairs(mechanisms: Spent, delta: float, adjacency: Adjacency) -> list[tuple[pld.Piece, int]] | None:
    """Return dominating pairs of all mechanisms together; None where none is known, or something has no noise.

    >>> pairs(((Mechanism(gaussian=0.25), 4),), 1e-9, "zero-out")
    [(Shifted(mu=1.0, over=((1, 1.0),), under=((0, 1.0),)), 1)]
    """
    items = tuple((_plain(mechanism), count) for mechanism, count in mechanisms)
    if any(math.isinf(x) for mechanism, _ in items for x in (mechanism.gaussian, mechanism.pure, *mechanism.laplace)):
        return None
    if adjacency == "replace-one" and not all(_has_replace_one_pair(mechanism) for mechanism, _ in items):
        return None
    return _pieces(_few(items), delta, adjacency)


def _plain(mechanism: Mechanism) -> Mechanism:
    """Replace the amplification of a batch that leaves no record out by none."""
    by = mechanism.amplification
    everybody = isinstance(by, PoissonAmplification) and by.rate == 1
    everybody |= isinstance(by, SubsetAmplification) and by.batch == by.size
    return replace(mechanism, amplification=NoAmplification()) if everybody else mechanism


def _pure(mechanism: Mechanism, adjacency: Adjacency) -> float:
    """Return epsilon at delta = 0 of Laplace and pure releases on one batch."""
    total, by = sum(mechanism.laplace), mechanism.amplification
    if isinstance(by, PoissonAmplification):  # proved for zero-out; replacing is zeroing out twice
        return clips_moved(adjacency) * _amplified(total + mechanism.pure, by.rate)
    if isinstance(by, _FixedSize):  # the record may come up in every draw
        known = by.most * (clips_moved(adjacency) * total + mechanism.pure)
        return min(known, _amplified(by.most * (2 * total + mechanism.pure), by.appears))
    return clips_moved(adjacency) * total + mechanism.pure


def _amplified(eps: float, rate: float) -> float:
    """Return log(1 + rate (e^eps - 1)), also for large eps."""
    return math.log1p(rate * math.expm1(eps)) if eps < 500 else eps + math.log(rate)


def _has_replace_one_pair(mechanism: Mechanism) -> bool:
    return not (isinstance(mechanism.amplification, PoissonAmplification) and (mechanism.laplace or mechanism.pure))


def _has_two_pairs(mechanism: Mechanism, adjacency: Adjacency) -> bool:
    return isinstance(mechanism.amplification, _FixedSize) and not _is_subset_of_gaussians(mechanism, adjacency)


def _has_rdp(mechanism: Mechanism, adjacency: Adjacency) -> bool:
    if mechanism.pure:  # the library would read it as randomised response against a uniform answer: too small
        return False
    if isinstance(mechanism.amplification, PoissonAmplification):
        return adjacency == "zero-out" and not mechanism.laplace
    return isinstance(mechanism.amplification, NoAmplification)


def _few(items: Spent) -> Spent:
    """Merge un-sampled Gaussian releases exactly, and round the rest up until the list is short."""
    merged = sum(count * m.gaussian for m, count in items if isinstance(m.amplification, NoAmplification))
    rest = [
        (replace(m, gaussian=0.0) if isinstance(m.amplification, NoAmplification) else m, count) for m, count in items
    ]
    ratio = 0.0
    while True:
        counts: dict[Mechanism, int] = {Mechanism(gaussian=merged): 1} if merged else {}
        for mechanism, count in rest:
            snapped = _rounded_up(mechanism, ratio)
            if snapped.gaussian or snapped.laplace or snapped.pure:
                counts[snapped] = counts.get(snapped, 0) + count
        if len(counts) <= _MOST_DIFFERENT:
            return tuple(counts.items())
        ratio = 1.25 * ratio or _spread(rest) / _MOST_DIFFERENT


def _spread(items: list[tuple[Mechanism, int]]) -> float:
    """Return the logarithm of the largest inverse multiplier over the smallest, at least 0.001."""
    inverses = [v for m, _ in items for v in (math.sqrt(m.gaussian), m.pure, *m.laplace) if v > 0]
    return max(math.log(max(inverses) / min(inverses)), 1e-3)


def _rounded_up(mechanism: Mechanism, ratio: float) -> Mechanism:
    def up(inverse: float) -> float:
        if ratio == 0 or inverse == 0:
            return inverse
        step = math.log1p(ratio)
        return max(inverse, math.exp(step * math.ceil(math.log(inverse) / step)))

    return replace(
        mechanism,
        gaussian=max(mechanism.gaussian, up(math.sqrt(mechanism.gaussian)) ** 2) if ratio else mechanism.gaussian,
        laplace=tuple(up(v) for v in mechanism.laplace),
        pure=up(mechanism.pure),
    )


def _pieces(items: Spent, delta: float, adjacency: Adjacency, *, hidden: bool = True) -> list[tuple[pld.Piece, int]]:
    """Return the dominating pairs of the mechanisms, one or more per mechanism.

    `hidden` chooses where a batch of a fixed size has two pairs: draws secret or known.
    """
    total = sum(count for _, count in items)
    pieces: list[tuple[pld.Piece, int]] = []
    for mechanism, count in items:
        mu, by, scale = math.sqrt(mechanism.gaussian), mechanism.amplification, clips_moved(adjacency)
        if isinstance(by, NoAmplification):
            if mu:
                pieces.append((pld.Shifted(scale * mu * math.sqrt(count)), 1))
            pieces += [(pld.Shared(laplace=(scale * e,)), count) for e in mechanism.laplace]
            pieces += [(pld.Shared(pure=(mechanism.pure,)), count)] if mechanism.pure else []
        elif isinstance(by, SubsetAmplification) and _is_subset_of_gaussians(mechanism, adjacency):
            pieces.append((pld.Subset(mu, by.appears), count))
        elif isinstance(by, _FixedSize):
            scale = 2.0 if hidden else scale  # another record stands in the place of one that was not drawn
            laplace = tuple(scale * e for e in mechanism.laplace)
            pure = (mechanism.pure,) if mechanism.pure else ()
            pieces.append((pld.Redrawn(_draws(by, 1e-4 * delta / total), hidden, scale * mu, laplace, pure), count))
        elif mechanism.laplace or mechanism.pure:
            pure = (mechanism.pure,) if mechanism.pure else ()
            pieces.append((pld.Shared(mu, mechanism.laplace, pure, by.rate), count))
        else:
            q = by.rate
            under = ((0, 1.0),) if adjacency == "zero-out" else ((-1, q), (0, 1 - q))
            pieces.append((pld.Shifted(mu, ((0, 1 - q), (1, q)), under), count))
    return pieces


def _is_subset_of_gaussians(mechanism: Mechanism, adjacency: Adjacency) -> bool:
    """Say whether the theorem of `fixed_batches` covers it."""
    only_gaussian = not (mechanism.laplace or mechanism.pure)
    return only_gaussian and isinstance(mechanism.amplification, SubsetAmplification) and adjacency == "zero-out"


def _draws(by: SubsetAmplification | RedrawAmplification, tail: float) -> pld.Mixture:
    """Return how often a record is drawn; counts rarer than `tail` are left out, and charged to delta."""
    if isinstance(by, SubsetAmplification):
        return (0, 1 - by.appears), (1, by.appears)
    from scipy.stats import binom  # slow to load, and only this law needs it

    counts = np.arange(by.batch + 1)
    most = int(np.argmax(binom.sf(counts, by.batch, 1 / by.size) <= tail))
    return tuple((k, float(w)) for k, w in enumerate(binom.pmf(counts[: most + 1], by.batch, 1 / by.size)) if w > 0)


def _of_pairs(items: Spent, delta: float) -> float:
    """Bound replace-one by group privacy: twice the smallest e with (e, delta / (1 + e^e)) under zero-out."""
    eps = 0.0
    for _ in range(40):
        eps = 1.0001 * eps  # a fixed point is approached from below: step past it
        share = delta / (1 + math.exp(min(eps, 700.0)))
        value = pld.epsilon(_pieces(items, share, "zero-out"), share)
        if value <= eps:
            return 2 * eps
        eps = value
    return math.inf
