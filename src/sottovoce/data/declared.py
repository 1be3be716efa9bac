"""Turn one's own table into records that a run can take: `table`.

>>> clinics = table(
...     {"age": [30, 61, 44, 58], "sick": ["no", "yes", "no", "yes"], "clinic": ["n", "n", "s", "s"]},
...     label="sick", party="clinic", columns={"age": Column(range=(0, 120)), "sick": Column(categories=["no", "yes"])},
... )
>>> [(part.name, len(part)) for part in clinics.parts()], clinics.names, clinics.classes
([('n', 2), ('s', 2)], ('age',), ('no', 'yes'))
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from sottovoce.data.columns import refuse_bought
from sottovoce.data.declarations import FLAG, Column, Declarations
from sottovoce.data.frames import Frame, as_frame
from sottovoce.data.notes import Note, absent_classes, holder_notes, tell_holder
from sottovoce.data.parts import Facts, Part, Records, note_purchases
from sottovoce.data.settle import Counter, Whose, settle, share_of
from sottovoce.data.split import By, split
from sottovoce.data.values import Reading, as_text, is_missing, texts_of
from sottovoce.shown import Shown

_IDS = re.compile(r"(^|[_. -])(id|ids|uuid|ssn|rownames|index|name|email|phone)($|[_. -])|Id$|ID$", re.ASCII)
_WHOLE = re.compile(r"(\d+)\.0+")  # how files write a whole number where another row has none
FEWEST = 10  # rows: with fewer, a guarantee for one of them leaves nothing to learn
_NAMED = 8  # features that are shown by name
REST = "other"  # the party of rows whose party is missing or not declared


@dataclass(frozen=True, eq=False, repr=False)
class DeclaredTable(Shown):
    """Hold the encoded rows of a table, and what is publicly known about them; made by `table`.

    `records` has `features` (float32, columns `names`, row norms at most `norm`), `label` (class numbers, or a number
    in [-1, 1]), and `weight` (in [0, 1]) if weights were named. A row whose label cannot be read has features that are
    not finite: it contributes nothing to a run, and the number of rows stays public.

    Parties with columns protect labels alone, so their features must not tell which labels can be read: they take
    `blocks` and `classes_of_rows`.
    """

    source: str
    records: Records
    columns: Declarations  # of the features
    label: str
    target: Column  # the declaration of the label
    facts: Facts
    owners: np.ndarray | None = None  # the number of each row's party
    parties: tuple[str, ...] = ()
    unit: np.ndarray | None = None
    share: float | None = None  # of class 1, if it was asked for
    inputs: np.ndarray = field(kw_only=True)  # the features of all rows, whatever their labels
    unknown: np.ndarray = field(kw_only=True)  # whether a row's label cannot be read
    notes: tuple[Note, ...] = ()  # for the holder of the rows only

    def __post_init__(self) -> None:
        note_purchases((self.records, self.inputs), self.facts)

    def __len__(self) -> int:
        return len(self.records["label"])

    def _told(self) -> list[tuple[str, str]]:
        label = f"{self.label}: {', '.join(self.classes)}" if self.classes else f"{self.label}: a number"
        named = ", ".join(list(self.columns)[:_NAMED]) + ", ..." * (len(self.columns) > _NAMED)
        parties = f"{len(self.parties)} in a column of their own" if self.parties else "not said"
        return [
            ("rows", f"{len(self)} from {self.source}"),
            ("label", label),
            ("features", f"{len(self.columns)} columns as {len(self.names)} numbers: {named}"),
            ("parties", parties),
            ("protected", self.facts.unit or "record"),
        ]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the encoded features."""
        return self.columns.names

    @property
    def norm(self) -> float:
        """Return the largest L2 norm that a row's features can have: a public fact."""
        return self.columns.norm

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes; none for a numeric label."""
        return () if self.target.numeric else self.target.names

    def only(self, rows: np.ndarray) -> "DeclaredTable":
        """Return some rows as a table of their own."""
        kept = {name: held[rows] for name, held in self.records.items()}
        owners, unit = (None if held is None else held[rows] for held in (self.owners, self.unit))
        inputs, unknown = self.inputs[rows], self.unknown[rows]
        return replace(self, records=kept, owners=owners, unit=unit, inputs=inputs, unknown=unknown)

    def hold_out(self, share: float, seed: int = 0) -> tuple["DeclaredTable", "DeclaredTable"]:
        """Return rows to train on and a random share of rows to test on; a unit stays whole, values play no part.

        Test rows without a readable label are left out. Figures that are measured on test rows have no noise: they are
        not covered by a privacy statement.
        """
        if not 0 < share < 1:
            raise ValueError(f"test is {share}: give the share of rows to hold out, between 0 and 1, or a file")
        item = np.arange(len(self)) if self.unit is None else np.unique(self.unit, return_inverse=True)[1].reshape(-1)
        count = int(item.max()) + 1
        if count < 2:
            raise ValueError(f"{self.source} has one unit: there is nothing to hold out")
        held = held_out(count, share, seed)
        return self.only(np.flatnonzero(~held[item])), self.only(np.flatnonzero(held[item])).readable()

    def readable(self) -> "DeclaredTable":
        """Return the rows whose label can be read: for test rows, which are not protected."""
        return self.only(np.flatnonzero(~self.unknown))

    def parts(self, agents: int = 1, by: By = "iid", seed: int = 0, **how: Any) -> list[Part]:
        """Return the parties' parts: by the column `party` if one was named, else rows split as `split` does."""
        if self.owners is None:
            held = self.records if self.unit is None else {**self.records, "unit": self.unit}
            made = split(held, agents, by, seed=seed, unit=None if self.unit is None else "unit", **how)
            facts = replace(self.facts, words=(*self.facts.words, *made[0].facts.words))
            return [replace(part, records=self.records, facts=facts) for part in made]
        rows = [np.flatnonzero(self.owners == number) for number in range(len(self.parties))]
        for name, own in zip(self.parties, rows):
            if not len(own):
                raise ValueError(f"{self.source}: party {name!r} has no rows here: remove it from the declared parties")
        return [Part(self.records, own, self.unit, name, self.facts) for name, own in zip(self.parties, rows)]

    def blocks(self, holders: Mapping[str, Sequence[str]]) -> list[np.ndarray]:
        """Return the encoded columns of each holder, for parties that hold different columns of the same rows.

        >>> held = table({"a": [1, 2], "b": [3, 4], "y": [0, 1]}, label="y", columns={
        ...     "a": Column(range=(0, 9)), "b": Column(range=(0, 9)), "y": Column(categories=[0, 1])})
        >>> [block.shape for block in held.blocks({"bank": ["a"], "shop": ["b"]})]
        [(2, 1), (2, 1)]
        """
        refuse_bought(self.facts)
        return [self.inputs[:, own] for own in self.columns.held_by(holders)]

    @property
    def classes_of_rows(self) -> np.ndarray:
        """Return the class of each row, for a label gate; labels that cannot be read are given the classes in turn.

        >>> held = table({"a": [1, 2, 3], "y": ["no", "?", "??"]}, label="y", columns={
        ...     "a": Column(range=(0, 4)), "y": Column(categories=["no", "yes"])})
        >>> held.classes_of_rows.tolist(), held.inputs.ravel().tolist()
        ([0, 1, 0], [-0.5, 0.0, 0.5])
        """
        refuse_bought(self.facts)
        turns = np.arange(len(self), dtype=np.int32) % len(self.classes)
        return np.where(self.unknown, turns, self.records["label"])


def table(
    data: Any,
    label: str,
    features: Sequence[str] | None = None,
    *,
    columns: Mapping[str, Any],
    party: str | None = None,
    unit: str | None = None,
    weight: str | None = None,
    private: Counter | None = None,
    share: Literal["public", "private"] | None = None,
    curves: Literal["public", "private"] | None = None,
) -> DeclaredTable:
    """Read a table by declarations: each row becomes numbers in known ranges, and no value can stop a run.

    A wrong name or a declaration that does not fit is an error that names the place. A value never is: see
    `sottovoce.data.values`. What did not fit is told to the person who runs this: `sottovoce.data.notes`.

    Args:
        data: the path of a CSV, Parquet or Arrow file, any DataFrame, or a mapping from names to columns.
        label: the column to predict: classes if its declaration has categories, a number if it has a range.
        features: the columns to predict from; by default all declared columns without another role.
        columns: declarations by column: `Column(range=(0, 120))`, `Column(categories=["F", "M"])`, or plain data.
        party: the column that says who holds the row; its values are the parties' names, which are public.
        unit: the column that says whose row it is: a patient with several rows is protected as a whole.
        weight: the column of weights; its declared range, from 0 or above, bounds them.
        private: how much may be spent on declarations that are "private", for example `sv.NoisyCounts(epsilon=0.1)`.
        share: read off the share of class 1 too, which the task "auc" needs.
        curves: give every feature of numbers a curve: "private" buys the ranks, "public" reads them off openly.
    """
    frame = as_frame(data)
    declared = Declarations(columns, frame.source)
    if not isinstance(label, str):
        raise ValueError(f"{frame.source}: label is {label!r}: name the column to predict, such as label='death'")
    roles = {"label": label, "party": party, "unit": unit, "weight": weight}
    _check_roles(frame, roles)
    chosen = _features(frame, declared, features, roles)
    declared.check(frame)
    for role, name in (("label", label), ("weight", weight)):
        if name is not None and name not in declared:
            raise ValueError(f"{frame.source}, column {name!r}: the {role} is not declared: {_remedy(name, role)}")
    if declared[label].missing == FLAG:
        raise ValueError(
            f"{frame.source}, column {label!r}: a label has no flag: name a class for missing, or leave it out"
        )
    _check_weight(frame, declared, weight)
    if share is not None and not (isinstance(share, str) and share in ("public", "private")):
        raise ValueError(f"share is {share!r}: choose 'public' or 'private', or leave it out")
    for role, name in roles.items():
        if name is not None and name in declared and declared[name].curve is not None:
            raise ValueError(
                f"{frame.source}, column {name!r} is the {role}, and curves are for features: remove its curve"
            )
    declared = declared.curved(chosen, curves)
    _check_private(frame, declared, private, share)
    if unit in declared:
        raise ValueError(
            f"{frame.source}, column {unit!r} is the unit, which has no declaration and is no feature: remove its line"
        )
    if share is not None and declared[label].source is None:
        _check_share(share, label, declared[label])  # before anything is bought
    owners, parties = _owners(frame, party, declared)
    ids = None if unit is None else _ids(frame, unit)
    alone = np.zeros(len(frame), int) if owners is None else owners
    whose = Whose(alone, _one_per_unit(owners, ids, len(frame)), parties, unit or "record")
    to_buy = label if share == "private" else None
    settled, facts, asked = settle(frame, declared.only([*chosen, label]), whose, private, to_buy)
    if asked.purchase is not None:
        asked.purchase.keep()
    target, inputs = settled[label], settled.only(chosen)
    if not target.numeric and len(target.names) < 2:
        raise ValueError(
            f"{frame.source}, column {label!r}: the label has one class only ({target.names[0]!r}): list all classes "
            "that can occur, at least two"
        )
    read = settled.read(frame)
    answer = read.pop(label)  # its notes come last
    records: Records = {"features": inputs.encode_read(read), "label": _labels(target, answer)}
    if weight is not None:
        weighed = declared.only([weight]).read(frame)[weight]
        read[weight] = weighed
        records["weight"] = (np.nan_to_num(weighed.values, nan=0.0) / declared[weight].bounds[1]).astype(np.float32)
    unknown = ~np.isfinite(answer.values) if target.numeric else _no_class(target, answer)
    whole = records["features"]
    if unknown.any():
        records["features"] = np.where(unknown[:, None], np.float32(np.nan), whole)
    read[label] = answer
    prior = None
    if share is not None:
        _check_share(share, label, target)
        prior = share_of(asked, records["label"], asked.questions - 1, share)
        how = "read off the rows and declared public" if share == "public" else "bought with noisy counts, charged"
        if private is not None and not private.draws and share == "private":
            how = "to be bought with noisy counts, charged, nothing is drawn before a run, here taken to be even"
        facts = replace(facts, words=(*facts.words, f"{how}: share of class {target.names[1]} ({prior:.3g})"))
        if asked.purchase is not None:
            asked.purchase.keep()
    planned = private is not None and not private.draws  # what is to be bought has stand-ins, which need not fit
    told = {name: one for name, one in read.items() if not (planned and declared[name].source == "private")}
    absent = absent_classes(frame.source, label, answer) if label in told else []
    notes = (*holder_notes(frame.source, told, frame.notes), *absent)
    tell_holder(notes)
    words = (_declared_words(declared, chosen, label, weight), *_party_words(party, parties), *facts.words)
    facts = replace(facts, norm=inputs.norm, unit=unit, words=words)
    return DeclaredTable(
        frame.source, records, inputs, label, target, facts, owners, parties, ids, prior,
        inputs=whole, unknown=unknown, notes=notes,
    )  # fmt: skip


def held_out(count: int, share: float, seed: int) -> np.ndarray:
    """Say of each of some items whether it is held out: a random share of them, at least one and not all.

    >>> int(held_out(10, 0.2, seed=0).sum())
    2
    """
    held = np.zeros(count, bool)
    held[np.random.default_rng(seed).permutation(count)[: min(max(round(share * count), 1), count - 1)]] = True
    return held


def _check_roles(frame: Frame, roles: Mapping[str, str | None]) -> None:
    taken: dict[str, str] = {}
    for role, name in roles.items():
        if name is None:
            continue
        frame.require(name)
        if name in taken:
            raise ValueError(f"{frame.source}, column {name!r} is both {taken[name]} and {role}: name two columns")
        taken[name] = role


def _features(
    frame: Frame, declared: Declarations, features: Sequence[str] | None, roles: Mapping[str, str | None]
) -> list[str]:
    for name in declared:
        frame.require(name)
    taken = {name: role for role, name in roles.items() if name is not None}
    if features is None:
        features = [name for name in declared if name not in taken]
        if not features:
            free = [name for name in frame.names if name not in taken]
            example = next((name for name in free if not looks_like_id(name)), "age")
            raise ValueError(f"{frame.source}: no feature is declared: {_remedy(example, 'feature')}")
        return list(features)
    if isinstance(features, str) or not features:
        raise ValueError(f"features is {features!r}: give a list of column names, such as ['age', 'sex']")
    for number, name in enumerate(features):
        frame.require(name)
        if name in taken:
            raise ValueError(f"{frame.source}, column {name!r} is the {taken[name]}: remove it from features")
        if name in features[:number]:
            raise ValueError(f"{frame.source}, column {name!r} is listed twice in features: list it once")
        if name not in declared:
            raise ValueError(f"{frame.source}, column {name!r}: {_undeclared(name, frame.kind(name))}")
    return list(features)


def _undeclared(name: str, kind: str) -> str:
    if kind == "date":
        return (
            "it holds dates, which are no feature unless declared: remove it from features, or write "
            f'{name} = {{range = ["2000-01-01", "2020-12-31"]}}'
        )
    if looks_like_id(name):
        return f"it looks like an id, which is no feature: remove it, or, if it is none, {_remedy(name, 'feature')}"
    return f"the feature is not declared: {_remedy(name, 'feature')}"


def looks_like_id(name: str) -> bool:
    """Say whether a column's name is one of those that ids have.

    >>> looks_like_id("patient_id"), looks_like_id("age")
    (True, False)
    """
    return _IDS.search(name) is not None


def _remedy(name: str, role: str) -> str:
    if role == "weight":
        return f"write {name} = {{range = [0, 10]}}, its largest value last"
    example = f"{name} = {{range = [0, 120]}} for numbers, {name} = {{categories = ['a', 'b']}} for classes"
    return f"write {example}" if role == "label" else f"write {example} or other lists, from knowledge of the domain"


def _check_share(share: str, label: str, target: Column) -> None:
    if target.numeric or len(target.names) != 2:
        raise ValueError(f"share is {share!r}, but the label {label!r} has not two classes: leave share out")


def _check_weight(frame: Frame, declared: Declarations, weight: str | None) -> None:
    if weight is not None and (
        not declared[weight].numeric or declared[weight].source or declared[weight].bounds[0] < 0
    ):
        raise ValueError(f"{frame.source}, column {weight!r}: a weight needs a range from 0 or above, such as [0, 10]")


def _check_private(frame: Frame, declared: Declarations, private: Any, share: str | None) -> None:
    """Refuse a price that is no counter, and a price with nothing to buy."""
    if private is None:
        return
    if not hasattr(private, "buy"):
        raise ValueError(f"private is {private!r}: say what counts may cost, private=sv.NoisyCounts(epsilon=0.1)")
    if share != "private" and all("private" not in (one.source, one.curve) for one in declared.values()):
        raise ValueError(
            f'{frame.source}: a price for noisy counts is given (private), but no column has range = "private" or '
            'categories = "private" or curve = "private": declare one so, or leave the price out'
        )


def _owners(frame: Frame, party: str | None, declared: Declarations) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Return the number of each row's party, and the parties' names: the declared ones, or the values themselves."""
    if party is None:
        return None, ()
    texts = texts_of(frame[party])
    if party in declared:
        column = declared[party]
        if column.numeric or column.source:
            raise ValueError(f"{frame.source}, column {party!r}: declare the parties' names as a list of categories")
        place = column.read(frame[party]).values
        names, rest = column.names, len(column.names)
    else:
        known, place = np.unique(texts, return_inverse=True)
        gone = is_missing(known)
        names, rest = tuple(str(name) for name in known[~gone]), int((~gone).sum())
        place = np.where(gone, rest, np.cumsum(~gone) - 1)[place.reshape(-1)]
    place = np.where(place < 0, rest, place)
    return place, (*names, *([REST] if (place == rest).any() else []))


def _ids(frame: Frame, unit: str) -> np.ndarray:
    """Return the id of each row's unit, as text: in every table that names it, a unit has the same one.

    A row without an id is a unit of its own.
    """
    texts, each = np.unique(texts_of(frame[unit]), return_inverse=True)
    gone, each = is_missing(texts), each.reshape(-1)
    known = np.array([_WHOLE.sub(r"\1", text) if _WHOLE.fullmatch(text) else text for text in texts.tolist()], str)[
        each
    ]
    alone = np.array([f"\0row {row}" for row in range(len(each))], str)
    return np.where(gone[each], alone, known)


def _one_per_unit(owners: np.ndarray | None, ids: np.ndarray | None, rows: int) -> np.ndarray:
    if ids is None:
        return np.arange(rows)
    whose = np.zeros(rows, np.int64) if owners is None else owners.astype(np.int64)
    return np.unique(whose * (2 * rows + 1) + np.unique(ids, return_inverse=True)[1].reshape(-1), return_index=True)[1]


def _no_class(target: Column, answer: Reading) -> np.ndarray:
    found = (answer.values >= 0) & (answer.values < len(target.names))
    return ~found if target.missing is None else ~found & (answer.values >= 0)


def _labels(target: Column, answer: Reading) -> np.ndarray:
    if target.numeric:
        return target.scale(answer.values).astype(np.float32)
    instead = 0 if target.missing is None else list(target.categories).index(as_text(target.missing))
    known = (answer.values >= 0) & (answer.values < len(target.names))
    return np.where(known, answer.values, instead).astype(np.int32)


def _declared_words(declared: Declarations, chosen: Sequence[str], label: str, weight: str | None) -> str:
    own = [name for name in (*chosen, label, weight) if name is not None and declared[name].source is None]
    listed = ", ".join(own) if own else "none"
    return f"declared and taken as public: ranges, categories and missing-value rules of {listed}"


def _party_words(party: str | None, parties: Sequence[str]) -> list[str]:
    return [f"taken as public: names and sizes of the {len(parties)} parties in column {party}"] if party else []
