"""What is drawn and what is charged agree at every step of long runs, at extreme sizes, in JAX and in NumPy."""

import random
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import sottovoce as sv
from sottovoce.privacy import accountant
from sottovoce.privacy.sampling import KINDS, LARGEST, FixedSize, Full, OnePass, Poisson, Stream, WithReplacement

HUGE = 2**70  # a setting is a Python number, and has no largest one


def made(kind, n, number):
    """A sampling of this kind that may be drawn from n records; `number` picks its setting."""
    batch = 1 + number % n
    return {
        Full: Full(),
        Poisson: Poisson(batch),
        FixedSize: FixedSize(batch),
        WithReplacement: WithReplacement(batch),
        OnePass: OnePass(batch),
        Stream: Stream(1 + number),
    }[kind]


def true_denominator(sampling, n, t):
    """In whole numbers without a largest one."""
    if isinstance(sampling, Full):
        return n
    return min(sampling.arrivals * (t + 1), n) if isinstance(sampling, Stream) else sampling.batch


def claims(sampling, n):
    """What the amplification says of the batch, against the sampling's own setting."""
    by = sampling.event(n)
    if isinstance(by, accountant.PoissonAmplification):
        return by.rate <= sampling.batch / n and by.rate * 2**32 == sampling.batch * 2**32 // n
    if isinstance(by, accountant.NoAmplification):
        return not sampling.amplifies
    return (by.size, by.batch) == (n, sampling.batch)


@partial(jax.jit, static_argnums=0)
def _computed(sampling, n, t):
    return jax.vmap(lambda t: jnp.asarray(sampling.denominator(n, t)))(t)


sizes = st.integers(1, LARGEST) | st.integers(LARGEST - 5, LARGEST) | st.integers(1, 50)
numbers = st.integers(0, HUGE) | st.sampled_from([2**k + d for k in (15, 16, 30, 31, 32, 63) for d in (-1, 0, 1)])
steps = st.integers(0, LARGEST) | st.integers(LARGEST - 3, LARGEST) | st.integers(0, 20)


def check_denominators(kind, n, number, times):
    sampling = made(kind, n, number)
    around = [] if kind is not Stream else [n // sampling.arrivals + d for d in (-2, -1, 0, 1)]
    times = [t for t in (*times, 0, 2**31 // min(1 + number, 2**31), LARGEST, *around) if 0 <= t <= LARGEST]
    times = (times + [0] * 12)[:12]
    exact = [true_denominator(sampling, n, t) for t in times]
    assert [int(sampling.denominator(n, t)) for t in times] == exact
    charged = sampling.denominator(n, np.asarray(times, np.int64))
    assert np.broadcast_to(charged, len(times)).tolist() == exact
    drawn = _computed(sampling, jnp.int32(n), jnp.asarray(times, jnp.int32)).tolist()
    assert drawn == exact
    assert claims(sampling, n)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=8, deadline=None, derandomize=True)
@example(n=1000, number=2**30, times=[3])
@example(n=1_000_000, number=999_999, times=[2147, 4294])
@example(n=LARGEST, number=0, times=[LARGEST])
@given(n=sizes, number=numbers, times=st.lists(steps, max_size=4))
def test_a_denominator_is_what_is_charged_at_every_step(kind, n, number, times):
    """A Stream divided by 32 704 where 1 000 000 was charged, from step 4294 on; stated 1.55, true 418."""
    check_denominators(kind, n, number, times)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=300, deadline=None)
@given(n=sizes, number=numbers, times=st.lists(steps, max_size=4))
def test_a_denominator_is_what_is_charged_at_every_step_often(kind, n, number, times):
    check_denominators(kind, n, number, times)


def check_draws(kind, n, number, t):
    """Rows of a batch: as many as are divided by, distinct, and within the records; the exact draw takes the same."""
    sampling = made(kind, n, number)
    if kind is OnePass:
        t %= sampling.steps_possible(n)
    rows, weights = sampling.draw(jax.random.key(number % 1000), np.array([n]), jnp.int32(0), jnp.int32(t))
    drawn = np.asarray(rows)[np.asarray(weights) != 0]
    assert drawn.size == 0 or 0 <= drawn.min() <= drawn.max() < n
    assert len(rows) == sampling.capacity(n)
    if kind is not WithReplacement:
        assert len(np.unique(drawn)) == len(drawn)
    if kind is not Poisson:
        assert len(drawn) == true_denominator(sampling, n, t)
    if not sampling.amplifies:
        assert drawn.tolist() == sampling.exact(n, t, random.SystemRandom()).tolist()


@pytest.mark.parametrize(
    ("kind", "n", "number", "t"),
    [
        (Stream, 1000, 2**30, 3),
        (Stream, 1000, 999, 2**31 // 1000),
        (Stream, 1000, HUGE, LARGEST),
        (Full, 100, 0, LARGEST),
        (OnePass, LARGEST, 99, LARGEST // 100 - 1),
        (FixedSize, LARGEST, 49, LARGEST),
        (WithReplacement, LARGEST, 49, LARGEST),
        (Poisson, LARGEST, 49, LARGEST),
    ],
)
def test_draws_are_within_the_records_at_extreme_steps_and_sizes(kind, n, number, t):
    check_draws(kind, n, number, t)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 400), number=numbers, t=steps)
def test_draws_are_within_the_records_often(kind, n, number, t):
    check_draws(kind, n, number, t)


def test_a_large_batch_that_is_cut_is_the_party_s_size():
    cut = Poisson(2**40, cut=True)
    assert [int(cut.denominator(n, 0)) for n in (50, jnp.int32(50))] == [50, 50]


@pytest.mark.parametrize(("n", "count"), [(2**31, 1), (50, 2**31)])
def test_what_a_run_cannot_count_is_refused(n, count):
    method = sv.methods.DpSgd(0.1, sv.Release(1.0, 1.0), sv.Full())
    with pytest.raises(ValueError, match="counts both in 32 bits"):
        sv.account(method, sv.Population([n]), steps=count)
