"""Parties with columns, each by itself: together they do what one place does, and nothing else crosses."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jax.flatten_util import ravel_pytree
from tests.methods import columns_contract
from tests.runtime.party_process import ACTIVE, BLOCKS, CLASSES, LABEL, METHOD, PROBLEM, STEPS, lone, store
from tests.runtime.processes import apart

import sottovoce as sv
from sottovoce.accounting.table import SECRET, SIMULATED, table_account
from sottovoce.data.columns import dot
from sottovoce.papers.bambi.method import Bambi
from sottovoce.privacy.labels import Fresh, Memoised, Open, Printed
from sottovoce.privacy.ledger import Budget, BudgetExceeded
from sottovoce.problems.vertical import cross_entropy
from sottovoce.runtime.columns import table_roots
from sottovoce.runtime.keys import step_key
from sottovoce.runtime.lone_party import DISCLOSED, LoneParty, PartyAnswers, run_party
from sottovoce.runtime.socket_transport import SocketTransport
from sottovoce.runtime.table_answers import ServerMoment
from sottovoce.runtime.threads import on_threads, queues
from sottovoce.runtime.transport import Message, MessageId, Patience, PeerGone, QueueTransport

pytestmark = pytest.mark.xdist_group(str(Path(__file__).with_name("test_columns.py")))  # which compiles the same run
GATES = {"open": Open(), "memoised": Memoised(1.0), "fresh": Fresh(1e-3), "shared": Fresh(0.05, shared=True)}


class Recording(QueueTransport):
    """Queues that keep what was sent, and look at something before each message."""

    def __init__(self, look=lambda: None):
        super().__init__(Patience(60.0))
        self.sent, self.look = [], look

    def _put(self, hearer, message):
        self.sent.append((hearer, message, self.look()))
        super()._put(hearer, message)


def live(party, transport):
    return run_party(party, transport)[0]


def together(parties, transports=None):
    return on_threads(parties, transports or queues(len(parties)), live)


def two(method=METHOD, labels=None, **how):
    labels = labels or store()
    return [lone(m, method, labels if m == ACTIVE else None, **how) for m in range(2)]


def test_parties_by_themselves_do_what_one_place_does():
    whole = sv.run(PROBLEM, sv.Table(sv.Columns(BLOCKS), store(), active=ACTIVE), METHOD, steps=STEPS)
    _require_alike(two(), together(two()), whole)


@pytest.mark.slow
@pytest.mark.parametrize("gate", ["memoised", "fresh"])
def test_three_parties_with_dense_and_sparse_columns_that_are_altered_end_alike(gate):
    rng, widths, rows = np.random.default_rng(1), (2, 3, 30), 12
    blocks = [rng.normal(size=(rows, width)).astype(np.float32) for width in widths]
    blocks[2] = sp.csr_array(np.where(blocks[2] > 1, blocks[2], 0))
    problem = sv.Vertical(
        [lambda x, a: jnp.tanh(a * x), lambda x, a: jnp.tanh(a * x), lambda x, a: dot(a, x)],
        lambda y, e: e @ y,
        cross_entropy,
        [jnp.ones(2), jnp.ones(3), jnp.full((30, 2), 0.1)],
        [jnp.full((width, CLASSES), 0.1) for width in (2, 3, 2)],
        penalty=lambda x, y: 0.01 * jnp.sum(y**2) + 0.0 * jnp.sum(x),
        alter=lambda key, a: jax.tree.map(lambda leaf: leaf * (1 + jax.random.uniform(key)).astype(leaf.dtype), a),
    )
    method = Bambi(inner_steps=2, batch=4, rate_x=0.1, rate_y=0.2, labels=GATES[gate], directions=2)
    levels = (np.arange(4), np.arange(4, rows))
    label = np.arange(rows) % CLASSES
    table = sv.Table(sv.Columns(blocks, *levels), sv.Labels(label, CLASSES, seed=0), active=1)
    whole = sv.run(problem, table, method, steps=4, seed=3)
    public = {"problem": problem, "method": method, "classes": CLASSES, "active": 1, "steps": 4, "seed": 3}
    parties = [
        LoneParty.of(
            m, sv.Columns([block], *levels), **public, labels=sv.Labels(label, CLASSES, seed=0) if m == 1 else None
        )
        for m, block in enumerate(blocks)
    ]
    _require_alike(parties, together(parties), whole, problem)


def _require_alike(parties, states, whole, problem=PROBLEM):
    """Compare states. A state is a sum of moves from its start, so it is rounded by what it came from, too.

    Example: a penalty that goes from -2 to 0.01 is known to the last bits of -2, and not of 0.01.
    """
    for m, (party, leaves) in enumerate(zip(parties, states)):
        state = party.state(leaves)
        ends = (state.x, state.y), (whole.x[m], whole.y[m]), (problem.x0[m], problem.y0[m])
        found, wanted, begun = (ravel_pytree(one)[0] for one in ends)
        size = max(np.linalg.norm(wanted), np.linalg.norm(begun))
        assert np.linalg.norm(found - wanted) <= 1e-5 * size < 1e-2  # and nothing diverged


@pytest.mark.slow
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("example", columns_contract.examples())
def test_twenty_steps_of_the_contract_s_problem_end_alike(example, gate):
    method, case = replace(columns_contract.examples()[example], labels=GATES[gate]), columns_contract.case()
    whole = sv.run(case.problem, case.table(), method, steps=20)
    columns = case.table().columns
    parties = [
        LoneParty.of(
            m, sv.Columns([block], columns.upper, columns.lower), problem=case.problem, method=method, classes=2,
            active=0, steps=20, labels=case.table().labels if m == 0 else None,
        )
        for m, block in enumerate(case.blocks)
    ]  # fmt: skip
    _require_alike(parties, together(parties), whole, case.problem)


def test_sockets_give_what_queues_give():
    found, wanted = together(two(run="r"), SocketTransport.local(2, "r")), together(two())
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_crosses_is_head_outputs_gradients_and_scalars_and_nothing_else():
    transport = Recording()
    together(two(), [transport] * 2)
    copies, batch = METHOD.directions + 1, METHOD.batch
    seen = {}
    for hearer, message, _ in transport.sent:
        what = message.id.tag.split()[0]
        assert ACTIVE in (hearer, message.id.sender)  # passive parties do not talk to each other
        assert (hearer == ACTIVE) == (what in ("facts", "outputs", "scalars"))
        shapes = tuple(value.shape for value in message.values) if what not in ("facts", "agreement") else None
        seen[what, message.standing, shapes] = seen.get((what, message.standing, shapes), 0) + 1
    lower, upper, numbers = ((copies, batch, CLASSES),), ((batch, CLASSES),), ((METHOD.directions,),)
    assert seen == {
        ("facts", "public", None): 1,
        ("agreement", "public", None): 1,
        ("outputs", "disclosure", lower): STEPS * METHOD.inner_steps,
        ("gradients", "disclosure", lower): STEPS * METHOD.inner_steps,  # of open labels
        ("outputs", "disclosure", upper): STEPS,
        ("gradients", "disclosure", upper): STEPS,
        ("scalars", "disclosure", numbers): STEPS,
        ("sums", "disclosure", numbers): STEPS,
    }


@pytest.mark.parametrize(
    ("gate", "standing"),
    [
        (Fresh(1.0), "release"),
        pytest.param(Open(), "disclosure", marks=pytest.mark.slow),
        pytest.param(Printed(1.0), "disclosure", marks=pytest.mark.slow),
    ],
)
def test_gradients_come_through_the_gate_and_are_releases_only_if_it_is_sound(gate, standing):
    """The oracle is the server of one place, with the key that it has there."""
    transport, method, rows = Recording(), replace(METHOD, labels=gate), np.arange(METHOD.batch)
    party = two(method)[ACTIVE]
    loop = next(e for e in party.account.trace.parties[0].step.eqns if "body" in e.params)
    asked = next(e for e in loop.params["body"].eqns if "level" in e.params)
    said = [jnp.full((2, len(rows), CLASSES), m + 1.0) * jnp.arange(CLASSES) for m in range(2)]
    where, number = loop.params["number"], asked.params["number"]
    transport.send(
        ACTIVE, Message(MessageId("", 1, 0, f"outputs {number}, loop {where} turn 5"), (said[0],), "disclosure")
    )
    PartyAnswers(party, 1, transport, ((where, 5),))(asked, [rows, said[1]])
    (told,) = [message for hearer, message, _ in transport.sent if hearer == 0]
    assert told.standing == standing
    table = sv.Table(sv.Columns(BLOCKS), store())
    key = step_key(table_roots(table_account(method, table, PROBLEM, STEPS, 0.0), table)[-1], 3, "step", 1)
    server = ServerMoment(party.account.trace.losses, gate, jnp.asarray(gate.vectors(store())), key).inside(where, 5)
    np.testing.assert_allclose(told.values[0], server.slopes(rows, said, number), rtol=1e-5, atol=1e-6)


def test_labels_are_charged_for_the_whole_run_before_the_label_holder_gives_its_word():
    labels = store()
    transport = Recording(lambda: float(labels.epsilon()))
    on_threads(two(replace(METHOD, labels=Fresh(1.0)), labels), [transport] * 2, lambda one, by: one.begin(by))
    spent = {message.id.tag: epsilon for _, message, epsilon in transport.sent}
    uses = STEPS * (METHOD.inner_steps * 2 + 1) * METHOD.batch / len(labels)  # each label as often: in copies below
    assert spent == {"facts": 0.0, "agreement": pytest.approx(2 * uses)}


def test_a_run_beyond_the_labels_budget_sends_nothing_but_facts():
    labels, transport = store(budget=Budget(0.5, 0.0)), Recording()
    with pytest.raises(BudgetExceeded, match="Nothing was released"):
        together(two(replace(METHOD, labels=Memoised(1.0)), labels), [transport] * 2)
    assert {message.id.tag for _, message, _ in transport.sent} == {"facts"}
    assert float(labels.epsilon()) == 0


def test_a_secret_that_survives_a_restart_pays_once():
    labels, method = store(), replace(METHOD, labels=Fresh(1.0))

    def spent(**how):
        assert two(method, labels, **how)[ACTIVE].desk is not None
        return float(labels.epsilon())

    once = spent(secret=b"s" * 16)
    assert spent(secret=b"s" * 16) == once
    assert spent(secret=b"t" * 16) == pytest.approx(2 * once)  # other noise
    assert spent() == pytest.approx(3 * once)


def test_parties_that_would_run_different_things_are_told_what_differs():
    labels = store()
    parties = two(labels=labels)
    parties[0] = lone(0, seed=4, steps=STEPS + 1, order="other rows")
    said = {}

    def life(party, transport):
        with pytest.raises(ValueError) as refused:
            party.begin(transport)
        said[party.me] = str(refused.value)

    on_threads(parties, queues(2), life)
    assert len(set(said.values())) == 1
    for words in ("steps is 3 at party 0 and 2 at party 1", "seed is 4", "order of the rows is 'other rows'"):
        assert words in said[0]
    assert float(labels.epsilon()) == 0


WRONG = {
    "another shape": [np.zeros((2, 4), np.float32)],
    "another type": [np.zeros((2, 3), np.float64)],
    "two arrays": [np.zeros((2, 3), np.float32)] * 2,
    "nothing": [],
    "not a number": [np.full((2, 3), np.nan, np.float32)],
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("me", [ACTIVE, 0])
def test_a_message_that_does_not_fit_is_refused_and_not_computed_with(wrong, me):
    transport, party = QueueTransport(Patience(20.0)), two()[me]
    sender, what = (0, "outputs 7") if me == ACTIVE else (ACTIVE, "gradients 7")
    transport.send(me, Message(MessageId("", 5, sender, what), WRONG[wrong], "disclosure"))
    answers = PartyAnswers(party, 5, transport)
    kind = FloatingPointError if wrong == "not a number" else ValueError
    value = jnp.zeros((2, 3), jnp.float32)
    with pytest.raises(kind, match=f"{what} of agent {sender} in round 5 was refused"):
        answers.exchange("outputs", "gradients", 7, value, lambda said: pytest.fail("computed"), "release")


@pytest.mark.parametrize("wrong", [b"no json", b"[1]", b'"' + b"x" * 70000 + b'"'])
def test_facts_that_are_none_are_refused(wrong):
    transport = QueueTransport(Patience(20.0))
    transport.send(ACTIVE, Message(MessageId("", 0, 0, "facts"), (np.frombuffer(wrong, np.uint8),), "public"))
    with pytest.raises(ValueError, match="facts of agent 0 in round 0 was refused"):
        two()[ACTIVE].begin(transport)


def test_a_run_goes_on_from_a_state():
    def halves(party, transport):
        state, _ = party.begin(transport)
        state, _ = party.advance(transport, state, 0, 1)
        party.agree(transport, 1)
        return party.advance(transport, [np.asarray(leaf) for leaf in state], 1, STEPS - 1)[0]

    found = on_threads(two(), queues(2), halves)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(together(two())), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_party_that_goes_leaves_no_one_waiting():
    def life(party, transport):
        if party.me == 0:
            return
        with pytest.raises(PeerGone):
            run_party(party, transport)

    on_threads(two(), queues(2), life)


def test_the_statement_names_what_is_disclosed_and_only_the_label_holder_makes_it():
    parties = two()
    assert set(DISCLOSED) <= set(parties[ACTIVE].report().caveats)
    with pytest.raises(ValueError, match="party 0 holds no labels"):
        parties[0].report()


@pytest.mark.parametrize(
    ("gate", "seed", "secret", "drawn", "note"),
    [
        (Memoised(1.0), None, None, "exact", None),
        (Memoised(1.0), 0, b"s" * 16, "simulated", SIMULATED),
        (Fresh(1.0), None, b"s" * 16, "secret", SECRET),
        (Fresh(1.0), None, None, "simulated", SIMULATED),
    ],
)
def test_the_statement_says_how_label_noise_is_drawn(gate, seed, secret, drawn, note):
    labels = sv.Labels(LABEL, CLASSES, seed=seed)
    party = two(replace(METHOD, labels=gate), labels, secret=secret)[ACTIVE]
    assert party.desk is not None
    report = party.report()
    assert (report.drawn, report.private) == (drawn, True)
    assert [line for line in report.caveats if line in (SIMULATED, SECRET)] == ([note] if note else [])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"me": 0, "labels": True}, "party 0 has labels, and party 1 is active"),
        ({"me": ACTIVE, "labels": False}, "party 1 has no labels"),
        ({"me": 3}, "me is 3: give the number of a party, 0 to 1"),
        ({"me": 0, "columns": sv.Columns(BLOCKS)}, "party 0 was given 2 blocks"),
        ({"me": ACTIVE, "labels": True, "classes": 4}, "6 labels of 3 classes"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(given, message):
    me, labels = given.pop("me"), store() if given.pop("labels", None) else None
    columns = given.pop("columns", sv.Columns([BLOCKS[0]]))
    public = {"problem": PROBLEM, "method": METHOD, "classes": CLASSES, "active": ACTIVE, "steps": 1, **given}
    with pytest.raises(ValueError, match=message):
        LoneParty.of(me, columns, labels=labels, **public)


@pytest.mark.slow
def test_parties_in_processes_of_their_own_do_what_threads_do():
    found, wanted, codes = apart("tests.runtime.party_process", 2)
    assert found == wanted
    assert len(set(map(str, found))) == 2  # what they hold differs
    assert codes == [0] * 3
