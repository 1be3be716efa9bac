"""Name rows by keyed ids, and order the rows that several parties have in common.

Example: a bank and a shop agree on a key. Each turns its customers' ids into tokens, ``HMAC(key, id)``. Without the key
a token tells nothing, and cannot be found by trying all ids. The common rows, found by private set intersection
(`sottovoce.runtime.join`), are put in the order of their tokens: both get the same order, which has nothing to do with
the ids.

>>> key = bytes(16)
>>> bank, shop = ["ann", "bob", "zoë"], ["zoë", "eve", "ann"]
>>> common = tokens(["ann", "zoë"], key)
>>> [held[row] for held in (bank, shop) for row in joined(held, tokens(held, key), common).rows]
['ann', 'zoë', 'ann', 'zoë']
"""

import hashlib
import hmac
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from sottovoce.data.columns import Columns
from sottovoce.data.parts import Facts
from sottovoce.shown import Shown

SIZE = 32  # bytes of a token
_SHORTEST = 16  # bytes of a key
_SHOWN = 3  # ids named in an error, which only their holder sees


@dataclass(frozen=True, eq=False, repr=False)
class Joined(Shown):
    """Hold the rows that all parties have: the numbers of one's own rows, in the order that all agreed on.

    `order` is a digest of the order, which all parties share; `words` say in a statement what the join disclosed.
    """

    rows: np.ndarray
    ids: np.ndarray
    order: str
    words: tuple[str, ...] = ()

    def pick(self, held: Any) -> Any:
        """Return the common rows of something that this party holds, such as labels."""
        return (sp.csr_array(held) if sp.issparse(held) else np.asarray(held))[self.rows]

    def columns(self, block: Any) -> Columns:
        """Return the common rows of this party's block, with what the join disclosed."""
        return Columns([self.pick(block)], ids=self.ids, facts=Facts(words=self.words))


def tokens(ids: Any, key: bytes) -> np.ndarray:
    """Return one token per id, (ids, 32) bytes; refuse ids that name two rows.

    Ids are texts or whole numbers. A number and its decimal digits are the same id, and so are two spellings of a text
    that Unicode calls canonically equal; nothing else is changed.

    >>> tokens(["7", "Ω"], b"0123456789abcdef").shape
    (2, 32)
    >>> tokens([7, "7"], b"0123456789abcdef")
    Traceback (most recent call last):
    ...
    ValueError: 1 ids name more than one row ('7'): make them unique
    """
    if not isinstance(key, bytes) or len(key) < _SHORTEST:
        raise ValueError(f"the key of a join needs at least {_SHORTEST} bytes: agree on secrets.token_bytes(32)")
    listed = list(ids)
    if not listed:
        raise ValueError("there are no ids: a join needs at least one row")
    texts = [_text(one) for one in listed]
    if len(set(texts)) < len(texts):
        seen: set[str] = set()
        twice = sorted({one for one in texts if one in seen or seen.add(one)})  # type: ignore[func-returns-value]
        named = ", ".join(map(repr, twice[:_SHOWN]))
        raise ValueError(f"{len(twice)} ids name more than one row ({named}): make them unique")
    return np.stack([token(key, text) for text in texts])


def token(key: bytes, text: str, purpose: str = "id") -> np.ndarray:
    """Return the keyed name of a text, as bytes; other purposes give unrelated names.

    >>> bool((token(b"k" * 16, "ann") == token(b"k" * 16, "ann", "check")).all())
    False
    """
    said = f"sottovoce/{purpose}/".encode() + text.encode()
    return np.frombuffer(hmac.digest(key, said, hashlib.sha256), np.uint8)


def joined(ids: Any, own: np.ndarray, common: np.ndarray, words: Sequence[str] = ()) -> Joined:
    """Return one's rows of the common tokens, which are some of one's own, in the order of the tokens.

    >>> joined([5, 6], tokens([5, 6], bytes(16)), np.empty((0, 32), np.uint8))
    Traceback (most recent call last):
    ...
    ValueError: no id is common to all parties: check that all spell their ids alike
    """
    if not len(common):
        raise ValueError("no id is common to all parties: check that all spell their ids alike")
    place = {one.tobytes(): row for row, one in enumerate(own)}
    named = sorted(one.tobytes() for one in common)
    rows = np.array([place[one] for one in named])
    kept = np.array([_text(one) for one in ids])[rows]
    return Joined(rows, kept, hashlib.sha256(b"".join(named)).hexdigest(), tuple(words))


def _text(one: Any) -> str:
    if isinstance(one, bool | np.bool_) or not isinstance(one, str | int | np.integer):
        raise TypeError(f"an id is of type {type(one).__name__}: give texts or whole numbers")
    return unicodedata.normalize("NFC", str(one))
