"""Parties in processes, for tests: ``python -m tests.runtime.party_process ME`` runs one, without ME all on threads.

A process with one party prints its address, reads everybody's, runs, and prints the bytes of its party's state.
"""

import json
import sys

import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from sottovoce.papers.bambi.method import Bambi
from sottovoce.privacy.labels import Open
from sottovoce.problems.vertical import cross_entropy
from sottovoce.runtime.lone_party import LoneParty, run_party
from sottovoce.runtime.socket_transport import SocketTransport, listen
from sottovoce.runtime.threads import on_threads, queues
from sottovoce.runtime.transport import Patience

CLASSES, ROWS, STEPS, ACTIVE = 3, 6, 2, 1
RNG = np.random.default_rng(0)
BLOCKS = [RNG.normal(size=(ROWS, 2)).astype(np.float32) for _ in range(2)]
LABEL = np.array([0, 1, 2, 0, 1, 2])
PROBLEM = sv.Vertical(
    lambda x, a: a * x, lambda y, e: e @ y, cross_entropy, [jnp.ones(2)] * 2, [jnp.zeros((2, CLASSES))] * 2
)
METHOD = Bambi(inner_steps=2, batch=3, rate_x=0.1, rate_y=0.2, labels=Open())


def store(**options) -> sv.Labels:
    """Return the labels, with a seed for simulations."""
    return sv.Labels(LABEL, CLASSES, **{"seed": 0, **options})


def lone(me: int, method: Bambi = METHOD, labels: sv.Labels | None = None, steps: int = STEPS, **how) -> LoneParty:
    """Return one party with its own block only."""
    public = {"problem": PROBLEM, "method": method, "classes": CLASSES, "active": ACTIVE, "steps": steps}
    labels = labels or (store() if me == ACTIVE else None)
    return LoneParty.of(me, sv.Columns([BLOCKS[me]]), **public, labels=labels, **how)


def bits(state) -> list[str]:
    return [np.asarray(leaf).tobytes().hex() for leaf in state]


def one(me: int) -> list[str]:
    """Return the leaves of one party's state; nobody else's columns are made use of."""
    listener = listen()
    print(json.dumps(listener.getsockname()), flush=True)
    addresses = [tuple(address) for address in json.loads(sys.stdin.readline())]
    transport = SocketTransport(me, addresses, "r", Patience(60.0), listener=listener)
    return bits(run_party(lone(me, run="r"), transport)[0])


def together() -> list[list[str]]:
    """Return the leaves of each party's state, all in this process, by queues."""
    parties = [lone(me) for me in range(2)]
    return [bits(state) for state in on_threads(parties, queues(2), lambda party, by: run_party(party, by)[0])]


if __name__ == "__main__":
    print(json.dumps(one(int(sys.argv[1])) if sys.argv[1:] else together()), flush=True)
