"""Run a party with columns: it joins its rows with the others', and computes its own part; one of them has the labels.

The order is fixed: the run file is compared before ids are joined; the join is counted before it begins; all public
facts are compared before labels are drawn; labels are charged before anything that follows from them is sent.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.accounting.traced import traced
from sottovoce.data import Declarations
from sottovoce.data.columns import Columns, device_block
from sottovoce.data.declared import FEWEST, held_out
from sottovoce.data.join import Joined
from sottovoce.data.parts import Facts
from sottovoce.deploy import joins, own_columns
from sottovoce.deploy.bounds import weights_of
from sottovoce.deploy.flare import FlareTransport
from sottovoce.deploy.order import OTHERS, Seat
from sottovoce.deploy.own_columns import OwnRows
from sottovoce.deploy.policy import OwnColumns
from sottovoce.experiments.columns import TASK, ColumnsSetup, Held, setup, with_levels
from sottovoce.experiments.schema import TaskTable
from sottovoce.privacy.labels import Labels
from sottovoce.privacy.report import PrivacyReport
from sottovoce.problems.tasks.metrics import accuracy
from sottovoce.problems.vertical import Vertical
from sottovoce.runtime import generations, peers
from sottovoce.runtime.about import FEDERATION, About
from sottovoce.runtime.frames import frame_size
from sottovoce.runtime.join import expected_of_join, join_rows
from sottovoce.runtime.lone_party import LoneParty
from sottovoce.runtime.loop import Job, Run, drive
from sottovoce.runtime.place import Metrics, Place
from sottovoce.runtime.result import Result
from sottovoce.runtime.run_state import RunFolder
from sottovoce.runtime.staged_labels import rows_of_stages
from sottovoce.runtime.table_answers import in_order
from sottovoce.runtime.transport import Expected, Message, MessageId

HELD_OUT = (
    "figures are measured on held-out rows, without noise, for the label holder's eyes: the statement does not cover "
    "these rows, and their head outputs reach the label holder too"
)
THIS_RUN = "this is the epsilon of this run's labels: what the label holder has spent before is in its own statement"
ORACLE = (
    "by a join each party may test whether the others have ids of its choice, without an epsilon: this site has joined "
    "its rows in {} runs, and its policy agrees to {}"
)


def take_part(seat: Seat, transport: FlareTransport) -> None:
    """Run to the end, from the last checkpoint on, and store this party's part of the model, and its statement."""
    out, own = seat.folder / "run", own_columns.read(seat)
    folder = RunFolder.open(out, resume=True)
    transport.first = transport.stored = generations.latest(out, peers.current()) or 0
    transport.outbox.require(transport.stored)
    joins.require(seat.home, seat.name, seat.order.run, folder.name, _agreed(seat).joins)
    seat.compare(transport, "order", {})  # who refuses does not get here, and the others join nothing
    transport.expected = expected_of_join(len(own.ids), _agreed(seat).longest)
    transport.expect(_speakers(seat))
    joined = _joined(seat, transport, own, folder)
    share = seat.case.data.test
    assert not isinstance(share, str)
    count = len(joined.rows)
    apart = held_out(count, share, seat.case.data.seed) if share else np.zeros(count, bool)
    train, test = (joined.rows[np.flatnonzero(chosen)] for chosen in (~apart, apart))
    party = _party(seat, own, train, joined, folder)
    transport.steps = party.account.steps
    seat.compare(transport, "facts", party.facts(0))
    if party.labels is not None:
        _draw(party)
        transport.charged = True
    place = LoneTable(party, transport, out, _Judge(own, test))
    transport.expected = place.expected
    identity = {"facts": party.facts(0), "noise": seat.deploy.noise, "run": seat.order.run}
    report = _stated(seat, party, bool(len(test)))
    job = Job(place, report, identity, lambda start, stop: None, lambda step: None, partial(_about, seat, party))
    every = seat.case.run.every or max(1, party.account.steps // 10)
    last = drive(Run(job, folder, True, party.account.steps, every, None, seat.name, False))
    transport.leave(seat.me)
    replace(place.result(last.leaves, last.stacked(), report), about=job.about()).save(out)


def _agreed(seat: Seat) -> OwnColumns:
    """Return what the site agrees to in runs over columns: the policy was asked before."""
    assert seat.policy.columns is not None
    return seat.policy.columns


def _speakers(seat: Seat) -> list[int]:
    """Return who talks to this party: the label holder talks to all, the others to the label holder."""
    active = _active(seat)
    return [active] if seat.me != active else [m for m in range(len(seat.deploy.sites)) if m != active]


def _active(seat: Seat) -> int:
    assert seat.case.columns is not None
    return seat.deploy.sites.index(str(seat.case.columns.active))


def _joined(seat: Seat, transport: FlareTransport, own: OwnRows, folder: RunFolder) -> Joined:
    """Join rows with the others; a run that has a checkpoint knows its rows already."""
    if transport.stored:
        return joins.kept(seat.folder, own.ids)
    agreed, sites, run = _agreed(seat), seat.deploy.sites, seat.order.run
    key = own_columns.key(seat)
    joins.count(seat.home, seat.name, run, folder.name, sites, agreed.joins)
    found = join_rows(
        own.ids, key, transport, me=seat.me, active=_active(seat), parties=len(sites), run=run, secret=folder.secret,
        longest=agreed.longest,
    )  # fmt: skip
    if len(found.rows) < agreed.fewest:
        raise PermissionError(
            f"the policy of {seat.name} does not agree to so few common rows: {len(found.rows)}, and at least "
            f"{agreed.fewest} are asked for (columns.fewest)"
        )
    joins.keep(seat.folder, found)
    return found


def _party(seat: Seat, own: OwnRows, train: np.ndarray, joined: Joined, folder: RunFolder) -> LoneParty:
    """Return this party, built from its own rows and public facts."""
    case, me = seat.case, seat.me
    declared, (made, columns) = Declarations(case.data.columns), _setup(seat, own, train, joined)
    classes, seed = declared[str(case.data.label)].names, case.run.seeds[0]
    labels, places = (None, None) if own.label is None else own_columns.store(seat, own)
    problem = made.task(seed).problem
    assert isinstance(problem, Vertical)  # `setup` has checked it
    return LoneParty.of(
        me, columns, problem=problem, method=made.method, classes=len(classes), active=_active(seat),
        steps=made.steps, seed=seed, delta=made.delta, labels=labels, places=None if places is None else places[train],
        secret=folder.secret if seat.deploy.noise == "exact" else None, order=joined.order, run=seat.order.run,
    )  # fmt: skip


def _setup(seat: Seat, own: OwnRows, train: np.ndarray, joined: Joined) -> tuple[ColumnsSetup, Columns]:
    """Return the case as on one machine, with zeros in place of the others' columns; and the own columns."""
    case, count = seat.case, len(train)
    if count < FEWEST:
        raise ValueError(f"there are {count} common rows to train on: at least {FEWEST} are needed")
    assert case.columns is not None
    assert case.columns.holders is not None
    declared = Declarations(case.data.columns)
    widths = {site: len(declared.only(held).names) for site, held in case.columns.holders.items()}
    nothing = np.zeros((), np.float32)
    block = own.block[train]
    blocks = [
        block if site == seat.name else np.broadcast_to(nothing, (count, width)) for site, width in widths.items()
    ]
    named = [words.replace(f"party {_active(seat)}", str(case.columns.active)) for words in joined.words]
    whole = Columns(blocks, facts=Facts(words=(*own.words, *named)))
    whole = with_levels(whole, case.data)
    test = {"blocks": [np.zeros((1, width), np.float32) for width in widths.values()], "label": np.zeros(1, np.int32)}
    classes = len(declared[str(case.data.label)].names)
    held = Held(whole, np.zeros(count, np.int32), classes, test, case.columns.holders)
    task = case.task or TaskTable(name=TASK)
    seat.policy.require_most(seat.name, "weights", weights_of(task, held.shape, seed=0))
    made = setup(case, held)
    seat.policy.require_most(seat.name, "steps", made.steps)  # `auto` has chosen them
    if made.account.epsilon > seat.policy.epsilon:
        most = f"at most {seat.policy.epsilon:g}"
        raise PermissionError(f"the policy of {seat.name} does not agree to epsilon {made.account.epsilon:g}: {most}")
    return made, replace(whole, blocks=[block])


def _draw(party: LoneParty) -> None:
    """Draw and charge the labels, in the order in which one machine does it; nothing about them was sent before."""
    gate, labels, places = party.account.method.labels, party.labels, party.places
    assert labels is not None
    assert places is not None
    (rows,) = rows_of_stages(party.account.columns, party.account.seed, 1)
    gate.ask(labels, places[rows], np.full((len(rows), labels.classes), 1 / labels.classes))
    _ = party.desk


def _stated(seat: Seat, party: LoneParty, measured: bool) -> PrivacyReport:
    """Return the label holder's statement, or what another party knows of it."""
    words = [HELD_OUT] * measured + [ORACLE.format(len(joins.taken(seat.home)), _agreed(seat).joins)]
    if party.labels is not None:
        report = party.report()
    else:
        account, seed = party.account, None if seat.deploy.noise == "exact" else party.account.seed
        classes = len(Declarations(seat.case.data.columns)[str(seat.case.data.label)].names)
        alike = Labels(np.zeros(len(account.columns), np.int32), classes, seed=seed)
        account.charge(alike)
        report = replace(party, labels=alike).report()
        words += [THIS_RUN, OTHERS]
    return replace(report, caveats=(*report.caveats, *words, *seat.caveats))


def _about(seat: Seat, party: LoneParty) -> About:
    account, sites, active = party.account, seat.deploy.sites, party.active
    assert seat.case.columns is not None
    assert seat.case.columns.holders is not None
    declared = Declarations(seat.case.data.columns)
    each = account.steps * sum(crossing.size * crossing.times for crossing in account.trace.crossings)
    said = account.steps * sum(crossing.times for crossing in account.trace.crossings)
    read = account.steps * sum(crossing.times for crossing in account.trace.crossings if crossing.level)
    talk, messages = (
        tuple(count * (len(sites) - 1 if m == active else 1) for m in range(len(sites))) for count in (each, said)
    )
    others = [m for m in range(len(sites)) if m != active]
    labels = party.labels
    return About(
        parties=tuple(sites),
        sizes={
            "columns": tuple(len(declared.only(own).names) for own in seat.case.columns.holders.values()),
            "rows": (len(account.columns),) * len(sites),
        },
        place=f"{FEDERATION} of {len(sites)} sites",
        links=tuple(pair for m in others for pair in ((m, active), (active, m))),
        sent=talk,
        received=talk,
        messages=messages,
        batches=read,
        public=account.columns.facts.words,
        budget=None if labels is None else labels.budget,
        spent=None if labels is None or labels.budget is None else float(labels.epsilon(labels.budget.delta)),
    )


@dataclass(frozen=True, eq=False)
class _Judge:
    """Hold held-out rows: the label holder adds up all parties' head outputs on them, and compares with its labels."""

    own: OwnRows
    rows: np.ndarray

    @cached_property
    def block(self) -> Any:
        return device_block(self.own.block[self.rows], len(self.rows))


class LoneTable(Place):
    """Run one party with columns, which talks to the label holder."""

    def __init__(self, party: LoneParty, transport: FlareTransport, folder: Path, judge: _Judge) -> None:
        self.party, self.transport, self.folder, self.judge = party, transport, folder, judge

    @cached_property
    def _outputs(self) -> Callable[..., Any]:
        """Return what computes head outputs on held-out rows: it passes the locks, because they leave this site."""
        party, start = self.party, self.party.state(self.shapes)
        problem, given = party.account.problem, (start.x, start.y, self.judge.block)

        def outputs(x: Any, y: Any, features: Any) -> Any:
            return problem.outputs(party.me, y, problem.embedded(party.me, x, features))

        made = traced("head outputs", outputs, *given, locks=party.account.trace.locks)
        return jax.jit(lambda *now: jax.core.eval_jaxpr(made.jaxpr, made.consts, *jax.tree.leaves(now))[0])

    @property
    def expected(self) -> Expected:
        """Return what messages are at most: one per exchange of a step, and head outputs on held-out rows."""
        crossings = self.party.account.trace.crossings
        number = jax.ShapeDtypeStruct((1, 1, 1), jnp.float32)
        sizes = [frame_size([number]) + crossing.size for crossing in crossings]
        if len(self.judge.rows):
            start = self.party.state(self.shapes)
            sizes.append(frame_size([jax.eval_shape(self._outputs, start.x, start.y, self.judge.block)]))
        return Expected(max(sizes, default=0), 1 + sum(crossing.times for crossing in crossings))

    @property
    def names(self) -> list[str]:
        """Return the names of all leaves: none depends on a label that was not randomised."""
        return self.party.account.trace.names

    @property
    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        """Return the shapes of this party's leaves."""
        return list(self.party.account.trace.parties[0].shapes)

    def begin(self) -> list[Any]:
        """Return the first state."""
        init = self.party.account.trace.parties[0].init
        return jax.core.eval_jaxpr(init.jaxpr, init.consts)

    def advance(self, state: list[Any], first: int, count: int) -> tuple[list[Any], np.ndarray]:
        """Run some steps; what is older than the last checkpoint is not needed again."""
        stored = generations.latest(self.folder, peers.current()) or 0
        self.transport.stored = stored
        self.transport.tidy(stored)
        after, broken = self.party.advance(self.transport, list(state), first, count)
        return after, np.asarray(broken)

    def measure(self, state: list[Any], step: int, evaluate: Metrics | None) -> dict[str, Any]:
        """Return bytes, and at the label holder the figures on held-out rows, for which the others send outputs."""
        party, rows = self.party, self.judge.rows
        each = float(step * sum(crossing.size * crossing.times for crossing in party.account.trace.crossings))
        figures: dict[str, Any] = {"bytes up": each, "bytes down": each}
        if not len(rows):
            return figures
        now = party.state(state)
        mine = np.asarray(self._outputs(now.x, now.y, self.judge.block))
        name = partial(MessageId, party.run, max(step - 1, 0))  # a message of the round that has just ended
        if party.labels is None:
            said = Message(name(party.me, f"held-out {step}"), (mine,), "disclosure")
            self.transport.send(party.active, said)
            return figures
        heard = [
            mine if m == party.me else self.transport.receive(party.me, name(m, f"held-out {step}"), [mine])[0]
            for m in range(party.parties)
        ]
        assert self.judge.own.label is not None
        label = jnp.asarray(self.judge.own.label[rows])
        losses = party.account.problem.losses(in_order([jnp.asarray(one) for one in heard]))
        right = jnp.take_along_axis(losses, label[:, None], axis=1)
        found = {"accuracy": accuracy(jnp.argmin(losses, axis=1), label), "loss": jnp.mean(right)}
        return {**figures, **found}

    def result(self, state: list[Any], history: dict[str, np.ndarray], report: PrivacyReport) -> Result:
        """Return this party's own part of the model: a prediction needs the parts of all."""
        own = self.party.state(state)
        x, y = (jax.tree.map(np.asarray, variable) for variable in (own.x, own.y))
        return Result(x, y, [own], history, report, report.covered and report.drawn == "exact")
