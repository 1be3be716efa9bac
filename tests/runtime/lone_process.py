"""Agents in processes, for tests: ``python -m tests.runtime.lone_process ME`` runs one, without ME all on threads.

A process with one agent prints its address, reads everybody's, runs, and prints the bytes of its agent's state.
"""

import json
import sys

import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import lay_out
from sottovoce.runtime.lone_agent import LoneAgent, run_agent
from sottovoce.runtime.socket_transport import SocketTransport, listen
from sottovoce.runtime.threads import ThreadPlace
from sottovoce.runtime.transport import Patience

SIZES, STEPS = (9, 6, 8), 4
NETWORK = sv.networks.star(3)  # agents 1 and 2 do not talk to each other
PROBLEM = sv.Minimize(lambda x, r: 0.5 * jnp.sum(jnp.tanh(x - r) ** 2), jnp.zeros(5))
METHOD = sv.methods.DpSgd(0.3, sv.Release(1.0, 0.1), sv.Poisson(3))


def records(me: int) -> np.ndarray:
    """Return the records of one agent."""
    return np.random.default_rng(me).normal(size=(SIZES[me], 5)).astype(np.float32) + me


def one(me: int) -> list[str]:
    """Return the leaves of one agent's state; nobody else's records are made."""
    agent = LoneAgent.of(
        me, records(me), PROBLEM, METHOD, sv.Population(SIZES), NETWORK, STEPS, root_key(7), chunk=64, run="r"
    )
    listener = listen()
    print(json.dumps(listener.getsockname()), flush=True)
    addresses = [tuple(address) for address in json.loads(sys.stdin.readline())]
    state, _ = run_agent(agent, SocketTransport(me, addresses, "r", Patience(60.0), listener=listener), STEPS)
    return [np.asarray(leaf).tobytes().hex() for leaf in state]


def together() -> list[list[str]]:
    """Return the leaves of each agent's state, all in this process, by queues."""
    parts = [records(me) for me in range(len(SIZES))]
    trace = account_of(METHOD, parts, STEPS, NETWORK, problem=PROBLEM).trace
    place = ThreadPlace.simulated(trace, PROBLEM, lay_out(parts), root_key(7), 64)
    state, _ = place.advance(place.begin(), 0, STEPS)
    return [[np.asarray(leaf[me]).tobytes().hex() for leaf in state] for me in range(len(SIZES))]


if __name__ == "__main__":
    print(json.dumps(one(int(sys.argv[1])) if sys.argv[1:] else together()), flush=True)
