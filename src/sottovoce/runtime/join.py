"""Join the rows of several parties by private set intersection, over any transport.

The active party asks one party after the other which of its ids the other has; those that are left are common to all.
Then each other party asks the active one which of its ids are among these. Both sides blind their ids with secret keys
of their own (elliptic-curve Diffie-Hellman, by the library openmined-psi), and ids are keyed before that
(`sottovoce.data.join`). So no message holds an id, nor a keyed one: they hold points of a curve.

Who learns what, if all follow the protocol:

- everybody: which of its ids all parties have in common, and how many these are;
- each other party: how long the active party's list is;
- the active party: how long each list is, which of its ids party 1 has, which of *those* party 2 has, and so on. With
  two parties this is the common list. With more, it is more: number the parties so that the one whose overlap with the
  active party may be known comes first. Nobody else learns an intersection that is not the common one.

What is not protected: a party may put ids into its list that it does not have, and learn whether the others have them.
A party that answers wrongly spoils the join, and learns no id by that: the parties then end with different rows, and
`LoneParty.agree` refuses to start. The intersection has no epsilon: the statement says so.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from sottovoce.data.join import SIZE, Joined, joined, token, tokens
from sottovoce.runtime.frames import frame_size
from sottovoce.runtime.transport import Expected, Message, MessageId, Transport

LONGEST = 1 << 22  # ids of another party: what is longer is refused before it is computed with
_BLINDED = 40  # bytes of a blinded id in a message: a point of the curve, and its length
_ORDER = int("ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551", 16)  # of the curve P-256


def join_rows(
    ids: Any, key: bytes, transport: Transport, *, me: int, active: int, parties: int, run: str = "",
    secret: bytes | None = None, longest: int = LONGEST,
) -> Joined:  # fmt: skip
    """Return the rows that all parties have, in an order that all share; every party calls this at the same time.

    Args:
        ids: one's own, one per row: texts or whole numbers.
        key: a secret that the parties agreed on by another way, at least 16 bytes.
        transport: to the other parties.
        me, active, parties: one's number, that of the party that leads, and how many there are.
        run: the name that messages carry.
        secret: this party's own, from which its blinding keys follow. A party that keeps it sends the same bytes again
            after a restart, so that a join goes on. Never use it for two joins. Default: a new one.
        longest: refuse another party's list if it has more ids.

    >>> from types import SimpleNamespace
    >>> from sottovoce.runtime.threads import on_threads, queues
    >>> held = [["ann", "bob", "eve"], ["eve", "ann", "zoe"]]
    >>> def life(party, transport):
    ...     return join_rows(held[party.me], b"k" * 32, transport, me=party.me, active=0, parties=2)
    >>> found = on_threads([SimpleNamespace(me=0), SimpleNamespace(me=1)], queues(2), life)
    >>> [sorted(one.ids.tolist()) for one in found], found[0].order == found[1].order
    ([['ann', 'eve'], ['ann', 'eve']], True)
    """
    own = tokens(ids, key)
    made = _Maker(_library(), secret or secrets.token_bytes(32), longest)
    line = _Line(transport, me, run)
    check = token(key, run, "check")
    if me == active:
        common = _lead(made, own, check, line, [number for number in range(parties) if number != me])
    else:
        common = _follow(made, own, check, line, active)
    return joined(ids, own, common, _words(len(common), active, parties))


def expected_of_join(own: int, longest: int) -> Expected:
    """Return what the messages of a join are at most: the others' two lists, and the answer about our own ids.

    >>> expected_of_join(1000, 10**6).largest < 81_000_000
    True
    """
    return Expected(frame_size([np.zeros(SIZE, np.uint8)] * 3) + _BLINDED * (own + 2 * longest), 3)


def _lead(made: "_Maker", own: np.ndarray, check: np.ndarray, line: "_Line", others: Sequence[int]) -> np.ndarray:
    """Ask one party after the other, then answer all; return the common tokens."""
    left, requests = own, {}
    for other in others:
        # Always as many tokens as own ids: fewer would tell a party how many are left after the parties before it.
        blind = made.numbers(f"fill {other}").integers(0, 256, (len(own) - len(left), SIZE), np.uint8)
        asking = _Asking(made, f"ask {other}", np.concatenate([left, blind]))
        line.send(other, "join: question", check, asking.request)
        setup, response, requests[other] = line.heard(other, "join: answer and question", 3)
        left = asking.found(other, setup, response, left)
    for other in others:
        answering = _Answering(made, f"answer {other}", left)
        line.send(other, "join: answer", answering.setup, answering.response(other, requests[other]))
    return left


def _follow(made: "_Maker", own: np.ndarray, check: np.ndarray, line: "_Line", active: int) -> np.ndarray:
    """Answer the active party, then ask it; return the common tokens."""
    answering, asking = _Answering(made, "answer", own), _Asking(made, "ask", own)  # as the active one does
    theirs, request = line.heard(active, "join: question", 2)
    if not np.array_equal(theirs, check):
        raise ValueError(f"party {active} has another key for ids: all parties need the same one")
    response = answering.response(active, request)
    line.send(active, "join: answer and question", answering.setup, response, asking.request)
    setup, response = line.heard(active, "join: answer", 2)
    return asking.found(active, setup, response, own)


class _Maker:
    """Make both ends of the protocol, each with a blinding key of its own that follows from a secret."""

    def __init__(self, psi: Any, secret: bytes, longest: int) -> None:
        self.psi, self._secret, self.longest = psi, secret, longest

    def key(self, purpose: str) -> bytes:
        """Return a blinding key: a number below the order of the curve, and not zero."""
        drawn = hmac.digest(self._secret, f"sottovoce/join/{purpose}".encode(), hashlib.sha512)
        return (1 + int.from_bytes(drawn, "big") % (_ORDER - 1)).to_bytes(32, "big")

    def numbers(self, purpose: str) -> np.random.Generator:
        """Return a source of numbers that nobody else can guess."""
        return np.random.default_rng(int.from_bytes(self.key(f"numbers/{purpose}"), "big"))

    def few(self, listed: Any) -> None:
        """Refuse a list that is too long."""
        if len(listed.encrypted_elements) > self.longest:
            raise ValueError(f"{len(listed.encrypted_elements)} ids, and at most {self.longest} are agreed to")


class _Asking:
    """Ask which of one's own tokens the other party has, as the client of the protocol."""

    def __init__(self, made: _Maker, purpose: str, held: np.ndarray) -> None:
        self._made, self._psi = made, made.psi
        self._client = made.psi.client.CreateFromKey(made.key(purpose), True)
        # The place of an id in the list must reveal nothing.
        self._asked = held[made.numbers(purpose).permutation(len(held))]
        self.request = _packed(self._client.CreateRequest(_texts(self._asked)))

    def found(self, other: int, setup: np.ndarray, response: np.ndarray, held: np.ndarray) -> np.ndarray:
        """Return those of the held tokens that the other has, from its answer."""
        with _refusing(other):
            answer = (
                self._psi.ServerSetup.FromString(setup.tobytes()),
                self._psi.Response.FromString(response.tobytes()),
            )
            if len(answer[1].encrypted_elements) != len(self._asked) or answer[0].WhichOneof("data_structure") != "raw":
                raise ValueError("an answer to another question")
            self._made.few(answer[0].raw)
            both = {self._asked[at].tobytes() for at in self._client.GetIntersection(*answer)}
        return held[np.array([one.tobytes() in both for one in held], bool)]


class _Answering:
    """Answer which of another's tokens are among one's own, as the server of the protocol."""

    def __init__(self, made: _Maker, purpose: str, held: np.ndarray) -> None:
        self._made, psi = made, made.psi
        self._server = psi.server.CreateFromKey(made.key(purpose), True)
        # Raw: no false positives. The library sorts the blinded ids, so that their places tell nothing.
        self.setup = _packed(self._server.CreateSetupMessage(0.0, 1, _texts(held), psi.DataStructure.RAW))

    def response(self, other: int, request: np.ndarray) -> np.ndarray:
        """Return the other's blinded ids, blinded once more."""
        with _refusing(other):
            asked = self._made.psi.Request.FromString(request.tobytes())
            self._made.few(asked)
            return _packed(self._server.ProcessRequest(asked))


class _Line:
    """Send and receive the messages of one join: all are disclosures."""

    def __init__(self, transport: Transport, me: int, run: str) -> None:
        self.transport, self.me, self.run = transport, me, run

    def send(self, hearer: int, tag: str, *values: np.ndarray) -> None:
        self.transport.send(hearer, Message(MessageId(self.run, 0, self.me, tag), values, "disclosure"))

    def heard(self, sender: int, tag: str, count: int) -> list[np.ndarray]:
        """Return the strings of bytes of a message, if there are `count`."""
        wanted = MessageId(self.run, 0, sender, tag)
        said = [np.asarray(value) for value in self.transport.receive(self.me, wanted)]
        if [(one.dtype, one.ndim) for one in said] != [(np.uint8, 1)] * count:
            raise ValueError(f"{wanted} was refused: it is not what a party of this version sends")
        return said


@contextmanager
def _refusing(other: int) -> Iterator[None]:
    """Say whose message it was that the library cannot read, without its content."""
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"a message of party {other} in the join was refused ({type(error).__name__}: {error!s:.100}): it is "
            "damaged, too long, or made by another version of openmined-psi"
        ) from error


def _texts(found: np.ndarray) -> list[str]:
    return [one.tobytes().hex() for one in found]


def _packed(message: Any) -> np.ndarray:
    return np.frombuffer(message.SerializeToString(), np.uint8)


def _library() -> Any:
    try:
        import private_set_intersection.python as psi
    except ImportError as error:
        raise ImportError(
            "joining rows privately needs openmined-psi: pip install 'sottovoce[deploy]'. Where ids need not be "
            "hidden, sottovoce.data.columns.align joins them in one place"
        ) from error
    return psi


def _words(common: int, active: int, parties: int) -> tuple[str, ...]:
    """Say what a join discloses, for the statement."""
    said = [
        f"disclosed without an epsilon, by the private join of the rows: to all parties, which {common} rows they have "
        f"in common; to party {active}, how many rows each other party has, and to each of these, how many it has"
    ]
    if parties > 2:
        said.append(
            f"disclosed without an epsilon, by the private join of the rows: to party {active}, which of its rows the "
            "first other party has, which of those the next one has too, and so on"
        )
    return tuple(said)
