"""Rows joined by private set intersection over a transport: correct, and nobody sees an id that is not common."""

from types import SimpleNamespace

import numpy as np
import pytest

import sottovoce as sv
from sottovoce.data.join import tokens
from sottovoce.papers.bambi.method import Bambi
from sottovoce.privacy.labels import Memoised
from sottovoce.problems.tasks.vertical import hyper_parameters
from sottovoce.runtime.lone_party import LoneParty, run_party
from sottovoce.runtime.socket_transport import SocketTransport
from sottovoce.runtime.threads import on_threads, queues
from sottovoce.runtime.transport import Message, MessageId, Patience, QueueTransport

psi = pytest.importorskip("private_set_intersection.python", reason="needs the extra [deploy]")
join = pytest.importorskip("sottovoce.runtime.join")

KEY = bytes(range(32))
NAMES = ["ann", "bob", "zoë", "安娜", "Ωmega", "eve", "  x", "7"]


class Recording(QueueTransport):
    def __init__(self):
        super().__init__(Patience(20.0))
        self.sent = []

    def _put(self, hearer, message):
        self.sent.append((hearer, message))
        super()._put(hearer, message)


def together(lists, transports=None, active=0, keys=None, run="", **how):
    """Join some lists, each party on a thread."""
    members = [SimpleNamespace(me=me) for me in range(len(lists))]

    def life(member, transport):
        key = (keys or [KEY] * len(lists))[member.me]
        return join.join_rows(
            lists[member.me], key, transport, me=member.me, active=active, parties=len(lists), run=run, **how
        )

    return on_threads(members, transports or queues(len(lists)), life)


CASES = {
    "two": ([NAMES[:6], NAMES[3:]], 0),
    "unequal sizes": ([["安娜"], NAMES * 1 + [f"n{i}" for i in range(40)]], 0),
    "numbers and digits": ([[1, 2, 3, 40], ["3", "40", "5"]], 1),
    "the same list": ([NAMES, NAMES[::-1]], 0),
    "three": ([NAMES[:6], NAMES[1:7], [*NAMES[2:5], "7", "ann"]], 1),
    "one in common": ([["a", "b"], ["b", "c"], ["c", "b"], ["b"]], 2),
}


@pytest.mark.parametrize("case", CASES)
def test_all_parties_learn_the_common_ids_in_one_order(case):
    lists, active = CASES[case]
    wanted = set.intersection(*[{str(one) for one in ids} for ids in lists])
    found = together(lists, active=active)
    assert {frozenset(one.ids) for one in found} == {frozenset(wanted)}
    assert len({tuple(one.ids) for one in found}) == len({one.order for one in found}) == 1
    for one, ids in zip(found, lists):
        assert [str(ids[row]) for row in one.rows] == one.ids.tolist()


def test_sockets_carry_a_join():
    lists, _ = CASES["two"]
    found = together(lists, SocketTransport.local(2, "r"), run="r")
    assert found[0].ids.tolist() == found[1].ids.tolist()
    assert len(found[0].rows) == 3


@pytest.mark.parametrize("lists", [[["a", "b"], ["c"]], [["a"], ["a"], ["b"]]])
def test_an_empty_intersection_is_said_to_all(lists):
    said = []

    def life(member, transport):
        with pytest.raises(ValueError) as refused:
            join.join_rows(lists[member.me], KEY, transport, me=member.me, active=0, parties=len(lists))
        said.append(str(refused.value))

    on_threads([SimpleNamespace(me=me) for me in range(len(lists))], queues(len(lists)), life)
    assert len(said) == len(lists)
    assert set(said) == {"no id is common to all parties: check that all spell their ids alike"}


def test_ids_that_name_two_rows_are_refused_before_anything_is_sent():
    transport = Recording()
    with pytest.raises(ValueError, match="more than one row"):
        join.join_rows(["a", "a"], KEY, transport, me=0, active=0, parties=2)
    assert not transport.sent


def test_another_key_is_noticed_before_an_answer_is_given():
    transport = Recording()
    with pytest.raises(ValueError, match="party 0 has another key"):
        together(CASES["two"][0], [transport] * 2, keys=[KEY, KEY[::-1]])
    assert [message.id.tag for _, message in transport.sent] == ["join: question"]


def test_no_message_holds_an_id_or_a_keyed_one():
    transport, lists = Recording(), CASES["three"][0]
    together(lists, [transport] * 3)
    seen = b"".join(np.asarray(value).tobytes() for _, message in transport.sent for value in message.values)
    for ids in lists:
        for one, keyed in zip(ids, tokens(ids, KEY)):
            assert keyed.tobytes() not in seen
            assert keyed.tobytes().hex().encode() not in seen
            assert len(one.encode()) < 4 or one.encode() not in seen  # shorter ones are found in any noise
    assert KEY not in seen
    assert {message.standing for _, message in transport.sent} == {"disclosure"}


def test_the_library_is_given_keyed_ids_only(monkeypatch):
    given, lists, real = set(), CASES["two"][0], join._texts
    monkeypatch.setattr(join, "_texts", lambda found: given.update(made := real(found)) or made)
    together(lists)
    assert given == {one.tobytes().hex() for ids in lists for one in tokens(ids, KEY)}


def test_the_same_list_looks_different_in_every_join():
    """The blinding keys are new: what was sent before cannot be compared with what is sent now."""
    points = []
    for _ in range(2):
        transport = Recording()
        together([NAMES, NAMES], [transport] * 2)
        (question,) = [m for _, m in transport.sent if m.id.tag == "join: question"]
        points.append(set(psi.Request.FromString(question.values[1].tobytes()).encrypted_elements))
    assert len(points[0] | points[1]) == 2 * len(NAMES)


def test_a_party_that_keeps_its_secret_says_the_same_bytes_again():
    """So a join goes on after a kill. With another secret, or asked by another key, everything differs."""
    said = []
    for secret in (b"s" * 32, b"s" * 32, b"t" * 32):
        transport = Recording()
        together([NAMES[:6], NAMES[1:7], NAMES[2:]], [transport] * 3, secret=secret)
        said.append(sorted(m.to_bytes() for _, m in transport.sent))
    assert said[0] == said[1]
    assert not set(said[0]) & set(said[2])
    made = join._Maker(psi, b"s" * 32, 10)
    assert len({made.key(purpose) for purpose in ("ask", "answer", "ask 1", "answer 1", "ask 2")}) == 5


@pytest.mark.parametrize("long", [0, 1])
def test_a_list_that_is_longer_than_agreed_is_refused(long):
    """Whoever asks about very many ids learns about very many."""
    lists = [NAMES[:3], NAMES[:3]]
    lists[long] = NAMES
    with pytest.raises(ValueError, match=f"of party {long} in the join was refused .*8 ids, and at most 5"):
        together(lists, longest=5)


def test_passive_parties_learn_nothing_about_each_other():
    """Each is asked about as many ids as the active party has, whatever the parties before it have."""
    for second in (NAMES[:1], NAMES):
        transport = Recording()
        together([NAMES, second, NAMES[:1]], [transport] * 3)
        asked = [m for hearer, m in transport.sent if m.id.tag == "join: question" and hearer == 2]
        assert len(psi.Request.FromString(asked[0].values[1].tobytes()).encrypted_elements) == len(NAMES)
        assert all(0 in (hearer, m.id.sender) for hearer, m in transport.sent)


WRONG = {
    "no bytes": [np.zeros(3, np.float32)] * 3,
    "too few": [np.zeros(3, np.uint8)],
    "no answer": [np.frombuffer(b"nonsense", np.uint8)] * 3,
    "empty": [np.zeros(0, np.uint8)] * 3,
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_answer_that_is_none_is_refused(wrong):
    transport = QueueTransport(Patience(20.0))
    transport.send(0, Message(MessageId("", 0, 1, "join: answer and question"), WRONG[wrong], "disclosure"))
    with pytest.raises(ValueError, match="refused"):
        join.join_rows(NAMES, KEY, transport, me=0, active=0, parties=2)


def test_an_answer_that_takes_all_ids_for_common_is_refused():
    """A filter with all bits set would have said so."""
    made = join._Maker(psi, b"s", longest=10)
    asking = join._Asking(made, "ask", tokens(NAMES, KEY))
    every = psi.ServerSetup()
    every.bloom_filter.num_hash_functions, every.bloom_filter.bits = 1, b"\xff"
    response = join._Answering(made, "answer", tokens(["other"], KEY)).response(1, asking.request)
    with pytest.raises(ValueError, match="of party 1 in the join was refused"):
        asking.found(1, np.frombuffer(every.SerializeToString(), np.uint8), response, tokens(NAMES, KEY))


NO_POINTS = {
    "infinity": b"\x00",
    "nothing": b"",
    "not on the curve": bytes([2]) + b"\x01" * 32,
    "beyond the field": bytes([2]) + b"\xff" * 32,
    "both coordinates": bytes([4]) + b"\x05" * 64,
    "hybrid": bytes([6]) + b"\x05" * 64,
}


@pytest.mark.parametrize("point", NO_POINTS)
def test_a_question_about_points_that_are_none_is_refused(point):
    """A point of small order would tell about the key that answers it."""
    answering = join._Answering(join._Maker(psi, b"s", longest=10), "answer", tokens(NAMES, KEY))
    asked = psi.Request(reveal_intersection=True, encrypted_elements=[NO_POINTS[point]])
    with pytest.raises(ValueError, match="of party 1 in the join was refused"):
        answering.response(1, np.frombuffer(asked.SerializeToString(), np.uint8))


@pytest.mark.slow
def test_a_run_goes_on_with_the_joined_rows():
    """Two tables in other orders, with rows that the other lacks: as if the common rows had been in one place."""
    rng = np.random.default_rng(0)
    block, label = rng.normal(size=(60, 4)).astype(np.float32), rng.integers(0, 2, 60)
    ids = [rng.permutation(50), rng.permutation(np.arange(8, 60))]
    method = Bambi(inner_steps=1, batch=20, rate_x=0.1, rate_y=0.5, labels=Memoised(2.0))
    public = {"problem": hyper_parameters([2, 2]), "method": method, "classes": 2, "active": 0, "steps": 2}

    def life(member, transport):
        me, own = member.me, ids[member.me]
        rows = join.join_rows(own, KEY, transport, me=me, active=0, parties=2)
        labels = sv.Labels(rows.pick(label[own]), 2, ids=rows.ids, seed=0) if me == 0 else None
        columns = rows.columns(block[own][:, 2 * me : 2 * me + 2])
        party = LoneParty.of(me, columns, **public, labels=labels, order=rows.order)
        return rows, party, run_party(party, transport)[0]

    (rows, bank, first), (_, shop, second) = on_threads([SimpleNamespace(me=me) for me in (0, 1)], queues(2), life)
    assert len(rows.rows) == 42
    common = ids[0][rows.rows]
    table = sv.Table(
        sv.Columns([block[common][:, :2], block[common][:, 2:]]), sv.Labels(label[common], 2, ids=rows.ids, seed=0), 0
    )
    whole = sv.run(public["problem"], table, method, steps=2)
    for m, (party, leaves) in enumerate([(bank, first), (shop, second)]):
        for name, mine in party.state(leaves).y.items():
            np.testing.assert_allclose(mine, whole.y[m][name], rtol=1e-5, atol=1e-6)
    assert any("which 42 rows they have in common" in line for line in bank.report().caveats)
