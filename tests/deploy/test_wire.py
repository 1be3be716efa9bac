"""Messages through a relay that is not trusted: the transport contract, certificates, and whatever does not fit."""

import logging
import secrets
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from sottovoce.deploy.flare import FlareTransport
from sottovoce.deploy.outbox import Outbox
from sottovoce.deploy.tunnel import IDENTITY, Identity, Line, Reception, fingerprint
from sottovoce.runtime.frames import Message, MessageId
from sottovoce.runtime.transport import Expected, Patience, Silence, Stopped
from tests.deploy import cases
from tests.runtime import test_transport as contract
from tests.runtime.test_transport import (  # the same contract as for queues and sockets
    said,
    test_a_late_message_is_waited_for,
    test_messages_that_come_twice_or_out_of_turn_do_no_harm,
    test_whoever_waits_for_a_peer_that_leaves_is_told,
)

__all__ = [
    "test_a_late_message_is_waited_for",
    "test_messages_that_come_twice_or_out_of_turn_do_no_harm",
    "test_whoever_waits_for_a_peer_that_leaves_is_told",
]
NAMES = cases.SITES[:3]


def identity(kits, name, peers=None, kit=None):
    prints = {other: fingerprint(kits / other / IDENTITY / "site.crt") for other in NAMES}
    return Identity.of(kits / (kit or name), prints if peers is None else peers)


class Calls:
    """Three parties, each with a transport of its own; the first calls fail."""

    def __init__(self, kits, folder, patience=contract.WAIT, failures=0, **own):
        self.failures = failures
        self.tamper = lambda caller, name, data: data
        self.of = [
            FlareTransport(
                me, NAMES, "r", Outbox(folder / secrets.token_hex(4)), own.get(name, identity(kits, name)),
                lambda to, data, seconds, me=name: self.call(me, to, data), patience, hold=0.2,
                expected=Expected(50_000, 4),
            )
            for me, name in enumerate(NAMES)
        ]  # fmt: skip
        for transport in self.of:
            transport.charged = True

    def call(self, caller, to, data):
        if self.failures > 0:
            self.failures -= 1
            raise ConnectionResetError("broken by the test")
        data = self.tamper(caller, to, data)
        return b"" if data is None else self.of[NAMES.index(to)].answer(caller, data)

    def send(self, hearer, message):
        self.of[message.id.sender].send(hearer, message)

    def receive(self, hearer, wanted, like=None):
        return self.of[hearer].receive(hearer, wanted, like)

    def leave(self, agent):
        self.of[agent].leave(agent)


@pytest.fixture
def connect(kits, tmp_path):
    made = []

    def connected(patience=contract.WAIT, failures=0, **own):
        made.append(Calls(kits, tmp_path, patience, failures, **own))
        return made[-1]

    yield connected
    for between in made:
        for one in between.of:
            one.close()


def test_a_stop_ends_sending_and_waiting(connect):
    between, found = connect(), []

    def wait():
        with pytest.raises(Stopped, match="interrupted"):
            between.receive(1, said().id)
        found.append(True)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    between.of[1].stop()
    waiting.join(10)
    assert found
    with pytest.raises(Stopped):
        between.send(0, said(sender=1))


def test_a_wrong_certificate_a_wrong_name_and_one_that_is_not_on_the_list_are_refused(connect, kits, caplog, tmp_path):
    """The run goes on unharmed for the others."""
    foreign = tmp_path / "foreign"
    from sottovoce.deploy.kits import provision

    provision(NAMES, "localhost", 8002, foreign)  # the same names, another authority
    ours = {name: fingerprint(kits / name / IDENTITY / "site.crt") for name in NAMES}
    strangers = {
        "another authority": replace(
            identity(foreign, "south", ours), authority=kits / "south" / IDENTITY / "authority.crt"
        ),
        "another name": identity(kits, "south", kit="east"),
    }
    for who, stranger in strangers.items():
        between = connect(Patience(0.5), south=stranger)
        between.send(1, said())
        with pytest.raises(Silence), caplog.at_level(logging.WARNING):
            between.receive(1, said().id)  # agent 1 cannot ask
        assert caplog.records, who
        caplog.clear()
    removed = {name: seen for name, seen in ours.items() if name != "south"}
    between = connect(Patience(0.5), north=identity(kits, "north", removed))
    between.send(1, said())
    between.send(2, said(value=4.0))
    with pytest.raises(Silence), caplog.at_level(logging.WARNING):
        between.receive(1, said().id)
    assert "not on the list" in caplog.text
    assert between.receive(2, said().id)[0] == 4.0


def test_calls_that_the_relay_repeats_changes_cuts_or_makes_up_are_refused(connect, caplog):
    """Every fourth call is tampered with, in one of these ways; the messages still come, once each."""
    seen, between = [], connect()

    def tamper(caller, to, data):
        seen.append(data)
        way = len(seen) % 16
        if way == 4:
            return data[:-1]
        if way == 8:
            return secrets.token_bytes(200)
        if way == 12:
            between.of[NAMES.index(to)].answer(caller, data)  # twice
        if way == 0:
            return bytes([*data[:60], data[60] ^ 1, *data[61:]]) if len(data) > 60 else b""
        return data

    between.tamper = tamper
    with caplog.at_level(logging.WARNING):
        for round in range(8):
            between.send(1, said(round, value=round))
            assert between.receive(1, said(round).id)[0] == round
    assert "refused" in caplog.text
    body = said(7, value=7).to_bytes()
    assert not any(piece in b"".join(seen) for piece in (body[-20:], b"mix 1"))  # the relay reads nothing


def test_messages_of_a_dishonest_peer_are_refused(connect, caplog):
    """It has a good certificate and says what it likes: another run or sender, old rounds, NaN, other shapes, noise."""
    between = connect(Patience(30.0))
    wrong = [
        said(run="earlier"), said(sender=2), said(3), said(value=np.nan), said(value=np.inf),
        Message(said().id, (np.zeros(7),), "release"),
    ]  # fmt: skip
    frames = [one.to_bytes() for one in wrong]
    frames += [frames[0][:-1], frames[0] + b"x", b"", b"\x80\x04cos\nsystem\n(S'true'\ntR."]
    answers = iter(
        [*(((0, number), frame) for number, frame in enumerate(frames)), ((0, 90), said(value=5.0).to_bytes())]
    )
    between.of[0].outbox.after = lambda hearer, place, seconds: next(answers, None)
    with caplog.at_level(logging.WARNING):
        like = [np.float32(0), np.arange(3)]
        assert between.receive(1, said().id, like)[0] == 5.0
    for why in ("another run or sender", "round", "not finite", "no message", "other shapes"):
        assert why in caplog.text


def test_a_message_over_the_limit_is_refused_by_its_length(connect, caplog):
    between = connect(Patience(0.5))
    between.of[1].expected = Expected(1000, 4)
    between.send(1, Message(said().id, (np.zeros(5000),), "release"))
    between.send(2, said(value=2.0))
    with pytest.raises(Silence), caplog.at_level(logging.INFO):
        between.receive(1, said().id)
    assert "bytes are announced, and the limit is 1013" in caplog.text
    assert between.receive(2, said().id)[0] == 2.0


def test_a_diverging_party_sends_nothing(connect):
    between = connect()
    with pytest.raises(FloatingPointError, match="nothing is sent"):
        between.send(1, said(value=np.nan))


def fuzzed(whole, turn, rng):
    """Return a frame that is cut, longer, made up, or has some bits changed: anywhere, or in its head."""
    data, kind = bytearray(whole), turn % 5
    if kind == 0:
        return bytes(data[: rng.integers(len(data))])
    if kind == 1:
        return bytes(data) + rng.bytes(int(rng.integers(1, 40)))
    if kind == 2:
        return rng.bytes(int(rng.integers(0, 200)))
    for place in rng.choice(len(data) if kind == 3 else 33, rng.integers(1, 4), replace=False):
        data[place] ^= 1 << rng.integers(8)
    return bytes(data)


def test_none_of_ten_thousand_fuzzed_frames_is_accepted():
    """And if their checksums are made to fit, what is accepted is well-formed: written again, it is the same bytes."""
    rng, forgeries = np.random.default_rng(0), 0
    whole = Message(
        MessageId("run", 5, 3, "step: mix 4"), (np.arange(6.0).reshape(2, 3), np.int32(7)), "release"
    ).to_bytes()
    for turn in range(10_000):
        data = fuzzed(whole, turn, rng)
        assert data != whole
        with pytest.raises(ValueError, match="no message"):
            Message.from_bytes(data)
        try:
            assert Message.from_bytes(contract.forged(data)).to_bytes() == contract.forged(data)
            forgeries += 1
            assert turn % 5 in (3, 4)
        except ValueError as error:
            assert "no message" in str(error)  # noqa: PT017
    assert 1000 < forgeries < 4000  # other numbers, names or rounds: only TLS, and what a run expects, refuse these


def test_none_of_ten_thousand_fuzzed_calls_gets_an_answer(kits):
    """The relay makes calls up, or changes those that it hands over: no question reaches the party, and it goes on."""
    north, south, rng = NAMES[0], NAMES[1], np.random.default_rng(1)
    asked, calls = [], []
    reception = Reception(identity(kits, north), lambda peer, question: asked.append(question) or question)

    def call(data, seconds):
        calls.append(data)
        return reception.answer(south, data)

    line = Line(identity(kits, south), north, call, lambda: 1 << 16, 1.0)
    assert line.ask(b"first", 0.0) == b"first"
    logging.disable(logging.WARNING)
    try:
        for turn in range(10_000):
            reception.answer(south, fuzzed(calls[turn % len(calls)], turn, rng))
    finally:
        logging.disable(logging.NOTSET)
    assert asked == [b"first"]
    assert Line(identity(kits, south), north, call, lambda: 1 << 16, 1.0).ask(b"second", 0.0) == b"second"
