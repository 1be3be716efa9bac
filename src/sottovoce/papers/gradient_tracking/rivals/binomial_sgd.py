"""Run distributed SGD with quantised gradients and binomial noise.

Yan, Li, Wu and Song, "Killing two birds with one stone: quantization achieves privacy in distributed learning", Digital
Signal Processing 146, 2024. Written from its abstract and from what others say of it, because the paper itself was not
at hand: gradients are quantised uniformly, binomial noise is added to the whole numbers, and the average drives SGD.
Not verifiable here: its ranges, numbers of bits and of coins, its sampling, and its printed epsilon.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import jax
import numpy as np

from sottovoce.methods.agent import Agent
from sottovoce.methods.base import Method, Setting
from sottovoce.naming import check_count
from sottovoce.privacy.binomial_noise import binomial_epsilon, heads, rounded
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Full, Sampling
from sottovoce.problems import Minimize
from sottovoce.schedules import Constant, Scaled, Schedule, schedule
from sottovoce.trees import Tree, descend

_MOST = 2**36  # coins: a table of the noise grows with their square root


class BinomialState(NamedTuple):
    """Hold x, which is public: a function of messages."""

    x: Tree


@dataclass(frozen=True)
class BinomialSgd(Method):
    """Run SGD on quantised gradients with binomial noise: ``x' = mix(x - rate * (rounded gradient + noise))``.

    The quantiser's step is ``2 noise / sqrt(coins)``, so that the number of heads among the coins, in steps, has the
    standard deviation `noise`. More coins mean a finer quantiser, more bits, and noise closer to a Gaussian. Over a
    complete graph this is the averaging of a server.

    Args:
        rate: step size.
        gradient: the clip of the records' gradients, in L2, and the standard deviation of the noise on their mean.
        sampling: how batches are drawn. The proof has no amplification: full batches use it best.
        coins: fair coins per number.
        dimension: how many numbers a gradient has. Epsilon is proved if it is given, because rounding costs privacy in
            every coordinate (`privacy.binomial_noise.binomial_epsilon`).

    >>> import jax.numpy as jnp
    >>> import sottovoce as sv
    >>> method = BinomialSgd(0.5, sv.Release(1.0, 0.01), sv.Full(), dimension=100)
    >>> problem = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(100))
    >>> given = {"problem": problem, "steps": 20, "network": sv.networks.complete(5)}
    >>> round(sv.account(method, sv.Population([1000] * 5, record=np.zeros(100)), **given).epsilon, 2)
    4.19
    """

    rate: Schedule | float
    gradient: Release
    sampling: Sampling
    coins: int = 2**24
    dimension: int | None = None

    solves: ClassVar[tuple[type, ...]] = (Minimize,)
    public_constants: ClassVar[bool] = True  # the table of the binomial law

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("coins", self.coins)
        if self.coins > _MOST:
            raise ValueError(f"coins is {self.coins}: it must be at most 2**36, whose table has millions of entries")
        if self.dimension is not None:
            check_count("dimension", self.dimension)
        if self.gradient.norm != "l2":
            raise ValueError("gradient: the clip must be in L2, so leave mechanism out (the noise is binomial)")

    def init(self, problem: Minimize, agent: Agent) -> BinomialState:
        """Start at x0."""
        size = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(problem.x0))
        if self.dimension is not None and size > self.dimension:
            raise ValueError(f"dimension is {self.dimension}, but the problem has {size} numbers: set dimension={size}")
        return BinomialState(problem.x0)

    def step(self, problem: Minimize, state: BinomialState, agent: Agent) -> BinomialState:
        """Quantise the gradient, add binomial noise, descend, average."""
        batch = agent.sample(self.sampling)
        slope = agent.mean(self.gradient, problem.loss, at=state.x, batch=batch)
        width = self.gradient.scale(agent.t, agent.index) * (2 / self.coins**0.5)
        if self.gradient.private:  # otherwise it is the non-private twin
            leaves, structure = jax.tree.flatten(slope)
            keys = jax.random.split(agent.key("quantiser"), 2 * len(leaves))
            whole = [rounded(key, leaf, width) for key, leaf in zip(keys[::2], leaves)]
            noise = [width * heads(key, self.coins, leaf.shape) for key, leaf in zip(keys[1::2], leaves)]
            slope = jax.tree.unflatten(structure, [value + added for value, added in zip(whole, noise)])
        sent = agent.tell(replace(self.gradient, noise=0.0), slope)  # all of its noise is in it already
        if problem.public is not None:
            sent = jax.tree.map(lambda g, p: g + p, sent, jax.grad(problem.public)(state.x))
        x = descend(state.x, schedule(self.rate)(agent.t, agent.index), sent)
        return BinomialState(agent.mix(problem.project_x(x)))

    def proved(self, setting: Setting, agent: int) -> float | None:
        """Return the bound of `binomial_epsilon` for replaced records, where `dimension` is given."""
        known = not self.sampling.repeats and _constant(self.gradient.scale)  # the first denominator is the least
        if self.dimension is None or not known or not self.gradient.private:
            return None
        (sizes,) = setting.sizes.values()
        moved = 2 * self.gradient.clip / float(self.sampling.denominator(sizes[agent], 0))
        width = 2 * float(self.gradient.scale(0, agent)) / self.coins**0.5
        if not width > 0:
            return None  # this agent has no noise
        return binomial_epsilon(self.coins, moved / width, self.dimension, setting.steps, setting.delta)

    def caveats(self, setting: Setting) -> Sequence[str]:
        """Say what the bound rests on."""
        if self.dimension is None:
            return ("rounding costs privacy in every coordinate: give dimension=, or no epsilon is proved",)
        return (f"epsilon is of {self.dimension} coordinates, each rounded and noised by {self.coins} fair coins",)

    @classmethod
    def examples(cls) -> Mapping[str, Method]:
        """Return it without quantiser and noise."""
        return {"unquantised": cls(rate=0.2, gradient=Release.open(), sampling=Full())}


def _constant(scale: Schedule) -> bool:
    return type(scale) is Constant or (type(scale) is Scaled and _constant(scale.of))
