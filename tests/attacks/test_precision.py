"""Numbers that are not float32 inside a loss: 16 bits (a06), complex numbers (a07), low matmul precision."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sottovoce as sv
from sottovoce.clipping import clipped_sum, record_norms
from sottovoce.clipping.bookkeeping import SAFETY
from tests.marks import few

NARROW = [jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.float8_e5m2]
SHAPE = (3, 4)


def dot_of(dtype):
    return lambda w, r: jnp.sum((r.astype(dtype) @ w.astype(dtype)).astype(jnp.float32))


def preferred(dtype):
    def loss(w, r):
        dims = (((0,), (0,)), ((), ()))
        out = jax.lax.dot_general(r, w, dims, preferred_element_type=dtype)
        return jnp.sum(out.astype(jnp.float32))

    return loss


def table_of(dtype):
    return lambda w, r: jnp.sum(w.astype(dtype)[(jnp.abs(r[0]) * 7).astype(int) % 3].astype(jnp.float32) * r[1])


def transposed(dtype):
    return lambda w, r: jnp.sum(jnp.tanh((w.T.astype(dtype) @ r.astype(dtype)).astype(jnp.float32)))


def twice(dtype):
    return lambda w, r: jnp.sum((r.astype(dtype) @ w.astype(dtype)) * (r.astype(dtype) @ w.astype(dtype))).astype(
        jnp.float32
    )


def scaled(dtype):
    return lambda w, r: jnp.sum(w.astype(dtype).astype(jnp.float32) * r[:, None])


def two_uses(w, r):
    return jnp.sum((r @ w) * (r**2 @ w))


LOSSES = [dot_of, table_of, transposed, twice, scaled]


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("make", [*LOSSES, preferred])
@pytest.mark.parametrize("norm", few(["l2", "l1"], ["l2"]))
def test_a_record_contributes_at_most_its_clip_whatever_a_loss_is_computed_in(dtype, make, norm):
    if make is preferred and dtype not in (jnp.bfloat16, jnp.float16):
        pytest.skip("XLA has no such product on a CPU")
    fn, w = make(dtype), 0.3 * jax.random.normal(jax.random.key(0), SHAPE)
    total = jax.jit(lambda r: clipped_sum(fn, w, r[None], jnp.ones(1), 1.0, norm=norm))
    for seed in range(20):
        record = 3 * jax.random.normal(jax.random.key(seed), SHAPE[:1])
        out = np.asarray(total(record), np.float64)
        assert (np.abs(out).sum() if norm == "l1" else np.linalg.norm(out)) <= 1.0


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("make", LOSSES)
def test_zeroing_out_a_record_among_many_moves_the_sum_by_at_most_the_clip(dtype, make):
    n = 4000
    records = jnp.tile(jnp.asarray([1.0, 0.5, 0.25]), (n, 1))
    total = jax.jit(lambda weights: clipped_sum(make(dtype), jnp.ones(SHAPE), records, weights, 1.0))
    sums = [np.asarray(total((jnp.arange(n) >= k).astype(jnp.float32)), np.float64) for k in range(24)]
    jumps = [np.linalg.norm(a - b) for a, b in itertools.pairwise(sums)]
    assert max(jumps) <= 1.0 + n * 2.0**-23  # the rounding of a float32 sum, and nothing more


def test_a_run_that_casts_down_states_what_is_true():
    """4000 records of one clip each, parameters in bfloat16 inside the loss: the sum moved by 4 clips once."""
    n = 4000
    problem = sv.Minimize(
        lambda w, r: jnp.dot(w.astype(jnp.bfloat16), r.astype(jnp.bfloat16)).astype(jnp.float32), x0=jnp.zeros(4)
    )
    quiet = sv.methods.DpSgd(rate=1.0, gradient=sv.Release(clip=1.0, noise=1e-30), sampling=sv.Full())

    def total(gone):
        records = np.zeros((n, 4), np.float32)
        records[gone:, 0] = 1.0
        return -np.asarray(sv.run(problem, [records], quiet, steps=1).x, np.float64)[0] * n

    sums = [total(gone) for gone in range(6)]
    assert np.abs(np.diff(sums)).max() <= 1.0 + n * 2.0**-22


def test_low_matmul_precision_changes_no_norm_and_no_sum():
    fn, w = dot_of(jnp.float32), jax.random.normal(jax.random.key(0), SHAPE)
    records = jax.random.normal(jax.random.key(1), (5, 3))
    with jax.default_matmul_precision("bfloat16"):
        program = str(jax.make_jaxpr(lambda r: clipped_sum(fn, w, r, jnp.ones(5), 1.0))(records))
        twofold = str(jax.make_jaxpr(lambda r: record_norms(two_uses, jnp.ones((30, 40)), r))(jnp.ones((5, 30))))
    # the loss itself may use whatever it is told; products of factors are at the highest precision
    assert "HIGHEST" in program
    assert "HIGHEST" in twofold


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_parameters_in_16_bits_are_refused_with_the_remedy(dtype):
    with pytest.raises(TypeError, match=r"keep parameters in float32, and cast them down inside"):
        clipped_sum(lambda w, r: jnp.sum(w * r), jnp.ones(3, dtype), jnp.ones((2, 3)), jnp.ones(2), 1.0)


def as_complex(r):
    return jax.lax.complex(r[0], r[1])


COMPLEX = {
    "abs": lambda w, r: jnp.abs(jnp.dot(w.astype(jnp.complex64), as_complex(r))),
    "abs squared": lambda w, r: jnp.abs(jnp.dot(w.astype(jnp.complex64), as_complex(r))) ** 2,
    "real": lambda w, r: jnp.real(jnp.vdot(as_complex(r), w.astype(jnp.complex64))),
    "imag": lambda w, r: jnp.imag(jnp.dot(as_complex(r), w.astype(jnp.complex64))),
    "fft of parameters": lambda w, r: jnp.sum(jnp.abs(jnp.fft.fft(w) * as_complex(r)) ** 2),
    "fft of a product": lambda w, r: jnp.sum(jnp.real(jnp.fft.fft(w * r[0]) * as_complex(r))),
    "rfft of records": lambda w, r: jnp.sum(jnp.abs(jnp.fft.rfft(r[0] @ (w[:, None] * jnp.ones((4, 4))))) ** 2),
    "conj": lambda w, r: jnp.real(jnp.dot(jnp.conj(w * as_complex(r)), as_complex(r))),
    "complex matrix": lambda w, r: jnp.sum(jnp.abs(jnp.outer(w, w).astype(jnp.complex64) @ as_complex(r)) ** 2),
    "look-up": lambda w, r: jnp.real(w.astype(jnp.complex64)[jnp.argmax(r[0])] * as_complex(r)[1]),
    "two roots": lambda w, r: jnp.real(jnp.sqrt(jnp.dot(w.astype(jnp.complex64), as_complex(r)))),
    "exp": lambda w, r: jnp.real(jnp.exp(1j * jnp.dot(w, r[0])) * as_complex(r)[0]),
    "jvp": lambda w, r: jax.jvp(lambda w: jnp.abs(jnp.dot(w.astype(jnp.complex64), as_complex(r))), (w,), (r[0],))[1],
}


@pytest.mark.parametrize("name", few(COMPLEX, ["abs", "fft of a product", "complex matrix", "two roots", "jvp"]))
@pytest.mark.parametrize("norm", few(["l2", "l1"], ["l2"]))
def test_complex_numbers_in_a_loss_give_the_norms_of_real_gradients(name, norm):
    fn, w = COMPLEX[name], jnp.asarray([0.5, -1.0, 2.0, 0.3])
    records = 3 * jax.random.normal(jax.random.key(0), (6, 2, 4))
    records = records.at[0].set(jnp.asarray([[100.0, 0, 0, 0], [0, 100.0, 0, 0]]))  # (1, i), whose x.x is 0
    gradients = np.asarray(jax.vmap(jax.grad(fn), (None, 0))(w, records), np.float64)
    true = np.linalg.norm(gradients, axis=1, ord=1 if norm == "l1" else 2)
    seen = np.asarray(record_norms(fn, w, records, norm=norm), np.float64)
    assert (seen >= true * (1 - 1e-6)).all()
    np.testing.assert_allclose(seen, true, rtol=1e-3, atol=1e-5)
    total = clipped_sum(fn, w, records, jnp.ones(6), 1.0, norm=norm)
    assert total.dtype == jnp.float32
    factor = np.minimum(1, (1 - SAFETY) / np.maximum(seen, 1e-30))
    np.testing.assert_allclose(np.asarray(total), factor @ gradients, atol=1e-4)
