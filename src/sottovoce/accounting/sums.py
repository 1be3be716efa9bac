"""Refuse, before any work, what secure sums cannot run: each refusal says why, and what to do instead.

Under a secure sum the program is that of one agent whose records lie with many parties. Everybody sees its releases,
and what is computed from them. So whatever asks *which* party acts, or keeps a party's un-noised values, has no meaning
there; and noise or batches must be such that the parties' shares add up to what is charged.
"""

import math
from typing import Any

from jax.extend.core import Jaxpr, Literal

from sottovoce.accounting.trace import Trace
from sottovoce.data.population import Population
from sottovoce.methods.agent import Known
from sottovoce.methods.base import Method
from sottovoce.networks import Network
from sottovoce.privacy.trust import Sum

_LOCAL = "or leave trust out, for noise of each party's own"


def checked(trust: Any, network: Network | None) -> Sum:
    """Return the trust if it is one, and if there is no network beside it.

    >>> checked(Sum(colluding=2), None)
    Sum(colluding=2)
    """
    if not isinstance(trust, Sum):
        raise TypeError(f"trust is {trust!r}: give sv.Sum(colluding=1), {_LOCAL}")
    if network is not None:
        raise ValueError(
            "with trust=sv.Sum(...) everybody sees every sum, and nobody has neighbours: leave network out"
        )
    return trust


def refuse_for_tables(trust: Sum | None) -> None:
    """Refuse sums over a table split by columns.

    >>> refuse_for_tables(None)
    """
    if trust is not None:
        raise ValueError("trust= is for parties with records of their own; a Table has a server between its parties")


def gain(trust: Sum, population: Population, *, shared_noise: bool) -> float:
    """Return the noise of what all learn without sums, over that with sums, from public facts.

    Parties that average in proportion to their records, with noise for their own size, have sqrt(m - t) times as much.
    `shared_noise` says that all draw noise of one scale, which the smallest sets.

    >>> gain(Sum(1), Population([300] * 5), shared_noise=False)
    2.0
    """
    most = max(sizes.mean() / sizes.min() for sizes in population.counts.values()) if shared_noise else 1.0
    return float(most) * math.sqrt(population.parties - trust.colluding)


def refuse_weights(problem: Any) -> None:
    """Refuse a problem that weighs parties."""
    if getattr(problem, "weighted", None) is not None:
        raise ValueError(
            "the problem weighs parties (PartyWeights), and a sum does not show what a party contributes: weigh labels "
            f"or other groups that are in the records, {_LOCAL}"
        )


def before(method: Method, problem: Any, known: Known) -> None:
    """Refuse what is known before anything is traced."""
    if known.summed is None:
        return
    refuse_weights(problem)
    for name, rate in method.schedules().items():
        if rate.agents not in (None, 1):
            raise ValueError(f"{name} lists a value per agent, and a sum has one step for all: give one, {_LOCAL}")


def after(method: Method, traced: Trace) -> None:
    """Refuse what the traced step shows."""
    if traced.known.summed is None:
        return
    who = type(method).__name__
    for charge in traced.charges:
        release, what = charge.release, f"release {charge.release.name!r}"
        if charge.sampling is None:
            raise ValueError(
                f"{what} of {who} sends private state, and only sums of clipped records can be masked: use a sound "
                f"design, {_LOCAL}"
            )
        if not charge.sampling.adds_up:
            raise ValueError(
                f"{what} reads batches of {charge.sampling}, and batches that each party draws of its own records do "
                f"not make up one of those of all: use sv.Full() or sv.Poisson(batch), {_LOCAL}"
            )
        if not release.law.adds_up:
            raise ValueError(
                f"{what} has {release.mechanism} noise, and shares of it do not add up to such noise: use Gaussian "
                f"noise, {_LOCAL}"
            )
        if release.scale.agents not in (None, 1):
            raise ValueError(f"{what} lists noise per agent, and a sum has one noise for all: give one, {_LOCAL}")
    if not traced.covered:
        names = [name for name, private in zip(traced.names, traced.private) if private]
        raise ValueError(
            f"{who} keeps {', '.join(names)} without noise, and in a sum nobody could hold it but all parties together"
            f": use a sound design, {_LOCAL}"
        )
    if any(_reads(one.jaxpr, 0) for one in (traced.init, traced.step)):
        raise ValueError(f"{who} asks for its agent's number, and a sum is one agent for all parties: {_LOCAL[3:]}")


def _reads(jaxpr: Jaxpr, place: int) -> bool:
    """Say whether an input is used, or handed on."""
    wanted = jaxpr.invars[place]
    used = [given for equation in jaxpr.eqns for given in equation.invars]
    return any(given is wanted for given in (*used, *jaxpr.outvars) if not isinstance(given, Literal))
