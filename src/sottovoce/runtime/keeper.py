"""Start the processes of a run, compare what they bring, and tell the others when one of them is gone.

This is the keeper. It does not compute anything. It runs JAX's coordination service, so that this service outlives any
process of the run. Example: ``sottovoce run mine.toml --processes 4`` is one keeper and four processes. On several
machines there is a keeper on each; the one with rank 0 listens at ``--coordinator``.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sottovoce.runtime import coordination
from sottovoce.runtime.cluster import WAIT, parse_address
from sottovoce.runtime.peers import LOST, Link

_NOISE = ("[Gloo]",)  # lines of JAX's libraries that say nothing to a user
_GRACE = 60.0  # seconds for the others to store their state after one is gone


@dataclass
class Guest:
    """Describe a process that said hello."""

    rank: int
    host: str
    facts: dict[str, str]
    link: Link
    done: bool = False


@dataclass
class Meeting:
    """Bring the processes of a run together at one address, and watch them."""

    listener: socket.socket
    processes: int
    guests: dict[int, Guest] = field(default_factory=dict)
    early: list[Guest] = field(default_factory=list)  # those who came before process 0, to which all are compared
    lock: Any = field(default_factory=threading.Lock)

    @classmethod
    def at(cls, host: str, port: int, processes: int) -> "Meeting":
        """Listen; ValueError if the port is taken."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ValueError(
                f"port {port} on {host} cannot be used ({error.strerror}): choose another with --coordinator HOST:PORT"
            ) from error
        listener.listen(processes + 8)
        return cls(listener, processes)

    @property
    def address(self) -> str:
        """Return the address at which it listens."""
        host, port = self.listener.getsockname()
        return f"{host}:{port}"

    def welcome(self, wait: float, alive: Callable[[], bool]) -> bool:
        """Wait for all; False if one of our own processes ended first. ValueError names those that did not come."""
        deadline = time.monotonic() + wait
        self.listener.settimeout(0.2)
        while len(self.guests) < self.processes:
            if not alive():
                return False
            if time.monotonic() > deadline:
                came = {*self.guests, *(guest.rank for guest in self.early)}
                missing = [rank for rank in range(self.processes) if rank not in came]
                raise ValueError(
                    f"{len(came)} of {self.processes} processes came within {wait:g} seconds; missing: rank "
                    f"{', '.join(map(str, missing))}. Start them with the same --coordinator and --processes"
                )
            try:
                connection, _ = self.listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(10.0)
            self._greet(Link(connection), connection)
        return True

    def _greet(self, link: Link, connection: socket.socket) -> None:
        hello = link.hear()
        try:
            assert hello is not None
            guest = Guest(int(hello["rank"]), str(hello["host"]), dict(hello["facts"]), link)
            processes = int(hello["processes"])
        except (AssertionError, KeyError, TypeError, ValueError):
            return link.say(refused="this is no hello of sottovoce")  # somebody else's connection
        connection.settimeout(None)
        if processes != self.processes:
            said = f"--processes {processes}, process 0 with {self.processes}: give all the same number"
            return link.say(refused=f"process {guest.rank} was started with {said}")
        if not 0 <= guest.rank < processes:
            return link.say(refused=f"rank {guest.rank} does not exist: ranks go from 0 to {processes - 1}")
        self.early.append(guest)
        if guest.rank == 0 or 0 in self.guests:
            for one in sorted(self.early, key=lambda early: early.rank):
                self._admit(one)
            self.early.clear()

    def _admit(self, guest: Guest) -> None:
        """Take a process in, unless its rank is taken or it brings something else than process 0."""
        if (taken := self.guests.get(guest.rank)) is not None:
            return guest.link.say(
                refused=f"rank {guest.rank} is taken by a process on {taken.host}: give each process a rank of its own"
            )
        self.guests[guest.rank] = guest
        for name, theirs in self.guests[0].facts.items():
            if (mine := guest.facts.get(name)) != theirs:
                del self.guests[guest.rank]
                return guest.link.say(
                    refused=f"process {guest.rank} has {name} {mine}, process 0 has {theirs}: all processes need the "
                    "same versions and the same run file"
                )

    def start(self, service: str) -> None:
        """Let all begin, and watch them."""
        for guest in self.guests.values():
            guest.link.say(service=service)
            threading.Thread(target=self._watch, args=(guest,), daemon=True, name=f"watch {guest.rank}").start()

    def close(self) -> None:
        """Hang up on everybody."""
        self.listener.close()
        for guest in self.guests.values():
            guest.link.close()

    def _watch(self, guest: Guest) -> None:
        """Tell the others when a line is cut before its process is done."""
        why = "it ended without a word; was it killed, or did its machine stop?"
        while (said := guest.link.hear()) is not None:
            if said.get("done"):
                guest.done = True
            why = said.get("error", why)
        if guest.done:
            return
        with self.lock:
            for other in self.guests.values():
                if other is not guest:
                    other.link.say(gone=f"process {guest.rank} on {guest.host} is gone ({why})")


def keep(
    processes: int, ranks: Sequence[int], coordinator: str | None, command: Callable[[int, str], list[str]],
    wait: float = WAIT,
) -> int:  # fmt: skip
    """Start the processes with these ranks here, and return the exit code of the run.

    `command(rank, address)` is how a process is started. Without a coordinator all are here, on a port that is free.
    """
    meeting = None
    if 0 in ranks:
        meeting = Meeting.at(*(parse_address(coordinator) if coordinator else ("127.0.0.1", 0)), processes)
    address = meeting.address if meeting is not None else coordinator
    assert address is not None
    children = {rank: _start(rank, command(rank, address)) for rank in ranks}
    relays = [_relay(rank, child) for rank, child in children.items()]
    try:
        service = None  # it runs as long as it is held
        if meeting is not None:
            if meeting.welcome(wait, lambda: all(one.poll() is None for one in children.values())):
                service, where = _service(meeting)
                meeting.start(where)
            else:  # one of them could not even start: there is nothing that the others could store
                _end(children)
        code = _wait(children)
        del service
        return code
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt):
            _end(children)
        raise
    finally:
        for child in children.values():
            child.wait()
        if meeting is not None:
            meeting.close()
        for relay in relays:
            relay.join(5.0)


def _wait(children: dict[int, subprocess.Popen[str]]) -> int:
    """Wait for all; after one failed, for a while only."""
    deadline = None
    while True:
        codes = [child.poll() for child in children.values()]
        failed = [code for code in codes if code]
        if None not in codes:
            named = [code for code in failed if code not in (LOST, -signal.SIGKILL)]
            return abs(named[0]) if named else LOST if failed else 0
        if failed and deadline is None:
            deadline = time.monotonic() + _GRACE
        if deadline is not None and time.monotonic() > deadline:
            _end(children)
        try:
            time.sleep(0.1)
        except KeyboardInterrupt:  # the processes that we started got Ctrl-C too
            deadline = time.monotonic() + _GRACE


def _end(children: dict[int, subprocess.Popen[str]]) -> None:
    for child in children.values():
        child.kill()


def _service(meeting: Meeting) -> tuple[Any, str]:
    """Run JAX's coordination service on a free port of the same machine."""
    host = meeting.listener.getsockname()[0]
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    return coordination.serve(f"{host}:{port}", meeting.processes), f"{host}:{port}"


def _start(rank: int, command: list[str]) -> subprocess.Popen[str]:
    """Start a process. The leader writes to our standard error itself, so its progress bar is that of one process."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if sys.stdout.isatty():  # its table is as wide as this terminal
        environment.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
    errors = subprocess.PIPE if rank else None
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
    )


def _relay(rank: int, child: subprocess.Popen[str]) -> threading.Thread:
    """Show what a process prints: the leader's as it is, the others' with their rank."""
    mark = f"[{rank}] " if rank else ""

    def pump(source: Any, target: Any) -> None:
        for line in source or ():
            if not line.startswith(_NOISE):
                target.write(mark + line)
                target.flush()

    def both() -> None:
        errors = threading.Thread(target=pump, args=(child.stderr, sys.stderr))
        errors.start()
        pump(child.stdout, sys.stdout)
        errors.join()

    thread = threading.Thread(target=both, daemon=True)
    thread.start()
    return thread
