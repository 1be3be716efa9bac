"""Define values that change with the step and may differ from agent to agent, for example ``Decay(1.0, 0.5)``.

One schedule object serves the compiled run (traced step and agent) and the accountant (NumPy steps, float64), so the
noise that is drawn and the noise that is charged are the same function.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

PerAgent = float | tuple[float, ...]  # one value for all, or one for each agent


def _pick(value: PerAgent, agent: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    return jnp.asarray(value)[agent] if isinstance(agent, jax.Array) else value[int(agent)]


def _agents(*values: PerAgent) -> int | None:
    """Return for how many agents these values are listed; None when all share them."""
    counts = {len(v) for v in values if isinstance(v, tuple)}
    if len(counts) > 1:
        raise ValueError(f"a schedule lists values for {sorted(counts)} agents: give one value, or one per agent")
    return counts.pop() if counts else None


class Schedule(ABC):
    """``schedule(t, agent)`` is the value at step t for an agent; both are counted from 0.

    To write your own, implement `__call__` and `agents`.
    """

    @abstractmethod
    def __call__(self, t: Any, agent: Any = 0) -> Any:
        """Return the value at step t."""

    @property
    @abstractmethod
    def agents(self) -> int | None:
        """The number of agents it lists values for; None if all share one."""


@final
@dataclass(frozen=True)
class Constant(Schedule):
    """The same value at every step.

    >>> Constant(0.1)(7)
    0.1
    >>> Constant((0.1, 0.2))(7, agent=1)
    0.2
    """

    value: PerAgent

    def __call__(self, t: Any, agent: Any = 0) -> Any:
        """Return the value at step t."""
        return _pick(self.value, agent)

    @property
    def agents(self) -> int | None:
        """The number of agents it lists values for."""
        return _agents(self.value)


@final
@dataclass(frozen=True)
class Decay(Schedule):
    """``value / (t + offset) ** power``: the papers' step sizes (offset 1); a negative power grows.

    >>> Decay(1.0, 0.5)(3)
    0.5
    >>> Decay(1.0, (0.5, 1.0))(3, agent=1)
    0.25
    """

    value: PerAgent
    power: PerAgent
    offset: float = 1.0

    def __call__(self, t: Any, agent: Any = 0) -> Any:
        """Return the value at step t."""
        base = t + self.offset
        if isinstance(base, np.ndarray):
            base = base.astype(np.float64)
        return _pick(self.value, agent) / base ** _pick(self.power, agent)

    @property
    def agents(self) -> int | None:
        """The number of agents it lists values for."""
        return _agents(self.value, self.power)


@final
@dataclass(frozen=True)
class Linear(Schedule):
    """From `start` to `stop` over `steps` steps, and then `stop`.

    >>> [Linear(1.0, 0.0, steps=4)(t) for t in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """

    start: PerAgent
    stop: PerAgent
    steps: int

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"a linear schedule over {self.steps} steps: it needs at least one")

    def __call__(self, t: Any, agent: Any = 0) -> Any:
        """Return the value at step t."""
        least = jnp.minimum if isinstance(t, jax.Array) else np.minimum
        done = least(t, self.steps) / self.steps
        value = _pick(self.start, agent) * (1 - done) + _pick(self.stop, agent) * done
        return value if isinstance(value, (jax.Array, np.ndarray)) else float(value)

    @property
    def agents(self) -> int | None:
        """The number of agents it lists values for."""
        return _agents(self.start, self.stop)


@final
@dataclass(frozen=True)
class Scaled(Schedule):
    """Another schedule times a constant.

    >>> Scaled(Constant(2.0), 1.5)(0)
    3.0
    """

    of: Schedule
    factor: PerAgent

    def __call__(self, t: Any, agent: Any = 0) -> Any:
        """Return the value at step t."""
        return self.of(t, agent) * _pick(self.factor, agent)

    @property
    def agents(self) -> int | None:
        """The number of agents it lists values for."""
        return self.of.agents or _agents(self.factor)


@final
@dataclass(frozen=True)
class Ratio(Schedule):
    """One schedule over another: a release that is multiplied by a step size carries noise ``message / step``.

    >>> Ratio(Decay(1.0, 0.5, offset=2), Constant(0.1))(2)
    5.0
    """

    top: Schedule
    bottom: Schedule

    def __call__(self, t: Any, agent: Any = 0) -> Any:
        """Return the value at step t."""
        return self.top(t, agent) / self.bottom(t, agent)

    @property
    def agents(self) -> int | None:
        """The number of agents it lists values for."""
        return self.top.agents or self.bottom.agents


def same_for_all(value: Schedule) -> bool:
    """Tell whether all agents certainly share a schedule.

    False where it lists values, and where it is a kind of schedule that is not defined in this module.

    >>> same_for_all(Constant(0.1)), same_for_all(Scaled(Constant((0.1, 0.2)), 2.0))
    (True, False)
    """
    inner: list[Any] = [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else []
    ours = type(value).__module__ == __name__
    return ours and value.agents is None and all(same_for_all(part) for part in inner if isinstance(part, Schedule))


def schedule(value: "float | Schedule | tuple[float, ...]") -> Schedule:
    """Make a schedule from a number, from one number per agent, or from a schedule.

    >>> schedule(0.5)
    Constant(value=0.5)
    >>> schedule(lambda t: 1 / t)
    Traceback (most recent call last):
    ...
    TypeError: ... give a number, a tuple of one number per agent, or a schedule such as Decay(1.0, 0.5)
    """
    if isinstance(value, Schedule):
        return value
    try:
        return Constant(tuple(map(float, value)) if isinstance(value, (list, tuple)) else float(value))
    except (TypeError, ValueError):
        raise TypeError(
            f"{value!r} is no schedule: give a number, a tuple of one number per agent, or a schedule such as "
            "Decay(1.0, 0.5)"
        ) from None
