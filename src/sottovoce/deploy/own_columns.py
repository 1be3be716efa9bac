"""Read a site's own columns: its rows by their ids, its block of features, and the labels if it has them.

Example: a bank's table has the columns customer, income, debt and default. The run file says that the bank holds income
and debt, and the label, default. A shop's table has customer and purchases. Neither reads a column of the other.
"""

import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce import data as datasets
from sottovoce.data import Declarations
from sottovoce.data.frames import as_frame
from sottovoce.data.notes import holder_notes, tell_holder
from sottovoce.data.values import is_missing, texts_of
from sottovoce.deploy.order import Seat
from sottovoce.files import read_facts, write_facts
from sottovoce.privacy.labels import Labels
from sottovoce.privacy.ledger import Budget
from sottovoce.shown import Shown

_KIND = "the declaration of a label store"
_SHORTEST = 32  # letters of a key: 16 bytes


@dataclass(frozen=True, eq=False, repr=False)
class OwnRows(Shown):
    """Hold a site's own part of a run over columns, in the order of its table: rows without an id are left out."""

    ids: list[str]
    block: np.ndarray
    label: np.ndarray | None = None
    words: tuple[str, ...] = ()


def read(seat: Seat) -> OwnRows:
    """Read this site's own columns, as the run file declares them."""
    data, asked = seat.case.data, seat.case.columns
    assert asked is not None
    assert asked.holders is not None
    assert data.id is not None
    assert data.label is not None
    assert seat.policy.data.file is not None
    frame, own = as_frame(seat.home / seat.policy.data.file), asked.holders[seat.name]
    frame.require(data.id)
    texts = texts_of(frame[data.id])
    known = np.flatnonzero(~is_missing(texts))
    ids = [unicodedata.normalize("NFC", str(one)) for one in texts[known]]
    words = f"declared and taken as public: ranges, categories and missing-value rules of {', '.join(data.columns)}"
    if seat.name != asked.active:
        declared = Declarations({name: data.columns[name] for name in own}, frame.source)
        values = declared.read(frame)
        tell_holder(holder_notes(frame.source, values, frame.notes))
        return OwnRows(ids, declared.encode_read(values)[known], None, (words,))
    declared_too = {name: data.columns[name] for name in (*own, data.label)}
    table = datasets.table(frame, data.label, own, columns=declared_too).only(known)
    return OwnRows(ids, table.inputs, table.classes_of_rows, (words,))


def key(seat: Seat) -> bytes:
    """Return the secret that ids are keyed with, from the file that the policy names."""
    assert seat.policy.columns is not None
    path = seat.home / seat.policy.columns.key
    try:
        said = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        said = ""
    if len(said) < _SHORTEST:
        raise ValueError(
            f"{path} has no key: agree with the other sites on {_SHORTEST} letters or more, by another way than this "
            "federation, and write them there"
        )
    return said.encode()


def store(seat: Seat, own: OwnRows) -> tuple[Labels, np.ndarray]:
    """Return the store of all labels that this site has, and the place of each of its rows in it.

    One store serves all runs, whichever rows they join: what they draw and spend adds up per label. A simulation has a
    store of its own, which is forgotten, so that no deployed run uses labels that a public seed drew.
    """
    assert own.label is not None
    order = np.argsort(own.ids)
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    label, name, policy = own.label[order], str(seat.case.data.label), seat.policy
    declared = Declarations(seat.case.data.columns)[name]
    classes = len(declared.names)
    if seat.deploy.noise == "simulated":
        return Labels(label, classes, seed=seat.case.run.seeds[0]), places
    path = seat.home / f"labels-{re.sub(r'[^A-Za-z0-9]+', '-', name)}.npz"
    _require_same(path.with_suffix(".json"), name, declared.to_dict())
    budget = Budget(policy.budget, policy.delta)
    return Labels(label, classes, path=path, ids=np.array(own.ids)[order], budget=budget), places


def _require_same(path: Path, label: str, declared: dict[str, Any]) -> None:
    """Refuse another column, other classes, or another order of them, than what labels were drawn with."""
    facts = {"label": label, "declared": [list(pair) for pair in _flat(declared)]}
    if not path.exists():
        return write_facts(path, _KIND, 1, facts, private=True)
    known = read_facts(path, _KIND, 1, "restore it from a copy")
    if any(known[name] != value for name, value in facts.items()):
        raise ValueError(
            f"labels of {known['label']} were drawn with another declaration, {known['declared']}: declare the same "
            "values in the same order, because what was drawn is used again"
        )


def _flat(declared: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return a declaration as a list of pairs, because the order of its values counts."""
    return [*declared["categories"].items(), *((key, held) for key, held in declared.items() if key != "categories")]
