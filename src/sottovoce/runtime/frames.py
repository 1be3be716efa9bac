"""Write messages as bytes: one versioned binary format for every driver, checked whole before anything is made of it.

A frame begins with a head of fixed length: magic, version, standing, number of arrays, sender, round, and the lengths
of what follows, in network order. Then come the run's name, the tag, one description per array, the arrays' bytes,
little-endian, and a checksum of all that. Example: three float32 numbers, tag "mix 1", run "r", are 65 bytes.

The checksum finds damage, such as a message of which a power cut left the length and zeros. It does not stop forged
messages: TLS does, from party to party.

There is one way to write a message: other bytes are refused, so a stored frame can be compared bit by bit. The receiver
is not in the frame: all receivers of an exchange get the same message, and a connection knows who is at its other end.
"""

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np

Standing = Literal["release", "public", "disclosure"]
"""Why a message may leave: it follows from releases that the ledger holds; or from nothing private at all; or it
discloses something without a release, which the statement names. There is no fourth reason."""

STANDINGS: tuple[Standing, ...] = get_args(Standing)
VERSION = 3  # raised when frames change
_MAGIC = b"SVOC"
_HEAD = struct.Struct("!4sHBHIqHHQ")  # magic, version, standing, arrays, sender, round, lengths of run and tag, whole
_CHECK = struct.Struct("!I")  # CRC-32 of everything before it, at the end
_ARRAY = struct.Struct("!BB")  # kind of number, number of axes; then 8 bytes per axis
_KINDS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16",
          "float32", "float64", "complex64", "complex128")  # fmt: skip
_MOST_AXES = 32
_NAMES = 1 << 10  # bytes of a run's name and a tag, at most
NO_MESSAGE = "these bytes are no message"


@dataclass(frozen=True)
class MessageId:
    """Identify a message: the run, the round (step), the sender, and the exchange within the step (`tag`)."""

    run: str
    round: int
    sender: int
    tag: str

    def __str__(self) -> str:
        return f"{self.tag} of agent {self.sender} in round {self.round}"


@dataclass(frozen=True)
class Message:
    """Hold arrays under an id, with the reason why they may leave.

    >>> said = Message(MessageId("r", 3, 0, "mix 1"), (np.arange(3, dtype=np.float32),), "release")
    >>> back = Message.from_bytes(said.to_bytes())
    >>> str(back.id), back.values[0].tolist(), back.standing, len(said.to_bytes())
    ('mix 1 of agent 0 in round 3', [0.0, 1.0, 2.0], 'release', 65)
    """

    id: MessageId
    values: Sequence[Any]
    standing: Standing

    def __post_init__(self) -> None:
        if self.standing not in STANDINGS:
            raise ValueError(f"standing is {self.standing!r}: a message is one of {', '.join(STANDINGS)}")

    def to_bytes(self) -> bytes:
        """Return the frame."""
        run, tag = self.id.run.encode(), self.id.tag.encode()
        described, bodies = [], []
        for value in map(np.asarray, self.values):
            name = str(value.dtype)
            if name not in _KINDS:
                raise ValueError(f"{self.id} holds numbers of type {name}: messages carry {', '.join(_KINDS)}")
            axes = struct.pack(f"!{value.ndim}Q", *value.shape)
            described.append(_ARRAY.pack(_KINDS.index(name), value.ndim) + axes)
            bodies.append(_swapped(np.ascontiguousarray(value)).tobytes())
        rest = b"".join([run, tag, *described, *bodies])
        standing, whole = STANDINGS.index(self.standing), _HEAD.size + len(rest) + _CHECK.size
        counts = (len(described), self.id.sender, self.id.round, len(run), len(tag), whole)
        head = _HEAD.pack(_MAGIC, VERSION, standing, *counts)
        return b"".join([head, rest, _CHECK.pack(zlib.crc32(rest, zlib.crc32(head)))])

    @classmethod
    def from_bytes(cls, data: bytes) -> "Message":
        """Read what `to_bytes` wrote; ValueError if the bytes are no message. No size in them is trusted."""
        try:
            return cls._read(memoryview(data))
        except (ValueError, struct.error, IndexError, OverflowError) as error:
            raise ValueError(f"{NO_MESSAGE} ({type(error).__name__}: {error!s:.100})") from None

    @classmethod
    def _read(cls, data: memoryview) -> "Message":
        magic, version, standing, count, sender, round, of_run, of_tag, whole = _HEAD.unpack_from(data)
        if (magic, version) != (_MAGIC, VERSION):
            raise ValueError(f"they begin with other letters, or have another version than {VERSION}")
        if whole != len(data):
            raise ValueError(f"{len(data)} bytes, where {whole} were announced")
        data, check = data[: -_CHECK.size], data[-_CHECK.size :]
        if _CHECK.unpack(check)[0] != zlib.crc32(data):
            raise ValueError("they are damaged: the checksum is another one")
        start = _HEAD.size + of_run + of_tag
        names = bytes(data[_HEAD.size : start])
        if len(names) < of_run + of_tag:
            raise ValueError("the names are cut")
        shapes = []
        for _ in range(count):
            number, axes = _ARRAY.unpack_from(data, start)
            if axes > _MOST_AXES:
                raise ValueError(f"{axes} axes")
            shapes.append((jnp.dtype(_KINDS[number]), struct.unpack_from(f"!{axes}Q", data, start + _ARRAY.size)))
            start += _ARRAY.size + 8 * axes
        if start + sum(kind.itemsize * math.prod(shape) for kind, shape in shapes) != len(data):
            raise ValueError("the arrays' sizes do not add up")
        values = []
        for kind, shape in shapes:
            size = kind.itemsize * math.prod(shape)
            if kind == np.bool_ and np.any(np.frombuffer(data[start : start + size], np.uint8) > 1):
                raise ValueError("a truth value that is neither 0 nor 1")
            values.append(_swapped(np.frombuffer(data[start : start + size], kind)).reshape(shape))
            start += size
        run, tag = names[:of_run].decode(), names[of_run:].decode()
        return cls(MessageId(run, round, sender, tag), tuple(values), STANDINGS[standing])


def frame_size(like: Sequence[Any]) -> int:
    """Return the most bytes of a message with arrays like these.

    >>> said = Message(MessageId("r", 3, 0, "mix 1"), (np.arange(3, dtype=np.float32),), "release")
    >>> len(said.to_bytes()) <= frame_size(said.values) < 3000
    True
    """
    arrays = sum(
        _ARRAY.size + 8 * len(one.shape) + jnp.dtype(one.dtype).itemsize * math.prod(one.shape) for one in like
    )
    return _HEAD.size + _NAMES + arrays + _CHECK.size


def fits(values: Sequence[Any], like: Sequence[Any]) -> bool:
    """Say whether arrays have the shapes and types that are expected.

    >>> fits([np.zeros(2)], [np.ones(2)]), fits([np.zeros(2)], [np.zeros(3)])
    (True, False)
    """
    return [(np.shape(one), one.dtype) for one in values] == [(np.shape(one), one.dtype) for one in like]


def finite(values: Sequence[Any]) -> bool:
    """Say whether no number is NaN or infinite.

    >>> finite([np.ones(2), np.arange(3)]), finite([np.array([1.0, np.nan])])
    (True, False)
    """
    return all(bool(np.isfinite(value).all()) for value in map(np.asarray, values))


_LITTLE = np.dtype("<i2") == np.dtype("i2")


def _swapped(value: np.ndarray) -> np.ndarray:
    """Return an array in little-endian order, in which frames hold numbers: on almost all machines, as it is."""
    return value if _LITTLE else value.byteswap()
