"""Check before a run starts whether things belong together, and say what to change if they do not."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.data.notes import Note, tell_holder
from sottovoce.methods.agent import Known
from sottovoce.methods.base import Method
from sottovoce.problems import objectives
from sottovoce.runtime.layout import Layout


def fitting(problem: Any, method: Method, known: Known) -> None:
    """Refuse a problem, a method and a run that do not belong together; say what to change."""
    network, population = known.network, known.population
    if not isinstance(method, Method):
        raise TypeError(f"method is {method!r}: give a configured method, such as sv.methods.DpSgd(rate=0.1, ...)")
    kinds = " or ".join(kind.__name__ for kind in method.solves)
    if type(problem) not in method.solves:
        columns = " (a table split by columns: give data=sv.Table(columns, labels))" if kinds == "Vertical" else ""
        raise TypeError(
            f"{type(method).__name__} solves {kinds}{columns}; the problem is a {type(problem).__name__}: change "
            "one of them"
        )
    if kinds == "Vertical":
        raise TypeError(f"{type(method).__name__} is for a table split by columns: give sv.Table(columns, labels)")
    for over in method.over:
        network.matrix(over)  # says what to use instead if the network has none
    for name, rate in method.schedules().items():
        if rate.agents not in (None, population.parties):
            raise ValueError(
                f"{name} lists values for {rate.agents} agents, but there are {population.parties}: give one value, or "
                "one per agent"
            )
    if "records" not in population.sizes and set(problem.losses) != set(population.sizes):
        raise ValueError(
            f"Levels(upper, lower) are for bilevel problems; {type(problem).__name__} takes one record set per agent"
        )
    objectives.check(problem, known.records)


def metrics(problem: Any, evaluate: Callable[..., Mapping[str, Any]] | None) -> None:
    """Try the metrics on the starting values, so that a mistake in them costs no run."""
    if evaluate is None:
        return
    names = ", ".join(problem.variables)
    try:
        named = jax.eval_shape(evaluate, *objectives.start(problem))
    except Exception as error:
        raise ValueError(
            f"evaluate could not be called ({type(error).__name__}: {str(error).splitlines()[0]}). It is called as "
            f"evaluate({names}) and compiled: write it with jax.numpy, without float(), if or NumPy on its arguments"
        ) from error
    if not isinstance(named, Mapping):
        raise ValueError('evaluate must return named numbers, such as {"accuracy": ...}')


def finite(layout: Layout) -> None:
    """Warn if some records contain NaN or infinity; never stop the run.

    Such records contribute zero to every release, so the guarantee is unaffected. Stopping would itself reveal that a
    record is malformed; the warning is for the holder's own process only. The holder of a declared table was told when
    the table was read.
    """
    if layout.population.facts.norm is not None:
        return
    for level, sealed in layout.sealed.items():
        leaves = jax.tree.leaves(sealed.unseal())
        floats = [np.asarray(leaf) for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
        # by NumPy: each of these lines would be compiled for each shape, which takes longer than the first step itself
        bad = [~np.isfinite(leaf.reshape(leaf.shape[0], -1)).all(axis=1) for leaf in floats]
        count = int(np.sum(np.any(bad, axis=0))) if bad else 0
        if count:
            where = "" if level == "records" else f" of the {level} level"
            told = (
                f"records{where} have values that are not finite: a record whose gradient is not finite adds nothing. "
                "Drop them, or fill them by a rule that is fixed beforehand"
            )
            tell_holder([Note(f"{count} of {len(floats[0])} {told}", f"some {told}")])
