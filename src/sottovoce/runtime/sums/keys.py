"""Agree on a secret between each pair of members, and make keys and streams of it.

Example: a member shows its `Card` to the others. From its own secret key and another member's card it computes the 32
bytes that this pair alone knows. The library `cryptography` (OpenSSL) does the cryptography.
"""

import hashlib
import json
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sottovoce.naming import optional

BYTES = 32  # of a nonce, a key, a digest
_HAZMAT = "cryptography.hazmat.primitives"


@dataclass(frozen=True)
class Card:
    """Introduce a member to the others: its name, 32 fresh bytes, and a public key that serves one session.

    A card is no secret, but it must come over an authenticated line: a relay that could swap cards could read all.
    """

    name: str
    nonce: bytes
    public: bytes

    def __post_init__(self) -> None:
        if len(self.nonce) != BYTES or len(self.public) != BYTES:
            raise ValueError(f"the card of {self.name} cannot be read: does it run this version of sottovoce?")


@dataclass(frozen=True, repr=False)
class Secrets:
    """Hold what a member draws for one session from the operating system: it is shown to nobody.

    `noise` is the secret that its coins and its noise follow from.

    >>> north, south = Secrets.fresh("north"), Secrets.fresh("south")
    >>> north.shared(south.card) == south.shared(north.card)
    True
    """

    name: str
    nonce: bytes
    private: bytes
    noise: bytes

    @classmethod
    def fresh(cls, name: str) -> "Secrets":
        """Draw the secrets of a new session."""
        return cls(name, *(secrets.token_bytes(BYTES) for _ in range(3)))

    @cached_property
    def card(self) -> Card:
        """Return what the others may see."""
        return Card(self.name, self.nonce, self._key.public_key().public_bytes_raw())

    def shared(self, other: Card) -> bytes:
        """Return the secret of this member and another one."""
        x25519 = optional(f"{_HAZMAT}.asymmetric.x25519", "deploy", "a secure sum")
        agreed = self._key.exchange(x25519.X25519PublicKey.from_public_bytes(other.public))
        return derived(agreed, "pair", sorted((self.card.public.hex(), other.public.hex())))

    @property
    def _key(self) -> Any:
        x25519 = optional(f"{_HAZMAT}.asymmetric.x25519", "deploy", "a secure sum")
        return x25519.X25519PrivateKey.from_private_bytes(self.private)


def derived(secret: bytes, purpose: str, facts: Sequence[Any]) -> bytes:
    """Return a key by HKDF that is bound to a purpose and to facts (numbers, texts and lists of them).

    >>> derived(bytes(32), "mask", ["7 step: release 2"]) == derived(bytes(32), "mask", ["8 step: release 2"])
    False
    """
    hashes, hkdf = (optional(f"{_HAZMAT}.{name}", "deploy", "a secure sum") for name in ("hashes", "kdf.hkdf"))
    info = f"sottovoce sums 1: {purpose} ".encode() + digest(facts)
    return bytes(hkdf.HKDF(hashes.SHA256(), BYTES, None, info).derive(secret))


def digest(facts: Sequence[Any]) -> bytes:
    """Return the SHA-256 digest of facts; different facts have different texts.

    >>> digest(["a", 1]) == digest(["a1"])
    False
    """
    return hashlib.sha256(json.dumps(facts, separators=(",", ":")).encode()).digest()


def stream(key: bytes, size: int) -> bytes:
    """Return the first bytes of ChaCha20's stream by a key, from counter 0: a key serves one stream.

    >>> stream(bytes(32), 4).hex()
    '76b8e0ad'
    """
    return bytes(_cipher(key).update(bytes(size)))


def _cipher(key: bytes) -> Any:
    ciphers = optional(f"{_HAZMAT}.ciphers", "deploy", "a secure sum")
    return ciphers.Cipher(ciphers.algorithms.ChaCha20(key, bytes(16)), None).encryptor()


class Stream(random.Random):
    """Give random bits by ChaCha20, in place of the operating system: with one key always the same ones.

    >>> Stream(bytes(32)).randbytes(4) == stream(bytes(32), 4), Stream(bytes(32)).getrandbits(8) < 256
    (True, True)
    """

    def __new__(cls, key: bytes) -> "Stream":
        """Leave Python's own generator unseeded by the key."""
        return super().__new__(cls)

    def __init__(self, key: bytes) -> None:
        self._rest = _cipher(key)

    def randbytes(self, n: int) -> bytes:
        """Return the next bytes."""
        return bytes(self._rest.update(bytes(n)))

    def getrandbits(self, k: int, /) -> int:
        """Return a number of k bits, from the next bytes."""
        size = (k + 7) // 8
        return int.from_bytes(self.randbytes(size), "little") >> (8 * size - k)

    def random(self) -> float:
        """Return a multiple of 2^-53 below 1."""
        return self.getrandbits(53) * 2.0**-53
