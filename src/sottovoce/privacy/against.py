"""Say against whom a secure sum protects, what more colluding parties find, and what a person at several parties pays.

**A person at k parties.** Each party clips the person's records as one unit of its own, so one release moves by up to k
clips. Where all records take part, the account is that of k times the clip. On Poisson batches each of the k units has
a coin of its own. Example: with rate 0.01, and multiplier 1 / 1.43, 500 steps cost a person at two parties 7.3:

>>> once = Mechanism(gaussian=1.43**2, amplification=PoissonAmplification(0.01))
>>> round(at_several(((once, 500),), 2, 1e-5, "zero-out"), 1)
7.3

**Proof for Poisson batches**, zero-out. Let j units have their coins fallen, a binomial number with chances B(j), and
let v be the sum of their clipped vectors, whose length is at most j clips. With the person a release is a mixture of
Gaussians around points v; without, one Gaussian around 0. Such a pair is dominated by the one with all points on a line
at their largest lengths (Choquette-Choo, Ganesh, Haque, Steinke and Thakurta, "Near-exact privacy amplification for
matrix mechanisms", ICLR 2025, and its predecessor on mixtures of Gaussians): sum_j B(j) N(j mu, 1) against N(0, 1).
Under replace-one there are two bounds, and the smaller one counts. A person is replaced in two steps, left out and put
in: (e, d) of one step is (2e, (1 + e^e) d) of both. Or the coins count as known: j is told, and the release moves by up
to 2j clips (joint convexity: the proof at `accountant.epsilon`, 1).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from sottovoce.privacy import pld
from sottovoce.privacy.fixed_batches import Mixture
from sottovoce.privacy.gdp import gdp_epsilon
from sottovoce.privacy.mechanisms import Adjacency, Mechanism, PoissonAmplification, Spent, clips_moved

EACH, COSTLY = 20, 6  # parties up to which every number of colluders is listed, and where each takes a while to compute
MOST = 3  # parties that may hold one person's records, up to which a statement says what the person pays
_TAIL = 1e-12  # counts of coins that are rarer than this are left out, and charged to delta


@dataclass(frozen=True)
class Against:
    """State whom a sum protects from: `colluding` (t) of the `parties`, who pool what they know.

    `colluders` lists pairs (number of parties that pool what they know, epsilon against them). `several` lists pairs
    (number of parties that hold a person's records, epsilon of that person).

    >>> Against(1, 5, ((1, 1.0), (2, 1.17)), ((2, 2.1),)).adversary
    'everybody who sees the totals, the relay, and any 1 of the 5 parties together, over all runs'
    """

    colluding: int
    parties: int
    colluders: tuple[tuple[int, float], ...] = ()
    several: tuple[tuple[int, float], ...] = ()

    @property
    def adversary(self) -> str:
        """Say against whom epsilon holds."""
        if not self.colluding:
            return f"everybody who sees the totals, and the relay, over all runs, but for the {self.parties} parties"
        with_them = f"any {self.colluding} of the {self.parties} parties"
        return f"everybody who sees the totals, the relay, and {with_them} together, over all runs"

    @property
    def briefly(self) -> str:
        """Say the same in a few words, for one sentence."""
        if not self.colluding:
            return f"by sums of {self.parties} parties, against outsiders alone"
        return f"by sums, against any {self.colluding} of {self.parties} parties together"

    @classmethod
    def from_dict(cls, data: Any) -> "Against | None":
        """Make it from plain data."""
        if data is None:
            return None
        colluders, several = (
            tuple((int(count), float(epsilon)) for count, epsilon in data[name]) for name in ("colluders", "several")
        )
        return cls(int(data["colluding"]), int(data["parties"]), colluders, several)


def numbers_of_colluders(colluding: int, parties: int, costly: bool = False) -> list[int]:
    """Return the numbers of colluders that a statement lists, from those that are stated for to all parties but one.

    `costly` says that each epsilon takes a while: batches are secret, so it has no closed form.

    >>> numbers_of_colluders(1, 5), numbers_of_colluders(1, 200)
    ([1, 2, 3, 4], [1, 2, 3, 50, 100, 150, 199])
    """
    every = range(colluding, parties)
    if parties <= (COSTLY if costly else EACH):
        return list(every)
    some = {*every[:3], parties // 4, parties // 2, 3 * parties // 4, parties - 1}
    return sorted(count for count in some if count in every)


@lru_cache(maxsize=1024)
def at_several(spent: Spent, held: int, delta: float, adjacency: Adjacency, overflow: float = 0.0) -> float:
    """Return the epsilon of a person whose records lie with `held` parties of a sum; `spent` is what one unit pays.

    All must be Gaussian, un-sampled or on Poisson batches. `overflow` is as for `accountant.epsilon`.
    """
    reserve = 0.01 if overflow else 0.0
    kept = delta * (1 - reserve)
    fixed = sum(count * one.gaussian for one, count in spent if not _sampled(one))
    drawn = [(one, count) for one, count in spent if _sampled(one) and one.gaussian]
    if any(math.isinf(one.gaussian) for one, _ in spent):
        return math.inf
    if not drawn:
        found = gdp_epsilon(clips_moved(adjacency) * held * math.sqrt(fixed), kept) if fixed else 0.0
    else:
        left_out, told = (_pieces(fixed, drawn, held, coins_known) for coins_known in (False, True))
        if adjacency == "zero-out":
            found = pld.epsilon(left_out, kept)
        else:
            found = min(pld.epsilon(told, kept), _in_two_steps(left_out, kept))
    fits = overflow * (1 + math.exp(min(found, 700.0))) <= reserve * delta
    return float(found) if fits else math.inf


_Pieces = list[tuple[pld.Piece, int]]


def _pieces(fixed: float, drawn: Iterable[tuple[Mechanism, int]], held: int, coins_known: bool) -> _Pieces:
    """Return the pairs of a person who is left out; of one who is replaced, if coins are known."""
    moved = 2.0 if coins_known else 1.0
    pieces: _Pieces = [(pld.Shifted(moved * held * math.sqrt(fixed)), 1)] if fixed else []
    for one, count in drawn:
        assert isinstance(one.amplification, PoissonAmplification)
        fallen, mu = _coins(held, one.amplification.rate), moved * math.sqrt(one.gaussian)
        hidden = pld.Shifted(mu, fallen, ((0, 1.0),))
        pieces.append((pld.Redrawn(fallen, False, mu) if coins_known else hidden, count))
    return pieces


def _in_two_steps(pieces: _Pieces, delta: float) -> float:
    """Return twice the smallest e that is found with (e, delta / (1 + e^e)) for one step."""
    reached = 0.0
    for _ in range(12):
        tried = 1.0001 * reached  # a fixed point is approached from below: step past it
        reached = pld.epsilon(pieces, delta / (1 + math.exp(min(tried, 700.0))))
        if reached <= tried:
            return 2 * tried
    return math.inf


def _sampled(one: Mechanism) -> bool:
    by = one.amplification
    return isinstance(by, PoissonAmplification) and by.rate < 1


def _coins(held: int, rate: float) -> Mixture:
    """Return how many of a person's units are in a batch."""
    chances = [math.comb(held, j) * rate**j * (1 - rate) ** (held - j) for j in range(held + 1)]
    kept = 1 + max(j for j, chance in enumerate(chances) if chance > _TAIL)
    return tuple((j, float(chance)) for j, chance in enumerate(np.array(chances)[:kept]))
