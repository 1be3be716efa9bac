"""Say whom the parties of a run trust with what they send: nobody (`None`), or nobody with less than a sum (`Sum`).

Under the *local* model, the default, each message of a party hides its records by that party's own noise. Under secure
sums everybody learns only the total over all parties, so the parties share one noise. Example: of five parties, one of
which may pool what it knows with outsiders, each draws half of the noise that one table of all records would get, as
a standard deviation: the other four shares make up all of it.

>>> Sum(colluding=1).factor(5)    # the five shares together, over the noise that is charged
1.118033988749895

**Noise.** S is the whole number of grid steps that is *charged*: the scale of the discrete Gaussian noise that a
trusted curator would draw. Each of m parties adds its own discrete Gaussian of whole scale s with (m - t) s^2 >= S^2,
where t parties may pool what they know (`share_scale`). So what is *drawn* in all has scale sqrt(m) s, which is
sqrt(m / (m - t)) times S or a little more (`Sum.factor`).

**Guarantee.** Whoever sees all totals, and all that some t of the m parties know, learns of each release at most what
N(0, S^2 - 9) noise on the sum would tell. That is how the account charges exact noise of scale S
(`sottovoce.privacy.noise.Gaussian`). With k honest parties it is N(0, k s^2 - 9), for every k (`hidden_by`).

**Assumptions.** The masks hide what each party sends, so nothing but the total is seen: this is computational. Honest
parties draw their shares as stated. A party that adds no noise, or less, counts among the t.

**Proof.** The t parties can subtract their own sums and shares from a total, and an honest party's share is independent
of all that they know. So a total tells them as much as the honest parties' sums plus k = m - t or more honest shares.

*The sum of shares is nearly one discrete Gaussian.* For whole scales a and b let P(z) be the probability that the two
shares add up to z. It is proportional to the sum over whole x of exp(-x^2 / 2a^2 - (z - x)^2 / 2b^2), which is
exp(-z^2 / 2(a^2 + b^2)) R(z) with R(z) = sum_x exp(-(x - u)^2 / 2c^2), u = z a^2 / (a^2 + b^2) and c^2 = a^2 b^2 /
(a^2 + b^2). By Poisson summation R(z) = c sqrt(2 pi) (1 + 2 sum_i exp(-2 pi^2 c^2 i^2) cos(2 pi i u)). As c^2 is at
least half of the smaller square, R is constant up to factors 1 +- d with d = 2.1 exp(-pi^2 min(a, b)^2). So P differs
from the discrete Gaussian of scale sqrt(a^2 + b^2) by factors within (1 + d) / (1 - d). Adding one share after the
other gives k shares, because a factor that holds for each value of a partial sum still holds after another independent
number is added, and because a partial sum's scale is never below that of one share. All in all: a factor within
1 +- 5 k exp(-pi^2 min s_i^2) of the discrete Gaussian of scale sqrt(s_1^2 + ... + s_k^2), per coordinate. Shares below
`LEAST_SHARE` = 8 steps are refused, which keeps it below k 10^-273; the grids of the gate have 1 000 steps and more.
(Sums of discrete Gaussians: Kairouz, Liu and Steinke, "The distributed discrete Gaussian mechanism", ICML 2021.)

*The 9 stays.* The discrete Gaussian of any real scale above 3 can be made from N(0, scale^2 - 9) without the data (the
proof at `Gaussian`, which does not need a whole scale). N(0, scale^2) itself does not cover it: on coarse grids exact
sums are up to 6 % above it in delta.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from sottovoce.closed import Closed
from sottovoce.privacy.noise import BLUR

LEAST_SHARE = 8  # grid steps


@dataclass(frozen=True)
class Sum(Closed):
    """Trust nobody with less than a sum: everybody sees the total over all parties, and what follows from it.

    Args:
        colluding: how many parties (t) may pool what they know and still learn no more than is stated. A participant
            can subtract its own share of the noise, so 1 protects from each single participant, and 0 from outsiders
            alone.

    >>> Sum().colluding
    1
    >>> Sum(colluding=1).check(2)
    Traceback (most recent call last):
    ...
    ValueError: 2 parties with 1 colluding leave 1 honest party, ... at least 3 parties, or colluding=0 ...
    """

    kind: ClassVar[str] = "sum"
    colluding: int = 1

    def __post_init__(self) -> None:
        if type(self.colluding) is not int or self.colluding < 0:
            raise ValueError(f"colluding is {self.colluding!r}: give a whole number of parties, 0 or more; 1 is usual")

    def check(self, parties: int) -> None:
        """Refuse a number of parties of which fewer than two would be honest: each share would be the whole noise."""
        t, honest = self.colluding, parties - self.colluding
        if honest >= 2:
            return
        at_most = f", or colluding={parties - 2}" if parties >= 2 else ""
        only = " (which protects from outsiders alone)" if parties == 2 else ""
        raise ValueError(
            f"{parties} {_parties(parties)} with {t} colluding leave {max(honest, 0)} honest {_parties(honest)}, and a "
            f"sum then gains nothing: it needs at least {t + 2} parties{at_most}{only}. Leave trust out for noise of "
            "each party's own"
        )

    def factor(self, parties: int) -> float:
        """Return the factor by which all noise that is drawn exceeds the noise that is charged: sqrt(m / (m - t)).

        >>> Sum(colluding=0).factor(5), round(Sum(colluding=3).factor(6), 3)
        (1.0, 1.414)
        """
        self.check(parties)
        return math.sqrt(parties / (parties - self.colluding))

    def left(self, parties: int, colluders: int, steps: float) -> float:
        """Return the noise that is left against so many colluders, over the noise that is charged: at least this much.

        `steps` is the charged noise in grid steps. A share may be rounded up; then a little more is left.

        >>> Sum(colluding=1).left(20, colluders=1, steps=1e3), round(Sum(colluding=1).left(20, 19, steps=1e3), 4)
        (1.0, 0.2294)
        """
        self.check(parties)
        if not 0 <= colluders < parties:
            raise ValueError(f"{colluders} of {parties} parties collude: give a number from 0 to {parties - 1}")
        ratio, blur = (parties - colluders) / (parties - self.colluding), (BLUR / steps) ** 2
        return math.sqrt(max(ratio + blur * (ratio - 1), 0.0))


def share_scale(scale: int, parties: int, colluding: int) -> int:
    """Return the whole scale of each party's share: the least s with (m - t) s^2 >= S^2.

    >>> share_scale(1000, parties=5, colluding=1)
    500
    """
    Sum(colluding).check(parties)
    if type(scale) is not int or scale < 1:
        raise ValueError(f"scale is {scale!r}: give a whole number of grid steps")
    share = math.isqrt((scale**2 - 1) // (parties - colluding)) + 1
    _require_fine(share)
    return share


def hidden_by(shares: Iterable[int]) -> float:
    """Return the standard deviation of ideal noise that reveals at least as much as the sum of these honest shares.

    >>> hidden_by([500] * 4) ** 2
    999991.0
    """
    scales = list(shares)
    for share in scales:
        _require_fine(share)
    return math.sqrt(sum(share**2 for share in scales) - BLUR**2) if scales else 0.0


def _require_fine(share: int) -> None:
    if share < LEAST_SHARE:
        raise ValueError(
            f"a share of the noise has scale {share} grid steps, and sums of shares below {LEAST_SHARE} are not "
            "covered: use a finer grid, more noise, or fewer parties"
        )


def _parties(count: int) -> str:
    return "party" if count == 1 else "parties"
