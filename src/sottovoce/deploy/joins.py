"""Count the joins that a site has taken part in, and keep what a join found for the run that goes on with it.

Example: a shop's policy agrees to 3 joins. Each join lets the other sites find out which ids of their choice the shop
has, so the fourth run is refused before anything is sent. A run that is resumed is the same join: it is counted once.
A run whose folder was removed meanwhile knows nothing of what it answered: it is another join, whatever its name.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.data.join import Joined
from sottovoce.files import locked, read_facts, write_facts

_BOOK, _COUNTED = "joins.json", "the list of a site's joins"
_FOUND, _KIND = "joined.json", "the rows that a join found"
_RESTORE = "restore it from a copy, without it nobody knows how often rows were joined"


def count(home: Path, name: str, run: str, folder: str, sites: Sequence[str], most: int) -> None:
    """Write down that a run joins rows, before anything is sent; PermissionError if there were too many.

    `folder` is the random name of the run's folder here, which a folder that is made again does not have.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as home:
    ...     for folder in ("a1", "a1", "b2"):
    ...         count(Path(home), "shop", "one", folder, ["bank", "shop"], most=1)
    Traceback (most recent call last):
    ...
    PermissionError: the policy of shop does not agree to another join: 1 of 1 ... raise columns.joins in policy.toml
    """
    path = home / _BOOK
    with locked(path, writing=True):
        require(home, name, run, folder, most)
        known = taken(home)
        if not _counted(known, run, folder):
            now = {
                "run": run,
                "folder": folder,
                "with": [site for site in sites if site != name],
                "time": time.strftime("%F %T"),
            }
            write_facts(path, _COUNTED, 1, {"joins": [*known, now]}, private=True)


def require(home: Path, name: str, run: str, folder: str, most: int) -> None:
    """Refuse one join too many; nothing is written down."""
    known = taken(home)
    if not _counted(known, run, folder) and len(known) >= most:
        raise PermissionError(
            f"the policy of {name} does not agree to another join: {len(known)} of {most} took place; raise "
            "columns.joins in policy.toml"
        )


def _counted(known: Sequence[dict[str, Any]], run: str, folder: str) -> bool:
    return (run, folder) in [(one["run"], one["folder"]) for one in known]


def taken(home: Path) -> list[dict[str, Any]]:
    """Return the joins that took place."""
    path = home / _BOOK
    return list(read_facts(path, _COUNTED, 1, _RESTORE)["joins"]) if path.exists() else []


def keep(folder: Path, joined: Joined) -> None:
    """Store what a join found, in the folder of its run."""
    facts = {"ids": joined.ids.tolist(), "order": joined.order, "words": joined.words}
    write_facts(folder / _FOUND, _KIND, 1, facts, private=True)


def kept(folder: Path, ids: Sequence[str]) -> Joined:
    """Return what a join found, for the rows that this site has now; ValueError if one is gone."""
    facts = read_facts(folder / _FOUND, _KIND, 1, "start a new run")
    place = {one: row for row, one in enumerate(ids)}
    if gone := sum(one not in place for one in facts["ids"]):
        raise ValueError(f"{gone} of the joined rows are no longer in the table: put them back, or start a new run")
    rows = np.array([place[one] for one in facts["ids"]])
    return Joined(rows, np.array(facts["ids"]), facts["order"], tuple(facts["words"]))
