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

from sottovoce.privacy.bookkeeping import SAFETY, _plan, clipped_sum, record_norms
from sottovoce.privacy.norms import outer_sum
from sottovoce.privacy.taps import lowered

B = 6
CASES = {}


def case(fn):
    CASES[fn.__name__] = fn
    return fn


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).normal(size=shape), jnp.float32)


def labels(classes, *shape, seed=0):
    return jnp.asarray(np.random.default_rng([seed, *shape]).integers(0, classes, (B, *shape)))


def cross_entropy(scores, label):
    return -jax.nn.log_softmax(scores)[label]


# The zoo: each case returns (fn, at, records).


@case
def linear():
    return lambda w, r: 0.5 * (r[0] @ w - r[1]) ** 2, draw(7), (draw(B, 7), draw(B))


@case
def mlp():
    def fn(p, r):
        return cross_entropy(jnp.tanh(r["x"] @ p["in"][0] + p["in"][1]) @ p["out"], r["y"])

    at = {"in": (draw(9, 8), draw(8)), "out": draw(8, 4)}
    return fn, at, {"x": draw(B, 9), "y": labels(4)}


def surrogate(order):
    fn, at, records = mlp()
    z = jax.tree.map(lambda x: draw(*x.shape, seed=1), at)

    def hvp(p, r):
        return jax.jvp(lambda q: fn(q, r), (p,), (z,))[1] - fn(p, r)

    def by_grad(p, r):
        g = jax.grad(fn)(p, r)
        return sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(g), jax.tree.leaves(z)))

    return {"jvp": hvp, "grad": by_grad}[order], at, records


@case
def hessian_vector_by_jvp():
    return surrogate("jvp")


@case
def hessian_vector_by_grad():
    return surrogate("grad")


@case
def jacobian_vector():
    """Gradient in x of <grad_y g(x, y), z>: hyper-representation, x the embedding, y the head."""
    y, z = draw(5), draw(5, seed=1)

    def fn(x, r):
        def g(y):
            return 0.5 * (jnp.tanh(r[0] @ x) @ y - r[1]) ** 2

        return jax.jvp(g, (y,), (z,))[1]

    return fn, draw(7, 5), (draw(B, 7), draw(B))


@case
def convolutions():
    def fn(p, r):
        x = lax.conv_general_dilated(r[0][None], p["a"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = lax.reduce_window(jax.nn.relu(x + p["b"]), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = lax.conv_general_dilated(x, p["c"], (2, 1), [(1, 1), (0, 1)], dimension_numbers=("NHWC", "OIHW", "NCHW"))
        return cross_entropy(x.reshape(-1) @ p["d"], r[1])

    at = {"a": draw(3, 3, 2, 4), "b": draw(4), "c": draw(3, 4, 3, 2), "d": draw(3 * 2 * 4, 5) / 5}
    return fn, at, (draw(B, 8, 8, 2), labels(5))


@case
def grouped_convolution_second_order():
    z = draw(3, 2, 4, seed=1)

    def loss(w, r):
        out = lax.conv_general_dilated(
            r[None], w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=2
        )
        return jnp.sum(jnp.sin(out))

    return lambda w, r: jax.jvp(lambda w: loss(w, r), (w,), (z,))[1], draw(3, 2, 4), draw(B, 6, 4)


@case
def residual_with_shared_weights():
    def fn(w, r):
        x = r
        for _ in range(3):
            x = x + jnp.tanh(x @ w) @ w.T
        return jnp.sum(x**2)

    return fn, draw(12, 12) / 4, draw(B, 12)


@case
def attention():
    def fn(p, r):
        q, k, v = (jnp.einsum("td,dhe->hte", r, p[name]) for name in "qkv")
        mixed = jnp.einsum("hts,hse->hte", jax.nn.softmax(jnp.einsum("hte,hse->hts", q, k)), v)
        return jnp.sum(jnp.tanh(jnp.einsum("hte,hed->td", mixed, p["o"])))

    at = {name: draw(16, 2, 8, seed=i) / 3 for i, name in enumerate("qkv")} | {"o": draw(2, 8, 16)}
    return fn, at, draw(B, 3, 16)


@case
def embedding():
    def fn(p, r):
        table, head = p
        return cross_entropy(jnp.tanh(table[r["words"]].mean(0)) @ head + table[r["words"][0], :3], r["y"])

    return fn, (draw(40, 5), draw(5, 3)), {"words": labels(40, 4), "y": labels(3)}


@case
def tied_embedding():
    def fn(table, r):
        return cross_entropy(table @ jnp.tanh(table[r[0]]), r[1])

    return fn, draw(9, 4), (labels(9), labels(9, seed=1))


@case
def only_indexed():
    """Data reweighting: one weight per record, picked by the record's number."""
    return lambda w, r: jax.nn.sigmoid(w[r["id"]]) * r["loss"], draw(30), {"id": labels(30), "loss": draw(B)}


@case
def indexed_outside():
    def fn(table, r):
        picked = table.at[r].get(mode="fill", fill_value=0.0)
        return jnp.sum(jnp.sin(picked * jnp.arange(1.0, 4.0)))

    return fn, draw(8, 3), jnp.array([[0, 7, 7], [1, 9, 7], [11, 12, 2], [3, 3, 3], [7, 8, 0], [5, 6, 8]])


@case
def shifted():
    """Parameters around a public point: a constant added to a leaf changes none of its derivatives."""
    here = draw(9, 8, seed=1)

    def fn(p, r):
        return jnp.sum(jnp.sin(jnp.tanh(r @ (p["a"] - here)) @ (p["b"] + 2.0)) + (here[0, :4] - p["c"]) ** 2)

    return fn, {"a": draw(9, 8), "b": draw(8, 4), "c": draw(4)}, draw(B, 9)


@case
def layers_of_one_array():
    def fn(w, r):
        return jnp.sum(jnp.tanh(jnp.tanh(r @ w[0]) @ w[1]) @ w[1:, 0].T)

    return fn, draw(3, 6, 6), draw(B, 6)


@case
def disjoint_layers():
    return lambda w, r: jnp.sum(jnp.tanh(jnp.tanh(r @ w[0]) @ w[1])), draw(2, 6, 6), draw(B, 6)


@case
def normalised():
    def fn(p, r):
        h = r @ p["w"]
        h = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-3)
        return jnp.sum(jnp.tanh(h * p["scale"] + p["shift"]) * p["temperature"])

    at = {"w": draw(5, 8), "scale": draw(8), "shift": draw(8, seed=1), "temperature": jnp.float32(0.7)}
    return fn, at, draw(B, 4, 5)


@case
def regularised_inside():
    """Weight decay with learned strengths inside the record function: the leaves meet no record there."""

    def fn(p, r):
        return (
            (r[0] @ p["w"] - r[1]) ** 2
            + jnp.sum(jnp.exp(p["strength"]) * p["w"] ** 2)
            + jax.nn.relu(p["strength"]).sum()
        )

    return fn, {"w": draw(6), "strength": draw(6, seed=1), "unused": draw(2)}, (draw(B, 6), draw(B))


@case
def inside_scan():
    def fn(p, r):
        def step(h, x):
            h = jnp.tanh(h @ p["again"] + x @ p["in"])
            return h, None

        return jnp.sum(lax.scan(step, jnp.zeros(4), r["x"])[0] * jnp.where(r["flag"], 1.0, -2.0) @ p["out"])

    at = {"again": draw(4, 4), "in": draw(3, 4), "out": draw(4, 2)}
    return fn, at, {"x": draw(B, 5, 3), "flag": labels(2) > 0}


@case
def inside_cond_and_custom_rules():
    @jax.custom_vjp
    def halved(x):
        return x

    halved.defvjp(lambda x: (x, None), lambda _, d: (0.5 * d,))

    def fn(p, r):
        x = lax.cond(r[0] > 0, lambda w: jnp.sin(r @ w), lambda w: r @ w, p[0])
        return jnp.sum(halved(jax.nn.silu(x)) * halved(p[1]))

    return fn, (draw(4, 3), draw(3)), draw(B, 4)


@case
def long_sequence():
    return lambda w, r: jnp.sum(jnp.tanh(r @ w) ** 2), draw(4, 5), draw(B, 20, 4)


@case
def rematerialised_and_nested_jit():
    @jax.jit
    def layer(x, w):
        return jnp.tanh(x @ jnp.reshape(w, (6, 4)))

    return lambda w, r: jnp.sum(jax.checkpoint(layer)(r, w) ** 2), draw(2, 3, 4), draw(B, 6)


@case
def broadcast_and_stopped():
    def fn(w, r):
        tiled = jnp.broadcast_to(w[:, None], (5, 3))
        return jnp.sum(jnp.sin(r @ tiled) * (1 + lax.stop_gradient(w)[:3]))

    return fn, draw(5), draw(B, 5)


def explicit(fn, at, records):
    """Per-record gradients as a matrix: float32 numbers, as the clipped sum has them, to be measured in float64."""
    gradients = jax.jit(jax.vmap(jax.grad(fn), (None, 0)))(at, records)
    return np.concatenate([np.asarray(g, np.float64).reshape(g.shape[0], -1) for g in jax.tree.leaves(gradients)], 1)


def flat(tree):
    return np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(tree)])


def size(rows, norm):
    return np.linalg.norm(rows, 1 if norm == "l1" else 2, axis=-1)


L1_EXACT = ("linear", "mlp", "convolutions", "embedding", "only_indexed", "normalised", "inside_scan", "long_sequence")


@pytest.mark.parametrize("name", CASES)
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


def difference(ratio):
    """Two uses of one leaf that cancel up to 1/ratio of their size."""

    def fn(w, r):
        return r["u"] @ w @ r["v"] - (r["u"] * (1 + r["e"] / ratio)) @ w @ r["v"]

    u, v = draw(4, 300), draw(4, 200)
    return fn, jnp.zeros((300, 200)), {"u": u, "v": v, "e": draw(4, 300, seed=1)}


@pytest.mark.parametrize("ratio", [1e1, 1e2, 1e3, 1e4])
def test_cancellation_is_never_underestimated(ratio):
    fn, at, records = difference(ratio)
    assert in_blocks(fn, at, records)
    # the factors are float32 numbers: what counts is the gradient that they make, in exact arithmetic
    u, v, e = (np.asarray(records[k]) for k in "uve")
    u2 = np.asarray(jax.jit(lambda u, e: u * (1 + e / ratio))(u, e))
    true = np.linalg.norm(u.astype(float) - u2.astype(float), axis=1) * np.linalg.norm(v.astype(float), axis=1)
    seen = np.asarray(jax.jit(lambda r: record_norms(fn, at, r))(records))
    assert np.all(seen >= true)
    np.testing.assert_allclose(seen, true, rtol=1e-5 + 3e-6 * ratio)


def in_blocks(fn, at, records):
    return set(_plan(fn, at, records, "l2").blocks) == {0}


MEASURE = jax.jit(outer_sum, static_argnums=2)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.floats(-3, 3), st.integers(1, 3))
def test_norm_of_factors_is_an_upper_bound(seed, magnitude, uses):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(1, uses, 40)) * 10.0**magnitude
    d = rng.normal(size=(1, uses, 30))
    a[:, 1:] = a[:, :1] + 10.0 ** rng.uniform(-6, 0) * a[:, 1:]  # nearly parallel
    d[:, 1:] = -d[:, :1] / max(uses - 1, 1) + 10.0 ** rng.uniform(-6, 0) * d[:, 1:]  # nearly opposite
    a, d = a.astype(np.float32), d.astype(np.float32)
    gradient = np.einsum("gtp,gtq->gpq", a.astype(float), d.astype(float)).reshape(1, -1)
    for norm in ("l1", "l2"):
        assert float(MEASURE(a, d, norm)) * (1 + 4e-6) >= size(gradient, norm)[0]


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


@pytest.mark.parametrize("name", ["mlp", "convolutions", "hessian_vector_by_jvp", "inside_scan"])
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


def test_tiny_factors_are_not_lost():
    """The square of 1e-25 is 0 in float32, but its product with 1e15 is a gradient."""
    fn = lambda w, r: r[0] * 1e15 * jnp.sum(r[1:] @ w)  # noqa: E731
    records = jnp.array([[1.0, 1e-25, 1e-25], [1.0, 0.0, 0.0]])
    assert jax.jit(lambda w, r: record_norms(fn, w, r))(jnp.ones((2, 2)), records)[0] >= 2e-10


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


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_lowered_pooling_agrees_on_ties_and_tangents(padding):
    x = jnp.round(draw(2, 9, 9, 3))
    largest = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), padding)  # noqa: E731
    total = lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 2, 2, 1), padding)  # noqa: E731
    for pool in (largest, total):
        tangent = lambda x, pool=pool: jax.jvp(pool, (x,), (draw(*x.shape, seed=1),))[1]  # noqa: E731
        gradient = lambda x, pool=pool: jax.vjp(pool, x)[1](jnp.cos(pool(x)))[0]  # noqa: E731
        lowered_gradient = lambda x, pool=pool: jax.vjp(lowered(pool), x)[1](jnp.cos(pool(x)))[0]  # noqa: E731
        for ours, theirs in ((lowered(pool), pool), (lowered(tangent), tangent), (lowered_gradient, gradient)):
            np.testing.assert_allclose(jax.jit(ours)(x), jax.jit(theirs)(x), atol=1e-5)
    assert np.isnan(jax.jit(lowered(largest))(x.at[0, 3, 3, 0].set(jnp.nan))).any()


@pytest.mark.parametrize("layout", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NHWC"), ("HWNC", "HWOI", "CHWN")])
@pytest.mark.parametrize(
    "options",
    [
        {"window_strides": (2, 1), "padding": "SAME"},
        {"window_strides": (1, 2), "padding": [(1, 2), (-1, 3)], "lhs_dilation": (2, 1)},
        {"window_strides": (1, 1), "padding": "VALID", "rhs_dilation": (1, 2), "feature_group_count": 2},
        {"window_strides": (1, 1), "padding": "VALID", "batch_group_count": 2},
    ],
)
def test_lowered_convolution(layout, options):
    sizes = {"N": 4, "H": 7, "W": 8, "C": 4}
    kernel_sizes = {"H": 3, "W": 2, "I": 4 // options.get("feature_group_count", 1), "O": 6}
    x = draw(*(sizes[c] for c in layout[0]))
    w = draw(*(kernel_sizes[c] for c in layout[1]))
    convolve = lambda x, w: lax.conv_general_dilated(x, w, dimension_numbers=layout, **options)  # noqa: E731
    np.testing.assert_allclose(jax.jit(lowered(convolve))(x, w), convolve(x, w), atol=1e-4)
    assert "conv_general_dilated" not in str(jax.make_jaxpr(lowered(convolve))(x, w))


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
    with pytest.raises(ValueError, match="one weight a record"):
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
