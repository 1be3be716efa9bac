"""Carry messages by calls through FLARE's server: receivers ask for them. The third driver of the transport seam.

To send is to store a message (`sottovoce.deploy.outbox`); its receiver asks for it. Example: agent 3 asks agent 2 "what
have you for me after message 0 of round 6?", and agent 2 answers as soon as there is something. So nothing comes that
was not asked for, a message that was lost is simply asked for again, and a party that was away asks for what it missed.
The next message of a neighbour is asked for before it is needed.

This file does not import FLARE: `call` and `answer` are all that it needs of it.
"""

import json
import logging
import queue
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sottovoce.deploy import said
from sottovoce.deploy.outbox import Outbox, Place
from sottovoce.deploy.presence import Absences
from sottovoce.deploy.tunnel import Identity, Line, Reception
from sottovoce.runtime.frames import Message, MessageId, finite
from sottovoce.runtime.transport import Expected, Patience, PeerGone, Stopped, Transport, never

Call = Callable[[str, bytes, float], bytes]  # a party's name, the bytes to send, and for how many seconds to wait
FACTS = Expected(4096, 0)  # what parties state about themselves, before their program is known
_MESSAGE, _NOTHING, _ENDED, _REFUSED = b"M", b"N", b"E", b"-"
_MISSED = b"A"  # marks a message to a party that the sender went on without: so it learns that it was away
_PLACE = struct.Struct("!qI")
_HOLD = 15.0  # seconds that a party may hold a question before it answers
_HANDOVER = 15.0  # seconds for the call itself, in addition
_AHEAD = 2  # messages that are fetched from a neighbour before they are needed
_log = logging.getLogger(__name__)
_Inbox = queue.SimpleQueue[tuple[Message, bool] | None]  # a message, and whether its sender went on without us


class FlareTransport(Transport):
    """Send and receive one party's messages.

    Args:
        me: the party's number.
        names: everybody's names, in the order of their numbers.
        run: the run's name: questions and messages of others are refused.
        outbox: where messages are stored.
        identity: certificate, key, and the list of peers.
        call: hands bytes to a party and brings its answer; OSError if that fails.
        patience: how long a message is waited for.
        agreed: asks the relay whether all go on without a party in a round (name, round, silent); None: never.
        absences: where it is written down who was away.
        expected: what messages may come; `rows` and `columns` set it to what the program needs, once it is known.
        hold: seconds that a question may wait for its answer.
    """

    def __init__(
        self, me: int, names: Sequence[str], run: str, outbox: Outbox, identity: Identity, call: Call,
        patience: Patience = Patience(600.0),  # noqa: B008  (a frozen value)
        agreed: Callable[[str, int, bool], bool] | None = None, absences: Absences | None = None,
        expected: Expected = FACTS, hold: float = _HOLD,
    ) -> None:  # fmt: skip
        super().__init__(patience, never if agreed is None else self._away, expected)
        self._agreed, self.absences = agreed, absences
        self._missing: set[int] = (
            set()
        )  # who was away when we last asked; we ourselves, if a neighbour went on without us
        self.me, self.names, self.run, self.outbox = me, list(names), run, outbox
        self.round = 0  # the last round that we were in
        self.steps: int | None = None  # how many rounds there will be
        self.first = 0  # the round that we start with: what is older is not asked for
        self.stored = 0  # the round up to which our state is on disk: others may forget what is older
        self.waits_for: tuple[int, float] | None = None  # the party that we wait for, and since when
        self.charged = False  # whether this site has charged: before, it says what is listed in `said` alone
        self._identity, self._call, self._hold = identity, call, hold
        self._reception = Reception(identity, self._respond)
        self._facts: dict[str, bytes] = {}
        self._behind: dict[int, int] = {}  # per receiver: the round up to which it has stored its state
        self._inboxes: dict[int, _Inbox] = {}
        self._room: dict[int, threading.Semaphore] = {}
        self._stopping, self._closed = False, threading.Event()

    def answer(self, caller: str, data: bytes) -> bytes:
        """Answer a call of another party; for the driver."""
        return self._reception.answer(caller, data)

    def state(self, message: Message) -> None:
        """Publish a fact about this party to everybody who asks, before the run: sizes, and what must agree."""
        said.require("fact", message)
        self._facts[message.id.tag] = message.to_bytes()

    def learn(self, peer: int, tag: str, seconds: float) -> Message:
        """Ask a party for what it states about itself; it is asked again until it answers, or the time is over."""
        line, deadline, pause = self._line(peer), time.monotonic() + seconds, 0.1
        self.waits_for = (peer, time.time())
        try:
            while True:
                self.check()
                try:
                    question = said.listed("question", {"run": self.run, "fact": tag})
                    answer = line.ask(json.dumps(question).encode(), 0.0)
                    if answer[:1] == _MESSAGE:
                        message = Message.from_bytes(answer[1 + _PLACE.size :])
                        if (message.id.run, message.id.sender, message.id.tag) == (self.run, peer, tag):
                            return message
                except (OSError, ValueError) as error:
                    _log.info("%s does not answer yet (%s)", self.names[peer], error)
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{self.names[peer]} did not state its {tag} within {seconds:g} seconds: is its site running, "
                        "and does its policy agree to this run?"
                    )
                time.sleep(pause)
                pause = min(2 * pause, 2.0)
        finally:
            self.waits_for = None

    def expect(self, senders: Iterable[int]) -> None:
        """Begin to ask neighbours for their messages, so that these are here before they are needed."""
        for sender in senders:
            if sender != self.me:
                self._ask_on(sender)

    def check(self) -> None:
        """Look at the flag that `stop` sets."""
        if self._stopping:
            raise Stopped("the run was interrupted")

    def leave(self, agent: int) -> None:
        """Send nothing more. Others may still ask for earlier messages, until `close`."""
        self.outbox.end()

    def stop(self) -> None:
        """End our agent at its next exchange. The others hear of it by FLARE, which ends the job everywhere."""
        self._stopping = True
        for inbox in list(self._inboxes.values()):
            inbox.put(None)

    def close(self) -> None:
        """Stop asking and answering. The party does not leave the run: its next process may go on."""
        self._closed.set()
        self.outbox.close()

    def tidy(self, drawn_before: int) -> None:
        """Remove messages that their receivers no longer need, and draws of rounds that are stored."""
        self.outbox.forget(lambda hearer: min(self._behind.get(hearer, 0), self.stored), drawn_before)

    def _put(self, hearer: int, message: Message) -> None:
        self.check()
        if not self.charged:
            said.require("message", message)
        if not finite(message.values):
            raise FloatingPointError(
                f"{message.id} holds numbers that are not finite: the run diverges; nothing is sent"
            )
        self.round = message.id.round
        self.outbox.say(hearer, message)

    def _take(self, hearer: int, sender: int, seconds: float | None) -> Message | None:
        self.check()
        inbox = self._ask_on(sender)
        self.waits_for = (sender, time.time())
        try:
            found = inbox.get(timeout=seconds)
        except queue.Empty:
            return None
        finally:
            self.waits_for = None
        if found is None:
            inbox.put(None)  # a second call gets the same answer
            self.check()
            raise PeerGone(f"agent {sender} is gone")
        self._room[sender].release()
        message, missed = found
        if missed:
            self._missing.add(self.me)
        return message

    def _away(self, agent: int, round: int, silent: bool) -> bool:
        """Say whether an agent is away, or we are ourselves: a neighbour that went on without us says so.

        If the relay says that a silent agent is there, the run waits for it once more, as long as before.
        """
        mine = self._given_up(self.me, round, self.me in self._missing, False)
        return mine or self._given_up(agent, round, silent or agent in self._missing, silent)

    def _given_up(self, agent: int, round: int, unsure: bool, silent: bool) -> bool:
        """Ask the relay whether all go on without an agent; an answer "yes" is remembered.

        If the relay cannot be reached, this party is cut off: it asks until the relay answers.
        """
        assert self._agreed is not None
        assert self.absences is not None
        name = self.names[agent]
        if self.absences.known(name, round):
            return True
        if not unsure:
            return False
        while True:
            self.check()
            try:
                away = self._agreed(name, round, silent)
                break
            except OSError as error:
                _log.info("the relay does not answer (%s)", error)
                self._closed.wait(1.0)
        (self._missing.add if away else self._missing.discard)(agent)
        if away:
            self.absences.note(name, round)
        return away

    def _line(self, peer: int) -> Line:
        name = self.names[peer]
        call = lambda data, seconds: self._call(name, data, seconds)  # noqa: E731
        return Line(self._identity, name, call, lambda: self.expected.largest + 1 + _PLACE.size, _HANDOVER)

    def _ask_on(self, sender: int) -> _Inbox:
        """Return the inbox of a sender, and start the thread that fills it if there is none."""
        if sender not in self._inboxes:
            self._inboxes[sender], self._room[sender] = queue.SimpleQueue(), threading.Semaphore(_AHEAD)
            name = f"asks {self.names[sender]}"
            threading.Thread(target=self._fill, args=(sender,), daemon=True, name=name).start()
        return self._inboxes[sender]

    def _fill(self, sender: int) -> None:
        """Ask a sender for one message after the other, as long as there is room for them."""
        line, inbox, pause = self._line(sender), self._inboxes[sender], 0.1
        place: Place = (self.first, -1)
        while not self._closed.is_set():
            if not self._room[sender].acquire(timeout=1.0):
                continue
            try:
                question = {"run": self.run, "after": place, "stored": self.stored, "hold": self._hold}
                answer = line.ask(json.dumps(said.listed("question", question)).encode(), self._hold)
                pause = 0.1
            except OSError as error:
                _log.info("%s does not answer (%s)", self.names[sender], error)
                self._closed.wait(pause)
                pause = min(2 * pause, 5.0)
                self._room[sender].release()
                continue
            if answer[:1] == _ENDED:
                return inbox.put(None)
            may_be = answer[:1] in (_MESSAGE, _MISSED)
            if may_be and (heard := self._accepted(sender, place, answer[1:])) is not None:
                place, message = heard
                inbox.put((message, answer[:1] == _MISSED))
                continue
            self._room[sender].release()
            if answer[:1] != _NOTHING:
                self._closed.wait(1.0)  # refused: ask again, not too often

    def _accepted(self, sender: int, before: Place, data: bytes) -> tuple[Place, Message] | None:
        """Return a message and its place, if it is what may come now; else None, and a line in the log."""
        why = "it is no message"
        try:
            place = _PLACE.unpack_from(data)
            message = Message.from_bytes(data[_PLACE.size :])
            if (message.id.run, message.id.sender) != (self.run, sender):
                why = "another run or sender"
            elif place <= before or place[0] != message.id.round:
                why = "a round that is over, or another one than announced"
            elif not finite(message.values):
                why = "numbers that are not finite"
            else:
                return place, message
        except (ValueError, struct.error):
            pass
        if (often := self._seldom.again(f"{self.names[sender]} {why}")) is not None:
            _log.warning("%s: a message of %s is refused: %s%s", self.names[self.me], self.names[sender], why, often)
        return None

    def _respond(self, peer: str, question: bytes) -> bytes:
        """Answer a question of an authenticated peer."""
        asked = self._understood(peer, question)
        if asked is None:
            if (often := self._seldom.again(f"{peer} asks")) is not None:
                _log.warning("%s: a question of %s is refused%s", self.names[self.me], peer, often)
            return _REFUSED
        if "fact" in asked:
            stated = self._facts.get(asked["fact"])
            return _NOTHING if stated is None else _MESSAGE + _PLACE.pack(0, 0) + stated
        hearer = self.names.index(peer)
        self._behind[hearer] = max(self._behind.get(hearer, 0), asked["stored"])
        found = self.outbox.after(hearer, tuple(asked["after"]), asked["hold"])
        if found is not None:
            return (
                (_MISSED if self._went_on_without(hearer, found[0][0]) else _MESSAGE)
                + _PLACE.pack(*found[0])
                + found[1]
            )
        return _ENDED if self.outbox.ended else _NOTHING

    def _went_on_without(self, hearer: int, round: int) -> bool:
        """Say whether we took a hearer for absent: in that round, or when we last looked, for rounds to come."""
        noted = self.absences is not None and self.absences.known(self.names[hearer], round)
        return noted or hearer in self._missing

    def _understood(self, peer: str, question: bytes) -> dict[str, Any] | None:
        try:
            asked = json.loads(question)
            if asked["run"] != self.run or peer not in self.names or peer == self.names[self.me]:
                return None
            if set(asked) == {"run", "fact"} and isinstance(asked["fact"], str):
                return dict(asked)
            numbers = [*asked["after"], asked["stored"]]
            fits = len(asked["after"]) == 2 and all(type(number) is int for number in numbers)
            fits &= set(asked) == {"run", "after", "stored", "hold"} and type(asked["hold"]) in (int, float)
            return {**asked, "hold": min(max(asked["hold"], 0.0), 60.0)} if fits else None
        except (ValueError, KeyError, TypeError, RecursionError):
            return None


def fact(run: str, me: int, tag: str, values: Sequence[Any], disclosed: bool) -> Message:
    """Return what a party states about itself: a disclosure, which the statement names, or something public.

    >>> import numpy as np
    >>> fact("r", 0, "sizes", [np.array([400])], disclosed=True).standing
    'disclosure'
    """
    return Message(MessageId(run, 0, me, tag), tuple(values), "disclosure" if disclosed else "public")


def neighbours(edges: Mapping[str, Any], me: int) -> list[int]:
    """Return all agents whose messages an agent receives, by any of its network's matrices (each row is a receiver)."""
    heard: set[int] = set()
    for matrix in edges.values():
        entries = matrix.tocoo()
        heard |= {int(sender) for sender in entries.col[(entries.row == me) & (entries.data != 0)]}
    return sorted(heard - {me})
