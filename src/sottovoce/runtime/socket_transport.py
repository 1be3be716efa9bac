"""Carry messages between processes by TCP sockets: the second driver of the transport seam.

Each agent has one `SocketTransport`. It listens at its own address, and makes one connection per agent that it sends
to, when it first sends. Example: agent 2 says to agent 3 "here is agent 2 of run r", agent 3 says yes, and then each
frame is one message, which agent 3 answers with one byte. A message whose answer does not come is sent again on a new
connection; agent 3 asks by id, so a message that comes twice does no harm. Sending waits for the answer: so a broken
connection is noticed where it can be mended, at the price of one round trip per neighbour.

A frame is its length (4 bytes) and its bytes; a length over the limit is refused before anything is read. Frames that
are no message, or of another run or sender, are refused and logged without their content.

This is for a trusted network: nothing is encrypted, and everybody who can reach the port and knows the run's name can
send messages. A federation uses FLARE, not this. It is written by hand because framing by length is a few lines: a
dependency would bring more than it saves, and libraries that send Python objects do it with pickle, which runs what it
reads.
"""

import json
import logging
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

from sottovoce.runtime.transport import Message, Patience, QueueTransport, Silence, Stopped, Transport

Address = tuple[str, int]
Purpose = Literal["messages", "leave", "stop"]
PROTOCOL = 2  # raised when frames change
LIMIT = 1 << 28  # bytes per frame: 64 million numbers
_GREETING = 1 << 12  # bytes: more is no greeting
_YES, _NO = b"+", b"-"
_BRIEF = 2.0  # seconds for a greeting, and for telling one peer that we leave
_PIECE = 1 << 20  # bytes that are read at once: a length alone reserves no memory
_log = logging.getLogger(__name__)


class Refused(ConnectionError):
    """Say that the other side did not take a greeting or a message."""


class SocketTransport(Transport):
    """Send and receive messages of one agent over TCP connections.

    Args:
        me: the agent's number.
        addresses: (host, port) of every agent, in the order of their numbers.
        run: the run's name: others are refused.
        patience: a deadline is needed, because a machine can fall silent without a word.
        limit: the most bytes of a frame.
        listener: a socket that listens already; without it, `addresses[me]` is bound.

    >>> import numpy as np
    >>> from sottovoce.runtime.transport import MessageId
    >>> north, south = SocketTransport.local(2, run="r")
    >>> north.send(1, Message(MessageId("r", 0, 0, "mix 1"), (np.float32(2),), "release"))
    >>> south.receive(1, MessageId("r", 0, 0, "mix 1"))[0].item()
    2.0
    >>> north.leave(0), south.leave(1)
    (None, None)
    """

    def __init__(
        self,
        me: int,
        addresses: Sequence[Address],
        run: str,
        patience: Patience = Patience(60.0),  # noqa: B008  (a frozen value)
        limit: int = LIMIT,
        listener: socket.socket | None = None,
    ) -> None:
        super().__init__(patience)
        if patience.seconds is None:
            raise ValueError("messages between processes need a deadline: give Patience(seconds=60.0), for example")
        if not 0 < limit < 1 << 32:
            raise ValueError(f"limit is {limit}: a frame's length has four bytes, so give less than {1 << 32}")
        self.me, self.addresses, self.run, self.limit = me, list(addresses), run, limit
        self._seconds = patience.seconds
        self._heard = QueueTransport()  # what came, for the agent's thread
        self._gone: set[int] = set()
        self._lines: dict[int, socket.socket] = {}  # to those we send to
        self._guests: dict[int, socket.socket] = {}  # from those who send to us
        self._lock = threading.Lock()
        self._closed = False
        self._listener = listener or listen(*self.addresses[me])
        self._listener.settimeout(0.2)  # on some systems `accept` does not notice that its socket is closed
        self._waiting = threading.Thread(target=self._accept, daemon=True, name=f"agent {me} listens")
        self._waiting.start()

    @classmethod
    def local(cls, agents: int, run: str, patience: Patience = Patience(60.0)) -> "list[SocketTransport]":  # noqa: B008
        """Return the transports of all agents, each at a free port of this machine."""
        listeners = [listen() for _ in range(agents)]
        addresses = [listener.getsockname() for listener in listeners]
        return [cls(me, addresses, run, patience, listener=own) for me, own in enumerate(listeners)]

    def check(self) -> None:
        """Look at the flag that `stop` sets, here or at a peer."""
        self._heard.check()

    def leave(self, agent: int) -> None:
        """Tell everybody that we are gone, and close all connections; who is not reached finds out by its deadline."""
        if agent != self.me:
            raise ValueError(f"agent {self.me} cannot leave for agent {agent}: each has a transport of its own")
        if self._closed:
            return
        self._tell("leave")
        with self._lock:
            self._closed = True
            held = [*self._lines.values(), *self._guests.values(), self._listener]
        for one in held:
            _close(one)
        self._waiting.join(_BRIEF)

    def stop(self) -> None:
        """End our agent at its next exchange, and tell the others to do so."""
        with suppress(Stopped):
            self.check()
            self._interrupt()
            self._tell("stop")

    def _put(self, hearer: int, message: Message) -> None:
        self.check()
        frame = message.to_bytes()
        if len(frame) > self.limit:
            raise ValueError(f"{message.id} has {len(frame)} bytes, over the limit of {self.limit}: raise limit=")
        deadline = time.monotonic() + self._seconds
        line = self._lines.get(hearer) or self._connected(hearer, deadline)
        if line is None:
            return  # it has left: as in `QueueTransport`, receivers hear of it, senders do not
        try:
            line.settimeout(max(deadline - time.monotonic(), 1e-3))
            _write(line, frame)
            if _read(line, 1) != _YES:
                raise Refused("the message was refused")
        except BaseException as error:
            _close(self._lines.pop(hearer))  # a late answer must not be taken for the next message's
            if isinstance(error, TimeoutError):
                raise Silence(f"agent {hearer} did not answer {message.id} within {self._seconds:g} seconds") from error
            raise

    def _take(self, hearer: int, sender: int, seconds: float | None) -> Message | None:
        return self._heard._take(hearer, sender, seconds)

    def _connected(self, hearer: int, deadline: float) -> socket.socket | None:
        """Return a new connection, tried until the deadline; None if the hearer has left."""
        pause = 0.01
        while True:
            self.check()
            if hearer in self._gone:
                return None
            left = deadline - time.monotonic()
            try:
                line = self._call(hearer, "messages", max(left, 1e-3))
                self._lines[hearer] = line
                return line
            except OSError as error:
                if left < pause:
                    host, port = self.addresses[hearer]
                    raise Silence(
                        f"agent {self.me} found no agent {hearer} of run {self.run!r} at {host}:{port} within "
                        f"{self._seconds:g} seconds ({error}): is its process running, with the same addresses?"
                    ) from error
            time.sleep(pause)
            pause = min(2 * pause, 0.5)

    def _call(self, hearer: int, purpose: Purpose, seconds: float) -> socket.socket:
        """Connect and greet."""
        line = socket.create_connection(self.addresses[hearer], timeout=seconds)
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _write(line, json.dumps(self._greeting(self.me, hearer, purpose)).encode())
            if _read(line, 1) != _YES:
                raise Refused("the greeting was refused")
            return line
        except BaseException:
            _close(line)
            raise

    def _greeting(self, sender: int, hearer: int, purpose: Any) -> dict[str, Any]:
        return {"sottovoce": PROTOCOL, "run": self.run, "sender": sender, "hearer": hearer, "purpose": purpose}

    def _tell(self, purpose: Purpose) -> None:
        """Send a purpose ("leave" or "stop") to every peer that is there, each on a connection of its own."""
        for peer in range(len(self.addresses)):
            if peer != self.me and peer not in self._gone:
                with suppress(OSError):
                    _close(self._call(peer, purpose, min(_BRIEF, self._seconds)))

    def _interrupt(self) -> None:
        self._heard.stop()
        for line in list(self._lines.values()):  # whoever waits for an answer is woken
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                guest, address = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                time.sleep(0.01)  # nobody came, or no descriptor is free
                continue
            name = f"agent {self.me} hears {address}"
            threading.Thread(target=self._serve, args=(guest, address), daemon=True, name=name).start()

    def _serve(self, guest: socket.socket, address: Any) -> None:
        """Read one connection until it ends."""
        try:
            guest.settimeout(_BRIEF)
            said = self._welcome(_frame(guest, _GREETING))
            if said is None:
                guest.sendall(_NO)
                return _log.warning("agent %d refused a connection from %s: no greeting of this run", self.me, address)
            sender, purpose = said
            guest.settimeout(None)
            if purpose == "messages":
                self._replace(sender, guest)
                guest.sendall(_YES)
                while True:
                    guest.sendall(_YES if self._keep(sender, _frame(guest, self.limit), address) else _NO)
            if purpose == "leave":
                self._gone.add(sender)
                self._heard.leave(sender)
            else:
                self._interrupt()
            guest.sendall(_YES)
        except ValueError as error:  # a length over the limit: what follows cannot be read
            _log.warning("agent %d refused a frame from %s: %s", self.me, address, error)
            with suppress(OSError):
                guest.sendall(_NO)
        except (OSError, Stopped):
            pass  # a broken connection: the sender makes another
        finally:
            _close(guest)

    def _welcome(self, data: bytes) -> tuple[int, Purpose] | None:
        """Return the sender of a greeting, and its purpose; None if this is no greeting to us."""
        try:
            said = json.loads(data)
            sender, purpose = said["sender"], said["purpose"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        known = type(sender) is int and 0 <= sender < len(self.addresses) and sender != self.me
        fits = known and purpose in ("messages", "leave", "stop") and said == self._greeting(sender, self.me, purpose)
        return (sender, purpose) if fits else None

    def _replace(self, sender: int, guest: socket.socket) -> None:
        """Hold one connection per sender: a new one means that the sender gave the old one up."""
        with self._lock:
            before, self._guests[sender] = self._guests.get(sender), guest
            if self._closed:
                raise ConnectionAbortedError("we have left")
        if before is not None:
            _close(before)

    def _keep(self, sender: int, data: bytes, address: Any) -> bool:
        """Take a message in; say whether it fits the edge."""
        try:
            message = Message.from_bytes(data)
        except ValueError:
            _log.warning("agent %d refused a frame of agent %d at %s: it is no message", self.me, sender, address)
            return False
        if (message.id.run, message.id.sender) != (self.run, sender):
            _log.warning("agent %d refused a frame of agent %d at %s: another run or sender", self.me, sender, address)
            return False
        self._heard.send(self.me, message)
        return True


def listen(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Return a socket that listens, by default on this machine only and at a free port.

    >>> with listen() as free:
    ...     free.getsockname()[0]
    '127.0.0.1'
    """
    try:
        return socket.create_server((host, port), backlog=128)
    except OSError as error:
        raise ValueError(f"port {port} on {host} cannot be used ({error.strerror}): choose another address") from error


def _write(line: socket.socket, data: bytes) -> None:
    line.sendall(len(data).to_bytes(4, "big") + data)


def _frame(line: socket.socket, limit: int) -> bytes:
    """Return the next frame; ValueError if it is longer than the limit."""
    length = int.from_bytes(_read(line, 4), "big")
    if length > limit:
        raise ValueError(f"{length} bytes are announced, and the limit is {limit}")
    return _read(line, length)


def _read(line: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = line.recv(min(length - len(data), _PIECE))
        if not piece:
            raise ConnectionResetError("the connection ended")
        data += piece
    return bytes(data)


def _close(line: socket.socket) -> None:
    """Close a socket, and wake the thread that reads from it."""
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
    line.close()
