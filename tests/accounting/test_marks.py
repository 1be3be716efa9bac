"""What depends on a record without noise is private, whatever it goes through on the way."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import sottovoce as sv
from sottovoce.accounting.account import account_of
from sottovoce.accounting.marks import follow

PARTS = list(np.ones((2, 3, 2), np.float32))
RING = sv.networks.ring(2)
RELEASE = sv.Release(1.0, 0.5)
PROBLEM = sv.Minimize(lambda x, r: x @ r, jnp.zeros(2))


class Two(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class _Step(sv.methods.Method):
    """A step that is a function of (agent, state, a private gradient, a public one)."""

    move: Callable[..., Two]
    public_constants = True  # the tests close over numbers of their own

    def init(self, problem, agent):
        return Two(problem.x0, problem.x0)

    def step(self, problem, state, agent):
        batch = agent.sample(sv.Full())
        own = agent.mean(RELEASE, problem.loss, at=jnp.ones(2), batch=batch)
        open_ = agent.release(RELEASE, problem.loss, at=jnp.ones(2), batch=batch)
        return self.move(agent, state, own, open_)


def private(move: Callable[..., Two]) -> tuple[bool, bool]:
    """Whether x and y are private after any number of steps."""
    return account_of(_Step(move), PARTS, 2, RING, problem=PROBLEM).trace.private


@jax.custom_jvp
def doubled(v):
    return 2 * v


doubled.defjvp(lambda values, slopes: (doubled(*values), 2 * slopes[0]))


@jax.custom_vjp
def halved(v):
    return v / 2


halved.defvjp(lambda v: (v / 2, None), lambda _, slope: (slope / 2,))

THROUGH = {
    "arithmetic": lambda v: 3 * v - 1,
    "a sine": jnp.sin,
    "a norm": lambda v: jnp.linalg.norm(v) * jnp.ones(2),
    "an index": lambda v: jnp.zeros(2).at[0].set(v[1]),
    "where": lambda v: jnp.where(v > 0, 1.0, 0.0),
    "a choice of where to write": lambda v: jnp.zeros(2).at[v.argmax()].set(1.0),
    "a container": lambda v: {"a": [v, (v,)]}["a"][1][0],
    "ravel_pytree": lambda v: ravel_pytree({"a": v[:1], "b": v[1:]})[0],
    "jit": jax.jit(lambda v: v + 1),
    "jit of a container": lambda v: jax.jit(lambda pair: pair["b"])({"a": jnp.zeros(2), "b": v}),
    "scan": lambda v: jax.lax.scan(lambda c, row: (c + row, None), jnp.zeros(2), jnp.stack([v, v]))[0],
    "a scan's closure": lambda v: jax.lax.scan(lambda c, row: (c * row + v, None), jnp.zeros(2), jnp.ones(3))[0],
    "fori_loop": lambda v: jax.lax.fori_loop(0, 3, lambda k, c: c + v, jnp.zeros(2)),
    "a branch of cond": lambda v: jax.lax.cond(jnp.array(True), lambda: v, lambda: jnp.zeros(2)),
    "the choice of cond": lambda v: jax.lax.cond(v[0] > 0, lambda: jnp.zeros(2), lambda: jnp.ones(2)),
    "how often a while loop turns": lambda v: jax.lax.while_loop(lambda c: c[0] < v[0], lambda c: c + 1, jnp.zeros(2)),
    "custom_jvp": doubled,
    "custom_vjp": halved,
    "a gradient": lambda v: jax.grad(lambda w: jnp.sum(w * v))(jnp.ones(2)),
    "checkpoint": jax.checkpoint(lambda v: v * v),
    "vmap": lambda v: jax.vmap(lambda one: one + 1)(v),
    "a solver": lambda v: jnp.linalg.solve(jnp.eye(2) + jnp.outer(v, v), jnp.ones(2)),
}


@pytest.mark.parametrize("through", THROUGH)
def test_what_is_computed_from_a_private_value_is_private(through):
    fn = THROUGH[through]
    assert private(lambda agent, state, own, open_: Two(fn(own), fn(open_))) == (True, False)


def test_inside_jit_each_result_has_its_own_mark():
    both = jax.jit(lambda a, b: (a + 1, b + 1))
    assert private(lambda agent, state, own, open_: Two(*both(own, open_))) == (True, False)


def test_a_loop_carries_the_mark():
    def turn(carry, agent):
        a, b, _ = carry
        return a, a, b  # what is private in `a` reaches `c` in the second turn

    def move(agent, state, own, open_):
        _, _, c = agent.loop(3, turn, (own, open_, open_))
        return Two(c, open_)

    assert private(move) == (True, False)


def test_a_loop_that_closes_over_a_private_value_is_private():
    def move(agent, state, own, open_):
        one = agent.loop(2, lambda carry, inner: carry + own, open_)
        other = agent.loop(2, lambda carry, inner: carry + inner.tell(RELEASE, own), open_)
        return Two(one, other)

    assert private(move) == (True, False)


def test_marks_spread_over_steps():
    """x takes what y was a step ago: private from the second step on, and that is found before the first."""
    assert private(lambda agent, state, own, open_: Two(state.y, own)) == (True, True)
    assert private(lambda agent, state, own, open_: Two(state.y, open_)) == (False, False)


def test_noise_ends_the_mark():
    assert private(lambda agent, state, own, open_: Two(agent.tell(RELEASE, own), own)) == (False, True)


def test_what_stays_with_the_agent_may_be_private_while_it_mixes():
    assert private(lambda agent, state, own, open_: Two(agent.mix(open_, own=own), agent.mix(open_))) == (True, False)


@pytest.mark.parametrize(
    "leak",
    [
        lambda agent, own: agent.mix(own),
        lambda agent, own: agent.mix({"a": jnp.zeros(2), "b": jnp.sin(own)})["a"],
        lambda agent, own: agent.loop(2, lambda carry, inner: inner.mix(carry), own),
        lambda agent, own: agent.loop(2, lambda carry, inner: inner.mix(carry) + own, jnp.zeros(2)),
        lambda agent, own: agent.mix(jax.lax.cond(own[0] > 0, lambda: jnp.zeros(2), lambda: jnp.ones(2))),
    ],
    ids=["itself", "in a container", "in a loop", "in a loop's second turn", "as a choice"],
)
def test_a_private_value_may_not_be_mixed(leak):
    with pytest.raises(TypeError, match="a private value may not leave the agent"):
        private(lambda agent, state, own, open_: Two(leak(agent, own), open_))


def test_a_private_state_may_not_be_mixed_a_step_later():
    with pytest.raises(TypeError, match="a private value may not leave the agent"):
        private(lambda agent, state, own, open_: Two(agent.mix(state.y), own))


@pytest.mark.parametrize("how", ["at", "closed over"])
def test_nothing_is_released_at_a_private_point(how):
    def move(agent, state, own, open_):
        batch = agent.sample(sv.Full())
        if how == "at":
            return Two(agent.release(RELEASE, PROBLEM.loss, at=own, batch=batch), open_)
        return Two(agent.release(RELEASE, lambda x, r: x @ (r * own), at=open_, batch=batch), open_)

    with pytest.raises(TypeError, match="at a private point"):
        private(move)


def test_an_argument_that_is_handed_through_keeps_its_mark():
    jaxpr = jax.make_jaxpr(lambda a, b: (b, a, 1.0, jnp.zeros(2)))(1.0, 2.0).jaxpr
    assert follow(jaxpr, [True, False]) == [False, True, False, False]
