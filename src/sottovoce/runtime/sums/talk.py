"""Bring the members' masked shares to one of them, the adder, and its total back to all.

Example: five members. Four send their masked share to member 0, which adds up all five and sends the total to the four:
eight messages. The adder sees nothing that others may not see: every masked share looks random.

With each share comes a digest of all earlier totals. So an adder that told two members different totals is found at the
next question, by an honest adder from the digests, and by everybody else because the masks no longer cancel.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sottovoce.runtime.sums.keys import BYTES
from sottovoce.runtime.sums.roster import Unequal
from sottovoce.runtime.sums.session import Question, Session, added
from sottovoce.runtime.transport import Message, MessageId, Silence, Transport

ADDER = 0  # the first of the roster
_AWAY = (
    "{} stays away, and a sum without it would show what it adds, so nothing is added up ({}). What was begun is "
    "charged. When it is back with its folder, submit the run again: what was said is said again, and costs nothing "
    "more. If it does not come back, start a new run without it, with another name: that run has a charge of its own"
)


def total(session: Session, question: Question, masked: np.ndarray, transport: Transport, id: MessageId) -> np.ndarray:
    """Send a masked share, and return the total of all members, which the session then goes on from.

    >>> from sottovoce.privacy.discrete import GridRelease
    >>> from sottovoce.privacy.trust import Sum
    >>> from sottovoce.runtime.sums.keys import Secrets
    >>> from sottovoce.runtime.sums.roster import Roster
    >>> from sottovoce.runtime.threads import on_threads, queues
    >>> own = [Secrets.fresh(name) for name in ("north", "mid", "south")]
    >>> roster = Roster.of([one.card for one in own], Sum(1), {"records": [2, 2, 4]}, b"run")
    >>> grid = GridRelease(clip=65536, scale=65537, step=2.0**-16, denominator=8)
    >>> def life(session, transport):
    ...     asked = session.question("0 step: release 1", 1, grid, rows=8)
    ...     masked = session.masked(asked, np.array([session.me + 1]))
    ...     return total(session, asked, masked, transport, MessageId("run", 0, session.me, "release 1")).item()
    >>> on_threads([Session.begin(one, roster) for one in own], queues(3), life)
    [6, 6, 6]
    """
    history = np.frombuffer(session.history, np.uint8)
    share, sum_of = replace(id, tag=f"{id.tag} share"), replace(id, tag=f"{id.tag} total")
    others = [member for member in range(len(session.roster.cards)) if member != ADDER]

    def heard(wanted: MessageId, like: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        try:
            return transport.receive(session.me, wanted, like)
        except Silence as silence:
            raise Silence(_AWAY.format(session.roster.cards[wanted.sender].name, silence)) from silence

    if session.me == ADDER:
        said = {other: heard(replace(share, sender=other), (masked, history)) for other in others}
        _require_one_history(session, {other: bytes(np.asarray(told[1])) for other, told in said.items()})
        found = added([masked, *(np.asarray(told[0]) for told in said.values())])
        told_to_all = Message(sum_of, (found,), "release")
        for other in others:
            transport.send(other, told_to_all)
    else:
        transport.send(ADDER, Message(share, (masked, history), "release"))
        (told,) = heard(replace(sum_of, sender=ADDER), (masked.view(np.int64),))
        found = np.asarray(told)
    session.settle(question, found)
    return found


def _require_one_history(session: Session, told: dict[int, bytes]) -> None:
    for other, history in told.items():
        if history != session.history:
            raise Unequal(
                f"{session.roster.cards[other].name} has seen other totals than {session.roster.cards[session.me].name}"
                ": nothing is added up. Start a new run"
            )


def message_sizes(size: int) -> Sequence[np.ndarray]:
    """Return arrays like those of the largest message about a total of so many numbers.

    >>> [one.nbytes for one in message_sizes(100)]
    [800, 32]
    """
    return np.zeros(size, np.uint64), np.zeros(BYTES, np.uint8)
