"""Messages along edges: what comes twice, late, out of turn or not at all."""

import threading

import numpy as np
import pytest

from sottovoce.runtime.transport import (
    Message,
    MessageId,
    Patience,
    PeerGone,
    QueueTransport,
    Silence,
    Stopped,
)


def said(round=0, sender=0, tag="mix 1", run="r", value=1.0):
    return Message(MessageId(run, round, sender, tag), (np.float32(value), np.arange(3)), "release")


class Unreliable(QueueTransport):
    """The first attempts fail; then everything comes twice."""

    def __init__(self, failures, patience):
        super().__init__(patience)
        self.failures = failures

    def _put(self, hearer, message):
        if self.failures > 0:
            self.failures -= 1
            raise ConnectionResetError("connection reset")
        super()._put(hearer, message)
        super()._put(hearer, message)


def test_messages_that_come_twice_or_out_of_turn_do_no_harm():
    between = Unreliable(2, Patience(1.0, retries=3, pause=0.001))
    for message in (said(run="earlier"), said(2, value=5.0), said(1, tag="mix 2", value=4.0), said(1, value=3.0)):
        between.send(1, message)
    heard = [between.receive(1, said(*which).id)[0] for which in ((1,), (1, 0, "mix 2"), (2,))]
    assert heard == [3.0, 4.0, 5.0]


def test_a_peer_that_cannot_be_reached_or_says_nothing_is_named():
    between = Unreliable(9, Patience(0.01, retries=1, pause=0.001))
    with pytest.raises(Silence, match=r"mix 1 of agent 0 in round 7 did not reach agent 1 in 2 attempts.*reset"):
        between.send(1, said(7))
    with pytest.raises(Silence, match=r"agent 1 waited 0.01 seconds for mix 1 of agent 0 in round 0"):
        between.receive(1, said().id)


@pytest.mark.parametrize("first", [True, False])
def test_whoever_waits_for_a_peer_that_leaves_is_told(first):
    between, found = QueueTransport(), []

    def wait():
        with pytest.raises(PeerGone, match="agent 0 is gone"):
            between.receive(1, said().id)
        found.append(True)

    waiting = threading.Thread(target=wait)
    if first:
        between.leave(0)
    waiting.start()
    if not first:
        between.leave(0)
    waiting.join(10)
    assert found


def test_a_stop_ends_sending_and_waiting():
    between = QueueTransport()
    between.stop()
    for call in (lambda: between.send(1, said()), lambda: between.receive(1, said().id), between.check):
        with pytest.raises(Stopped, match="interrupted"):
            call()


@pytest.mark.parametrize("cut", [lambda data: data[:-1], lambda data: data + b"x", lambda data: data[5:]])
def test_bytes_that_are_no_message_are_refused(cut):
    with pytest.raises(ValueError, match="these bytes are no message"):
        Message.from_bytes(cut(said().to_bytes()))
