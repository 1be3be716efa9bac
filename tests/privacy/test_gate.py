"""The gate: sensitivity, noise, and the tie between what is drawn and what is charged."""

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.marks import few
from tests.privacy.keeping import Keeping

import sottovoce as sv
from sottovoce.data.sealed import Sealed
from sottovoce.methods.handle import explicit
from sottovoce.privacy import gate
from sottovoce.privacy.release import Release

AT = {"u": jnp.zeros(1), "v": jnp.zeros(2)}
DOT, _ = explicit(
    lambda u, v, record: u @ record[:1] + v @ record[1:],
    [jax.ShapeDtypeStruct((size,), jnp.float32) for size in (1, 2, 3)],
)
FUNCTION = gate.RecordFunction("records", DOT, consts=0)


@partial(jax.jit, static_argnames=("release", "denominator", "chunk", "usual"))
def mean_of(
    records: np.ndarray, weights: np.ndarray, release: Release, denominator: float, chunk: int = 1024, usual: Any = None
) -> dict:
    """The gradient of x·r is r itself: the gate's output is a clipped mean of the records."""
    rows = jnp.arange(len(records))
    source = Sealed(jnp.asarray(records), rows, None, jnp.int32(0))
    reading = gate.Reading(source, FUNCTION, (), (rows, jnp.asarray(weights)), denominator, usual)
    return gate.clipped_mean(reading, AT, release, chunk)


@settings(max_examples=25, deadline=None)
@given(
    records=st.lists(st.lists(st.floats(-50, 50, width=32), min_size=3, max_size=3), min_size=4, max_size=4),
    clip=st.sampled_from([0.3, 20.0]),
    mechanism=st.sampled_from(["gaussian", "laplace"]),
)
def test_removing_a_record_moves_the_mean_by_at_most_clip_over_denominator(records, clip, mechanism):
    release = Release(clip, 1.0, mechanism)
    data = np.array(records, np.float32)
    with_it = mean_of(data, np.ones(4, np.float32), release, 10.0)
    without = mean_of(data, np.array([0, 1, 1, 1], np.float32), release, 10.0)
    gap = np.concatenate([np.ravel(a - b) for a, b in zip(jax.tree.leaves(with_it), jax.tree.leaves(without))])
    size = np.abs(gap).sum() if mechanism == "laplace" else np.linalg.norm(gap)
    assert size <= clip / 10.0 * (1 + 1e-5)


def test_one_norm_over_the_whole_tree():
    """Per-leaf clips would let (3, 4) through at clip 4 with norm 5."""
    release = Release(4.0, 1.0)
    out = mean_of(np.array([[3.0, 4.0, 0.0]], np.float32), np.ones(1, np.float32), release, 1.0)
    assert np.hypot(*[np.linalg.norm(leaf) for leaf in jax.tree.leaves(out)]) == pytest.approx(4.0, rel=1e-4)


@pytest.mark.parametrize("bad", few([np.nan, np.inf, -np.inf, 3e38], [np.nan, 3e38]))
def test_a_record_that_is_not_finite_contributes_nothing(bad):
    data = np.array([[1.0, 0.0, 0.0], [bad, bad, 1.0], [0.0, 1.0, 0.0]], np.float32)
    release = Release(5.0, 1.0)
    got = mean_of(data, np.ones(3, np.float32), release, 3.0)
    wanted = mean_of(data[[0, 2]], np.ones(2, np.float32), release, 3.0)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted)):
        assert np.all(np.isfinite(a))
        if not np.isfinite(bad):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_chunks_change_nothing():
    data = np.random.default_rng(0).normal(size=(23, 3)).astype(np.float32)
    release, ones = Release(0.8, 1.0), np.ones(23, np.float32)
    for a, b in zip(
        jax.tree.leaves(mean_of(data, ones, release, 23.0)),
        jax.tree.leaves(mean_of(data, ones, release, 23.0, chunk=5)),
    ):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_a_batch_longer_than_usual_is_added_up_whole():
    """Beside agents whose batches are short or empty; an agent's bytes do not depend on how long the others' are."""
    data = np.random.default_rng(0).normal(size=(23, 3)).astype(np.float32)
    release = Release(0.8, 1.0)

    @partial(jax.jit, static_argnames="usual")
    def means(sizes, usual):
        weights = (jnp.arange(23) < sizes[:, None]).astype(jnp.float32)
        return jax.vmap(lambda own: mean_of(data, own, release, 23.0, usual=usual))(weights)

    sizes = jnp.asarray([23, 5, 0, 9])
    pieces, short = means(sizes, usual=8), means(sizes.at[0].set(1), usual=8)
    for leaf, whole in means(sizes, usual=None).items():
        np.testing.assert_allclose(pieces[leaf], whole, atol=1e-6)
        assert np.array_equal(pieces[leaf][1:], short[leaf][1:])


def noise(mechanism: str, scale: float, draws: int = 20_000) -> np.ndarray:
    release = Release(1.0, scale, mechanism)
    drawn = gate.noised({"a": jnp.zeros(draws // 2), "b": jnp.zeros((2, draws // 4))}, release, jax.random.key(3), 0, 0)
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(drawn)])


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_noise_has_the_scale_it_is_charged_for_and_no_other(mechanism):
    sample = noise(mechanism, 0.7)
    law = stats.norm if mechanism == "gaussian" else stats.laplace
    assert stats.kstest(sample, law(scale=0.7).cdf).pvalue > 1e-3
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(sample, law(scale=0.7 * wrong).cdf).pvalue < 1e-9


def test_leaves_and_agents_and_steps_get_independent_noise():
    problem = sv.Minimize(
        lambda x, r: jnp.sum(x["a"] * r) + jnp.sum(x["b"] * r), {"a": jnp.zeros(400), "b": jnp.zeros(400)}
    )
    method = Keeping(Release(1e-6, 1.0), sv.Full())
    network = sv.networks.ring(3)
    runs = [
        sv.run(problem, [np.zeros(5, np.float32)] * 3, method, network=network, steps=steps, seed=0).agents.gradient
        for steps in (1, 2)
    ]
    vectors = np.concatenate([np.asarray(leaf) for run in runs for leaf in jax.tree.leaves(run)])
    correlation = np.corrcoef(vectors) - np.eye(len(vectors))
    assert np.abs(correlation).max() < 0.25  # five standard errors at 400 coordinates


def test_noise_below_zero_is_refused_for_every_agent():
    with pytest.raises(ValueError, match=r"noise is -0\.1 at the first step"):
        sv.Release(1.0, (0.1, -0.1))


def test_one_object_gives_the_noise_and_the_charge():
    """Change the scale in one place, and both the noise drawn and the epsilon reported change with it."""
    problem = sv.Minimize(lambda x, r: jnp.sum(x) * 0.0 * r, jnp.zeros(4000))
    quiet = sv.methods.DpSgd(rate=1.0, gradient=Release(1.0, 0.1), sampling=sv.Full())
    loud = dataclasses.replace(quiet, gradient=dataclasses.replace(quiet.gradient, noise=0.3))
    data = [np.zeros(20, np.float32)]
    small, large = (sv.run(problem, data, method, steps=1) for method in (quiet, loud))
    assert np.std(large.x) / np.std(small.x) == pytest.approx(3.0, rel=0.1)  # three times louder
    mu = 2 / 20 / np.array([0.1, 0.3])  # replace-one sensitivity over noise
    wanted = [float(sv.privacy.sound.gdp_epsilon(m, 1e-5)) for m in mu]
    assert [small.privacy.epsilon, large.privacy.epsilon] == pytest.approx(wanted, rel=1e-9)


def test_releases_refuse_nonsense():
    with pytest.raises(ValueError, match="clip"):
        Release(clip=0.0, noise=1.0)
    with pytest.raises(ValueError, match="mechanism"):
        Release(1.0, 1.0, "uniform")  # type: ignore[arg-type]
    assert not Release(math.inf, 1.0).private
    assert not Release(1.0, 0.0).private
