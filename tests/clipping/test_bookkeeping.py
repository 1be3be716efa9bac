"""Book-keeping against the gradients that it avoids, from vmap(grad) and measured in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend import core as jex
from jax.sharding import Mesh, PartitionSpec

from sottovoce.clipping import clipped_sum, record_norms
from sottovoce.clipping.bookkeeping import SAFETY, _plan
from tests.marks import few

from .cases import CASES, B, draw, explicit, flat, size

L1_EXACT = ("linear", "mlp", "convolutions", "embedding", "only_indexed", "normalised", "inside_scan", "long_sequence")


USUAL = (
    "hessian_vector_by_jvp", "convolutions", "attention", "tied_embedding", "inside_scan",
    "inside_cond_and_custom_rules",
)  # fmt: skip


@pytest.mark.parametrize("name", few(CASES, USUAL))
def test_equals_per_record_gradients(name):
    fn, at, records = CASES[name]()
    gradients = explicit(fn, at, records)
    weights = np.array([1, 1, 0, 1, 0.5, 1])
    true = {norm: size(gradients, norm) for norm in ("l2", "l1")}
    clips = {norm: float(np.median(true[norm])) for norm in true}

    @jax.jit
    def both(at, records):
        return {
            norm: (record_norms(fn, at, records, norm=norm), clipped_sum(fn, at, records, weights, clip, norm=norm))
            for norm, clip in clips.items()
        }

    for norm, (seen, total) in both(at, records).items():
        seen, clip = np.asarray(seen, np.float64), clips[norm]
        assert np.all(seen >= true[norm])
        if norm == "l2" or name in L1_EXACT:
            np.testing.assert_allclose(seen, true[norm], rtol=1e-5, atol=1e-6)
        factor = weights * np.minimum(1, clip * (1 - SAFETY) / np.maximum(seen, 1e-30))
        np.testing.assert_allclose(flat(total), factor @ gradients, atol=3e-6 * (clip + 1e-3))


def in_factors(name):
    fn, at, records = CASES[name]()
    plan = _plan(fn, at, records, "l2")
    return {jax.tree_util.keystr(path) for i, (path, _) in enumerate(jax.tree.leaves_with_path(at)) if i in plan.blocks}


def test_large_products_are_kept_in_factors():
    """The point of it all: none of these leaves may silently become explicit."""
    assert in_factors("mlp") >= {"['in'][0]", "['out']"}
    assert in_factors("attention") >= {"['o']"}
    assert in_factors("embedding") >= {"[1]"}
    assert in_factors("disjoint_layers") == {""}
    assert in_factors("only_indexed") == {""}
    assert in_factors("shifted") == {"['a']", "['b']"}
    assert in_factors("inside_scan") == {"['out']"}
    assert in_factors("tied_embedding") == set()


def test_equal_products_are_one_use():
    """A surrogate evaluates the loss twice; its first layer still is one product."""
    fn, at, records = CASES["hessian_vector_by_jvp"]()
    plan = _plan(fn, at, records, "l2")
    first = next(i for i, leaf in enumerate(plan.leaves) if leaf.shape == (9, 8))
    assert sum(use.leaf == first for use in plan.uses) == 1


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(0, B - 1),
    st.floats(-3, 3),
    st.sampled_from(["l1", "l2"]),
    st.sampled_from(["mlp", "hessian_vector_by_jvp"]),
)
def test_one_record_moves_the_sum_by_at_most_clip(seed, out, log_clip, norm, name):
    _, at, _ = CASES[name]()
    rng = np.random.default_rng(seed)
    records = {
        "x": (rng.normal(size=(B, 9)) * 10.0 ** rng.uniform(-2, 2, (B, 1))).astype(np.float32),
        "y": rng.integers(0, 4, B),
    }
    clip = 10.0**log_clip
    everyone = flat(SUMS[name, norm](at, records, np.ones(B, np.float32), clip))
    others = flat(SUMS[name, norm](at, records, np.ones(B, np.float32) - (np.arange(B) == out), clip))
    assert size(everyone - others, norm) <= clip


SUMS = {
    (name, norm): jax.jit(
        lambda at, records, weights, clip, name=name, norm=norm: clipped_sum(
            CASES[name]()[0], at, records, weights, clip, norm=norm
        )
    )
    for name in ("mlp", "hessian_vector_by_jvp")
    for norm in ("l1", "l2")
}


@pytest.mark.parametrize("name", ["mlp", "embedding", "inside_scan"])
@pytest.mark.slow
def test_chunks_do_not_matter(name):
    fn, at, records = CASES[name]()

    @jax.jit
    def split(at, records):
        return [
            (clipped_sum(fn, at, records, jnp.ones(B), 0.3, chunk=chunk), record_norms(fn, at, records, chunk=chunk))
            for chunk in (None, 1, 4)
        ]

    (whole, norms), *others = split(at, records)
    for total, seen in others:
        np.testing.assert_allclose(flat(total), flat(whole), atol=1e-6)
        np.testing.assert_allclose(seen, norms, rtol=1e-6)


@pytest.mark.slow
def test_records_without_weight_are_skipped_chunk_by_chunk():
    """Chunks that hold no record are not computed, also where agents are vectorised, and the sum is that of the others.

    What is skipped is counted by a callback in the loss; a chunk is skipped only if no agent needs it.
    """
    seen = []

    def fn(w, r):
        jax.debug.callback(lambda _: seen.append(1), r[0])
        return jnp.tanh(r @ w).sum()

    at, records = jnp.ones((3, 2)), jnp.arange(36.0).reshape(12, 3) / 36
    weights = (jnp.arange(12) < jnp.array([[2], [5]])).astype(float)
    both = jax.jit(jax.vmap(lambda weights: clipped_sum(fn, at, records, weights, 0.1, chunk=4)))(weights)
    jax.effects_barrier()
    assert len(seen) == 2 * 4  # of three chunks, the last is empty for both agents; records are shared by the agents
    for total, taken in zip(both, (2, 5)):
        alone = clipped_sum(lambda w, r: jnp.tanh(r @ w).sum(), at, records[:taken], jnp.ones(taken), 0.1)
        np.testing.assert_allclose(total, alone, rtol=1e-5)


def test_explicit_gradients_are_chunked_by_themselves():
    """A leaf inside scan of 3 million elements: no more than a few gradients of it may exist at once."""
    fn = lambda w, r: lax.fori_loop(0, 2, lambda _, h: jnp.tanh(w @ h), r).sum()  # noqa: E731
    shapes = jax.ShapeDtypeStruct((1700, 1700), jnp.float32), jax.ShapeDtypeStruct((64, 1700), jnp.float32)
    program = jax.make_jaxpr(lambda w, x: clipped_sum(fn, w, x, jnp.ones(64), 1.0))(*shapes)
    largest = max(v.aval.size for eqn in all_equations(program.jaxpr) for v in eqn.outvars)
    assert largest <= 2**24


def all_equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jex.jaxprs_in_params(eqn.params):
            yield from all_equations(inner)


@pytest.mark.parametrize(
    "name", few(["mlp", "convolutions", "hessian_vector_by_jvp", "inside_scan"], ["mlp", "inside_scan"])
)
@pytest.mark.parametrize("clip", [0.5, None])
def test_what_is_not_finite_or_padding_counts_exactly_nothing(name, clip):
    fn, at, records = CASES[name]()
    bad = {0: np.nan, 2: np.inf, 3: 3e38}

    def spoil(x):
        x = np.array(x)
        if x.dtype == np.float32:
            for row, value in bad.items():
                x[row].reshape(-1)[0] = value
        return x

    weights = np.array([1, 1, 1, 0, 1, 1])  # row 3 is padding
    total = jax.jit(lambda at, records, weights: clipped_sum(fn, at, records, weights, clip))
    spoilt = flat(total(at, jax.tree.map(spoil, records), weights))
    assert np.all(np.isfinite(spoilt))
    if name == "mlp":  # tanh(inf) is finite: here inf spoils the record through its activation
        seen = jax.jit(lambda at, records: record_norms(fn, at, records))(at, jax.tree.map(spoil, records))
        assert not np.isfinite(seen[2])
    alone = flat(total(at, records, np.array([0, 1, 0, 0, 1, 1])))
    if name in ("mlp", "hessian_vector_by_jvp", "convolutions"):
        np.testing.assert_allclose(spoilt, alone, atol=1e-6 * np.abs(alone).max())
    padded = flat(total(at, jax.tree.map(spoil, records), (np.arange(B) == 1) * 1.0))
    np.testing.assert_allclose(padded, flat(total(at, records, (np.arange(B) == 1) * 1.0)), rtol=1e-5, atol=1e-7)


def test_no_clip_is_the_plain_weighted_sum():
    fn, at, records = CASES["mlp"]()
    gradients = explicit(fn, at, records)
    weights = np.arange(B)
    clipped = jax.jit(lambda clip: clipped_sum(fn, at, records, weights, clip))
    unclipped = jax.jit(lambda: clipped_sum(fn, at, records, weights, None))
    for total in (clipped(jnp.inf), clipped(1e9), unclipped()):
        np.testing.assert_allclose(flat(total), weights @ gradients, atol=1e-4)
    assert not flat(clipped(0.0)).any()


def agents(name, m=3):
    fn, at, records = CASES[name]()
    ats = jax.tree.map(lambda x: jnp.stack([x * (1 + 0.1 * i) for i in range(m)]), at)
    turned = jax.tree.map(lambda x: jnp.stack([jnp.roll(x, i, 0)[:4] for i in range(m)]), records)
    return fn, ats, turned, jnp.linspace(0.2, 0.6, m)


@pytest.mark.parametrize("name", ["mlp", "hessian_vector_by_jvp", "convolutions", "inside_scan"])
@pytest.mark.slow
def test_agents_may_be_one_array(name):
    fn, ats, records, clips = agents(name)

    def one(at, records, clip):
        return clipped_sum(fn, at, records, jnp.ones(4), clip)

    def stepped(ats):
        return lax.scan(lambda at, _: (at, jax.vmap(one)(at, records, clips)), ats, None, length=2)[1]

    together = jax.jit(stepped)(ats)
    for i in range(3):
        at, mine = jax.tree.map(lambda x, i=i: x[i], (ats, records))
        alone = jax.jit(one)(at, mine, clips[i])
        for step in range(2):
            got = jax.tree.map(lambda x, i=i, step=step: x[step, i], together)
            np.testing.assert_allclose(flat(got), flat(alone), atol=2e-6)


@pytest.mark.parametrize("name", ["mlp", "embedding"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.slow
def test_inside_shard_map(name, shared):
    """Also when all devices share the parameters: each device gets its own sum."""
    m = min(2, len(jax.devices()))
    fn, ats, records, clips = agents(name, m)
    mesh = Mesh(np.array(jax.devices()[:m]), ("agent",))
    rows = PartitionSpec("agent")

    def one(at, records, clips):
        at = at if shared else jax.tree.map(lambda x: x[0], at)
        mine = jax.tree.map(lambda x: x[0], records)
        return jax.tree.map(lambda x: x[None], clipped_sum(fn, at, mine, jnp.ones(4), clips[0], chunk=3))

    first = jax.tree.map(lambda x: x[0], ats)
    sharded = jax.shard_map(one, mesh=mesh, in_specs=(PartitionSpec() if shared else rows, rows, rows), out_specs=rows)
    got = jax.jit(sharded)(first if shared else ats, records, clips)
    alone = jax.jit(lambda at, records, clip: clipped_sum(fn, at, records, jnp.ones(4), clip))
    for i in range(m):
        at, mine, here = jax.tree.map(lambda x, i=i: x[i], (ats, records, got))
        expected = alone(first if shared else at, mine, clips[i])
        np.testing.assert_allclose(flat(here), flat(expected), atol=2e-6)


def test_mixed_precision():
    def fn(w, r):
        return jnp.sum(jnp.tanh(r.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16))).astype(jnp.float32)

    at, records = draw(8, 7), draw(B, 8)
    seen = jax.jit(lambda at, records: record_norms(fn, at, records))(at, records)
    np.testing.assert_allclose(seen, size(explicit(fn, at, records), "l2"), rtol=1e-2)


def test_refusals():
    fn, at, records = CASES["linear"]()
    with pytest.raises(ValueError, match="norm is 'max'"):
        clipped_sum(fn, at, records, jnp.ones(B), 1.0, norm="max")
    with pytest.raises(ValueError, match="clip is -1"):
        clipped_sum(fn, at, records, jnp.ones(B), -1.0)
    with pytest.raises(ValueError, match="clip is nan"):
        clipped_sum(fn, at, records, jnp.ones(B), float("nan"))
    with pytest.raises(ValueError, match="one weight per record"):
        clipped_sum(fn, at, records, jnp.ones(B + 1), 1.0)
    with pytest.raises(ValueError, match="share a leading axis"):
        clipped_sum(fn, at, (draw(B, 7), draw(B + 1)), jnp.ones(B), 1.0)
    with pytest.raises(ValueError, match="one real number"):
        clipped_sum(lambda w, r: w, at, records, jnp.ones(B), 1.0)
    with pytest.raises(TypeError, match="floating point"):
        clipped_sum(fn, jnp.arange(7), records, jnp.ones(B), 1.0)
    with pytest.raises(ValueError, match="chunk is 0"):
        clipped_sum(fn, at, records, jnp.ones(B), 1.0, chunk=0)


def test_no_records_sum_to_zero():
    fn, at, records = CASES["mlp"]()
    nobody = jax.tree.map(lambda x: x[:0], records)
    assert not flat(clipped_sum(fn, at, nobody, jnp.ones(0), 1.0)).any()
