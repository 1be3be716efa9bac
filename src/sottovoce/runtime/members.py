"""Move several runs of one form together, as one compiled program: its *members*.

Example: four epsilons with three seeds are twelve runs that differ in numbers alone. Each keeps its own records, keys,
agent numbers, ledger and folder; here their steps are computed side by side, by `vmap` over the members. What a member
computes is what it computes by itself, up to the last bits.

Everything by which members differ is an operand of the program. It is taken from each member's own place, and from
nowhere else: the keys, the records, and the numbers of its own trace, the scales of its noise among them.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sottovoce.accounting.content import KEPT
from sottovoce.runtime import array
from sottovoce.runtime.array import ArrayPlace, Spec, pinned
from sottovoce.runtime.place import Place

MOST = 32  # members of one program
_WORKED_ON = 2**28  # bytes of records and of their gradients, at most, that all members of a program work on at once
_HELD = 2**30  # bytes of records, at most, that a program holds for its members where they differ
State = list[Any]


class Members:
    """Begin and advance places: a single one by itself, several of one form as one program.

    Methods take the numbers of those members that are to be moved. The program is the same for any of them: it is
    compiled for all, and where some are left out, another one is computed twice in their place.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places
        self._beside: _Beside | None = None
        if len(places) > 1:
            arrays = [place for place in places if isinstance(place, ArrayPlace)]
            if len(arrays) < len(places) or len({form(place) for place in arrays}) > 1:
                raise ValueError("these runs are not of one form: their programs differ in more than numbers")
            self._beside = _Beside(arrays)

    def begin(self, who: Sequence[int]) -> list[State]:
        """Return the first states of some members."""
        if self._beside is None or not who:
            return [self._places[number].begin() for number in who]
        return self._beside.begin(who)

    def advance(
        self, who: Sequence[int], states: Sequence[State], first: int, count: int
    ) -> list[tuple[State, np.ndarray]]:
        """Return, as `Place.advance` does, the state of each of some members `count` steps after step `first`."""
        if self._beside is None:
            return [self._places[number].advance(state, first, count) for number, state in zip(who, states)]
        return self._beside.advance(who, states, first, count)


def form(place: Place) -> Hashable | None:
    """Return what is equal for places whose runs may be members of one program; None for a place that runs alone."""
    if not isinstance(place, ArrayPlace):
        return None
    leaves, structure = jax.tree.flatten(_operands(place))
    return place.form[0], structure, tuple(map(jax.typeof, leaves))


def most_of(place: Place) -> int:
    """Return how many runs of this size may be members of one program, at most, without much memory."""
    if not isinstance(place, ArrayPlace):
        return 1
    population = place.trace.known.population
    state = sum(shape.size * shape.dtype.itemsize for shape in place.trace.shapes)
    worked_on = sum(
        population.parties * min(place.chunk, int(counts.max())) * (place.records[level].record_bytes + state)
        for level, counts in population.counts.items()
    )
    return max(1, min(MOST, _WORKED_ON // worked_on, _HELD // held_by(place)))


def held_by(place: Place) -> int:
    """Return the bytes of records that a place for members holds."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(place.records)) if isinstance(place, ArrayPlace) else 0


class _Beside:
    """Hold the members' operands: once where all have the same, else side by side."""

    def __init__(self, places: Sequence[ArrayPlace]) -> None:
        self._spec, self._indices = places[0].form[0], places[0].indices
        self._own = [jax.tree.leaves(_operands(place)) for place in places]
        self._structure = jax.tree.structure(_operands(places[0]))
        self._apart = tuple(not all(_same(column[0], other) for other in column[1:]) for column in zip(*self._own))
        self._stacked: tuple[tuple[int, ...], list[Any]] | None = None

    def begin(self, who: Sequence[int]) -> list[State]:
        """Return the first states of some members."""
        start, _ = _compiled(self._spec, self._structure, self._apart)
        return start(self._indices, self._given(who))[: len(who)]

    def advance(
        self, who: Sequence[int], states: Sequence[State], first: int, count: int
    ) -> list[tuple[State, np.ndarray]]:
        """Return the states of some members `count` steps on."""
        _, move = _compiled(self._spec, self._structure, self._apart)
        all_states = [states[min(number, len(states) - 1)] for number in range(len(self._own))]
        given = self._given(who)
        states_and_broken: Any = pinned(
            lambda every: move(count, all_states, np.int32(first), self._indices, given, every=every)
        )
        return list(zip(*(part[: len(who)] for part in states_and_broken)))

    def _given(self, who: Sequence[int]) -> list[Any]:
        """Return the operands of some members, and of the last of them again where the program has more members."""
        rows = (*who, *[who[-1]] * (len(self._own) - len(who)))
        if self._stacked is None or self._stacked[0] != rows:
            self._stacked = None  # before the next ones take memory
            columns = zip(*(self._own[row] for row in rows))
            self._stacked = rows, [jnp.stack(own) if apart else own[0] for own, apart in zip(columns, self._apart)]
        return self._stacked[1]


def _operands(place: ArrayPlace) -> Any:
    """Return all by which a place differs from others of its form."""
    _, first_numbers, numbers = place.form
    return place.starts, place.records, place.roots, first_numbers, numbers


def _same(one: Any, other: Any) -> bool:
    """Say whether two arrays hold the same numbers; keys of different runs never do."""
    if one is other:
        return True
    is_key = jax.dtypes.issubdtype(jax.typeof(one).dtype, jax.dtypes.prng_key)
    return not is_key and np.asarray(one).tobytes() == np.asarray(other).tobytes()


@lru_cache(maxsize=KEPT)
def _compiled(spec: Spec, structure: Any, apart: tuple[bool, ...]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return `init` and `advance` of `sottovoce.runtime.array` over members; `apart` says where operands differ.

    States come and go member by member, because each is measured and stored by itself.
    """
    axes = [0 if differs else None for differs in apart]

    def init(indices: jax.Array, given: list[Any]) -> list[State]:
        def one(own: list[Any]) -> State:
            starts, records, roots, first_numbers, _ = jax.tree.unflatten(structure, own)
            return array.init(spec, indices, starts, records, roots, first_numbers)

        return _unstacked(jax.vmap(one, in_axes=(axes,))(given))

    def advance(
        count: int, states: list[State], first: jax.Array, indices: jax.Array, given: list[Any], every: int
    ) -> tuple[list[State], jax.Array]:
        def one(state: State, own: list[Any]) -> tuple[State, jax.Array]:
            starts, records, roots, _, numbers = jax.tree.unflatten(structure, own)
            return array.advance(
                spec, count, state, first, indices, starts, records, roots, every=every, numbers=numbers
            )

        stacked = [jnp.stack(leaves) for leaves in zip(*states)]
        moved, broken = jax.vmap(one, in_axes=(0, axes))(stacked, given)
        return _unstacked(moved), broken

    return jax.jit(init), jax.jit(advance, static_argnums=0, static_argnames="every")


def _unstacked(state: State) -> list[State]:
    """Return each member's part of a state."""
    return [[leaf[number] for leaf in state] for number in range(len(state[0]))]
