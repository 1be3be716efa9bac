"""Answer an agent's equations in a simulation: its batch, its release, what its neighbours send.

Example: to `release` the answer is ``noised(clipped_mean(batch))``, with a key made of the run's seed, the agent, the
phase, the step, the loop turns and the equation's number. No two equations share such a key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn

from sottovoce.data.sealed import Sealed
from sottovoce.methods import equations
from sottovoce.methods.agent import Known
from sottovoce.privacy import gate
from sottovoce.privacy.gate import Reading
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Rows, Sampling
from sottovoce.privacy.threefry import fold
from sottovoce.runtime.keys import phase_key, step_key
from sottovoce.trees import Tree

Drawn = Mapping[str, Rows]  # the rows of a batch by level


@dataclass(frozen=True)
class Moment:
    """Describe one agent at one step: who, when, with which key, and its own records."""

    known: Known
    index: Any
    t: Any
    key: jax.Array
    records: Mapping[str, Sealed]
    chunk: int
    every: jax.Array | None = None  # the key of all steps, outside of loops: a law may reach the draws of earlier ones
    scale: Any = None  # of the noise of one release, where it is an input of the program

    @classmethod
    def of(
        cls, known: Known, root: Any, index: Any, phase: str, t: Any, records: Mapping[str, Sealed], chunk: int
    ) -> "Moment":
        """Return the moment of an agent with its key."""
        key, every = step_key(root, index, phase, t), phase_key(root, index, phase)
        return cls(known, index, t, key, records, chunk, every)

    def inside(self, loop: JaxprEqn, turn: Any) -> "Moment":
        """Return the same moment inside one turn of a loop."""
        return replace(self, key=fold(self.named(loop), turn), every=None)

    def named(self, equation: JaxprEqn) -> jax.Array:
        """Return the key of one equation."""
        return fold(self.key, equation.params["number"])

    def named_at(self, equation: JaxprEqn, t: Any) -> jax.Array:
        """Return the key that one equation has at another step."""
        if self.every is None:
            raise ValueError(f"{equation.params['release'].mechanism} noise reaches earlier steps, not turns of a loop")
        return fold(fold(self.every, t), equation.params["number"])

    def size(self, level: str) -> Any:
        """Return how many records (or units) the agent has."""
        return jnp.asarray(self.known.population.counts[level])[self.index]

    def readings(self, asked: equations.Asked, values: Sequence[Any], sampling: Sampling) -> tuple[list[Reading], Tree]:
        """Return what a `release` or `mean` reads, and the point."""
        batch, leaves, closed_over = asked.split(values)
        found = [
            Reading(
                self.records[function.level],
                function,
                given,
                batch.rows[function.level],
                sampling.denominator(self.size(function.level), self.t),
                sampling.usual(self.known.population.counts[function.level]),
                sampling.in_order(self.known.population.counts[function.level]),
            )
            for function, given in zip(asked.functions, closed_over)
        ]
        return found, jax.tree.unflatten(asked.structure, leaves)


@partial(jax.tree_util.register_dataclass, data_fields=["rows"], meta_fields=["sampling", "number"])
@dataclass(frozen=True)
class BatchRows:
    """Hold a batch's rows in a place, with the sampling that drew them."""

    rows: Drawn
    sampling: Sampling
    number: int = 0  # for observers


def draw(moment: Moment, equation: JaxprEqn) -> BatchRows:
    """Draw a batch from every level by the simulation's coins."""
    key, sampling = moment.named(equation), equation.params["sampling"]
    counts = moment.known.population.counts
    rows = {
        level: sampling.draw(fold(key, number), counts[level], moment.index, moment.t)
        for number, level in enumerate(sorted(counts))
    }
    return BatchRows(rows, sampling)


def mean(moment: Moment, equation: JaxprEqn, values: Sequence[Any]) -> Tree:
    """Return the levels' clipped means, added up."""
    readings, at = moment.readings(equation.params["asked"], values, values[0].sampling)
    means = []
    for reading in readings:  # no comprehension: few frames lie between an answer and the records
        means.append(gate.clipped_mean(reading, at, equation.params["release"], moment.chunk))
    return gate.added(means)


def noised(moment: Moment, equation: JaxprEqn, value: Tree) -> Tree:
    """Return a value with the noise of the equation's release; under secure sums, with that of all parties together."""
    release: Release = equation.params["release"]
    given, summed = moment.scale, moment.known.summed
    if summed is not None:
        given = summed.drawn(release.scale(moment.t, moment.index) if given is None else given)
    keys = partial(moment.named_at, equation) if release.law.reaches else None
    return gate.noised(value, release, moment.named(equation), moment.t, moment.index, given, keys)
