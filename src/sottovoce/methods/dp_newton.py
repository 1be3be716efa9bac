"""Private Newton descent for models that are linear in a row of numbers.

The second moments of the rows are released once. They give coordinates in which the loss curves alike in all
directions, however loose the declared ranges of the columns are; in these coordinates a few noisy gradients suffice.
Preconditioned private descent with noisy second-order information: Avella-Medina, Bradshaw and Loh, "Differentially
private inference via noisy optimization", Annals of Statistics 51(5), 2023; Ganesh, Haghifam, Steinke and Guha
Thakurta, "Faster differentially private convex optimization via second-order methods", NeurIPS 2023. The start for the
squared loss is AdaSSP: Wang, "Revisiting differentially private linear regression", UAI 2018.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from sottovoce.methods.agent import Agent
from sottovoce.methods.base import Method
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full
from sottovoce.problems import Minimize
from sottovoce.problems.linear_model import TARGET
from sottovoce.trees import Tree

_NARROWEST = 1e-5  # a direction's eigenvalue over the largest one, below which float32 does not resolve it


class NewtonState(NamedTuple):
    """Public by induction: all are functions of releases. `x` is the average of the last iterates, `now` the last."""

    x: Tree
    now: Tree
    basis: jax.Array  # whitens a row, and makes the clip of a typical gradient 1
    stride: jax.Array  # the step size in that basis


@dataclass(frozen=True)
class DpNewton(Method):
    """Private Newton descent: noisy second moments once, then noisy gradients in the coordinates that they whiten.

    All agents average every release, each in proportion to its number of records, so that they follow the pooled
    objective. For problems without `LinearModel` the rows are the gradients at x0, one column.

    Args:
        moments: clip and noise of the mean of row times row. A row's own bound (`LinearModel.bound`) clips nothing.
        gradient: clip and noise of the gradient in whitened coordinates, where 1 is `reach` times a typical record's.
        norm: bound on the L2 norm of a row, from declared ranges. Longer rows are shortened inside the releases.
        rate: step size over that of Newton's method; below 2 it is stable.
        reach: the clip over the size of a typical record's gradient.
        trust: eigenvalues of the moments below `trust` times the size of their noise are raised to it.
        least: eigenvalues are raised to at least this; needed where gradients at x0 say little about the curvature.
        mixing: how many times neighbours average each release.
        tail: share of the steps, at the end, whose iterates are averaged.

    >>> import sottovoce as sv
    >>> method = DpNewton(sv.Release(1.25, 0.01), sv.Release(1.0, 0.02))
    >>> for event in sv.account(method, sv.Population([5000]), steps=8).events: print(event)
    moments: ... 1 times
    gradient: ... 8 times
    """

    moments: Release
    gradient: Release
    norm: float = 1.0
    rate: float = 1.0
    reach: float = 0.8
    trust: float = 1.0
    least: float = 0.0
    mixing: int = 1
    tail: float = 0.5

    solves: ClassVar[tuple[type, ...]] = (Minimize,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.norm < math.inf:
            raise ValueError(f"norm is {self.norm}: give a positive bound on the norm of a row")
        if not 0 < self.rate < 2:
            raise ValueError(f"rate is {self.rate}: between 0 and 2 the descent is stable, 1 is Newton's own step")
        if not (self.reach > 0 and min(self.trust, self.least) >= 0 and 0 < self.tail <= 1 and self.mixing >= 1):
            raise ValueError(
                f"reach, trust, least, tail, mixing are {self.reach}, {self.trust}, {self.least}, {self.tail}, "
                f"{self.mixing}: give reach > 0, trust and least >= 0, a tail in (0, 1], at least one round of mixing"
            )

    def init(self, problem: Minimize, agent: Agent) -> NewtonState:
        """Release the moments, and whiten by them."""
        row = self._row_of(problem)
        target = problem.linear.target if problem.linear is not None else None

        def entry(record: Any) -> jax.Array:
            if target is None:
                return row(record)
            return jnp.append(row(record), TARGET * target(record))

        def square(weights: jax.Array, record: Any) -> jax.Array:
            return entry(record) @ weights @ entry(record)  # its gradient in the weights is entry times entry

        rows = _length(problem)
        size, start = self._size(agent), jnp.zeros((rows + (target is not None),) * 2)
        here = agent.release(self.moments, square, at=start, batch=agent.sample(Full(), "moments"))
        # Whitening does not depend on whose rows count how much: weights by squared size have the least noise.
        noise = self.moments.scale(agent.t, agent.index)
        weight = size**2
        total, squares, power = self._average(agent, (weight * here, (weight * noise) ** 2, weight))
        moments, deviation = (total + total.T) / (2 * power), jnp.sqrt(squares / agent.parties) / power
        values, vectors = jnp.linalg.eigh(moments[:rows, :rows])
        raised = jnp.maximum(values, self.trust * deviation * math.sqrt(rows))
        raised = jnp.maximum(raised, jnp.maximum(self.least, _NARROWEST * jnp.maximum(values[-1], _NARROWEST)))
        seen = jnp.maximum(values, 0.0) / raised  # 1 for a direction that stands out of the noise
        whitening = (vectors / jnp.sqrt(raised)) @ vectors.T  # symmetric: the same for all who have the same moments
        known, now = problem.linear, problem.x0
        residual = jnp.asarray(1.0 if known is None else known.residual)
        if target is not None and known is not None:
            # AdaSSP: the least-squares solution of what was released, and the variance that it leaves.
            toward = moments[:rows, rows] / TARGET
            solution = vectors @ (seen / raised * (vectors.T @ toward))
            variance = moments[rows, rows] / TARGET**2
            left = variance - 2 * solution @ toward + solution @ moments[:rows, :rows] @ solution
            least = jnp.maximum(2 * deviation / TARGET**2, _NARROWEST)
            residual = jnp.sqrt(jnp.clip(left, least, jnp.maximum(variance, least)))
            now = known.moved(now, solution[:, None], self.norm)
        clip = self.reach * residual * jnp.sqrt(jnp.maximum(jnp.sum(seen), 1.0))
        stride = self.rate / (1.0 if known is None else known.curvature) * clip**2
        return NewtonState(now, now, whitening / clip, jnp.asarray(stride, jnp.float32))

    def step(self, problem: Minimize, state: NewtonState, agent: Agent) -> NewtonState:
        """Release the gradient in whitened coordinates, average it over all records, descend."""
        known, columns = problem.linear, 1
        moved = self._moved_by(problem)
        if known is not None:
            columns = math.prod(jnp.shape(problem.x0["bias"]))

        def at(change: jax.Array) -> Tree:
            return moved(state.now, state.basis @ change)

        def loss(change: jax.Array, record: Any) -> jax.Array:
            if known is None:
                return problem.loss(at(change), record)
            # As a function of whitened rows: a record's gradient is an outer product, and is clipped as cheaply.
            more = (known.row(record, self.norm) @ state.basis) @ change
            return known.loss(known.scores(state.now, record) + more.reshape(jnp.shape(problem.x0["bias"])), record)

        here = agent.release(
            self.gradient,
            loss,
            at=jnp.zeros((state.basis.shape[0], columns)),
            batch=agent.sample(Full()),
            public=lambda change: problem.public(at(change)),
        )
        size = self._size(agent)
        total, weight = self._average(agent, (size * here, size))
        now = problem.project_x(at(-state.stride * total / weight))
        late = agent.t - int((1 - self.tail) * agent.steps)
        past = jnp.where(late > 0, late / (late + 1.0), 0.0)
        x = jax.tree.map(lambda before, here: past * before + (1 - past) * here, state.x, now)
        return NewtonState(x, now, state.basis, state.stride)

    def _size(self, agent: Agent) -> jax.Array:
        return jnp.asarray(agent.size(), jnp.float32)

    def _average(self, agent: Agent, value: Tree) -> Tree:
        """Return the average over all agents, by as many rounds as it takes neighbours to agree."""
        if self.mixing == 1:
            return agent.mix(value)
        return agent.loop(self.mixing, lambda value, agent: agent.mix(value), value, "mixing")

    def _row_of(self, problem: Minimize) -> Callable[[Any], jax.Array]:
        """Return a record's row: that of the linear model, or the gradient where x starts."""
        known = problem.linear
        if known is not None:
            return lambda record: known.row(record, self.norm)
        return lambda record: ravel_pytree(jax.grad(problem.loss)(problem.x0, record))[0]

    def _moved_by(self, problem: Minimize) -> Callable[[Tree, jax.Array], Tree]:
        """Return how x changes by a change that is stated for rows."""
        known = problem.linear
        if known is not None:
            return lambda x, change: known.moved(x, change, self.norm)

        def moved(x: Tree, change: jax.Array) -> Tree:
            flat, back = ravel_pytree(x)
            return back(flat + change[:, 0])

        return moved

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return steps without noise, for a quadratic whose gradients at x0 say little about its curvature."""
        return {"plain": cls(Release.open(), Release.open(), rate=0.2, least=1.0, mixing=20, tail=0.1)}


def _length(problem: Minimize) -> int:
    """Return how many numbers a row has."""
    if problem.linear is not None:
        return 1 + jnp.shape(problem.x0["weights"])[0]
    return ravel_pytree(problem.x0)[0].size
