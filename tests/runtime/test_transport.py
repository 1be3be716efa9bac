"""Messages along edges: what comes twice, late, out of turn or not at all. Every driver keeps the same contract."""

import json
import logging
import socket
import threading
import time
import zlib
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.runtime import frames, socket_transport
from sottovoce.runtime.socket_transport import SocketTransport, listen
from sottovoce.runtime.transport import (
    Message,
    MessageId,
    Patience,
    PeerGone,
    QueueTransport,
    Silence,
    Stopped,
)

WAIT = Patience(10.0, pause=0.001)


def said(round=0, sender=0, tag="mix 1", run="r", value=1.0):
    return Message(MessageId(run, round, sender, tag), (np.float32(value), np.arange(3)), "release")


class UnreliableQueues(QueueTransport):
    """The first attempts fail; then everything comes twice."""

    failures = 0

    def _put(self, hearer, message):
        if self.failures > 0:
            self.failures -= 1
            raise ConnectionResetError("the connection ended")
        super()._put(hearer, message)
        super()._put(hearer, message)


class UnreliableSockets(SocketTransport):
    """The first connections break before the answer: each second one after the message was taken in."""

    failures = 0

    def _keep(self, sender, data, address):
        if self.failures > 0:
            self.failures -= 1
            if self.failures % 2 == 0:
                super()._keep(sender, data, address)
            raise ConnectionResetError("broken by the test")
        return super()._keep(sender, data, address)


class Queues:
    """All agents on one transport."""

    def __init__(self, patience, failures):
        self.one = UnreliableQueues(patience)
        self.one.failures = failures
        self.send, self.receive, self.leave, self.stop = (
            self.one.send,
            self.one.receive,
            self.one.leave,
            self.one.stop,
        )
        self.of = [self.one] * 3


class Sockets:
    """Each agent on its own; what one of them says to all is heard by all."""

    def __init__(self, patience, failures):
        self.of = UnreliableSockets.local(3, "r", patience)
        for one in self.of:
            one.failures = failures

    def send(self, hearer, message):
        self.of[message.id.sender].send(hearer, message)

    def receive(self, hearer, wanted, like=None):
        return self.of[hearer].receive(hearer, wanted, like)

    def leave(self, agent):
        self.of[agent].leave(agent)

    def stop(self):
        self.of[2].stop()


@pytest.fixture(params=[Queues, Sockets], ids=["queues", "sockets"])
def connect(request):
    made = []

    def connected(patience=WAIT, failures=0):
        made.append(request.param(patience, failures))
        return made[-1]

    yield connected
    for between in made:
        for agent in range(3):
            between.leave(agent)


def test_messages_that_come_twice_or_out_of_turn_do_no_harm(connect):
    between = connect(failures=2)
    for message in (said(2, value=5.0), said(0, value=9.0), said(1, tag="mix 2", value=4.0), said(1, value=3.0)):
        between.send(1, message)
    heard = [between.receive(1, said(*which).id) for which in ((1,), (1, 0, "mix 2"), (2,))]
    assert [values[0] for values in heard] == [3.0, 4.0, 5.0]
    assert heard[0][0].dtype == np.float32
    np.testing.assert_array_equal(heard[0][1], np.arange(3))


def test_a_late_message_is_waited_for(connect):
    between, heard = connect(), []
    waiting = threading.Thread(target=lambda: heard.append(between.receive(1, said().id)[0]))
    waiting.start()
    between.send(1, said(tag="mix 0", value=7.0))
    between.send(1, said())
    waiting.join(10)
    assert heard == [1.0]


def test_a_peer_that_cannot_be_reached_or_says_nothing_is_named(connect):
    between = connect(Patience(10.0, retries=1, pause=0.001), failures=9)
    with pytest.raises(Silence, match=r"mix 1 of agent 0 in round 7 did not reach agent 1 in 2 attempts.*ended"):
        between.send(1, said(7))
    with pytest.raises(Silence, match=r"agent 1 waited 0.05 seconds for mix 1 of agent 0 in round 0"):
        connect(Patience(0.05)).receive(1, said().id)


@pytest.mark.parametrize("first", [True, False])
def test_whoever_waits_for_a_peer_that_leaves_is_told(connect, first):
    between, found = connect(), []
    between.send(1, said())

    def wait():
        assert between.receive(1, said().id)[0] == 1.0  # what was said before is heard
        for _ in range(2):
            with pytest.raises(PeerGone, match="agent 0 is gone"):
                between.receive(1, said(1).id)
        found.append(True)

    waiting = threading.Thread(target=wait)
    if first:
        between.leave(0)
    waiting.start()
    if not first:
        between.leave(0)
    waiting.join(10)
    assert found
    between.send(0, said(sender=1))  # nobody hears it, and it does no harm


def test_a_stop_ends_sending_and_waiting(connect):
    between, found = connect(), []

    def wait():
        with pytest.raises(Stopped, match="interrupted"):
            between.receive(1, said().id)
        found.append(True)

    waiting = threading.Thread(target=wait)
    waiting.start()
    between.stop()
    waiting.join(10)
    assert found
    for call in (lambda: between.send(1, said()), lambda: between.receive(1, said().id), between.of[0].check):
        with pytest.raises(Stopped, match="interrupted"):
            call()


def with_id(**changed):
    message = said(sender=2, tag="secret")
    return replace(message, id=replace(message.id, **changed)).to_bytes()


def forged(data):
    """Return a frame whose checksum fits again, as whoever forges one would make it."""
    return bytes(data[:-4]) + zlib.crc32(data[:-4]).to_bytes(4, "big")


def changed(at, new, message=None):
    """Return a frame with some bytes replaced; the checksum fits."""
    data = (message or said()).to_bytes()
    return forged(data[:at] + new + data[at + len(new) :])


HEAD = frames._HEAD.size + len("r" + "mix 1")  # where the first array is described
FLAG = Message(said().id, (np.array([True, False]),), "release")
MALFORMED = {
    "empty": b"",
    "short": said().to_bytes()[:-1],
    "long": said().to_bytes() + b"x",
    "no head": said().to_bytes()[5:],
    "magic": changed(0, b"X"),
    "version": changed(4, b"\0\x63"),
    "standing": changed(6, b"\x03"),  # a fourth reason to leave
    "arrays": changed(7, b"\xff\xff"),
    "length of the tag": changed(23, b"\xff\xff"),
    "kind of number": changed(HEAD, b"\x63"),
    "axes": changed(HEAD + 1, b"\xff"),
    "huge": changed(HEAD + 4, b"\xff" * 8),
    "no text": changed(frames._HEAD.size, b"\xff"),
    "truth value": changed(len(FLAG.to_bytes()) - 5, b"\2", FLAG),
    "zeros at the end": said().to_bytes()[:-20] + bytes(20),  # a power cut may leave the length and no content
    "a bit of a number": bytes([*said().to_bytes()[:-9], said().to_bytes()[-9] ^ 1, *said().to_bytes()[-8:]]),
    "pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_bytes_that_are_no_message_are_refused(data):
    with pytest.raises(ValueError, match="these bytes are no message"):
        Message.from_bytes(data)


def test_every_kind_of_number_survives_and_a_fourth_standing_cannot_be_made():
    values = [np.zeros((2, 3), kind) for kind in ("bool", "int64", "uint8", "float16", "float64")] + [
        jnp.ones(2, "bfloat16")
    ]
    back = Message.from_bytes(Message(said().id, values, "public").to_bytes())
    assert [(one.dtype, one.shape) for one in back.values] == [(one.dtype, one.shape) for one in values]
    with pytest.raises(ValueError, match="standing is 'secret'"):
        Message(said().id, (), "secret")


def test_arrays_of_other_shapes_or_types_are_not_heard(connect, caplog):
    """Whoever knows what to expect never computes with anything else: the sender counts as silent."""
    between = connect(Patience(0.1))
    for values in ((np.float32(1), np.arange(4)), (np.float64(1), np.arange(3)), (np.float32(1),)):
        between.send(1, replace(said(), values=values))
        with pytest.raises(Silence), caplog.at_level(logging.WARNING):
            between.receive(1, said().id, said().values)
    assert "other shapes or types" in caplog.text


def test_a_message_of_another_run_is_not_heard_by_queues():
    between = QueueTransport(Patience(0.05))
    between.send(1, said(run="earlier"))
    with pytest.raises(Silence):
        between.receive(1, said().id)


@pytest.fixture
def three():
    made = SocketTransport.local(3, "r", WAIT)
    yield made
    for agent, one in enumerate(made):
        one.leave(agent)


def call(transport, greeting):
    """Connect from outside and greet; return the connection and the answer."""
    line = socket.create_connection(transport.addresses[transport.me], timeout=10)
    data = greeting if isinstance(greeting, bytes) else json.dumps(greeting).encode()
    line.sendall(len(data).to_bytes(4, "big") + data)
    return line, line.recv(1)


GREETING = {"sottovoce": socket_transport.PROTOCOL, "run": "r", "sender": 0, "hearer": 1, "purpose": "messages"}
STRANGERS = [
    *({**GREETING, **wrong} for wrong in ({"run": "secret"}, {"sender": 1}, {"sender": 3}, {"sender": True})),
    *({**GREETING, **wrong} for wrong in ({"hearer": 0}, {"purpose": "secret"}, {"sottovoce": 0}, {"more": "secret"})),
    b"secret",
    b"[" * 4000,
    b"s" * 5000,
]


def test_strangers_are_turned_away_and_logged_without_what_they_said(three, caplog):
    for stranger in STRANGERS:
        line, answer = call(three[1], stranger)
        assert (answer, line.recv(1)) == (b"-", b"")
        line.close()
    assert len(caplog.records) == len(STRANGERS)
    assert "secret" not in caplog.text
    three[0].send(1, said())
    assert three[1].receive(1, said().id)[0] == 1.0


def test_frames_that_do_not_fit_the_edge_are_refused_and_logged_without_their_content(three, caplog):
    """Agent 0's connection speaks for agent 0 and for this run only."""
    wanted = said(sender=2, tag="secret").id
    line, answer = call(three[1], GREETING)
    assert answer == b"+"
    foreign = [with_id(), with_id(sender=0, run="earlier"), *MALFORMED.values()]  # the first is just what is waited for
    with caplog.at_level(logging.DEBUG):
        for data in foreign:
            line.sendall(len(data).to_bytes(4, "big") + data)
            assert line.recv(1) == b"-"
        own = said(value=6.0).to_bytes()
        line.sendall(len(own).to_bytes(4, "big") + own)
        assert line.recv(1) == b"+"  # it still hears what fits
        line.sendall((1 << 31).to_bytes(4, "big"))
        assert (line.recv(1), line.recv(1)) == (b"-", b"")  # refused by its length, before anything is read
    line.close()
    assert [("no message" in text, "another run or sender" in text) for text in caplog.messages] == [
        *[(False, True)] * 2,
        *[(True, False)] * len(MALFORMED),
        (False, False),
    ]
    assert "secret" not in caplog.text
    three[2].send(1, said(sender=2, tag="secret", value=2.0))
    assert three[1].receive(1, wanted)[0] == 2.0
    assert three[1].receive(1, said().id)[0] == 6.0


def test_a_new_connection_takes_the_place_of_the_senders_old_one(three):
    line, _ = call(three[1], GREETING)
    three[0].send(1, said())
    assert line.recv(1) == b""
    line.close()


def test_a_message_over_the_limit_is_not_sent(three):
    three[0].limit = 50
    with pytest.raises(ValueError, match=r"mix 1 of agent 0 in round 0 has \d+ bytes, over the limit of 50"):
        three[0].send(1, said())


def test_a_hearer_may_come_after_its_sender_and_come_back():
    """Sending waits for a process that starts later; after a broken connection it finds the new one."""
    listeners = [listen(), listen()]
    addresses = [one.getsockname() for one in listeners]
    listeners[1].close()
    sender = SocketTransport(0, addresses, "r", WAIT, listener=listeners[0])
    for round in range(2):
        sending = threading.Thread(target=sender.send, args=(1, said(round, value=round)))
        sending.start()
        time.sleep(0.05)
        hearer = SocketTransport(1, addresses, "r", WAIT)
        assert hearer.receive(1, said(round).id)[0] == round
        sending.join(10)
        hearer._tell = lambda purpose: None  # killed: it says no farewell
        hearer.leave(1)
    sender.leave(0)


def test_where_nobody_listens_the_deadline_is_kept_and_the_address_named():
    listeners = [listen(), listen()]
    addresses = [one.getsockname() for one in listeners]
    listeners[1].close()
    sender = SocketTransport(0, addresses, "r", Patience(0.1), listener=listeners[0])
    with pytest.raises(Silence, match=rf"no agent 1 of run 'r' at 127.0.0.1:{addresses[1][1]} within 0.1 seconds"):
        sender.send(1, said())
    sender.leave(0)
    with pytest.raises(ValueError, match="need a deadline"):
        SocketTransport(0, addresses, "r", Patience())


def test_a_port_that_is_taken_is_named():
    with listen() as taken, pytest.raises(ValueError, match=f"port {taken.getsockname()[1]} on 127.0.0.1"):
        listen(*taken.getsockname())


@pytest.mark.parametrize("greets", [False, True])
def test_a_hearer_that_does_not_answer_is_given_up_at_the_deadline(greets):
    """One deadline, not one per attempt."""
    with listen() as mute, listen() as own:
        held = []

        def greet():
            held.append(mute.accept()[0])
            held[0].sendall(b"+")

        sender = SocketTransport(0, [own.getsockname(), mute.getsockname()], "r", Patience(0.2), listener=own)
        greeting = threading.Thread(target=greet)
        if greets:
            greeting.start()
        attempts, honest = [], sender._put
        sender._put = lambda *given: attempts.append(given) or honest(*given)
        with pytest.raises(Silence):
            sender.send(1, said())
        assert len(attempts) == 1
        mute.close()
        sender.leave(0)
        for line in held:
            line.close()


def threads_of_transports():
    return [thread for thread in threading.enumerate() if thread.name.startswith("agent ")]


def until(condition):
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def test_leaving_ends_all_threads_and_frees_the_port():
    until(lambda: not threads_of_transports())
    each = SocketTransport.local(3, "r", WAIT)
    for round in range(2):
        for sender in range(3):
            for hearer in {0, 1, 2} - {sender}:
                each[sender].send(hearer, said(round, sender))
    assert len(threads_of_transports()) == 3 + 6  # one connection per directed edge
    for agent, one in enumerate(each):
        one.leave(agent)
    until(lambda: not threads_of_transports())
    for one in each:
        listen(*one.addresses[one.me]).close()
