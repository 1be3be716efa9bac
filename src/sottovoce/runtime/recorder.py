"""Which releases a method makes, read off its code: `step` is traced once with an agent that only takes notes.

So a method declares nothing, and what is charged is what the step does. Inside `agent.loop` a release counts as often
as the loop turns; inside any other control flow its count is not known, and it is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import get_opaque_trace_state

from sottovoce.methods.base import Method
from sottovoce.networks import Network
from sottovoce.privacy.release import Release
from sottovoce.privacy.sampling import Sampling
from sottovoce.problems import Bilevel, Minimize, MinMax
from sottovoce.runtime.agent import SINGLE, Agent, Batch, Place, RecordFn, by_level
from sottovoce.trees import Private, Tree, reveal

Phase = Literal["init", "step"]


@dataclass(frozen=True)
class Charge:
    """One `release` (or `tell`) in the code of a step, and how often it happens.

    `batches` are drawn in the phase, and each of them carries the release `times` times. `levels` are the record sets
    it reads. A message of private state (`tell`) has no sampling: standard events do not describe it.
    """

    release: Release
    levels: tuple[str, ...]
    batch: int
    batches: int
    times: int
    sampling: Sampling | None
    phase: Phase


def charges(
    method: Method, sizes: Mapping[str, np.ndarray], steps: int, network: Network, problem: Any = None
) -> tuple[Charge, ...]:
    """All charges of a method, in the order of its code, for a problem (or a stand-in of the kind it solves)."""
    problem = problem or stand_in(method)
    notes: list[Charge] = []

    def play() -> None:
        def handle(phase: Phase) -> Recorder:
            place = _Nowhere(network, sizes, steps, chunk=1)
            return Recorder(
                place, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), jax.random.key(0), (), notes, phase
            )

        state = method.init(problem, handle("init"))
        method.step(problem, state, handle("step"))

    jax.eval_shape(play)
    return tuple(notes)


def stand_in(method: Method) -> Any:
    """The smallest problem of the kind a method solves: releases do not depend on what the loss computes."""
    zero = jnp.zeros(2)
    kinds = {
        Minimize: lambda: Minimize(lambda x, r: jnp.sum(x) * r, zero),
        MinMax: lambda: MinMax(lambda x, y, r: jnp.sum(x * y) * r, zero, zero),
        Bilevel: lambda: Bilevel(lambda x, y, r: jnp.sum(x * y) * r, lambda x, y, r: jnp.sum(x * y) * r, zero, zero),
    }
    for kind in method.solves:
        if kind in kinds:
            return kinds[kind]()
    raise ValueError(f"{type(method).__name__} needs problem= to be accounted: there is no stand-in for its problems")


class _Nowhere(Place):
    """A place without records or neighbours: shapes only. Its agents read nothing, so it has no `gather`."""

    def mix(self, over: str, value: Tree, index: jax.Array, others_only: bool) -> Tree:
        return value

    def loop(self, times: int, body: Callable[[Tree, jax.Array], Tree], carry: Tree) -> Tree:
        return body(carry, jnp.zeros((), jnp.int32))  # once: it is the counting that multiplies


class Recorder(Agent):
    """An agent that notes releases instead of making them."""

    def __init__(
        self,
        place: Any,
        index: jax.Array,
        t: jax.Array,
        key: jax.Array,
        loops: tuple[int, ...],
        notes: list[Charge],
        phase: Phase,
        count: list[int] | None = None,
    ) -> None:
        super().__init__(place, index, t, key, loops)
        self._notes, self._phase = notes, phase
        self._count = count if count is not None else [0]
        self._trace = get_opaque_trace_state(convention="nnx")

    def sample(self, sampling: Sampling, name: str = "batch") -> Batch:
        """Number the batch."""
        self._require_straight(f"the batch {name!r}")
        for level, sizes in self.place.sizes.items():
            for n in np.unique(sizes):
                try:
                    sampling.check(int(n), self.steps)
                except ValueError as error:
                    parties = np.flatnonzero(sizes == n).tolist()[:5]
                    where = "" if level == SINGLE else f", {level} level"
                    raise ValueError(f"{error} (parties {parties}{where})") from None
        self._count[0] += 1
        return Batch({}, sampling, self._count[0], self.loops)

    def release(self, release: Release, records: RecordFn | None = None, **options: Any) -> Tree:
        """Note it."""
        levels = tuple(by_level(records, options.get("upper"), options.get("lower")))
        at, batch = options["at"], options["batch"]
        if any(isinstance(leaf, Private) for leaf in jax.tree.leaves(at, is_leaf=lambda v: isinstance(v, Private))):
            return super().release(release, records, **options)  # raises, with the reason
        self._note(release, levels, batch)
        return at

    def mean(self, release: Release, records: RecordFn | None = None, **options: Any) -> Private:
        """An un-noised mean costs nothing until something computed from it is told."""
        self._require_straight(f"the mean {release.name!r}")
        return Private(reveal(options["at"]))

    def tell(self, release: Release, value: Private) -> Tree:
        """Note a message of private state."""
        self._require_straight(f"the message {release.name!r}")
        times = int(np.prod(self.loops, initial=1))
        levels = tuple(self.place.sizes)
        self._notes.append(Charge(release, levels, 0, 1, times, None, self._phase))
        return reveal(value)

    def _note(self, release: Release, levels: tuple[str, ...], batch: Batch) -> None:
        self._require_straight(f"the release {release.name!r}")
        if self.loops[: len(batch.loops)] != batch.loops:
            raise ValueError(f"release {release.name!r} uses a batch drawn inside a loop that is over")
        if SINGLE in self.place.sizes:
            levels = (SINGLE,)
        absent = [level for level in levels if level not in self.place.sizes]
        if absent:
            raise ValueError(
                f"release {release.name!r} reads {' and '.join(absent)}, but the record sets are "
                f"{' and '.join(self.place.sizes)}: give one record set, or Levels(upper, lower) to a bilevel method"
            )
        batches = int(np.prod(batch.loops, initial=1))
        times = int(np.prod(self.loops[len(batch.loops) :], initial=1))
        self._notes.append(Charge(release, levels, batch.number, batches, times, batch.sampling, self._phase))

    def _require_straight(self, what: str) -> None:
        self._require_free()
        if get_opaque_trace_state(convention="nnx") != self._trace:
            raise ValueError(
                f"{what} stands inside jit, vmap, cond, while or scan, where the ledger cannot count it: "
                "call it in the step itself, or repeat it with agent.loop"
            )

    def _inside(self, times: int, key: jax.Array) -> "Recorder":
        return Recorder(
            self.place, self.index, self.t, key, (*self.loops, times), self._notes, self._phase, self._count
        )
