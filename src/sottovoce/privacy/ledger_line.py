"""Write and read the lines of a ledger's file. `sottovoce.privacy.ledger` says what the file protects.

What is stable. A ledger outlives the program that wrote it. Each line has a version, and a line of another version is
refused. Within a version these may never change: the names of the fields in a line, the names of the amplifications
(`AMPLIFICATIONS`) and of their fields (rate, size, batch), and the meaning of the numbers, which is that of
`sottovoce.privacy.mechanisms.Mechanism`. The names of Python classes are not in the file. A line, without its hash:

    {"version": 2, "run": "a", "start": 0, "stop": 10, "unit": "record", "attempt": 0, "adjacency": "zero-out",
     "owned": false, "groups": [{"level": "records", "agents": ["north"], "overflow": 0.0, "spent": [{"count": 10,
         "gaussian": 0.25, "laplace": [], "pure": 0.0, "sampling": {"kind": "poisson", "rate": 0.1}}]}]}

A line of a secure sum has ``"roster": ["north", ...], "colluding": 1`` in addition: what it says it spent holds against
that many of these parties.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sottovoce.privacy.mechanisms import (
    Adjacency,
    Amplification,
    Mechanism,
    NoAmplification,
    PoissonAmplification,
    RedrawAmplification,
    Spent,
    SubsetAmplification,
    check_adjacency,
)  # fmt: skip

VERSION = 2  # of a line in a ledger file, and of its head
AMPLIFICATIONS: dict[str, type[Amplification]] = {  # names in ledger files, which are stable, and the classes
    "none": NoAmplification,
    "poisson": PoissonAmplification,
    "without replacement": SubsetAmplification,
    "with replacement": RedrawAmplification,
}
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
_NAMES = {kind: name for name, kind in AMPLIFICATIONS.items()}


@dataclass(frozen=True)
class Group:
    """Name parties that spend the same on records of one level.

    The level is "records" for a problem with one record set. `overflow` is the chance that a padded batch did not fit.

    >>> Group("records", ("north", "south"), ()).agents
    ('north', 'south')
    """

    level: str
    agents: tuple[str, ...]
    spent: Spent
    overflow: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "agents", tuple(map(str, self.agents)))


@dataclass(frozen=True)
class Entry:
    """State what each group of parties spends in the steps `start` to `stop` - 1 of a run."""

    run: str
    start: int
    stop: int
    groups: tuple[Group, ...]
    unit: str = "record"  # whose data is protected: epsilons of records and of larger units do not compose
    attempt: int = 0  # how often the stretch was drawn before: deployed noise cannot be repeated
    adjacency: Adjacency = "replace-one"  # that the run states
    owned: bool = False  # whether the ledger is kept by the one party in the groups
    roster: tuple[str, ...] = ()  # of a secure sum: all who took part in it
    colluding: int = 0  # and how many of them may pool what they know

    @property
    def key(self) -> tuple[str, int, int, int]:
        """Return what makes it the same entry."""
        return self.run, self.start, self.stop, self.attempt

    @property
    def names(self) -> frozenset[str]:
        """Return the parties that it charges."""
        return frozenset(name for group in self.groups for name in group.agents)


def digest(line: bytes) -> str:
    """Return the hash of a line or a file, which changes when its content does.

    >>> digest(b"")[:8]
    'e3b0c442'
    """
    return hashlib.sha256(line).hexdigest()


def content(path: Path) -> bytes:
    """Return what is in a file, nothing if it does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): give the path of a ledger file") from error


def read_head(path: Path) -> tuple[int, str] | None:
    """Return the number of lines and the hash of the last one, None if there is no head."""
    if not path.exists():
        return None
    try:
        facts = json.loads(content(path))
        version, lines, last = facts["version"], facts["lines"], facts["last"]
        if version != VERSION or type(lines) is not int or lines < 0 or not isinstance(last, str):
            raise ValueError(f"version {version!r}, {lines!r} lines")
    except _MALFORMED as error:
        raise ValueError(refusal(f"{path} is not the head of a ledger ({_said(error)})")) from error
    return lines, last


def read_line(where: str, line: bytes, before: str) -> Entry:
    """Return the entry of a line that follows the one with hash `before`; refuse any other."""
    try:
        fields = json.loads(line)
        version = fields.pop("version")
        if version == VERSION:
            if fields.pop("before") != before:
                raise ValueError("it does not follow the line before")
            return decoded(fields)
    except _MALFORMED as error:
        raise ValueError(refusal(f"{where} is not a ledger entry ({_said(error)})")) from error
    raise ValueError(
        f"{where} has version {version!r}, and this program reads version {VERSION}: "
        "use the version of sottovoce that wrote it, or give another ledger"
    )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:120]


def refusal(what: str) -> str:
    """Return an error's text: what is wrong with the file, and what to do."""
    return f"{what}: the ledger was changed or cut. Restore it from a copy; without it nobody knows what was spent."


def encoded(entry: Entry) -> dict[str, Any]:
    """Return the fields of an entry's line."""
    groups = [
        {
            "level": group.level,
            "agents": list(group.agents),
            "overflow": group.overflow,
            "spent": encode_spent(group.spent),
        }
        for group in entry.groups
    ]
    names = ("run", "start", "stop", "unit", "attempt", "adjacency", "owned")
    sums = {"roster": list(entry.roster), "colluding": entry.colluding} if entry.roster else {}
    return {**{name: getattr(entry, name) for name in names}, **sums, "groups": groups}


def encode_spent(spent: Spent) -> list[dict[str, Any]]:
    """Return what was spent as plain data, in the stable names of ledger files.

    >>> decode_spent(encode_spent(((Mechanism(laplace=(0.5,)), 3),)))[0][1]
    3
    """
    return [
        {
            "count": count,
            "gaussian": mechanism.gaussian,
            "laplace": list(mechanism.laplace),
            "pure": mechanism.pure,
            "sampling": {"kind": _NAMES[type(mechanism.amplification)], **asdict(mechanism.amplification)},
        }
        for mechanism, count in spent
    ]


def decode_spent(listed: Iterable[dict[str, Any]]) -> Spent:
    """Return what `encode_spent` was given; an error says what is wrong."""
    found = []
    for item in listed:
        sampling = dict(item["sampling"])
        by = AMPLIFICATIONS[sampling.pop("kind")](**sampling)
        if _of(int, item["count"], "count") < 0:
            raise ValueError("count is negative")
        mechanism = Mechanism(float(item["gaussian"]), tuple(item["laplace"]), float(item["pure"]), by)
        found.append((mechanism, item["count"]))
    return tuple(found)


def _of(kind: type, value: Any, what: str) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{what} is {value!r}")
    return value


def decoded(data: dict[str, Any]) -> Entry:
    """Make an entry from a line's fields; an error says which field is wrong, so that nothing odd is composed."""

    def group(item: dict[str, Any]) -> Group:
        names = tuple(_of(str, name, "a name") for name in item["agents"])
        overflow = float(item["overflow"])
        if not 0 <= overflow <= 1:
            raise ValueError(f"overflow is {overflow}")
        return Group(_of(str, item["level"], "level"), names, decode_spent(item["spent"]), overflow)

    for name in ("start", "stop", "attempt"):
        _of(int, data[name], name)
    return Entry(
        _of(str, data["run"], "run"),
        data["start"],
        data["stop"],
        tuple(map(group, data["groups"])),
        _of(str, data["unit"], "unit"),
        data["attempt"],
        check_adjacency(data["adjacency"]),
        _of(bool, data["owned"], "owned"),
        tuple(_of(str, name, "a name") for name in data.get("roster", ())),
        _of(int, data.get("colluding", 0), "colluding"),
    )
