"""Add up with the other sites: show cards, agree on the list of members, and keep the session on this site's disk.

Example: five sites begin a run with ``privacy.trust = "sum"``. Each states its card, and the digest of all five cards
and of the run. These facts go from site to site inside TLS, with the pinned certificates, so the relay's word about who
takes part decides nothing. A site whose process was killed goes on with the session on its disk, and says the same
bytes again. A site whose folder was removed has another card, and all refuse to go on with it.
"""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.accounting.account import Account
from sottovoce.deploy.flare import FlareTransport, fact
from sottovoce.deploy.order import MEETING, Seat
from sottovoce.files import read_facts, write_facts
from sottovoce.runtime.frames import Message
from sottovoce.runtime.sums.keys import Card, Secrets, digest
from sottovoce.runtime.sums.member import Member
from sottovoce.runtime.sums.roster import Roster, Unequal
from sottovoce.runtime.sums.session import Session
from sottovoce.runtime.sums.talk import ADDER

_FILE, _KIND = "session.json", "a session of secure sums"
_LOST = "a site that has lost what it said cannot say it again: start a new run, with another name"


def member(seat: Seat, transport: FlareTransport, account: Account, records: str) -> Member:
    """Return this site's part in the sums of a run; `records` is a sealed digest of its records.

    Nothing is drawn before all sites have stated the same roster.
    """
    book, sites, me = _Book(seat.folder / _FILE, records), seat.deploy.sites, seat.me
    if transport.stored and not book.exists:
        raise ValueError(f"{book.path} is gone, and this run has begun: {_LOST}")
    own = book.card(seat.name)
    transport.state(fact(seat.order.run, me, "card", _arrays(own.nonce, own.public), disclosed=False))
    cards = [own if peer == me else _card(transport, peer, name) for peer, name in enumerate(sites)]
    summed = account.trace.known.summed
    assert summed is not None
    about = digest([seat.order.digest(), account.trace.identity])
    roster = Roster.of(cards, summed.trust, summed.holders.sizes, about)
    book.require(roster)  # before it is stated: a site that has begun with another one lets nobody begin
    transport.state(fact(seat.order.run, me, "roster", _arrays(roster.digest), disclosed=False))
    told = {name: _bytes(transport.learn(peer, "roster", MEETING))[0] for peer, name in enumerate(sites) if peer != me}
    roster.confirm({**told, seat.name: roster.digest})
    return Member.of(book.session(roster), book)


def forget(seat: Seat) -> None:
    """Remove what is left of a session when the run has its result."""
    (seat.folder / _FILE).unlink(missing_ok=True)


def speakers(seat: Seat) -> list[int]:
    """Return who talks to this site: the adder hears all, the others hear the adder."""
    return [site for site in range(len(seat.deploy.sites)) if site != ADDER] if seat.me == ADDER else [ADDER]


class _Book:
    """Keep a session on disk: its card, its secrets as they are now, and the last total, which they follow from."""

    def __init__(self, path: Path, records: str) -> None:
        self.path, self.exists = path, path.exists()
        self._facts: dict[str, Any] = read_facts(path, _KIND, 1, _LOST) if self.exists else {"records": records}
        if self._facts["records"] != records:
            raise ValueError(
                "the records of this site have changed since the run began: put them back, or start a new run. Other "
                "records under the same masks would give away the difference"
            )

    def card(self, name: str) -> Card:
        """Return the card of this session. Its secrets are on disk before it is shown."""
        if not self.exists:
            own = Secrets.fresh(name)
            self._write(own=[one.hex() for one in (own.nonce, own.private, own.noise)], public=own.card.public.hex())
        return Card(name, bytes.fromhex(self._facts["own"][0]), bytes.fromhex(self._facts["public"]))

    def require(self, roster: Roster) -> None:
        """Refuse another roster than that of a session that has begun."""
        if self._facts.get("roster", roster.digest.hex()) != roster.digest.hex():
            raise Unequal("this session was begun with another list of members: start a new run, with another name")

    def session(self, roster: Roster) -> Session:
        """Return the session as it is now. What it began with is not kept: earlier masks would follow from that."""
        if "session" not in self._facts:
            name = next(card.name for card in roster.cards if card.public.hex() == self._facts["public"])
            begun = Session.begin(Secrets(name, *map(bytes.fromhex, self._facts["own"])), roster)
            nonce, began = self._facts["own"][:1], {"roster": roster.digest.hex(), "place": "", "total": ""}
            self._write(own=nonce, session={"me": begun.me, **begun.kept()}, **began)
        kept = self._facts["session"]
        return Session(kept["me"], roster, b"", {}).resumed(kept)

    def answered(self, place: str) -> np.ndarray | None:
        """Return the total of a place, if it is the last one."""
        if self._facts["place"] != place:
            return None
        return np.frombuffer(base64.b64decode(self._facts["total"]), "<i8")

    def keep(self, session: Session, place: str, total: np.ndarray) -> None:
        """Write down where the session is: the secrets before it are gone then."""
        told = base64.b64encode(np.ascontiguousarray(total, "<i8").tobytes()).decode()
        self._write(session={"me": session.me, **session.kept()}, place=place, total=told)

    def _write(self, **facts: Mapping[str, Any] | Sequence[str] | str) -> None:
        self._facts = {**self._facts, **facts}
        write_facts(self.path, _KIND, 1, self._facts, private=True)
        self.exists = True


def _card(transport: FlareTransport, peer: int, name: str) -> Card:
    nonce, public = _bytes(transport.learn(peer, "card", MEETING), 2)
    return Card(name, nonce, public)


def _arrays(*texts: bytes) -> list[np.ndarray]:
    return [np.frombuffer(text, np.uint8) for text in texts]


def _bytes(message: Message, count: int = 1) -> Sequence[bytes]:
    if len(message.values) != count:
        raise ValueError(f"the {message.id.tag} of a site cannot be read: does it run this version of sottovoce?")
    return [np.asarray(value).tobytes() for value in message.values]
