"""Carry mutual TLS from party to party, inside the calls of a relay that is not trusted.

The relay (FLARE's server) hands over opaque bytes. Inside them two parties speak TLS 1.3 with the certificates of their
start-up kits, so the relay sees lengths and times, and can neither read, change, repeat nor reorder a message. Example:
agent 2 asks agent 3 for its next message; the first question costs one call more, for the handshake.

The cryptography is OpenSSL's, by Python's `ssl`; this file only carries its bytes. A call has a session (16 random
bytes) and a number. Whatever does not fit ends the session, and the next question begins another one.

Calls come on many threads, from whoever reaches this process, and an OpenSSL object is for one thread at a time. So a
call that comes during another one of its session ends the session. Only names on the list of peers get a session, each
a few, and what a session may hold is bounded: a call is one question, and a handshake has a size and a deadline.
"""

import hashlib
import logging
import secrets
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.runtime.transport import Seldom

IDENTITY = "identity"  # the folder of a site's kit with the certificate and the key of the TLS from site to site
_HEAD = struct.Struct("!16sI")  # session, number of the call
_LENGTH = struct.Struct("!Q")
_SESSIONS = 4  # sessions that are kept per peer, and as many whose handshake is not over
_HANDSHAKE = 1 << 16  # bytes of all calls of a handshake
_FLIGHTS = 4  # calls of a handshake: TLS 1.3 needs two
_SHAKEN = 60.0  # seconds for a handshake
_PIECE = 1 << 20
_log = logging.getLogger(__name__)


class Refused(ConnectionError):
    """Say that the other side is not who it should be, or did not answer as agreed."""


@dataclass(frozen=True)
class Identity:
    """Hold a party's certificate and key, the authority that signed them, and the peers that it talks to.

    `peers` maps a party's name to the SHA-256 fingerprint of its certificate: the party talks to nobody else, even if
    the same authority signed their certificate.
    """

    certificate: Path
    key: Path
    authority: Path
    peers: Mapping[str, str]

    @classmethod
    def of(cls, kit: Path, peers: Mapping[str, str]) -> "Identity":
        """Return the identity in a site's kit."""
        own = kit / IDENTITY
        return cls(own / "site.crt", own / "site.key", own / "authority.crt", peers)

    def context(self, server: bool) -> ssl.SSLContext:
        """Return the settings of one end: TLS 1.3, both sides show a certificate."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.check_hostname = False  # the name and the fingerprint are checked by `require`
        made.verify_mode = ssl.CERT_REQUIRED
        made.load_cert_chain(self.certificate, self.key)
        made.load_verify_locations(self.authority)
        if server:
            made.num_tickets = 0  # sessions are not resumed
        return made

    def require(self, line: ssl.SSLObject, name: str) -> None:
        """Refuse a peer whose certificate has another name, or is not on the list."""
        shown = line.getpeercert(binary_form=True) or b""
        facts: Mapping[str, Any] = line.getpeercert() or {}
        names = [value for entry in facts.get("subject", ()) for key, value in entry if key == "commonName"]
        if names != [name]:
            raise Refused(f"{name} showed a certificate of another name")
        if self.peers.get(name, "").replace(":", "").lower() != hashlib.sha256(shown).hexdigest():
            raise Refused(f"the certificate of {name} is not on the list of peers in the policy")


def fingerprint(certificate: Path) -> str:
    """Return the SHA-256 fingerprint of a certificate in a PEM file."""
    pem = certificate.read_text()
    end = "-----END CERTIFICATE-----"
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem[: pem.index(end) + len(end)])).hexdigest()


def sealed(size: int) -> int:
    """Return how many bytes a message of a size has inside TLS, at most: a record adds a few to 16 KiB.

    >>> sealed(0) < 100_000 < sealed(100_000)
    True
    """
    return size + size // 256 + _HANDSHAKE


class _End:
    """Hold one end of a TLS session whose bytes travel in calls."""

    def __init__(self, context: ssl.SSLContext, server: bool) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.line = context.wrap_bio(self.incoming, self.outgoing, server_side=server)
        self.number = 0
        self._got = bytearray()

    def shaken(self) -> bool:
        """Go on with the handshake; say whether it is done."""
        try:
            self.line.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def write(self, data: bytes) -> None:
        self.line.write(_LENGTH.pack(len(data)))
        for start in range(0, len(data), _PIECE):
            self.line.write(data[start : start + _PIECE])

    def read(self, limit: int) -> bytes | None:
        """Return what was received, or None if a part is missing; ValueError if more than the limit is announced."""
        with suppress(ssl.SSLWantReadError):
            while True:
                room = self._wanted(limit) - len(self._got)
                if room == 0:
                    break
                piece = self.line.read(min(room, _PIECE))
                if not piece:
                    raise ConnectionResetError("the session ended")
                self._got += piece
        if len(self._got) < _LENGTH.size or len(self._got) < self._wanted(limit):
            return None
        if self.line.pending() or self.incoming.pending:
            raise ValueError("a message has more bytes than it announced")
        said, self._got = bytes(self._got[_LENGTH.size :]), bytearray()
        return said

    def _wanted(self, limit: int) -> int:
        if len(self._got) < _LENGTH.size:
            return _LENGTH.size
        length = _LENGTH.unpack_from(self._got)[0]
        if length > limit:
            raise ValueError(f"{length} bytes are announced, and the limit is {limit}")
        return _LENGTH.size + length


class Line:
    """Ask one peer, one question at a time.

    `call(data, seconds)` sends bytes, and returns those of the answer; `limit()` is how long an answer may be now.
    """

    def __init__(
        self, identity: Identity, peer: str, call: Callable[[bytes, float], bytes], limit: Callable[[], int],
        seconds: float,
    ) -> None:  # fmt: skip
        self.peer = peer
        self._identity, self._context, self._call = identity, identity.context(server=False), call
        self._limit, self._seconds = limit, seconds
        self._end: _End | None = None
        self._session = b""

    def ask(self, question: bytes, seconds: float) -> bytes:
        """Return the peer's answer; OSError if there is none, after which the next question begins a new session."""
        try:
            end = self._end or self._opened()
            end.write(question)
            self._exchange(end, self._seconds + seconds)
            answer = end.read(self._limit())
            if answer is None:
                raise Refused(f"{self.peer} did not answer in full")
            return answer
        except (ssl.SSLError, ValueError) as error:
            self._end = None
            raise Refused(f"{self.peer} did not answer as agreed ({type(error).__name__}: {error!s:.100})") from error
        except BaseException:
            self._end = None
            raise

    def _opened(self) -> _End:
        end, self._session = _End(self._context, server=False), secrets.token_bytes(16)
        while not end.shaken():
            if end.number == _FLIGHTS:
                raise Refused(f"{self.peer} does not end its handshake")
            self._exchange(end, self._seconds)
        self._identity.require(end.line, self.peer)
        self._end = end
        return end

    def _exchange(self, end: _End, seconds: float) -> None:
        data = _HEAD.pack(self._session, end.number) + end.outgoing.read()
        end.number += 1
        answer = self._call(data, seconds)
        if not answer:
            raise Refused(f"{self.peer} ended the session")
        if len(answer) > sealed(self._limit()):
            raise Refused(f"{len(answer)} bytes came for an answer of {self.peer}, and its limit is {self._limit()}")
        end.incoming.write(answer)


class _Session(_End):
    """Hold the answering end of one session. `turn` is held during a call: there is one at a time."""

    def __init__(self, context: ssl.SSLContext, until: float) -> None:
        super().__init__(context, server=True)
        self.turn = threading.Lock()
        self.until = until  # when its handshake must be over
        self.known = self.over = False  # whether the other side's certificate was looked at; whether it has ended
        self._read = 0  # bytes of the handshake so far

    def take(self, data: bytes, limit: int) -> None:
        """Take the bytes of a call, if they are not too many for what may come now."""
        if self.known and len(data) > sealed(limit):
            raise Refused(f"a question of {len(data)} bytes")
        if not self.known:
            self._read += len(data)
            if self._read > _HANDSHAKE + sealed(limit) or self.number >= _FLIGHTS:
                raise Refused("a handshake of too many bytes or calls")
        self.incoming.write(data)


class Reception:
    """Answer the questions of all peers. `respond(peer, question)` gives the answer, and may take its time."""

    def __init__(
        self, identity: Identity, respond: Callable[[str, bytes], bytes], limit: int = 1 << 16,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._identity, self._context = identity, identity.context(server=True)
        self._respond, self._limit, self._clock = respond, limit, clock
        self._sessions: dict[str, dict[bytes, _Session]] = {peer: {} for peer in identity.peers}  # the oldest first
        self._lock, self._seldom = threading.Lock(), Seldom()

    def answer(self, caller: str, data: bytes) -> bytes:
        """Return the bytes that answer a call; none if the call is refused. The reason is logged, not its content."""
        session = b""
        try:
            session, number = _HEAD.unpack_from(data)
            end = self._of(caller, session, number)
            try:
                return self._answered(caller, end, number, data[_HEAD.size :])
            finally:
                end.turn.release()
        except (OSError, ValueError, struct.error) as error:
            self._end(caller, session)
            who = caller if caller in self._sessions else "somebody who is no peer"
            if (often := self._seldom.again(who)) is not None:
                said = error if isinstance(error, Refused) else type(error).__name__
                _log.warning("refused a call of %s: %s%s", who, said, often)
            return b""

    def _of(self, caller: str, session: bytes, number: int) -> _Session:
        """Return the session of a call, for this call alone."""
        if caller not in self._sessions:
            raise Refused("it is not on the list of peers in the policy")
        with self._lock:
            own = self._sessions[caller]
            if (end := own.get(session)) is None:
                if number != 0:
                    raise Refused("its session is not known")
                end = _Session(self._context, self._clock() + _SHAKEN)
                self._make_place(own, known=False)
                own[session] = end
            if not end.turn.acquire(blocking=False):
                raise Refused("a call came during another one")
            return end

    def _make_place(self, own: dict[bytes, _Session], known: bool) -> None:
        """End a peer's oldest session where there are too many; one that has shown no certificate ends no other."""
        late = [key for key, end in own.items() if not end.known and end.until < self._clock()]
        alike = [key for key, end in own.items() if end.known == known and key not in late]
        for key in [*late, *alike[: max(0, len(alike) + 1 - _SESSIONS)]]:
            own.pop(key).over = True

    def _end(self, caller: str, session: bytes) -> None:
        """End a session; a call that is being answered meanwhile gets no answer."""
        with self._lock:
            if (end := self._sessions.get(caller, {}).pop(session, None)) is not None:
                end.over = True

    def _answered(self, caller: str, end: _Session, number: int, data: bytes) -> bytes:
        if number != end.number:
            raise Refused("a call came twice, or out of turn")
        if not end.known and end.until < self._clock():
            raise Refused("its handshake takes too long")
        end.take(data, self._limit)
        if end.shaken():
            self._welcome(caller, end)
            question = end.read(self._limit)
            if question is None:
                raise Refused("a question came in parts")
            end.write(self._respond(caller, question))
        if end.over:
            raise Refused("its session was ended during the call")
        end.number += 1
        return end.outgoing.read()

    def _welcome(self, caller: str, end: _Session) -> None:
        """Look at the other side's certificate once."""
        if end.known:
            return
        self._identity.require(end.line, caller)
        with self._lock:
            if end.over:
                raise Refused("its session was ended during the call")
            self._make_place(self._sessions[caller], known=True)
            end.known = True
