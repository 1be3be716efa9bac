"""Agents over sockets do what they do over queues, to the bit; on threads, and in processes of their own."""

import json
import subprocess
import sys

import numpy as np
import pytest
from tests.methods import contract
from tests.methods.test_contract import EXAMPLES

from sottovoce.accounting.account import account_of
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import lay_out
from sottovoce.runtime.lone_agent import own_records
from sottovoce.runtime.socket_transport import SocketTransport
from sottovoce.runtime.threads import ThreadPlace, queues

from . import lone_process


def over(connect, trace, problem, parts, steps, seed=7, chunk=1024):
    """Return the agents' states after some steps, and what they were paid for."""
    layout, paid = lay_out(parts), []
    records, roots = [own_records(layout, me) for me in range(len(parts))], [root_key(seed)] * len(parts)
    pay = lambda agent, t: paid.append((agent, t))  # noqa: E731
    place = ThreadPlace(trace, problem, records, roots, chunk, pay=pay, run="r", connect=connect)
    return place.advance(place.begin(), 0, steps)[0], sorted(paid)


def sockets(agents):
    return SocketTransport.local(agents, "r")


@pytest.mark.parametrize(
    "example",
    [
        pytest.param("DpSgd-full", marks=pytest.mark.xdist_group("DpSgd-full")),  # its programs are compiled there
        *(pytest.param(name, marks=pytest.mark.slow) for name in EXAMPLES if name != "DpSgd-full"),
    ],
)
def test_sockets_give_what_queues_give(example):
    method = contract.noisy(EXAMPLES[example])
    case, network = contract.case_for(method), contract.network_for(method)
    trace = account_of(method, case.parts, contract.STEPS, network, problem=case.problem).trace
    found, wanted = (over(how, trace, case.problem, case.parts, contract.STEPS) for how in (sockets, queues))
    assert found[1] == wanted[1]
    for a, b in zip(found[0], wanted[0], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_agents_in_processes_of_their_own_do_what_threads_do():
    parts = [lone_process.records(me) for me in range(3)]
    problem = lone_process.PROBLEM
    known = account_of(lone_process.METHOD, parts, lone_process.STEPS, lone_process.NETWORK, problem=problem)
    wanted, _ = over(queues, known.trace, problem, parts, lone_process.STEPS, chunk=64)
    each = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.runtime.lone_process", str(me)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for me in range(3)
    ]
    try:
        addresses = json.dumps([json.loads(one.stdout.readline()) for one in each])
        for one in each:
            one.stdin.write(addresses + "\n")
            one.stdin.flush()
        ends = [json.loads(one.communicate(timeout=120)[0]) for one in each]
    finally:
        for one in each:
            one.kill()
    assert [one.returncode for one in each] == [0, 0, 0]
    for leaf, stacked in enumerate(wanted):
        assert [end[leaf] for end in ends] == [np.asarray(own).tobytes().hex() for own in stacked]
    assert len(set(map(str, ends))) == 3  # they are not all the same
