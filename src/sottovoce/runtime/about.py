"""Collect the facts of a run that its report shows beside the guarantee: who, how much, over which links, and when.

Nothing here depends on a value of a record. Sizes of the parties, links and messages' lengths are public.
"""

import platform
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import Jaxpr

from sottovoce.accounting.account import Account
from sottovoce.accounting.table import TableAccount
from sottovoce.data.parties import SINGLE
from sottovoce.methods import equations
from sottovoce.privacy.ledger import Budget
from sottovoce.privacy.table import Table

FEDERATION = "a federation"  # first words of the place of a run in which each party is a process of its own
DIGEST = 32  # bytes of a digest of earlier totals, which goes with each masked share
DRAWN = 60  # parties up to which links are kept, to be drawn


@dataclass(frozen=True)
class About:
    """Hold facts about a run. Lists have one entry per party, in the order of `parties`.

    `sizes` has one list per thing that is counted, for example ``{"patient_id, upper level": (200, 180)}``. `links` are
    pairs (sender, hearer) among the first parties. `sent` and `received` count the bytes of the messages of the whole
    run; a simulation sends nothing, and they say what its messages would hold. `messages` counts them: what a party
    sends at once to one other is one message. `batches` is how often a party reads a batch of records. `spent` is what
    the party that spent most has spent of `budget`, over all runs that its ledger knows.

    >>> About(parties=("north",), sizes={"record": (400,)}).sizes["record"]
    (400,)
    """

    parties: tuple[str, ...] = ()
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    place: str = ""
    network: str = ""
    links: tuple[tuple[int, int], ...] = ()
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    messages: tuple[int, ...] = ()
    batches: int = 0
    public: tuple[str, ...] = ()  # what was declared, read off the records, or bought, in words
    budget: Budget | None = None
    spent: float | None = None
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    versions: dict[str, str] = field(default_factory=lambda: versions())

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any, file: Path) -> "About":
        """Make facts from what `to_dict` returned; `file`, where they were stored, is named in errors."""
        try:
            lists = {name: tuple(data[name]) for name in ("parties", "sent", "received", "messages", "public")}
            sizes = {str(what): tuple(map(int, counts)) for what, counts in data["sizes"].items()}
            links = tuple((int(sender), int(hearer)) for sender, hearer in data["links"])
            budget = None if data["budget"] is None else Budget(**data["budget"])
            return cls(**{**data, **lists, "sizes": sizes, "links": links, "budget": budget})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{file} holds no facts about a run of this version ({type(error).__name__}: {error!s:.100}): use the "
                "version of sottovoce that wrote it, or run again"
            ) from error


def versions() -> dict[str, str]:
    """Return the versions of what computed a run.

    >>> sorted(versions())
    ['Python', 'jax', 'machine', 'numpy', 'sottovoce']
    """
    found = {name: version(name) for name in ("sottovoce", "jax", "numpy")}
    return {**found, "Python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}


def about_rows(account: Account, place: str, budget: Budget | None = None, spent: float | None = None) -> About:
    """Return the facts of a run of parties with records."""
    population, network = account.trace.known.holders, account.network
    traffic = _traffic(account)
    edges = network.edges
    shown = edges[(edges < DRAWN).all(axis=1)]
    return About(
        parties=population.names,
        sizes={
            population.unit if level == SINGLE else f"{population.unit}, {level} level": tuple(map(int, counts))
            for level, counts in population.sizes.items()
        },
        place=place,
        network=_talk(account),
        links=tuple((int(sender), int(hearer)) for sender, hearer in shown),
        **traffic._asdict(),
        public=population.facts.words,
        budget=None if budget is None else budget.under(account.adjacency),
        spent=spent,
    )


def _talk(account: Account) -> str:
    """Say who talks to whom."""
    if (summed := account.trace.known.summed) is not None:
        return f"secure sums over {summed.holders.parties} parties"
    return account.network.name if account.network.size > 1 else ""


def about_table(account: TableAccount, table: Table, place: str) -> About:
    """Return the facts of a run of parties with columns; the one that sits with the server sends nothing."""
    steps, crossings = account.steps, account.trace.crossings
    each = steps * sum(crossing.size * crossing.times for crossing in crossings)
    said = steps * sum(crossing.times for crossing in crossings)
    passive, messages = (
        tuple(0 if number == table.active else count for number in range(table.parties)) for count in (each, said)
    )
    labels = table.labels
    return About(
        parties=table.columns.names or tuple(map(str, range(table.parties))),
        sizes={
            "columns": tuple(int(block.shape[1]) for block in table.columns.blocks),
            "rows": (len(table.columns),) * table.parties,
        },
        place=place,
        sent=passive,
        received=passive,
        messages=messages,
        batches=steps * sum(crossing.times for crossing in crossings if crossing.level),
        public=table.columns.facts.words,
        budget=labels.budget,
        spent=None if labels.budget is None else float(labels.epsilon(labels.budget.delta)),
    )


class _Traffic(NamedTuple):
    """Count what the parties of a run with rows exchange and read."""

    sent: tuple[int, ...]
    received: tuple[int, ...]
    messages: tuple[int, ...]
    batches: int


def _traffic(account: Account) -> _Traffic:
    """Count what each agent tells its neighbours and hears from them, in bytes and messages, and its batches."""
    bytes_, messages, batches, totals = Counter[str](), Counter[str](), 0, np.zeros(2, np.int64)
    for jaxpr, times in ((account.trace.init.jaxpr, 1), (account.trace.step.jaxpr, account.steps)):
        own = _Said.of(jaxpr)
        for total, one in ((bytes_, own.bytes), (messages, own.messages)):
            total.update({over: count * times for over, count in one.items()})
        batches += own.batches * times
        totals += np.array(own.totals) * times
    if account.trace.known.summed is not None:
        return _by_sums(account.trace.known.holders.parties, int(totals[0]), int(totals[1]), batches)
    sent, received, said = np.zeros((3, account.network.size), np.int64)
    for over, size in bytes_.items():
        links = account.network.matrix(over).tocoo()
        between = links.row != links.col
        hearers = np.bincount(links.col[between], minlength=sent.size)
        sent += size * hearers
        said += messages[over] * hearers
        received += size * np.bincount(links.row[between], minlength=sent.size)
    return _Traffic(tuple(sent.tolist()), tuple(received.tolist()), tuple(said.tolist()), batches)


def _by_sums(parties: int, totals: int, numbers: int, batches: int) -> _Traffic:
    """Count the messages of secure sums: each party sends its masked share to the first, which sends the total back."""
    share, total, others = 8 * numbers + DIGEST * totals, 8 * numbers, parties - 1
    sent, received = (others * total, *(share,) * others), (others * share, *(total,) * others)
    return _Traffic(sent, received, (others * totals, *(totals,) * others), batches)


class _Said(NamedTuple):
    """Count what one agent sends to one neighbour, by the weights of the exchange, and how many batches it reads.

    `totals` counts its releases and their numbers, which a secure sum adds up.
    """

    bytes: Counter[str]
    messages: Counter[str]
    batches: int
    totals: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, jaxpr: Jaxpr) -> "_Said":
        """Count the equations of a traced step; those inside a loop count as often as it turns."""
        bytes_, messages, batches, asked, numbers = Counter[str](), Counter[str](), 0, 0, 0
        for equation in jaxpr.eqns:
            if equation.primitive is equations.loop_p:
                inner, times = cls.of(equation.params["body"]), equation.params["times"]
                bytes_.update({over: size * times for over, size in inner.bytes.items()})
                messages.update({over: count * times for over, count in inner.messages.items()})
                batches += inner.batches * times
                asked, numbers = asked + inner.totals[0] * times, numbers + inner.totals[1] * times
            elif equation.primitive is equations.mix_p:
                shapes = [equations.shape_of(heard) for heard in equation.outvars]
                bytes_[equation.params["over"]] += sum(shape.size * shape.dtype.itemsize for shape in shapes)
                messages[equation.params["over"]] += 1
            elif equation.primitive in (equations.release_p, equations.mean_p):
                batches += len(equation.params["asked"].functions)  # one per level
                asked, numbers = asked + 1, numbers + sum(equations.shape_of(one).size for one in equation.outvars)
        return cls(bytes_, messages, batches, (asked, numbers))
