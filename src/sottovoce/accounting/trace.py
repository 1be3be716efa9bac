"""Trace a method's step once per run, as data that everybody else reads.

Example: `Trace.charges` of DP-SGD holds one charge, "gradient, once per step"; `Trace.private` says of each leaf of the
state whether it depends on a record without noise. Nothing is declared by a method, so nothing can be declared wrongly.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from threading import get_ident
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var
from jax.extend.core import Literal as Constant

from sottovoce.accounting.content import KEPT, first_alike, program, seen_by_equality
from sottovoce.accounting.identity import identity
from sottovoce.accounting.traced import OF_ROWS, locks, participant
from sottovoce.data.parties import SINGLE
from sottovoce.data.population import Population, named
from sottovoce.methods import equations
from sottovoce.methods.agent import Agent, Known
from sottovoce.methods.base import Method
from sottovoce.privacy.release import Release, noise_reads
from sottovoce.privacy.sampling import Sampling, check_words
from sottovoce.problems import objectives
from sottovoce.problems.objectives import of_jax, scattered
from sottovoce.tracing import one_at_a_time

Phase = Literal["init", "step"]


@dataclass(frozen=True)
class Charge:
    """Describe one `release` (or `tell`) in the code of a step, and how often it happens.

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

    @property
    def once(self) -> bool:
        """Say whether a record takes part in one step of the run at most."""
        return self.sampling is not None and self.sampling.once


@dataclass(frozen=True, eq=False)
class Trace:
    """Hold `init` and `step` of one agent as jaxprs, and what was read off them.

    `init` takes the agent's number; `step` takes the agent's number, the step, and the leaves of the state. Both return
    the leaves of the state, whose structure and shapes are kept beside. `private` has one entry per leaf.
    """

    init: ClosedJaxpr
    step: ClosedJaxpr
    structure: Any
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    private: tuple[bool, ...]
    charges: tuple[Charge, ...]
    known: Known
    declares: bool  # that arrays inside the problem's functions, or the method, are public
    reads_noise: bool = False  # in code of the method: with other noise it may be another program

    def state(self, leaves: list[Any]) -> Any:
        """Return the leaves as the method's own state."""
        return jax.tree.unflatten(self.structure, leaves)

    @property
    def names(self) -> list[str]:
        """Return the names of the state's leaves."""
        paths = jax.tree_util.tree_leaves_with_path(self.state(list(range(len(self.shapes)))))
        return [jax.tree_util.keystr(path).lstrip(".") for path, _ in paths]

    @cached_property
    def identity(self) -> str:
        """Return a digest of what is computed, by whom and with whom: program, network, and the parties' sizes.

        Noise by a schedule of another module stands in the program by its numbers (`Listed`).
        """
        known, summed = self.known, self.known.summed
        sums = () if summed is None else (summed.trust, summed.holders.counts)
        return identity(self.init, self.step, known.network.matrices, known.population.counts, *sums)

    @property
    def covered(self) -> bool:
        """Say whether no leaf of the state is private: all that a run ends with then follows from its releases."""
        return not any(self.private)


DECLARED = "arrays inside the problem's functions, or the method, were declared public: public_constants=True"


def trace(method: Method, problem: Any, known: Known) -> Trace:
    """Trace a method's `init` and `step` for a problem; where the same is traced, it is one trace (`content.program`).

    Runs with one trace share their compiled programs, whatever their seed and the values of their records. Nothing is
    traced again for a problem that is the same object and a method that is equal, where `==` sees everything
    (`seen_by_equality`); else a trace would state the epsilon of another method.
    Raises ValueError or TypeError, with the remedy, where an equation cannot be counted, a private value would leave
    the agent, or the state does not keep its shapes.
    """
    if seen_by_equality(method):
        return remembered(get_ident(), method, problem, known)  # by thread: see `content.first_alike`
    return _traced(method, problem, known)


@one_at_a_time
def _traced(method: Method, problem: Any, known: Known) -> Trace:
    given = of_jax(problem)
    public = [*objectives.declared(given, known.records), *known.tables]
    held = locks(method, problem, public, method.public_constants, OF_ROWS)

    def begin(index: jax.Array) -> Any:
        agent = Agent(known, index, jnp.int32(0))
        return method.init(scattered(given, agent.key("start")) if given.spread else given, agent)

    def step(state: Any, index: jax.Array, t: jax.Array) -> Any:
        return method.step(given, state, Agent(known, index, t))

    number = jax.ShapeDtypeStruct((), jnp.int32)
    with noise_reads() as reads:
        made = participant(method, begin, step, (number,), (number, number), held)
    charges = charges_of(made.init, made.step, known)
    declares = method.public_constants or given.public_constants
    return kept(
        Trace(made.init, made.step, made.structure, made.shapes, made.private, charges, known, declares, bool(reads))
    )


def kept(made: Trace) -> Trace:
    """Return the trace, or the one that is held already of the same programs."""
    programs = program(made.init), program(made.step)
    return first_alike((*programs, made.structure, made.known, made.declares, made.reads_noise), made)


@lru_cache(maxsize=KEPT)
def remembered(thread: int, method: Method, problem: Any, known: Known) -> Trace:
    """Return the trace, once for equal arguments."""
    return _traced(method, problem, known)


@dataclass(frozen=True)
class _Drawn:
    """Describe a batch as the account sees it: its number, how often it is drawn, and how."""

    number: int
    loops: tuple[int, ...]
    sampling: Sampling


def charges_of(init: ClosedJaxpr, step: ClosedJaxpr, known: Known) -> tuple[Charge, ...]:
    """Return what a run releases, in the order of the code."""
    return (*_charges(init.jaxpr, "init", known), *_charges(step.jaxpr, "step", known))


def _charges(jaxpr: Jaxpr, phase: Phase, known: Known) -> list[Charge]:
    """Return all charges of a phase, in the order of the code."""
    found: list[Charge] = []
    numbers = iter(range(1, 1 << 30))

    def read(jaxpr: Jaxpr, drawn: dict[Var, _Drawn], loops: tuple[int, ...]) -> None:
        for equation in jaxpr.eqns:
            if equation.primitive is equations.sample_p:
                sampling = equation.params["sampling"]
                _check_sampling(sampling, known.population, known.steps if phase == "step" else 1)
                drawn[equation.outvars[0]] = _Drawn(next(numbers), loops, sampling)
            elif equation.primitive is equations.release_p:
                found.append(_release(equation, drawn, loops))
            elif equation.primitive is equations.tell_p:
                times, levels = int(np.prod(loops, initial=1)), tuple(known.population.sizes)
                found.append(Charge(equation.params["release"], levels, 0, 1, times, None, phase))
            elif equation.primitive is equations.loop_p:
                body, consts = equation.params["body"], equation.params["consts"]
                inside = {
                    own: drawn[given]
                    for own, given in zip(body.invars[:consts], equation.invars[:consts])
                    if not isinstance(given, Constant) and given in drawn
                }
                read(body, inside, (*loops, equation.params["times"]))

    def _release(equation: JaxprEqn, drawn: dict[Var, _Drawn], loops: tuple[int, ...]) -> Charge:
        batch = drawn[equation.invars[0]]  # type: ignore[index]  # a batch is no literal
        levels = tuple(function.level for function in equation.params["asked"].functions)
        batches = int(np.prod(batch.loops, initial=1))
        times = int(np.prod(loops[len(batch.loops) :], initial=1))
        return Charge(equation.params["release"], levels, batch.number, batches, times, batch.sampling, phase)

    read(jaxpr, {}, ())
    return found


def _check_sampling(sampling: Sampling, population: Population, steps: int) -> None:
    """Refuse a batch that some party cannot draw, and name the party."""
    for level, sizes in population.counts.items():
        for n in np.unique(sizes):
            try:
                check_words(sampling, int(n), steps)
                sampling.check(int(n), steps)
            except ValueError as error:
                where = "" if level == SINGLE else f", {level} level"
                parties = named(population, np.flatnonzero(sizes == n).tolist())
                raise ValueError(f"{error} (parties {parties}{where})") from None
