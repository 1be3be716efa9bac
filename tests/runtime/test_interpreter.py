"""A jaxpr cut into pieces computes what the whole computes, compiled or not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.methods import equations
from sottovoce.runtime.interpreter import Segment, pieces, play, walk

OPERATIONS = {
    "add": lambda a, b: (a + b, a),
    "swap": lambda a, b: (b, a),
    "sine": lambda a, b: (jnp.sin(a), b * 2),
    "scan": lambda a, b: (jax.lax.scan(lambda c, _: (c + b, c), a, None, length=2)[0], b),
    "cond": lambda a, b: (jax.lax.cond(a[0] > 0, lambda: a, lambda: b), b),
    "jit": lambda a, b: jax.jit(lambda a, b: (a * b, a - b))(a, b),
    "constant": lambda a, b: (a + jnp.arange(2.0), jnp.ones(2)),
}


def tell(value, number):
    """An equation of ours: what it means is up to who answers."""
    return equations.tell_p.bind(value, number=number, release=None)[0]


def program(names, asked):
    """A function with some operations, and a question after some of them."""

    def run(a, b, ask):
        for number, (name, stops) in enumerate(zip(names, asked)):
            a, b = OPERATIONS[name](a, b)
            if stops:
                a = ask(a, number)
        return a, b, 3.0

    return run


def answer(equation, values):
    return [values[0] * 2 + equation.params["number"]]


def told(value, number):
    return value * 2 + number


@settings(max_examples=12, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=1, max_size=5),
    asked=st.lists(st.booleans(), min_size=5, max_size=5),
    compiled=st.booleans(),
)
def test_pieces_give_what_the_jaxpr_gives(names, asked, compiled):
    run, a, b = program(names, asked), jnp.asarray([0.5, -1.0]), jnp.asarray([2.0, 0.25])
    closed = jax.make_jaxpr(lambda a, b: run(a, b, tell))(a, b)
    found = play(walk(closed.jaxpr, closed.consts, [a, b], compiled), answer)
    for one, other in zip(found, run(a, b, told), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_jaxpr_is_cut_at_each_question_and_nowhere_else():
    run = program(["add", "sine", "add"], [False, True, True])
    jaxpr = jax.make_jaxpr(lambda a, b: run(a, b, tell))(jnp.ones(2), jnp.ones(2)).jaxpr
    kinds = [isinstance(piece, Segment) for piece in pieces(jaxpr)]
    assert kinds == [True, False, True, False]
    assert pieces(jaxpr) is pieces(jaxpr)  # and so its programs are found compiled


def test_a_piece_hands_on_what_is_used_later_and_no_more():
    def run(a, b):
        unused, used = jnp.sin(a), jnp.cos(b)
        del unused
        return tell(a * 2, 0) + used

    first = pieces(jax.make_jaxpr(run)(jnp.ones(2), jnp.ones(2)).jaxpr)[0]
    assert isinstance(first, Segment)
    assert len(first.outputs) == 2  # what is told, and the cosine


def test_arguments_may_be_results_and_stops_may_come_first_and_last():
    closed = jax.make_jaxpr(lambda a, b: (tell(b, 1), a))(1.0, 2.0)
    assert [float(v) for v in play(walk(closed.jaxpr, closed.consts, [1.0, 2.0], False), answer)] == [5.0, 1.0]


def test_a_piece_works_inside_another_program():
    closed = jax.make_jaxpr(lambda a: tell(jnp.sin(a), 0) + 1)(1.0)

    def whole(a):
        return play(walk(closed.jaxpr, closed.consts, [a], compiled=False), answer)[0]

    np.testing.assert_allclose(jax.jit(jax.vmap(whole))(jnp.arange(3.0)), 2 * np.sin(np.arange(3.0)) + 1, rtol=1e-6)
    np.testing.assert_allclose(jax.grad(whole)(0.3), 2 * np.cos(0.3), rtol=1e-6)


def test_what_is_wrong_in_an_answer_comes_out_at_the_question():
    closed = jax.make_jaxpr(lambda a: tell(a, 0))(1.0)

    def refuse(equation, values):
        raise RuntimeError(f"no answer to {equation.primitive.name}")

    with pytest.raises(RuntimeError, match="no answer to tell"):
        play(walk(closed.jaxpr, closed.consts, [1.0], True), refuse)
