"""Let the processes of one run agree: who leads, what all know, and what happens when one is lost.

Example: before a stretch the leader (rank 0) writes the charge into the ledger, ``peers.lead(lambda: charge(0, 10))``;
the others wait for the word that it is written. So there is one ledger, and nothing is released before it is charged.
A run in one process has no peers: `Alone` does everything at once.
"""

import itertools
import json
import os
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import jax

LOST = 75  # exit code of a process that stops because a peer is gone: try again later
_POLL = 1000  # milliseconds between two looks at whether a peer is lost
_NOTICE = 10.0  # seconds in which the keeper names the peer that was lost


class LedError(ValueError):
    """Say that the leader refused: its own output says why."""


class Peers(ABC):
    """Speak with all processes of a run, from one of them."""

    rank: int
    count: int

    @abstractmethod
    def lead(self, action: Callable[[], Any]) -> Any:
        """Return what `action` returns in the leader, in all processes; it must be JSON-able."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any]:
        """Return everybody's value (JSON-able), in the order of ranks."""

    @abstractmethod
    def lost(self, error: BaseException) -> NoReturn:
        """Leave after an exchange with a peer failed."""

    @abstractmethod
    def guard(self, keep: Callable[[], str]) -> Any:
        """Return a context in which `keep` is called when a peer is lost: it stores what there is and says so."""

    @property
    def leads(self) -> bool:
        """Say whether this process speaks and writes for all."""
        return self.rank == 0


class Alone(Peers):
    """Run as the only process.

    >>> Alone().lead(lambda: 3), Alone().gather("x")
    (3, ['x'])
    """

    rank, count = 0, 1

    def lead(self, action: Callable[[], Any]) -> Any:
        """Do it."""
        return action()

    def gather(self, value: Any) -> list[Any]:
        """Return the one value."""
        return [value]

    def lost(self, error: BaseException) -> NoReturn:
        """Raise the error: there is no peer that could be lost."""
        raise error

    @contextmanager
    def guard(self, keep: Callable[[], str]) -> Iterator[None]:
        """Do nothing."""
        yield


class Link:
    """Talk to the keeper over a connection: JSON, one object per line."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lines = connection, connection.makefile("r", encoding="utf-8")

    def say(self, **word: Any) -> None:
        """Send one object; a keeper that is gone does not hear it."""
        with suppress(OSError):
            self._connection.sendall((json.dumps(word) + "\n").encode())

    def hear(self) -> dict[str, Any] | None:
        """Wait for one object; None if the line is cut."""
        try:
            line = self._lines.readline()
            return json.loads(line) if line else None
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Hang up."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class Joined(Peers):
    """Run as one of several processes. Short messages go through the store of JAX's coordination service."""

    def __init__(self, client: Any, rank: int, count: int, link: Link) -> None:
        self.client, self.rank, self.count, self.link = client, rank, count, link
        self._turns, self._ending = itertools.count(), threading.Lock()
        self._keep: Callable[[], str] | None = None

    def lead(self, action: Callable[[], Any]) -> Any:
        """Put the leader's result where the others wait for it."""
        key = f"sottovoce/{next(self._turns)}"
        if not self.leads:
            said = self._get(key)
            if "refused" in said:
                raise LedError(said["refused"])
            return said["value"]
        try:
            value = action()
        except Exception as error:
            self._put(key, {"refused": str(error)})
            raise
        self._put(key, {"value": value})
        return value

    def gather(self, value: Any) -> list[Any]:
        """Put one's own value where all can read it, and read all values."""
        key = f"sottovoce/{next(self._turns)}"
        self._put(f"{key}/{self.rank}", value)
        return [self._get(f"{key}/{rank}") for rank in range(self.count)]

    def _put(self, key: str, value: Any) -> None:
        try:
            self.client.key_value_set(key, json.dumps(value))
        except jax.errors.JaxRuntimeError as error:
            self.lost(error)

    def _get(self, key: str) -> Any:
        while True:
            try:
                return json.loads(self.client.blocking_key_value_get(key, _POLL))
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    self.lost(error)

    @contextmanager
    def guard(self, keep: Callable[[], str]) -> Iterator[None]:
        """Remember what to keep."""
        self._keep = keep
        try:
            yield
        finally:
            self._keep = None

    def lost(self, error: BaseException) -> NoReturn:
        """Wait for the keeper, which knows who is gone; then leave."""
        time.sleep(_NOTICE)
        self.leave(f"an exchange with another process failed ({str(error).splitlines()[0]!s:.200})")

    def leave(self, why: str) -> NoReturn:
        """Store what there is, say why, and end: JAX would abort this process soon."""
        with self._ending:
            kept = ""
            if self._keep is not None:
                try:
                    kept = self._keep()
                except Exception as error:
                    kept = f"The state could not be stored ({type(error).__name__}: {error!s:.200})."
            print(f"error: process {self.rank} stops: {why}. {kept}".rstrip(), file=sys.stderr, flush=True)
            sys.stdout.flush()
            os._exit(LOST)


_here: Peers = Alone()


def current() -> Peers:
    """Return the processes that this one runs with.

    >>> current().count
    1
    """
    return _here


def enter(peers: Peers) -> None:
    """Make this process one of several, from now on."""
    global _here
    _here = peers
