"""Carry questions and answers between two processes of one site, both ways at once, over a Unix socket.

Example: FLARE's process of a job hands the call of another site to the party's process as a question, `{"what": "ask",
"caller": "south"}` and opaque bytes; the answer is bytes. A question is a JSON object and bytes, so nothing that is
read can run. The other side may be an attacker: sizes, and the questions that wait, are bounded.
"""

import json
import logging
import os
import queue
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

Respond = Callable[[dict[str, Any], bytes], bytes]
_HEAD = struct.Struct("!cQI")  # kind, number, and for a question how many bytes its JSON has
_QUESTION, _ANSWER, _FAILED = b"Q", b"A", b"F"
LARGEST = (1 << 28) + (1 << 20)  # bytes: the largest message, and what TLS adds
LONGEST = 1 << 20  # bytes of a question: a run file, or a question of another site
_NOTED = 100  # refused questions that get a line in the log: nobody fills the disk
_AT_ONCE = 100  # questions of the other side that are answered at a time
_log = logging.getLogger(__name__)


class Pipe:
    """Ask the other process, and answer it with `respond`, until the connection ends.

    >>> import socket
    >>> one, other = socket.socketpair()
    >>> asks = Pipe(one, lambda said, data: b"")
    >>> answers = Pipe(other, lambda said, data: data * said["times"])
    >>> for pipe in (asks, answers):
    ...     pipe.start()
    >>> asks.ask({"times": 2}, b"ab", seconds=5.0)
    b'abab'
    >>> asks.close()
    """

    def __init__(self, line: socket.socket, respond: Respond, limit: int = LARGEST) -> None:
        self._line, self._connection = line, Connection(os.dup(line.fileno()))
        self._respond, self._limit = respond, limit
        self._waiting: dict[int, queue.SimpleQueue[tuple[bytes, bytes]]] = {}
        self._number, self._lock, self._writing = 0, threading.Lock(), threading.Lock()
        self._room = threading.Semaphore(_AT_ONCE)
        self._workers = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="answers")
        self._refused = 0
        self.ended = threading.Event()

    def start(self) -> None:
        """Read what comes, on a thread of its own."""
        threading.Thread(target=self._read, daemon=True, name="reads the pipe").start()

    def close(self) -> None:
        """End the connection, for both sides; whoever waits for an answer is told."""
        self.ended.set()
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        with self._lock:
            for waiting in self._waiting.values():
                waiting.put((_FAILED, b""))

    def ask(self, said: dict[str, Any], data: bytes = b"", seconds: float = 60.0) -> bytes:
        """Return the answer to a question; ConnectionError if there is none in time."""
        answer: queue.SimpleQueue[tuple[bytes, bytes]] = queue.SimpleQueue()
        with self._lock:
            self._number += 1
            number = self._number
            self._waiting[number] = answer
        try:
            words = json.dumps(said).encode()
            self._send(_HEAD.pack(_QUESTION, number, len(words)) + words, data)
            kind, given = answer.get(timeout=seconds)
        except (queue.Empty, OSError) as error:
            raise ConnectionError("the other process of this site does not answer") from error
        finally:
            with self._lock:
                del self._waiting[number]
        if kind != _ANSWER:
            raise ConnectionError("the other process of this site could not answer")
        return given

    def _send(self, head: bytes, data: bytes) -> None:
        if self.ended.is_set():
            raise ConnectionResetError("the connection has ended")
        with self._writing:
            self._connection.send_bytes(head + data)

    def _read(self) -> None:
        try:
            while not self.ended.is_set():
                self._take(self._connection.recv_bytes(self._limit))
        except (OSError, EOFError, ValueError, struct.error) as error:
            _log.info("the connection to the other process of this site has ended (%s)", type(error).__name__)
        self.close()

    def _take(self, frame: bytes) -> None:
        kind, number, length = _HEAD.unpack_from(frame)
        rest = frame[_HEAD.size :]
        if kind == _QUESTION:
            if len(rest) > LONGEST or not self._room.acquire(blocking=False):
                return self._send(_HEAD.pack(_FAILED, number, 0), b"")
            self._workers.submit(self._answer, number, rest[:length], rest[length:])
            return
        with self._lock:
            if number in self._waiting:
                self._waiting[number].put((kind, rest))

    def _answer(self, number: int, words: bytes, data: bytes) -> None:
        try:
            said = json.loads(words)
            given = self._respond(said, data) if isinstance(said, dict) else None
            kind = _FAILED if given is None else _ANSWER
        except Exception as error:
            self._refused += 1
            if self._refused <= _NOTED:
                _log.warning("a question of the other process of this site is refused (%s)", type(error).__name__)
            kind, given = _FAILED, b""
        finally:
            self._room.release()
        try:
            self._send(_HEAD.pack(kind, number, 0), given or b"")
        except (OSError, ValueError):
            self.close()
