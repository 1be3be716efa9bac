"""What is looked at before a run starts: whether things belong together, and what to change if they do not."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from sottovoce import accounting
from sottovoce.methods.bambi import Bambi
from sottovoce.methods.base import Method
from sottovoce.naming import check_count
from sottovoce.networks import Network
from sottovoce.problems import objectives
from sottovoce.problems.vertical import Vertical
from sottovoce.runtime.store import Layout


def fitting(problem: Any, method: Method, network: Network | None, layout: Layout, steps: int) -> Network:
    """The network of a run whose parts belong together; says what to change if they do not."""
    if isinstance(problem, Vertical) or isinstance(method, Bambi):
        raise TypeError("Vertical problems and Bambi are for a table that is split by columns: use sv.run_vertical")
    if not isinstance(method, Method):
        raise TypeError(f"method is {method!r}: give a configured method, such as sv.methods.DpSgd(rate=0.1, ...)")
    solvable: tuple[type, ...] = method.solves
    if type(problem) not in solvable:
        kinds = " or ".join(kind.__name__ for kind in method.solves)
        raise TypeError(f"{type(method).__name__} solves {kinds}; the problem is a {type(problem).__name__}")
    check_count("steps", steps)
    network = accounting.check_network(network, layout.agents)
    for over in method.over:
        network.matrix(over)  # says what to use instead if the network has none
    for name, rate in method.schedules().items():
        if rate.agents not in (None, layout.agents):
            raise ValueError(f"{name} lists values for {rate.agents} agents, but there are {layout.agents}")
    if "records" not in layout.sizes and set(problem.losses) != set(layout.sizes):
        raise ValueError(
            f"Levels(upper, lower) are for bilevel problems; {type(problem).__name__} takes one record set"
        )
    objectives.check(problem, layout.example())
    return network


def ready(out: str | Path | None, resume: bool) -> Path | None:
    """Make the folder; refuse to run over an earlier run."""
    if out is None:
        return None
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: give a folder for the run")
    if any((folder / name).exists() for name in ("checkpoint.npz", "result.json")) and not resume:
        raise ValueError(f"{folder} holds a run already: choose another folder, or go on with resume=True (--resume)")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


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
    """A word to whoever holds the records; the run goes on, for a refusal would tell others of a single record."""
    for level, store in layout.stores.items():
        floats = [leaf for leaf in jax.tree.leaves(store.pool) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        bad = [~jnp.isfinite(leaf.reshape(leaf.shape[0], -1)).all(axis=1) for leaf in floats]
        count = int(jnp.sum(jnp.stack(bad).any(axis=0))) if bad else 0
        if count:
            where = "" if level == "records" else f" of the {level} level"
            warnings.warn(
                f"{count} of {len(floats[0])} records{where} have values that are not finite: a record whose gradient "
                "is not finite adds nothing. Drop or impute them (a word to the holder of the records, not to others)",
                stacklevel=3,
            )
