"""Define where a run happens, and what every place owes to the one loop (`sottovoce.runtime.loop`).

Example: `ArrayPlace` holds all agents as one array, `ThreadPlace` runs each on a thread of its own, `ColumnsPlace` has
parties with columns and a server. The loop does not know which one it drives.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.accounting.trace import Trace
from sottovoce.privacy.report import PrivacyReport
from sottovoce.runtime.result import Result, measure

NEVER = np.iinfo(np.int32).max  # "was always finite"
Metrics = Callable[..., Mapping[str, Any]]


class Place(ABC):
    """Define a place to run: it makes the first state, and moves it on. A state is a list of arrays, its leaves."""

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the leaves that are looked at for divergence, in the order of what `advance` returns."""

    @property
    @abstractmethod
    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        """Return the shapes of the state's leaves, known without running anything."""

    @abstractmethod
    def begin(self) -> list[Any]:
        """Return the state before the first step."""

    @abstractmethod
    def advance(self, state: list[Any], first: int, count: int) -> tuple[list[Any], np.ndarray]:
        """Return the state `count` steps after step `first`, and when each named leaf was first not finite."""

    @abstractmethod
    def measure(self, state: list[Any], step: int, evaluate: Metrics | None) -> Mapping[str, Any]:
        """Return named figures of the state after `step` steps."""

    @property
    def holds(self) -> range | None:
        """Return the agents whose part of the state is here; None where all of it is, as in most places."""
        return None

    def stored(self, state: list[Any]) -> list[np.ndarray]:
        """Return what is here of a state, to be written down."""
        return [np.asarray(leaf) for leaf in state]

    def restored(self, rows: list[np.ndarray]) -> list[Any]:
        """Return the state from what was written down of it."""
        return [jnp.asarray(leaf) for leaf in rows]

    @abstractmethod
    def result(self, state: list[Any], history: dict[str, np.ndarray], report: PrivacyReport) -> Result:
        """Return what the run gives."""


class RowsPlace(Place):
    """Define what places for agents with records share: how a state is judged and handed out."""

    def __init__(self, trace: Trace, problem: Any, deployed: bool = False) -> None:
        self.trace, self.problem, self.is_deployed = trace, problem, deployed
        state = trace.state(list(trace.shapes))
        missing = [name for name in problem.variables if not hasattr(state, name)]
        if missing:
            raise TypeError(
                f"the method's state has no {' and no '.join(missing)}: `init` and `step` must return a NamedTuple "
                f"with a field for each variable of the problem ({', '.join(problem.variables)})"
            )

    @property
    def names(self) -> list[str]:
        """Return the public leaves of the state."""
        return [self.trace.names[leaf] for leaf in public(self.trace)]

    @property
    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        """Return the shapes of all agents' leaves, stacked."""
        agents = self.trace.known.population.parties
        return [jax.ShapeDtypeStruct((agents, *leaf.shape), leaf.dtype) for leaf in self.trace.shapes]

    @abstractmethod
    def average(self, state: list[Any]) -> tuple[Any, ...]:
        """Return the variables' averages over all agents."""

    def result(self, state: list[Any], history: dict[str, np.ndarray], report: PrivacyReport) -> Result:
        """Return the agents' average, and the states of all agents that are here.

        They may leave if the statement covers them, and the noise was the deployed one.
        """
        mean = jax.tree.map(np.asarray, self.average(state))
        second = mean[1] if len(mean) > 1 else None
        agents = self.trace.state(state if self.holds is None else self.stored(state))
        return Result(
            mean[0], second, agents, history, report, report.covered and self.is_deployed, self.problem.predict,
            public_constants=self.problem.public_constants,
        )  # fmt: skip

    def variables(self, state: list[Any]) -> tuple[Any, ...]:
        """Return the problem's variables in a state."""
        agents = self.trace.state(state)
        return tuple(getattr(agents, name) for name in self.problem.variables)


class WholePlace(RowsPlace):
    """Define what places share that hold all agents in one array per leaf."""

    def measure(self, state: list[Any], step: int, evaluate: Metrics | None) -> Mapping[str, Any]:
        """Return the consensus error and the user's metrics."""
        return measure(self.variables(state), evaluate)

    def average(self, state: list[Any]) -> tuple[Any, ...]:
        """Return the means over the array."""
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), self.variables(state))


def public(trace: Trace) -> list[int]:
    """Return the leaves of the state that may be looked at: floating point, and not private.

    A stop that depended on a private leaf would itself tell something about a record.
    """
    return [
        number
        for number, (shape, private) in enumerate(zip(trace.shapes, trace.private))
        if not private and jnp.issubdtype(shape.dtype, jnp.floating)
    ]
