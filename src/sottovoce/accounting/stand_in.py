"""Account for a method whose problem is not known: trace it on problems of several structures, and compare.

Most methods release the same whatever they solve. One that clips each layer by itself releases once per leaf of x, and
its account without the problem would be that of another run. So a method is traced on several stand-ins: with one leaf
and several, small and large, with and without what is known of a linear model. Where what is charged differs, the
account asks for the problem.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.accounting.trace import Trace, trace
from sottovoce.methods.agent import Known
from sottovoce.methods.base import Method
from sottovoce.problems import Bilevel, Minimize, MinMax
from sottovoce.problems.linear_model import LinearModel, PartyWeights

Structure = tuple[Any, Any]  # a start of x, and one record

_LARGE = 300
_STRUCTURES: Mapping[str, Structure] = {
    "one leaf": (np.zeros(2, np.float32), np.zeros((), np.float32)),
    "several leaves": (
        {
            "first": np.ones((), np.float32),
            "rest": (np.zeros((_LARGE, 2), np.float32), np.zeros((1, 1, 4), np.float32)),
        },
        {"a": np.zeros(5, np.float32), "b": np.zeros((2, 2), np.float32), "c": np.zeros((), np.float32)},
    ),
    "a large leaf": (np.zeros((_LARGE, 2), np.float32), np.zeros((), np.float32)),
    "a linear model": (
        {"weights": np.zeros(_LARGE, np.float32), "bias": np.zeros((), np.float32)},
        {"features": np.zeros(_LARGE, np.float32), "label": np.zeros((), np.float32)},
    ),
}


_OTHERS = ("several leaves", "a linear model")


def trace_stand_in(method: Method, known: Known) -> Trace:
    """Return the method's trace on the smallest stand-in; refuse a method whose charges depend on the stand-in.

    >>> import sottovoce as sv
    >>> known = Known(sv.Population([100]), sv.networks.single(), 5, {})
    >>> method = sv.methods.DpSgd(rate=0.5, gradient=sv.Release(clip=1.0, noise=0.02), sampling=sv.Poisson(10))
    >>> [charge.release.name for charge in trace_stand_in(method, known).charges]
    ['gradient']
    """
    first = _traced(method, known, "one leaf")
    tried = {name: _tried(method, known, name) for name in _OTHERS}
    if tried["several leaves"] is None:  # a method for one array: it cannot be run on others
        tried["a large leaf"] = _tried(method, known, "a large leaf")
    compared = {name: traced for name, traced in tried.items() if traced is not None}
    if not compared.keys() & {"several leaves", "a large leaf"}:
        raise ValueError(f"{_ask(method)}: it could not be traced on a stand-in with several leaves, or a large one")
    for name, traced in compared.items():
        if traced.charges != first.charges:
            raise ValueError(
                f"{_ask(method)}: on a stand-in with one leaf it makes {len(first.charges)} releases, with {name} "
                f"{len(traced.charges)}, or others"
            )
    return replace(first, reads_noise=any(traced.reads_noise for traced in (first, *compared.values())))


def _tried(method: Method, known: Known, name: str) -> Trace | None:
    """Return the trace on a stand-in; None where the method cannot be run on it, or there is no such problem."""
    if name == "a linear model" and Bilevel in method.solves:
        return None
    try:
        return _traced(method, known, name)
    except Exception:  # whatever its code raises: a run would end in the same way
        return None


def _ask(method: Method) -> str:
    return (
        f"what {type(method).__name__} releases depends on the problem: give problem=, with the parts or with "
        "Population(..., record=...), one record or its shapes"
    )


def _traced(method: Method, known: Known, name: str) -> Trace:
    start, record = _STRUCTURES[name]
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), record)
    seen = replace(known, records=dict.fromkeys(known.population.sizes, shapes))
    return trace(method, _problem(method, name, start, known.network.size), seen)


_made: dict[tuple[type, str, int], Any] = {}  # the same objects each time, so that traces are remembered


def _problem(method: Method, name: str, start: Any, parties: int) -> Any:
    kind = next((kind for kind in method.solves if kind in _MAKERS), None)
    if kind is None:
        raise ValueError(f"{type(method).__name__} needs problem= and the parties' parts: there is no stand-in for it")
    key = (kind, name, parties)
    if key not in _made:
        _made[key] = _MAKERS[kind](start, name == "a linear model", parties)
    return _made[key]


def _total(tree: Any) -> jax.Array:
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree))  # type: ignore[return-value]


def _of_scores(scores: jax.Array, record: Any) -> jax.Array:
    return jnp.sum(scores) * record["label"]


_KNOWN = LinearModel(lambda record: record["features"], _of_scores, curvature=1.0, residual=1.0)


def _minimize(start: Any, linear: bool, parties: int) -> Minimize:
    return Minimize(lambda x, r: _total(x) * _total(r), start, linear=_KNOWN if linear else None)


def _minmax(start: Any, linear: bool, parties: int) -> MinMax:
    def loss(x: Any, y: Any, record: Any) -> jax.Array:
        return _total(x) * _total(y) * _total(record)

    if not linear:
        return MinMax(loss, start, start)
    return MinMax(loss, start, np.full(parties, 1 / parties, np.float32), weighted=PartyWeights(_KNOWN, price=1.0))


def _bilevel(start: Any, linear: bool, parties: int) -> Bilevel:
    def loss(x: Any, y: Any, record: Any) -> jax.Array:
        # No record meets x, because some methods (release_x=None) are for such problems only.
        return _total(y) * _total(record)

    return Bilevel(loss, loss, start, start)


_MAKERS: Mapping[type, Any] = {Minimize: _minimize, MinMax: _minmax, Bilevel: _bilevel}
