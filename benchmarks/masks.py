"""Secure sums: what masks and the adder cost of a round, and their own time for a million numbers.

A round is a step of DP-SGD with exact noise: each site clips the gradients of its rows and draws noise. Alone it is
done then. In a sum it masks what it has, one of the sites adds up, and all hear the total. Sites are threads of one
process here, so no network hides what masks cost.
"""

import jax.numpy as jnp
import numpy as np

import sottovoce as sv
from benchmarks import measure
from sottovoce.accounting.account import account_of
from sottovoce.privacy.discrete import GridRelease
from sottovoce.runtime.layout import lay_out
from sottovoce.runtime.sums.keys import Secrets
from sottovoce.runtime.sums.roster import Roster
from sottovoce.runtime.sums.session import Session, added
from sottovoce.runtime.threads import ThreadPlace

NUMBERS, ROWS, MANY, TURNS = 10_000, 100, 1_000_000, 15


def free(agent: int, t: int) -> None:
    """Pay nothing: a ledger's time is not what is measured."""


def rounds(sites: int, trust: sv.Sum | None) -> measure.Turns:
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(ROWS, NUMBERS)).astype(np.float32) for _ in range(sites)]
    problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(NUMBERS))
    method = sv.methods.DpSgd(0.1, sv.Release(1.0, 0.1), sv.Full())
    network = sv.networks.isolated(sites) if trust is None else None
    account = account_of(method, parts, 1, network, problem=problem, trust=trust)
    made = ThreadPlace.deployed if trust is None else ThreadPlace.summed
    place = made(account.trace, problem, lay_out(parts), 64, free)
    start = place.begin()
    return measure.Turns(lambda: place.advance(start, 0, 1)[0])


def alone_and_in_sums() -> None:
    for sites in (5, 20):
        contenders = {"alone": rounds(sites, None), "in a sum": rounds(sites, sv.Sum(1))}
        seen = measure.compare(f"A round of {NUMBERS} numbers, {sites} sites with {ROWS} rows each", contenders, TURNS)
        seen.show()
        seen.want("in a sum", "alone", at_least=0.75)
        print()


def by_themselves() -> None:
    grid = GridRelease(clip=65536, scale=65537, step=2.0**-16, denominator=8)
    for sites in (5, 20):
        own = [Secrets.fresh(str(number)) for number in range(sites)]
        roster = Roster.of([one.card for one in own], sv.Sum(1), {"records": [8] * sites}, b"benchmark")
        session, share = Session.begin(own[0], roster), np.zeros(MANY, np.int64)
        asked = session.question("0 step: release 1", MANY, grid, rows=8 * sites)
        said = [session.masked(asked, share)] * sites
        contenders = {
            "masks of one site": measure.Turns(lambda s=session, a=asked, x=share: s.masked(a, x)),  # type: ignore[misc]
            "the adder": measure.Turns(lambda x=said: added(x)),  # type: ignore[misc]
        }
        measure.compare(f"{MANY} numbers, {sites} sites", contenders, TURNS).show()


if __name__ == "__main__":
    alone_and_in_sums()
    by_themselves()
    print(measure.machine())
