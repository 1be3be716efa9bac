"""What does not fit is named before any work, and who is left is told when one is gone."""

import os
import pty
import socket
import sys
import threading

import jax
import pytest

from sottovoce.runtime import coordination, keeper
from sottovoce.runtime.cluster import join, parse_address
from sottovoce.runtime.keeper import Meeting
from sottovoce.runtime.peers import Link

FACTS = {"jax": "1.0", "run file": "abc"}


def come(meeting, rank, processes=2, facts=FACTS):
    """Say hello as a process would."""
    link = Link(socket.create_connection(parse_address(meeting.address)))
    link.say(rank=rank, processes=processes, facts=facts, host="here")
    return link


def test_whoever_does_not_fit_is_told_why_and_the_others_begin():
    meeting = Meeting.at("127.0.0.1", 0, 2)
    guests = [
        come(meeting, 1, facts={**FACTS, "jax": "2.0"}),  # before process 0, which all are compared to
        come(meeting, 1, processes=3),
        come(meeting, 0),
        come(meeting, 0),
        come(meeting, 1, facts={**FACTS, "run file": "xyz"}),
        come(meeting, 1),
    ]
    assert meeting.welcome(10.0, lambda: True)
    guests = [guests[2], guests[1], guests[3], guests[0], *guests[4:]]
    for guest, reason in zip(guests[1:5], ("--processes 3", "rank 0 is taken", "has jax 2.0", "has run file xyz")):
        assert reason in guest.hear()["refused"]
    meeting.start("somewhere:1")
    assert [guest.hear() for guest in (guests[0], guests[5])] == [{"service": "somewhere:1"}] * 2
    guests[5].say(error="the disk is full")
    guests[5].close()
    assert guests[0].hear() == {"gone": "process 1 on here is gone (the disk is full)"}


def test_a_process_that_is_done_is_not_missed():
    meeting = Meeting.at("127.0.0.1", 0, 2)
    first, second = come(meeting, 0), come(meeting, 1)
    assert meeting.welcome(10.0, lambda: True)
    meeting.start("somewhere:1")
    assert first.hear()
    second.say(done=True)
    second.close()
    for thread in threading.enumerate():  # the watch over the second ends without a word
        if thread.name == "watch 1":
            thread.join(10)
    first.say(error="mine")
    meeting.close()
    assert first.hear() is None


def test_those_who_do_not_come_a_port_in_use_and_no_address_are_named():
    meeting = Meeting.at("127.0.0.1", 0, 3)
    guest = come(meeting, 1, processes=3)
    with pytest.raises(ValueError, match=r"1 of 3 processes came within 0.5 seconds; missing: rank 0, 2"):
        meeting.welcome(0.5, lambda: True)
    with pytest.raises(ValueError, match=r"port \d+ on 127.0.0.1 cannot be used \(Address already in use\)"):
        Meeting.at(*parse_address(meeting.address), 2)
    guest.close()
    assert jax.devices()
    with pytest.raises(ValueError, match="used JAX already"):
        join(meeting.address, 2, 1, FACTS)
    for wrong in ("7000", "host:", "host:99999", ":7000"):
        with pytest.raises(ValueError, match="give HOST:PORT"):
            parse_address(wrong)


def test_the_leader_shows_its_progress_where_we_would():
    """On a terminal it writes there itself; what the others print is shown with their rank."""
    ours, terminal = pty.openpty()
    kept = os.dup(2)
    os.dup2(terminal, 2)
    try:
        ask = [sys.executable, "-S", "-c", "import sys; sys.exit(sys.stderr.isatty())"]
        codes = [keeper._start(rank, ask).wait() for rank in (0, 1)]
    finally:
        os.dup2(kept, 2)
        for one in (kept, ours, terminal):
            os.close(one)
    assert codes == [1, 0]


def test_another_jax_is_refused_in_words(monkeypatch):
    from jax._src.lib import _jax

    monkeypatch.delattr(_jax, "get_distributed_runtime_service")
    with pytest.raises(ValueError, match=r"several processes need jax 0.10, and jax .* leave out --processes"):
        coordination.serve("127.0.0.1:1", 2)
