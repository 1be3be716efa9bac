"""What the statement covers depends on the records through released values alone: random methods are run to see it.

Each method is a random program of releases, means, messages, exchanges, loops and arithmetic. It is run twice, on
different records, with a gate that hands out its noise alone. Then every leaf of the state that the trace calls public
must be equal to the bit. (A leaf that the trace calls private may differ, and in some programs must.)
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.methods.base import Method
from sottovoce.privacy import gate
from sottovoce.runtime import array
from sottovoce.runtime.keys import root_key
from sottovoce.runtime.layout import lay_out

SLOTS, STEPS = 3, 2
PROBLEM = sv.Minimize(lambda x, r: 0.5 * jnp.sum((x - r) ** 2), jnp.zeros(2))
ONE, OTHER = ([np.random.default_rng(seed).normal(size=(6, 2)).astype(np.float32) for _ in range(3)] for seed in (0, 1))
RELEASE = sv.Release(1.0, 0.1, name="noisy")


class _Slots(NamedTuple):
    x: Any
    a: Any
    b: Any


def _play(program: Any, slots: list[Any], batch: Any, problem: Any, agent: Any) -> list[Any]:
    slots = list(slots)
    for kind, i, j, k, inside in program:
        here, there = slots[j], slots[k]
        if kind == "release":
            slots[i] = agent.release(RELEASE, problem.loss, at=here, batch=batch)
        elif kind == "mean":
            slots[i] = agent.mean(RELEASE, problem.loss, at=here, batch=batch)
        elif kind == "tell":
            slots[i] = agent.tell(RELEASE, {"in": (here,)})["in"][0]
        elif kind == "mix":
            slots[i] = agent.mix([here], own=[there])[0] if i == 0 else agent.mix({"a": here})["a"]
        elif kind == "norm":
            slots[i] = jnp.full(2, jnp.linalg.norm(here))
        elif kind == "add":
            slots[i] = jnp.sin(here) + 0.5 * there
        elif kind == "where":
            slots[i] = jnp.where(
                here[0] > there[0], jnp.ones(2), jnp.zeros(2)
            )  # the choice is all that is left of them
        elif kind == "jit":
            slots[i] = jax.jit(lambda a, b: {"swapped": (b, a)})(here, there)["swapped"][i % 2]
        elif kind == "scan":
            slots[i] = jax.lax.scan(lambda c, v: (c * 0.5 + v, c), here, jnp.stack([there, there]))[0]
        elif kind == "cond":
            slots[i] = jax.lax.cond(here[0] > 0, lambda: jnp.ones(2), lambda: jnp.zeros(2))
        elif kind == "loop" and inside:

            def turn(carry: Any, agent: Any, inside: Any = inside) -> Any:
                return _play(inside, carry, agent.sample(sv.Poisson(3)), problem, agent)

            slots = agent.loop(2, turn, slots)
    return slots


@dataclass(frozen=True)
class _Random(Method):
    program: tuple[Any, ...]

    def init(self, problem: Any, agent: Any) -> _Slots:
        return _Slots(problem.x0, problem.x0 + 1, problem.x0 - 1)

    def step(self, problem: Any, state: _Slots, agent: Any) -> _Slots:
        return _Slots(*_play(self.program, list(state), agent.sample(sv.Poisson(3)), problem, agent))


slot = st.integers(0, SLOTS - 1)
flat = st.sampled_from(["release", "mean", "tell", "mix", "norm", "add", "where", "jit", "scan", "cond"])
line = st.tuples(flat, slot, slot, slot, st.just(()))
lines = st.lists(line, min_size=1, max_size=3).map(tuple)
loop = st.tuples(st.just("loop"), slot, slot, slot, lines)
programs = st.lists(st.one_of(line, line, line, loop), min_size=2, max_size=6).map(tuple)


def _final(program: Any, parts: list[np.ndarray]) -> tuple[list[Any], tuple[bool, ...]]:
    network = sv.networks.ring(3)
    trace = account_of(_Random(program), parts, STEPS, network, problem=PROBLEM).trace
    spec, layout = array.Spec(trace, 1024), lay_out(parts)
    records, indices = dict(layout.sealed), jnp.arange(3, dtype=jnp.int32)
    starts = {level: sealed.starts for level, sealed in records.items()}
    roots = jnp.broadcast_to(root_key(0), 3)

    def whole(records: Any) -> list[Any]:
        state = array.init(spec, indices, starts, records, roots)
        return array.advance(spec, STEPS, state, jnp.int32(0), indices, starts, records, roots)[0]

    return jax.jit(whole)(records), trace.private


def _check(program: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, ...]:
    drawn = gate.noised

    def noise_alone(mean: Any, *given: Any) -> Any:
        return drawn(jax.tree.map(jnp.zeros_like, mean), *given)

    with monkeypatch.context() as patch:
        patch.setattr(gate, "noised", noise_alone)
        one, private = _final(program, ONE)
        other, _ = _final(program, OTHER)
    for name, a, b, hidden in zip(_Slots._fields, one, other, private, strict=True):
        if not hidden:
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=f"{name} of {program}")
    return private


def _property(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        account_of(_Random(program), ONE, STEPS, sv.networks.ring(3), problem=PROBLEM)
    except TypeError:
        assume(False)  # refused: nothing leaves
    _check(program, monkeypatch)


SETTINGS = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
}


@pytest.mark.slow
@settings(max_examples=150, **SETTINGS)
@given(programs)
def test_what_is_called_covered_depends_on_releases_alone(monkeypatch: pytest.MonkeyPatch, program: Any) -> None:
    _property(program, monkeypatch)


LEAKS = [
    (("mean", 0, 0, 0, ()), ("norm", 0, 0, 0, ())),
    (("mean", 1, 0, 0, ()), ("where", 0, 1, 2, ())),
    (("mean", 1, 0, 0, ()), ("cond", 0, 1, 1, ())),
    (("add", 0, 1, 2, ()), ("mean", 1, 0, 0, ())),  # private only from the second step on
    (("loop", 0, 0, 0, (("add", 0, 1, 0, ()), ("mean", 1, 0, 0, ()))),),
    (("mean", 1, 0, 0, ()), ("mix", 0, 2, 1, ())),
]


@pytest.mark.parametrize("program", LEAKS)
def test_a_mean_that_is_never_told_is_not_covered(program: Any) -> None:
    trace = account_of(_Random(program), ONE, STEPS, sv.networks.ring(3), problem=PROBLEM).trace
    assert trace.private[0]
    assert not trace.covered


def test_an_uncovered_result_says_so() -> None:
    result = sv.run(PROBLEM, ONE, _Random(LEAKS[0]), network=sv.networks.ring(3), steps=1)
    assert not result.covered
    assert not result.releasable
