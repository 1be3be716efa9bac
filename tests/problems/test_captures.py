"""What a loss or a method may not bring along: arrays of any shape, wherever they hide, and calls back to Python."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.methods.dp_sgd import DpSgd

DATA = np.ones((30, 2), np.float32)
HALF = np.asarray(0.5)
MEAN = jnp.asarray(0.3)  # of the data: a number that is an array


def square(x, r):
    return 0.5 * jnp.sum((x - r) ** 2)


class _Holder:
    def __init__(self):
        self.table = DATA

    def loss(self, x, r):
        return square(x, r) * self.table.shape[0]

    __call__ = loss


@jax.custom_vjp
def _steep(x):
    return jnp.sum(x)


_steep.defvjp(lambda x: (jnp.sum(x), None), lambda _, g: (g * jnp.asarray(DATA[0]),))


@jax.custom_jvp
def _curved(x):
    return jnp.sum(x)


@_curved.defjvp
def _curved_rule(primals, tangents):
    return jnp.sum(primals[0]), jnp.sum(tangents[0] * jnp.asarray(DATA[0]))


def _closed():
    table, number = jnp.asarray(DATA), jnp.asarray(DATA.mean())
    inside = {"a": [table]}
    return {
        "closure": lambda x, r: square(x, r) + jnp.sum(table),
        "a 0-d array": lambda x, r: square(x, r) * number,
        "a 0-d NumPy array": lambda x, r, c=HALF: square(x, r) * c,
        "default argument": lambda x, r, t=table: square(x, r) + t[0, 0],
        "keyword default": lambda x, r, *, t=table: square(x, r) + t[0, 0],
        "global": lambda x, r: square(x, r) * MEAN,
        "container": lambda x, r: square(x, r) + inside["a"][0][0, 0],
        "partial": functools.partial(lambda t, x, r: square(x, r) + t[0, 0], table),
        "attribute of an instance": _Holder().loss,
        "callable object": _Holder(),
        "jit": jax.jit(lambda x, r: square(x, r) + table[0, 0]),
        "custom_vjp": lambda x, r: square(x, r) + _steep(x),
        "custom_jvp": lambda x, r: square(x, r) + _curved(x),
        "callback": lambda x, r: (
            square(x, r)
            + jax.lax.stop_gradient(jax.pure_callback(lambda: np.float32(1.0), jax.ShapeDtypeStruct((), jnp.float32)))
        ),
        "debug callback": lambda x, r: (jax.debug.callback(lambda v: None, x), square(x, r))[1],
    }


@pytest.mark.parametrize("where", list(_closed()))
def test_a_loss_that_brings_data_along_is_refused(where):
    problem = sv.Minimize(_closed()[where], jnp.zeros(2))
    method = DpSgd(rate=0.1, gradient=sv.Release(1.0, 0.1), sampling=sv.Full())
    with pytest.raises(ValueError, match=r"by-pass the privacy gate|calls back to Python"):
        sv.run(problem, [DATA], method, steps=1)


def test_declared_arrays_numbers_and_starting_values_are_fine():
    table, start = jnp.asarray(DATA), jnp.zeros(2)
    method = DpSgd(rate=0.1, gradient=sv.Release(1.0, 0.1), sampling=sv.Full())
    declared = sv.Minimize(lambda x, r: square(x, r) + table[0, 0], start, public_constants=True)
    half, one = 0.5, np.float32(1.0)
    plain = sv.Minimize(lambda x, r: half * square(x, r) * one + jnp.sum(start), start)
    for problem in (declared, plain):
        report = sv.run(problem, [DATA], method, steps=1).privacy
        assert any("plain numbers inside losses" in caveat for caveat in report.caveats)


@dataclass(frozen=True)
class _Informed(DpSgd):
    """Starts at the mean of the data."""

    def init(self, problem, agent):
        return super().init(problem, agent)._replace(x=jnp.asarray(DATA).mean(axis=0))


@dataclass(frozen=True)
class _Laden(DpSgd):
    """Carries an array that is no field."""

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "table", DATA)


@pytest.mark.parametrize("kind", [_Informed, _Laden])
def test_a_method_that_brings_data_along_is_refused(kind):
    method = kind(rate=0.1, gradient=sv.Release(1.0, 0.1), sampling=sv.Full())
    with pytest.raises(ValueError, match="by-pass the privacy gate"):
        sv.account(method, sv.Population([30]), steps=1)
