"""Calls out of turn, at the same time and from strangers: none is answered, nothing crashes, and nothing fills memory.

A fault here ends the whole process (OpenSSL's objects are for one thread at a time), so the campaigns run in processes
of their own. `make soak` tries ten thousand calls of each kind.
"""

import json
import logging
import secrets
import ssl
import subprocess
import sys
import threading

import numpy as np
import pytest

from sottovoce.deploy import tunnel
from sottovoce.deploy.tunnel import Line, Reception
from sottovoce.runtime.frames import Message, MessageId
from sottovoce.runtime.transport import Expected, Patience, Seldom, Silence
from tests.deploy.test_wire import NAMES, connect, identity, said
from tests.soak.campaign import cases

__all__ = ["connect"]
NORTH, SOUTH = NAMES[0], NAMES[1]
CAMPAIGN = """
import json, logging, secrets, sys, threading
from pathlib import Path
from tests.deploy.test_hostile_calls import NORTH, SOUTH, hello, opened, reception, resident, together
logging.disable(logging.CRITICAL)
kits, known, count = Path(sys.argv[1]), sys.argv[2] == "authenticated", int(sys.argv[3])
north, said, before = reception(kits, lambda peer, question: b"x" * (8 << 20)), [0, 0], 0
for turn in range(count // 12):
    if known:
        calls = opened(kits, north, questions=12)
    else:
        session = secrets.token_bytes(16)
        calls = [session + number.to_bytes(4, "big") + hello() for number in range(12)]
    for answer in together(north, calls):
        said[bool(answer)] += 1
    before = before or resident()
print(json.dumps({"refused": said[0], "answered": said[1], "grown": resident() - before, "kept": kept(north)}))
""".replace("kept(north)", "sum(map(len, north._sessions.values()))")


def reception(kits, respond, **how):
    return Reception(identity(kits, NORTH), respond, **how)


def hello():
    """A ClientHello, as somebody without a certificate may send it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


def opened(kits, north, questions):
    """Open a session of an honest peer, and return some more calls of it."""
    end, session = tunnel._End(identity(kits, SOUTH).context(server=False), server=False), secrets.token_bytes(16)

    def call():
        data = tunnel._HEAD.pack(session, end.number) + end.outgoing.read()
        end.number += 1
        return data

    while not end.shaken():
        end.incoming.write(north.answer(SOUTH, call()))
    calls = []
    for _ in range(questions):
        end.write(b"q" * 60_000)
        calls.append(call())
    return calls


def together(north, calls):
    """Make calls on as many threads at once; return their answers."""
    found = [b""] * len(calls)

    def make(number):
        found[number] = north.answer(SOUTH, calls[number])

    threads = [threading.Thread(target=make, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def resident():
    """The memory of this process, in MB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def campaign(kits, kind, count):
    done = subprocess.run(
        [sys.executable, "-c", CAMPAIGN, str(kits), kind, str(count)], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-500:]
    return json.loads(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read off /proc")
@pytest.mark.parametrize("kind", ["authenticated", "stranger"])
def test_calls_at_the_same_time_do_not_crash_a_site(kits, kind):
    """At most one call of each session is answered, and the session is over: the first call, if it was not met."""
    count = cases(10_000, 120 if kind == "authenticated" else 1200)
    found = campaign(kits, kind, count)
    assert found["answered"] <= count // 12
    assert found["kept"] <= 2 * tunnel._SESSIONS
    assert found["grown"] < 100


def test_a_call_during_a_call_ends_the_session(kits):
    """The call that is being answered gets no answer, and its number is not used up before it is answered."""
    entered, go, answers = threading.Event(), threading.Event(), []

    def slowly(peer, question):
        entered.set()
        assert go.wait(60)
        return b"an answer"

    north = reception(kits, slowly)
    first, second = opened(kits, north, questions=2)
    asking = threading.Thread(target=lambda: answers.append(north.answer(SOUTH, first)))
    asking.start()
    assert entered.wait(60)
    assert north.answer(SOUTH, second) == b""
    go.set()
    asking.join(60)
    assert answers == [b""]
    assert north._sessions[SOUTH] == {}
    assert Line(identity(kits, SOUTH), NORTH, lambda data, _: north.answer(SOUTH, data), lambda: 99, 1.0).ask(b"", 0.0)


def test_only_names_on_the_list_get_a_session_and_strangers_end_none(kits):
    """3000 invented names leave nothing; ClientHellos in the name of a peer leave a few, and end no session of it."""
    north = reception(kits, lambda peer, question: question)
    line = Line(identity(kits, SOUTH), NORTH, lambda data, _: north.answer(SOUTH, data), lambda: 99, 1.0)
    assert line.ask(b"one", 0.0) == b"one"
    first = hello()
    for number in range(3000):
        north.answer(f"x{number}", secrets.token_bytes(16) + bytes(4) + first)
    assert set(north._sessions) == set(NAMES)
    for _ in range(50):
        assert north.answer(SOUTH, secrets.token_bytes(16) + bytes(4) + first)
    assert len(north._sessions[SOUTH]) == tunnel._SESSIONS + 1
    assert line.ask(b"two", 0.0) == b"two"


def test_a_handshake_has_a_deadline_and_a_size(kits):
    now = [0.0]
    north = reception(kits, lambda peer, question: question, clock=lambda: now[0])
    end, session = tunnel._End(identity(kits, SOUTH).context(server=False), server=False), secrets.token_bytes(16)
    end.shaken()
    end.incoming.write(north.answer(SOUTH, session + bytes(4) + end.outgoing.read()))
    end.shaken()
    end.write(b"question")
    now[0] = tunnel._SHAKEN + 1
    assert north.answer(SOUTH, session + b"\0\0\0\1" + end.outgoing.read()) == b""
    assert north._sessions[SOUTH] == {}
    piece, session = hello(), secrets.token_bytes(16)
    sent = [
        north.answer(SOUTH, session + number.to_bytes(4, "big") + piece[number : number + 1]) for number in range(9)
    ]
    assert north._sessions[SOUTH] == {}  # a handshake in pieces of a byte is given up
    assert sent[-1] == b""
    assert north.answer(SOUTH, secrets.token_bytes(16) + bytes(4) + bytes(1 << 24)) == b""


@pytest.mark.parametrize("what", ["two questions", "half a question", "a long question"])
def test_a_call_is_one_question(kits, what):
    """What a session holds between two calls would add up."""
    asked = []
    north = reception(kits, lambda peer, question: asked.append(question) or question, limit=1000)
    line = Line(identity(kits, SOUTH), NORTH, lambda data, _: north.answer(SOUTH, data), lambda: 1000, 1.0)
    assert line.ask(b"honest", 0.0) == b"honest"
    if what == "two questions":
        line._end.write(b"one")
        line._end.write(b"two")
    elif what == "half a question":
        line._end.line.write(tunnel._LENGTH.pack(900) + b"half")
    else:
        line._end.line.write(tunnel._LENGTH.pack(900) + bytes(2 << 20))
    number = line._end.number
    assert north.answer(SOUTH, tunnel._HEAD.pack(line._session, number) + line._end.outgoing.read()) == b""
    assert north._sessions[SOUTH] == {}
    assert asked == [b"honest"]


def test_the_log_of_refused_calls_is_short(kits, caplog):
    north = reception(kits, lambda peer, question: question)
    with caplog.at_level(logging.WARNING):
        for number in range(1000):
            north.answer(f"x{number}\x1b[2J", b"nonsense")
            north.answer(SOUTH, b"nonsense")
    assert len(caplog.records) == 20  # 1, 2, 4 ... 512, for strangers and for the peer
    assert "\x1b" not in caplog.text


def test_an_answer_of_the_relay_that_is_too_long_is_not_read(kits):
    line = Line(identity(kits, SOUTH), NORTH, lambda data, _: bytes(1 << 20), lambda: 1000, 1.0)
    with pytest.raises(tunnel.Refused, match="1048576 bytes came for an answer of north"):
        line.ask(b"", 0.0)


def test_a_neighbour_cannot_fill_the_memory_with_later_rounds(connect):
    """It has a good certificate, and says large and small messages of rounds to come, as fast as it is asked."""
    between, told = connect(Patience(3.0)), [0]

    def later(hearer, place, seconds):
        told[0] += 1
        round, size = told[0], 4_000 if told[0] % 2 else 400_000
        message = Message(MessageId("r", round, 0, f"made up {round}"), (np.zeros(size, np.uint8),), "release")
        return (round, 0), message.to_bytes()

    between.of[0].outbox.after = later
    with pytest.raises(Silence):
        between.receive(1, said().id, [np.float32(0), np.arange(3)])
    assert told[0] > 4
    assert all(key[1].round <= 1 for key in between.of[1]._early)
    assert sum(message.values[0].nbytes for message in between.of[1]._early.values()) <= 4_000


def test_what_comes_early_is_bounded_by_what_the_program_says(connect):
    """Many messages of the next round: as many are kept as two rounds have."""
    between, told = connect(Patience(3.0)), [0]
    between.of[1].expected = Expected(50_000, 2)

    def early(hearer, place, seconds):
        told[0] += 1
        return (1, told[0]), said(1, tag=f"made up {told[0]}").to_bytes()

    between.of[0].outbox.after = early
    with pytest.raises(Silence):
        between.receive(1, said().id)
    assert told[0] > 4
    assert len(between.of[1]._early) == 4


def test_seldom_is_for_one_name():
    seldom = Seldom()
    assert [seldom.again(name) is None for name in "aabbb"] == [False, False, False, False, True]
