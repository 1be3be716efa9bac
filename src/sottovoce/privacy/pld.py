"""Compose privacy loss distributions: numerically exact, and rounded to the safe side.

A piece of a computation is described by a dominating pair (P, Q) of distributions: what is released with a record, and
what is released without it. Its privacy loss is log P/Q under P. For example, one Gaussian release whose noise equals
its sensitivity has P = N(1, 1) and Q = N(0, 1), and its loss at x is x - 1/2.

Losses are put on the grid h * integers. A bin's masses under P *and* Q are split between its two grid ends so that both
are kept ("connect the dots", Doroshenko et al. 2022): the result dominates the true pair and agrees with it at every
grid point. Independent losses add, so composition is a product of Fourier transforms.

One term is an estimate, not a bound: the rounding of the Fourier products, `_ROUNDING` per piece, charged to delta.

Why by hand: dp-accounting has the standard events, and the tests use it as the oracle. It refuses several Laplace and
Gaussian releases on one Poisson batch, which methods here make. It is also about 5 times slower: on one core
2 to 17 times for one kind of piece, 40 times for sixty different ones. The grid here starts coarse and is refined only
until the bound stops improving, and thousands of different pieces, one per step of a schedule, take seconds.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import lazy_loader
import numpy as np

from sottovoce.privacy.fixed_batches import Mixture, Subset

# Slow to load: they wait for the first account.
fft: Any = lazy_loader.load("scipy.fft", suppress_warning=True)
special: Any = lazy_loader.load("scipy.special", suppress_warning=True)

_COARSEST = 2.0**-6
_FINEST = 2.0**-20
_LARGEST = 2**21  # grid points of one distribution
_BUDGET = 2**27  # grid points times different pieces
_ROUNDING = 1e-15  # relative error of the Fourier products per composed piece, charged to delta
_ULPS = 16 * 2.0**-52  # relative error of F(x), over 1 + x^2
_SMALLEST = 1e-290  # below it, a mass has lost digits


@dataclass(frozen=True)
class Shifted:
    """Describe Gaussian mixtures: P = sum_k over_k N(k mu, 1), Q = sum_k under_k N(k mu, 1), with log P/Q increasing.

    Probability missing from `over` is charged to delta.
    """

    mu: float
    over: Mixture = ((1, 1.0),)
    under: Mixture = ((0, 1.0),)


@dataclass(frozen=True)
class Shared:
    """Describe releases on one Poisson batch of `rate`: one Gaussian (mu), several Laplace (1/z each), several pure.

    P is the release from the batch that has the record with probability `rate`, Q the release without the record.
    """

    mu: float = 0.0
    laplace: tuple[float, ...] = ()
    pure: tuple[float, ...] = ()
    rate: float = 1.0


@dataclass(frozen=True)
class Redrawn:
    """Describe releases on one batch of a fixed size, in which a record comes up k times with chance draws[k].

    `Subset` is the smaller pair where all of them are Gaussian, no record comes up twice, and one is zeroed out.

    mu, laplace and pure are the cost of one appearance: k appearances move every release k times as far. With `hidden`
    the draw itself is secret and amplifies; without it, the adversary is told k. `accountant.epsilon` has the proof
    that both dominate. Probability missing from `draws`, which lists k = 0 too, is charged to delta.
    """

    draws: Mixture
    hidden: bool
    mu: float = 0.0
    laplace: tuple[float, ...] = ()
    pure: tuple[float, ...] = ()


Piece = Shifted | Shared | Redrawn | Subset


@dataclass(frozen=True)
class Losses:
    """Hold the probabilities of the losses h * (first, first + 1, ...) and of an infinite loss."""

    first: int
    mass: np.ndarray
    infinite: float

    def at(self, h: float) -> np.ndarray:
        """Return the losses themselves."""
        return h * np.arange(self.first, self.first + len(self.mass))


class _TooFine(Exception):
    """Say that the grid has too many points to compute with."""


def epsilon(pieces: Iterable[tuple[Piece, int]], delta: float) -> float:
    """Return an epsilon for which the composition of all (piece, count) is (epsilon, delta)-private.

    Every grid gives a valid bound; it is refined until the bound stops improving.

    >>> round(epsilon([(Shifted(mu=1.0), 1)], 1e-5), 3)
    4.377
    """
    pieces = [(piece, int(count)) for piece, count in pieces if count]
    if not pieces:
        return 0.0
    total = sum(count for _, count in pieces)
    delta -= _ROUNDING * (total + 1000)
    if delta <= 0:
        return math.inf
    # a quarter of h leaves about a fifteenth of the excess; a long list is rounded by more than this in any case
    enough = 5e-4 if len(pieces) <= 32 else 1e-2
    best, h = math.inf, _COARSEST
    while h >= _FINEST:
        try:
            value = _epsilon_on_grid(pieces, delta, h, total)
        except _TooFine:
            if best < math.inf or h > 1e6:
                return best
            h *= 8  # the loss is so large that a coarse grid is accurate enough
            continue
        if math.isfinite(value) and best - value <= enough * value:
            return min(best, value)
        refined = value < best
        best, h = min(best, value), h / 4
        if h > _COARSEST and refined:
            return best
    return best


def curves(pieces: Iterable[tuple[Piece, int]], tail: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the privacy curve of the composition in both directions: epsilons (negative ones too) and their deltas.

    Every point is a valid bound: the composed pair dominates the true one. `tail` is charged to each delta.

    >>> eps, delta = curves([(Shifted(mu=1.0), 1)], tail=1e-9)[0]
    >>> round(float(np.interp(1.0, eps, delta)), 3)
    0.127
    """
    pieces = [(piece, int(count)) for piece, count in pieces if count]
    total = sum(count for _, count in pieces)
    h = _COARSEST
    while True:
        try:
            both = zip(*(_losses(piece, h, tail / total) for piece, _ in pieces))
            composed = [_compose([(one, count) for one, (_, count) in zip(way, pieces)], h, tail) for way in both]
            return [_curve(losses, h, _ROUNDING * (total + 1000)) for losses in composed]
        except _TooFine:
            h *= 8
            if h > 1e6:
                raise ValueError("the privacy loss is too large to compute with") from None


def _curve(losses: Losses, h: float, rounding: float) -> tuple[np.ndarray, np.ndarray]:
    above = np.cumsum(losses.mass[::-1])[::-1]
    return losses.at(h), np.minimum(above - _discounted(losses.mass, h) + losses.infinite + rounding, 1.0)


def _discounted(mass: np.ndarray, h: float) -> np.ndarray:
    """Return the sum of mass[j] e^(-(j - i) h) over j >= i, for every i.

    Every term is positive, so no digit is lost. Stretch by stretch, because e^(-j h) would underflow.

    >>> _discounted(np.array([0.0, 0.0, 1.0]), math.log(2)).round(6).tolist()
    [0.25, 0.5, 1.0]
    """
    stretch = max(1, int(200.0 / h))
    out, beyond = np.empty_like(mass), 0.0
    for start in range((len(mass) - 1) // stretch * stretch, -1, -stretch):
        own = mass[start : start + stretch]
        fade = np.exp(-h * np.arange(len(own)))
        out[start : start + stretch] = (np.cumsum((own * fade)[::-1])[::-1] + beyond * fade[-1] * math.exp(-h)) / fade
        beyond = out[start]
    return out


def _epsilon_on_grid(pieces: list[tuple[Piece, int]], delta: float, h: float, total: int) -> float:
    tail = 1e-5 * delta
    forth, back = [], []
    for piece, count in pieces:
        one, other = _losses(piece, h, tail / total)
        forth.append((one, count))
        back.append((other, count))
    return max(_smallest_epsilon(_compose(direction, h, tail), h, delta) for direction in (forth, back))


def _losses(piece: Piece, h: float, tail: float) -> tuple[Losses, Losses]:
    """Return the loss of P against Q, and of Q against P."""
    if isinstance(piece, Shifted):
        one = _shifted(piece, h, tail)
        swapped = Shifted(piece.mu, _mirror(piece.under), _mirror(piece.over))  # x -> -x keeps log P/Q increasing
        return one, one if swapped == piece else _shifted(swapped, h, tail)
    if isinstance(piece, Redrawn):
        symmetric = _redrawn(piece, h, tail)
        return symmetric, symmetric
    return _subset(piece, h, tail) if isinstance(piece, Subset) else _shared(piece, h, tail)


def _mirror(weights: Mixture) -> Mixture:
    return tuple((-k, w) for k, w in reversed(weights))


def _shifted(piece: Shifted, h: float, tail: float) -> Losses:
    mu = piece.mu
    reach = -float(special.ndtri(min(tail, 0.1)))
    shifts = [k * mu for k, _ in (*piece.over, *piece.under)]

    def loss(x: np.ndarray) -> np.ndarray:
        return _log_mixture(piece.over, mu, x) - _log_mixture(piece.under, mu, x)

    # Invert the loss on a fine table. The bin ends need not lie on the grid exactly: they are moved to it below.
    table = np.linspace(min(shifts) - reach, max(shifts) + reach, 2**14)
    table_loss = np.maximum.accumulate(loss(table))
    first, last = math.ceil(table_loss[0] / h), math.floor(table_loss[-1] / h)
    _check_size(last - first)
    inner = np.interp(h * np.arange(first, last + 1), table_loss, table)
    x = np.unique(np.concatenate([table[:1], inner, table[-1:]]))
    ends = np.maximum.accumulate(loss(x))
    upper, lower = (_mixture_mass(weights, mu, x) for weights in (piece.over, piece.under))
    mass = _split(ends, upper[1:-1], lower[1:-1])
    mass[0] += upper[0]  # losses below the first end, rounded up to it
    missing = max(0.0, 1.0 - sum(w for _, w in piece.over))
    return _snap(ends, mass, h, infinite=float(upper[-1]) + missing)


def _log_mixture(weights: Mixture, mu: float, x: np.ndarray) -> np.ndarray:
    """Return the log density of the mixture relative to N(0, 1)."""
    terms = [math.log(w) + k * mu * x - (k * mu) ** 2 / 2 for k, w in weights if w > 0]
    return terms[0] if len(terms) == 1 else np.logaddexp.reduce(terms)


def _mixture_mass(weights: Mixture, mu: float, x: np.ndarray) -> np.ndarray:
    """Return the probabilities below x[0], between neighbours, and above x[-1], each accurate in its own tail."""
    mass = np.zeros(len(x) + 1)
    for k, w in weights:
        below, above = special.ndtr(x - k * mu), special.ndtr(k * mu - x)
        mass[0] += w * below[0]
        mass[1:-1] += w * np.where(x[:-1] > k * mu, above[:-1] - above[1:], below[1:] - below[:-1])
        mass[-1] += w * above[-1]
    return mass


def _split(ends: np.ndarray, upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """Move each bin's P-mass `upper` to its two ends so that the Q-mass `lower` is kept too."""
    width = np.diff(ends)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        to_right = (upper - lower * np.exp(ends[:-1])) / -np.expm1(-width)
    # a bin too narrow to be split goes to its right end, which is the safe side, and so does one that has lost digits
    to_right = np.where(np.isfinite(to_right) & (lower > _SMALLEST), np.clip(to_right, 0.0, upper), upper)
    mass = np.zeros(len(ends))
    mass[1:] += to_right
    mass[:-1] += upper - to_right
    return mass


def _snap(losses: np.ndarray, mass: np.ndarray, h: float, infinite: float) -> Losses:
    """Split points of loss onto the grid, keeping the mass under P and under Q."""
    below = np.floor(losses / h).astype(np.int64)
    first = int(below.min())
    _check_size(int(below.max()) - first)
    to_right = mass * np.clip(np.expm1(below * h - losses) / math.expm1(-h), 0.0, 1.0)
    grid = np.bincount(below - first, mass - to_right, minlength=int(below.max()) - first + 2)
    grid += np.bincount(below - first + 1, to_right, minlength=len(grid))
    return Losses(first, grid, infinite)


def _shared(piece: Shared, h: float, tail: float) -> tuple[Losses, Losses]:
    parts = [_shifted(Shifted(piece.mu), h, tail)] if piece.mu > 0 else []
    parts += [_laplace(e, h) for e in piece.laplace] + [_pure(e, h) for e in piece.pure]
    _check_size(sum(len(part.mass) for part in parts))
    if sum(part.at(h)[-1] for part in parts) > 600:  # e^loss would overflow, and such a bound is of no use
        raise _TooFine
    first, upper, lower = 0, np.ones(1), np.ones(1)
    for part in parts:
        first += part.first
        part_lower = part.mass * np.exp(-part.at(h))
        upper, lower = (_convolve(a, b) for a, b in [(upper, part.mass), (lower, part_lower)])
    losses = h * np.arange(first, first + len(upper))
    # Fourier rounding is absolute: use P's masses where they are larger than Q's, and Q's masses elsewhere
    upper = np.where(losses >= 0, upper, lower * np.exp(np.minimum(losses, 0)))
    lower = np.where(losses >= 0, upper * np.exp(-np.maximum(losses, 0)), lower)
    infinite = 1.0 - math.prod(1.0 - part.infinite for part in parts)
    if piece.rate == 1:
        one = Losses(first, upper, infinite)
        return one, one  # Gaussian, Laplace and randomised response are all symmetric
    q = piece.rate
    # Q's mass below the grid's lower end was cut off; P has none there, so the sampled loss is log(1 - q)
    sampled = np.append(np.log1p(q * np.expm1(losses)), math.log1p(-q))
    lower = np.append(lower, max(0.0, 1.0 - float(lower.sum())))
    mixed = q * np.append(upper, 0.0) + (1 - q) * lower
    return _snap(sampled, mixed, h, q * infinite), _snap(-sampled, lower, h, 0.0)


def _redrawn(piece: Redrawn, h: float, tail: float) -> Losses:
    """Return the loss of a batch of a fixed size: the same in both directions.

    Let P1 and Q1 be the release with and without the record, together with k, given that k > 0, and eta the chance of
    that. They are symmetric: the Q1-mass of loss l is the P1-mass of loss -l. So masses at l >= 0 determine the rest.

    Not hidden: (P1, Q1) with chance eta, and loss 0 otherwise.
    Hidden: D_a(A | Q1) with A = (1 - eta) Q1 + eta P1 bounds the true pair for all a >= 1, in both directions. The pair
    with this curve for a >= 1 and its mirror image for a < 1 has A-masses at the losses l > 0 of A against Q1,
    Q1-masses at -l, and the rest, which is not negative, at 0.
    """
    appears = [(k, w) for k, w in piece.draws if k > 0 and w > 0]
    found = [(w, _jointly(piece, k, h, tail)) for k, w in appears]
    reach = max((abs(edge) for _, one in found for edge in (one.first, one.first + len(one.mass) - 1)), default=0)
    _check_size(2 * reach + 1)
    with_record = np.zeros(2 * reach + 1)  # under P1, times eta, at the losses h * (-reach, ..., reach)
    for w, one in found:
        start = one.first + reach
        with_record[start : start + len(one.mass)] += w * one.mass
    unknown = max(0.0, 1.0 - sum(w for _, w in piece.draws))
    infinite = sum((w * one.infinite for w, one in found), unknown)
    if not piece.hidden:
        with_record[reach] += sum(w for k, w in piece.draws if k == 0)
        return Losses(-reach, with_record, infinite)
    never = sum(w for k, w in piece.draws if k == 0)
    eta = 1.0 - never
    losses = h * np.arange(1, reach + 1)
    upper = with_record[reach + 1 :]  # eta P1
    lower = upper * np.exp(-losses) / eta if eta > 0 else upper  # Q1
    with np.errstate(divide="ignore"):
        sampled = np.logaddexp(np.log(never), np.log(eta) + losses) if eta > 0 else losses
    mixed = upper + never * lower
    rest = max(0.0, 1.0 - float(mixed.sum() + lower.sum()) - infinite)
    points, mass = np.concatenate([sampled, -sampled, [0.0]]), np.concatenate([mixed, lower, [rest]])
    return _snap(points, mass, h, infinite)


def _jointly(piece: Redrawn, times: int, h: float, tail: float) -> Losses:
    """Return the loss of all releases of a batch in which the record comes up `times` times."""
    parts = [_shifted(Shifted(times * piece.mu), h, tail)] if piece.mu > 0 else []
    parts += [_laplace(times * e, h) for e in piece.laplace] + [_pure(times * e, h) for e in piece.pure]
    _check_size(sum(len(part.mass) for part in parts))
    first, mass = 0, np.ones(1)
    for part in parts:
        first += part.first
        mass = _convolve(mass, part.mass)
    return Losses(first, mass, 1.0 - math.prod(1.0 - part.infinite for part in parts))


def _subset(piece: Subset, h: float, tail: float) -> tuple[Losses, Losses]:
    """Return the losses of the pair that `fixed_batches` proves to dominate, with over without the record, and back.

    Bins end on the grid, so splitting them connects the dots of the profile, from above. What floating point may take
    off the profile is added to the infinite loss: P[loss > l] - e^l Q[loss > l] is off by at most the relative error of
    the two chances, of which the first is the larger. Where x itself is off, the profile is stationary.
    """
    edge = np.asarray(piece.mu - special.ndtri(min(tail, 0.1)))
    above, below, infinite, missed = [], [], [], 0.0
    for half in piece.halves:
        count = math.ceil(float(_log_mixture(half.over, piece.mu, edge) - _log_mixture(half.under, piece.mu, edge)) / h)
        _check_size(2 * count)
        ends = h * np.arange(max(count, 1) + 1)
        x = half.point(ends)
        upper, lower = (_mixture_mass(weights, piece.mu, x) for weights in (half.over, half.under))
        above.append(_split(ends, upper[1:-1], lower[1:-1]))
        below.append(_split(-ends[::-1], lower[-2:0:-1], upper[-2:0:-1]))
        below[-1][0] += lower[-1]  # losses below the last end, rounded up to it
        infinite.append(float(upper[-1]))
        missed += _ULPS * float(np.max((1 + (x + piece.mu) ** 2) * np.cumsum(upper[:0:-1])[::-1]))

    def joined(positive: int, negative: int) -> Losses:
        mass = np.concatenate([below[negative], above[positive][1:]])
        mass[len(below[negative]) - 1] += above[positive][0] + piece.indifferent
        return Losses(1 - len(below[negative]), mass, infinite[positive] + missed)

    return joined(0, 1), joined(1, 0)


def _laplace(shift: float, h: float) -> Losses:
    """Return the loss of Lap(1) against Lap(1) moved by `shift`: half of its mass is at the largest loss."""
    count = math.ceil(shift / h)
    _check_size(2 * count)
    ends = np.concatenate([[-shift], h * np.arange(1 - count, count), [shift]])
    upper = 0.5 * np.exp((ends[:-1] - shift) / 2) * np.expm1(np.diff(ends) / 2)
    lower = 0.5 * np.exp(-(ends[1:] + shift) / 2) * np.expm1(np.diff(ends) / 2)
    mass = _split(ends, upper, lower)
    mass[-1] += 0.5
    mass[0] += 0.5 * math.exp(-shift)
    return _snap(ends, mass, h, infinite=0.0)


def _pure(eps: float, h: float) -> Losses:
    """Return the loss of randomised response, which dominates every eps-private mechanism."""
    return _snap(np.array([-eps, eps]), np.array([special.expit(-eps), special.expit(eps)]), h, infinite=0.0)


def _compose(parts: list[tuple[Losses, int]], h: float, tail: float) -> Losses:
    """Add up independent losses; the mass outside the window is charged to the infinite loss."""
    low, high = _window(parts, h, tail)
    size = high - low + 1
    _check_size(size, len(parts))
    length = fft.next_fast_len(size, real=True)
    product = np.ones(length // 2 + 1, dtype=complex)
    for losses, count in parts:
        wrapped = np.bincount((losses.first + np.arange(len(losses.mass))) % length, losses.mass, minlength=length)
        transform = fft.rfft(wrapped)
        product *= transform if count == 1 else transform**count
    mass = np.maximum(fft.irfft(product, length), 0)[np.arange(low, high + 1) % length]
    finite = sum(count * math.log1p(-losses.infinite) if losses.infinite < 1 else -math.inf for losses, count in parts)
    return Losses(low, mass, -math.expm1(finite) + 2 * tail)


def _window(parts: list[tuple[Losses, int]], h: float, tail: float) -> tuple[int, int]:
    """Return the grid range that the summed loss leaves with probability at most `tail` per side (Chernoff's bound)."""
    low, high = (float(sum(count * edge(losses.at(h)) for losses, count in parts)) for edge in (np.min, np.max))
    variance = sum(count * float(losses.mass @ losses.at(h) ** 2) for losses, count in parts)
    if variance > 0:
        cost = -math.log(tail)
        for factor in (0.0625, 0.125, 0.25, 0.5, 1.0):
            order = factor * math.sqrt(2 * cost / variance)
            for sign in (1, -1):
                moment = sum(count * _log_moment(losses, h, sign * order) for losses, count in parts)
                bound = sign * (moment + cost) / order
                low, high = (low, min(high, bound)) if sign > 0 else (max(low, bound), high)
    return math.floor(low / h), math.ceil(high / h)


def _log_moment(losses: Losses, h: float, order: float) -> float:
    exponents = order * losses.at(h)
    largest = float(exponents.max())
    return largest + math.log(float(losses.mass @ np.exp(exponents - largest)) or 5e-324)


def _smallest_epsilon(losses: Losses, h: float, delta: float) -> float:
    """Solve infinite + sum_j mass_j (1 - e^(epsilon - loss_j))_+ = delta."""
    room = delta - losses.infinite
    if room <= 0:
        return math.inf
    start = max(losses.first, 1)
    mass = losses.mass[start - losses.first :]
    if not len(mass):
        return 0.0
    above = np.cumsum(mass[::-1])[::-1]  # sum over j >= k
    discounted = _discount(mass[::-1], math.exp(-h))[::-1]  # the same with weights e^(loss_k - loss_j)
    k = int(np.argmax(above - discounted <= room))  # 1 - e^0 = 0: the term of k itself is zero
    if above[k] <= room:
        return 0.0
    return max(0.0, h * (start + k) + math.log((above[k] - room) / discounted[k]))


def _convolve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the masses of a sum, never negative. scipy.signal has this too, but loads half of SciPy."""
    if len(a) == 1:
        return b * a
    size = len(a) + len(b) - 1
    length = fft.next_fast_len(size, real=True)
    return np.maximum(fft.irfft(fft.rfft(a, length) * fft.rfft(b, length), length)[:size], 0)


def _discount(mass: np.ndarray, factor: float) -> np.ndarray:
    """Return y with y[k] = mass[k] + factor * y[k - 1], as a triangular solve with one band."""
    from scipy.linalg.blas import dtbsv

    bands = np.empty((2, len(mass)), order="F")
    bands[0], bands[1] = 1.0, -factor
    return dtbsv(1, bands, mass, lower=1, diag=1)


def _check_size(points: int, pieces: int = 1) -> None:
    if points > _LARGEST or points * pieces > _BUDGET:
        raise _TooFine
