"""The line between FLARE's process and the party's, whose other side may be an attacker's."""

import json
import os
import socket
import struct
import threading
from multiprocessing.connection import Connection

import pytest

from sottovoce.deploy import pipe
from sottovoce.deploy.pipe import Pipe

HEAD = struct.Struct("!cQI")


@pytest.fixture
def line():
    """A pipe that holds questions until it is told to answer, and the raw connection of an attacker."""
    mine, theirs = socket.socketpair()
    free = threading.Event()

    def respond(said, data):
        free.wait(30.0)
        return json.dumps(said).encode() + data

    made = Pipe(mine, respond)
    made.start()
    yield made, Connection(theirs.detach()), free
    free.set()
    made.close()


def question(number, words=b"{}", data=b""):
    return HEAD.pack(b"Q", number, len(words)) + words + data


def answers(raw, count):
    found = [raw.recv_bytes() for _ in range(count)]
    return {HEAD.unpack_from(one)[1]: (one[:1], one[HEAD.size :]) for one in found}


def test_questions_that_are_none_or_too_long_or_too_many_are_refused_and_the_others_answered(line):
    _, raw, free = line
    for number in range(pipe._AT_ONCE):
        raw.send_bytes(question(number, b'{"a": 1}', b"x"))
    for number in range(1000, 1010):
        raw.send_bytes(question(number))
    assert answers(raw, 10) == dict.fromkeys(range(1000, 1010), (b"F", b""))  # no room for more
    free.set()
    assert answers(raw, pipe._AT_ONCE) == dict.fromkeys(range(pipe._AT_ONCE), (b"A", b'{"a": 1}x'))
    wrong = [b"[]", b"\xff", b"{", b'"', b"[" * 10_000]
    for number, words in enumerate(wrong):
        raw.send_bytes(question(number, words))
    raw.send_bytes(question(99, data=b"x" * (pipe.LONGEST + 1)))
    assert {kind for kind, _ in answers(raw, len(wrong) + 1).values()} == {b"F"}
    raw.send_bytes(HEAD.pack(b"A", 7, 0))  # an answer to nothing
    raw.send_bytes(question(100))
    assert answers(raw, 1) == {100: (b"A", b"{}")}


@pytest.mark.parametrize("bytes_", [b"", b"Q", b"x" * 20])
def test_whoever_waits_is_told_when_the_line_ends(line, bytes_):
    made, raw, _ = line
    if bytes_:
        raw.send_bytes(bytes_)
    raw.close()
    with pytest.raises(ConnectionError):
        made.ask({}, seconds=30.0)
    assert made.ended.wait(10.0)


def test_a_frame_that_is_announced_too_long_ends_the_line(line):
    made, raw, _ = line
    os.write(raw.fileno(), struct.pack("!i", pipe.LARGEST + 1))
    assert made.ended.wait(10.0)
