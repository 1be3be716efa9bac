"""Say who adds up together in a session, and all that they must agree on before the first question."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sottovoce.privacy.trust import Sum
from sottovoce.runtime.sums.keys import Card, digest


class Unequal(ValueError):
    """Say that members do not mean the same session, or not the same totals: nobody goes on."""


@dataclass(frozen=True)
class Roster:
    """List the members of a session, in their order.

    Every fact is bound into every key. A roster never changes: who stays away ends the session, and another session has
    other nonces.

    Args:
        cards: one per member, in an order that all know.
        trust: how many members may pool what they know.
        sizes: how many records (or units) each member holds in each level.
        run: a digest of the run file and of the program.
        attempt: how often the run was begun: what is drawn anew is charged anew.

    >>> from sottovoce.runtime.sums.keys import Secrets
    >>> cards = [Secrets.fresh(name).card for name in ("north", "mid", "south")]
    >>> len(Roster.of(cards, Sum(1), {"records": [5, 3, 4]}, b"run").digest)
    32
    >>> Roster.of(cards[:2], Sum(1), {"records": [5, 3]}, b"run")
    Traceback (most recent call last):
    ...
    ValueError: 2 parties with 1 colluding leave 1 honest party, ...
    """

    cards: tuple[Card, ...]
    trust: Sum
    sizes: tuple[tuple[str, tuple[int, ...]], ...]
    run: bytes
    attempt: int

    @classmethod
    def of(
        cls, cards: Sequence[Card], trust: Sum, sizes: Mapping[str, Sequence[int]], run: bytes, attempt: int = 0
    ) -> "Roster":
        """Return a roster of lists."""
        levels = tuple((level, tuple(int(n) for n in sizes[level])) for level in sorted(sizes))
        return cls(tuple(cards), trust, levels, run, attempt)

    def __post_init__(self) -> None:
        self.trust.check(len(self.cards))
        for what in ("name", "nonce", "public"):
            if len({getattr(card, what) for card in self.cards}) < len(self.cards):
                raise Unequal(f"two members of a sum show the same {what}: each needs its own, fresh for this session")
        if any(len(sizes) != len(self.cards) for _, sizes in self.sizes):
            raise ValueError("a sum needs the sizes of every member")

    @cached_property
    def digest(self) -> bytes:
        """Return a digest of everything: members compare it before the first question."""
        cards = [[card.name, card.nonce.hex(), card.public.hex()] for card in self.cards]
        return digest([cards, self.trust.colluding, self.sizes, self.run.hex(), self.attempt])

    def confirm(self, told: Mapping[str, bytes]) -> None:
        """Refuse to begin unless every other member told the same digest, over a line that shows who it is.

        Who is present is what the members say, not what a relay says: a member that nobody heard is missing here.
        """
        for name in (card.name for card in self.cards):
            if told.get(name) != self.digest:
                said = "did not say whom it adds up with" if name not in told else "would add up in another session"
                raise Unequal(
                    f"{name} {said}: all members need the same run file and the same list of members. If a site's "
                    "folder was removed or put back, start a new run"
                )
