"""How far a step goes: a step size, or an optimiser that remembers earlier gradients."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import optax

from sottovoce.schedules import Schedule, schedule
from sottovoce.trees import Tree, descend


@dataclass(frozen=True)
class Adam:
    """Adam with a rate that may change with the step, and decoupled weight decay: what a run file can say of optax.

    >>> import jax.numpy as jnp
    >>> from sottovoce.schedules import Linear
    >>> adam, at = Adam(Linear(0.1, 0.0, steps=10)), jnp.ones(2)
    >>> print(update(adam, at, memory(adam, at), jnp.asarray([3.0, -5.0]), jnp.asarray(5))[0].round(4))
    [0.95 1.05]
    """

    rate: float | Schedule
    decay: float = 0.0


Rate: TypeAlias = float | Schedule | Adam | optax.GradientTransformation


def memory(rate: Rate, at: Tree) -> Any:
    """What an optimiser remembers at the start; nothing for a step size."""
    made = _transformation(rate)
    return () if made is None else made.init(at)


def update(rate: Rate, at: Tree, memory: Any, slope: Tree, t: jax.Array) -> tuple[Tree, Any]:
    """One step against the slope, and what is remembered after it; `t` is the step that schedules go by."""
    made = _transformation(rate)
    if made is None:
        return descend(at, schedule(rate)(t), slope), memory  # type: ignore[arg-type]
    change, memory = made.update(slope, memory, at)
    if isinstance(rate, Adam):
        return descend(at, schedule(rate.rate)(t), change), memory
    return optax.apply_updates(at, change), memory


def _transformation(rate: Rate) -> optax.GradientTransformation | None:
    if isinstance(rate, Adam):
        return optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(rate.decay))
    return rate if isinstance(rate, optax.GradientTransformation) else None
