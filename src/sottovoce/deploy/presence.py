"""Decide who is there in which round: the relay decides once, and everybody who asks gets the same answer.

Example: "south" falls silent. A neighbour whose deadline is over asks about round 7; the relay does not reach south
either, so south is away from round 7 on. Later south is back. It asks about itself, learns that it is away, and
computes its rounds alone, until it comes to a round that no party was told it misses, such as 31: from then on it is
there, for all.

So in each round the same parties exchange with each other, and a party that is away exchanges with nobody: averages
stay averages, sums stay sums. The one exception is the round in which a party leaves: its last message may have reached
some neighbours and not others.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sottovoce.files import write_atomically


@dataclass
class _Span:
    first: int
    told: int  # the last round for which a party got the answer that it is away
    end: int | None = None  # the first round in which it is there again


class Presence:
    """Decide who is away, for the relay.

    `round_of(name)` is the round in which a party was last seen, None if it is not reached.

    >>> seen = {"south": None}
    >>> presence = Presence(seen.get)
    >>> presence.away("south", 7, True, "north"), presence.away("south", 8, False, "mid")
    (True, True)
    >>> seen["south"] = 7
    >>> [presence.away("south", round, False, "south") for round in (7, 8, 9)]
    [True, True, False]
    >>> presence.away("south", 8, False, "north"), presence.away("south", 9, False, "north")
    (True, False)
    """

    def __init__(self, round_of: Callable[[str], int | None]) -> None:
        self._round_of = round_of
        self._spans: dict[str, list[_Span]] = {}
        self._lock = threading.Lock()

    def away(self, name: str, round: int, silent: bool, asker: str) -> bool:
        """Decide whether a party is away in a round, or repeat an earlier decision; who asks about itself is there."""
        with self._lock:
            spans = self._spans.setdefault(name, [])
            if any(span.end is not None and span.first <= round < span.end for span in spans):
                return True
            now = spans[-1] if spans and spans[-1].end is None else None
            seen = round if asker == name else self._round_of(name)
            if now is None:
                if silent and seen is None and not any(span.end is not None and round < span.end for span in spans):
                    spans.append(_Span(round, round))
                    return True
                return False
            if round < now.first:  # a party that is behind finds it silent too
                now.first = round if silent else now.first
                return silent
            if round > now.told and seen is not None and seen >= round:
                now.end = round
                return False
            now.told = max(now.told, round)
            return True


class Absences:
    """Record on disk who was away in which round, for one party: what is computed again must agree with it.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     Absences(Path(folder) / "absent.json").note("south", 7)
    ...     str(Absences(Path(folder) / "absent.json"))
    'south in round 7'
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        stored = json.loads(path.read_bytes()) if path.exists() else {}
        self._rounds: dict[str, list[int]] = {
            str(name): [int(one) for one in rounds] for name, rounds in stored.items()
        }

    def known(self, name: str, round: int) -> bool:
        """Say whether a party is on record as away in a round."""
        return round in self._rounds.get(name, ())

    def note(self, name: str, round: int) -> None:
        """Write down that a party was away in a round."""
        if not self.known(name, round):
            self._rounds.setdefault(name, []).append(round)
            write_atomically(self._path, json.dumps(self._rounds).encode(), private=True)

    def __str__(self) -> str:
        return "; ".join(f"{name} in round {_listed(sorted(rounds))}" for name, rounds in sorted(self._rounds.items()))


def _listed(rounds: list[int]) -> str:
    """Return numbers as ranges: 1 to 3, 7."""
    found: list[list[int]] = []
    for one in rounds:
        if found and one == found[-1][1] + 1:
            found[-1][1] = one
        else:
            found.append([one, one])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in found)
