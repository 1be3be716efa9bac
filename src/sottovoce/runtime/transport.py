"""Carry agents' messages: send and receive per edge, with deadlines and retries.

A transport knows nothing of methods or records. It carries what `mix` sends; `Standing` says why that may leave an
agent. Example: agent 2 sends `Message(MessageId("run", 7, 2, "mix 4"), ...)` to agent 3; agent 3 asks for exactly this
id, so a message that comes twice, late or out of turn does no harm. `sottovoce.runtime.frames` has the bytes.

A driver implements `_put`, `_take`, `leave`, `stop` and `check`. `QueueTransport`, between threads, is the first,
`SocketTransport` (`sottovoce.runtime.socket_transport`), between processes, the second.
"""

import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from sottovoce.runtime.frames import Message, MessageId, Standing, fits

__all__ = [
    "Absent",
    "Expected",
    "Message",
    "MessageId",
    "Patience",
    "PeerGone",
    "QueueTransport",
    "Silence",
    "Standing",
    "Stopped",
    "Transport",
]
_log = logging.getLogger(__name__)


class Stopped(Exception):
    """Say that the run was interrupted: an agent ends without a result."""


class PeerGone(Stopped):
    """Say that a peer left the run, so nothing more will come from it."""


class Silence(TimeoutError):
    """Say that a peer sent nothing, or could not be reached, within the deadline."""


class Absent(Exception):
    """Say that all parties agreed that the sender is away in this round: the others go on without it."""


@dataclass(frozen=True)
class Patience:
    """Say how long to wait for a message (None: as long as its sender is there), and how often to try sending again.

    >>> Patience(seconds=5.0).retries
    3
    """

    seconds: float | None = None
    retries: int = 3
    pause: float = 0.2  # before the first retry; doubled before each further one


@dataclass(frozen=True)
class Expected:
    """State what a program's messages are at most: the bytes of the largest, and how many one sender says in a round.

    A sender that is a round ahead may have said the messages of two rounds before the first of them is asked for.
    """

    largest: int = 1 << 28
    each_round: int = 1 << 8


Away = Callable[[int, int, bool], bool]


def never(agent: int, round: int, silent: bool) -> bool:
    """Say that nobody is ever away: who is silent is waited for until the deadline, then the run stops.

    >>> never(2, 7, silent=True)
    False
    """
    return False


class Seldom:
    """Count what happens again and again, by its name: only the 1st, 2nd, 4th, 8th ... time is worth a line in a log.

    >>> seldom = Seldom()
    >>> [seldom.again("north") for _ in range(5)]
    ['', ' (2 times so far)', None, ' (4 times so far)', None]
    """

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()
        self._lock = threading.Lock()

    def again(self, name: str) -> str | None:
        """Return words for the log, or None where the log has said it often enough."""
        with self._lock:
            self._times[name] += 1
            times = self._times[name]
        if times & (times - 1):
            return None
        return f" ({times} times so far)" if times > 1 else ""


class Transport(ABC):
    """Carry messages along edges. One agent is one sender and one receiver; each calls from its own thread only.

    `away(agent, round, silent)` says whether all agreed to go on without an agent in a round; `silent` that its
    deadline is over for us. Whoever asks about the same agent and round must get the same answer.
    """

    def __init__(self, patience: Patience, away: Away = never, expected: Expected = Expected()) -> None:  # noqa: B008
        self.patience, self.away, self.expected = patience, away, expected
        self._early: dict[tuple[int, MessageId], Message] = {}
        self._seldom = Seldom()

    @abstractmethod
    def _put(self, hearer: int, message: Message) -> None:
        """Hand a message over; OSError if that failed and may be tried again, `Silence` if a deadline is over.

        It may arrive twice.
        """

    @abstractmethod
    def _take(self, hearer: int, sender: int, seconds: float | None) -> Message | None:
        """Return the next message of a sender, or None if nothing comes in time; `PeerGone` if nothing ever will."""

    @abstractmethod
    def leave(self, agent: int) -> None:
        """Tell everybody that this agent says and hears nothing more, and close what it held."""

    @abstractmethod
    def stop(self) -> None:
        """Make every agent end at its next exchange."""

    @abstractmethod
    def check(self) -> None:
        """Raise `Stopped` if the run was interrupted."""

    @final
    def send(self, hearer: int, message: Message) -> None:
        """Send a message; try again where handing it over fails."""
        pause = self.patience.pause
        for attempt in range(self.patience.retries + 1):
            try:
                return self._put(hearer, message)
            except Silence:
                raise
            except OSError as error:
                if attempt == self.patience.retries:
                    raise Silence(
                        f"{message.id} did not reach agent {hearer} in {attempt + 1} attempts ({error}): is its "
                        "process running, and the network between the two up?"
                    ) from error
                time.sleep(pause)
                pause *= 2

    @final
    def receive(self, hearer: int, wanted: MessageId, like: Sequence[Any] | None = None) -> Sequence[Any]:
        """Wait for one message and return its arrays; keep those that come before their turn, drop repeated ones.

        Messages of this round and the next one are kept, as many as are expected; the rest is dropped. With `like`, a
        message whose arrays have other shapes or types is dropped too, and logged without its content: its sender then
        counts as silent. `Absent` if all go on without the sender.
        """
        if self.away(wanted.sender, wanted.round, False):
            raise Absent(str(wanted))
        if (early := self._early.pop((hearer, wanted), None)) is not None and self._fits(early, like):
            return early.values
        seconds = self.patience.seconds
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            message = self._take(hearer, wanted.sender, left)
            if message is None:
                if self.away(wanted.sender, wanted.round, True):
                    raise Absent(str(wanted))
                if self.away is not never and seconds is not None:  # it is there, only slow: all wait for it
                    deadline = time.monotonic() + seconds
                    continue
                raise Silence(
                    f"agent {hearer} waited {seconds:g} seconds for {wanted}, and it did not come: is the sender's "
                    "process running, and the network between the two up?"
                )
            if message.id == wanted and self._fits(message, like):
                if self.away(wanted.sender, wanted.round, False):  # its message says that all went on without us
                    raise Absent(str(wanted))
                return message.values
            if message.id != wanted:
                self._keep_early(hearer, message, wanted)

    def _keep_early(self, hearer: int, message: Message, wanted: MessageId) -> None:
        """Keep a message that may be asked for soon; drop those of earlier rounds, of other runs, and too many."""
        of_it = [key for key in self._early if key[0] == hearer and key[1].sender == wanted.sender]
        for key in of_it:
            if key[1].round < wanted.round:
                del self._early[key]
        kept = sum(key in self._early for key in of_it)
        if message.id.run != wanted.run or message.id.sender != wanted.sender or message.id.round < wanted.round:
            return
        size = sum(np.asarray(value).nbytes for value in message.values)
        if message.id.round > wanted.round + 1 or kept >= 2 * self.expected.each_round or size > self.expected.largest:
            return self._refuse(message, "it is not what may come next")
        self._early[hearer, message.id] = message

    def _fits(self, message: Message, like: Sequence[Any] | None) -> bool:
        if like is None or fits(message.values, like):
            return True
        self._refuse(message, "its arrays have other shapes or types than what is waited for")
        return False

    def _refuse(self, message: Message, why: str) -> None:
        if (often := self._seldom.again(f"{message.id.sender} {why}")) is not None:
            _log.warning("refused a message of agent %d: %s%s", message.id.sender, why, often)


class QueueTransport(Transport):
    """Carry messages by queues between threads of one process.

    >>> import numpy as np
    >>> between = QueueTransport()
    >>> between.send(1, Message(MessageId("r", 0, 0, "mix 1"), (np.float32(2),), "release"))
    >>> between.receive(1, MessageId("r", 0, 0, "mix 1"))
    (np.float32(2.0),)
    """

    def __init__(self, patience: Patience = Patience()) -> None:  # noqa: B008  (a frozen value)
        super().__init__(patience)
        self._inboxes: dict[tuple[int, int], queue.SimpleQueue[Message | None]] = {}
        self._gone: set[int] = set()
        self._lock = threading.Lock()
        self._stopping = False

    def _put(self, hearer: int, message: Message) -> None:
        self.check()
        self._inbox(hearer, message.id.sender).put(message)

    def _take(self, hearer: int, sender: int, seconds: float | None) -> Message | None:
        try:
            message = self._inbox(hearer, sender).get(timeout=seconds)
        except queue.Empty:
            return None
        if message is None:
            self._inbox(hearer, sender).put(None)  # a second call gets the same answer
            self.check()
            raise PeerGone(f"agent {sender} is gone")
        return message

    def check(self) -> None:
        """Look at the flag that `stop` sets."""
        if self._stopping:
            raise Stopped("the run was interrupted")

    def leave(self, agent: int) -> None:
        """Put an end mark into all inboxes, also into those that are opened later."""
        with self._lock:
            self._gone.add(agent)
            for (_, sender), inbox in self._inboxes.items():
                if sender == agent:
                    inbox.put(None)

    def stop(self) -> None:
        """Wake everybody."""
        with self._lock:
            self._stopping = True
            for inbox in self._inboxes.values():
                inbox.put(None)

    def _inbox(self, hearer: int, sender: int) -> "queue.SimpleQueue[Message | None]":
        found = self._inboxes.get((hearer, sender))
        if found is None:
            with self._lock:
                found = self._inboxes.setdefault((hearer, sender), queue.SimpleQueue())
                if self._stopping or sender in self._gone:
                    found.put(None)
        return found
