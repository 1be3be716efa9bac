"""One agent in a process of its own, for tests: ``python -m tests.runtime.lone_process ME``.

It prints its port, reads everybody's addresses, runs its agent, and prints the bytes of its state.
"""

import json
import sys

import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.lone_agent import LoneAgent, run_agent
from sottovoce.runtime.socket_transport import SocketTransport, listen
from sottovoce.runtime.transport import Patience

SIZES, STEPS = (9, 6, 8), 4
NETWORK = sv.networks.star(3)  # agents 1 and 2 do not talk to each other
PROBLEM = sv.Minimize(lambda x, r: 0.5 * jnp.sum(jnp.tanh(x - r) ** 2), jnp.zeros(5))
METHOD = sv.methods.DpSgd(0.3, sv.Release(1.0, 0.1), sv.Poisson(3))


def records(me: int) -> np.ndarray:
    """Return the records of one agent."""
    return np.random.default_rng(me).normal(size=(SIZES[me], 5)).astype(np.float32) + me


def main(me: int) -> None:
    agent = LoneAgent.of(
        me, records(me), PROBLEM, METHOD, sv.Population(SIZES), NETWORK, STEPS, root_key(7), chunk=64, run="r"
    )
    listener = listen()
    print(json.dumps(listener.getsockname()), flush=True)
    addresses = [tuple(address) for address in json.loads(sys.stdin.readline())]
    state, _ = run_agent(agent, SocketTransport(me, addresses, "r", Patience(60.0), listener=listener), STEPS)
    print(json.dumps([np.asarray(leaf).tobytes().hex() for leaf in state]), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
