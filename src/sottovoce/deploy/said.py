"""List what a site says in a federation before its first charge, each with the reason why it may.

Until a site has charged its ledger (rows) or its labels (columns), nothing else leaves it: the transport looks up each
fact and each message here, and a site's answer to "how far are you" is made of the listed words alone. A site with
columns that holds no label never charges, so all that it ever says is in this list.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sottovoce.runtime.frames import Message, Standing

How = Literal["fact", "message", "question", "status"]


@dataclass(frozen=True)
class Saying:
    """Describe one thing that a site says: to whom it goes, why it may leave, and its standing if it is a message."""

    how: How
    name: str
    reason: str
    standing: "Standing | None" = None


_BLINDED = (
    "ids, blinded with keys that nobody else has: lengths and the common rows are disclosed, which the statement says"
)
_OF_FEATURES = "features are not covered: the policy names the columns, and the statement lists this as a disclosure"
SAYINGS = (
    Saying("fact", "sizes", "units by level, counted by the policy's own unit: the statement says so", "disclosure"),
    Saying("fact", "order", "a digest of the run file and of versions, which all sites have", "public"),
    Saying(
        "fact", "facts",
        "a digest of the run file, versions, told sizes, the traced program, epsilon and the joined rows' order: each "
        "site has them all already", "public",
    ),
    Saying("fact", "card", "32 random bytes and a fresh public key, for secure sums: made of nothing else", "public"),
    Saying("fact", "roster", "a digest of all sites' cards, told sizes and the run, which each site has", "public"),
    Saying("message", "join: question", _BLINDED, "disclosure"),
    Saying("message", "join: answer and question", _BLINDED, "disclosure"),
    Saying("message", "join: answer", _BLINDED, "disclosure"),
    Saying("message", "outputs", f"head outputs of a batch; {_OF_FEATURES}", "disclosure"),
    Saying("message", "scalars", f"a number per direction, made of head outputs; {_OF_FEATURES}", "disclosure"),
    Saying("message", "held-out", f"head outputs of held-out rows; {_OF_FEATURES}", "disclosure"),
    Saying("question", "run", "the run's name, which all sites have"),
    Saying("question", "fact", "which fact of a peer is asked for"),
    Saying("question", "after", "the place of the last message that was heard"),
    Saying("question", "stored", "the round of the last checkpoint"),
    Saying("question", "hold", "for how many seconds the peer may hold the question"),
    Saying("status", "state", "starting, running, done, paused or failed"),
    Saying("status", "steps", "of the run file"),
    Saying("status", "round", "how many messages a site has sent follows from the run file"),
    Saying("status", "waits for", "which site is silent"),
    Saying("status", "since", "when it was last waited for: time is not protected, and the documentation says so"),
    Saying(
        "status", "why",
        "which policy refused what, or the kind of an error without its text. A value never stops a reading; too few "
        "rows do, and two rows with one id of a join",
    ),
)  # fmt: skip
_KNOWN = {(one.how, one.name): one for one in SAYINGS}


def require(how: How, message: "Message") -> None:
    """Refuse a fact or a message that is not listed: it would leave before anything was charged.

    >>> import numpy as np
    >>> from sottovoce.runtime.frames import Message, MessageId
    >>> require("fact", Message(MessageId("r", 0, 0, "mean age"), (np.ones(1),), "public"))
    Traceback (most recent call last):
    ...
    RuntimeError: a site may not say the fact 'mean age' (public) before its first charge: ...
    """
    name = name_of(message.id.tag)
    known = _KNOWN.get((how, name))
    if known is None or known.standing != message.standing:
        raise RuntimeError(
            f"a site may not say the {how} {name!r} ({message.standing}) before its first charge: "
            "sottovoce/deploy/said.py lists what it may"
        )


def name_of(tag: str) -> str:
    """Return a message's name without its number and turns.

    >>> name_of("outputs 3, loop 1 turn 0"), name_of("join: question")
    ('outputs', 'join: question')
    """
    return re.sub(r" \d+(, loop \d+ turn \d+)*$", "", tag)


def listed(how: How, words: Mapping[str, Any]) -> dict[str, Any]:
    """Return words that a site says of itself, or asks, if all of them are listed."""
    for name in words:
        if (how, name) not in _KNOWN:
            raise RuntimeError(f"a site may not say {name!r} ({how}): sottovoce/deploy/said.py lists what it may")
    return dict(words)
