"""Draw random words, keys and noise inside a compiled step, by Threefry (Salmon et al., SC 2011), written out.

Example: ``words(key, (5,))`` are the words of ``jax.random.bits(key, (5,))``, and ``fold(key, 3)`` is the key of
``jax.random.fold_in(key, 3)``. Why by hand: on a processor JAX runs the rounds as a loop, to compile faster. Inside a
step that costs about a hundred small operations per key, and the noise cannot become one pass with what it is added to.
Written out, keys, words and noise are parts of the surrounding passes.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA

# Giles, "Approximating the erfinv function", GPU Computing Gems 2, 2010: single precision, a centre and a tail.
_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 2.1858087e-04, -1.25372503e-03, -4.17768164e-03,
    2.46640727e-01, 1.50140941,
)  # fmt: skip
_TAIL = (
    -2.00214257e-04, 1.00950558e-04, 1.34934322e-03, -3.67342844e-03, 5.73950773e-03, -7.6224613e-03, 9.43887047e-03,
    1.00167406, 2.83297682,
)  # fmt: skip


@jax.jit
def fold(key: jax.Array, number: Any) -> jax.Array:
    """Return the key made of a key and a number below 2**32, as `jax.random.fold_in` does.

    >>> key = jax.random.key(0, impl="threefry2x32")
    >>> bool(fold(key, 3) == jax.random.fold_in(key, 3))
    True
    """
    first, second = _pair(key)
    folded = jnp.stack(_cipher(first, second, jnp.uint32(0), jnp.asarray(number, jnp.uint32)))
    # Without the barrier XLA may fuse key into key, and then compiles for half a minute.
    return jax.random.wrap_key_data(jax.lax.optimization_barrier(folded))


@partial(jax.jit, static_argnames=("shape", "stream"))
def words(key: jax.Array, shape: tuple[int, ...], stream: int = 0) -> jax.Array:
    """Return independent 32-bit words. Streams of one key are independent; stream 0 is that of `jax.random.bits`.

    >>> key = jax.random.key(0, impl="threefry2x32")
    >>> bool((words(key, (5,)) == jax.random.bits(key, (5,))).all())
    True
    """
    first, second = _pair(key)
    counters = jnp.arange(math.prod(shape), dtype=jnp.uint32).reshape(shape)
    high, low = _cipher(first, second, jnp.uint32(stream), counters)
    return high ^ low


@partial(jax.jit, static_argnames=("shape", "stream"))
def normal(key: jax.Array, shape: tuple[int, ...], stream: int = 0) -> jax.Array:
    """Return standard normal numbers in float32, wrong by less than 1e-6 as functions of the uniform ones.

    >>> float(abs(normal(jax.random.key(0), (10_000,)).std() - 1)) < 0.03
    True
    """
    return quantile(odd(key, shape, stream))


@partial(jax.jit, static_argnames=("shape", "stream"))
def laplace(key: jax.Array, shape: tuple[int, ...], stream: int = 0) -> jax.Array:
    """Return Laplace numbers of scale 1 in float32.

    >>> float(abs(abs(laplace(jax.random.key(0), (10_000,))).mean() - 1)) < 0.05
    True
    """
    number = odd(key, shape, stream)
    return -jnp.sign(number) * jnp.log(_to_the_end(number))


def odd(key: jax.Array, shape: tuple[int, ...], stream: int = 0) -> jax.Array:
    """Return odd whole numbers between -2**24 and 2**24: m stands for the uniform number m / 2**24.

    >>> int(odd(jax.random.key(0), ()) % 2)
    1
    """
    return jax.lax.bitcast_convert_type(words(key, shape, stream), jnp.int32) >> 8 << 1 | 1


def quantile(number: jax.Array) -> jax.Array:
    """Return the standard normal number below which a share of (1 + m / 2**24) / 2 lies, for whole numbers m.

    >>> round(float(quantile(jnp.int32(0.95 * 2**24))), 4)
    1.96
    """
    left = _to_the_end(number)
    w = -jnp.log(left * (2 - left))
    centre, tail = jnp.float32(_CENTRE[0]), jnp.float32(_TAIL[0])
    for near, far in zip(_CENTRE[1:], _TAIL[1:]):
        centre, tail = near + centre * (w - 2.5), far + tail * (jnp.sqrt(w) - 3)
    return jnp.where(w < 5, centre, tail) * (number.astype(jnp.float32) * jnp.float32(math.sqrt(2) / 2**24))


def _to_the_end(number: jax.Array) -> jax.Array:
    """Return 1 - |m| / 2**24, exact in float32.

    The difference is taken of whole numbers: XLA reorders sums of floating-point numbers, which made an end 0 and its
    noise infinite.
    """
    return (2**24 - jnp.abs(number)).astype(jnp.float32) * jnp.float32(2**-24)


def _pair(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    if str(jax.random.key_impl(key)) != "threefry2x32":
        raise TypeError(f"a key of {jax.random.key_impl(key)}: simulated runs draw with threefry2x32 alone")
    data = jax.random.key_data(key)
    return data[0], data[1]


@jax.jit
def _cipher(first: jax.Array, second: jax.Array, high: jax.Array, low: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Encrypt the counter (high, low) with the key (first, second)."""
    keys = (first, second, first ^ second ^ jnp.uint32(_PARITY))
    a, b = jnp.broadcast_to(high + first, low.shape), low + second
    for turn in range(5):
        more = keys[(turn + 1) % 3], keys[(turn + 2) % 3] + jnp.uint32(turn + 1)
        a, b = _four_rounds(a, b, *more, rotations=_ROTATIONS[turn % 2])
    return a, b


@partial(jax.jit, static_argnames="rotations")
def _four_rounds(
    a: jax.Array, b: jax.Array, more_a: jax.Array, more_b: jax.Array, rotations: tuple[int, ...]
) -> tuple[jax.Array, jax.Array]:
    """Mix two words, then add a part of the key to each. By `jax.lax`, which is traced faster than `jax.numpy`."""
    for rotation in map(np.uint32, rotations):
        a = lax.add(a, b)
        turned = lax.bitwise_or(lax.shift_left(b, rotation), lax.shift_right_logical(b, np.uint32(32) - rotation))
        b = lax.bitwise_xor(a, turned)
    return lax.add(a, more_a), lax.add(b, more_b)
