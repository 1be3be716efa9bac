"""Say how far a step goes: by a step size, or by an optimiser that remembers earlier gradients.

Example: ``DpSgd(rate=Momentum(0.1, 0.9), ...)``. An optimiser works on what was released, so it is post-processing: it
costs no privacy, and the account does not change.

Over a graph, step sizes and momentum are linear in the gradients, so agents with different data still agree on the
minimiser of the average. Adam is not: each agent divides by the size of its own gradients, which weighs the agents
differently and leaves a bias. With one agent, or with agents whose data are alike, there is none.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import optax

from sottovoce.schedules import Schedule, schedule
from sottovoce.trees import Tree, descend


@dataclass(frozen=True)
class Momentum:
    """Take steps with heavy-ball momentum: ``v' = weight * v + g``, ``x' = x - rate * v'``.

    >>> import jax.numpy as jnp
    >>> ball = Momentum(0.1, weight=0.5)
    >>> at, kept = update(ball, jnp.ones(1), memory(ball, jnp.ones(1)), jnp.ones(1), t=0)
    >>> round(float(update(ball, at, kept, jnp.ones(1), t=1)[0][0]), 3)    # 1 - 0.1 * 1 - 0.1 * 1.5
    0.75
    """

    rate: float | Schedule
    weight: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.weight < 1:
            raise ValueError(f"momentum weight is {self.weight}: it must lie in [0, 1)")


@dataclass(frozen=True)
class Adam:
    """Take steps by Adam, with a rate that may change with the step, and decoupled weight decay.

    >>> import jax.numpy as jnp
    >>> from sottovoce.schedules import Linear
    >>> adam, at = Adam(Linear(0.1, 0.0, steps=10)), jnp.ones(2)
    >>> print(update(adam, at, memory(adam, at), jnp.asarray([3.0, -5.0]), jnp.asarray(5))[0].round(4))
    [0.95 1.05]
    """

    rate: float | Schedule
    decay: float = 0.0


Rate: TypeAlias = float | Schedule | Momentum | Adam | optax.GradientTransformation


def memory(rate: Rate, at: Tree) -> Any:
    """Return what an optimiser remembers at the start; nothing for a step size.

    >>> memory(0.1, 0.0)
    ()
    """
    made = _transformation(rate)
    return () if made is None else made.init(at)


def update(rate: Rate, at: Tree, memory: Any, slope: Tree, t: Any, agent: Any = 0) -> tuple[Tree, Any]:
    """Take one step against the slope; return the new point and what is remembered after it.

    `t` is the step, and `agent` the agent, that schedules go by.

    >>> update(0.5, 1.0, (), 4.0, t=0)
    (-1.0, ())
    """
    made = _transformation(rate)
    if made is None:
        return descend(at, schedule(rate)(t, agent), slope), memory  # type: ignore[arg-type]
    change, memory = made.update(slope, memory, at)
    if isinstance(rate, (Momentum, Adam)):
        return descend(at, schedule(rate.rate)(t, agent), change), memory
    return optax.apply_updates(at, change), memory


def is_plain(rate: Any) -> bool:
    """Say whether a rate is a step size or a schedule, and not an optimiser.

    >>> is_plain(0.1), is_plain(Momentum(0.1))
    (True, False)
    """
    return not isinstance(rate, (Momentum, Adam, optax.GradientTransformation))


def require_plain(why: str, **rates: Any) -> None:
    """Refuse an optimiser where it would be unsound or unproved, with the reason.

    >>> require_plain("trackers follow plain gradients", gamma=Adam(0.1))
    Traceback (most recent call last):
    ...
    TypeError: gamma is an optimiser (Adam), and trackers follow plain gradients: give a number or a schedule
    """
    for name, rate in rates.items():
        if not is_plain(rate):
            raise TypeError(f"{name} is an optimiser ({type(rate).__name__}), and {why}: give a number or a schedule")


def _transformation(rate: Rate) -> optax.GradientTransformation | None:
    if isinstance(rate, Momentum):
        return optax.trace(rate.weight)
    if isinstance(rate, Adam):
        return optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(rate.decay))
    return rate if isinstance(rate, optax.GradientTransformation) else None
