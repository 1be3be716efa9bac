"""Run one party with columns by itself: its program, its own block, and a transport to the label holder.

The label holder is a party with columns of its own, the *active* one. At each question of a step the others send it
their head outputs; it adds them up, and sends back the gradient of its loss through the label gate. Between two
exchanges a party runs one compiled program; the active party computes its answer in a program before that one, so that
the others go on while it does its own part. `docs/bambi.md` has an example.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from sottovoce.accounting.identity import identity
from sottovoce.accounting.table import (
    FEATURES,
    SECRET,
    SIMULATED,
    TableAccount,
    account_of_parties,
    schedule,
)
from sottovoce.data.columns import Columns, device_block
from sottovoce.methods import equations
from sottovoce.methods.column_method import ColumnMethod
from sottovoce.privacy.labels import Labels
from sottovoce.privacy.report import Drawn, PrivacyReport
from sottovoce.problems.vertical import Vertical
from sottovoce.runtime.agreement import agree
from sottovoce.runtime.columns import TableSpec, steps_at_once
from sottovoce.runtime.compiler import require_right_sums
from sottovoce.runtime.interpreter import Segment, play, walk
from sottovoce.runtime.keys import described
from sottovoce.runtime.party_programs import STOPS, Programs, programs_of
from sottovoce.runtime.place import NEVER
from sottovoce.runtime.run_state import digest
from sottovoce.runtime.table_answers import party_root, server_root, shared_root
from sottovoce.runtime.transport import Message, MessageId, Standing, Transport

Turns = tuple[tuple[int, int], ...]  # the numbers of the loops that a moment is in, and their turns
HEADS = "features are not covered: what a party computes from its own reaches the label holder without noise"
DISCLOSED = (
    "disclosed without an epsilon, to the label holder: each other party's head outputs for every row of a batch, and "
    "one number per direction and step",
    "disclosed without an epsilon, to each party: gradients at the sum of all parties' head outputs, and the sums of "
    "those numbers; what they tell about labels is what this statement covers",
)


@dataclass(frozen=True)
class Desk:
    """Hold what the label holder answers from: what the gate made of its labels, and the key of the gate's noise."""

    vectors: jax.Array
    root: jax.Array


@dataclass(frozen=True, eq=False)
class LoneParty:
    """Run one party: its number, its own block of the columns, and the labels if it is the active one.

    `secret` makes the keys of the party's own choices and of the label noise; without it they come from the seed, which
    is for simulations. A party keeps its secret over a restart: the same noise is then drawn again, and paid for once.
    Other batches, rows or labels meet other noise, and are paid for again (`table_answers.server_root`).
    `order` names the rows and their order, where these were joined (`sottovoce.runtime.join`). The store of labels may
    hold more rows than the run: `places` are then the places of the run's rows in it.
    """

    me: int
    active: int
    account: TableAccount
    labels: Labels | None = None
    secret: bytes | None = None
    order: str = ""
    run: str = ""
    places: np.ndarray | None = None

    @classmethod
    def of(
        cls, me: int, columns: Columns, *, problem: Vertical, method: ColumnMethod, classes: int, active: int,
        steps: int, seed: int = 0, delta: float = 0.0, labels: Labels | None = None, places: np.ndarray | None = None,
        **how: Any,
    ) -> "LoneParty":  # fmt: skip
        """Return party `me` from its own block and public facts alone.

        `columns` holds its one block, and the rows of each level, which are the same for all parties. The seed is
        public: batches follow from it.

        >>> import sottovoce as sv
        >>> from sottovoce.privacy.labels import Memoised
        >>> from sottovoce.problems.tasks.vertical import hyper_parameters
        >>> method = sv.methods.VerticalSgd(batch=20, rate_x=0.1, rate_y=1.0, labels=Memoised(1.0))
        >>> public = {"problem": hyper_parameters([2, 3]), "method": method, "classes": 2, "active": 0, "steps": 3}
        >>> shop = LoneParty.of(1, sv.Columns([np.ones((40, 3))]), **public)
        >>> shop.others
        [0]
        >>> LoneParty.of(0, sv.Columns([np.ones((40, 2))]), **public)
        Traceback (most recent call last):
        ...
        ValueError: party 0 has no labels, and party 0 is active: the active party, and no other, holds the labels
        """
        require_right_sums()
        if len(columns.blocks) != 1:
            raise ValueError(f"party {me} was given {len(columns.blocks)} blocks: it holds its own only")
        for name, number in (("me", me), ("active", active)):
            if not 0 <= number < problem.parties:
                raise ValueError(f"{name} is {number}: give the number of a party, 0 to {problem.parties - 1}")
        if (labels is None) == (me == active):
            raise ValueError(
                f"party {me} has {'no ' if labels is None else ''}labels, and party {active} is active: the active "
                "party, and no other, holds the labels"
            )
        count = 0 if labels is None else len(labels) if places is None else len(places)
        if labels is not None and (count, labels.classes) != (len(columns), classes):
            raise ValueError(
                f"there are {count} labels of {labels.classes} classes, for {len(columns)} rows and {classes} "
                "classes: join the rows first"
            )
        account = account_of_parties(method, columns, [me], problem, classes, steps, delta, seed)
        return cls(me, active, account, labels, places=places, **how)

    @property
    def parties(self) -> int:
        """Return how many parties there are."""
        return self.account.problem.parties

    @property
    def others(self) -> list[int]:
        """Return the numbers of the other parties."""
        return [number for number in range(self.parties) if number != self.me]

    @cached_property
    def programs(self) -> Programs:
        """Return the compiled programs."""
        return programs_of(TableSpec(self.account.trace, self.account.method.labels))

    @cached_property
    def block(self) -> Any:
        """Return the party's features, as they are computed with."""
        return device_block(self.account.columns.blocks[0], self.account.method.batch)

    @cached_property
    def roots(self) -> tuple[jax.Array, jax.Array]:
        """Return the party's own root key, and the one that all know."""
        return party_root(self.account, self.me, self._begin_with), shared_root(self.account)

    @cached_property
    def desk(self) -> Desk:
        """Return what answers are made from; the labels are charged for the whole run before the first answer."""
        assert self.labels is not None
        places = np.arange(len(self.labels)) if self.places is None else self.places
        made = cache(partial(self._made, self.labels, places))
        self.account.charge(self.labels, lambda: self._name_of_noise(made().root), places)
        return made()

    def _made(self, labels: Labels, places: np.ndarray) -> Desk:
        vectors = self.account.method.labels.vectors(labels, places[self.account.rows])[places]
        secret = None if self.secret is None else self.secret.hex()
        return Desk(jnp.asarray(vectors), server_root(self.account, self.me, labels, places, vectors, secret))

    @property
    def _begin_with(self) -> int | str:
        seed = self.account.seed  # which says the batches, whoever keeps a secret
        return seed if self.secret is None else f"{seed}|{self.secret.hex()}"

    def _name_of_noise(self, root: jax.Array) -> str | None:
        """Return a name for the noise that is drawn, by which it is paid once; none without a secret to hide it."""
        if self.secret is None:
            return None
        drawn = digest([jax.random.key_data(root), self.account.steps])
        return hmac.new(self.secret, drawn.encode(), hashlib.sha256).hexdigest()

    def state(self, leaves: Sequence[Any]) -> Any:
        """Return the method's state."""
        return self.account.trace.states(leaves)[0]

    def report(self) -> PrivacyReport:
        """Return the label holder's statement: what is guaranteed for labels, and what was disclosed beside."""
        if self.labels is None:
            raise ValueError(f"party {self.me} holds no labels: the statement is made by party {self.active}")
        made, drawn = self.account.report(self.labels), self._drawn(self.labels)
        instead = {FEATURES: HEADS, **({SIMULATED: SECRET} if drawn == "secret" else {})}
        noted = [instead.get(note, note) for note in made.caveats]
        return replace(made, caveats=(*noted, *DISCLOSED), drawn=drawn if made.private else "")

    def _drawn(self, labels: Labels) -> Drawn:
        """Say how the label noise is drawn."""
        at_each_use = self.account.method.labels.per_use(labels.classes, 1) is not None
        if labels.simulated or (at_each_use and self.secret is None):
            return "simulated"
        return "secret" if at_each_use else "exact"

    def agree(self, transport: Transport, first: int) -> None:
        """Compare public facts with the other parties before step `first`; ValueError names what differs.

        When all agree, the label holder charges its labels, and only then gives its word. All call this when they start
        or go on together; a party that comes back alone to a run that waits for it goes on with `advance`.
        """
        facts = self.facts(first)
        agree(transport, self.me, self.active, self.others, self.run, first, facts, lambda: self.desk)

    def facts(self, first: int) -> dict[str, Any]:
        """Return the public facts that all parties must agree on."""
        account, columns = self.account, self.account.columns
        return {
            "first step": first,
            "steps": account.steps,
            "seed": account.seed,
            "method": described(account.method),
            "rows": len(columns),
            "upper": digest(columns.upper)[:16],
            "lower": digest(columns.lower)[:16],
            "order of the rows": self.order,
            "parties": self.parties,
            "active": self.active,
            "losses": identity(*account.trace.losses)[:16],
            "messages": [list(crossing) for crossing in account.trace.crossings],
        }

    def begin(self, transport: Transport) -> tuple[list[Any], Any]:
        """Agree with the others; return the first state, and that it was always finite."""
        self.agree(transport, 0)
        init = self.account.trace.parties[0].init
        return jax.core.eval_jaxpr(init.jaxpr, init.consts), self._fine

    def advance(self, transport: Transport, state: list[Any], first: int, count: int) -> tuple[list[Any], Any]:
        """Return the state `count` steps after step `first`, and when each leaf was first not finite."""
        broken, step = self._fine, self.account.trace.parties[0].step
        for t, rows in self._batches(first, first + count):
            transport.check()
            own = PartyAnswers(self, t, transport)
            state = play(walk(step.jaxpr, step.consts, [np.int32(t), *rows, *state], True, STOPS, own.compute), own)
            broken = self.programs.finish(state, broken, np.int32(t))
        return state, broken

    def _batches(self, first: int, end: int) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Return each step with the rows of its batches, in the order of the levels' names."""
        account, at_once = self.account, steps_at_once(self.account.method)
        for start in range(first, end, at_once):
            some = min(at_once, end - start)
            listed = schedule(account.columns, account.method, account.seed, start, some)
            for number in range(some):
                yield start + number, [listed[level][number] for level in sorted(listed)]

    @property
    def _fine(self) -> np.ndarray:
        return np.full(len(self.account.trace.parties[0].shapes), NEVER, np.int32)


@dataclass(frozen=True)
class PartyAnswers:
    """Answer the equations of one party, at one step: it holds its own columns and talks to the label holder."""

    party: LoneParty
    t: int
    transport: Transport
    turns: Turns = ()

    def __call__(self, equation: JaxprEqn, values: list[Any]) -> list[Any]:
        """Return the results of an exchange or of a loop."""
        number = equation.params["number"]
        if equation.primitive is equations.loop_p:
            return self.loop(equation, values)
        if equation.primitive is equations.total_p:
            return [self.exchange("scalars", "sums", number, values[0], self.party.programs.sum, "disclosure")]
        sound = self.party.account.method.labels.covered
        answer = lambda said: self.slopes(number, values[0], said)  # noqa: E731
        return [self.exchange("outputs", "gradients", number, values[1], answer, "release" if sound else "disclosure")]

    def compute(self, segment: Segment, values: list[Any]) -> list[Any]:
        """Run what lies between two exchanges."""
        party, loops = self.party, [loop for loop, _ in self.turns]
        numbers = np.array([party.me, party.parties], np.int32)
        return party.programs.between(segment, loops)(party.roots, numbers, *self._now, party.block, values)

    def slopes(self, number: int, rows: Any, said: list[Any]) -> Any:
        """Return the label holder's answer to all parties' head outputs."""
        party, loops = self.party, [loop for loop, _ in self.turns]
        desk, own = party.desk, np.int32(party.parties + 1)
        return party.programs.slopes(number, loops)(desk.root, own, *self._now, desk.vectors, rows, said)

    @property
    def _now(self) -> tuple[Any, list[Any]]:
        return np.int32(self.t), [np.int32(turn) for _, turn in self.turns]

    def loop(self, equation: JaxprEqn, values: list[Any]) -> list[Any]:
        """Run the turns one by one: messages inside must really be sent."""
        body, consts = equation.params["body"], equation.params["consts"]
        carry = list(values[consts:])
        for k in range(equation.params["times"]):
            inside = replace(self, turns=(*self.turns, (equation.params["number"], k)))
            given = [*values[:consts], *carry]
            carry = play(walk(body, (), given, True, STOPS, inside.compute), inside)
        return carry

    def exchange(
        self, up: str, down: str, number: int, value: Any, answer: Callable[[list[Any]], Any], standing: Standing
    ) -> Any:
        """Send a value to the label holder and wait for its answer; the label holder answers all others."""
        party, where = self.party, f"{number}" + "".join(f", loop {loop} turn {turn}" for loop, turn in self.turns)
        if party.me != party.active:
            self._send(party.active, f"{up} {where}", value, "disclosure")  # it tells of features, without noise
            return self._heard(party.active, f"{down} {where}", value)
        said = [value if m == party.me else self._heard(m, f"{up} {where}", value) for m in range(party.parties)]
        told = answer(said)
        for other in party.others:
            self._send(other, f"{down} {where}", told, standing)
        return told

    def _send(self, hearer: int, tag: str, value: Any, standing: Standing) -> None:
        message = MessageId(self.party.run, self.t, self.party.me, tag)
        self.transport.send(hearer, Message(message, (np.asarray(value),), standing))

    def _heard(self, sender: int, tag: str, like: Any) -> Any:
        """Return what another party sent; refuse what does not fit, without a word of its content."""
        wanted = MessageId(self.party.run, self.t, sender, tag)
        said = [np.asarray(value) for value in self.transport.receive(self.party.me, wanted)]
        shapes, expected = [(value.shape, str(value.dtype)) for value in said], (like.shape, str(like.dtype))
        if shapes != [expected]:
            raise ValueError(f"{wanted} was refused: it holds {shapes!s:.100}, and {[expected]} was expected")
        if not np.isfinite(said[0]).all():
            raise FloatingPointError(f"{wanted} was refused: it is not finite. Lower the step sizes, or the noise")
        return said[0]


def run_party(party: LoneParty, transport: Transport) -> tuple[list[Any], Any]:
    """Run one party from its first state to the last step, and leave; return what `LoneParty.advance` returns."""
    try:
        state, _ = party.begin(transport)
        return party.advance(transport, state, 0, party.account.steps)
    finally:
        transport.leave(party.me)
