"""Run private Newton descent for models that are linear in a row of numbers.

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
from sottovoce.problems import Minimize, MinMax
from sottovoce.problems.linear_model import TARGET, LinearModel
from sottovoce.problems.objectives import nothing
from sottovoce.trees import Tree

_GRADIENT, _LOSS = 0.15, 0.1  # with this noise of its gradient, or of its loss, a party has half of its weight
_NARROWEST = 1e-5  # eigenvalue of a direction over the largest: below it float32 cannot resolve the direction


class NewtonState(NamedTuple):
    """Hold the state: public by induction, because it is a function of releases.

    `x` is the average of the last iterates, `now` the last one.
    """

    x: Tree
    now: Tree
    basis: jax.Array  # whitens a row, and makes the clip of a typical gradient 1
    stride: jax.Array  # the step size in that basis
    y: Tree = ()  # min-max over parties: their weights
    losses: Tree = ()  # and their released losses, of which the recent ones count most


@dataclass(frozen=True)
class DpNewton(Method):
    """Run private Newton descent: noisy second moments once, then noisy gradients in the coordinates they whiten.

    All agents average every release, each in proportion to its number of records, so that they follow the pooled
    objective. For problems without `LinearModel` the rows are the gradients at x0, one column.

    A min-max problem over parties (`PartyWeights`) is solved with weights on the parties' releases, so weights change
    neither clip nor noise. The parties' losses are released in each step, and the best weights for them have a closed
    form. A party too small to be heard over its own noise, a public fact, is represented by the average of all
    records.

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
        losses: clip and noise of a party's mean loss: given for min-max problems, and for these only.

    >>> import sottovoce as sv
    >>> method = DpNewton(sv.Release(1.25, 0.01), sv.Release(1.0, 0.02))
    >>> for event in sv.account(method, sv.Population([5000]), steps=8).events: print(event)
    moments: ... once
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
    losses: Release | None = None

    solves: ClassVar[tuple[type, ...]] = (Minimize, MinMax)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "solves", (Minimize,) if self.losses is None else (MinMax,))
        if not 0 < self.norm < math.inf:
            raise ValueError(f"norm is {self.norm}: give a positive bound on the norm of a row")
        if not 0 < self.rate < 2:
            raise ValueError(f"rate is {self.rate}: between 0 and 2 the descent is stable, 1 is Newton's own step")
        if not (self.reach > 0 and min(self.trust, self.least) >= 0 and 0 < self.tail <= 1 and self.mixing >= 1):
            raise ValueError(
                f"reach, trust, least, tail, mixing are {self.reach}, {self.trust}, {self.least}, {self.tail}, "
                f"{self.mixing}: give reach > 0, trust and least >= 0, a tail in (0, 1], at least one round of mixing"
            )

    def init(self, problem: Minimize | MinMax, agent: Agent) -> NewtonState:
        """Release the moments, and whiten by them."""
        row = self._row_of(problem)
        known, now = _known(problem), problem.x0
        target = known.target if known is not None else None

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
        noise = agent.noise(self.moments)
        weight = size**2
        total, squares, power = self._average(agent, (weight * here, (weight * noise) ** 2, weight))
        moments, deviation = (total + total.T) / (2 * power), jnp.sqrt(squares / agent.parties) / power
        values, vectors = jnp.linalg.eigh(moments[:rows, :rows])
        raised = jnp.maximum(values, self.trust * deviation * math.sqrt(rows))
        raised = jnp.maximum(raised, jnp.maximum(self.least, _NARROWEST * jnp.maximum(values[-1], _NARROWEST)))
        seen = jnp.maximum(values, 0.0) / raised  # 1 for a direction that stands out of the noise
        axes, width, shown = vectors, raised, jnp.sum(seen)
        if isinstance(problem, Minimize) and problem.public is not nothing:
            # Newton's step knows the public term, too: a penalty larger than the moments would make it diverge.
            width, axes = jnp.linalg.eigh((vectors * raised) @ vectors.T + self._bend(problem, rows))
            width = jnp.maximum(width, raised[0])  # where that term is not convex, no step is longer than without it
            shown = jnp.sum(jnp.maximum(values, 0.0) @ (vectors.T @ axes) ** 2 / width)
        whitening = (axes / jnp.sqrt(width)) @ axes.T  # symmetric: the same for all who have the same moments
        residual = jnp.asarray(1.0 if known is None else known.residual)
        if target is not None and known is not None:
            # AdaSSP: the penalised least-squares solution of what was released, and the variance that it leaves.
            toward = moments[:rows, rows] / TARGET
            solution = axes @ (axes.T @ (vectors @ (seen * (vectors.T @ toward))) / width)
            variance = moments[rows, rows] / TARGET**2
            left = variance - 2 * solution @ toward + solution @ moments[:rows, :rows] @ solution
            least = jnp.maximum(2 * deviation / TARGET**2, _NARROWEST)
            residual = jnp.sqrt(jnp.clip(left, least, jnp.maximum(variance, least)))
            now = known.moved(now, solution[:, None], self.norm)
        clip = self.reach * residual * jnp.sqrt(jnp.maximum(shown, 1.0))
        stride = self.rate / (1.0 if known is None else known.curvature) * clip**2
        made = NewtonState(now, now, whitening / clip, jnp.asarray(stride, jnp.float32))
        if isinstance(problem, Minimize):
            return made
        return made._replace(y=problem.y0, losses=jax.tree.map(jnp.zeros_like, problem.y0))

    def _bend(self, problem: Minimize, rows: int) -> jax.Array:
        """Return the second derivatives of the public term along a row's entries, in units of the model's curvature.

        Of several scores the first one stands for all.
        """
        known, moved = _known(problem), self._moved_by(problem)
        columns = 1 if known is None else math.prod(jnp.shape(problem.x0["bias"]))

        def public(change: jax.Array) -> Any:
            return problem.public(moved(problem.x0, jnp.zeros((rows, columns)).at[:, 0].set(change)))

        found = jax.hessian(public)(jnp.zeros(rows))
        return (found + found.T) / (2 * (1.0 if known is None else known.curvature))

    def step(self, problem: Minimize | MinMax, state: NewtonState, agent: Agent) -> NewtonState:
        """Release the gradient in whitened coordinates, average it over all records, descend."""
        known, columns = _known(problem), 1
        moved = self._moved_by(problem)
        if known is not None:
            columns = math.prod(jnp.shape(problem.x0["bias"]))

        def at(change: jax.Array) -> Tree:
            return moved(state.now, state.basis @ change)

        def loss(change: jax.Array, record: Any) -> jax.Array:
            if known is None:
                return _loss(problem, state.y)(at(change), record)
            # As a function of whitened rows: a record's gradient is an outer product, and is clipped as cheaply.
            more = (known.row(record, self.norm) @ state.basis) @ change
            return known.loss(known.scores(state.now, record) + more.reshape(jnp.shape(problem.x0["bias"])), record)

        def public(change: jax.Array) -> Any:
            return problem.public(at(change)) if isinstance(problem, Minimize) else problem.public(at(change), state.y)

        batch = agent.sample(Full())
        start = jnp.zeros((state.basis.shape[0], columns))
        here = agent.release(self.gradient, loss, at=start, batch=batch, public=public)
        weight, y, losses = self._size(agent), state.y, state.losses
        if isinstance(problem, MinMax):
            if problem.weighted is not None:
                weight = self._heard(agent, y, math.sqrt(start.size) / _GRADIENT)
            y, losses = self._judged(problem, state, agent, batch)
        total, weight = self._average(agent, (weight * here, weight))
        now = problem.project_x(at(-state.stride * total / weight))
        late = agent.t - int((1 - self.tail) * agent.steps)
        past = jnp.where(late > 0, late / (late + 1.0), 0.0)
        x = jax.tree.map(lambda before, here: past * before + (1 - past) * here, state.x, now)
        return NewtonState(x, now, state.basis, state.stride, y, losses)

    def _judged(self, problem: MinMax, state: NewtonState, agent: Agent, batch: Any) -> tuple[Tree, Tree]:
        """Release the party's mean loss, and return the best weights for all parties' recent losses."""
        assert self.losses is not None  # else it solves no min-max problem (`__post_init__`)
        if problem.weighted is None:  # nothing is known of the problem: y takes an ascent step
            up = agent.release(
                self.losses, lambda y, r: problem.loss(state.now, y, r), at=state.y, batch=batch,
                public=lambda y: problem.public(state.now, y),
            )  # fmt: skip
            return problem.project_y(jax.tree.map(jnp.add, agent.mix(state.y), up)), state.losses
        known, parties, size = problem.weighted.model, agent.parties, self._size(agent)

        def loss(times: jax.Array, record: Any) -> jax.Array:
            return times * known.loss(known.scores(state.now, record), record)  # its derivative in `times` is the loss

        here = agent.release(self.losses, loss, at=jnp.zeros(()), batch=batch)
        mine = parties * jax.nn.one_hot(agent.index, parties)
        share = self._share_heard(agent, self.losses, 1 / _LOSS)
        each, shares, sizes = self._average(agent, (mine * here, mine * share, mine * size))
        losses = jnp.where(agent.t == 0, each, 0.5 * (state.losses + each))
        mean = jnp.sum(sizes * losses) / jnp.sum(sizes)
        return problem.weighted.best(shares * losses + (1 - shares) * mean), losses

    def _heard(self, agent: Agent, y: Tree, per_noise: float) -> jax.Array:
        """Return this party's weight: the heard share of its y, and its share of the weight that no party keeps.

        What noise hides of the parties' weights goes to all parties, in proportion to their records.
        """
        size, own = self._size(agent), y[agent.index] * self._share_heard(agent, self.gradient, per_noise)
        heard, records = self._average(agent, (agent.parties * own, size))
        return own + (1 - heard) * size / (agent.parties * records)

    def _share_heard(self, agent: Agent, release: Release, per_noise: float) -> jax.Array:
        noise = agent.noise(release)
        return 1 / (1 + (per_noise * noise) ** 2)

    def _size(self, agent: Agent) -> jax.Array:
        return jnp.asarray(agent.size(), jnp.float32)

    def _average(self, agent: Agent, value: Tree) -> Tree:
        """Return the average over all agents, by as many rounds as it takes neighbours to agree."""
        if self.mixing == 1:
            return agent.mix(value)
        return agent.loop(self.mixing, lambda value, agent: agent.mix(value), value, "mixing")

    def _row_of(self, problem: Minimize | MinMax) -> Callable[[Any], jax.Array]:
        """Return a record's row: that of the linear model, or the gradient where x starts."""
        known = _known(problem)
        if known is not None:
            return lambda record: known.row(record, self.norm)
        loss = _loss(problem, () if isinstance(problem, Minimize) else problem.y0)
        return lambda record: ravel_pytree(jax.grad(loss)(problem.x0, record))[0]

    def _moved_by(self, problem: Minimize | MinMax) -> Callable[[Tree, jax.Array], Tree]:
        """Return how x changes by a change that is stated for rows."""
        known = _known(problem)
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


def _known(problem: Minimize | MinMax) -> LinearModel | None:
    """Return what is known of the model."""
    if isinstance(problem, Minimize):
        return problem.linear
    return None if problem.weighted is None else problem.weighted.model


def _loss(problem: Minimize | MinMax, y: Tree) -> Callable[[Tree, Any], jax.Array]:
    """Return the loss of x and a record, at y if there is one."""
    return problem.loss if isinstance(problem, Minimize) else lambda x, record: problem.loss(x, y, record)


def _length(problem: Minimize | MinMax) -> int:
    """Return how many numbers a row has."""
    if _known(problem) is not None:
        return 1 + jnp.shape(problem.x0["weights"])[0]
    return ravel_pytree(problem.x0)[0].size
