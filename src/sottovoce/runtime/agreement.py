"""Compare public facts before a run starts: one participant asks all others, and says what differs.

Example: a bank would run 100 steps and a shop 90. Both learn this, and nothing else is sent.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sottovoce.runtime.transport import Message, MessageId, Transport

_DIFFER = "the parties would not run the same thing ({}): all need the same run file, seed and joined rows"
_MOST = 1 << 16  # bytes: a longer message is no list of facts


def agree(
    transport: Transport, me: int, leader: int, others: Sequence[int], run: str, first: int, facts: Mapping[str, Any],
    ready: Callable[[], object],
) -> None:  # fmt: skip
    """Compare facts with the leader's before step `first`; ValueError, for all, names what differs.

    `ready` is what the leader does when all agree, before it gives its word: it charges, for example. If that fails,
    nobody starts.

    >>> from types import SimpleNamespace
    >>> from sottovoce.runtime.threads import on_threads, queues
    >>> bank, shop = SimpleNamespace(me=0, steps=100), SimpleNamespace(me=1, steps=90)
    >>> def life(party, transport):
    ...     agree(transport, party.me, 0, [1 - party.me], "", 0, {"steps": party.steps}, ready=lambda: None)
    >>> on_threads([bank, shop], queues(2), life)
    Traceback (most recent call last):
    ...
    ValueError: the parties would not run the same thing (steps is 90 at party 1 and 100 at party 0): all need ...
    """
    if me != leader:
        _say(transport, leader, MessageId(run, first, me, "facts"), dict(facts))
        differing = _heard(transport, me, MessageId(run, first, leader, "agreement"), list)
    else:
        told = {other: _heard(transport, me, MessageId(run, first, other, "facts"), dict) for other in others}
        differing = [
            f"{name} is {theirs.get(name)!r:.80} at party {other} and {fact!r:.80} at party {me}"
            for other, theirs in told.items()
            for name, fact in facts.items()
            if theirs.get(name) != fact
        ]
        if not differing:
            ready()
        for other in others:
            _say(transport, other, MessageId(run, first, me, "agreement"), differing)
    if differing:
        raise ValueError(_DIFFER.format("; ".join(map(str, differing))))


def _say(transport: Transport, hearer: int, name: MessageId, words: Any) -> None:
    said = np.frombuffer(json.dumps(words).encode(), np.uint8)
    transport.send(hearer, Message(name, (said,), "public"))  # public: it depends on nothing private


def _heard(transport: Transport, me: int, name: MessageId, kind: type) -> Any:
    said = [np.asarray(value) for value in transport.receive(me, name)]
    if [(value.dtype, value.ndim, value.size <= _MOST) for value in said] == [(np.uint8, 1, True)]:
        try:
            words = json.loads(said[0].tobytes())
        except (ValueError, RecursionError):
            words = None
        if isinstance(words, kind):
            return words
    raise ValueError(f"{name} was refused: it is not what a party of this version sends")
