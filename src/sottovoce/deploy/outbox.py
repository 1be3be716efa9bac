"""Keep on disk what a party has sent and drawn, before anybody can receive it.

Example: in round 7 a party draws a batch and noise, and sends the result to two neighbours. Before the first of them
can receive it, the folder holds the draws (`drawn/`) and the message's bytes (`said/<hearer>/`). If the process is
killed now, the next one computes round 7 from the same draws, and sends the same bytes: nothing is drawn twice, nothing
is charged twice. Exact noise could not be repeated otherwise.

Draws that no message followed may be lost in a kill: nobody has seen anything of them.
"""

import logging
import math
import os
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from sottovoce.files import append, write_atomically
from sottovoce.runtime.frames import Message, MessageId
from sottovoce.runtime.transport import Silence

Place = tuple[int, int]  # a round, and the number of the message in this round to this receiver
_log = logging.getLogger(__name__)
_NAME = re.compile(r"(\d{9})-(\d{6})")


class Outbox:
    """Keep messages per receiver, in the order in which they were sent, and the draws behind them.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     box = Outbox(Path(folder))
    ...     box.say(1, Message(MessageId("r", 0, 0, "mix 1"), (np.float32(2),), "release"))
    ...     again = Outbox(Path(folder))
    ...     Message.from_bytes(again.after(1, (0, -1), seconds=0)[1]).values[0].item()
    2.0
    """

    def __init__(self, folder: Path, most: float = math.inf) -> None:
        self._most, self._kept = most, 0  # bytes of messages for others
        self._sizes: dict[Path, int] = {}
        self._said, self._drawn, self._behind = folder / "said", folder / "drawn", folder / "behind"
        self._fresh: dict[str, Sequence[np.ndarray]] = {}  # draws that are not on disk yet
        self._known: dict[str, Sequence[np.ndarray]] = {}  # draws on disk, from before the last kill
        self._places: dict[int, list[Place]] = {}
        self._turn: dict[int, Place] = {}  # by receiver: the place of the last message of this process
        self._last: tuple[Message, Path] | None = None
        self._removed = int(self._behind.read_text()) if self._behind.exists() else 0  # older messages are not kept
        self._changed = threading.Condition()
        self._ended = self._closed = False
        for path in sorted(self._drawn.glob("*")) if self._drawn.is_dir() else ():
            for message in _drawn_in(path.read_bytes()):
                self._known[message.id.tag] = message.values
        for hearer in sorted(self._said.glob("*")) if self._said.is_dir() else ():
            found = ((_NAME.fullmatch(path.name), path) for path in hearer.iterdir())
            whole = [(name, path) for name, path in found if name and _is_whole(path)]
            self._places[int(hearer.name)] = sorted((int(name[1]), int(name[2])) for name, _ in whole)
            for _, path in whole:
                self._count(path, path.stat().st_size)

    def require(self, first: int) -> None:
        """Refuse to go on from a round whose draws and messages were removed: they would be drawn again, unpaid.

        That is so where a checkpoint was lost, or an older one was put back.
        """
        if first < self._removed:
            raise ValueError(
                f"the checkpoint of this run is of round {first}, and what was drawn and said before round "
                f"{self._removed} is no longer kept: put the newest checkpoint back, or start a new run"
            )

    def recall(self, place: str) -> Sequence[np.ndarray] | None:
        """Return what was drawn at a place before the last kill."""
        return self._known.get(place)

    def note(self, place: str, drawn: Sequence[np.ndarray]) -> None:
        """Remember a draw; it is written down with the next message."""
        if place in self._fresh:
            raise RuntimeError(f"two draws have one place in the journal, {place!r}: one of them would be lost")
        self._fresh[place] = drawn

    def say(self, hearer: int, message: Message) -> None:
        """Keep a message for a receiver; if this place has one from before a kill, that one is kept and sent."""
        round, number = message.id.round, 0
        if (before := self._turn.get(hearer)) is not None and before[0] == round:
            number = before[1] + 1
        place = (round, number)
        with self._changed:
            before_kill = place in self._places.get(hearer, ())
        if before_kill:
            if self._path(hearer, place).read_bytes() != message.to_bytes():
                _log.warning(
                    "%s came out differently than before the restart: what was said then is said again", message.id
                )
            self._turn[hearer] = place
            return
        path, data = self._path(hearer, place), message.to_bytes()
        if self._kept + len(data) > self._most:
            raise Silence(
                "some parties have not stored what they were sent, and what is kept for them fills the space that the "
                "policy gives (disk): when all sites run, submit the run again"
            )
        self._write_draws(round)
        if self._last is not None and self._last[0] is message and self._last[1].exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(self._last[1], path)  # the same bytes; if a power cut removes the link, they are sent again
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            append(path, data, at=0)  # one sync: a part of a message is no message, and was not sent
        self._last, self._turn[hearer] = (message, path), place
        self._count(path, len(data))
        with self._changed:
            self._places.setdefault(hearer, []).append(place)
            self._changed.notify_all()

    def after(self, hearer: int, place: Place, seconds: float) -> tuple[Place, bytes] | None:
        """Return the first message for a receiver after a place; wait some seconds for one; None if there is none."""

        def following() -> Place | None:
            return min((found for found in self._places.get(hearer, ()) if found > place), default=None)

        with self._changed:
            self._changed.wait_for(lambda: following() is not None or self._ended or self._closed, seconds)
            found = following()
        return None if found is None else (found, self._path(hearer, found).read_bytes())

    def end(self) -> None:
        """Wake everybody who waits: nothing more will be sent."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def close(self) -> None:
        """Wake everybody who waits: this process stops here, and the next one goes on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def ended(self) -> bool:
        """Say whether nothing more will be sent."""
        return self._ended

    def forget(self, before: Callable[[int], int], drawn_before: int) -> None:
        """Remove messages of rounds that a receiver has stored (`before(receiver)`), and draws of stored rounds."""
        with self._changed:
            limits = {hearer: before(hearer) for hearer in self._places}
            said = [(hearer, place) for hearer in limits for place in self._places[hearer] if place[0] < limits[hearer]]
            named = [(_NAME.fullmatch(path.name), path) for path in self._drawn.glob("*")]
            drawn = [path for name, path in named if name and int(name[1]) < drawn_before]
            if said or drawn:  # written down first, so that a kill leaves no unknown gap
                self._removed = max(self._removed, *(limits[hearer] for hearer, _ in said), drawn_before * bool(drawn))
                write_atomically(self._behind, str(self._removed).encode(), private=True)
            for hearer, place in said:
                self._path(hearer, place).unlink(missing_ok=True)
                self._count(self._path(hearer, place), 0)
                self._places[hearer].remove(place)
            for path in drawn:
                path.unlink()

    def forget_draws(self) -> None:
        """Remove all draws of a run that has its result: nothing is computed again, and draws would reveal batches."""
        names = [_NAME.fullmatch(path.name) for path in self._drawn.glob("*")]
        if rounds := [int(name[1]) for name in names if name]:
            self.forget(lambda hearer: 0, max(rounds) + 1)

    def _write_draws(self, round: int) -> None:
        if not self._fresh:
            return
        frames = [Message(MessageId("", round, 0, place), drawn, "release") for place, drawn in self._fresh.items()]
        used = {path.name for path in self._drawn.glob("*")} if self._drawn.is_dir() else set()
        number = next(n for n in range(10**6) if f"{round:09}-{n:06}" not in used)
        data = b"".join(len(frame).to_bytes(8, "big") + frame for frame in (one.to_bytes() for one in frames))
        write_atomically(self._drawn / f"{round:09}-{number:06}", data, private=True)
        self._fresh = {}

    def _count(self, path: Path, size: int) -> None:
        self._kept += size - self._sizes.pop(path, 0)
        if size:
            self._sizes[path] = size

    def _path(self, hearer: int, place: Place) -> Path:
        return self._said / str(hearer) / f"{place[0]:09}-{place[1]:06}"


def _is_whole(path: Path) -> bool:
    """Say whether a file holds a message; what a kill left of one is removed."""
    try:
        Message.from_bytes(path.read_bytes())
    except ValueError:
        path.unlink()
        return False
    return True


def _drawn_in(data: bytes) -> list[Message]:
    found, start = [], 0
    while start < len(data):
        size = int.from_bytes(data[start : start + 8], "big")
        found.append(Message.from_bytes(data[start + 8 : start + 8 + size]))
        start += 8 + size
    return found
