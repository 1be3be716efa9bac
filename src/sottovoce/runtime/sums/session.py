"""Mask what one member adds to a total, and check the total: one member's side of a session.

Example: member 1 of four sends its share of a release as ``share + mask(1, 2) + mask(1, 3) - mask(0, 1)`` modulo 2^64.
The messages of all four add up to the sum of the shares.
"""

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sottovoce.privacy.discrete import LARGEST, GridRelease
from sottovoce.privacy.trust import share_scale
from sottovoce.runtime.sums.keys import Secrets, Stream, derived, digest, stream
from sottovoce.runtime.sums.roster import Roster, Unequal

_FAR = 64  # standard deviations: noise is never that far out


@dataclass(frozen=True)
class Question:
    """Describe one total that is asked for: where in the program, and on which grid.

    `rows` is how many clipped records the total has at most, in units of the grid's denominator.

    >>> grid = GridRelease(clip=65536, scale=65537, step=2.0**-16, denominator=8)
    >>> Question("7 step: release 2", 10, grid, rows=8, members=5, colluding=1).share
    32769
    """

    place: str
    size: int
    grid: GridRelease
    rows: int
    members: int
    colluding: int

    def __post_init__(self) -> None:
        if not self.grid.law.adds_up:
            raise ValueError(f"shares of {self.grid.mechanism} noise do not add up to it: use Gaussian noise")
        if self.members * self.rows * self.grid.clip + _FAR * self.members * self.share >= LARGEST:
            raise ValueError(
                f"totals of {self.rows} rows clipped to {self.grid.clip} steps over {self.members} members may "
                "overflow 64 bits: use a coarser grid or fewer records"
            )

    @cached_property
    def share(self) -> int:
        """Return the whole scale of each member's noise."""
        return share_scale(self.grid.scale, self.members, self.colluding)

    @property
    def most(self) -> int:
        """Return a bound on the size of each number of a total."""
        return self.rows * self.grid.clip + _FAR * self.members * self.share

    @property
    def facts(self) -> list[Any]:
        """Return all that a key is bound to."""
        grid = self.grid
        scales = [grid.step.hex(), grid.clip, grid.scale, grid.denominator, self.share]
        return [self.place, self.size, *scales, self.rows, self.members, self.colluding]


class Session:
    """Play one member's part: draw, mask, and go on from total to total.

    >>> from sottovoce.privacy.trust import Sum
    >>> own = [Secrets.fresh(name) for name in ("north", "mid", "south")]
    >>> roster = Roster.of([one.card for one in own], Sum(1), {"records": [2, 2, 4]}, b"run")
    >>> members = [Session.begin(one, roster) for one in own]
    >>> grid = GridRelease(clip=65536, scale=65537, step=2.0**-16, denominator=8)
    >>> asked = members[0].question("7 step: release 2", 2, grid, rows=8)
    >>> said = [member.masked(asked, np.array([10, number])) for number, member in enumerate(members)]
    >>> added(said).tolist()
    [30, 3]
    """

    def __init__(
        self, me: int, roster: Roster, noise: bytes, pairs: Mapping[int, bytes], history: bytes | None = None
    ) -> None:
        self.me, self.roster, self.history = me, roster, roster.digest if history is None else history
        self._noise, self._pairs = noise, dict(pairs)
        self._said: dict[bytes, bytes] = {}  # what was masked since the last total, by the question's digest

    @classmethod
    def begin(cls, own: Secrets, roster: Roster) -> "Session":
        """Make the secrets of all pairs; the member's secret key is not needed again."""
        if own.card not in roster.cards:
            raise Unequal(f"{own.name} is no member of this session")
        me = roster.cards.index(own.card)
        return cls(me, roster, own.noise, {k: own.shared(card) for k, card in enumerate(roster.cards) if k != me})

    def question(self, place: str, size: int, grid: GridRelease, rows: int) -> Question:
        """Return a question to the members of this session."""
        return Question(place, size, grid, rows, len(self.roster.cards), self.roster.trust.colluding)

    def source(self, place: str) -> random.Random:
        """Return the random bits of this member for a place of the program: asked again, they are the same."""
        return Stream(derived(self._noise, "draws", [place, self.roster.digest.hex(), self.history.hex()]))

    def masked(self, question: Question, share: np.ndarray) -> np.ndarray:
        """Return a share of a total (whole numbers, noise included) under its masks (uint64).

        A question is answered once: another share under the same masks would give the difference of the two away.
        """
        if np.shape(share) != (question.size,) or np.asarray(share).dtype != np.int64:
            raise ValueError(f"a share of {question.place} is {question.size} whole numbers of 64 bits")
        facts = self._facts(question)
        known, mine = digest(facts), hashlib.sha256(np.ascontiguousarray(share).tobytes()).digest()
        if self._said.setdefault(known, mine) != mine:
            raise RuntimeError(f"{question.place} is answered twice with different numbers: nothing is sent")
        total = share.astype(np.uint64)
        for other, secret in self._pairs.items():
            mask = np.frombuffer(stream(derived(secret, "mask", facts), 8 * question.size), "<u8")
            total = total + mask if other > self.me else total - mask  # modulo 2^64
        return total

    def settle(self, question: Question, total: np.ndarray) -> None:
        """Take a total as the one that all go on with, and replace the secrets by ones that follow from it."""
        if max(np.max(total, initial=0), -int(np.min(total, initial=0))) > question.most:
            raise Unequal(
                f"the messages of {question.place} do not add up: the members have seen different totals before, or "
                "one of them does not add what it should. Start a new run"
            )
        seen = hashlib.sha256(np.ascontiguousarray(total, "<i8").tobytes()).hexdigest()
        self.history = digest([*self._facts(question), seen])
        after = [self.history.hex()]
        self._noise = derived(self._noise, "next draws", after)
        self._pairs = {other: derived(secret, "next pair", after) for other, secret in self._pairs.items()}
        self._said = {}

    def kept(self) -> dict[str, Any]:
        """Return what goes on from here, as texts; whoever has it can unmask what this member says from now on."""
        pairs = {str(other): secret.hex() for other, secret in self._pairs.items()}
        return {"noise": self._noise.hex(), "pairs": pairs, "history": self.history.hex()}

    def resumed(self, kept: Mapping[str, Any]) -> "Session":
        """Return the session where `kept` was asked for."""
        pairs = {int(other): bytes.fromhex(secret) for other, secret in kept["pairs"].items()}
        return Session(self.me, self.roster, bytes.fromhex(kept["noise"]), pairs, bytes.fromhex(kept["history"]))

    def _facts(self, question: Question) -> list[Any]:
        return [self.roster.digest.hex(), self.history.hex(), *question.facts]


def added(said: Sequence[np.ndarray]) -> np.ndarray:
    """Return the total of all members' messages: the masks cancel.

    >>> added([np.array([2**64 - 1], np.uint64), np.array([3], np.uint64)]).tolist()
    [2]
    """
    total = np.zeros_like(said[0])
    for one in said:
        total = total + one
    return total.view(np.int64)
