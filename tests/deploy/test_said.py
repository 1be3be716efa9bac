"""What a site says before its first charge is a list; a run of rows and one of columns say that, and nothing else."""

import json
from collections import defaultdict

import numpy as np
import pytest

from sottovoce.deploy import said
from sottovoce.deploy.flare import _PLACE, FlareTransport, fact
from sottovoce.deploy.outbox import Outbox
from sottovoce.deploy.party import Party
from sottovoce.runtime.frames import Message, MessageId
from tests.deploy import column_cases, test_own_tables
from tests.deploy.test_wire import identity

TWO = {"north": ["a", "c"], "south": ["b", "colour", "d", "e"]}


@pytest.fixture
def heard(monkeypatch):
    """What sites say until they have charged, as their peers hear it: a set per site."""
    found, parties = defaultdict(set), {}
    prepare, respond = Party.prepare, FlareTransport._respond

    def preparing(self):
        prepare(self)
        parties[id(self.transport)] = self

    def answered(self, peer, question):
        asked, party, me = json.loads(question), parties[id(self)], self.names[self.me]
        found[peer] |= set() if charged(party, peer) else {("question", name) for name in asked}
        before = charged(party, me)
        answer = respond(self, peer, question)
        if before if "fact" in asked else charged(party, me):  # a message may have come while it was waited for
            return answer
        found[me] |= {("status", name) for name in party.where()}
        if answer[:1] in (b"M", b"A"):
            message = Message.from_bytes(answer[1 + _PLACE.size :])
            how = "fact" if "fact" in asked else "message"
            found[me].add((how, said.name_of(message.id.tag), message.standing))
        else:
            assert answer in (b"N", b"E")  # nothing yet, or the end
        return answer

    def charged(party, name):
        """Whether a site's own books have something: looked up on disk, not in what the site says of itself."""
        home = party.home.parent / name
        return (home / "ledger.jsonl").exists() or any(home.glob("labels-*.npz"))

    monkeypatch.setattr(Party, "prepare", preparing)
    monkeypatch.setattr(FlareTransport, "_respond", answered)
    return found


def of_rows(homes, hall, privacy="", network='[network]\nkind = "complete"\n'):
    sites = ["north", "south"]
    deploy = f"[deploy]\nsites = {sites!r}\nnoise = 'exact'\ndeadline = 30"
    text = test_own_tables.TEXT.format(party="", deploy=deploy).replace("steps = 12", "steps = 1")
    text = text.replace('[network]\nkind = "ring"\n', network).replace("test = 0", "test = 0.2")
    text = text.replace("[privacy]", f"[privacy]\n{privacy}")
    folder = homes(text)
    for seed, site in enumerate(sites):
        lines = test_own_tables.rows(site, seed)
        test_own_tables.write(folder / site / "patients.csv", lines, ["age", "sex", "death"])
    return hall(folder, text).run()


def of_sums(homes, hall):
    return of_rows(homes, hall, 'trust = "sum"\ncolluding = 0', network="")


def of_columns(homes, hall):
    text = column_cases.text("exact", steps=1, every=1, holders=TWO, deadline=60)
    folder = homes(text)
    column_cases.spread(folder, TWO, seed=7)
    return hall(folder, text).run()


EVERYWHERE = {
    *(("question", name) for name in ("run", "fact", "after", "stored", "hold")),
    *(("status", name) for name in ("state", "steps", "round", "waits for", "since")),
    ("fact", "facts", "public"),
}
SAID = {
    "rows": (of_rows, {*EVERYWHERE, ("fact", "sizes", "disclosure")}),
    "sums": (
        of_sums,
        {
            *EVERYWHERE,
            ("fact", "sizes", "disclosure"),
            ("fact", "card", "public"),
            ("fact", "roster", "public"),
        },
    ),
    "columns": (
        of_columns,
        {
            *EVERYWHERE,
            ("fact", "order", "public"),
            *(("message", f"join: {what}", "disclosure") for what in ("question", "answer and question", "answer")),
            *(("message", what, "disclosure") for what in ("outputs", "scalars", "held-out")),
        },
    ),
}


@pytest.mark.parametrize("kind", SAID)
def test_a_run_says_what_is_listed_and_nothing_else_before_its_first_charge(homes, hall, heard, kind):
    if kind == "columns":
        pytest.importorskip("private_set_intersection.python")
    run, expected = SAID[kind]
    assert run(homes, hall).failures == {}
    told = set().union(*heard.values())
    assert told <= expected
    assert {one for one in expected if one[0] in ("fact", "message")} <= told  # when what is asked depends on threads


def test_the_list_has_nothing_that_no_run_says():
    listed = {(one.how, one.name, *([one.standing] if one.standing else [])) for one in said.SAYINGS}
    assert set().union(*(expected for _, expected in SAID.values())) == listed - {("status", "why")}  # of a failure


def test_a_new_fact_is_refused_where_it_would_leave(homes, hall, monkeypatch, heard):
    """As if somebody had added a mean to what is told with the sizes: no site gets it."""
    state = FlareTransport.state

    def curious(self, message):
        state(self, fact("r", self.me, "mean age", [np.array([61.5])], disclosed=True))
        state(self, message)

    monkeypatch.setattr(FlareTransport, "state", curious)
    failures = of_rows(homes, hall).failures
    assert {type(failure).__name__ for failure in failures.values()} == {"RuntimeError"}
    assert all("may not say the fact 'mean age'" in str(failure) for failure in failures.values())
    assert not {one for told in heard.values() for one in told if one[0] == "fact"}


MESSAGES = {
    "a release": Message(MessageId("r", 0, 0, "step: mix 1"), (np.ones(2),), "release"),
    "another standing": Message(MessageId("r", 0, 0, "outputs 1"), (np.ones(2),), "public"),
    "a longer name": Message(MessageId("r", 0, 0, "outputs 1 of row 3"), (np.ones(2),), "disclosure"),
    "a name that begins like a listed one": Message(MessageId("r", 0, 0, "joined"), (np.ones(2),), "disclosure"),
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_that_is_not_listed_does_not_leave_before_a_charge(kind, kits, tmp_path):
    line = FlareTransport(0, ["north", "south"], "r", Outbox(tmp_path), identity(kits, "north"), lambda *given: b"")
    with pytest.raises(RuntimeError, match="before its first charge"):
        line.send(1, MESSAGES[kind])
    assert line.outbox.after(1, (-1, -1), 0) is None
    line.charged = True
    line.send(1, MESSAGES[kind])
    assert line.outbox.after(1, (-1, -1), 0) is not None
    line.close()


def test_every_saying_has_a_reason_and_every_message_a_standing():
    assert all(len(one.reason) > 10 for one in said.SAYINGS)
    assert all((one.standing is None) == (one.how in ("question", "status")) for one in said.SAYINGS)
    assert len({(one.how, one.name) for one in said.SAYINGS}) == len(said.SAYINGS)
