"""Define values that change with the step and may differ from agent to agent, for example ``Decay(1.0, 0.5)``.

One schedule object serves the compiled run (traced step and agent) and the accountant (NumPy steps, float64), so the
noise that is drawn and the noise that is charged are the same function. They are not the same numbers: a run computes
in float32, where 1e-46 is 0. Noise is therefore drawn larger by the relative amount `RAISED`, and `charged` compares
both: what is charged is never above what is drawn.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

PerAgent = float | tuple[float, ...]  # one value for all, or one for each agent
RAISED = 2.0**-16  # noise is drawn larger by this relative amount, which covers the rounding of float32
_SMALLEST = float(np.finfo(np.float32).tiny)  # smaller numbers are flushed to 0 on many machines


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


def _settled(value: Any) -> Any:
    """Keep the compiler from rewriting across this value: 1e38 / x**10 as 1e38 * x**-10 is 0 in float32.

    With this, a compiled run computes step by step what `charged` computes, and not something equal on paper.
    """
    return jax.lax.optimization_barrier(value) if isinstance(value, jax.Array) else value


class Schedule(ABC):
    """Give a value for each step and agent: ``schedule(t, agent)``; both are counted from 0.

    To write your own, implement `__call__` and `agents`.
    """

    @abstractmethod
    def __call__(self, t: Any, agent: Any = 0) -> Any:
        """Return the value at step t."""

    @property
    @abstractmethod
    def agents(self) -> int | None:
        """Return the number of agents it lists values for; None if all share one."""


@final
@dataclass(frozen=True)
class Constant(Schedule):
    """Give the same value at every step.

    >>> Constant(0.1)(7)
    0.1
    >>> Constant((0.1, 0.2))(7, agent=1)
    0.2
    """

    kind: ClassVar[str] = "constant"
    value: PerAgent

    def __call__(self, t: Any, agent: Any = 0) -> Any:
        """Return the value at step t."""
        return _pick(self.value, agent)

    @property
    def agents(self) -> int | None:
        """Return the number of agents it lists values for."""
        return _agents(self.value)


@final
@dataclass(frozen=True)
class Decay(Schedule):
    """Give ``value / (t + offset) ** power``: the papers' step sizes (offset 1); a negative power grows.

    >>> Decay(1.0, 0.5)(3)
    0.5
    >>> Decay(1.0, (0.5, 1.0))(3, agent=1)
    0.25
    """

    kind: ClassVar[str] = "decay"
    value: PerAgent
    power: PerAgent
    offset: float = 1.0

    def __call__(self, t: Any, agent: Any = 0) -> Any:
        """Return the value at step t."""
        base = t + self.offset
        if isinstance(base, np.ndarray):
            base = base.astype(np.float64)
        return _settled(_pick(self.value, agent) / _settled(base ** _pick(self.power, agent)))

    @property
    def agents(self) -> int | None:
        """Return the number of agents it lists values for."""
        return _agents(self.value, self.power)


@final
@dataclass(frozen=True)
class Linear(Schedule):
    """Go from `start` to `stop` over `steps` steps, and then stay at `stop`.

    >>> [Linear(1.0, 0.0, steps=4)(t) for t in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """

    kind: ClassVar[str] = "linear"
    start: PerAgent
    stop: PerAgent
    steps: int

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"a linear schedule over {self.steps} steps: it needs at least one")

    def __call__(self, t: Any, agent: Any = 0) -> Any:
        """Return the value at step t."""
        least = jnp.minimum if isinstance(t, jax.Array) else np.minimum
        done = least(t, self.steps)  # in whole numbers, where the difference of the last steps is exact
        value = (_pick(self.start, agent) * (self.steps - done) + _pick(self.stop, agent) * done) / self.steps
        return _settled(value) if isinstance(value, (jax.Array, np.ndarray)) else float(value)

    @property
    def agents(self) -> int | None:
        """Return the number of agents it lists values for."""
        return _agents(self.start, self.stop)


@final
@dataclass(frozen=True)
class Scaled(Schedule):
    """Multiply another schedule by a constant.

    >>> Scaled(Constant(2.0), 1.5)(0)
    3.0
    """

    kind: ClassVar[str] = "scaled"
    of: Schedule
    factor: PerAgent

    def __call__(self, t: Any, agent: Any = 0) -> Any:
        """Return the value at step t."""
        return _settled(_settled(self.of(t, agent)) * _pick(self.factor, agent))

    @property
    def agents(self) -> int | None:
        """Return the number of agents it lists values for."""
        return self.of.agents or _agents(self.factor)


@final
@dataclass(frozen=True)
class Ratio(Schedule):
    """Divide one schedule by another: a release that is multiplied by a step size carries noise ``message / step``.

    >>> Ratio(Decay(1.0, 0.5, offset=2), Constant(0.1))(2)
    5.0
    """

    kind: ClassVar[str] = "ratio"
    top: Schedule
    bottom: Schedule

    def __call__(self, t: Any, agent: Any = 0) -> Any:
        """Return the value at step t."""
        return _settled(_settled(self.top(t, agent)) / _settled(self.bottom(t, agent)))

    @property
    def agents(self) -> int | None:
        """Return the number of agents it lists values for."""
        return self.top.agents or self.bottom.agents


@final
@dataclass(frozen=True)
class Listed(Schedule):
    """Numbers that were written down: a row of one per step for each agent, or a single row for all.

    >>> Listed(((0.3, 0.2, 0.1),))(1)
    0.2
    """

    kind: ClassVar[str] = "listed"
    rows: tuple[tuple[float, ...], ...]

    def __call__(self, t: Any, agent: Any = 0) -> Any:
        """Return the value at step t."""
        row = 0 if self.agents is None else agent
        if isinstance(t, jax.Array) or isinstance(row, jax.Array):
            return jnp.asarray(self.rows, jnp.float32)[row, t]
        found = np.asarray(self.rows)[row, t]
        return found if np.ndim(found) else float(found)

    @property
    def agents(self) -> int | None:
        """The number of agents it lists values for."""
        return None if len(self.rows) == 1 else len(self.rows)


def settled(value: Schedule, steps: int, agents: int) -> Schedule:
    """Return a schedule of another module as the numbers that it gives now; one of this module as it is.

    A schedule that is asked by an account and once more by a run may give other numbers: what is drawn and what is
    charged are read off one list instead.

    >>> settled(Decay(1.0, 0.5), steps=3, agents=2)
    Decay(value=1.0, power=0.5, offset=1.0)
    """
    if told_by_fields(value) or value.agents not in (None, agents):  # which the account refuses
        return value

    def numbers() -> np.ndarray:
        times = np.arange(steps)
        return np.stack([np.broadcast_to(np.asarray(value(times, k), np.float64), steps) for k in range(agents)])

    table = numbers()
    if not np.array_equal(table, numbers(), equal_nan=True):
        raise ValueError(
            f"noise by {type(value).__name__} differs each time it is asked for: make it a function of the step and "
            "the agent alone"
        )
    return Listed(tuple(map(tuple, np.unique(table, axis=0).tolist() if (table == table[0]).all() else table.tolist())))


def charged(value: Schedule, times: np.ndarray, agent: int) -> np.ndarray:
    """Return the scale of the noise at each step as it may be charged: exact, but never above what a run draws.

    A run computes the schedule in float32 and multiplies it by 1 + `RAISED`. Where that is below the exact value, it is
    what is charged; where it underflows, the noise counts as none. Noise that overflows is an error.

    >>> charged(Constant(0.5), np.arange(3), 0).tolist(), charged(Constant(1e-46), np.arange(2), 0).tolist()
    ([0.5, 0.5, 0.5], [0.0, 0.0])
    """
    exact = np.broadcast_to(np.asarray(value(times, agent), dtype=np.float64), times.shape)
    drawn = np.broadcast_to(_in_a_run(value, times, agent).astype(np.float64), times.shape)
    if not np.isfinite(drawn).all() and np.isfinite(exact).all():
        at = int(times[np.argmin(np.isfinite(drawn))])
        raise ValueError(
            f"noise is {exact[np.argmin(np.isfinite(drawn))]:g} at step {at}, which a run cannot compute in float32: "
            "use a schedule that grows less"
        )
    usable = np.where(drawn >= _SMALLEST, drawn, 0.0)
    return np.where(usable * (1 + RAISED) >= exact, exact, usable)


def as_drawn(value: Schedule, times: np.ndarray, agents: range) -> np.ndarray:
    """Return the scales of the noise as a run computes them, by step and agent; one row where all steps have the same.

    These are the numbers that `charged` looks at: a run that is given them draws what is charged.

    >>> as_drawn(Constant((0.5, 0.25)), np.arange(3), range(2)).tolist()
    [[0.5, 0.25]]
    """
    columns = [np.broadcast_to(_in_a_run(value, times, agent), times.shape) for agent in agents]
    table = np.stack(columns, axis=1)
    return table[:1] if (table == table[:1]).all() else table


def _in_a_run(value: Schedule, times: np.ndarray, agent: int) -> np.ndarray:
    """Return the values in float32, as a compiled run computes them."""
    step, who = jax.device_put(np.asarray(times, np.int32)), _on_device(agent)
    with np.errstate(over="ignore"):
        return np.asarray(value(step, who)).astype(np.float32)


@lru_cache(maxsize=1024)
def _on_device(agent: int) -> jax.Array:
    """Return an agent's number as a run has it: deployed agents ask before each step."""
    return jax.device_put(np.int32(agent))


def same_for_all(value: Schedule) -> bool:
    """Tell whether all agents certainly share a schedule.

    False where it lists values, and where it is a kind of schedule that is not defined in this module.

    >>> same_for_all(Constant(0.1)), same_for_all(Scaled(Constant((0.1, 0.2)), 2.0))
    (True, False)
    """
    return all(part.agents is None for part in _parts(value)) and told_by_fields(value)


def told_by_fields(value: Schedule) -> bool:
    """Tell whether the fields of a schedule, as printed by `repr`, say all about it.

    False for a kind that is not defined in this module: it may print nothing, hold more than it prints, and change.

    >>> told_by_fields(Scaled(Constant(2.0), 1.5))
    True
    """
    return all(any(type(part) is kind for kind in _KINDS) and _held_plainly(part) for part in _parts(value))


def _held_plainly(part: Schedule) -> bool:
    """Say whether a schedule of this module holds Python's own numbers, and nothing beside its fields."""
    held = [getattr(part, field.name) for field in fields(part)]  # type: ignore[arg-type]
    plain = all(isinstance(value, Schedule) or _is_plain(value) for value in held)
    return plain and len(vars(part)) == len(held)


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return type(value) in (int, float) or type(value).__module__ == "numpy"


_KINDS = (Constant, Decay, Linear, Scaled, Ratio, Listed)


def _parts(value: Schedule) -> list[Schedule]:
    """Return a schedule and those inside of it."""
    inner: list[Any] = [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else []
    return [value, *(part for one in inner if isinstance(one, Schedule) for part in _parts(one))]


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
    if isinstance(value, (list, tuple)) and not value:
        raise TypeError("an empty list is no schedule: give a number, or one number per agent")
    try:
        return Constant(tuple(map(float, value)) if isinstance(value, (list, tuple)) else float(value))
    except (TypeError, ValueError):
        raise TypeError(
            f"{value!r} is no schedule: give a number, a tuple of one number per agent, or a schedule such as "
            "Decay(1.0, 0.5)"
        ) from None
