"""Parties in processes, for tests: ``python -m tests.runtime.party_process ME`` runs one, without ME all on threads.

A process with one party prints its address, reads everybody's, runs, and prints the bytes of its party's state.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from sottovoce.methods.bambi import Bambi
from sottovoce.privacy.labels import Memoised
from sottovoce.problems.vertical import cross_entropy
from sottovoce.runtime.lone_party import LoneParty, run_party
from sottovoce.runtime.socket_transport import SocketTransport, listen
from sottovoce.runtime.threads import on_threads, queues
from sottovoce.runtime.transport import Patience

WIDTHS, CLASSES, ROWS, STEPS, ACTIVE = (2, 3, 1), 3, 12, 2, 1


def block(me: int) -> np.ndarray:
    """Return the columns of one party."""
    return np.random.default_rng(me).normal(size=(ROWS, WIDTHS[me])).astype(np.float32)


BLOCKS = [block(me) for me in range(len(WIDTHS))]
PROBLEM = sv.Vertical(
    lambda x, a: jnp.tanh(a * x),
    lambda y, e: e @ y,
    cross_entropy,
    [jnp.ones(width) for width in WIDTHS],
    [jnp.full((width, CLASSES), 0.1) for width in WIDTHS],
    penalty=lambda x, y: 0.01 * jnp.sum(y**2) + 0 * jnp.sum(x),
    alter=lambda key, a: a + 0.1 * jax.random.normal(key, (len(a), 1)),
)
METHOD = Bambi(inner_steps=2, batch=4, rate_x=0.1, rate_y=0.2, labels=Memoised(1.0), directions=2)


def store(**options) -> sv.Labels:
    """Return the labels, with a seed for simulations."""
    return sv.Labels(np.arange(ROWS) % CLASSES, CLASSES, seed=0, **options)


def lone(me: int, method: Bambi = METHOD, labels: sv.Labels | None = None, seed: int = 3, steps: int = STEPS, **how):
    """Return one party with its own block only."""
    public = {"problem": PROBLEM, "method": method, "classes": CLASSES, "active": ACTIVE, "steps": steps, "seed": seed}
    labels = labels or (store() if me == ACTIVE else None)
    return LoneParty.of(me, sv.Columns([block(me)]), **public, labels=labels, **how)


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
    parties = [lone(me) for me in range(len(WIDTHS))]
    return [bits(state) for state in on_threads(parties, queues(3), lambda party, by: run_party(party, by)[0])]


if __name__ == "__main__":
    print(json.dumps(one(int(sys.argv[1])) if sys.argv[1:] else together()), flush=True)
