"""Hold a table that is split by columns: one block of features per party, with the same records in the same order.

>>> table = Columns(split_columns(np.ones((10, 6)), parties=2))
>>> [block.shape for block in table.blocks]
[(10, 3), (10, 3)]
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from sottovoce.data.parts import NO_FACTS, Facts, purchases_of
from sottovoce.shown import Shown

_SHOWN = 3  # ids named in a report


@dataclass(frozen=True, eq=False, repr=False)
class Columns(Shown):
    """Hold a table that is split by columns, and the rows that each level reads (by default all).

    With disjoint levels a label is used at one level only; with the same rows for both it is used at both. The label
    gate accounts for the difference.

    >>> table = Columns([np.ones((10, 2)), np.zeros((10, 3))]).levels(upper=0.2)
    >>> len(table), len(table.upper), len(table.lower)
    (10, 2, 8)
    """

    blocks: Sequence[Any]
    upper: np.ndarray = None  # type: ignore[assignment]
    lower: np.ndarray = None  # type: ignore[assignment]
    ids: np.ndarray | None = None
    facts: Facts = NO_FACTS
    names: tuple[str, ...] = ()  # of the parties; numbers if none are given

    def __post_init__(self) -> None:
        sizes = [block.shape[0] for block in self.blocks]
        if not sizes or len(set(sizes)) > 1 or sizes[0] == 0:
            raise ValueError(f"the parties' blocks have {sizes} rows: they must be the same records (see align)")
        for number, block in enumerate(self.blocks):
            values = block.data if sp.issparse(block) else np.asarray(block)
            if not np.isfinite(values).all():
                raise ValueError(f"party {number} has features that are not finite: drop or impute them")
        for facts in (self.facts, *purchases_of([block for block in self.blocks if isinstance(block, np.ndarray)])):
            refuse_bought(facts)
        if self.names and len(self.names) != len(self.blocks):
            raise ValueError(f"{len(self.names)} names for {len(self.blocks)} parties: give one per block, or none")
        for name in ("upper", "lower"):
            rows = getattr(self, name)
            rows = np.arange(sizes[0]) if rows is None else np.asarray(rows)
            if not rows.size or rows.min() < 0 or rows.max() >= sizes[0] or len(np.unique(rows)) < len(rows):
                raise ValueError(f"the {name} level must be different rows from 0 to {sizes[0] - 1}, and at least one")
            object.__setattr__(self, name, rows)

    def __len__(self) -> int:
        return int(self.blocks[0].shape[0])

    def rows_of(self, level: str) -> np.ndarray:
        """Return the rows of a level, "upper" or "lower", or of both, "all"."""
        return np.union1d(self.upper, self.lower) if level == "all" else getattr(self, level)

    def levels(self, upper: float, seed: int = 0) -> "Columns":
        """Return the same table with a random share of the rows for the upper level, and the others for the lower."""
        if not 0 < upper < 1:
            raise ValueError(f"upper is {upper}: give a share between 0 and 1")
        order = np.random.default_rng(seed).permutation(len(self))
        above = round(upper * len(self))
        return replace(self, upper=np.sort(order[:above]), lower=np.sort(order[above:]))

    def only(self, rows: np.ndarray) -> "Columns":
        """Return the same table, with both levels confined to some rows."""
        return replace(self, upper=np.intersect1d(self.upper, rows), lower=np.intersect1d(self.lower, rows))


def refuse_bought(facts: Facts) -> None:
    """Refuse a table of which something was bought: over columns nobody would pay for it.

    >>> refuse_bought(NO_FACTS)
    """
    if facts.bought:
        raise ValueError(
            "something of this table was bought with noisy counts, which are charged to records: over columns labels "
            "are charged, and features are not covered, so nobody would pay. Declare ranges, categories and the share, "
            "or have them read openly (range='public', share='public')"
        )


def split_columns(features: Any, parties: int) -> list[Any]:
    """Give each party consecutive columns, in nearly equal numbers; dense arrays (flattened) or sparse matrices.

    >>> [block.shape for block in split_columns(np.zeros((5, 7)), parties=3)]
    [(5, 3), (5, 2), (5, 2)]
    """
    flat = sp.csc_array(features) if sp.issparse(features) else np.reshape(features, (len(features), -1))
    ends = np.cumsum([0, *widths(flat.shape[1], parties)])
    blocks = [flat[:, start:stop] for start, stop in pairwise(ends)]
    return [sp.csr_array(block) if sp.issparse(block) else block for block in blocks]


def widths(columns: int, parties: int) -> list[int]:
    """Return how many columns `split_columns` gives to each party.

    >>> widths(7, parties=3)
    [3, 2, 2]
    """
    if not 1 <= parties <= columns:
        raise ValueError(f"{parties} parties for {columns} columns: give each at least one")
    return [len(part) for part in np.array_split(np.arange(columns), parties)]


def unit_rows(block: Any) -> Any:
    """Scale each record's part of a block to norm 1; each record is treated separately.

    >>> unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    if sp.issparse(block):
        norms = np.sqrt(block.multiply(block).sum(axis=1))
        return sp.csr_array(sp.diags_array(1 / np.maximum(norms, 1e-9)) @ block)
    return block / np.maximum(np.linalg.norm(block, axis=1, keepdims=True), 1e-9)


@dataclass(frozen=True)
class Alignment:
    """Report a join: how many records all holders have in common, and which records were left out."""

    common: int
    left_out: tuple[tuple[str, int, tuple[str, ...]], ...]  # holder, number of records, some of their ids

    def __str__(self) -> str:
        lines = [f"{self.common} records are known to all"]
        for holder, count, some in self.left_out:
            if count:
                named = ", ".join(some) + ", ..." * (count > len(some))
                lines.append(f"  {holder}: {count} left out, unknown to another ({named})")
        return "\n".join(lines)


def align(tables: Sequence[tuple[Any, Any]], label: tuple[Any, Any]) -> tuple[Columns, np.ndarray, Alignment]:
    """Join the parties' blocks and the labels by record id: pairs (ids, block), and (ids, labels).

    Rows are in the order of the sorted common ids. Each holder's ids must be unique. Comparing ids tells each party
    which of its records the others have, and here one place sees all ids. `sottovoce.runtime.join` joins without that.

    >>> tables = [(["a", "b", "c"], np.eye(3)), (["c", "a"], np.ones((2, 1)))]
    >>> columns, label, report = align(tables, (["a", "c"], [0, 1]))
    >>> columns.ids.tolist(), label.tolist()
    (['a', 'c'], [0, 1])
    >>> print(report)
    2 records are known to all
      party 0: 1 left out, unknown to another (b)
    """
    holders = [(f"party {m}", np.asarray(ids), block) for m, (ids, block) in enumerate(tables)]
    holders.append(("the label holder", np.asarray(label[0]), np.asarray(label[1])))
    for name, ids, held in holders:
        if ids.ndim != 1 or len(ids) != held.shape[0]:
            raise ValueError(f"{name} has {ids.shape} ids for {held.shape[0]} rows: give one id per row")
        unique, counts = np.unique(ids, return_counts=True)
        if len(unique) < len(ids):
            twice = ", ".join(map(str, unique[counts > 1][:_SHOWN]))
            raise ValueError(f"{name} has {int((counts > 1).sum())} ids more than once ({twice}): make them unique")
    common = holders[0][1]
    for _, ids, _ in holders[1:]:
        common = np.intersect1d(common, ids)
    missing = [(name, np.setdiff1d(ids, common)) for name, ids, _ in holders]
    report = Alignment(len(common), tuple((name, len(ids), tuple(map(str, ids[:_SHOWN]))) for name, ids in missing))
    if not len(common):
        raise ValueError(
            "no record is known to all: check that all ids are of the same kind (text or numbers, same spelling)"
        )
    picked = []
    for _, ids, held in holders:
        order = np.argsort(ids)
        rows = order[np.searchsorted(ids, common, sorter=order)]
        picked.append((sp.csr_array(held) if sp.issparse(held) else np.asarray(held))[rows])
    return Columns(picked[:-1], ids=np.sort(common)), picked[-1], report


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class SparseRows(Shown):
    """Hold some rows of a sparse block: the entries of one row after the other, padded with zeros."""

    values: jax.Array
    columns: jax.Array
    owner: jax.Array  # to which of the rows an entry belongs
    count: int = field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Sparse(Shown):
    """Hold a party's sparse block as the arrays of a CSR matrix: nothing is made dense.

    >>> block = Sparse.of(sp.csr_array(np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]])), batch=2)
    >>> dot(block.gather(jnp.asarray([1, 0])), jnp.asarray([1.0, 10.0, 100.0])).tolist()
    [30.0, 201.0]
    """

    values: jax.Array
    columns: jax.Array
    starts: jax.Array
    capacity: int = field(metadata={"static": True})  # the most entries that a batch can have

    @classmethod
    def of(cls, matrix: Any, batch: int) -> "Sparse":
        """Convert a SciPy matrix that will be read in batches of at most `batch` rows."""
        csr = sp.csr_array(matrix)
        most = np.sort(np.diff(csr.indptr))[::-1][:batch].sum()
        values, columns = np.append(csr.data, 0.0), np.append(csr.indices, 0)
        return cls(
            jnp.asarray(values, jnp.float32),
            jnp.asarray(columns, jnp.int32),
            jnp.asarray(csr.indptr),
            max(int(most), 1),
        )

    def gather(self, rows: jax.Array) -> SparseRows:
        """Return some rows, at most as many as the capacity was made for."""
        starts, lengths = self.starts[rows], self.starts[rows + 1] - self.starts[rows]
        count, entry = rows.shape[0], jnp.arange(self.capacity)
        owner = jnp.repeat(jnp.arange(count), lengths, total_repeat_length=self.capacity)
        ends = jnp.cumsum(lengths)
        padding = self.values.shape[0] - 1
        at = jnp.where(entry < ends[-1], starts[owner] + entry - (ends - lengths)[owner], padding)
        return SparseRows(self.values[at], self.columns[at], owner, count)


def dot(features: Any, weights: jax.Array) -> jax.Array:
    """Multiply features by a vector or matrix of weights, for dense arrays and for sparse rows.

    >>> dot(jnp.eye(2), jnp.asarray([[1.0], [2.0]])).tolist()
    [[1.0], [2.0]]
    """
    if not isinstance(features, SparseRows):
        return features @ weights
    picked = weights[features.columns]
    each = picked * features.values.reshape(-1, *[1] * (picked.ndim - 1))
    return jax.ops.segment_sum(each, features.owner, features.count, indices_are_sorted=True)


def device_block(block: Any, batch: int) -> Any:
    """Convert a party's block to the arrays that are computed with.

    >>> device_block(np.ones((3, 2)), batch=2).shape
    (3, 2)
    """
    return Sparse.of(block, batch) if sp.issparse(block) else jnp.asarray(block, jnp.float32)


def gather(block: Any, rows: jax.Array) -> Any:
    """Return some rows of a block.

    >>> gather(jnp.arange(6.0).reshape(3, 2), jnp.asarray([2])).tolist()
    [[4.0, 5.0]]
    """
    return block.gather(rows) if isinstance(block, Sparse) else block[rows]
