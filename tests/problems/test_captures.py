"""What a loss or a method may not bring along: arrays of any shape, wherever they hide, and calls back to Python."""

import functools
import sys
import types
from collections import deque
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

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


class _Class:
    mean = MEAN
    table = np.asarray(0.5)

    @staticmethod
    def told():
        return _Class.table

    @property
    def computed(self):
        return HALF


_INSTANCE = _Class()
_MODULE = types.ModuleType("somebodys")
_MODULE.mean, _MODULE.inner = HALF, types.ModuleType("somebodys.inner")
_MODULE.inner.mean = HALF
sys.modules["somebodys"] = _MODULE


def _imports(x, r):
    import somebodys

    return square(x, r) * somebodys.mean


def _nested(times):
    def wrapped(inner):
        return lambda x, r: inner(x, r)

    loss = lambda x, r, c=HALF: square(x, r) * c  # noqa: E731
    for _ in range(times):
        loss = wrapped(loss)
    return loss


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


def _with_attribute(x, r):
    return square(x, r) * _with_attribute.mean


_with_attribute.mean = HALF


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
        "io_callback": lambda x, r: (
            square(x, r)
            + jax.lax.stop_gradient(io_callback(lambda: np.float32(1.0), jax.ShapeDtypeStruct((), jnp.float32)))
        ),
        "attribute of a class": lambda x, r: square(x, r) * _Class.mean,
        "attribute of an instance's class": lambda x, r, it=_INSTANCE: square(x, r) * it.table,
        "static method": lambda x, r: square(x, r) * _Class.told(),
        "property": lambda x, r, it=_INSTANCE: square(x, r) * it.computed,
        "module": lambda x, r: square(x, r) * _MODULE.mean,
        "module in a module": lambda x, r: square(x, r) * _MODULE.inner.mean,
        "module imported inside": _imports,
        "deque": lambda x, r, c=deque([HALF]): square(x, r) * c[0],
        "function in function": lambda x, r: (lambda y: y * HALF)(square(x, r)),
        "a hundred functions deep": _nested(100),
        "partial in a partial": functools.partial(functools.partial(lambda t, u, x, r: square(x, r) * t, HALF), 1.0),
        "attribute of a function": _with_attribute,
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


@dataclass(frozen=True)
class _Classy(DpSgd):
    """Reads an array of its class."""

    table = DATA

    def init(self, problem, agent):
        return super().init(problem, agent)._replace(x=self.table.mean(axis=0))


@dataclass(frozen=True)
class _Calling(DpSgd):
    """Calls back to Python."""

    def init(self, problem, agent):
        shape = jax.ShapeDtypeStruct((2,), jnp.float32)
        return super().init(problem, agent)._replace(x=jax.pure_callback(lambda: np.ones(2, np.float32), shape))


@pytest.mark.parametrize("kind", [_Informed, _Laden, _Classy, _Calling])
def test_a_method_that_brings_data_along_is_refused(kind):
    method = kind(rate=0.1, gradient=sv.Release(1.0, 0.1), sampling=sv.Full())
    with pytest.raises(ValueError, match=r"by-pass the privacy gate|calls back to Python"):
        sv.account(method, sv.Population([30]), steps=1)
