"""Every lock is tried on whatever is traced, for parties with rows and with columns, and nobody traces beside them."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.accounting.traced import OF_COLUMNS, OF_ROWS, Locks, traced
from sottovoce.methods import equations
from sottovoce.privacy.labels import Memoised
from sottovoce.problems.programs import Refused

SOURCE = Path(sv.__file__).parent
TRACERS = {"make_jaxpr", "jit", "export"}

# Who traces or compiles, and why no array of a user can come in there.
DOORS = {
    "problems/programs.py:traced": "the door: functions of a problem, a stored predict, all that `traced` takes",
    # Inside of a trace that passes the door as a whole.
    "methods/handle.py:explicit": "the body of a loop: what it closes over is an operand of the step",
    "clipping/bookkeeping.py:_plan": "a record function, which stands in an equation of a traced step",
    "clipping/taps.py:_opened": "an equation of a traced step, written in another way",
    "privacy/exact_gate.py:_slopes": "a record function, as above",
    "runtime/blocks.py:call": "one agent's traced program, for some agents at a time",
    # Derivatives of jaxprs that passed; where a rule of one's own writes them, `traced` looks at them.
    "accounting/traced.py:_of_records": "looked at by `traced`",
    "accounting/identity.py:derivative": "a key or a digest of a program: nothing is computed",
    # Compiled from programs that passed.
    "tracing.py:compiled": "a wrapper for those below",
    "runtime/interpreter.py:compiled": "a piece of a traced program",
    "runtime/lone_agent.py:": "pieces of a traced program, and our own functions of numbers",
    "runtime/party_programs.py:": "pieces of a traced program, traced losses, and our own functions of numbers",
    "runtime/array.py:": "traced programs",
    "runtime/mesh.py:": "traced programs, our own sums, and figures of `evaluate`",
    "runtime/columns.py:": "traced programs",
    "runtime/members.py:_compiled": "traced programs",
    "runtime/stored_program.py:_exported": "what `stored` traced through the door, and zeros for a reader",
    "runtime/stored_program.py:": "types of jax.export",
    "deploy/columns.py:_outputs": "head outputs, which `traced` gave",
    # What leaves nobody: figures for their owner's eyes, and work beside a run.
    "runtime/result.py:_compiled": "figures of `evaluate`, which no statement covers, as each result says",
    "problems/tasks/vertical.py:probabilities": "predictions of a model whose problem passed",
    "problems/tasks/vision.py:classification": "starting values, which are a setting",
    "runtime/compiler.py:sums_are_right": "a sum of our own, to try the compiler",
    "audit/adversaries.py:scores": "traced programs of a run that is audited",
    "privacy/threefry.py:": "our own generator of random bits",
    "papers/ldp_dsbo/constants.py:": "constants of a problem on public data, for the theory",
    "laboratory/": "exhibits on public data",
}


def doors(tree: ast.AST, within: str = "") -> Iterator[str]:
    """Yield the names of the functions that trace or compile something."""
    for node in ast.iter_child_nodes(tree):
        inside = node.name if isinstance(node, ast.FunctionDef) else within
        called = node.func if isinstance(node, ast.Call) else None
        if getattr(node, "attr", getattr(node, "id", None)) in TRACERS or getattr(called, "id", None) == "compiled":
            yield within
        yield from doors(node, inside)


def test_nobody_else_traces_functions_of_a_user() -> None:
    found = {
        f"{file.relative_to(SOURCE).as_posix()}:{door}"
        for file in SOURCE.rglob("*.py")
        for door in doors(ast.parse(file.read_text()))
    }
    known = {door: next((key for key in DOORS if door.startswith(key)), None) for door in found}
    assert not (others := sorted(door for door, key in known.items() if key is None)), f"trace by `traced`: {others}"
    assert not (gone := sorted(set(DOORS) - set(known.values()))), f"no longer there: {gone}"


@pytest.mark.parametrize(
    "code", ["def f(g): return jax.make_jaxpr(g)", "def f(g):\n @jax.jit\n def h(): return g()", "f = jit(g)",
             "def f(): return partial(jax.jit, static_argnums=1)", "jax.export.export(p)"]
)  # fmt: skip
def test_tracers_are_found(code: str) -> None:
    assert list(doors(ast.parse(code)))


def _ask(value: Any) -> Any:
    return equations.ask_p.bind(jnp.zeros(1, jnp.int32), value, number=0, level="upper")[0]


def _release(value: Any) -> Any:
    asked = equations.Asked((), jax.tree.structure(value), 1)
    batch = equations.sample_p.bind(number=0, sampling=sv.Full())[0]
    return equations.release_p.bind(batch, value, number=1, asked=asked, release=sv.Release(1.0, 0.1))[0]


class _OwnSampling:
    """Draws everything, and says that it draws nothing."""


def _own_kind(value: Any) -> Any:
    equations.sample_p.bind(number=0, sampling=_OwnSampling())
    return value


@jax.custom_batching.custom_vmap
def _batched(value: Any) -> Any:
    return value


@_batched.def_vmap
def _whole(size: int, batched: Any, value: Any) -> Any:
    return value - value.mean(), batched[0]


TABLE = np.arange(3.0)
LOCKED = {
    "an array": (lambda v: v * TABLE, OF_ROWS, "by-pass the privacy gate"),
    "an array in a loop of JAX": (lambda v: jax.lax.fori_loop(0, 2, lambda _, v: v * TABLE, v), OF_COLUMNS, "by-pass"),
    "a callback": (lambda v: jax.pure_callback(lambda v: v, v, v), OF_COLUMNS, "calls back to Python"),
    "a rule for batches": (_batched, OF_COLUMNS, "rule of its own"),
    "a hidden question": (lambda v: jax.jit(_ask)(v), OF_COLUMNS, "stands inside jit"),
    "a hidden release": (lambda v: jax.lax.cond(v[0] > 0, _release, lambda v: v, v), OF_ROWS, "stands inside jit"),
    "a question by a party with rows": (_ask, OF_ROWS, "holds a ask"),
    "a release by a party with columns": (_release, OF_COLUMNS, "holds a sample"),
}


@pytest.mark.parametrize("what", LOCKED)
def test_each_lock_holds(what: str) -> None:
    function, kinds, words = LOCKED[what]
    with pytest.raises(Refused, match=words):
        traced("step", function, jnp.zeros(3), locks=Locks((), False, kinds))


def test_kinds_are_compared_exactly() -> None:
    with pytest.raises(TypeError, match="sampling is of type _OwnSampling: the closed list"):
        traced("step", _own_kind, jnp.zeros(3), locks=Locks((), False, OF_ROWS))


def test_what_everybody_knows_may_stand_in_a_program() -> None:
    declared, everything = Locks((TABLE,), False, OF_ROWS), Locks((), True, OF_ROWS)
    assert traced("step", lambda v: v * TABLE, jnp.zeros(3), locks=declared).out_avals
    assert traced("step", lambda v: v * TABLE[::-1], jnp.zeros(3), locks=everything).out_avals
    with pytest.raises(Refused):
        traced("step", lambda v: v * TABLE[::-1], jnp.zeros(3), locks=declared)


def test_a_method_over_columns_cannot_hide_a_question() -> None:
    """One that asks under `jit` would be counted by nobody: by the handle, and by the equations themselves."""

    class _Quiet(sv.methods.Bambi):
        def step(self, problem: Any, state: Any, party: Any) -> Any:
            jax.jit(_ask)(jnp.zeros((1, 1)))
            return super().step(problem, state, party)

    problem = sv.Vertical(
        lambda x, a: a * x,
        lambda y, e: e @ y,
        lambda s: jnp.concatenate([s, -s], -1),
        [jnp.ones(())],
        [jnp.ones((2, 1))],
    )
    table = sv.Table(sv.Columns([np.ones((8, 2), np.float32)]), sv.Labels(np.arange(8) % 2, classes=2))
    with pytest.raises(Refused, match="a ask stands inside jit"):
        sv.account(_Quiet(1, 4, 0.1, 0.1, Memoised(1.0)), table, steps=1, problem=problem)
