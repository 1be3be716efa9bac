"""Define the handle through which a method acts as one agent: sample, release, mix, loop.

Example: ``batch = agent.sample(Poisson(50))`` draws a batch, ``agent.release(r, loss, at=x, batch=batch)`` returns the
noisy gradient at x, ``agent.mix(x)`` sends x to the neighbours and returns the weighted sum of what they send. A handle
exists only while a step is traced: each call writes one equation (`sottovoce.methods.equations`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Required, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.closed import exact
from sottovoce.data.parties import SINGLE
from sottovoce.data.population import Population
from sottovoce.data.sealed import RecordLoss
from sottovoce.methods import equations
from sottovoce.methods.equations import Asked
from sottovoce.methods.handle import Handle, explicit
from sottovoce.networks import Network
from sottovoce.privacy.gate import RecordFunction
from sottovoce.privacy.release import Release, unnoticed
from sottovoce.privacy.sampling import KINDS as SAMPLINGS
from sottovoce.privacy.sampling import Sampling
from sottovoce.privacy.summed import Summed
from sottovoce.schedules import settled
from sottovoce.shown import Shown
from sottovoce.trees import Tree


@dataclass(frozen=True, eq=False, repr=False)
class Known(Shown):
    """Hold what every agent knows of a run: all of it is public.

    Under secure sums (`summed`) the population is the one agent of the program; `holders` are the parties.
    """

    population: Population
    network: Network
    steps: int
    records: Mapping[str, Any]  # the shapes of one record per level
    summed: Summed | None = None

    @property
    def holders(self) -> Population:
        """Return the parties that hold records: the agents themselves, except under secure sums."""
        return self.population if self.summed is None else self.summed.holders

    @cached_property
    def tables(self) -> list[np.ndarray]:
        """Return the public tables that a step may look up its agent's entry in: sizes, and weights of the network."""
        usable = ("mix", "pull", "push") if "mix" in self.network.matrices else tuple(self.network.matrices)
        sums = [self.weights(over, axis) for over in usable for axis in (0, 1)]
        return [*self.population.counts.values(), *sums, *(self.network.matrix(over).diagonal() for over in usable)]

    def weights(self, over: str, axis: int) -> np.ndarray:
        """Return the sums of all agents' weights over others: what each hears (axis 1), or is given (axis 0)."""
        matrix = self.network.matrix(over)
        return np.asarray(matrix.sum(axis=axis)).reshape(-1) - matrix.diagonal()

    @cached_property
    def _content(self) -> tuple[Any, ...]:
        leaves, structure = jax.tree.flatten(dict(self.records))
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
        return self.population, self.network, self.steps, shapes, structure, self.summed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Known) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)


def as_settled(release: Release, known: Known) -> Release:
    """Return the release with its noise as it is from now on, for the account and the run alike.

    >>> from sottovoce.networks import single
    >>> release = Release(1.0, 0.1)
    >>> as_settled(release, Known(Population([5]), single(), 3, {})) is release
    True
    """
    noise = settled(release.scale, known.steps, known.network.size)
    return release if noise is release.scale else replace(release, noise=noise)


@dataclass(frozen=True)
class Batch:
    """Refer to a drawn batch, whose rows cannot be read; releases from one batch are charged as one mechanism."""

    drawn: jax.Array
    sampling: Sampling
    loops: tuple[int, ...]


class Where(TypedDict, total=False):
    """Say where and over what to take a gradient: `upper` and `lower` are as `records`; `public` reads no record."""

    at: Required[Tree]
    batch: Required[Batch]
    upper: RecordLoss | None
    lower: RecordLoss | None
    public: Callable[[Tree], Any] | None


class Agent(Handle):
    """Act as one agent at one step: `index` is its number, `t` the step; both are traced."""

    def __init__(self, known: Known, index: jax.Array, t: jax.Array, loops: tuple[int, ...] = ()) -> None:
        super().__init__(t, loops)
        self.index, self._known = index, known

    # What is public about the run.

    @property
    def steps(self) -> int:
        """Return how many steps the run has."""
        return self._known.steps

    @property
    def parties(self) -> int:
        """Return how many agents take part."""
        return self._known.network.size

    def size(self, level: str = SINGLE) -> jax.Array:
        """Return how many records (or units) this agent has."""
        return self._mine(self._known.population.counts[level].astype(np.int32))

    def heard(self, over: str = "mix") -> jax.Array:
        """Return the sum of the weights this agent gives to others (its row)."""
        return self._weight(over, axis=1)

    def sent(self, over: str = "mix") -> jax.Array:
        """Return the sum of the weights others give to this agent (its column)."""
        return self._weight(over, axis=0)

    def noise(self, release: Release) -> Any:
        """Return the scale of the noise that a release really has at this step.

        Under secure sums it is larger than the release's own scale, which is the one that is charged.
        """
        summed = self._known.summed
        return release.scale(self.t, self.index) if summed is None else summed.drawn(release.scale(self.t, 0))

    # Reading records: through the gate.

    def sample(self, sampling: Sampling, name: str = "batch") -> Batch:
        """Draw a batch; with two levels, one from each, by the same rule."""
        sampling = exact("sampling", sampling, SAMPLINGS)
        (drawn,) = self._bind(equations.sample_p, f"the batch {name!r}", sampling=sampling, name=name)
        return Batch(drawn, sampling, self._loops)

    def release(self, release: Release, records: RecordLoss | None = None, **where: Unpack[Where]) -> Tree:
        """Return the gradient at `at`, clipped per record, averaged over the batch and noised: from then on public.

        Give `records(at, record)` for a problem with one record set, or `upper` and/or `lower` for a bilevel one. With
        two sets each level's records are clipped on their own; with one set for both, a record's two terms are added
        and clipped together. The gradient of `public(at)`, which reads no record, is added without clip or noise.
        """
        return self._gradient(equations.release_p, f"the release {release.name!r}", release, records, **where)

    def mean(self, release: Release, records: RecordLoss | None = None, **where: Unpack[Where]) -> Tree:
        """Return what `release` returns, but without noise: private, and so is all that is computed from it.

        For printed designs. A private value may not be mixed, nor released at; `tell` adds noise to it.
        """
        return self._gradient(equations.mean_p, f"the mean {release.name!r}", release, records, **where)

    def tell(self, release: Release, value: Tree) -> Tree:
        """Return a private value with the release's noise: the message of a printed design."""
        leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, value))
        told = self._bind(equations.tell_p, f"the message {release.name!r}", *leaves, release=self._settled(release))
        return jax.tree.unflatten(structure, told)

    # Talking to neighbours.

    def mix(self, value: Tree, *, own: Tree | None = None, over: str = "mix") -> Tree:
        """Send `value` to the neighbours and return the weighted sum of what they send, with the own weight on `own`.

        `own` (by default `value`) stays with the agent, so it may be private; the result then is private too.
        """
        leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, value))
        heard = self._bind(
            equations.mix_p, f"the exchange over {over!r}", *leaves, over=over, others_only=own is not None
        )
        others = jax.tree.unflatten(structure, heard)
        if own is None:
            return others
        weight = self._mine(self._known.network.matrix(over).diagonal().astype(np.float32))
        return jax.tree.map(lambda other, mine: other + weight * mine, others, own)

    # Helpers.

    def _inside(self, loops: tuple[int, ...]) -> "Agent":
        return Agent(self._known, self.index, self.t, loops)

    def _gradient(
        self,
        equation: Any,
        what: str,
        release: Release,
        records: RecordLoss | None,
        *,
        at: Tree,
        batch: Batch,
        upper: RecordLoss | None = None,
        lower: RecordLoss | None = None,
        public: Callable[[Tree], Any] | None = None,
    ) -> Tree:
        if self._loops[: len(batch.loops)] != batch.loops:
            raise ValueError(f"{what} uses a batch that was drawn inside a loop, after the loop: draw another one here")
        at = jax.tree.map(jnp.asarray, at)
        leaves, structure = jax.tree.flatten(at)
        functions, operands = [], []
        for level, loss in self._by_level(what, records, upper, lower).items():
            record = self._known.records[level]

            def flat(*values: Any, loss: RecordLoss = loss, record: Any = record) -> jax.Array:
                point = jax.tree.unflatten(structure, values[: len(leaves)])
                return loss(point, jax.tree.unflatten(jax.tree.structure(record), values[len(leaves) :]))

            shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
            jaxpr, closed_over = explicit(flat, [*shapes, *jax.tree.leaves(record)])
            functions.append(RecordFunction(level, jaxpr, len(closed_over)))
            operands += closed_over
        asked = Asked(tuple(functions), structure, len(leaves))
        given = self._bind(equation, what, batch.drawn, *leaves, *operands, release=self._settled(release), asked=asked)
        value = jax.tree.unflatten(structure, given)
        if public is None:
            return value
        slope = jax.grad(lambda where: jnp.asarray(public(where), jnp.float32))(at)
        return jax.tree.map(jnp.add, value, slope)

    def _settled(self, release: Release) -> Release:
        """Return a checked release for an equation."""
        with unnoticed():
            return as_settled(exact("release", release, (Release,)), self._known)

    def _by_level(
        self, what: str, records: RecordLoss | None, upper: RecordLoss | None, lower: RecordLoss | None
    ) -> Mapping[str, RecordLoss]:
        """Return the functions by the record set they read."""
        given = {level: fn for level, fn in ((SINGLE, records), ("upper", upper), ("lower", lower)) if fn is not None}
        if not given or (records is not None and len(given) > 1):
            raise TypeError(
                "give either `records`, or `upper` and/or `lower`: the function(s) of one record to release"
            )
        held = self._known.records
        if SINGLE in held:
            return {SINGLE: _sum_of(list(given.values()))}
        absent = [level for level in given if level not in held]
        if absent:
            raise ValueError(
                f"{what} reads {' and '.join(absent)}, but the record sets are {' and '.join(held)}: "
                "give one record set, or Levels(upper, lower) to a bilevel method"
            )
        return given

    def _mine(self, values: np.ndarray) -> jax.Array:
        """Return this agent's entry of a public table; a plain number where all agents share it."""
        return jnp.asarray(values[0]) if (values == values[0]).all() else jnp.asarray(values)[self.index]

    def _weight(self, over: str, axis: int) -> jax.Array:
        return self._mine(self._known.weights(over, axis).astype(np.float32))


def _sum_of(losses: list[RecordLoss]) -> RecordLoss:
    if len(losses) == 1:
        return losses[0]
    return lambda at, record: sum((loss(at, record) for loss in losses[1:]), losses[0](at, record))
