"""Agents over sockets do what they do over queues, to the bit; on threads, and in processes of their own."""

import numpy as np
import pytest
from tests.methods import contract
from tests.methods.test_contract import EXAMPLES
from tests.runtime.processes import apart

from sottovoce.accounting.account import account_of
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import lay_out
from sottovoce.runtime.lone_agent import own_records
from sottovoce.runtime.socket_transport import SocketTransport
from sottovoce.runtime.threads import ThreadPlace, queues


def over(connect, trace, problem, parts, steps, seed=7, chunk=1024):
    """Return the agents' states after some steps, and what they were paid for."""
    layout, paid = lay_out(parts), []
    records, roots = [own_records(layout, me) for me in range(len(parts))], [root_key(seed)] * len(parts)
    pay = lambda agent, t: paid.append((agent, t))  # noqa: E731
    place = ThreadPlace(trace, problem, records, roots, chunk, pay=pay, run="r", connect=connect)
    return place.advance(place.begin(), 0, steps)[0], sorted(paid)


def sockets(agents):
    return SocketTransport.local(agents, "r")


SLOW = ("DpGradientTracking-sound", "LdpDsbo-sound")  # two exchanges per step; two levels and a loop


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(name, marks=[pytest.mark.xdist_group(name), *([pytest.mark.slow] if name in SLOW else [])])
        for name in ("DpSgd-full", *SLOW)  # in the group of the contract's tests, which compile the same programs
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
    found, wanted, codes = apart("tests.runtime.lone_process", 3)
    assert found == wanted
    assert len(set(map(str, found))) == 3  # what they hold differs
    assert codes == [0] * 4
