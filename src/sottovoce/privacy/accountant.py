"""From mechanisms to epsilon.

A `Mechanism` says what was released from one batch and how the batch was drawn; `epsilon` composes any number of them
and returns the smallest of all bounds that are valid for the stated adjacency. Nothing here knows which method made a
release, and nothing is guessed: a combination without a proof is an error.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version

import numpy as np
from scipy.stats import binom

from sottovoce.privacy import pld, rdp
from sottovoce.privacy.gdp import gdp_epsilon
from sottovoce.privacy.mechanisms import (
    Adjacency,
    Epsilon,
    Mechanism,
    Poisson,
    Sampling,
    Unsampled,
    WithoutReplacement,
    WithReplacement,
    check_adjacency,
    clips_moved,
)

__all__ = [
    "Adjacency",
    "Epsilon",
    "Mechanism",
    "Poisson",
    "Sampling",
    "Unsampled",
    "WithReplacement",
    "WithoutReplacement",
    "check_adjacency",
    "epsilon",
    "library",
    "poisson_capacity",
]


def library() -> str:
    """Names and versions of what computes bounds, for reports: PLD and exact GDP here, RDP in dp-accounting.

    >>> library()
    'sottovoce 0.1.0, dp-accounting 0.6.0'
    """
    return f"sottovoce {version('sottovoce')}, dp-accounting {version('dp-accounting')}"


def epsilon(mechanisms: Iterable[tuple[Mechanism, int]], delta: float, adjacency: Adjacency) -> Epsilon:
    """Return the smallest valid epsilon of all (mechanism, count) together, composed adaptively.

    The guarantee is (epsilon, delta)-differential privacy of everything released, for the ideal mechanisms (real
    numbers, perfect noise), provided that sampling coins are fresh and secret, denominators fixed, and each noise
    multiplier set before its step or from public values only. These bounds compete where they are valid:

    - "pure sum": Laplace and pure releases; holds at delta = 0 too. Sampling at rate q turns e into log(1+q(e^e - 1)).
    - "exact GDP": un-sampled Gaussian releases only.
    - "PLD": everything but Gaussian releases sampled without replacement.
    - "RDP": Gaussian releases without replacement; also Poisson and un-sampled ones, as a cross-check.

    Three rules that are proofs rather than formulas:

    - Without replacement. A removed record is a null record in its place, so zero-out is a special case of
      replace-one and its replace-one bound (sensitivity 2C/m) stands. Halving the sensitivity is not proved: the
      amplification theorem also compares the record with the others that are drawn in its place, at distance 2C/m.
    - Replace-one where no pair is known (Poisson with Laplace, with replacement). Replacing is zeroing out twice, so
      (e, d) under zero-out is (2e, (1+e^e)d) under replace-one: the least such e is found. Names end in "of pairs".
    - More than 256 different mechanisms of one kind: inverse multipliers are rounded up to a geometric grid.

    >>> bound = epsilon([(Mechanism(gaussian=1 / 1.5**2, sampling=Poisson(0.04)), 2250)], 1e-5, "zero-out")
    >>> round(bound, 3), bound.accountant, bound.adjacency
    (6.769, 'PLD', 'zero-out')
    """
    check_adjacency(adjacency)
    if not 0 <= delta < 1:
        raise ValueError(f"delta is {delta}: give a number in [0, 1)")
    counts: dict[Mechanism, int] = {}
    for mechanism, count in mechanisms:
        if count < 0 or count != int(count):
            raise ValueError(f"a mechanism was used {count} times: give a whole number >= 0")
        _check_supported(mechanism)
        if count and (mechanism.gaussian or mechanism.laplace or mechanism.pure):
            counts[mechanism] = counts.get(mechanism, 0) + int(count)
    if delta == 0 and any(mechanism.gaussian for mechanism in counts):
        raise ValueError("delta is 0, where Gaussian releases have no finite epsilon: give delta > 0 or use Laplace")
    return _epsilon(frozenset(counts.items()), float(delta), adjacency)


def poisson_capacity(n: int, q: float, steps: int, epsilon: float, delta: float) -> tuple[int, float]:
    """Return the smallest safe capacity of a padded Poisson batch, and the mass to add to delta for it.

    A batch that does not fit changes the mechanism, so the chance that any of `steps` batches of Bin(n, q) records is
    cut, times 1 + e^epsilon, must stay below one percent of delta; the second value is that product.

    >>> poisson_capacity(1000, 0.1, steps=501, epsilon=0.83, delta=1e-5)[0]
    166
    """
    if n < 1 or steps < 1 or not 0 < delta < 1:
        raise ValueError(f"n={n}, steps={steps}, delta={delta}: give n, steps >= 1 and delta in (0, 1)")
    rate = Poisson(q).rate
    factor = steps * (1.0 + math.exp(min(epsilon, 700.0)))
    capacity = int(binom.isf(min(1.0, 0.01 * delta / factor), n, rate))
    while factor * binom.sf(capacity, n, rate) > 0.01 * delta:  # isf may stop one short where sf underflows
        capacity += 1
    return capacity, float(factor * binom.sf(capacity, n, rate))


Items = tuple[tuple[Mechanism, int], ...]

_MOST_DIFFERENT = 256  # mechanisms composed one by one; more are rounded up to a grid
_CROSS_CHECKED = 16  # RDP is looser than PLD where both hold: beyond this many mechanisms it is not worth its time


def _check_supported(mechanism: Mechanism) -> None:
    pure = bool(mechanism.laplace or mechanism.pure)
    if pure and isinstance(mechanism.sampling, WithReplacement):
        raise ValueError("no bound is known for Laplace or pure releases sampled with replacement: use Poisson batches")
    if pure and mechanism.gaussian and isinstance(mechanism.sampling, WithoutReplacement):
        raise ValueError(
            "no bound is known for Gaussian and Laplace releases on one batch drawn without replacement: use Poisson"
        )


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


def _numerical(items: Items, delta: float, adjacency: Adjacency) -> dict[str, float]:
    """The bounds that need a numerical accountant."""
    fixed = tuple(item for item in items if _is_fixed_size(item[0]))
    others = tuple(item for item in items if not _is_fixed_size(item[0]))
    found: dict[str, float] = {}
    if not fixed:
        if adjacency == "zero-out" or all(_has_replace_one_pair(mechanism) for mechanism, _ in items):
            found["PLD"] = pld.epsilon(_pieces(items, delta, adjacency), delta)
        else:
            found["PLD of pairs"] = _of_pairs(items, delta)
    if all(_has_rdp(mechanism, adjacency, bool(fixed)) for mechanism, _ in items):
        if fixed or len(items) <= _CROSS_CHECKED:
            found["RDP"] = rdp.epsilon(items, delta, adjacency)
    elif fixed:  # no single accountant takes both: basic composition of two guarantees at delta / 2
        halves = [_numerical(part, delta / 2, adjacency) for part in (fixed, others)]
        found["sum of two"] = sum(min(half.values()) for half in halves)
    return found


def _plain(mechanism: Mechanism) -> Mechanism:
    """Write a sampling that leaves nobody out as what it is."""
    s = mechanism.sampling
    everybody = (isinstance(s, Poisson) and s.rate == 1) or (isinstance(s, WithoutReplacement) and s.batch == s.size)
    return replace(mechanism, sampling=Unsampled()) if everybody else mechanism


def _pure(mechanism: Mechanism, adjacency: Adjacency) -> float:
    """Epsilon at delta = 0 of Laplace and pure releases on one batch."""
    total, sampling = sum(mechanism.laplace), mechanism.sampling
    if isinstance(sampling, Poisson):  # the amplification is proved for zero-out; replacing is zeroing out twice
        return clips_moved(adjacency) * _amplified(total + mechanism.pure, sampling.rate)
    if isinstance(sampling, WithoutReplacement):  # proved for replace-one, of which zero-out is a special case
        return _amplified(2 * total + mechanism.pure, sampling.batch / sampling.size)
    return clips_moved(adjacency) * total + mechanism.pure


def _amplified(eps: float, rate: float) -> float:
    """log(1 + rate (e^eps - 1)), also for large eps."""
    return math.log1p(rate * math.expm1(eps)) if eps < 500 else eps + math.log(rate)


def _is_fixed_size(mechanism: Mechanism) -> bool:
    return isinstance(mechanism.sampling, WithoutReplacement) and mechanism.gaussian > 0


def _has_replace_one_pair(mechanism: Mechanism) -> bool:
    if isinstance(mechanism.sampling, Poisson):
        return not (mechanism.laplace or mechanism.pure)
    return not isinstance(mechanism.sampling, WithReplacement)


def _has_rdp(mechanism: Mechanism, adjacency: Adjacency, with_fixed: bool) -> bool:
    if mechanism.pure:  # the library would read it as randomised response against a uniform answer, which is too kind
        return False
    if isinstance(mechanism.sampling, Poisson):
        return adjacency == "zero-out" and not (with_fixed or mechanism.laplace)
    return isinstance(mechanism.sampling, Unsampled) or _is_fixed_size(mechanism)


def _few(items: Items) -> Items:
    """Merge un-sampled Gaussian releases exactly, and round the rest up until few different mechanisms are left."""
    merged = sum(count * m.gaussian for m, count in items if isinstance(m.sampling, Unsampled))
    rest = [(replace(m, gaussian=0.0) if isinstance(m.sampling, Unsampled) else m, count) for m, count in items]
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
    """Logarithm of the largest inverse multiplier over the smallest, at least a little."""
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


def _pieces(items: Items, delta: float, adjacency: Adjacency) -> list[tuple[pld.Piece, int]]:
    """Dominating pairs of the mechanisms, one or more each."""
    total = sum(count for _, count in items)
    pieces: list[tuple[pld.Piece, int]] = []
    for mechanism, count in items:
        mu, sampling, scale = math.sqrt(mechanism.gaussian), mechanism.sampling, clips_moved(adjacency)
        if isinstance(sampling, Unsampled):
            if mu:
                pieces.append((pld.Shifted(scale * mu * math.sqrt(count)), 1))
            pieces += [(pld.Shared(laplace=(scale * e,)), count) for e in mechanism.laplace]
            pieces += [(pld.Shared(pure=(mechanism.pure,)), count)] if mechanism.pure else []
        elif isinstance(sampling, WithoutReplacement):
            pieces.append((pld.Shared(pure=(_pure(mechanism, adjacency),)), count))
        elif isinstance(sampling, WithReplacement):
            pieces.append((pld.Shifted(mu, over=_draws(sampling, 1e-4 * delta / total)), count))
        elif mechanism.laplace or mechanism.pure:
            pure = (mechanism.pure,) if mechanism.pure else ()
            pieces.append((pld.Shared(mu, mechanism.laplace, pure, sampling.rate), count))
        else:
            q = sampling.rate
            under = ((0, 1.0),) if adjacency == "zero-out" else ((-1, q), (0, 1 - q))
            pieces.append((pld.Shifted(mu, ((0, 1 - q), (1, q)), under), count))
    return pieces


def _draws(sampling: WithReplacement, tail: float) -> pld.Weights:
    """How often a record is drawn; counts rarer than `tail` are left out, and charged to delta."""
    rate = 1 / sampling.size
    most = int(binom.isf(min(tail, 0.5), sampling.batch, rate))
    return tuple((k, float(w)) for k, w in enumerate(binom.pmf(np.arange(most + 1), sampling.batch, rate)) if w > 0)


def _of_pairs(items: Items, delta: float) -> float:
    """Replace-one by group privacy: the least e with (e, delta / (1 + e^e)) under zero-out, doubled."""
    eps = 0.0
    for _ in range(40):
        eps = 1.0001 * eps  # a fixed point is approached from below: step past it
        share = delta / (1 + math.exp(min(eps, 700.0)))
        value = pld.epsilon(_pieces(items, share, "zero-out"), share)
        if value <= eps:
            return 2 * eps
        eps = value
    return math.inf
